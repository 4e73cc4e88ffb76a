//! Sends while something is away: what is acknowledged, what is refused, how soon, and what it costs others.

pub mod cold;
mod nodes;

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::world::client::{Answer, Client};
use crate::world::{WISH, World, eventually};

/// An acknowledgement takes milliseconds; this is for a busy machine.
const SOON: Duration = Duration::from_millis(900);

fn keyed(key: &str) -> Value {
    json!({"text": key, "clientId": key})
}

async fn timed(call: impl Future<Output = Answer>) -> (Answer, Duration) {
    let began = Instant::now();
    let answer = call.await;
    (answer, began.elapsed())
}

#[tokio::test]
async fn nothing_on_the_path_of_an_ack_waits_for_postgres() {
    let world = World::with_own_postgres().await;
    let server = world.serve(&[("POOL_SIZE", "2"), ("BACKGROUND_POOL_SIZE", "2")]).await;
    let tenant = Client::tenant(&server).await;
    tenant.open().await;
    world.projected(&server).await;

    // Every connection of both pools is taken.
    let deadline = world.clock.now() + Duration::from_secs(10);
    let (interactive, background) = &server.pools;
    let mut leases = Vec::new();
    for _ in 0..2 {
        leases.push(interactive.acquire(WISH, deadline).await.unwrap());
        leases.push(background.acquire(WISH, deadline).await.unwrap());
    }
    let status = (interactive.status(), background.status());
    assert_eq!((status.0.gate.in_use, status.1.gate.in_use), (2, 2));
    every_kind_of_append_is_acknowledged_soon(&tenant).await;
    drop(leases);

    // Postgres does not answer, and the pools find out.
    world.pause_postgres().await;
    for _ in 0..3 {
        every_kind_of_append_is_acknowledged_soon(&tenant).await;
    }
    let (ping, took) = timed(tenant.get("/livez")).await;
    assert!(ping.status == 200 && took < SOON, "{took:?}");
    world.resume_postgres().await;
    world.assert_clean(&server).await;
    server.stop().await;
}

async fn every_kind_of_append_is_acknowledged_soon(tenant: &Client) {
    let (opened, took) = timed(tenant.post("/v1/conversations", json!({}))).await;
    assert!(opened.status == 201 && took < SOON, "{opened:?} after {took:?}");
    let path = format!("/v1/conversations/{}", opened.json()["id"].as_str().unwrap());
    for (suffix, body, status) in [
        ("messages", json!({"text": "a"}), 201),
        ("messages", keyed("k"), 201),
        ("messages", keyed("k"), 200),
        ("messages:batch", json!({"messages": [keyed("x"), keyed("y")]}), 201),
        ("close", json!({}), 200),
        ("reopen", json!({}), 200),
    ] {
        let (answer, took) = timed(tenant.post(&format!("{path}/{suffix}"), body)).await;
        assert_eq!(answer.status, status, "{suffix} {answer:?}");
        assert!(took < SOON, "{suffix} was acknowledged after {took:?}");
    }
}

/// How the log goes away.
#[derive(Clone, Copy, Debug)]
enum Outage {
    Killed,
    Paused,
}

#[tokio::test]
async fn a_killed_log_is_said_to_be_away_and_the_same_keys_are_stored_once() {
    the_log_goes_and_comes_back(Outage::Killed).await;
}

#[tokio::test]
async fn a_silent_log_is_said_to_be_away_and_the_same_keys_are_stored_once() {
    the_log_goes_and_comes_back(Outage::Paused).await;
}

async fn the_log_goes_and_comes_back(outage: Outage) {
    let world = World::with_own_nats().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    assert_eq!(tenant.send(conversation, keyed("before")).await.status, 201);
    match outage {
        Outage::Killed => world.kill_nats().await,
        Outage::Paused => world.pause_nats().await,
    }
    let keys: Vec<String> = (0..8).map(|n| format!("k{n}")).collect();
    let send_all = || keys.iter().map(|key| timed(tenant.send(conversation, keyed(key))));
    for (answer, took) in futures_util::future::join_all(send_all()).await {
        answer.assert_problem(503, "log_unavailable");
        assert!(took < Duration::from_millis(2_900), "refused after {took:?}");
    }
    for (answer, took) in futures_util::future::join_all(send_all()).await {
        answer.assert_problem(503, "log_unavailable");
        assert!(took < SOON, "the second refusal took {took:?}");
    }
    assert_eq!(tenant.page(conversation, "").await.seqs(), [1, 2], "reads go on");
    let nobody = Client::with(&server, "");
    eventually("it is not ready for sends", async || {
        nobody.get("/readyz/ingest").await.status == 503
    })
    .await;
    match outage {
        Outage::Killed => world.restart_nats().await,
        Outage::Paused => world.resume_nats().await,
    }
    for key in keys.iter().chain([&"before".to_owned()]) {
        eventually("it is acknowledged", async || {
            let answer = tenant.send(conversation, keyed(key)).await;
            assert!(answer.status < 300 || answer.problem() == "log_unavailable", "{answer:?}");
            answer.status < 300
        })
        .await;
    }
    let page = tenant.page(conversation, "").await;
    assert_eq!(page.seqs(), (1..=10).collect::<Vec<_>>());
    let mut stored: Vec<String> = page.json()["messages"].as_array().unwrap()[1..]
        .iter()
        .map(|message| message["clientId"].as_str().unwrap().to_owned())
        .collect();
    stored.sort();
    let mut sent = [keys, vec!["before".to_owned()]].concat();
    sent.sort();
    assert_eq!(stored, sent, "each key once");
    eventually("it is ready for sends", async || nobody.get("/readyz/ingest").await.status == 200)
        .await;
    world.assert_clean(&server).await;
    server.stop().await;
}
