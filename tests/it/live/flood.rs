//! Clients that do not read, or say too much: what becomes of them, and that nobody else notices.

use std::time::{Duration, Instant};

use forebay::cli::serve::Server;
use forebay::event::ConversationId;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{interval, timeout};
use tokio_tungstenite::tungstenite::Message;

use super::{FRAME_MAX, Socket, key_of};
use crate::world::World;
use crate::world::client::Client;

/// In a debug build on a machine that does other things, too.
const P99_MAX: Duration = Duration::from_millis(100);

/// Most memory that one stalled connection may cost, in KiB: what may wait for it, what is being written, and slack for
/// what the process takes besides.
const STALLED_KIB_MAX: u64 = 48 * 1024;

/// A socket that has joined and reads nothing any more. Its system keeps 4 KiB for it.
async fn stalled(server: &Server, key: &str, conversation: ConversationId) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut stream = socket.connect(server.address).await.unwrap();
    let head = format!(
        "GET /v1/socket HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let hello = json!({"frame": "hello", "conversationId": conversation}).to_string();
    let length = u8::try_from(hello.len()).unwrap();
    assert!(length < 126);
    // Masked by zeros, which changes nothing.
    stream
        .write_all(&[&[0x81, 0x80 | length, 0, 0, 0, 0], hello.as_bytes()].concat())
        .await
        .unwrap();
    let mut text = String::new();
    let mut buffer = [0; 512];
    while !text.contains("replayComplete") {
        let count = timeout(FRAME_MAX, stream.read(&mut buffer)).await.unwrap().unwrap();
        assert!(count > 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    stream
}

/// What this process holds in memory, in KiB. The server is part of it.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_read_is_dropped_and_nobody_else_waits() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let key = key_of(&tenant);
    let conversation = tenant.open().await;
    let (mut other, _) = Socket::joined(&server, &key, conversation, None).await;
    other.expect("replayComplete").await;
    let mut slow = stalled(&server, &key, conversation).await;
    let memberships = 2;
    assert_eq!(server.hub.count(), memberships);
    let before = resident();
    let text = "x".repeat(60_000);
    let (mut times, mut most, mut dropped) = (Vec::new(), 0, None);
    // More than the kernel and the inbox together hold.
    for n in 0..300_u64 {
        let sent = Instant::now();
        let (seq, event) = tokio::join!(tenant.say(conversation, &text), other.expect("event"));
        assert_eq!((seq, event["seq"].as_u64()), (n + 2, Some(n + 2)));
        times.push(sent.elapsed());
        most = most.max(resident().saturating_sub(before));
        if server.hub.count() < memberships && dropped.is_none() {
            dropped = Some(n);
        }
    }
    // Within seconds, and not because the other end went.
    crate::world::eventually("the slow one is gone", async || server.hub.count() == 1).await;
    let p99 = p99(times);
    assert!(p99 < P99_MAX, "{p99:?}");
    assert!(most < STALLED_KIB_MAX, "{most} KiB, dropped at {dropped:?}");
    // It reads what was written before, and then the end.
    let mut buffer = vec![0; 65_536];
    let rest = async { while matches!(slow.read(&mut buffer).await, Ok(count) if count > 0) {} };
    timeout(FRAME_MAX, rest).await.expect("it ends");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_read_is_not_waited_for_when_access_ends() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let (key, text) = (key_of(&tenant), "x".repeat(60_000));
    let conversation = tenant.open().await;
    let slow = stalled(&server, &key, conversation).await;
    // So many fill the kernel's buffers and the inbox.
    let mut count = 0;
    while server.hub.count() > 0 {
        tenant.say(conversation, &text).await;
        count += 1;
        assert!(count < 300);
    }
    drop(slow);
    let _slow = stalled(&server, &key, conversation).await;
    // Not so many that the inbox runs over, and enough that a write is under way.
    for _ in 0..count - 8 {
        tenant.say(conversation, &text).await;
    }
    assert_eq!(server.hub.count(), 1, "it is there, and behind");
    let id = crate::world::client::tenant_of(&server, &tenant);
    let suspend = json!({"status": "suspended"});
    let begun = Instant::now();
    let path = format!("/v1/tenants/{id}");
    assert_eq!(Client::operator(&server).patch(&path, suspend).await.status, 200);
    crate::world::eventually("it is closed", async || server.hub.count() == 0).await;
    // A write may take 10 s.
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    server.stop().await;
}

/// All on one thread: whatever the server does for the flood, the others wait for.
#[tokio::test]
async fn a_flood_of_pings_delays_nobody() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let key = key_of(&tenant);
    let conversation = tenant.open().await;
    let (mut other, _) = Socket::joined(&server, &key, conversation, None).await;
    other.expect("replayComplete").await;
    let (mut loud, _) = Socket::joined(&server, &key, conversation, None).await;
    loud.expect("replayComplete").await;
    let flooding = async {
        for n in 0..10_000_u32 {
            loud.send(Message::Ping(n.to_be_bytes().to_vec().into())).await;
        }
        // It survived, and is answered.
        loud.say(json!({"frame": "ping", "nonce": 1})).await;
        while loud.next().await["frame"] != "heartbeat" {}
    };
    let talking = async {
        let mut times = Vec::new();
        let mut tick = interval(Duration::from_millis(5));
        for _ in 0..100 {
            tick.tick().await;
            let sent = Instant::now();
            let (seq, event) = tokio::join!(tenant.say(conversation, "hi"), other.expect("event"));
            assert_eq!(event["seq"], seq);
            times.push(sent.elapsed());
        }
        p99(times)
    };
    let ((), p99) = tokio::join!(flooding, talking);
    assert!(p99 < P99_MAX, "{p99:?}");
    server.stop().await;
}
