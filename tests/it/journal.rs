//! The journal against a real nats-server: receipts, races between nodes, kills and restarts of the server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay::clock::Clock;
use forebay::event::{
    Body, ClientId, ConversationId, Event, Fingerprint, Message, MessageId, Partition, Partitions,
    Record, TenantId, key,
};
use forebay::journal::{Draft, Intent, Journal, Receipt, Verdict};
use forebay::log::Log;
use forebay::log::feed::{PULL_BYTES_MAX, PULL_RECORDS_MAX};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::world::{World, eventually};

fn tenant() -> TenantId {
    TenantId::derive([1; 16])
}

fn conversation(n: u8) -> ConversationId {
    ConversationId::derive([n; 16])
}

fn open(n: u8) -> Draft {
    let id = MessageId::derive([n; 16]);
    draft(n, id, Body::Opened(Box::default()), Intent::OpenNamed)
}

fn send(n: u8, client_id: &str) -> Draft {
    let client_id = ClientId::parse(client_id).unwrap();
    let id = key::message_id(tenant(), conversation(n), None, &client_id);
    let message =
        Message { client_id: Some(client_id), kind: "message".into(), ..Message::default() };
    draft(n, id, Body::Message(Box::new(message)), Intent::Send)
}

fn draft(n: u8, id: MessageId, body: Body, intent: Intent) -> Draft {
    Draft {
        tenant: tenant(),
        conversation: conversation(n),
        id,
        at: Clock::system().timestamp(),
        fingerprint: Fingerprint::default(),
        trace: None,
        body,
        intent,
        key_time: None,
    }
}

async fn append(journal: &Journal, draft: Draft) -> Result<Verdict, forebay::journal::Error> {
    let place =
        journal.admit(draft.conversation, 100).map_err(|_busy| forebay::journal::Error::Late)?;
    let deadline = Instant::now() + Duration::from_secs(2);
    let verdicts = journal.append(place, vec![draft], None, deadline).await?;
    Ok(verdicts[0])
}

