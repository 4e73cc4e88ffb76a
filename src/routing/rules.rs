//! Pure: which channels hear of an event, and how far a batch of deliveries reaches.
//! Promises that a plan ends at a place from which the next one goes on, whatever became of the channels meanwhile.
//! Does not read the log or the directory; both are arguments.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::directory::{Channel, Scope};
use crate::event::delivery::{Place, Within};
use crate::event::webhook::body;
use crate::event::{ChannelId, Delivery, Event, Partition, TenantId};
use crate::journal::ring::Folded;

/// Most deliveries of one batch: JetStream's bound for atomic batches, less the marker and the calls.
pub const PLAN_DELIVERIES_MAX: usize = 900;

/// Deliveries of one channel that wait on a node (`CHANNEL_LINE_MAX` of `delivery/slots.rs`). A channel that has more in one batch than
/// all nodes hold of it has a burst: of what they pulled they would move the rest to its backlog.
const HELD_WAITING: usize = 32;

/// Deliveries of one channel that are under way on a node by default (`DELIVERY_CHANNEL_MAX`).
const HELD_UNDER_WAY: usize = 10;

/// Nodes that may share a lane. With more of them, or more slots, a burst is seen too early, and waits for one node's slots.
const NODES: usize = 3;

/// Most bytes of the bodies of one batch.
pub const PLAN_BYTES_MAX: usize = 2 * 1024 * 1024;

/// A delivery with its place in the log and what its channel asks for.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Where it comes from.
    pub place: Place,
    /// Its channel.
    pub channel: Arc<Channel>,
    /// What is to be delivered.
    pub delivery: Delivery,
}

/// The deliveries of some records.
#[derive(Debug, Default)]
pub struct Plan {
    /// In the order of the log.
    pub deliveries: Vec<Planned>,
    /// Where the next plan begins.
    pub end: Place,
}

/// Whether a channel hears of an event at this place of the log; `links` are the channels that the conversation names.
pub fn hears(
    channel: &Channel,
    event: &Event,
    (partition, position): (Partition, u64),
    links: &[ChannelId],
) -> bool {
    let settings = &channel.settings;
    let of_type =
        settings.types.as_ref().is_none_or(|types| types.iter().any(|kind| kind == event.kind()));
    let in_scope = match settings.conversations {
        Scope::All => true,
        Scope::Linked => links.contains(&channel.id),
    };
    // What was said before it was there is not its business, also when the log is routed late. Nodes do not agree on the
    // time, but on places; only a channel that is older than the log has none.
    let ended = channel.heard_from.get(partition.index());
    let is_later = event.at >= channel.created_at || ended.is_some_and(|ended| position > *ended);
    of_type && in_scope && is_later
}

/// The deliveries of these records after `begin`, as many as one batch takes. `channels` says who may hear of an event
/// at all, in the order of their ids, and what the conversation names.
pub fn plan(
    (partition, begin): (Partition, Place),
    records: &[Arc<Folded>],
    mut channels: impl FnMut(&Event) -> (Arc<[Arc<Channel>]>, Arc<[ChannelId]>),
) -> Plan {
    let mut plan = Plan { deliveries: Vec::new(), end: begin };
    let mut bytes = 0;
    for folded in records {
        let before = Place { position: folded.position - 1, within: None };
        let at = (partition, folded.position);
        for (event, number) in folded.record.events.iter().zip(0_u32..) {
            let (known, links) = channels(event);
            let mut said: Option<Bytes> = None;
            for channel in known.iter().filter(|channel| hears(channel, event, at, &links)) {
                let within = Some(Within { event: number, channel: channel.id });
                let place = Place { within, ..before };
                if place <= begin {
                    continue;
                }
                let body = said.get_or_insert_with(|| body(event)).clone();
                bytes += body.len();
                let full = plan.deliveries.len() >= PLAN_DELIVERIES_MAX || bytes > PLAN_BYTES_MAX;
                if full && !plan.deliveries.is_empty() {
                    return plan;
                }
                let delivery = deliver(event, channel.id, body);
                plan.deliveries.push(Planned { place, channel: Arc::clone(channel), delivery });
                plan.end = place;
            }
        }
        plan.end = Place { position: folded.position, within: None };
    }
    plan
}

/// Deliveries of a channel in one batch that are not a burst yet.
fn held_max(channel: &Channel) -> usize {
    let asked =
        channel.settings.max_in_flight.map(|cap| usize::try_from(cap).unwrap_or(usize::MAX));
    HELD_WAITING.saturating_add(asked.unwrap_or(HELD_UNDER_WAY)).saturating_mul(NODES)
}

/// The channels that have a burst among these: their deliveries take no place in their lanes, where others' would wait behind
/// them. Those that are always delivered to from their backlogs have none.
pub fn bursting(deliveries: &[Planned]) -> BTreeMap<ChannelId, TenantId> {
    let mut counts: BTreeMap<ChannelId, (&Planned, usize)> = BTreeMap::new();
    for planned in deliveries.iter().filter(|planned| !planned.channel.is_pinned()) {
        counts.entry(planned.channel.id).or_insert((planned, 0)).1 += 1;
    }
    let bursts = counts.into_iter().filter(|(_, (one, count))| *count > held_max(&one.channel));
    bursts.map(|(channel, (one, _))| (channel, one.delivery.tenant)).collect()
}

fn deliver(event: &Event, channel: ChannelId, body: Bytes) -> Delivery {
    Delivery {
        id: Delivery::name(event.id, channel),
        tenant: event.tenant,
        channel,
        conversation: event.conversation,
        message: event.id,
        seq: event.seq,
        attempt: 1,
        before: 0,
        body,
    }
}

#[cfg(test)]
mod tests;
