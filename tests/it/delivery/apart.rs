//! Channels that are set apart: parked, probed, released, and nobody else disturbed.

use forebay::receiver::Mode;
use serde_json::json;

use super::Stage;
use crate::operate::streams::api;
use crate::world::client::Client;
use crate::world::{World, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_channel_is_parked_and_released_in_order_and_a_healthy_one_goes_on() {
    let settings = [("DELIVERY_TIMEOUT_MS", "300"), ("DELIVERY_CONNECT_TIMEOUT_MS", "300")];
    let stage = Stage::on(World::new().await, &settings).await;
    stage.receiver.set_mode("dead", Mode::Hang);
    let (dead, _) = stage.channel("dead", json!({})).await;
    stage.channel("healthy", json!({})).await;
    let conversation = stage.tenant.open().await;
    stage.send(conversation, 60).await;
    stage.comes_to("healthy", 61).await;
    eventually("the breaker opens", async || stage.standing(&dead).await["state"] == "open").await;
    stage.send(conversation, 40).await;
    stage.comes_to("healthy", 101).await;
    eventually("what comes is parked", async || {
        stage.standing(&dead).await["parked"].as_u64().is_some_and(|parked| parked >= 40)
    })
    .await;
    assert_eq!(stage.receiver.count("healthy"), 101, "the healthy one hears each once");
    let standing = stage.standing(&dead).await;
    assert_eq!(standing["reason"], "failures", "{standing}");
    assert!(standing["nextProbeAt"].is_string() && standing["history"].is_array(), "{standing}");
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_parks_everything_and_a_resume_delivers_it_in_order_beyond_a_restart() {
    let stage = Stage::new().await;
    let (channel, _) = stage.channel("later", json!({})).await;
    let conversation = stage.tenant.open().await;
    stage.comes_to("later", 1).await;
    let paused = stage.tenant.post(&format!("/v1/channels/{channel}/pause"), json!({})).await;
    assert_eq!(paused.status, 200);
    stage.send(conversation, 30).await;
    eventually("all are parked", async || stage.standing(&channel).await["parked"] == 30).await;
    assert_eq!(stage.receiver.count("later"), 1);
    let Stage { world, server, receiver, tenant } = stage;
    assert!(server.stop().await);
    let server = super::serve(&world, &[]).await;
    let tenant = tenant.at(&server);
    let stage = Stage { world, server, receiver, tenant };
    let resumed = stage.tenant.post(&format!("/v1/channels/{channel}/resume"), json!({})).await;
    assert_eq!(resumed.status, 200);
    stage.comes_to("later", 31).await;
    assert_eq!(stage.receiver.count("later"), 31, "each once");
    eventually("the channel is direct again", async || {
        stage.standing(&channel).await["state"] == "closed"
    })
    .await;
    stage.send(conversation, 1).await;
    stage.comes_to("later", 32).await;
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_asks_for_a_pause_gets_it_and_then_everything() {
    let stage = Stage::new().await;
    stage.receiver.set_mode("busy", Mode::Rate(2));
    let (channel, _) = stage.channel("busy", json!({"retry": {"baseSeconds": 1}})).await;
    let conversation = stage.tenant.open().await;
    eventually("it waits", async || {
        let standing = stage.standing(&channel).await;
        (&standing["state"], &standing["reason"]) == (&json!("open"), &json!("throttled"))
    })
    .await;
    stage.receiver.set_mode("busy", Mode::Answer);
    stage.send(conversation, 5).await;
    stage.comes_to("busy", 6).await;
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_beyond_the_cap_keeps_to_the_cap_and_arrives_whole() {
    let stage = Stage::new().await;
    stage.receiver.set_mode("slow", "slow:20ms".parse().unwrap());
    let (slow, _) = stage.channel("slow", json!({"maxInFlight": 4})).await;
    let conversation = stage.tenant.open().await;
    let path = format!("/v1/conversations/{conversation}/messages:batch");
    let messages: Vec<_> = (0..500).map(|n| json!({"text": n.to_string()})).collect();
    let sent = stage.tenant.post(&path, json!({"messages": messages})).await;
    assert_eq!(sent.status, 201, "{sent:?}");
    // `leftover` would mean that nobody was called, and that a sweep has found it.
    eventually("it is set apart for its burst", async || {
        stage.standing(&slow).await["reason"] == "busy"
    })
    .await;
    stage.comes_to("slow", 501).await;
    assert_eq!(stage.receiver.count("slow"), 501, "each once");
    assert!(stage.receiver.in_flight_max("slow") <= 4, "{}", stage.receiver.in_flight_max("slow"));
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_takes_its_place_in_the_lane_while_backlogs_have_no_room() {
    let world = World::new().await;
    let server = world.serve(&[("FOREBAY_DELIVER", "route")]).await;
    let names = ["PARKED", "DELIVER"].map(|n| format!("{}_{n}", world.namespace().as_str()));
    let [parked, deliver] = &names;
    let mut full = api(&world, "INFO", parked, json!({})).await["config"].clone();
    full["max_msgs"] = json!(1);
    api(&world, "UPDATE", parked, full).await;
    let tenant = Client::tenant(&server).await;
    super::channel(&tenant, "http://127.0.0.1:9/", json!({})).await;
    let conversation = tenant.open().await;
    let path = format!("/v1/conversations/{conversation}/messages:batch");
    let messages: Vec<_> = (0..300).map(|n| json!({"text": n.to_string()})).collect();
    assert_eq!(tenant.post(&path, json!({"messages": messages})).await.status, 201);
    eventually("the lane has the burst", async || {
        let state = api(&world, "INFO", deliver, json!({})).await["state"].clone();
        state["messages"].as_u64().is_some_and(|count| count > 300)
    })
    .await;
    server.stop().await;
}
