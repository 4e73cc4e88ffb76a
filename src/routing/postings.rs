//! What the router posts, and where its markers stand: deliveries to lanes and to backlogs, and calls for backlogs.
//! Promises that a plan that is posted again has the same names, so that its stream knows what it has.
//! Does not post.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::Error;
use super::rules::Planned;
use crate::directory::{Directory, Lane};
use crate::event::delivery::Place;
use crate::event::{ChannelId, Delivery, Partition, TenantId};
use crate::log::Log;
use crate::log::batch::Posting;

/// The markers of a partition: what is routed, and the sequence that guards it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marks {
    pub(super) queue: (Place, u64),
    pub(super) backlogs: (Place, u64),
}

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
            posting(subject, &planned.delivery)
        };
        let mut postings: Vec<_> = straight.iter().map(of).collect();
        postings.push(marker(self.backlogs_subject(), (end, marks.backlogs.1)));
        postings
    }

    /// A call for each of these channels, one for each plan.
    pub(super) fn calls(&self, called: &BTreeMap<ChannelId, TenantId>, end: Place) -> Vec<Posting> {
        let of = end.within.map_or(0, |within| within.event);
        let call = |(channel, tenant): (&ChannelId, &TenantId)| {
            let subject = self.lane_subject(*channel, *tenant);
            let name = Some(format!("{channel}.{}.{}.{of}", self.partition, end.position));
            Posting { subject, name, guard: None, payload: Bytes::new() }
        };
        called.iter().map(call).collect()
    }

    /// What goes through lanes, with the marker that counts.
    pub(super) fn to_lanes(&self, queued: &[&Planned], end: Place, marks: Marks) -> Vec<Posting> {
        let fresh = |planned: &&Planned| {
            let Delivery { channel, tenant, .. } = planned.delivery;
            posting(self.lane_subject(channel, tenant), &planned.delivery)
        };
        let mut postings: Vec<_> = queued.iter().map(fresh).collect();
        postings.push(marker(self.queue_subject(), (end, marks.queue.1)));
        postings
    }

    /// Where the markers stand, as the leaders of their streams have them.
    ///
    /// # Errors
    /// When JetStream does not answer, or a marker cannot be read.
    pub(super) async fn read_marks(&self) -> Result<Marks, Error> {
        let prefix = self.log.namespace().as_str();
        let read = async |stream: &str, subject: String| match self
            .log
            .last(&format!("{prefix}_{stream}"), &subject)
            .await?
        {
            Some((sequence, bytes)) => Ok::<_, Error>((place_of(&subject, &bytes)?, sequence)),
            None => Ok(Default::default()),
        };
        let queue = read("DELIVER", self.queue_subject()).await?;
        let backlogs = read("PARKED", self.backlogs_subject()).await?;
        Ok(Marks { queue, backlogs })
    }

    fn queue_subject(&self) -> String {
        self.log.routed_subject(self.partition)
    }

    fn backlogs_subject(&self) -> String {
        self.log.backlog_subject(&format!("routed-{}", self.partition))
    }

    fn lane_subject(&self, channel: ChannelId, tenant: TenantId) -> String {
        let tier = self.directory.tenant(tenant).map(|tenant| tenant.tier);
        let lane = Lane::of(tier.unwrap_or_default(), tenant);
        self.log.lane_subject(&lane.name(), &channel.to_string())
    }
}

fn posting(subject: String, delivery: &Delivery) -> Posting {
    let name = Some(delivery.id.to_string());
    Posting { subject, name, guard: None, payload: delivery.encode() }
}

fn marker(subject: String, (place, guard): (Place, u64)) -> Posting {
    let payload = rmp_serde::to_vec_named(&place).expect("numbers and ids can be encoded");
    Posting { subject, name: None, guard: Some(guard), payload: payload.into() }
}

fn place_of(subject: &str, marker: &[u8]) -> Result<Place, Error> {
    rmp_serde::from_slice(marker).map_err(|source| Error::Unreadable {
        what: format!("the marker {subject}"),
        source: source.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_read_as_it_was_written_and_a_damaged_one_is_no_beginning() {
        let place = Place { position: 7, within: None };
        let written = marker("m".to_owned(), (place, 3));
        assert_eq!(place_of("m", &written.payload).unwrap(), place);
        for damaged in [&b""[..], b"{}", b"\x81"] {
            assert!(matches!(place_of("m", damaged), Err(Error::Unreadable { .. })), "{damaged:?}");
        }
    }
}
