use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::clock::Timestamp;
use crate::directory::{ChannelSecret, NewChannel};
use crate::event::{
    Body, ConversationId, Fingerprint, MessageId, NodeId, Partitions, Record, RecordId, TenantId,
};

fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

fn channel(number: u8, fields: &serde_json::Value) -> Arc<Channel> {
    let mut body = json!({"name": "n", "url": "https://example.com/"});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    let settings = serde_json::from_value::<NewChannel>(body).unwrap().checked().unwrap();
    let (tenant, id) = (TenantId::derive([1; 16]), ChannelId::derive([number; 16]));
    let secret = ChannelSecret::from_random([1; 32]);
    Arc::new(Channel::new(tenant, id, settings, secret, at(5)))
}

fn event(seq: u64) -> Event {
    Event {
        tenant: TenantId::derive([1; 16]),
        conversation: ConversationId::derive([1; 16]),
        seq,
        id: MessageId::derive([u8::try_from(seq % 250).unwrap(); 16]),
        at: at(10),
        fingerprint: Fingerprint::default(),
        trace: None,
        body: Body::Closed,
    }
}

fn record(position: u64, events: u64) -> Arc<Folded> {
    let events = (0..events).map(|n| event(position * 100 + n)).collect();
    let (id, node) = (RecordId::derive([1; 16]), NodeId::derive([1; 16]));
    let record = Record { version: 2, id, node, events, outcomes: Vec::new() };
    Arc::new(Folded { position, bytes: 1, record })
}

fn partition() -> Partition {
    Partitions::new(1).unwrap().all().next().unwrap()
}

fn place() -> (Partition, u64) {
    (partition(), 7)
}

#[test]
fn a_channel_hears_what_it_asked_for() {
    let own = ChannelId::derive([1; 16]);
    for (fields, links, hears_it) in [
        (json!({}), vec![], true),
        (json!({"types": ["conversation.closed"]}), vec![], true),
        (json!({"types": ["message"]}), vec![], false),
        (json!({"conversations": "linked"}), vec![], false),
        (json!({"conversations": "linked"}), vec![own], true),
        (json!({"conversations": "linked"}), vec![ChannelId::derive([2; 16])], false),
    ] {
        assert_eq!(hears(&channel(1, &fields), &event(1), place(), &links), hears_it, "{fields}");
    }
    let before = Event { at: at(4), ..event(1) };
    assert!(!hears(&channel(1, &json!({})), &before, place(), &[]));
    let ended = |at| {
        let mut channel = (*channel(1, &json!({}))).clone();
        channel.heard_from = vec![at];
        channel
    };
    assert!(hears(&ended(6), &before, place(), &[]), "a clock that is behind changes nothing");
    assert!(!hears(&ended(7), &before, place(), &[]), "it was said before");
    assert!(hears(&ended(99), &event(1), place(), &[]), "it was made beside another log");
}

#[test]
fn what_is_ordered_or_counted_is_pinned() {
    assert!(!channel(1, &json!({})).is_pinned());
    assert!(channel(1, &json!({"ordered": true})).is_pinned());
    assert!(channel(1, &json!({"rateLimit": "5/s"})).is_pinned());
}

#[test]
fn a_burst_is_as_many_of_one_channel_as_no_lane_holds() {
    let (busy, other) = (channel(1, &json!({})), channel(2, &json!({})));
    let ordered = channel(3, &json!({"ordered": true}));
    let planned = |events: usize, channels: &[&Arc<Channel>]| {
        let channels: Arc<[_]> = channels.iter().map(|channel| Arc::clone(channel)).collect();
        let records = [record(1, events as u64)];
        let told = |_: &Event| (Arc::clone(&channels), Arc::from([]));
        plan((partition(), Place::default()), &records, told).deliveries
    };
    let channels = |deliveries: &[Planned]| bursting(deliveries).into_keys().collect::<Vec<_>>();
    let more = channel(4, &json!({"maxInFlight": 20}));
    assert!(channels(&planned(126, &[&busy, &other])).is_empty());
    assert_eq!(channels(&planned(127, &[&busy])), [busy.id]);
    assert!(channels(&planned(127, &[&ordered])).is_empty(), "it has no place in a lane anyway");
    assert!(channels(&planned(156, &[&more])).is_empty(), "it may have as many under way");
    assert_eq!(channels(&planned(157, &[&more])), [more.id]);
    let few = planned(2, &[&other, &ordered]);
    let many: Vec<_> = planned(127, &[&busy]).into_iter().chain(few).collect();
    assert_eq!(channels(&many), [busy.id], "nobody else is called");
}

proptest! {
    /// Plans of any cut, with channels that come and go between them: what stays is delivered exactly once, in order.
    #[test]
    fn plans_that_follow_each_other_deliver_everything_once(
        records in prop::collection::vec(0_u64..60, 1..12), count in 1_u8..60, gone in 0_u8..60,
    ) {
        let records: Vec<_> = records.iter().zip(1..).map(|(events, p)| record(p, *events)).collect();
        let mut all: Vec<_> = (0..count).map(|n| channel(n, &json!({}))).collect();
        all.sort_by_key(|channel| channel.id);
        let few: Vec<_> = all.iter().filter(|c| c.id != ChannelId::derive([gone; 16])).cloned().collect();
        let (all, few): (Arc<[_]>, Arc<[_]>) = (all.into(), few.into());
        let (mut place, mut seen, mut turns) = (Place::default(), Vec::new(), 0);
        while place.position < records.len() as u64 {
            let channels = if turns % 2 == 0 { &all } else { &few };
            let rest = &records[usize::try_from(place.position).unwrap()..];
            let plan = plan((partition(), place), rest, |_| (Arc::clone(channels), Arc::from([])));
            prop_assert!(plan.deliveries.len() <= PLAN_DELIVERIES_MAX);
            prop_assert!(plan.end > place, "it gets on");
            place = plan.end;
            seen.extend(plan.deliveries.into_iter().map(|planned| planned.delivery));
            turns += 1;
        }
        let expected: usize = records.iter().map(|folded| folded.record.events.len()).sum();
        for channel in few.iter() {
            let own = seen.iter().filter(|delivery| delivery.channel == channel.id);
            let seqs: Vec<_> = own.map(|delivery| delivery.seq).collect();
            prop_assert_eq!(seqs.len(), expected);
            prop_assert!(seqs.is_sorted_by(|a, b| a < b));
        }
    }
}
