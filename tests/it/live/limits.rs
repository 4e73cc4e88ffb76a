//! What a connection may have and how long it may be silent; what is no handshake.

use std::collections::BTreeSet;
use std::time::Duration;

use forebay::admission::{Overload, Priority};
use forebay::event::ConversationId;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{interval, timeout};

use super::{FRAME_MAX, Socket, key_of};
use crate::world::World;
use crate::world::client::Client;

#[tokio::test]
async fn a_handshake_that_is_none_is_a_problem() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let good = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let refused = async |headers: &[(&str, &str)]| {
        let answer = tenant.call(hyper::Method::GET, "/v1/socket", headers, "").await;
        answer.assert_problem(400, "bad_request");
    };
    for n in 0..good.len() {
        let mut without = good.to_vec();
        without.remove(n);
        refused(&without).await;
    }
    let mut old = good;
    old[2].1 = "8";
    refused(&old).await;
    for unknown in ["soap", "forebay.v2+json", "forebay.v1+xml, chat"] {
        refused(&[&good[..], &[("sec-websocket-protocol", unknown)]].concat()).await;
    }
    // The first that is known, and a wrong key is told in HTTP.
    let known = "soap, forebay.v1+msgpack, forebay.v1+json";
    let all = [&good[..], &[("sec-websocket-protocol", known)]].concat();
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let lines: Vec<_> = all.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let lines = lines.concat();
    let head = format!("GET /v1/socket HTTP/1.1\r\nHost: x\r\n{lines}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut buffer = [0; 1_024];
    let count = timeout(FRAME_MAX, stream.read(&mut buffer)).await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&buffer[..count]);
    assert!(text.starts_with("HTTP/1.1 101"), "{text}");
    assert!(text.contains("sec-websocket-protocol: forebay.v1+msgpack\r\n"), "{text}");
    let nobody = tenant.as_bearer("fbk_nonsense");
    let answer = nobody.call(hyper::Method::GET, "/v1/socket", &good, "").await;
    answer.assert_problem(401, "unauthorized");
    server.stop().await;
}

/// Joins as fast as the rate allows; gives what is not of a replay that goes well.
async fn join_all(
    socket: &mut Socket,
    conversations: &[ConversationId],
    burst: usize,
) -> Vec<Value> {
    let mut tick = interval(Duration::from_millis(55));
    let (mut answers, mut complete, mut next) = (Vec::new(), BTreeSet::new(), 0);
    let known: BTreeSet<String> = conversations.iter().map(ToString::to_string).collect();
    while complete.len() + answers.len() < conversations.len() {
        tokio::select! {
            frame = socket.next() => match frame["frame"].as_str().unwrap() {
                "welcome" | "event" | "heartbeat" => {}
                "replayComplete" => {
                    let id = frame["conversationId"].as_str().unwrap();
                    complete.extend(known.get(id));
                }
                "error" if frame["number"] == 9002 => {}
                _ => answers.push(frame),
            },
            _ = tick.tick(), if next < conversations.len() => {
                let until = if next == 0 { burst } else { next + 1 };
                for conversation in &conversations[next..until.min(conversations.len())] {
                    socket.say(json!({
                        "frame": "join", "conversationId": conversation, "watermark": 0,
                        "capabilities": ["gaps"],
                    })).await;
                }
                next = until;
            }
        }
    }
    answers
}

