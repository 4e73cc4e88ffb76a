//! What happens on sockets while everything is well.

use serde_json::{Value, json};

use super::{Socket, key_of};
use crate::world::World;
use crate::world::client::Client;

#[tokio::test]
async fn everybody_hears_everybody_in_order_and_a_sender_gets_the_ack_instead() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let key = key_of(&tenant);
    let conversation = tenant.open().await;
    let (mut ann, welcome) = Socket::joined(&server, &key, conversation, None).await;
    assert_eq!((&welcome["watermark"], &welcome["liveFrom"]), (&json!(1), &json!(2)));
    assert_eq!(welcome["limits"]["unackedSends"], 32);
    assert_eq!(ann.expect("replayComplete").await["watermark"], 1);
    let (mut bob, _) = Socket::joined(&server, &key, conversation, Some(0)).await;
    let opened = bob.expect("event").await;
    assert_eq!((&opened["seq"], &opened["type"]), (&json!(1), &json!("conversation.opened")));
    assert_eq!(bob.expect("replayComplete").await["watermark"], 1);
    for n in 2..=20_u64 {
        let (from, to, name) =
            if n % 2 == 0 { (&mut ann, &mut bob, "ann") } else { (&mut bob, &mut ann, "bob") };
        from.say(json!({
            "frame": "message", "clientId": format!("k{n}"), "text": "hello", "sender": {"id": name},
        }))
        .await;
        let ack = from.expect("ack").await;
        assert_eq!((&ack["seq"], &ack["clientId"]), (&json!(n), &json!(format!("k{n}"))));
        let event = to.expect("event").await;
        assert_eq!(
            (&event["seq"], &event["id"], &event["at"]),
            (&ack["seq"], &ack["id"], &ack["at"])
        );
        assert_eq!((&event["text"], &event["sender"]["id"]), (&json!("hello"), &json!(name)));
        assert_eq!(event["conversationId"], conversation.to_string());
    }
    // What came over REST is heard by both.
    assert_eq!(tenant.say(conversation, "by rest").await, 21);
    assert_eq!((ann.events_to(21).await, bob.events_to(21).await), (vec![21], vec![21]));
    // A repeat is acknowledged with the first receipt, and heard by nobody.
    ann.say(
        json!({"frame": "message", "clientId": "k2", "text": "hello", "sender": {"id": "ann"}}),
    )
    .await;
    let again = ann.expect("ack").await;
    assert_eq!((&again["seq"], &again["duplicate"]), (&json!(2), &json!(true)));
    ann.say(
        json!({"frame": "message", "clientId": "k2", "text": "another", "sender": {"id": "ann"}}),
    )
    .await;
    let refused = ann.expect("error").await;
    assert_eq!((&refused["number"], &refused["clientId"]), (&json!(1004), &json!("k2")));
    ann.say(json!({"frame": "ping", "nonce": 7})).await;
    assert_eq!(ann.expect("heartbeat").await["nonce"], 7);
    server.stop().await;
}

#[tokio::test]
async fn message_pack_says_the_same_as_json() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let key = key_of(&tenant);
    let conversation = tenant.open().await;
    let hello = json!({"frame": "hello", "conversationId": conversation, "watermark": 0});
    let mut all: Vec<Vec<Value>> = Vec::new();
    let data = json!({"n": [1, 2.5, null, "x"]});
    let sent = tenant.send(conversation, json!({"text": "hello", "data": data})).await;
    assert_eq!(sent.status, 201);
    for protocol in ["forebay.v1+json", "forebay.v1+msgpack"] {
        let mut socket = Socket::open(&server, &key, protocol).await;
        socket.say(hello.clone()).await;
        let mut frames = Vec::new();
        for name in ["welcome", "event", "event"] {
            frames.push(socket.expect(name).await);
        }
        // The second one hears what the first one sends.
        while socket.next().await["frame"] != "replayComplete" {}
        socket.say(json!({"frame": "message", "clientId": "one", "text": "hi"})).await;
        let mut ack = socket.expect("ack").await;
        ack.as_object_mut().unwrap().remove("duplicate");
        frames.push(ack);
        all.push(frames);
    }
    assert_eq!(all[0][2]["data"], data);
    assert_eq!(all[0][1..3], all[1][1..3]);
    assert_eq!(all[0][3], all[1][3], "the repeat has the receipt of the first");
    server.stop().await;
}

#[tokio::test]
async fn one_connection_joins_several_conversations_and_leaves_them() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversations = [tenant.open().await, tenant.open().await];
    let mut socket = Socket::open(&server, &key_of(&tenant), "forebay.v1+json").await;
    socket.say(json!({"frame": "hello"})).await;
    assert_eq!(socket.expect("welcome").await["conversationId"], Value::Null);
    for conversation in conversations {
        socket.say(json!({"frame": "join", "conversationId": conversation, "watermark": 0})).await;
        let welcome = socket.expect("welcome").await;
        assert_eq!(welcome["conversationId"], conversation.to_string());
        assert_eq!(socket.events_to(1).await, [1]);
        socket.expect("replayComplete").await;
    }
    for conversation in conversations {
        tenant.say(conversation, "hello").await;
        assert_eq!(socket.expect("event").await["conversationId"], conversation.to_string());
    }
    // Which one is meant must be said.
    socket.say(json!({"frame": "message", "clientId": "a", "text": "where?"})).await;
    assert_eq!(socket.expect("error").await["number"], 1000);
    socket.say(json!({"frame": "leave", "conversationId": conversations[0]})).await;
    socket.say(json!({"frame": "ping"})).await;
    socket.expect("heartbeat").await;
    tenant.say(conversations[0], "unheard").await;
    tenant.say(conversations[1], "heard").await;
    let heard = socket.expect("event").await;
    assert_eq!(heard["text"], "heard");
    server.stop().await;
}

