//! Clients that take their time. They take some of ours, too: run them with `--ignored`.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::world::World;
use crate::world::client::Client;

/// A head is cut off after 5 to 7.5 s, a body after 10 s.
const HEAD_MAX: Duration = Duration::from_secs(9);
const BODY_MAX: Duration = Duration::from_secs(13);

#[tokio::test]
#[ignore = "it waits for the timeouts of heads and bodies, 10 s"]
async fn a_slow_head_and_a_slow_body_time_out() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let before = world.ends(&server).await;
    let head = async {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow: ").await.unwrap();
        drip_until_closed(&mut stream, HEAD_MAX).await
    };
    let silent = async {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let mut nothing = Vec::new();
        let read = stream.read_to_end(&mut nothing);
        timeout(HEAD_MAX, read).await.expect("a connection that says nothing is closed")
    };
    let body = async {
        let mut stream = tenant.begin_send(conversation, 1_000, br#"{"text": ""#).await;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let (head, silent, answer) = tokio::join!(head, silent, timeout(BODY_MAX, body));
    assert!(head < HEAD_MAX, "the head was read for {head:?}");
    silent.unwrap();
    let answer = answer.expect("a body that does not come is given up");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("request_timeout"), "{answer}");
    assert_eq!(world.ends(&server).await, before, "nothing of it is in the log");
    assert_eq!(tenant.say(conversation, "others are served").await, 2);
    server.stop().await;
}

/// Writes a byte from time to time until the other end closes.
async fn drip_until_closed(stream: &mut TcpStream, longest: Duration) -> Duration {
    let began = Instant::now();
    let mut tick = tokio::time::interval(Duration::from_millis(200));
    let mut buffer = [0; 256];
    while began.elapsed() < longest {
        tokio::select! {
            read = stream.read(&mut buffer) => if !matches!(read, Ok(1..)) { break },
            _ = tick.tick() => if stream.write_all(b"a").await.is_err() { break },
        }
    }
    began.elapsed()
}
