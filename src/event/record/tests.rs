use proptest::prelude::*;

use super::*;
use crate::event::limits::{RECORD_OVERHEAD_BYTES, TRACE_BYTES_MAX};
use crate::event::{DeliveryId, Fate, Reason};

fn text(chars: usize) -> impl Strategy<Value = Option<Box<str>>> {
    prop::option::of(
        prop::collection::vec(any::<char>(), 0..chars)
            .prop_map(|cs| cs.into_iter().collect::<String>().into()),
    )
}

fn json() -> impl Strategy<Value = Option<Json>> {
    prop::option::of("[a-z]{0,40}".prop_map(|s| Json::from_checked(format!("{{\"k\":\"{s}\"}}"))))
}

prop_compose! {
    fn message()(
        kind in "[a-z.]{1,20}", key in prop::option::of("[A-Za-z0-9._:~-]{1,128}"),
        sender in prop::option::of(("[a-z]{1,20}", text(9), text(9))),
        text in text(200), data in json(), metadata in json(),
    ) -> Body {
        Body::Message(Box::new(Message {
            kind: kind.into(),
            client_id: key.map(|k| ClientId::parse(&k).unwrap()),
            sender: sender.map(|(id, role, name)| Sender { id: id.into(), role, name }),
            text, data, metadata,
        }))
    }
}

fn body() -> impl Strategy<Value = Body> {
    let opening =
        (prop::collection::vec(any::<[u8; 16]>(), 0..20), json()).prop_map(|(ids, metadata)| {
            let channels = ids.into_iter().map(ChannelId::derive).collect();
            Body::Opened(Box::new(Opening { channels, metadata }))
        });
    prop_oneof![8 => message(), 1 => opening, 1 => Just(Body::Closed), 1 => Just(Body::Reopened)]
}

prop_compose! {
    fn event()(ids in any::<[[u8; 16]; 3]>(), seq in any::<u64>(), traced in any::<bool>(), body in body()) -> Event {
        Event {
            tenant: TenantId::derive(ids[0]),
            conversation: ConversationId::derive(ids[1]),
            seq,
            id: MessageId::derive(ids[2]),
            at: Timestamp::from_micros(1_764_000_000_123_456).unwrap(),
            fingerprint: Fingerprint::of(&[Some("x")]),
            trace: traced.then(|| "t".repeat(TRACE_BYTES_MAX).into()),
            body,
        }
    }
}

fn record_of(events: Vec<Event>) -> Record {
    Record {
        version: VERSION,
        id: RecordId::derive([1; 16]),
        node: NodeId::derive([2; 16]),
        events,
        outcomes: Vec::new(),
    }
}

proptest! {
    #[test]
    fn a_record_survives_its_bytes_and_keeps_its_size_bound(events in prop::collection::vec(event(), 1..20)) {
        let record = record_of(events);
        let bytes = record.encode().unwrap();
        let bound: usize = record.events.iter().map(|e| e.body.size()).sum();
        prop_assert!(bytes.len() <= bound + RECORD_OVERHEAD_BYTES, "{} > {}", bytes.len(), bound);
        prop_assert_eq!(Record::peek(&bytes), Some((record.id, record.node)));
        prop_assert_eq!(Record::decode(&bytes).unwrap(), record);
    }

    #[test]
    fn damaged_bytes_are_an_error_and_never_a_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), at in any::<prop::sample::Index>()) {
        drop(Record::decode(&bytes));
        let mut good = record_of(vec![lone(Body::Closed)]).encode().unwrap();
        let place = at.index(good.len());
        good[place] = good[place].wrapping_add(1);
        drop(Record::decode(&good));
        good.truncate(place);
        prop_assert!(Record::decode(&good).is_err());
        bytes.clear();
        prop_assert!(Record::decode(&bytes).is_err());
    }
}

fn lone(body: Body) -> Event {
    Event {
        tenant: TenantId::derive([3; 16]),
        conversation: ConversationId::derive([4; 16]),
        seq: 7,
        id: MessageId::derive([5; 16]),
        at: Timestamp::from_micros(1).unwrap(),
        fingerprint: Fingerprint::default(),
        trace: None,
        body,
    }
}

