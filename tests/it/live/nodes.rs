//! Two nodes on one log, one of which is killed.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, interval_at, timeout};

use super::key_of;
use super::model::{Course, Wish, all_of, follow};
use crate::world::client::Client;
use crate::world::node::Node;
use crate::world::{PATIENCE, World, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_killed_takes_nothing_along() {
    let world = World::new().await;
    let stays = world.serve(&[]).await;
    let tenant = Client::tenant(&stays).await;
    let conversation = tenant.open().await;
    let node = Node::start(&world, &[]).await;
    let address = node.address;
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
    node.kill().await;
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
