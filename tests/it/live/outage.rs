//! Sockets and streams while Postgres is away: what can be told goes on, what cannot is told of and comes later.

use std::time::Duration;

use forebay::cli::serve::Server;
use forebay::event::ConversationId;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval_at, timeout};

use super::model::{Course, Wish, all_of, follow};
use super::source::follow_stream;
use super::{Socket, key_of};
use crate::world::client::Client;
use crate::world::{PATIENCE, World, eventually};

/// A tail of 64 KiB in one partition.
const SHORT: [(&str, &str); 2] = [("FOREBAY_PARTITIONS", "1"), ("FOREBAY_TAIL_BYTES_MAX", "65536")];

/// A conversation of 41 events, of which memory has the last 15 or so.
async fn old_conversation(world: &World, server: &Server, tenant: &Client) -> ConversationId {
    let conversation = tenant.open().await;
    let messages: Vec<Value> = vec![json!({"text": "x".repeat(4_000)}); 5];
    let path = format!("/v1/conversations/{conversation}/messages:batch");
    for _ in 0..8 {
        assert_eq!(tenant.post(&path, json!({ "messages": messages })).await.status, 201);
    }
    world.projected(server).await;
    conversation
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gap_is_announced_live_frames_go_on_and_the_rest_comes_by_itself() {
    let world = World::with_own_postgres().await;
    let server = world.serve(&SHORT).await;
    let tenant = Client::tenant(&server).await;
    let key = key_of(&tenant);
    let conversation = old_conversation(&world, &server, &tenant).await;
    let (mut old, _) = Socket::joined(&server, &key, conversation, None).await;
    old.expect("replayComplete").await;
    world.pause_postgres().await;

    // Who is there goes on as if nothing had happened.
    old.say(json!({"frame": "message", "clientId": "a", "text": "goes on"})).await;
    assert_eq!(old.expect("ack").await["seq"], 42);
    // Who comes from long ago is welcomed, told of the gap, and hears what happens.
    let (mut new, welcome) = Socket::joined(&server, &key, conversation, Some(1)).await;
    assert_eq!(welcome["watermark"], 42);
    let gap = new.expect("error").await;
    assert_eq!((&gap["number"], &gap["code"]), (&json!(9002), &json!("replay_unavailable")));
    assert_eq!((&gap["details"]["watermark"], &gap["details"]["from"]), (&json!(1), &json!(2)));
    assert!(gap["retryAfterMs"].is_u64() && gap["details"]["cause"].is_string(), "{gap}");
    assert_eq!(tenant.say(conversation, "beyond").await, 43);
    let mut beyond = new.expect("event").await;
    while beyond["seq"] != 43 {
        beyond = new.expect("event").await;
    }
    assert_eq!(old.events_to(43).await, [43]);
    // Who does not know gaps is told to come back.
    let mut plain = Socket::open(&server, &key, "forebay.v1+json").await;
    plain.say(json!({"frame": "hello", "conversationId": conversation, "watermark": 1})).await;
    plain.expect("welcome").await;
    assert_eq!(plain.expect("error").await["number"], 9002);
    let close = plain.expect("close").await;
    assert_eq!(
        (&close["code"], &close["reason"]["reason"]),
        (&json!(1013), &json!("replay_unavailable"))
    );
    // A stream of events says so and ends.
    let stream = tenant.get(&format!("/v1/conversations/{conversation}/events?after=1")).await;
    assert_eq!(stream.status, 200);
    let text = stream.text();
    assert!(text.contains("event: error\ndata: {\"code\":\"replay_unavailable\""), "{text}");
    assert!(!text.contains("id: "), "{text}");

    world.resume_postgres().await;
    let mut missing = Vec::new();
    loop {
        let frame = new.next().await;
        match frame["frame"].as_str().unwrap() {
            "event" => missing.push(frame["seq"].as_u64().unwrap()),
            "replayComplete" => {
                assert_eq!(frame["watermark"], 43);
                break;
            }
            // It tried while Postgres was not back yet.
            "error" => assert_eq!(frame["number"], 9002),
            other => panic!("{other}: {frame}"),
        }
    }
    let first = missing[0];
    assert_eq!(first, 2);
    assert!(missing.windows(2).all(|pair| pair[1] == pair[0] + 1), "{missing:?}");
    eventually("nobody waits", async || server.pools.0.status().gate.waiting == 0).await;
    server.stop().await;
}

/// Tells the seed of a run that fails.
struct Seed(u64);

impl Drop for Seed {
    #[expect(
        clippy::print_stderr,
        reason = "whoever reads of the failure repeats it with the seed"
    )]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the seed of this outage: {}", self.0);
        }
    }
}