/// Sends the same draft until it is acknowledged, as a client does.
async fn insist(journal: &Journal, draft: &Draft) -> Receipt {
    let deadline = Instant::now() + Duration::from_mins(1);
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    loop {
        match append(journal, draft.clone()).await {
            Ok(Verdict::Stored(receipt) | Verdict::Duplicate(receipt)) => return receipt,
            Ok(other) => panic!("{other:?}"),
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tick.tick().await;
    }
}

/// Everything that a partition's log holds.
async fn read_back(log: &Log, partition: Partition) -> Vec<Event> {
    let bounds = log.bounds(partition).await.unwrap();
    let mut follow = log.follow(partition, bounds.first.max(1) - 1);
    let mut events = Vec::new();
    while follow.position() < bounds.last {
        let (_, bytes) = follow.next().await.unwrap();
        events.extend(Record::decode(&bytes).unwrap().events);
    }
    events
}

/// Checks the log against what was acknowledged: every receipt at its place, seq 1..n, no id twice.
async fn audit(log: &Log, journal: &Journal, acknowledged: &BTreeMap<MessageId, Receipt>) {
    let (mut seqs, mut places) = (BTreeMap::<ConversationId, u64>::new(), BTreeMap::new());
    for partition in journal.partitions().all() {
        for event in read_back(log, partition).await {
            let seq = seqs.entry(event.conversation).or_default();
            *seq += 1;
            assert_eq!(event.seq, *seq, "no hole and no repeat in {}", event.conversation);
            assert_eq!(places.insert(event.id, event.seq), None, "{} twice", event.id);
        }
    }
    for (id, receipt) in acknowledged {
        assert_eq!(places.get(id), Some(&receipt.seq), "{id} is where it was acknowledged");
    }
}

#[tokio::test]
async fn a_receipt_is_sent_only_after_the_durable_ack() {
    let world = World::with_own_nats().await;
    let server = world.serve(&[]).await;
    insist(&server.journal, &open(1)).await;
    world.pause_nats().await;
    let unacknowledged = append(&server.journal, send(1, "a")).await;
    assert!(matches!(unacknowledged, Err(forebay::journal::Error::Late)), "{unacknowledged:?}");
    world.resume_nats().await;
    let receipt = insist(&server.journal, &send(1, "a")).await;
    assert_eq!(receipt.seq, 2, "the record in doubt was stored once");
    let log = world.log().await;
    audit(&log, &server.journal, &BTreeMap::from([(receipt.id, receipt)])).await;
    server.stop().await;
}

#[tokio::test]
async fn idempotency_holds_over_a_restart_and_on_another_node() {
    let world = World::new().await;
    let (a, b) = (world.serve(&[]).await, world.serve(&[]).await);
    insist(&a.journal, &open(1)).await;
    let first = insist(&a.journal, &send(1, "k")).await;
    let position = a.journal.tail_of(conversation(1)).position();
    eventually("b follows", async || b.journal.tail_of(conversation(1)).position() >= position)
        .await;
    assert_eq!(append(&b.journal, send(1, "k")).await.unwrap(), Verdict::Duplicate(first));
    a.stop().await;
    b.stop().await;
    let again = world.serve(&[]).await;
    assert_eq!(append(&again.journal, send(1, "k")).await.unwrap(), Verdict::Duplicate(first));
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seq_has_no_hole_and_no_repeat_whatever_crashed() {
    let world = World::with_own_nats().await;
    let (a, b) = (world.serve(&[]).await, world.serve(&[]).await);
    for n in 1..=3 {
        insist(&a.journal, &open(n)).await;
    }
    let senders = (0..16_u8).map(|sender| {
        let journal = if sender % 2 == 0 { a.journal.clone() } else { b.journal.clone() };
        tokio::spawn(async move {
            let mut receipts = Vec::new();
            for n in 0..40 {
                let draft = send(sender % 3 + 1, &format!("{sender}-{n}"));
                receipts.push(insist(&journal, &draft).await);
            }
            receipts
        })
    });
    let senders: Vec<_> = senders.collect();
    for _ in 0..3 {
        let position = a.journal.tail_of(conversation(1)).position();
        eventually("the log moves", async || {
            a.journal.tail_of(conversation(1)).position() > position
                || senders.iter().all(tokio::task::JoinHandle::is_finished)
        })
        .await;
        world.kill_nats().await;
        world.restart_nats().await;
    }
    let mut acknowledged = BTreeMap::new();
    for sender in senders {
        acknowledged.extend(sender.await.unwrap().into_iter().map(|r| (r.id, r)));
    }
    assert_eq!(acknowledged.len(), 640);
    audit(&world.log().await, &a.journal, &acknowledged).await;
    a.stop().await;
    b.stop().await;
}

/// The proof at length: `cargo test --release --test it -- --ignored --nocapture thirty_kills`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the proof at length; the short form runs always"]
async fn thirty_kills_of_the_log_server_under_two_nodes_lose_and_double_nothing() {
    let world = World::with_own_nats().await;
    let (a, b) = (world.serve(&[]).await, world.serve(&[]).await);
    for n in 1..=8 {
        insist(&a.journal, &open(n)).await;
    }
    let (over, told) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let began = Instant::now();
    let senders = (0..64_u8).map(|sender| {
        let journal = if sender % 2 == 0 { a.journal.clone() } else { b.journal.clone() };
        let (over, told) = (Arc::clone(&over), Arc::clone(&told));
        tokio::spawn(async move {
            let mut receipts = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let draft = send(sender % 8 + 1, &format!("{sender}-{}", receipts.len()));
                receipts.push(insist(&journal, &draft).await);
                let at = u64::try_from(began.elapsed().as_millis()).unwrap();
                told.store(at, Ordering::Relaxed);
            }
            receipts
        })
    });
    let senders: Vec<_> = senders.collect();
    let mut longest = Duration::ZERO;
    for kill in 0..30 {
        let position = a.journal.tail_of(conversation(1)).position();
        let moved = position + 50 + kill % 7;
        let tail = a.journal.tail_of(conversation(1));
        eventually("the log moves", async || tail.position() > moved).await;
        world.kill_nats().await;
        world.restart_nats().await;
        let back = u64::try_from(began.elapsed().as_millis()).unwrap();
        eventually("sends are acknowledged again", async || told.load(Ordering::Relaxed) > back)
            .await;
        let silence = told.load(Ordering::Relaxed) - back;
        longest = longest.max(Duration::from_millis(silence));
    }
    over.store(true, Ordering::Relaxed);
    let mut acknowledged = BTreeMap::new();
    for sender in senders {
        acknowledged.extend(sender.await.unwrap().into_iter().map(|r| (r.id, r)));
    }
    audit(&world.log().await, &a.journal, &acknowledged).await;
    println!("{} acknowledged, longest silence after a restart {longest:?}", acknowledged.len());
    assert!(longest <= Duration::from_secs(5), "{longest:?}");
    a.stop().await;
    b.stop().await;
}

/// The names of a stream's consumers.
async fn consumers(context: &async_nats::jetstream::Context, stream: &str) -> BTreeSet<String> {
    let subject = format!("CONSUMER.NAMES.{stream}");
    let answer: Value = context.request(subject, &json!({})).await.unwrap();
    let names = answer["consumers"].as_array().unwrap();
    names.iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_record_that_is_there_comes_although_its_consumer_stands_still() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let (log, partition) = (world.log().await, server.journal.partitions().of(conversation(1)));
    insist(&server.journal, &open(1)).await;
    let client = async_nats::connect(world.nats_url()).await.unwrap();
    let (context, stream) = (async_nats::jetstream::new(client), log.stream(partition));
    let others = consumers(&context, &stream).await;

    let mut follow = log.follow(partition, 0);
    follow.next_known().await.unwrap();
    let all = consumers(&context, &stream).await;
    let own: Vec<_> = all.difference(&others).collect();
    assert_eq!(own.len(), 1, "{own:?}");
    // A consumer that is paused says that it is there, and delivers nothing.
    let subject = format!("CONSUMER.PAUSE.{stream}.{}", own[0]);
    let until = json!({"pause_until": "2100-01-01T00:00:00Z"});
    let paused: Value = context.request(subject, &until).await.unwrap();
    assert_eq!(paused["paused"], true, "{paused}");
    insist(&server.journal, &send(1, "a")).await;
    let next = timeout(Duration::from_secs(20), follow.next_known()).await;
    assert_eq!(next.expect("it comes").unwrap().0, follow.position());
}

/// How long a message of this payload is for the server, which counts subject and reply too.
async fn length(context: &async_nats::jetstream::Context, stream: &str) -> usize {
    use async_nats::jetstream::consumer::pull;
    use futures_util::StreamExt;

    let consumer = context.create_consumer_on_stream(pull::Config::default(), stream).await;
    let mut batch = consumer.unwrap().batch().max_messages(1).messages().await.unwrap();
    batch.next().await.unwrap().unwrap().length
}

#[tokio::test]
async fn records_come_where_the_last_byte_of_a_pull_is_used_up_and_where_none_fits_in() {
    let world = World::new().await;
    let log = world.log().await;
    let client = async_nats::connect(world.nats_url()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let publish = async |partition: Partition, bytes: usize| {
        let published = context.publish(log.subject(partition), vec![b'x'; bytes].into()).await;
        published.unwrap().await.unwrap();
    };
    let partitions: Vec<Partition> = Partitions::new(2).unwrap().all().collect();
    // Nine, so that every number in a reply has one digit.
    for _ in 0..9 {
        publish(partitions[0], 1).await;
    }
    let overhead = length(&context, &log.stream(partitions[0])).await - 1;
    for _ in 0..9 {
        publish(partitions[1], PULL_BYTES_MAX / 8 - overhead).await;
    }
    let mut follow = log.follow(partitions[1], 0);
    let mut comes = async |position: u64| {
        let next = timeout(Duration::from_secs(1), follow.next()).await;
        assert_eq!(next.expect("it comes at once").unwrap().0, position);
    };
    comes(1).await;
    let opened = consumers(&context, &log.stream(partitions[1])).await;
    for position in 2..=9 {
        comes(position).await;
    }
    for (position, bytes) in [(10, PULL_BYTES_MAX / 2), (11, PULL_BYTES_MAX - 1_024), (12, 1)] {
        publish(partitions[1], bytes).await;
        comes(position).await;
    }
    for _ in 0..2 * PULL_RECORDS_MAX {
        publish(partitions[1], 1).await;
    }
    for position in 13..=12 + 2 * PULL_RECORDS_MAX as u64 {
        comes(position).await;
    }
    let still = consumers(&context, &log.stream(partitions[1])).await;
    assert_eq!(still, opened, "one consumer brought it all");
}

#[tokio::test]
async fn a_consumer_that_is_deleted_is_replaced_at_once() {
    let world = World::new().await;
    let log = world.log().await;
    let client = async_nats::connect(world.nats_url()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let partition = Partitions::new(2).unwrap().all().next().unwrap();
    let (subject, stream) = (log.subject(partition), log.stream(partition));
    context.publish(subject.clone(), "a".into()).await.unwrap().await.unwrap();

    let mut follow = log.follow(partition, 0);
    assert_eq!(follow.next().await.unwrap().0, 1);
    for name in consumers(&context, &stream).await {
        let gone = format!("CONSUMER.DELETE.{stream}.{name}");
        let gone: Value = context.request(gone, &json!({})).await.unwrap();
        assert_eq!(gone["success"], true, "{gone}");
    }
    context.publish(subject, "b".into()).await.unwrap().await.unwrap();
    let next = timeout(Duration::from_secs(2), follow.next()).await;
    assert_eq!(next.expect("it comes at once").unwrap().0, 2);
}
