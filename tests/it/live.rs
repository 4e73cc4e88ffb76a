//! Sockets and streams against a real server: what they are told, in which order, and what ends them.

mod bad;
mod client;
mod early;
mod flood;
mod limits;
mod model;
mod nodes;
mod outage;
mod protocol;
mod socket;
mod source;
mod stream;

use std::net::SocketAddr;
use std::time::Duration;

use forebay::cli::serve::Server;
use forebay::event::ConversationId;
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

/// Nothing on a socket takes longer on a busy machine.
const FRAME_MAX: Duration = Duration::from_secs(20);

/// A client's socket.
pub struct Socket {
    stream: WebSocketStream<TcpStream>,
    is_packed: bool,
}

impl Socket {
    /// Opens a socket with this key or token.
    pub async fn open(server: &Server, bearer: &str, protocol: &str) -> Self {
        Self::at(server.address, bearer, protocol).await.expect("somebody listens")
    }

    /// The same for a server of another process, which may be gone.
    pub async fn at(address: SocketAddr, bearer: &str, protocol: &str) -> Option<Self> {
        let stream = TcpStream::connect(address).await.ok()?;
        let mut request = format!("ws://{address}/v1/socket").into_client_request().unwrap();
        let headers = request.headers_mut();
        headers.insert("sec-websocket-protocol", protocol.parse().unwrap());
        if !bearer.is_empty() {
            headers.insert("authorization", format!("Bearer {bearer}").parse().unwrap());
        }
        let opening = tokio_tungstenite::client_async(request, stream);
        let (stream, response) = timeout(FRAME_MAX, opening).await.unwrap().ok()?;
        assert_eq!(response.headers()["sec-websocket-protocol"], protocol);
        Some(Self { stream, is_packed: protocol.ends_with("msgpack") })
    }

    /// The usual one: JSON, joined, with `gaps`; gives what `welcome` says.
    pub async fn joined(
        server: &Server,
        bearer: &str,
        conversation: ConversationId,
        watermark: Option<u64>,
    ) -> (Self, Value) {
        let mut socket = Self::open(server, bearer, "forebay.v1+json").await;
        socket
            .say(json!({
                "frame": "hello", "conversationId": conversation, "watermark": watermark,
                "capabilities": ["gaps"],
            }))
            .await;
        let welcome = socket.expect("welcome").await;
        (socket, welcome)
    }

    pub async fn say(&mut self, frame: Value) {
        assert!(self.try_say(frame).await, "the socket is closed");
    }

    /// Says it to who may be gone.
    pub async fn try_say(&mut self, frame: Value) -> bool {
        let message = if self.is_packed {
            Message::binary(rmp_serde::to_vec_named(&frame).unwrap())
        } else {
            Message::text(frame.to_string())
        };
        self.stream.send(message).await.is_ok()
    }

    /// Says all of it at once, so that the server can read the last before it has dealt with the first.
    pub async fn say_at_once(&mut self, frames: impl IntoIterator<Item = Value>) {
        for frame in frames {
            self.stream.feed(Message::text(frame.to_string())).await.unwrap();
        }
        self.stream.flush().await.unwrap();
    }

    pub async fn send(&mut self, message: Message) {
        self.stream.send(message).await.unwrap();
    }

    /// The next frame; a close is a frame of the name `close`.
    pub async fn next(&mut self) -> Value {
        loop {
            let read = timeout(FRAME_MAX, self.stream.next()).await.expect("a frame in time");
            match read {
                Some(Ok(Message::Text(text))) => return serde_json::from_str(&text).unwrap(),
                Some(Ok(Message::Binary(bytes))) => return rmp_serde::from_slice(&bytes).unwrap(),
                Some(Ok(Message::Close(Some(close)))) => {
                    let reason: Value = serde_json::from_str(&close.reason)
                        .unwrap_or_else(|error| panic!("{error}: {close:?}"));
                    assert!(close.reason.len() <= 123);
                    return json!({
                        "frame": "close", "code": u16::from(close.code), "reason": reason,
                    });
                }
                Some(Ok(Message::Close(None)) | Err(_)) | None => {
                    return json!({ "frame": "close", "code": 1006 });
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
            }
        }
    }

    /// The next frame but those of one name, which may come before it or not.
    #[track_caller]
    pub fn expect_behind<'a>(
        &'a mut self,
        passed: &'a str,
        name: &'a str,
    ) -> impl Future<Output = Value> + 'a {
        let at = std::panic::Location::caller();
        async move {
            let mut frame = self.next().await;
            while frame["frame"] == passed {
                frame = self.next().await;
            }
            assert_eq!(frame["frame"], name, "{at}: {frame}");
            frame
        }
    }

    /// The next frame, which has this name.
    #[track_caller]
    pub fn expect<'a>(&'a mut self, name: &'a str) -> impl Future<Output = Value> + 'a {
        let at = std::panic::Location::caller();
        async move {
            let frame = self.next().await;
            assert_eq!(frame["frame"], name, "{at}: {frame}");
            frame
        }
    }

    /// Events up to and with this seq; whatever comes between must be an event.
    pub async fn events_to(&mut self, seq: u64) -> Vec<u64> {
        let mut seqs = Vec::new();
        while seqs.last() != Some(&seq) {
            seqs.push(self.expect("event").await["seq"].as_u64().unwrap());
        }
        seqs
    }
}

/// The key of a client.
pub fn key_of(client: &crate::world::client::Client) -> String {
    client.bearer().to_owned()
}
