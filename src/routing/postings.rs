//! What the router posts: deliveries to lanes and to backlogs, calls for backlogs, and the markers that fence routers.
//! Promises that everything of one channel has one subject in each of the two streams.
//! Does not post.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::Marks;
use super::rules::Planned;
use crate::directory::{Directory, Lane};
use crate::event::delivery::Place;
use crate::event::{ChannelId, Delivery, Partition, TenantId};
use crate::log::Log;
use crate::log::batch::Posting;

/// Makes what is posted for one partition.
#[derive(Debug)]
pub(super) struct Postings<'a> {
    pub(super) log: &'a Log,
    pub(super) directory: &'a Directory,
    pub(super) partition: Partition,
}

impl Postings<'_> {
    /// The batch that goes straight to backlogs, with its marker.
    pub(super) fn to_backlogs(
        &self,
        straight: &[&Planned],
        end: Place,
        marks: Marks,
    ) -> Vec<Posting> {
        let of = |planned: &&Planned| {
            let subject = self.log.backlog_subject(&planned.channel.id.to_string());
            Posting { subject, guard: None, payload: planned.delivery.encode() }
        };
        let mut postings: Vec<_> = straight.iter().map(of).collect();
        postings.push(marker(self.backlogs_subject(), (end, marks.backlogs.1)));
        postings
    }

    /// The batch that goes through lanes, with a call for each of these channels, and the marker that counts.
    pub(super) fn to_lanes(
        &self,
        (queued, called): (&[&Planned], &BTreeMap<ChannelId, TenantId>),
        end: Place,
        marks: Marks,
    ) -> Vec<Posting> {
        let fresh = |planned: &&Planned| {
            let Delivery { channel, tenant, .. } = planned.delivery;
            let payload = planned.delivery.encode();
            Posting { subject: self.lane_subject(channel, tenant), guard: None, payload }
        };
        let call = |(channel, tenant): (&ChannelId, &TenantId)| {
            let subject = self.lane_subject(*channel, *tenant);
            Posting { subject, guard: None, payload: Bytes::new() }
        };
        let mut postings: Vec<_> =
            queued.iter().map(fresh).chain(called.iter().map(call)).collect();
        postings.push(marker(self.queue_subject(), (end, marks.queue.1)));
        postings
    }

    /// The subject of the marker that counts.
    pub(super) fn queue_subject(&self) -> String {
        self.log.routed_subject(self.partition)
    }

    /// The subject of the backlogs' marker.
    pub(super) fn backlogs_subject(&self) -> String {
        self.log.backlog_subject(&format!("routed-{}", self.partition))
    }

    fn lane_subject(&self, channel: ChannelId, tenant: TenantId) -> String {
        let tier = self.directory.tenant(tenant).map(|tenant| tenant.tier);
        let lane = Lane::of(tier.unwrap_or_default(), tenant);
        self.log.lane_subject(&lane.name(), &channel.to_string())
    }
}

fn marker(subject: String, (place, guard): (Place, u64)) -> Posting {
    let payload = rmp_serde::to_vec_named(&place).expect("numbers and ids can be encoded");
    Posting { subject, guard: Some(guard), payload: payload.into() }
}