/// Lets a random time of this range pass.
async fn pass(rng: &mut StdRng, millis: std::ops::Range<u64>) {
    let time = Duration::from_millis(rng.random_range(millis));
    interval_at(Instant::now() + time, time).tick().await;
}

/// Postgres is away for 1 to 4 s at any moment while six clients read and two of them write; four of them come from
/// long ago, before or during the pause.
async fn outage(seed: u64) {
    let told = Seed(seed);
    let mut rng = StdRng::seed_from_u64(seed);
    let world = World::with_own_postgres().await;
    let server = world.serve(&SHORT).await;
    let tenant = Client::tenant(&server).await;
    let conversation = old_conversation(&world, &server, &tenant).await;
    let (steer, course) = watch::channel(Course::default());
    let mut clients = JoinSet::new();
    let mut join = |wish: Wish| {
        clients.spawn(follow(vec![server.address], wish, course.clone()));
    };
    let reader =
        Wish { key: key_of(&tenant), conversation, watermark: None, has_gaps: true, sends: None };
    for name in ["ann", "bob"] {
        let watermark = rng.random_bool(0.5).then(|| rng.random_range(0..=41));
        let sends = Some((name, Duration::from_millis(rng.random_range(70..150))));
        join(Wish { watermark, sends, ..reader.clone() });
    }
    let late: Vec<bool> = (0..4).map(|_| rng.random_bool(0.6)).collect();
    let mut streams = JoinSet::new();
    let mut come = |number: usize, watermark: u64| match number {
        3 => {
            let path = format!("/v1/conversations/{conversation}/events");
            let epoch = server.shape.epoch.clone();
            let key = key_of(&tenant);
            let course = course.clone();
            let place = (server.address, path);
            streams.spawn(follow_stream(place, key, epoch, watermark, course));
        }
        _ => join(Wish { watermark: Some(watermark), has_gaps: number != 2, ..reader.clone() }),
    };
    for (number, _) in late.iter().enumerate().filter(|(_, late)| !**late) {
        come(number, rng.random_range(0..=41));
    }
    pass(&mut rng, 1..700).await;
    world.pause_postgres().await;
    for (number, _) in late.iter().enumerate().filter(|(_, late)| **late) {
        pass(&mut rng, 1..250).await;
        come(number, rng.random_range(0..=30));
    }
    pass(&mut rng, 1_000..4_000).await;
    world.resume_postgres().await;
    pass(&mut rng, 1..1_500).await;
    steer.send_modify(|course| course.is_over = true);
    // Everything that was sent is answered, and the conversation has its last seq.
    let mut goal = 0;
    eventually("nothing is under way", async || {
        let before = std::mem::replace(&mut goal, server_head(&tenant, conversation).await);
        pass(&mut rng, 300..301).await;
        before == goal
    })
    .await;
    steer.send_modify(|course| course.goal = Some(goal));
    let all = all_of(&tenant, conversation).await;
    assert!(all.len() as u64 == goal && all.keys().copied().eq(1..=goal), "{goal}: {all:?}");
    let done = async { tokio::join!(clients.join_all(), streams.join_all()) };
    let (clients, streams) = timeout(PATIENCE * 2, done).await.expect("all have everything");
    assert_eq!((clients.len(), streams.len()), (5, 1));
    for followed in clients.iter().chain(&streams) {
        followed.assert_whole(&all);
    }
    server.stop().await;
    drop(told);
}

async fn server_head(tenant: &Client, conversation: ConversationId) -> u64 {
    let answer = tenant.get(&format!("/v1/conversations/{conversation}")).await;
    answer.json()["headSeq"].as_u64().unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_loses_anything_in_three_outages() {
    for _ in 0..3 {
        outage(rand::random()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes two minutes"]
async fn twenty_outages() {
    for _ in 0..20 {
        outage(rand::random()).await;
    }
}
