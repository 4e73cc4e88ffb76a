//! What clients do wrong, and worse.

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

use super::{Socket, key_of};
use crate::world::World;
use crate::world::client::Client;

/// What the answer says to what is no id.
const NO_ID: &str = "The conversationId is no id: it is cnv_ and 32 hex digits.";

#[tokio::test]
async fn what_is_wrong_is_answered_and_the_connection_stays() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let key = key_of(&tenant);
    let conversation = tenant.open().await;
    let mut socket = Socket::open(&server, &key, "forebay.v1+json").await;
    socket.say(json!({"frame": "message", "clientId": "a", "text": "early"})).await;
    assert_eq!(socket.expect("error").await["number"], 1001);
    socket.say(json!({"frame": "hello", "conversationId": conversation, "watermark": 99})).await;
    assert_eq!(socket.expect("welcome").await["watermark"], 1);
    let ahead = socket.expect("error").await;
    assert_eq!((&ahead["number"], &ahead["details"]["headSeq"]), (&json!(1003), &json!(1)));
    socket.say(json!({"frame": "sync", "watermark": 1})).await;
    socket.expect("replayComplete").await;
    let foreign = Client::tenant(&server).await.open().await;
    let apart = tenant.open().await;
    let id = conversation.to_string();
    let bad: [(Value, u64); 13] = [
        (json!({"frame": "sync", "conversationId": apart, "watermark": 0}), 1001),
        (json!({"frame": "dance"}), 1000),
        (json!({"text": "no frame"}), 1000),
        (json!([1, 2]), 1000),
        (json!({"frame": "sync", "watermark": -1}), 1003),
        (json!({"frame": "sync", "watermark": "7"}), 1003),
        (json!({"frame": "sync", "watermark": 1.5}), 1003),
        (json!({"frame": "join", "conversationId": foreign}), 4001),
        (json!({"frame": "join", "conversationId": "cnv_no"}), 1000),
        (json!({"frame": "message", "text": "no key"}), 1004),
        (json!({"frame": "message", "clientId": "has space", "text": "x"}), 1004),
        (json!({"frame": "message", "clientId": "empty"}), 1004),
        (json!({"frame": "message", "clientId": "nul", "text": "a\u{0}b"}), 1004),
    ];
    for (frame, number) in bad {
        socket.say(frame.clone()).await;
        let error = socket.expect("error").await;
        assert_eq!(error["number"], number, "{frame}: {error}");
    }
    for (text, wanted) in [
        ("{\"frame\": ", "This is no frame: it is not JSON."),
        ("[\"ping\"]", "This is no frame: it is not an object."),
        ("7", "This is no frame: it is not an object."),
        ("{\"frame\": 7}", "The field frame must be a string."),
        ("{\"frame\": \"auth\", \"token\": []}", "The field token must be a string."),
        ("{\"frame\": \"typing\", \"isTyping\": 1}", "The field isTyping must be true or false."),
        ("{\"frame\": \"join\", \"conversationId\": \"cnv_no\"}", NO_ID),
    ] {
        socket.send(Message::text(text)).await;
        let error = socket.expect("error").await;
        assert_eq!((&error["number"], &error["message"]), (&json!(1000), &json!(wanted)), "{text}");
    }
    socket.send(Message::binary(vec![1, 2, 3])).await;
    assert_eq!(socket.expect("error").await["number"], 1000);
    // Nobody can have read beyond the head.
    socket.say(json!({"frame": "read", "watermark": 99})).await;
    let ahead = socket.expect("error").await;
    assert_eq!((&ahead["number"], &ahead["details"]["headSeq"]), (&json!(1003), &json!(1)));
    let large = json!({"frame": "message", "clientId": "large", "text": "x".repeat(140_000)});
    socket.say(large).await;
    assert_eq!(socket.expect("error").await["number"], 3001);
    // A second hello is nothing.
    socket.say(json!({"frame": "hello", "conversationId": id})).await;
    socket.say(json!({"frame": "message", "clientId": "good", "text": "still here"})).await;
    assert_eq!(socket.expect("ack").await["seq"], 2);
    server.stop().await;
}

#[tokio::test]
async fn what_cannot_be_borne_ends_the_connection_with_a_reason() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let key = key_of(&tenant);
    let conversation = tenant.open().await;
    let (mut socket, _) = Socket::joined(&server, &key, conversation, None).await;
    socket.expect("replayComplete").await;
    socket.send(Message::text("x".repeat(1_100_000))).await;
    assert_eq!(socket.expect("error").await["number"], 3001);
    assert_eq!(socket.expect("close").await["code"], 1009);
    let (mut socket, _) = Socket::joined(&server, &key, conversation, None).await;
    socket.expect("replayComplete").await;
    let broken = Frame::message(vec![0xff, 0xfe], OpCode::Data(Data::Text), true);
    socket.send(Message::Frame(broken)).await;
    socket.expect("error").await;
    assert_eq!(socket.expect("close").await["code"], 1007);
    let mut nobody = Socket::open(&server, "", "forebay.v1+json").await;
    nobody.say(json!({"frame": "hello", "token": "fbk_nonsense"})).await;
    assert_eq!(nobody.expect("error").await["number"], 2000);
    assert_eq!(nobody.expect("close").await["code"], 4401);
    let mut packed = Socket::open(&server, &key, "forebay.v1+msgpack").await;
    for bomb in [vec![0xdd, 0xff, 0xff, 0xff, 0xff], vec![0x91; 10_000], vec![0x81]] {
        packed.send(Message::binary(bomb)).await;
        assert_eq!(packed.expect("error").await["number"], 1000);
    }
    packed.say(json!({"frame": "hello", "conversationId": conversation})).await;
    packed.expect("welcome").await;
    server.stop().await;
}

