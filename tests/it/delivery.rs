//! Deliveries from a send to a receiver, with real queues and a real receiver that misbehaves as told.

mod answers;
mod apart;
mod crash;
mod egress;
mod inbound;
mod kills;
mod ordered;
mod queue;

use std::net::Ipv4Addr;
use std::time::Duration;

use forebay::cli::serve::Server;
use forebay::clock::Clock;
use forebay::event::ConversationId;
use forebay::receiver::Receiver;
use serde_json::{Value, json};

use crate::world::client::Client;
use crate::world::{World, eventually};

/// Patience with what goes through several queues.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server that delivers, a receiver, and a tenant.
struct Stage {
    world: World,
    server: Server,
    receiver: Receiver,
    tenant: Client,
}

impl Stage {
    async fn new() -> Self {
        Self::on(World::new().await, &[]).await
    }

    async fn on(world: World, settings: &[(&str, &str)]) -> Self {
        let server = serve(&world, settings).await;
        let receiver = receiver();
        let tenant = Client::tenant(&server).await;
        Self { world, server, receiver, tenant }
    }

    /// A channel to an endpoint of the receiver: its id and secret.
    async fn channel(&self, endpoint: &str, fields: Value) -> (String, String) {
        channel(&self.tenant, &self.receiver.url(endpoint), fields).await
    }

    async fn send(&self, conversation: ConversationId, count: usize) {
        for number in 0..count {
            let sent = self.tenant.send(conversation, json!({"text": number.to_string()})).await;
            assert_eq!(sent.status, 201, "{sent:?}");
        }
    }

    /// What the channel's delivery says.
    async fn standing(&self, channel: &str) -> Value {
        let shown = self.tenant.get(&format!("/v1/channels/{channel}")).await;
        assert_eq!(shown.status, 200, "{shown:?}");
        shown.json()["delivery"].clone()
    }

    async fn comes_to(&self, endpoint: &str, count: usize) {
        let what = format!("{count} deliveries come to {endpoint}");
        eventually(&what, async || self.receiver.distinct(endpoint) >= count).await;
    }
}

fn receiver() -> Receiver {
    Receiver::start((Ipv4Addr::LOCALHOST, 0).into(), Clock::system()).unwrap()
}

async fn serve(world: &World, settings: &[(&str, &str)]) -> Server {
    let mut all = vec![("FOREBAY_DELIVER", "on"), ("FOREBAY_EGRESS_ALLOW", "127.0.0.0/8")];
    all.splice(0..0, settings.iter().copied());
    world.serve(&all).await
}

async fn channel(tenant: &Client, url: &str, fields: Value) -> (String, String) {
    let mut body = json!({"name": "hook", "url": url});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    let made = tenant.post("/v1/channels", body).await;
    assert_eq!(made.status, 201, "{made:?}");
    let text = |name: &str| made.json()[name].as_str().unwrap().to_owned();
    (text("id"), text("secret"))
}

/// The bytes of a secret as it is shown.
fn secret(shown: &str) -> Vec<u8> {
    use base64::Engine as _;
    let text = shown.strip_prefix("whsec_").unwrap();
    base64::engine::general_purpose::STANDARD.decode(text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_message_comes_signed_once_and_its_delivery_can_be_seen() {
    let stage = Stage::new().await;
    let (channel, shown) = stage.channel("good", json!({})).await;
    stage.receiver.set_secret("good", secret(&shown));
    stage.receiver.keep_bodies(true);
    let conversation = stage.tenant.open().await;
    stage.send(conversation, 50).await;
    stage.comes_to("good", 51).await;
    let receipts = stage.receiver.received("good");
    assert_eq!(receipts.len(), 51, "the opening and 50 messages, each once");
    assert!(
        receipts.iter().all(|receipt| receipt.verified == Some(true) && receipt.attempt == Some(1))
    );
    let mut seqs: Vec<_> = receipts.iter().filter_map(|receipt| receipt.seq).collect();
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=51).collect::<Vec<_>>());
    let body: Value = serde_json::from_slice(receipts[9].body.as_ref().unwrap()).unwrap();
    assert_eq!(body["data"]["conversationId"], conversation.to_string());
    assert!(body["type"].is_string() && body["timestamp"].is_string(), "{body}");

    let path = format!("/v1/channels/{channel}/deliveries?status=delivered&limit=200");
    eventually("the deliveries are projected", async || {
        let listed = stage.tenant.get(&path).await;
        listed.json()["deliveries"].as_array().is_some_and(|all| all.len() == 51)
    })
    .await;
    let shown = stage.tenant.get(&format!("/v1/deliveries/{}", receipts[0].id)).await;
    assert_eq!((shown.status, &shown.json()["state"]), (200, &json!("delivered")));
    assert_eq!(shown.json()["history"][0]["status"], 200);
    let stranger = Client::tenant(&stage.server).await;
    assert_eq!(stranger.get(&format!("/v1/deliveries/{}", receipts[0].id)).await.status, 404);
    assert_eq!(stage.standing(&channel).await["state"], "closed");
    stage.world.assert_clean(&stage.server).await;
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_deliver_each_message_and_a_channel_hears_only_what_it_asked_for() {
    let stage = Stage::new().await;
    let other = serve(&stage.world, &[]).await;
    stage.channel("all", json!({})).await;
    stage.channel("closed", json!({"types": ["conversation.closed"]})).await;
    let (linked, _) = stage.channel("linked", json!({"conversations": "linked"})).await;
    let named = stage.tenant.post("/v1/conversations", json!({"channelIds": [linked]})).await;
    let named = ConversationId::parse(named.json()["id"].as_str().unwrap()).unwrap();
    let plain = stage.tenant.open().await;
    let there = stage.tenant.at(&other);
    for number in 0..20 {
        let (here, text) = (number % 2 == 0, json!({"text": "x"}));
        let client = if here { &stage.tenant } else { &there };
        assert_eq!(client.send(named, text.clone()).await.status, 201);
        assert_eq!(client.send(plain, text).await.status, 201);
    }
    let closed = stage.tenant.post(&format!("/v1/conversations/{plain}/close"), json!({})).await;
    assert_eq!(closed.status, 200, "{closed:?}");
    stage.comes_to("all", 43).await;
    stage.comes_to("linked", 21).await;
    stage.comes_to("closed", 1).await;
    stage.world.projected(&stage.server).await;
    let counts = ["all", "linked", "closed"].map(|name| stage.receiver.count(name));
    assert_eq!(counts, [43, 21, 1], "nothing comes twice while nothing fails");
    other.stop().await;
    stage.server.stop().await;
}
