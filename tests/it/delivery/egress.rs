//! Where deliveries do not go: what is not public is refused when a channel is made or changed, and at every attempt.

use forebay::receiver::Mode;
use hyper::Method;
use serde_json::{Value, json};

use super::{PATIENCE, Stage, receiver, serve};
use crate::world::client::{Answer, Client};
use crate::world::{World, eventually};

/// A receiver that listens on loopback, in each form in which a URL can name it; `{}` stands for its port.
const LOOPBACK: [&str; 6] = [
    "http://127.0.0.1:{}/hook/x",
    "http://0.0.0.0:{}/hook/x",
    "http://[::1]:{}/hook/x",
    "http://[::ffff:127.0.0.1]:{}/hook/x",
    "http://[::ffff:7f00:1]:{}/hook/x",
    "http://localhost:{}/hook/x",
];

/// The same in forms that only some programs read as an address, and such with credentials.
const DISGUISED: [&str; 10] = [
    "http://127.1:{}/hook/x",
    "http://0177.0.0.1:{}/hook/x",
    "http://017700000001:{}/hook/x",
    "http://0x7f.0.0.1:{}/hook/x",
    "http://0x7f000001:{}/hook/x",
    "http://2130706433:{}/hook/x",
    "http://127.0.0.1.:{}/hook/x",
    "http://example.com@127.0.0.1:{}/hook/x",
    "http://127.0.0.1%2f:{}/hook/x",
    "http://\u{ff11}27.0.0.1:{}/hook/x",
];

/// What is private elsewhere, and where machines read what they are and may do.
const ELSEWHERE: [&str; 11] = [
    "http://10.0.0.1/",
    "http://172.16.0.1/",
    "http://192.168.1.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://[::ffff:169.254.169.254]/",
    "http://[fd00:ec2::254]/",
    "http://[fe80::1]/",
    "http://100.100.100.200/",
    "http://168.63.129.16/",
    "http://metadata.google.internal/",
    "http://[64:ff9b::7f00:1]/",
];

fn assert_refused(answer: &Answer, url: &str) {
    assert_eq!(answer.status, 422, "{url}: {answer:?}");
    let faults = answer.json()["errors"].clone();
    assert_eq!(faults[0]["pointer"], "/url", "{url}: {answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_to_what_is_not_public_is_neither_made_nor_changed_to() {
    let world = World::new().await;
    let server = serve(&world, &[("FOREBAY_EGRESS_ALLOW", "")]).await;
    let tenant = Client::tenant(&server).await;
    let (channel, _) = super::channel(&tenant, "https://example.com/hook", json!({})).await;
    let path = format!("/v1/channels/{channel}");
    for url in LOOPBACK.iter().chain(&DISGUISED).chain(&ELSEWHERE) {
        let url = url.replace("{}", "80");
        let made = tenant.post("/v1/channels", json!({"name": "x", "url": url})).await;
        assert_refused(&made, &url);
        assert_refused(&tenant.patch(&path, json!({"url": url})).await, &url);
    }
    let kept = tenant.call(Method::GET, &path, &[], "").await.json();
    assert_eq!(kept["url"], "https://example.com/hook");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_channel_was_made_with_is_blocked_at_each_attempt() {
    let world = World::new().await;
    // A node that does not deliver takes URLs that those that deliver would refuse.
    let maker = world.serve(&[]).await;
    let (receiver, tenant) = (receiver(), Client::tenant(&maker).await);
    let port = receiver.address().port().to_string();
    let fields = json!({"retry": {"maxAttempts": 3, "baseSeconds": 1, "capSeconds": 1}});
    let mut channels = Vec::new();
    for url in LOOPBACK.iter().chain(&ELSEWHERE) {
        let url = url.replace("{}", &port);
        let made = super::channel(&tenant, &url, fields.clone()).await.0;
        channels.push((url, made));
    }
    let server = serve(&world, &[("FOREBAY_EGRESS_ALLOW", "")]).await;
    let tenant = tenant.at(&server);
    for (_, channel) in &channels {
        let tested = tenant.post(&format!("/v1/channels/{channel}/test"), json!({})).await;
        assert_eq!(tested.status, 202, "{tested:?}");
    }
    for (url, channel) in &channels {
        let path = format!("/v1/channels/{channel}/deliveries?status=failed");
        let mut failed = Value::Null;
        eventually(&format!("{url} fails"), async || {
            failed = tenant.get(&path).await.json()["deliveries"][0].clone();
            !failed.is_null()
        })
        .await;
        let path = format!("/v1/deliveries/{}", failed["id"].as_str().unwrap());
        let shown = tenant.get(&path).await.json();
        let reasons: Vec<_> = shown["history"].as_array().unwrap().iter().collect();
        let reasons: Vec<_> = reasons.iter().map(|attempt| attempt["reason"].clone()).collect();
        assert_eq!(reasons, ["blocked"; 3], "{url}: {shown}");
    }
    assert_eq!(receiver.count("x"), 0, "nothing was connected to");
    server.stop().await;
    maker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_a_failure_and_is_never_followed() {
    let stage = Stage::new().await;
    let retry = json!({"retry": {"maxAttempts": 2, "baseSeconds": 1, "capSeconds": 1}});
    let elsewhere = "http://169.254.169.254/latest/meta-data/";
    // Also to where a delivery might go.
    for (name, target) in [("near", &*stage.receiver.url("target")), ("far", elsewhere)] {
        stage.receiver.set_mode(name, Mode::Redirect(target.to_owned()));
        let (channel, _) = stage.channel(name, retry.clone()).await;
        stage.tenant.post(&format!("/v1/channels/{channel}/test"), json!({})).await;
        stage.receiver.wait_for(name, 2, PATIENCE).await.unwrap();
        let path = format!("/v1/channels/{channel}/deliveries?status=failed");
        eventually("it fails for its redirect", async || {
            let listed = stage.tenant.get(&path).await.json();
            let failed = &listed["deliveries"][0];
            (&failed["reason"], &failed["status"]) == (&json!("redirect"), &json!(307))
        })
        .await;
    }
    assert_eq!(stage.receiver.count("target"), 0);
    stage.server.stop().await;
}
