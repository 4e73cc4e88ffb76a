//! Two nodes on one log, one of which is killed.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::{Instant, interval_at, timeout};

use super::key_of;
use super::model::{Course, Wish, all_of, follow};
use crate::world::client::Client;
use crate::world::{ADMIN_TOKEN, PATIENCE, World, eventually};

/// A node that is a process of its own, and where it listens.
async fn node(world: &World) -> (Child, SocketAddr) {
    let namespace = world.namespace();
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.arg("serve").env_clear().envs([
        ("DATABASE_URL", world.postgres_url()),
        ("NATS_URL", &world.nats_url()),
        ("FOREBAY_NAMESPACE", namespace.as_str()),
        ("FOREBAY_LISTEN", "127.0.0.1:0"),
        ("FOREBAY_ADMIN_TOKEN", ADMIN_TOKEN),
        ("FOREBAY_PARTITION_BYTES_MAX", "67108864"),
        ("FOREBAY_PARTITIONS", "2"),
    ]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let reading = async {
        loop {
            let line = lines.next_line().await.unwrap().expect("it runs");
            if let Some((_, rest)) = line.split_once("listening on http://") {
                let is_of_address = |c: char| c.is_ascii_digit() || ".:".contains(c);
                return rest.trim_end_matches(|c| !is_of_address(c)).parse().unwrap();
            }
        }
    };
    let address = timeout(PATIENCE, reading).await.expect("it listens");
    // Whoever writes to a closed pipe is ended.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (child, address)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_killed_takes_nothing_along() {
    let world = World::new().await;
    let stays = world.serve(&[]).await;
    let tenant = Client::tenant(&stays).await;
    let conversation = tenant.open().await;
    let (mut child, address) = node(&world).await;
    let there = Client::to(address, tenant.bearer());
    let path = format!("/v1/conversations/{conversation}");
    eventually("the other node knows", async || there.get(&path).await.status == 200).await;
    let (steer, course) = watch::channel(Course::default());
    let wish = |name, millis| Wish {
        key: key_of(&tenant),
        conversation,
        watermark: Some(0),
        has_gaps: true,
        sends: Some((name, Duration::from_millis(millis))),
    };
    // Often enough that something is under way when the node goes.
    let moves = follow(vec![address, stays.address], wish("moves", 55), course.clone());
    let moves = tokio::spawn(moves);
    // Who only listens never has to ask for anything.
    let hears = Wish { sends: None, ..wish("hears", 1_000) };
    let hears = tokio::spawn(follow(vec![address, stays.address], hears, course.clone()));
    let remains = tokio::spawn(follow(vec![stays.address], wish("remains", 70), course));
    let head = async || tenant.get(&path).await.json()["headSeq"].as_u64().unwrap();
    eventually("both talk", async || head().await > 40).await;
    child.start_kill().unwrap();
    assert!(!timeout(PATIENCE, child.wait()).await.unwrap().unwrap().success());
    let killed_at = head().await;
    eventually("both talk on", async || head().await > killed_at + 40).await;
    steer.send_modify(|course| course.is_over = true);
    let time = Duration::from_millis(400);
    let mut goal = 0;
    let mut tick = interval_at(Instant::now() + time, time);
    while goal != head().await {
        goal = head().await;
        tick.tick().await;
    }
    steer.send_modify(|course| course.goal = Some(goal));
    let all = async { (moves.await.unwrap(), remains.await.unwrap(), hears.await.unwrap()) };
    let (moves, remains, hears) = timeout(PATIENCE, all).await.expect("they have everything");
    let all = all_of(&tenant, conversation).await;
    assert!(all.keys().copied().eq(1..=goal), "{all:?}");
    assert_eq!((moves.closes.len(), remains.closes.len(), hears.closes.len()), (1, 0, 1));
    moves.assert_whole(&all);
    remains.assert_whole(&all);
    hears.assert_whole(&all);
    // Nobody's text is there twice.
    assert_eq!(all.len(), 1 + moves.sent + remains.sent);
    world.assert_clean(&stays).await;
    stays.stop().await;
}