#[test]
fn a_record_of_a_newer_version_is_refused_by_name() {
    let mut record = record_of(vec![lone(Body::Closed)]);
    record.version = VERSION + 1;
    let error = Record::decode(&record.encode().unwrap()).unwrap_err();
    assert!(matches!(error, CodecError::Version(3)), "{error}");
}

#[test]
fn unknown_fields_are_ignored() {
    #[derive(Serialize)]
    struct Later {
        v: u8,
        r: RecordId,
        n: NodeId,
        z: &'static str,
        e: Vec<Event>,
    }
    let record = record_of(vec![lone(Body::Reopened)]);
    let later =
        Later { v: VERSION, r: record.id, n: record.node, z: "?", e: record.events.clone() };
    let bytes = rmp_serde::to_vec_named(&later).unwrap();
    assert_eq!(Record::decode(&bytes).unwrap(), record);
}

#[test]
fn records_beyond_their_bounds_are_refused() {
    assert!(matches!(record_of(vec![]).encode(), Err(CodecError::Bounds { events: 0, .. })));
    let many = vec![lone(Body::Closed); RECORD_EVENTS_MAX + 1];
    assert!(matches!(record_of(many).encode(), Err(CodecError::Bounds { .. })));
    let text: Box<str> = "x".repeat(RECORD_BYTES_MAX).into();
    let large = Body::Message(Box::new(Message { text: Some(text), ..Message::default() }));
    assert!(matches!(record_of(vec![lone(large)]).encode(), Err(CodecError::Bounds { .. })));
}

#[test]
fn a_record_written_by_the_first_version_is_still_read() {
    let written = include_bytes!("version1.bin");
    let mut expected = record_of(vec![lone(Body::Closed), lone(sample())]);
    expected.version = 1;
    assert_eq!(Record::decode(written).unwrap(), expected);
}

fn sample() -> Body {
    Body::Message(Box::new(Message {
        kind: "message".into(),
        client_id: Some(ClientId::parse("k-1").unwrap()),
        sender: Some(Sender { id: "ann".into(), role: Some("agent".into()), name: None }),
        text: Some("grüß dich".into()),
        data: Some(Json::from_checked("{\"n\":1.50}")),
        metadata: None,
    }))
}

fn outcome(answer: usize) -> Outcome {
    Outcome {
        tenant: TenantId::derive([1; 16]),
        conversation: ConversationId::derive([2; 16]),
        delivery: DeliveryId::derive([3; 16]),
        channel: ChannelId::derive([4; 16]),
        message: MessageId::derive([5; 16]),
        seq: u64::MAX,
        attempt: u32::MAX,
        began_at: Timestamp::default().plus(std::time::Duration::MAX),
        took_ms: u32::MAX,
        status: Some(u16::MAX),
        reason: Some(Reason::TimeoutConnect),
        fate: Fate::Retry(Timestamp::default().plus(std::time::Duration::MAX)),
        answer: Some("a".repeat(answer).into()),
    }
}

#[test]
fn outcomes_survive_their_bytes_and_keep_their_size_bound() {
    for answer in [0, 200, 70_000] {
        let mut record = record_of(Vec::new());
        record.outcomes = vec![outcome(answer); 3];
        let bytes = record.encode().unwrap();
        let bound: usize = record.outcomes.iter().map(Outcome::size).sum();
        assert!(bytes.len() <= bound + RECORD_OVERHEAD_BYTES);
        assert_eq!(Record::decode(&bytes).unwrap(), record);
    }
}

#[test]
fn a_record_of_version_1_has_no_outcomes() {
    let mut record = record_of(Vec::new());
    record.outcomes = vec![outcome(1)];
    record.version = 1;
    let entries = record.encode().unwrap();
    assert_eq!(Record::decode(&entries).unwrap().entries(), 1);
    record.outcomes.clear();
    assert!(matches!(record.encode(), Err(CodecError::Bounds { events: 0, .. })));
}
