//! The examples of docs/PROTOCOL.md, said to a real server.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Socket, key_of};
use crate::world::World;
use crate::world::client::Client;

/// One example: who says it, under which name, and the frame.
struct Example {
    is_clients: bool,
    name: String,
    frame: Value,
}

fn examples() -> Vec<Example> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/PROTOCOL.md");
    let text = std::fs::read_to_string(path).unwrap();
    let mut found = Vec::new();
    for block in text.split("```json ").skip(1) {
        let (head, rest) = block.split_once('\n').unwrap();
        let (body, _) = rest.split_once("```").unwrap();
        let (side, name) = head.split_once(' ').unwrap();
        let frame: Value =
            serde_json::from_str(body).unwrap_or_else(|error| panic!("{head}: {error}: {body}"));
        let is_clients = side == "client->server";
        found.push(Example { is_clients, name: name.to_owned(), frame });
    }
    found
}

#[tokio::test]
async fn a_server_understands_every_frame_that_the_protocol_shows_and_says_no_other() {
    let examples = examples();
    let shown: BTreeSet<_> = examples
        .iter()
        .filter(|example| !example.is_clients)
        .map(|example| example.frame["frame"].as_str().unwrap().to_owned())
        .collect();
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let other = tenant.open().await;
    let mut socket = Socket::open(&server, &key_of(&tenant), "forebay.v1+json").await;
    let mut said = 0;
    for example in examples.iter().filter(|example| example.is_clients) {
        let mut frame = example.frame.clone();
        assert!(example.name.starts_with(frame["frame"].as_str().unwrap()), "{frame}");
        let fields = frame.as_object_mut().unwrap();
        let own = match example.name.as_str() {
            "join" | "leave" => other,
            _ => conversation,
        };
        for (field, value) in [
            ("conversationId", json!(own)),
            ("watermark", json!(1)),
            ("token", json!(key_of(&tenant))),
            ("epoch", json!(server.shape.epoch)),
        ] {
            if fields.contains_key(field) {
                fields.insert(field.to_owned(), value);
            }
        }
        socket.say(frame).await;
        said += 1;
    }
    assert!(said >= 9, "{said} frames of clients are shown");
    socket.say(json!({"frame": "ping", "nonce": "the end"})).await;
    loop {
        let frame = socket.next().await;
        let name = frame["frame"].as_str().unwrap();
        assert!(shown.contains(name), "{name} is not shown: {frame}");
        assert_ne!(frame["number"], 1000, "an example was not understood: {frame}");
        if frame["nonce"] == "the end" {
            break;
        }
    }
    server.stop().await;
}
