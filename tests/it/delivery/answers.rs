//! Receivers that answer badly: each with its reason, in bounded time, and tried again as it should be.

use std::time::Duration;

use forebay::receiver::Mode;
use serde_json::{Value, json};

use super::Stage;
use crate::world::eventually;

/// One attempt, so that a fate is decided at once.
fn once() -> Value {
    json!({"retry": {"maxAttempts": 1}})
}

#[tokio::test(flavor = "multi_thread")]
async fn every_bad_answer_has_its_reason_and_ends_in_time() {
    let settings = [("DELIVERY_TIMEOUT_MS", "1000"), ("DELIVERY_CONNECT_TIMEOUT_MS", "500")];
    let stage = Stage::on(crate::world::World::new().await, &settings).await;
    let cases = [
        ("status:500", "status"),
        ("status:404", "status"),
        ("hang", "timeout"),
        ("drip", "timeout"),
        ("slow:5s", "timeout"),
        ("reset", "broken"),
        ("close", "broken"),
        ("garbage", "broken"),
        ("redirect:http://127.0.0.1:1/", "redirect"),
        ("rate:1", "rate_limited"),
        ("rate-date:1", "rate_limited"),
        ("retry-after:1e30", "status"),
        ("retry-after:-5", "status"),
        ("invalid-utf8", "status"),
        ("headers:150", "too_large"),
    ];
    let mut channels = Vec::new();
    for (number, (mode, _)) in cases.iter().enumerate() {
        let name = format!("bad{number}");
        stage.receiver.set_mode(&name, mode.parse().unwrap());
        channels.push(stage.channel(&name, once()).await.0);
    }
    for (mode, name) in [("huge:1000000000", "huge"), ("endless", "endless")] {
        stage.receiver.set_mode(name, mode.parse().unwrap());
    }
    let huge = stage.channel("huge", once()).await.0;
    let endless = stage.channel("endless", once()).await.0;
    for channel in channels.iter().chain([&huge, &endless]) {
        let tested = stage.tenant.post(&format!("/v1/channels/{channel}/test"), json!({})).await;
        assert_eq!(tested.status, 202, "{tested:?}");
    }
    for ((mode, reason), channel) in cases.iter().zip(&channels) {
        let path = format!("/v1/channels/{channel}/deliveries");
        let mut seen = Value::Null;
        eventually(mode, async || {
            seen = stage.tenant.get(&path).await.json()["deliveries"][0].clone();
            !seen.is_null()
        })
        .await;
        assert_eq!((&seen["state"], &seen["reason"]), (&json!("failed"), &json!(reason)), "{mode}");
    }
    // What is too long is read no further than is kept, and was a success.
    for channel in [huge, endless] {
        let path = format!("/v1/channels/{channel}/deliveries?status=delivered");
        eventually("a long answer is an answer", async || {
            stage.tenant.get(&path).await.json()["deliveries"][0].is_object()
        })
        .await;
    }
    stage.world.assert_clean(&stage.server).await;
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_tried_again_with_the_same_id_and_body_until_it_works() {
    let stage = Stage::new().await;
    stage.receiver.set_mode("flaky", Mode::Status(500));
    stage.receiver.keep_bodies(true);
    stage.channel("flaky", json!({"retry": {"baseSeconds": 1, "capSeconds": 1}})).await;
    stage.tenant.open().await;
    let tried = stage.receiver.wait_for("flaky", 2, super::PATIENCE).await.is_ok();
    assert!(tried, "it is tried again");
    stage.receiver.set_mode("flaky", Mode::Answer);
    let done = stage.receiver.wait_for("flaky", 3, super::PATIENCE).await.is_ok();
    assert!(done);
    let receipts = stage.receiver.received("flaky");
    assert!(receipts.iter().all(|receipt| receipt.id == receipts[0].id));
    assert!(receipts.iter().all(|receipt| receipt.body == receipts[0].body));
    let attempts: Vec<_> = receipts.iter().take(3).filter_map(|receipt| receipt.attempt).collect();
    assert_eq!(attempts, [1, 2, 3]);
    let gap = receipts[1].at.duration_since(receipts[0].at);
    assert!(gap > Duration::from_millis(750), "{gap:?}");
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_not_public_is_blocked_at_every_attempt() {
    let world = crate::world::World::new().await;
    let server = super::serve(&world, &[("FOREBAY_EGRESS_ALLOW", "127.0.0.1:1")]).await;
    let receiver = super::receiver();
    let tenant = crate::world::client::Client::tenant(&server).await;
    let port = receiver.address().port();
    for url in [format!("http://127.0.0.1:{port}/"), format!("http://[::ffff:127.0.0.1]:{port}/")] {
        let refused = tenant.post("/v1/channels", json!({"name": "x", "url": url})).await;
        assert_eq!(refused.status, 422, "known at creation: {url}");
    }
    // A name may be listed and lead to an address that is not public: the list says so. The same name with a rule that
    // has changed since is blocked at the attempt.
    let made = super::channel(&tenant, "http://127.0.0.1:1/", once()).await.0;
    assert!(server.stop().await);
    let server = super::serve(&world, &[("FOREBAY_EGRESS_ALLOW", "")]).await;
    let tenant = tenant.at(&server);
    let tested = tenant.post(&format!("/v1/channels/{made}/test"), json!({})).await;
    assert_eq!(tested.status, 202, "{tested:?}");
    eventually("the attempt is blocked", async || {
        let listed = tenant.get(&format!("/v1/channels/{made}/deliveries")).await.json();
        listed["deliveries"][0]["reason"] == "blocked"
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gone_pauses_the_channel_and_failed_ones_can_be_delivered_again() {
    let stage = Stage::new().await;
    stage.receiver.set_mode("gone", Mode::Status(410));
    let (channel, _) = stage.channel("gone", once()).await;
    let conversation = stage.tenant.open().await;
    eventually("it is paused", async || stage.standing(&channel).await["state"] == "paused").await;
    stage.send(conversation, 3).await;
    eventually("what comes is parked", async || stage.standing(&channel).await["parked"] == 3)
        .await;
    stage.receiver.set_mode("gone", Mode::Answer);
    let resumed = stage.tenant.post(&format!("/v1/channels/{channel}/resume"), json!({})).await;
    assert_eq!(resumed.status, 200);
    stage.comes_to("gone", 4).await;

    let path = format!("/v1/channels/{channel}/redeliver");
    eventually("the failure is projected", async || {
        let counted = stage.tenant.post(&path, json!({"dryRun": true})).await;
        (counted.status, &counted.json()["count"]) == (200, &json!(1))
    })
    .await;
    let before = stage.receiver.count("gone");
    let job = stage.tenant.post(&path, json!({})).await;
    assert_eq!(job.status, 202, "{job:?}");
    let job = format!("{path}/{}", job.json()["jobId"].as_str().unwrap());
    eventually("the job is done", async || {
        let seen = stage.tenant.get(&job).await.json();
        (&seen["state"], &seen["queued"]) == (&json!("done"), &json!(1))
    })
    .await;
    stage.receiver.wait_for("gone", before + 1, super::PATIENCE).await.unwrap();
    let again = stage.receiver.received("gone").pop().unwrap();
    assert_eq!(
        (again.seq, again.attempt),
        (Some(1), Some(2)),
        "the same delivery, its next attempt"
    );
    stage.server.stop().await;
}
