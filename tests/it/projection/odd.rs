//! What nobody should have written to the log, and a projector has to get past all the same.

use forebay::event::{Body, ClientId, Event, Fingerprint, Message, MessageId, key};
use serde_json::json;

use super::{record, write_by_hand};
use crate::world::client::{Client, tenant_of};
use crate::world::{World, eventually};

const ONE: (&str, &str) = ("FOREBAY_PARTITIONS", "1");

fn message(kind: &str, text: &str) -> Body {
    Body::Message(Box::new(Message {
        kind: kind.into(),
        text: Some(text.into()),
        ..Message::default()
    }))
}

#[tokio::test]
async fn an_event_that_postgres_cannot_store_goes_to_quarantine_and_everything_else_goes_on() {
    let world = World::new().await;
    let server = world.serve(&[ONE]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let partition = server.journal.partitions().of(conversation);
    let event = |seq: u64, body| Event {
        tenant: tenant_of(&server, &tenant),
        conversation,
        seq,
        id: MessageId::derive([u8::try_from(seq).unwrap(); 16]),
        at: world.clock.timestamp(),
        fingerprint: Fingerprint::of(&[Some("x")]),
        trace: None,
        body,
    };
    let events = vec![
        event(2, message("message", "good")),
        event(3, message("message", "a\0b")),
        event(4, message("message", "good")),
        event(5, message("tombstone", "a word of the log")),
        event(6, message("message", "good")),
    ];
    let position = write_by_hand(&server, partition, record(1, events)).await;
    assert_eq!(tenant.say(conversation, "and on").await, 7);
    world.assert_clean(&server).await;
    let kinds = "SELECT string_agg(kind, ' ' ORDER BY seq) FROM messages";
    assert_eq!(
        world.value::<String>(kinds).await.unwrap(),
        "conversation.opened message tombstone message tombstone message message"
    );
    let buried = "SELECT string_agg(seq || ':' || position || ':' || place, ' ' ORDER BY seq) \
                  FROM quarantine WHERE length(reason) > 0 AND length(event) > 0";
    assert_eq!(
        world.value::<String>(buried).await.unwrap(),
        format!("3:{position}:1 5:{position}:3")
    );
    let nobody = Client::with(&server, "");
    eventually("they are counted", async || {
        let page = nobody.get("/metrics").await;
        let counted = "forebay_projection_quarantined_events_total{partition=\"0\"} 2";
        page.text().lines().any(|line| line == counted)
    })
    .await;
    server.stop().await;

    // A node whose tail begins later reads them from Postgres.
    world.clock.shift_wall(3_600_000_000);
    let later = world.serve(&[ONE]).await;
    let page = tenant.at(&later).page(conversation, "after=1").await.json();
    let types: Vec<_> = page["messages"].as_array().unwrap().iter().map(|m| &m["type"]).collect();
    assert_eq!(types, ["message", "tombstone", "message", "tombstone", "message", "message"]);
    assert_eq!((&page["complete"], &page["headSeq"]), (&json!(true), &json!(7)));
    later.stop().await;
}

#[tokio::test]
async fn bytes_that_are_no_record_are_passed_over() {
    let world = World::new().await;
    let server = world.serve(&[ONE, ("FOREBAY_PROJECT", "off")]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let partition = server.journal.partitions().of(conversation);
    let mut positions = Vec::new();
    for (round, junk) in [b"junk".to_vec(), Vec::new(), vec![0xc1; 100]].into_iter().enumerate() {
        positions.push(write_by_hand(&server, partition, junk).await);
        assert_eq!(tenant.say(conversation, "and on").await, 2 + round as u64);
    }
    assert_eq!(tenant.page(conversation, "").await.seqs(), [1, 2, 3, 4]);
    server.stop().await;

    let again = world.serve(&[ONE]).await;
    let tenant = tenant.at(&again);
    assert_eq!(tenant.say(conversation, "after a restart").await, 5);
    assert_eq!(tenant.page(conversation, "").await.seqs(), [1, 2, 3, 4, 5]);
    world.projected(&again).await;
    assert_eq!(world.number("SELECT COUNT(*) FROM messages").await, Some(5));
    let findings = world.verifier(&again).run(&|_| {}).await.unwrap();
    assert_eq!(findings.events, 5);
    assert_eq!(findings.differences.len(), 3, "only the junk is named: {findings:?}");
    for (line, position) in findings.differences.iter().zip(positions) {
        assert!(line.contains(&format!("position {position}:")), "{line}");
    }
    again.stop().await;
}

#[tokio::test]
async fn a_late_repeat_of_a_key_becomes_a_tombstone_at_its_own_seq() {
    let world = World::new().await;
    let server = world.serve(&[ONE]).await;
    let tenant = Client::tenant(&server).await;
    let (conversation, id) = (tenant.open().await, tenant_of(&server, &tenant));
    let partition = server.journal.partitions().of(conversation);
    let body = json!({"text": "a", "clientId": "order-7"});
    let first = tenant.send(conversation, body.clone()).await.json();
    let client_id = ClientId::parse("order-7").unwrap();
    let repeated = key::message_id(id, conversation, None, &client_id);
    assert_eq!(first["id"], repeated.to_string());
    let repeat = Message {
        kind: "message".into(),
        text: Some("a".into()),
        client_id: Some(client_id),
        ..Message::default()
    };
    let event = Event {
        tenant: id,
        conversation,
        seq: 3,
        id: repeated,
        at: world.clock.timestamp(),
        fingerprint: Fingerprint::of(&[Some("a")]),
        trace: None,
        body: Body::Message(Box::new(repeat)),
    };
    write_by_hand(&server, partition, record(1, vec![event])).await;
    assert_eq!(tenant.say(conversation, "and on").await, 4);
    let again = tenant.send(conversation, body.clone()).await;
    assert_eq!((again.status, &again.json()["seq"]), (200, &json!(2)));
    world.assert_clean(&server).await;
    server.stop().await;

    world.clock.shift_wall(3_600_000_000);
    let later = world.serve(&[ONE]).await;
    let tenant = tenant.at(&later);
    let page = tenant.page(conversation, "").await.json();
    let messages = page["messages"].as_array().unwrap();
    let types: Vec<_> = messages.iter().map(|m| m["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["conversation.opened", "message", "tombstone", "message"]);
    assert_eq!((&messages[1]["id"], &messages[2]["id"]), (&first["id"], &first["id"]));
    assert_eq!(messages[2].get("text"), None);
    assert_eq!((&page["complete"], &page["headSeq"]), (&json!(true), &json!(4)));
    later.stop().await;
}