#[tokio::test]
async fn too_many_of_anything_are_refused_one_by_one() {
    let world = World::with_own_nats().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let (mut socket, _) = Socket::joined(&server, &key_of(&tenant), conversation, None).await;
    socket.expect("replayComplete").await;
    // Nothing is acknowledged while the log stands.
    world.pause_nats().await;
    for n in 0..33 {
        let message = json!({"frame": "message", "clientId": format!("k{n}"), "text": "x"});
        socket.say(message).await;
    }
    let refused = socket.expect("error").await;
    assert_eq!((&refused["number"], &refused["clientId"]), (&json!(3002), &json!("k32")));
    // A burst of 40 frames, of which 34 are spent.
    for _ in 0..20 {
        socket.say(json!({"frame": "ping"})).await;
    }
    let mut limited = 0;
    for _ in 0..20 {
        let frame = socket.next().await;
        limited += u32::from(frame["number"] == 3000);
    }
    assert!(limited >= 10, "{limited}");
    world.resume_nats().await;
    server.stop().await;
}

#[tokio::test]
async fn a_place_in_another_log_is_gone() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    tenant.say(conversation, "hello").await;
    let mut socket = Socket::open(&server, &key_of(&tenant), "forebay.v1+json").await;
    // A watermark below the oldest would be answered in the same way; but the oldest is always 1, and below it is only
    // 0, which has nothing before it. So there is nothing to test until something is deleted.
    let hello = json!({
        "frame": "hello", "conversationId": conversation, "watermark": 1, "epoch": "another",
    });
    socket.say(hello).await;
    let welcome = socket.expect("welcome").await;
    assert_eq!(welcome["oldestSeq"], 1);
    let gone = socket.expect("replayGone").await;
    assert_eq!((&gone["watermark"], &gone["oldestSeq"]), (&json!(1), &json!(1)));
    assert_eq!(gone["epoch"], welcome["epoch"]);
    // Nothing comes until it syncs, and then all of it.
    tenant.say(conversation, "unheard").await;
    socket.say(json!({"frame": "ping"})).await;
    socket.expect("heartbeat").await;
    socket.say(json!({"frame": "sync", "watermark": 0})).await;
    assert_eq!(socket.events_to(3).await, [1, 2, 3]);
    assert_eq!(socket.expect("replayComplete").await["watermark"], 3);
    server.stop().await;
}

#[tokio::test]
async fn a_client_id_is_stored_once_whoever_repeats_it() {
    let world = World::new().await;
    let (one, two) = (world.serve(&[]).await, world.serve(&[]).await);
    let tenant = Client::tenant(&one).await;
    let key = key_of(&tenant);
    let conversation = tenant.open().await;
    let (mut listener, _) = Socket::joined(&one, &key, conversation, None).await;
    listener.expect("replayComplete").await;
    let (mut first, _) = Socket::joined(&one, &key, conversation, None).await;
    first.expect("replayComplete").await;
    let (mut second, _) = Socket::joined(&two, &key, conversation, None).await;
    second.expect("replayComplete").await;
    let message = |text: &str| json!({"frame": "message", "clientId": "once", "text": text});
    // At once on one socket: one is stored, and both are answered with its receipt.
    first.say(message("hello")).await;
    first.say(message("hello")).await;
    let acks = [first.expect("ack").await, first.expect("ack").await];
    assert_eq!((&acks[0]["seq"], &acks[0]["id"]), (&acks[1]["seq"], &acks[1]["id"]));
    assert_eq!(acks.iter().filter(|ack| ack["duplicate"] == true).count(), 1, "{acks:?}");
    assert_eq!(second.expect("event").await["id"], acks[0]["id"]);
    // On another node it is known as well.
    second.say(message("hello")).await;
    let again = second.expect("ack").await;
    assert_eq!((&again["id"], &again["duplicate"]), (&acks[0]["id"], &json!(true)));
    for socket in [&mut first, &mut second] {
        socket.say(message("another")).await;
        let refused = socket.expect("error").await;
        assert_eq!((&refused["number"], &refused["retryable"]), (&json!(1004), &json!(false)));
        assert_eq!(refused["clientId"], "once");
    }
    tenant.say(conversation, "after").await;
    let heard = [listener.expect("event").await, listener.expect("event").await];
    assert_eq!((&heard[0]["seq"], &heard[1]["seq"]), (&json!(2), &json!(3)));
    assert_eq!((&heard[0]["text"], &heard[1]["text"]), (&json!("hello"), &json!("after")));
    two.stop().await;
    one.stop().await;
}