#[tokio::test]
async fn users_see_each_other_type_read_come_and_go_on_both_nodes() {
    let world = World::new().await;
    let (one, two) = (world.serve(&[]).await, world.serve(&[]).await);
    let tenant = Client::tenant(&one).await;
    let conversation = tenant.open().await;
    let token = async |user: &str| {
        let issued =
            tenant.post("/v1/tokens", json!({"userId": user, "conversationId": conversation}));
        issued.await.json()["token"].as_str().unwrap().to_owned()
    };
    let (ann_token, bob_token) = (token("ann").await, token("bob").await);
    let (mut ann, welcome) = Socket::joined(&one, &ann_token, conversation, None).await;
    assert!(welcome["expiresAt"].is_string());
    ann.expect("replayComplete").await;
    let (mut bob, _) = Socket::joined(&two, &bob_token, conversation, None).await;
    // Ann's coming may be on its way still.
    bob.expect_behind("presence", "replayComplete").await;
    let came = ann.expect("presence").await;
    assert_eq!((&came["sender"]["id"], &came["state"]), (&json!("bob"), &json!("joined")));
    bob.say(json!({"frame": "typing", "isTyping": true})).await;
    assert_eq!(ann.expect("typing").await["isTyping"], true);
    bob.say(json!({"frame": "read", "watermark": 1})).await;
    assert_eq!(ann.expect("read").await["watermark"], 1);
    bob.say(json!({"frame": "message", "clientId": "a", "text": "over the log"})).await;
    bob.expect_behind("presence", "ack").await;
    let event = ann.expect("event").await;
    assert_eq!((&event["text"], &event["sender"]["id"]), (&json!("over the log"), &json!("bob")));
    // Whoever has no name hears others without a name, and not himself.
    let (mut first, _) = Socket::joined(&one, tenant.bearer(), conversation, None).await;
    first.expect_behind("presence", "replayComplete").await;
    let (mut second, _) = Socket::joined(&two, tenant.bearer(), conversation, None).await;
    second.expect_behind("presence", "replayComplete").await;
    first.say(json!({"frame": "typing"})).await;
    assert_eq!(second.expect("typing").await["sender"], Value::Null);
    second.say(json!({"frame": "read", "watermark": 2})).await;
    assert_eq!(first.expect("read").await["watermark"], 2);
    assert_eq!(ann.expect("typing").await["isTyping"], true);
    assert_eq!(ann.expect("read").await["watermark"], 2);
    drop(bob);
    assert_eq!(ann.expect("presence").await["state"], "left");
    two.stop().await;
    one.stop().await;
}

#[tokio::test]
async fn a_server_that_stops_says_so_and_answers_what_was_sent() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let (mut socket, _) = Socket::joined(&server, &key_of(&tenant), conversation, None).await;
    socket.expect("replayComplete").await;
    let talking = async {
        socket.say(json!({"frame": "message", "clientId": "last", "text": "last"})).await;
        socket.expect("ack").await;
        let why = socket.expect("error").await;
        assert_eq!((&why["number"], &why["retryable"]), (&json!(9001), &json!(true)));
        let close = socket.expect("close").await;
        assert_eq!(
            (&close["code"], &close["reason"]["reason"]),
            (&json!(1012), &json!("unavailable"))
        );
        assert!(close["reason"]["retryAfterMs"].is_u64());
    };
    let ((), clean) = tokio::join!(talking, server.stop());
    assert!(clean);
}

#[tokio::test]
async fn who_loses_access_loses_the_socket() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let (mut socket, _) = Socket::joined(&server, &key_of(&tenant), conversation, None).await;
    socket.expect("replayComplete").await;
    let short = json!({"userId": "ann", "ttlSeconds": 1});
    let token = tenant.post("/v1/tokens", short).await.json()["token"].as_str().unwrap().to_owned();
    let (mut brief, _) = Socket::joined(&server, &token, conversation, None).await;
    brief.expect("replayComplete").await;
    assert_eq!(brief.expect("error").await["number"], 2001);
    assert_eq!(brief.expect("close").await["code"], 4401);
    let id = crate::world::client::tenant_of(&server, &tenant);
    let suspend = json!({"status": "suspended"});
    let path = format!("/v1/tenants/{id}");
    assert_eq!(Client::operator(&server).patch(&path, suspend).await.status, 200);
    loop {
        let frame = socket.next().await;
        if frame["frame"] == "close" {
            assert_eq!(frame["code"], 4403);
            break;
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn a_token_that_is_bound_elsewhere_ends_what_it_does_not_reach() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let (first, second) = (tenant.open().await, tenant.open().await);
    let token = async |wish: Value| {
        tenant.post("/v1/tokens", wish).await.json()["token"].as_str().unwrap().to_owned()
    };
    let wide = token(json!({"userId": "ann"})).await;
    let narrow = token(json!({"userId": "ann", "conversationId": second})).await;
    let (mut ann, _) = Socket::joined(&server, &wide, first, None).await;
    ann.expect("replayComplete").await;
    ann.say(json!({"frame": "join", "conversationId": second})).await;
    ann.expect("welcome").await;
    ann.expect("replayComplete").await;

    ann.say(json!({"frame": "auth", "token": narrow})).await;
    ann.expect("tokenRefreshed").await;
    let refused = ann.expect("error").await;
    assert_eq!(
        (&refused["code"], &refused["conversationId"]),
        (&json!("forbidden"), &json!(first))
    );
    tenant.say(first, "not for her any more").await;
    tenant.say(second, "for her").await;
    assert_eq!(ann.expect("event").await["conversationId"], json!(second));
    server.stop().await;
}
