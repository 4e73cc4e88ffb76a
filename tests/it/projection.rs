//! From the log to Postgres: once, in order, whoever projects, and past whatever cannot be projected.

mod odd;
mod permits;

use std::time::Duration;

use forebay::cli::serve::Server;
use forebay::event::{Event, Partition, Record, RecordId};
use forebay::log::{Outcome, Outgoing};
use forebay::metrics::Metrics;
use forebay::operate::verify;
use forebay::projection::rebuild::Rebuild;
use forebay::projection::{self, Error, Projector, Step};
use serde_json::json;

use crate::world::World;
use crate::world::client::Client;

/// A projector of the test's own, beside those of the server.
fn projector(world: &World, server: &Server, partition: Partition) -> Projector {
    let parts = projection::Parts {
        journal: server.journal.clone(),
        log: server.log.clone(),
        epoch: server.shape.epoch.clone(),
        database: server.pools.1.clone(),
        clock: world.clock.clone(),
    };
    let count = server.shape.partitions.count();
    let metrics = Metrics::silent(count).projection[partition.index()].clone();
    Projector::new(parts, partition, metrics)
}

fn rebuild(world: &World, server: &Server, settings: &[(&str, &str)]) -> Rebuild {
    Rebuild {
        log: server.log.clone(),
        partitions: server.shape.partitions,
        epoch: server.shape.epoch.clone(),
        target: world.config(settings).database,
        clock: world.clock.clone(),
    }
}

/// Writes bytes to the end of a partition as nobody else does, and waits until the server has seen them.
async fn write_by_hand(server: &Server, partition: Partition, bytes: Vec<u8>) -> u64 {
    let expected = server.log.bounds(partition).await.unwrap().last;
    let mut id = [3; 16];
    id[..8].copy_from_slice(&expected.to_be_bytes());
    let outgoing = Outgoing { id: RecordId::derive(id), expected, bytes: bytes.into() };
    let Outcome::Stored { position } = server.log.append(partition, outgoing).await else {
        panic!("the guard names the end of a quiet partition");
    };
    let tail = server.journal.tail(partition);
    crate::world::eventually("the server has seen it", async || tail.position() >= position).await;
    position
}

fn record(position: u64, events: Vec<Event>) -> Vec<u8> {
    let mut id = [4; 16];
    id[..8].copy_from_slice(&position.to_be_bytes());
    let node = forebay::event::NodeId::derive([5; 16]);
    Record { version: 1, id: RecordId::derive(id), node, events, outcomes: Vec::new() }
        .encode()
        .unwrap()
}

#[tokio::test]
async fn two_nodes_that_project_the_same_write_every_event_once() {
    let world = World::new().await;
    let (a, b) = (world.serve(&[]).await, world.serve(&[]).await);
    let here = Client::tenant(&a).await;
    let there = here.at(&b);
    crate::world::eventually("b knows the key", async || {
        there.post("/v1/tokens", json!({})).await.status == 201
    })
    .await;
    let mut talks = Vec::new();
    for _ in 0..4 {
        talks.push(here.open().await);
    }
    let sends = (0..120_usize).map(|n| {
        let (client, conversation) = (if n % 2 == 0 { &here } else { &there }, talks[n % 4]);
        let body = json!({"text": "a", "clientId": format!("k{n}")});
        async move {
            let sent = client.send(conversation, body).await;
            assert_eq!(sent.status, 201, "{sent:?}");
        }
    });
    futures_util::future::join_all(sends).await;
    let findings = world.assert_clean(&a).await;
    assert_eq!(findings.events, 124);
    assert_eq!(world.number("SELECT COUNT(*) FROM messages").await, Some(124));
    let tombstones = "SELECT COUNT(*) FROM messages WHERE kind = 'tombstone'";
    assert_eq!(world.number(tombstones).await, Some(0));
    a.stop().await;
    b.stop().await;
}

#[tokio::test]
async fn of_two_projectors_one_writes_and_the_other_stands_back() {
    let world = World::new().await;
    let settings = [("FOREBAY_PARTITIONS", "1"), ("FOREBAY_PROJECT", "off")];
    let server = world.serve(&settings).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let partition = server.journal.partitions().of(conversation);
    let mut one = projector(&world, &server, partition);
    let mut other = projector(&world, &server, partition);
    let mut written = 0;
    for round in 0..20 {
        tenant.say(conversation, "hello").await;
        let (first, second) = tokio::join!(one.step(), other.step());
        for step in [first.unwrap(), second.unwrap()] {
            if let Step::Wrote(events) = step {
                written += events;
            }
        }
        assert!(written <= round + 2, "{written} written after round {round}");
    }
    while let Step::Wrote(events) = one.step().await.unwrap() {
        written += events;
    }
    while one.step().await.unwrap() == Step::Elsewhere {}
    assert_eq!(written, 21, "every event by exactly one of them");
    world.assert_clean(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn rows_of_another_log_are_left_alone_until_a_rebuild() {
    let world = World::new().await;
    let settings = [("FOREBAY_PARTITIONS", "1"), ("FOREBAY_PROJECT", "off")];
    let server = world.serve(&settings).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    tenant.say(conversation, "hello").await;
    world.execute("UPDATE checkpoints SET epoch = 'another', position = 1000").await;
    let partition = server.journal.partitions().of(conversation);
    let refused = projector(&world, &server, partition).step().await;
    let Err(Error::OtherLog { stored, current }) = &refused else { panic!("{refused:?}") };
    assert_eq!((stored.as_str(), current), ("another", &server.shape.epoch));
    assert!(refused.unwrap_err().to_string().contains("forebay rebuild"));
    assert_eq!(world.number("SELECT COUNT(*) FROM messages").await, Some(0));
    let verified = world.verifier(&server).run(&|_| {}).await;
    assert!(matches!(verified, Err(verify::Error::OtherLog { .. })), "{verified:?}");

    let events = rebuild(&world, &server, &settings).run(&|_| {}).await.unwrap();
    assert_eq!(events, 2);
    assert_eq!(world.assert_clean(&server).await.events, 2);
    tenant.say(conversation, "and on").await;
    assert_eq!(projector(&world, &server, partition).step().await.unwrap(), Step::Wrote(1));
    world.assert_clean(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn a_projector_that_is_behind_the_tail_reads_the_log() {
    let world = World::new().await;
    let settings = [
        ("FOREBAY_PARTITIONS", "1"),
        ("FOREBAY_PROJECT", "off"),
        ("FOREBAY_TAIL_BYTES_MAX", "65536"),
    ];
    let server = world.serve(&settings).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let messages = vec![json!({"text": "x".repeat(4_000)}); 10];
    let path = format!("/v1/conversations/{conversation}/messages:batch");
    for _ in 0..6 {
        assert_eq!(tenant.post(&path, json!({ "messages": messages })).await.status, 201);
    }
    let partition = server.journal.partitions().of(conversation);
    let mut projector = projector(&world, &server, partition);
    let work = async {
        let mut written = 0;
        while let Step::Wrote(events) = projector.step().await.unwrap() {
            written += events;
        }
        written
    };
    let written = tokio::time::timeout(Duration::from_secs(20), work).await.unwrap();
    assert_eq!(written, 61);
    world.assert_clean(&server).await;
    server.stop().await;
}
