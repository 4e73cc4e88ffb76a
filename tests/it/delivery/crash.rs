//! A node that dies between any two steps of a delivery: nothing is lost, and what is repeated has its id.

use forebay::receiver::Mode;
use serde_json::json;
use tokio::process::Child;
use tokio::time::timeout;

use super::{PATIENCE, receiver};
use crate::world::client::Client;
use crate::world::node::Node;
use crate::world::{World, eventually};

/// A node that delivers, in a process of its own, which ends itself at this step.
fn node(world: &World, fail_at: Option<&str>) -> Child {
    let delivers = [("FOREBAY_DELIVER", "on"), ("FOREBAY_EGRESS_ALLOW", "127.0.0.0/8")];
    let mut command = Node::command(world, &delivers);
    command.envs(fail_at.map(|place| ("FOREBAY_FAIL_AT", place)));
    command.spawn().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_survives_a_crash_at_every_step() {
    for place in ["sent", "noted", "scheduled", "attempted", "diverted", "settled"] {
        let world = World::new().await;
        let server = world.serve(&[]).await;
        let receiver = receiver();
        let tenant = Client::tenant(&server).await;
        // Every fourth attempt fails, so that a retry is scheduled; one channel is paused, so that a backlog is moved.
        receiver.set_mode("plain", Mode::Flap { good: 3, bad: 1 });
        let fields = json!({"retry": {"baseSeconds": 1, "capSeconds": 1}});
        super::channel(&tenant, &receiver.url("plain"), fields.clone()).await;
        let (paused, _) = super::channel(&tenant, &receiver.url("paused"), fields).await;
        let waits = tenant.post(&format!("/v1/channels/{paused}/pause"), json!({})).await;
        assert_eq!(waits.status, 200);
        let conversation = tenant.open().await;
        for number in 0..30 {
            let sent = tenant.send(conversation, json!({"text": number.to_string()})).await;
            assert_eq!(sent.status, 201);
        }
        let mut dies = node(&world, Some(place));
        let ended = timeout(PATIENCE, dies.wait()).await;
        assert!(!ended.expect("it comes to that step").unwrap().success(), "{place}");
        let lives = node(&world, None);
        let resumed = tenant.post(&format!("/v1/channels/{paused}/resume"), json!({})).await;
        assert_eq!(resumed.status, 200);
        for endpoint in ["plain", "paused"] {
            let what = format!("31 come to {endpoint} after a crash at {place}");
            eventually(&what, async || receiver.distinct(endpoint) == 31).await;
        }
        drop(lives);
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_survives_a_crash_of_whoever_is_called() {
    let world = World::new().await;
    let server = world.serve(&[("FOREBAY_DELIVER", "route")]).await;
    let receiver = receiver();
    let tenant = Client::tenant(&server).await;
    let (burst, _) = super::channel(&tenant, &receiver.url("burst"), json!({})).await;
    let conversation = tenant.open().await;
    let path = format!("/v1/conversations/{conversation}/messages:batch");
    let messages: Vec<_> = (0..300).map(|n| json!({"text": n.to_string()})).collect();
    let sent = tenant.post(&path, json!({"messages": messages})).await;
    assert_eq!(sent.status, 201, "{sent:?}");
    // Nobody pulls yet, so nobody but the router can have put them there.
    let log = world.log().await;
    eventually("the backlog has the burst", async || {
        let sizes = log.backlog_sizes(&burst).await.unwrap();
        sizes.values().sum::<u64>() >= 300
    })
    .await;
    let mut dies = node(&world, Some("called"));
    let ended = timeout(PATIENCE, dies.wait()).await;
    assert!(!ended.expect("it is called").unwrap().success());
    let lives = node(&world, None);
    eventually("all come", async || receiver.distinct("burst") == 301).await;
    drop(lives);
    server.stop().await;
}
