//! Frames that a client sends before it was welcomed: they wait for the join.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Socket, key_of};
use crate::ingest::cold::{FORGETFUL, make_forget};
use crate::world::World;
use crate::world::client::Client;

fn message(client_id: &str) -> Value {
    json!({"frame": "message", "clientId": client_id, "text": client_id})
}

#[tokio::test]
async fn what_is_said_with_the_hello_waits_for_the_welcome() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    // More than once, because a join may be decided before the next frame is read.
    for round in 0..3 {
        let mut socket = Socket::open(&server, &key_of(&tenant), "forebay.v1+json").await;
        let frames = [
            json!({"frame": "hello", "conversationId": conversation}),
            message(&format!("a{round}")),
            json!({"frame": "typing"}),
            json!({"frame": "sync", "watermark": 0}),
            message(&format!("b{round}")),
        ];
        socket.say_at_once(frames).await;
        socket.expect("welcome").await;
        let mut acks = Vec::new();
        while acks.len() < 2 {
            let frame = socket.next().await;
            assert_ne!(frame["frame"], "error", "{frame}");
            if frame["frame"] == "ack" {
                acks.push(frame["clientId"].as_str().unwrap().to_owned());
            }
        }
        assert_eq!(acks, [format!("a{round}"), format!("b{round}")]);
    }
    let foreign = Client::tenant(&server).await.open().await;
    let mut socket = Socket::open(&server, &key_of(&tenant), "forebay.v1+json").await;
    let hello = json!({"frame": "hello", "conversationId": foreign});
    socket.say_at_once([hello, message("k")]).await;
    assert_eq!(socket.expect("error").await["number"], 4001);
    let refused = socket.expect("error").await;
    assert_eq!((&refused["number"], &refused["clientId"]), (&json!(1001), &json!("k")));
    server.stop().await;
}

#[tokio::test]
async fn what_waits_for_a_join_is_bounded_and_answered_when_the_join_takes_long() {
    let world = World::with_own_postgres().await;
    let server = world.serve(&FORGETFUL).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    make_forget(&world, &server, &tenant, conversation).await;
    world.pause_postgres().await;
    let mut socket = Socket::open(&server, &key_of(&tenant), "forebay.v1+json").await;
    socket.say(json!({"frame": "hello", "conversationId": conversation})).await;
    for n in 0..33 {
        socket.say(message(&format!("k{n}"))).await;
    }
    let refused = socket.expect("error").await;
    assert_eq!((&refused["number"], &refused["clientId"]), (&json!(3002), &json!("k32")));
    assert_eq!(refused["conversationId"], json!(conversation));
    let undecided = socket.expect("error").await;
    assert_eq!((&undecided["number"], &undecided["clientId"]), (&json!(9001), &Value::Null));
    let mut answered = BTreeSet::new();
    for _ in 0..32 {
        let error = socket.expect("error").await;
        assert_eq!(error["number"], 9001, "{error}");
        answered.insert(error["clientId"].as_str().unwrap().to_owned());
    }
    assert_eq!(answered.len(), 32);
    // Whoever leaves before the welcome has left, and what waited is answered.
    let wait = std::time::Duration::from_millis(300);
    tokio::time::interval_at(tokio::time::Instant::now() + wait, wait).tick().await;
    socket.say(json!({"frame": "sync", "watermark": 0})).await;
    socket.say(message("left")).await;
    socket.say(json!({"frame": "leave"})).await;
    socket.say(json!({"frame": "ping"})).await;
    let mut numbers = Vec::new();
    loop {
        let frame = socket.next().await;
        match frame["frame"].as_str().unwrap() {
            "error" if frame["number"] == 9001 => {}
            "error" => numbers.push((frame["number"].clone(), frame["clientId"].clone())),
            _ => break,
        }
    }
    assert_eq!(numbers, [(json!(1001), Value::Null), (json!(1001), json!("left"))]);
    world.resume_postgres().await;
    crate::world::eventually("it is left", async || server.hub.count() == 0).await;
    let path = format!("/v1/conversations/{conversation}");
    crate::world::eventually("it is known", async || tenant.get(&path).await.status == 200).await;
    // What waits is dealt with when the join can be decided.
    socket.say(json!({"frame": "join", "conversationId": conversation})).await;
    socket.say(message("joined")).await;
    socket.expect("welcome").await;
    while socket.next().await["frame"] != "ack" {}
    server.stop().await;
}
