//! Connections of Postgres and waiting for the log do not go together.

use std::time::Duration;

use forebay::admission;
use forebay::cli::serve::Server;
use forebay::event::ConversationId;
use forebay::operate::janitor::Janitor;
use futures_util::FutureExt;
use futures_util::future::{join_all, select_all};
use serde_json::json;
use tokio::time::interval;

use super::projector;
use crate::world::client::Client;
use crate::world::{WISH, World, eventually};

/// One connection each, a short tail and little memory: whoever needs the log or Postgres really goes there.
const NARROW: [(&str, &str); 6] = [
    ("FOREBAY_PARTITIONS", "1"),
    ("FOREBAY_PROJECT", "off"),
    ("FOREBAY_TAIL_BYTES_MAX", "65536"),
    ("FOREBAY_KEYS_MAX", "64"),
    ("POOL_SIZE", "1"),
    ("BACKGROUND_POOL_SIZE", "1"),
];

/// How often all of them are made to wait.
const ATTEMPTS_MAX: u32 = 5;

/// Sends so much that memory has forgotten the first message and its key, and has Postgres written.
async fn fill(
    world: &World,
    server: &Server,
    (tenant, conversation): (&Client, ConversationId),
    old: &str,
) {
    let partition = server.journal.partitions().of(conversation);
    assert_eq!(tenant.send(conversation, json!({"text": "a", "clientId": old})).await.status, 201);
    let message = |n: usize| json!({"text": "x".repeat(2_000), "clientId": format!("k{n}")});
    let path = format!("/v1/conversations/{conversation}/messages:batch");
    for round in 0..6 {
        let messages: Vec<_> = (0..20).map(|n| message(round * 20 + n)).collect();
        assert_eq!(tenant.post(&path, json!({ "messages": messages })).await.status, 201);
    }
    let mut writer = projector(world, server, partition);
    while writer.step().await.unwrap() != forebay::projection::Step::Idle {}
    // Behind the tail, which holds the last record alone, and beyond the keys that memory has forgotten.
    assert_eq!(world.ends(server).await, [8]);
}

#[tokio::test]
async fn no_permit_is_held_while_waiting_for_http_or_nats() {
    let world = World::with_own_nats().await;
    let server = world.serve(&NARROW).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let partition = server.journal.partitions().of(conversation);
    let old = forebay_key(&world);
    fill(&world, &server, (&tenant, conversation), &old).await;
    let janitor = Janitor {
        log: server.log.clone(),
        database: server.pools.1.clone(),
        retention: Duration::ZERO,
        epoch: server.shape.epoch.clone(),
        clock: world.clock.clone(),
    };
    let verifier = world.verifier(&server);
    for attempt in 1.. {
        let key = format!("{}{attempt:x}", &old[..old.len() - 1]);
        let by_old_key = json!({"text": "b", "clientId": key});
        world.execute("UPDATE checkpoints SET position = 6").await;
        world.pause_nats().await;
        // Where a machine is so busy that a wait for the log ends before all of them wait, they begin anew.
        let mut writer = projector(&world, &server, partition);
        let waiting = [
            async { format!("{:?}", writer.step().await.map(drop)) }.boxed(),
            async { format!("{:?}", janitor.step().await.map(drop)) }.boxed(),
            async { format!("{:?}", verifier.run(&|_| {}).await.map(drop)) }.boxed(),
            // A cold look-up, and then the log.
            async { tenant.send(conversation, by_old_key.clone()).await.status.to_string() }
                .boxed(),
        ];
        let mut first = select_all(waiting);
        let (interactive, background) = &server.pools;
        let watching = async {
            let uses = || [interactive.status(), background.status()].map(|status| status.gate);
            let granted = |gate: &admission::Status| gate.granted.iter().sum::<u64>();
            let before = uses().map(|gate| granted(&gate));
            // Each pool has been used, and is idle again.
            let idle = || {
                let used = uses().iter().zip(before).all(|(gate, before)| granted(gate) > before);
                used && uses().iter().all(|gate| gate.in_use + gate.waiting == 0)
            };
            eventually("each has asked Postgres", async || idle()).await;
            let mut tick = interval(Duration::from_millis(10));
            for _ in 0..60 {
                tick.tick().await;
                assert!(idle(), "{:?} {:?}", interactive.status(), background.status());
            }
            let soon = world.clock.now() + Duration::from_millis(200);
            drop((
                interactive.acquire(WISH, soon).await.unwrap(),
                background.acquire(WISH, soon).await.unwrap(),
            ));
        };
        let (ended, rest) = tokio::select! {
            biased;
            (ended, index, rest) = &mut first => {
                (format!("number {index} did not wait for the log: {ended}"), rest)
            }
            () = watching => {
                world.resume_nats().await;
                join_all(first.into_inner()).await;
                break;
            }
        };
        assert!(attempt < ATTEMPTS_MAX, "{ended}");
        // A log that has been away for a second is not waited for: it comes back first.
        world.resume_nats().await;
        join_all(rest).await;
        eventually("the log acknowledges", async || {
            tenant.send(conversation, json!({"text": "c"})).await.status == 201
        })
        .await;
    }
    server.stop().await;
}

/// A key that says itself that it was made before everything that memory still has.
fn forebay_key(world: &World) -> String {
    let millis = world.clock.timestamp().millis() - 60_000;
    uuid::Builder::from_unix_timestamp_millis(millis, &[7; 10]).into_uuid().to_string()
}
