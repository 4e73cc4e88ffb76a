//! The store against a real Postgres: pools, projection of events, pages, comparison, rebuild.

mod deliveries;
mod failback;
mod faults;
mod pool;
mod pooler;
mod rebuild;
mod speed;
mod tables;

use std::time::{Duration, Instant};

use forebay::clock::{Clock, Timestamp};
use forebay::event::{
    Body, ChannelId, ClientId, ConversationId, Event, Fingerprint, Json, Message, MessageId,
    Opening, Partition, Partitions, Sender, TenantId,
};
use forebay::lifecycle::Supervisor;
use forebay::metrics::Metrics;
use forebay::store::{
    Background, Error, Interactive, Limits, Means, PgConnection, Schema, Settings, Target,
    checkpoints, conversations, messages, open,
};
use rand::SeedableRng as _;
use rand::rngs::StdRng;

/// Far enough for a busy machine, near enough to end a test that hangs.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn partitions() -> Partitions {
    Partitions::new(2).unwrap()
}

fn partition(number: u16) -> Partition {
    partitions().get(number).unwrap()
}

async fn target() -> Target {
    Target::parse(&crate::world::postgres().await, Schema::default()).unwrap()
}

/// Both pools, of so many connections each, warm if the target can be reached.
async fn pools(target: &Target, connections: usize) -> (Interactive, Background) {
    let pools = cold_pools(target, connections);
    assert!(pools.0.warm(soon()).await && pools.1.warm(soon()).await);
    pools
}

fn cold_pools(target: &Target, connections: usize) -> (Interactive, Background) {
    open_with(target, connections, &mut means())
}

fn open_with(target: &Target, connections: usize, means: &mut Means) -> (Interactive, Background) {
    let connections_min = connections.min(Limits::INTERACTIVE.connections_min);
    let limits = Limits { connections, connections_min, ..Limits::INTERACTIVE };
    let settings = Settings {
        target: target.clone(),
        failback: None,
        interactive: limits,
        background: limits,
    };
    open(&settings, means)
}

fn means() -> Means {
    Means {
        clock: Clock::system(),
        metrics: Metrics::silent(0),
        supervisor: Supervisor::new(),
        rng: StdRng::seed_from_u64(1),
    }
}

async fn session(target: &Target) -> PgConnection {
    let name = "test";
    let session = target.connect(name, Duration::from_secs(20), soon()).await;
    session.unwrap()
}

/// What projection does with a batch: rows, heads and checkpoint.
async fn project(
    conn: &mut PgConnection,
    partition: Partition,
    events: &[(u64, &Event)],
) -> Result<messages::Inserted, Error> {
    let inserted = messages::insert_batch(conn, partition, events).await?;
    conversations::upsert_batch(conn, partition, &conversations::fold(events)).await?;
    if let Some((position, _)) = events.last() {
        checkpoints::advance(conn, partition, *position).await?;
    }
    Ok(inserted)
}

/// Each event in a record of its own, at the positions from 1.
fn placed(events: &[Event]) -> Vec<(u64, &Event)> {
    (1..).zip(events).collect()
}

fn conversation(number: u8) -> ConversationId {
    ConversationId::derive([number; 16])
}

fn event(number: u8, seq: u64, body: Body) -> Event {
    let mut id = [number; 16];
    id[..8].copy_from_slice(&seq.to_be_bytes());
    Event {
        tenant: TenantId::derive([9; 16]),
        conversation: conversation(number),
        seq,
        id: MessageId::derive(id),
        at: Timestamp::from_micros(1_764_000_000_000_000 + i64::try_from(seq).unwrap()).unwrap(),
        fingerprint: Fingerprint::of(&[Some("payload")]),
        trace: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
        body,
    }
}

fn opened(number: u8) -> Event {
    let opening = Opening {
        channels: vec![ChannelId::derive([1; 16]), ChannelId::derive([2; 16])],
        metadata: Some(Json::from_checked(r#"{"plan":"gold"}"#)),
    };
    event(number, 1, Body::Opened(Box::new(opening)))
}

fn said(number: u8, seq: u64, text: &str) -> Event {
    let message = Message {
        kind: "message".into(),
        client_id: Some(ClientId::parse(&format!("c-{seq}")).unwrap()),
        sender: Some(Sender {
            id: "ann".into(),
            role: Some("agent".into()),
            name: Some("Ann".into()),
        }),
        text: Some(text.into()),
        data: Some(Json::from_checked(r#"{"n": 1}"#)),
        metadata: None,
    };
    event(number, seq, Body::Message(Box::new(message)))
}

/// A conversation of so many events: an opening and messages.
fn talk(number: u8, length: u64) -> Vec<Event> {
    let later = (2..=length).map(|seq| said(number, seq, "hello"));
    std::iter::once(opened(number)).chain(later).collect()
}
