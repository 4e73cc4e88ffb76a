//! Readers at a fixed rate while Postgres is paused: what they are answered, how soon, and what is left afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay::cli::serve::Server;
use forebay::event::ConversationId;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use crate::world::client::{Answer, Client};
use crate::world::{World, eventually};

/// The promise is two seconds; a busy machine may take a little longer.
const ANSWER_MAX: Duration = Duration::from_millis(2_500);

/// A tail of 64 KiB in one partition, and a node that tells soon that its readers wait.
const SHORT: [(&str, &str); 3] = [
    ("FOREBAY_PARTITIONS", "1"),
    ("FOREBAY_TAIL_BYTES_MAX", "65536"),
    ("DB_QUEUE_WINDOW_MS", "1000"),
];

/// Lets the load go on for so long.
async fn pass(time: Duration) {
    drop(timeout(time, std::future::pending::<()>()).await);
}

/// A conversation whose beginning only Postgres has.
async fn long(world: &World, server: &Server, tenant: &Client) -> ConversationId {
    let conversation = tenant.open().await;
    let messages = vec![json!({"text": "x".repeat(4_000)}); 5];
    let path = format!("/v1/conversations/{conversation}/messages:batch");
    for _ in 0..8 {
        assert_eq!(tenant.post(&path, json!({ "messages": messages })).await.status, 201);
    }
    world.projected(server).await;
    conversation
}

/// What the readers were answered.
#[derive(Default)]
struct Seen {
    pages: AtomicU64,
    refused: AtomicU64,
}

impl Seen {
    fn note(&self, answer: &Answer) {
        match answer.status {
            200 => self.pages.fetch_add(1, Ordering::Relaxed),
            503 => {
                let problem = answer.json();
                assert_eq!(problem["code"], "replay_unavailable", "{problem}");
                assert_eq!(problem["watermark"], 1);
                let wait = problem["retryAfterMs"].as_u64().unwrap();
                assert!((1_000..=2_000).contains(&wait), "{problem}");
                assert!(answer.headers.contains_key("retry-after"));
                self.refused.fetch_add(1, Ordering::Relaxed)
            }
            _ => panic!("{answer:?}"),
        };
    }

    fn counts(&self) -> (u64, u64) {
        (self.pages.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }
}

/// Reads a page that the tail does not have, so many times a second for so long.
async fn read(
    tenant: &Client,
    conversation: ConversationId,
    seen: &Arc<Seen>,
    (pace, length): (Duration, Duration),
) {
    let (began, mut tick) = (Instant::now(), interval(pace));
    let mut running = JoinSet::new();
    while began.elapsed() < length {
        tick.tick().await;
        while let Some(ended) = running.try_join_next() {
            ended.unwrap();
        }
        let (tenant, seen) = (tenant.clone(), Arc::clone(seen));
        running.spawn(async move {
            let asking = tenant.page(conversation, "after=1&limit=5");
            let answer = timeout(ANSWER_MAX, asking).await.expect("an answer in time");
            seen.note(&answer);
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.unwrap();
    }
}

async fn readiness(tenant: &Client, path: &str) -> u16 {
    tenant.get(path).await.status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_a_paused_postgres_readers_are_answered_in_time_and_the_node_says_so() {
    readers(250, Duration::from_secs(3)).await;
}

/// `cargo test --release --test it -- --ignored --nocapture a_thousand_readers`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants the machine for itself, and a release build"]
async fn a_thousand_readers_a_second_under_a_paused_postgres() {
    readers(1_000, Duration::from_secs(10)).await;
}

/// Resident memory of this process, clients and server, in MiB.
fn memory() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let resident: u64 = pages.split(' ').nth(1).unwrap().parse().unwrap();
    resident * 4 / 1_024
}

/// So many readers a second, while Postgres is paused for so long and a little.
async fn readers(a_second: u64, pause: Duration) {
    let world = World::with_own_postgres().await;
    let server = world.serve(&SHORT).await;
    let tenant = Client::tenant(&server).await;
    let conversation = long(&world, &server, &tenant).await;
    let seen = Arc::new(Seen::default());
    eventually("it is ready", async || readiness(&tenant, "/readyz").await == 200).await;
    let watching = async {
        pass(Duration::from_secs(1)).await;
        world.pause_postgres().await;
        eventually("it is not ready", async || readiness(&tenant, "/readyz").await == 503).await;
        assert_eq!(readiness(&tenant, "/readyz/pool").await, 503);
        assert_eq!(readiness(&tenant, "/readyz/ingest").await, 200, "sends need no Postgres");
        assert_eq!(readiness(&tenant, "/livez").await, 200);
        assert_eq!(tenant.say(conversation, "goes on").await, 42);
        let (refused, held) = (seen.counts().1, memory());
        pass(pause).await;
        let (before, grown) = (seen.counts(), memory().saturating_sub(held));
        let of_pause = before.1 - refused;
        assert!(of_pause > a_second * pause.as_secs() / 2, "{before:?}");
        println!(
            "{of_pause} refused in {pause:?}; memory {held} MiB, {grown} MiB more in the pause"
        );
        assert!(grown < 32, "memory is flat: {grown} MiB");
        world.resume_postgres().await;
        pass(Duration::from_secs(2)).await;
        let back = seen.counts();
        pass(Duration::from_secs(1)).await;
        let after = seen.counts();
        println!("paused {before:?}, two seconds later {back:?}, then {after:?}");
        assert!(
            after.0 - back.0 > 150,
            "250 readers a second are served again: {back:?} {after:?}"
        );
        assert_eq!(after.1, back.1, "and none is refused");
        eventually("it is ready", async || readiness(&tenant, "/readyz").await == 200).await;
    };
    let load =
        (Duration::from_secs(1) / u32::try_from(a_second).unwrap(), pause + Duration::from_secs(9));
    tokio::join!(read(&tenant, conversation, &seen, load), watching);
    let at_rest = async || {
        let status = server.pools.0.status();
        (status.gate.in_use, status.gate.waiting) == (0, 0)
    };
    eventually("every permit is back", at_rest).await;
    let page: Value = tenant.page(conversation, "after=41").await.json();
    assert_eq!(page["watermark"], 42);
    server.stop().await;
}
