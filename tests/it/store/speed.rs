//! How fast a projector can write. Run by hand, in a release build: it measures the machine as much as the code.

use std::time::{Duration, Instant};

use forebay::clock::Timestamp;
use forebay::event::{
    Body, ClientId, ConversationId, Event, Fingerprint, Json, Message, MessageId, Sender, TenantId,
    key,
};
use forebay::store::{Target, messages};
use sqlx::Connection;

use super::{partition, project, session, target};

const BATCH: usize = 2_000;
const BATCHES: usize = 100;
const CONVERSATIONS: u64 = 1_000;

/// About 300 bytes of content, in turn over the conversations; ids are as random as real ones.
fn stream(lane: u16) -> Vec<Event> {
    let tenant = TenantId::derive([9; 16]);
    let text = "The quick brown fox jumps over the lazy dog while the forebay fills. ".repeat(3);
    let event = |n: u64| {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(
            &(n % CONVERSATIONS).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(),
        );
        bytes[14..].copy_from_slice(&lane.to_be_bytes());
        let conversation = ConversationId::derive(bytes);
        let client_id = ClientId::parse(&format!("018f4e9a-{lane:04}-7000-8000-{n:012}")).unwrap();
        let id: MessageId = key::message_id(tenant, conversation, Some("ann"), &client_id);
        Event {
            tenant,
            conversation,
            seq: n / CONVERSATIONS + 1,
            id,
            at: Timestamp::from_micros(1_764_000_000_000_000 + i64::try_from(n).unwrap()).unwrap(),
            fingerprint: Fingerprint::of(&[Some(client_id.as_str())]),
            trace: None,
            body: Body::Message(Box::new(Message {
                kind: "message".into(),
                client_id: Some(client_id),
                sender: Some(Sender { id: "ann".into(), role: Some("agent".into()), name: None }),
                text: Some(text.as_str().into()),
                data: Some(Json::from_checked(format!("{{\"order\":{n},\"state\":\"new\"}}"))),
                metadata: None,
            })),
        }
    };
    (0..(BATCH * BATCHES) as u64).map(event).collect()
}

#[derive(Clone, Copy)]
enum Work {
    Rows,
    RowsHeadsAndCheckpoint,
}

async fn write(target: &Target, lane: u16, events: &[Event], work: Work) -> Duration {
    let mut conn = session(target).await;
    let placed: Vec<_> = (1..).zip(events).collect();
    let started = Instant::now();
    for batch in placed.chunks(BATCH) {
        let mut transaction = conn.begin().await.unwrap();
        match work {
            Work::Rows => messages::insert_batch(&mut transaction, partition(lane), batch).await,
            Work::RowsHeadsAndCheckpoint => project(&mut transaction, partition(lane), batch).await,
        }
        .unwrap();
        transaction.commit().await.unwrap();
    }
    started.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures; run by hand with --release --ignored --nocapture"]
#[expect(clippy::print_stdout, reason = "its result is for a person")]
#[expect(clippy::cast_precision_loss, reason = "rounded to whole rows a second")]
async fn rows_a_second() {
    let (one, two) = (stream(0), stream(1));
    for (name, work) in
        [("rows", Work::Rows), ("rows, heads, checkpoint", Work::RowsHeadsAndCheckpoint)]
    {
        let alone = target().await;
        let took = write(&alone, 0, &one, work).await;
        println!("{name}: 1 connection, {:.0} rows/s", one.len() as f64 / took.as_secs_f64());
        let both = target().await;
        let started = Instant::now();
        tokio::join!(write(&both, 0, &one, work), write(&both, 1, &two, work));
        let took = started.elapsed().as_secs_f64();
        println!("{name}: 2 connections, {:.0} rows/s", (2 * one.len()) as f64 / took);
    }
}
