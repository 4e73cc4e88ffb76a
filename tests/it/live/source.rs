//! A client of server-sent events that comes back with the last id, as `EventSource` does; it watches the order.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{interval, timeout};

use super::FRAME_MAX;
use super::model::{Course, Followed};

/// Between two attempts.
const RETRY: Duration = Duration::from_millis(100);

/// Reads from this id to the goal; gives what came, and how often a stream ended.
pub async fn follow_stream(
    (address, path): (SocketAddr, String),
    key: String,
    epoch: String,
    watermark: u64,
    mut course: watch::Receiver<Course>,
) -> Followed {
    let mut last = watermark;
    let mut followed = Followed { first: watermark + 1, ..Followed::default() };
    let mut pause = interval(RETRY);
    loop {
        pause.tick().await;
        let Some(mut body) = open(address, &key, &path, &format!("{epoch}:{last}")).await else {
            continue;
        };
        let mut text = String::new();
        loop {
            if course.borrow().goal.is_some_and(|goal| last >= goal) {
                return followed;
            }
            let frame = tokio::select! {
                Ok(()) = course.changed() => continue,
                frame = timeout(FRAME_MAX, body.frame()) => frame.expect("something in time"),
            };
            let Some(Ok(frame)) = frame else { break };
            let data = frame.into_data().unwrap_or_default();
            text.push_str(std::str::from_utf8(&data).unwrap());
            while let Some((message, rest)) = text.split_once("\n\n") {
                if let Some((seq, id)) = event_of(message, &epoch) {
                    assert_eq!(seq, last + 1, "{message}");
                    last = seq;
                    followed.got.insert(seq, id);
                } else if message.contains("event: error") {
                    assert!(message.contains("retry: "), "{message}");
                    followed.gaps += 1;
                }
                text = rest.to_owned();
            }
        }
        followed.closes.push(0);
    }
}

async fn open(address: SocketAddr, key: &str, path: &str, id: &str) -> Option<Incoming> {
    let stream = TcpStream::connect(address).await.ok()?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
    tokio::spawn(connection);
    let request = Request::get(path)
        .header("host", "x")
        .header("authorization", format!("Bearer {key}"))
        .header("last-event-id", id);
    let answer = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.ok()?;
    assert_eq!(answer.status(), 200);
    Some(answer.into_body())
}

/// The seq and the message's id; `None` for what is no event.
fn event_of(message: &str, epoch: &str) -> Option<(u64, String)> {
    let lines: BTreeMap<&str, &str> =
        message.lines().filter_map(|line| line.split_once(": ")).collect();
    let (of, seq) = lines.get("id")?.rsplit_once(':')?;
    assert_eq!(of, epoch);
    let data: serde_json::Value = serde_json::from_str(lines["data"]).unwrap();
    let id = data["id"].as_str().unwrap_or("tombstone");
    assert_eq!(data["seq"].as_u64(), seq.parse().ok());
    Some((data["seq"].as_u64()?, id.to_owned()))
}
