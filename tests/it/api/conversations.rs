//! Conversations: opened, looked at, closed and reopened, by their own tenant and nobody else.

use std::collections::BTreeSet;

use serde_json::json;

use crate::world::client::Client;
use crate::world::{World, eventually};

#[tokio::test]
async fn opening_an_id_that_exists_answers_what_exists() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let (tenant, stranger) = (Client::tenant(&server).await, Client::tenant(&server).await);
    let made = tenant.post("/v1/conversations", json!({"metadata": {"plan": "gold"}})).await;
    assert_eq!(made.status, 201, "{made:?}");
    let made = made.json();
    assert!(made["id"].as_str().unwrap().starts_with("cnv_"), "{made}");
    assert_eq!((&made["status"], &made["headSeq"]), (&json!("open"), &json!(1)));

    let own = format!("cnv_{}", "ab".repeat(16));
    let first = tenant.post("/v1/conversations", json!({"id": own, "metadata": {"n": 1}})).await;
    assert_eq!(
        (first.status, first.header("location")),
        (201, &*format!("/v1/conversations/{own}"))
    );
    tenant.say(own_id(&own), "hello").await;
    let again = tenant.post("/v1/conversations", json!({"id": own, "metadata": {"n": 2}})).await;
    assert_eq!(again.status, 200, "{again:?}");
    let shown = again.json();
    assert_eq!((&shown["headSeq"], &shown["metadata"]), (&json!(2), &json!({"n": 1})));
    assert_eq!(shown["createdAt"], first.json()["createdAt"]);
    assert_eq!(tenant.get(&format!("/v1/conversations/{own}")).await.json(), shown);

    let foreign = stranger.post("/v1/conversations", json!({"id": own})).await;
    foreign.assert_problem(404, "not_found");
    server.stop().await;
}

fn own_id(text: &str) -> forebay::event::ConversationId {
    forebay::event::ConversationId::parse(text).unwrap()
}

#[tokio::test]
async fn a_closed_conversation_takes_no_messages_until_it_is_reopened() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let keyed = json!({"text": "before", "clientId": "k"});
    assert_eq!(tenant.send(conversation, keyed.clone()).await.status, 201);
    let path = format!("/v1/conversations/{conversation}");
    for round in ["first", "again"] {
        let closed = tenant.post(&format!("{path}/close"), json!({})).await;
        assert_eq!(closed.status, 200, "{round} {closed:?}");
        assert_eq!(
            (&closed.json()["status"], &closed.json()["headSeq"]),
            (&json!("closed"), &json!(3))
        );
    }
    let refused = tenant.send(conversation, json!({"text": "too late"})).await;
    refused.assert_problem(409, "conversation_closed");
    let batch = json!({"messages": [{"text": "a"}, {"text": "b"}]});
    let refused = tenant.post(&format!("{path}/messages:batch"), batch).await;
    refused.assert_problem(409, "conversation_closed");
    let repeat = tenant.send(conversation, keyed).await;
    assert_eq!((repeat.status, &repeat.json()["seq"]), (200, &json!(2)), "a repeat is a repeat");

    for round in ["first", "again"] {
        let reopened = tenant.post(&format!("{path}/reopen"), json!({})).await;
        let body = reopened.json();
        assert_eq!((&body["status"], &body["headSeq"]), (&json!("open"), &json!(4)), "{round}");
    }
    assert_eq!(tenant.say(conversation, "after").await, 5);
    let page = tenant.page(conversation, "").await.json();
    let types: Vec<_> = page["messages"].as_array().unwrap().iter().map(|m| &m["type"]).collect();
    assert_eq!(
        types,
        [
            "conversation.opened",
            "message",
            "conversation.closed",
            "conversation.reopened",
            "message"
        ]
    );
    world.assert_clean(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn another_tenants_conversation_is_not_there() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let (tenant, stranger) = (Client::tenant(&server).await, Client::tenant(&server).await);
    let conversation = tenant.open().await;
    let before = world.ends(&server).await;
    let path = format!("/v1/conversations/{conversation}");
    let unknown = format!("/v1/conversations/cnv_{}", "0".repeat(32));
    for (who, path) in
        [(&stranger, &path), (&tenant, &unknown), (&tenant, &"/v1/conversations/cnv_1".to_owned())]
    {
        for answer in [
            who.get(path).await,
            who.get(&format!("{path}/messages")).await,
            who.post(&format!("{path}/messages"), json!({"text": "a"})).await,
            who.post(&format!("{path}/messages:batch"), json!({"messages": [{"text": "a"}]})).await,
            who.post(&format!("{path}/close"), json!({})).await,
            who.post(&format!("{path}/reopen"), json!({})).await,
        ] {
            answer.assert_problem(404, "not_found");
        }
    }
    assert_eq!(world.ends(&server).await, before, "nothing of it is in the log");
    server.stop().await;
}

#[tokio::test]
async fn a_conversation_is_linked_to_its_tenants_own_channels_only() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let (tenant, stranger) = (Client::tenant(&server).await, Client::tenant(&server).await);
    let wish = json!({"name": "orders", "url": "https://example.com/hook"});
    let made = tenant.post("/v1/channels", wish.clone()).await;
    assert_eq!(made.status, 201, "{made:?}");
    assert!(made.json()["secret"].as_str().unwrap().starts_with("whsec_"));
    let channel = made.json()["id"].as_str().unwrap().to_owned();
    let shown = tenant.get(&format!("/v1/channels/{channel}")).await;
    assert!(shown.status == 200 && !shown.text().contains("whsec_"), "{shown:?}");
    stranger.get(&format!("/v1/channels/{channel}")).await.assert_problem(404, "not_found");

    let linked = tenant.post("/v1/conversations", json!({"channelIds": [channel, channel]})).await;
    assert_eq!(linked.status, 201, "{linked:?}");
    let path = format!("/v1/conversations/{}", linked.json()["id"].as_str().unwrap());
    assert_eq!(tenant.get(&path).await.json()["channelIds"], json!([channel]));
    let foreign = stranger.post("/v1/conversations", json!({"channelIds": [channel]})).await;
    foreign.assert_problem(422, "invalid_message");
    assert_eq!(foreign.json()["errors"][0]["pointer"], "/channelIds");
    server.stop().await;
}

#[tokio::test]
async fn a_conversation_of_one_node_is_known_to_the_other() {
    let world = World::new().await;
    let (a, b) = (world.serve(&[]).await, world.serve(&[]).await);
    let here = Client::tenant(&a).await;
    let there = here.at(&b);
    eventually("b knows the key", async || there.post("/v1/tokens", json!({})).await.status == 201)
        .await;
    let conversation = here.open().await;
    let mut seqs = BTreeSet::new();
    for round in 0..10 {
        seqs.insert(here.say(conversation, &format!("a {round}")).await);
        seqs.insert(there.say(conversation, &format!("b {round}")).await);
    }
    assert_eq!(seqs, (2..=21).collect());
    for client in [&here, &there] {
        eventually("all of it is read", async || {
            client.page(conversation, "limit=100").await.seqs() == (1..=21).collect::<Vec<_>>()
        })
        .await;
    }
    world.assert_clean(&a).await;
    a.stop().await;
    b.stop().await;
}