#[tokio::test]
async fn a_connection_joins_a_hundred_conversations_and_not_one_more() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let mut conversations = Vec::new();
    for _ in 0..104 {
        conversations.push(tenant.open().await);
    }
    let mut socket = Socket::open(&server, &key_of(&tenant), "forebay.v1+json").await;
    socket.say(json!({"frame": "hello"})).await;
    socket.expect("welcome").await;
    // Twice before the first is decided is one.
    for _ in 0..2 {
        socket
            .say(json!({"frame": "join", "conversationId": conversations[0], "watermark": 0}))
            .await;
    }
    let refused = join_all(&mut socket, &conversations[1..], 30).await;
    assert_eq!(refused.len(), 4, "{refused:?}");
    for error in &refused {
        let is_named = error["message"].as_str().unwrap().contains("conversations = 100");
        assert!(error["number"] == 1000 && is_named, "{error}");
    }
    assert_eq!(server.hub.count(), 100);
    // A thousand at once: those beyond the rate are refused, and the connection stays.
    for n in 0..1_000 {
        let conversation = conversations[n % conversations.len()];
        socket.say(json!({"frame": "join", "conversationId": conversation})).await;
    }
    let mut tick = interval(Duration::from_millis(100));
    socket.say(json!({"frame": "ping", "nonce": 0})).await;
    let mut limited = 0;
    loop {
        tokio::select! {
            _ = tick.tick() => socket.say(json!({"frame": "ping", "nonce": 0})).await,
            frame = socket.next() => {
                assert_ne!(frame["frame"], "close", "{frame}");
                limited += u32::from(frame["number"] == 3000);
                if frame["nonce"] == 0 {
                    break;
                }
            }
        }
    }
    assert!(limited > 800, "{limited}");
    assert_eq!(server.hub.count(), 100);
    // One that is left makes room.
    crate::world::eventually("it is left", async || {
        // As often as the rate that is used up needs.
        socket.say(json!({"frame": "leave", "conversationId": conversations[0]})).await;
        server.hub.count() == 99
    })
    .await;
    drop(socket);
    crate::world::eventually("all are left", async || server.hub.count() == 0).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_old_conversations_are_replayed_at_once_through_two_connections() {
    let world = World::new().await;
    let server = world
        .serve(&[
            ("FOREBAY_PARTITIONS", "1"),
            ("FOREBAY_TAIL_BYTES_MAX", "65536"),
            ("POOL_SIZE", "2"),
        ])
        .await;
    let tenant = Client::tenant(&server).await;
    let mut conversations = Vec::new();
    for _ in 0..50 {
        let conversation = tenant.open().await;
        tenant.say(conversation, &"x".repeat(4_000)).await;
        conversations.push(conversation);
    }
    // The tail forgets what is projected.
    world.projected(&server).await;
    tenant.say(conversations[49], &"x".repeat(60_000)).await;
    let mut socket = Socket::open(&server, &key_of(&tenant), "forebay.v1+json").await;
    socket.say(json!({"frame": "hello"})).await;
    socket.expect("welcome").await;
    let begun = server.pools.0.status().gate.clone();
    let wrong = join_all(&mut socket, &conversations, 38).await;
    assert!(wrong.is_empty(), "{wrong:?}");
    let gate = server.pools.0.status().gate;
    let nested: u64 = Priority::ALL.into_iter().map(|p| gate.refused(Overload::Nested, p)).sum();
    assert_eq!(nested, 0, "{begun:?} {gate:?}");
    server.stop().await;
}

#[tokio::test]
#[ignore = "takes 60 s"]
async fn who_is_silent_is_closed() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let key = key_of(&tenant);
    let conversation = tenant.open().await;
    // A peer that is half open reads on, but answers no ping: this client does so only while it reads.
    let (silent, _) = Socket::joined(&server, &key, conversation, None).await;
    let (mut lively, _) = Socket::joined(&server, &key, conversation, None).await;
    lively.expect("replayComplete").await;
    let mut unsaid = Socket::open(&server, &key, "forebay.v1+json").await;
    assert_eq!(unsaid.expect("error").await["number"], 1001);
    assert_eq!(unsaid.expect("close").await["code"], 4408);
    let mut tick = interval(Duration::from_secs(1));
    let (begun, mut beats) = (std::time::Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(58) {
        tokio::select! {
            _ = tick.tick() => assert!(begun.elapsed().as_secs() > 45 || server.hub.count() == 2),
            // It is silent, too, but answers pings.
            frame = lively.next() => beats += u32::from(frame["frame"] == "heartbeat"),
        }
    }
    assert!(beats >= 1);
    crate::world::eventually("the silent one is gone", async || server.hub.count() == 1).await;
    let mut silent = silent;
    loop {
        let frame = silent.next().await;
        if frame["frame"] == "close" {
            assert_eq!(
                (&frame["code"], &frame["reason"]["reason"]),
                (&json!(4408), &json!("no_session"))
            );
            break;
        }
    }
    server.stop().await;
}
