//! Channels in order and with a rate: one node delivers, a failing head holds its own conversation back only.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay::receiver::Mode;
use serde_json::json;

use super::Stage;
use crate::world::eventually;

#[tokio::test(flavor = "multi_thread")]
async fn conversations_come_in_order_whatever_fails() {
    let stage = Stage::new().await;
    let other = super::serve(&stage.world, &[]).await;
    stage.receiver.set_mode("order", Mode::Flap { good: 4, bad: 1 });
    stage.receiver.keep_bodies(true);
    let fields = json!({"ordered": true, "retry": {"baseSeconds": 1, "capSeconds": 1}});
    stage.channel("order", fields).await;
    let mut conversations = Vec::new();
    for _ in 0..4 {
        conversations.push(stage.tenant.open().await);
    }
    let there = stage.tenant.at(&other);
    for number in 0..10 {
        for conversation in &conversations {
            let client = if number % 2 == 0 { &stage.tenant } else { &there };
            let sent = client.send(*conversation, json!({"text": "x"})).await;
            assert_eq!(sent.status, 201);
        }
    }
    stage.comes_to("order", 44).await;
    let ends = || {
        let last = stage.receiver.received("order").into_iter();
        last.filter(|receipt| receipt.seq == Some(11) && receipt.status == Some(200)).count()
    };
    eventually("each conversation comes to its end", async || ends() == 4).await;
    // A repeat of the head is allowed, a step back or over is not.
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    for receipt in stage.receiver.received("order") {
        let body: serde_json::Value = serde_json::from_slice(&receipt.body.unwrap()).unwrap();
        let conversation = body["data"]["conversationId"].as_str().unwrap().to_owned();
        let before = last.entry(conversation).or_default();
        let seq = receipt.seq.unwrap();
        assert!(seq == *before || seq == *before + 1, "{before} then {seq}");
        *before = seq;
    }
    assert!(last.values().all(|seq| *seq == 11), "{last:?}");
    other.stop().await;
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_is_kept_and_nothing_fails_for_it() {
    let stage = Stage::new().await;
    stage.channel("rate", json!({"rateLimit": "10/s"})).await;
    let conversation = stage.tenant.open().await;
    stage.send(conversation, 29).await;
    stage.comes_to("rate", 30).await;
    let receipts = stage.receiver.received("rate");
    assert!(receipts.iter().all(|receipt| receipt.attempt == Some(1)));
    let took = receipts[29].at.duration_since(receipts[0].at);
    // A second's worth at once, then ten a second.
    assert!(took > Duration::from_millis(1_700), "{took:?}");
    stage.server.stop().await;
}
