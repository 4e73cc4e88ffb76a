//! A listener by server-sent events that comes back with the last id, as `EventSource` does.
//! Promises to see a hole or a double on the connection itself: nothing puts its events in order before.
//! Does not send.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay::clock::Clock;
use forebay::event::ConversationId;
use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::noted::id_of;
use super::{Notes, lock};

/// Between two attempts.
const RETRY: Duration = Duration::from_millis(500);

/// Longest silence: more than two heartbeats of the server.
const SILENCE_MAX: Duration = Duration::from_secs(35);

/// Longest wait for the head of an answer.
const HEAD_MAX: Duration = Duration::from_secs(10);

/// Most text of one event that is held.
const TEXT_MAX: usize = 1 << 20;

/// Listens until it is dropped, or nobody holds the notes any more.
pub(crate) async fn listen(
    (door, conversation): (SocketAddr, ConversationId),
    key: String,
    notes: Notes,
    clock: Clock,
) {
    let mut last = Last { id: None, seq: 0 };
    let mut attempts = interval(RETRY);
    attempts.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while Arc::strong_count(&notes) > 1 {
        attempts.tick().await;
        let mut connection = JoinSet::new();
        let opening = open(door, &key, (conversation, last.id.as_deref()), &mut connection);
        let opened = timeout(HEAD_MAX, opening).await;
        if let Ok(Ok(mut body)) = opened {
            read(&mut body, &mut last, &notes, &clock).await;
        }
        lock(&notes).reconnects += 1;
    }
}

/// Where a reader is.
struct Last {
    id: Option<String>,
    seq: u64,
}

async fn read(body: &mut Incoming, last: &mut Last, notes: &Notes, clock: &Clock) {
    let mut text = String::new();
    while let Ok(Some(Ok(frame))) = timeout(SILENCE_MAX, body.frame()).await {
        let data = frame.into_data().unwrap_or_default();
        text.push_str(&String::from_utf8_lossy(&data));
        while let Some((event, rest)) = text.split_once("\n\n") {
            if let Some((id, seq)) = place(event) {
                let named = data_of(event).and_then(id_of);
                lock(notes).note_next(last.seq, (seq, named), clock.now());
                *last = Last { id: Some(id.to_owned()), seq };
            }
            text = rest.to_owned();
        }
        if text.len() > TEXT_MAX {
            return lock(notes).fault("an event without an end".to_owned());
        }
    }
}

async fn open(
    door: SocketAddr,
    key: &str,
    (conversation, last): (ConversationId, Option<&str>),
    connections: &mut JoinSet<()>,
) -> anyhow::Result<Incoming> {
    let stream = TcpStream::connect(door).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    connections.spawn(async {
        // Its end is seen by whoever reads the body.
        drop(connection.await);
    });
    let mut request = Request::get(format!("/v1/conversations/{conversation}/events?after=0"))
        .header("host", door.to_string())
        .header("authorization", format!("Bearer {key}"));
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    let answer = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
    anyhow::ensure!(answer.status() == 200, "{}", answer.status());
    Ok(answer.into_body())
}

/// The id of an event and its seq; `None` for what is no event of the conversation.
fn place(event: &str) -> Option<(&str, u64)> {
    let id = event.lines().find_map(|line| line.strip_prefix("id: "))?;
    let (_, seq) = id.rsplit_once(':')?;
    Some((id, seq.parse().ok()?))
}

/// The JSON of an event.
fn data_of(event: &str) -> Option<&str> {
    event.lines().find_map(|line| line.strip_prefix("data: "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_an_event_is_in_its_id() {
        assert_eq!(place("id: e1:17\nevent: message\ndata: {}"), Some(("e1:17", 17)));
        assert_eq!(place("event: error\ndata: {}"), None);
        assert_eq!(place(": heartbeat"), None);
        assert_eq!(data_of("id: e1:17\nevent: tombstone\ndata: {}"), Some("{}"));
    }
}
