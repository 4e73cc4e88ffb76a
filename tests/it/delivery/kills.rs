//! Kills under load: whatever is killed again and again, every channel gets every message that was acknowledged.

mod load;

use std::sync::{Arc, RwLock};
use std::time::Duration;

use tokio::time::{Instant, interval_at};

use self::load::{Course, LONG, Load, SHORT};
use crate::world::World;
use crate::world::node::Node;

/// Servers of which one is always there.
const NODES: usize = 2;

/// Nodes that deliver to loopback; the log has room for what the longest course leaves in it.
const DELIVERING: [(&str, &str); 4] = [
    ("FOREBAY_DELIVER", "on"),
    ("FOREBAY_EGRESS_ALLOW", "127.0.0.0/8"),
    ("DELIVERY_SLOTS_STANDARD", "100"),
    ("FOREBAY_PARTITION_BYTES_MAX", "4294967296"),
];

/// Does something again and again while the course lasts, but not at its very end.
async fn again_and_again(course: Course, mut act: impl AsyncFnMut(usize)) -> usize {
    let end = Instant::now() + Duration::from_secs(course.seconds.into());
    let mut beat = interval_at(Instant::now() + course.beat, course.beat);
    let mut number = 0;
    loop {
        beat.tick().await;
        if Instant::now() + course.beat / 2 > end {
            return number;
        }
        act(number).await;
        number += 1;
    }
}

/// Waits for the rows of everything that was delivered, audits it and tells.
async fn report(what: &str, (load, delivered): (&Load, Duration), world: &World) {
    let projected = load.projected(world).await;
    let found = load.audit();
    println!(
        "{what}: {found}; delivered after {delivered:.1?}, then projected after {projected:.1?}"
    );
}

/// One server is killed with -9 and started again, then the other, and so on. Both take sends and deliver.
async fn kill_servers(course: Course) {
    let world = World::new().await;
    let mut nodes = Vec::new();
    for _ in 0..NODES {
        nodes.push(Node::start(&world, &DELIVERING).await);
    }
    let addresses = Arc::new(RwLock::new(nodes.iter().map(|node| node.address).collect()));
    let mut load = Load::prepare(course, &addresses).await;
    let (kills, ()) = tokio::join!(
        again_and_again(course, async |number| {
            nodes.remove(0).kill().await;
            let next = Node::start(&world, &DELIVERING).await;
            addresses.write().unwrap()[number % NODES] = next.address;
            nodes.push(next);
        }),
        load.send(),
    );
    report(&format!("{kills} kills of a server"), (&load, load.delivered().await), &world).await;
    drop(nodes);
    let server = world.serve(&[]).await;
    world.assert_clean(&server).await;
    server.stop().await;
}

/// The log's server is killed with -9 and started again.
async fn kill_nats(course: Course) {
    let world = World::with_own_nats().await;
    let server = world.serve(&DELIVERING).await;
    let addresses = Arc::new(RwLock::new(vec![server.address]));
    let mut load = Load::prepare(course, &addresses).await;
    let (kills, ()) = tokio::join!(
        again_and_again(course, async |_| {
            world.kill_nats().await;
            world.restart_nats().await;
        }),
        load.send(),
    );
    report(&format!("{kills} kills of nats-server"), (&load, load.delivered().await), &world).await;
    world.assert_clean(&server).await;
    server.stop().await;
}

/// Postgres stands still all the while, until everything has been delivered.
async fn pause_postgres(course: Course) {
    let world = World::with_own_postgres().await;
    let server = world.serve(&DELIVERING).await;
    let addresses = Arc::new(RwLock::new(vec![server.address]));
    let mut load = Load::prepare(course, &addresses).await;
    world.pause_postgres().await;
    load.send().await;
    let delivered = load.delivered().await;
    world.resume_postgres().await;
    report("Postgres away", (&load, delivered), &world).await;
    world.assert_clean(&server).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_of_servers_under_load_lose_no_delivery() {
    kill_servers(SHORT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_of_the_log_server_under_load_lose_no_delivery() {
    kill_nats(SHORT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_go_on_without_postgres_and_their_rows_come_later() {
    pause_postgres(SHORT).await;
}

/// The proof at length, like the next two: `cargo test --release --test it -- --ignored --nocapture a_minute_of`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the proof at length; the short form runs always"]
async fn a_minute_of_kills_of_servers_loses_no_delivery() {
    kill_servers(LONG).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the proof at length; the short form runs always"]
async fn a_minute_of_kills_of_the_log_server_loses_no_delivery() {
    kill_nats(LONG).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the proof at length; the short form runs always"]
async fn a_minute_of_load_without_postgres_loses_no_delivery() {
    pause_postgres(LONG).await;
}
