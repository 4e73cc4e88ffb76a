//! A bare client of a socket: as little of one as can be, so that ten thousand fit beside the server.
//! Promises that what is not expected is an error and never waited for without end.
//! Does not reconnect and keeps nothing.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message, Utf8Bytes};

use super::Target;
use crate::bench::Error;
use crate::event::ConversationId;
use crate::load::connection::address_of;

/// Longest wait for a frame; on a machine that is busy with ten thousand others.
const FRAME_MAX: Duration = Duration::from_secs(30);

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 4 * 1024;

/// Connections that are opened at the same time, outside of a storm.
const OPENERS: usize = 64;

/// One connection that has joined one conversation.
pub(super) struct Line {
    socket: WebSocketStream<TcpStream>,
    conversation: ConversationId,
}

/// Where and as whom.
#[derive(Clone, Debug)]
pub(super) struct Place {
    address: SocketAddr,
    bearer: String,
}

impl Place {
    pub(super) async fn of(target: &Target) -> Result<Self, Error> {
        let bearer = format!("Bearer {}", target.api_key);
        Ok(Self { address: address_of(&target.url).await?, bearer })
    }

    /// Connects, joins, and reads up to the end of the replay; gives how many events it had.
    pub(super) async fn join(
        &self,
        conversation: ConversationId,
        watermark: Option<u64>,
    ) -> Result<(Line, u64), Error> {
        let doing = "joining a conversation";
        let stream = TcpStream::connect(self.address).await.map_err(crate::bench::io(doing))?;
        stream.set_nodelay(true).map_err(crate::bench::io(doing))?;
        let request = format!("ws://{}/v1/socket", self.address).into_client_request();
        let mut request = request.map_err(broken(doing))?;
        let bearer = self.bearer.parse().map_err(|_bad| Error::Silent { doing })?;
        request.headers_mut().insert("authorization", bearer);
        let config = WebSocketConfig::default()
            .read_buffer_size(BUFFER_BYTES)
            .write_buffer_size(BUFFER_BYTES);
        let opening = tokio_tungstenite::client_async_with_config(request, stream, Some(config));
        let opened =
            timeout(FRAME_MAX, opening).await.map_err(|_elapsed| Error::Silent { doing })?;
        let (socket, _response) = opened.map_err(broken(doing))?;
        let mut line = Line { socket, conversation };
        let hello = json!({
            "frame": "hello", "conversationId": conversation, "watermark": watermark,
            "capabilities": ["gaps"],
        });
        line.say(hello.to_string()).await?;
        let mut events = 0;
        loop {
            let text = line.next().await?;
            match Seen::of(&text) {
                Seen::Event { .. } => events += 1,
                Seen::Other if text.contains(r#""replayComplete""#) => return Ok((line, events)),
                Seen::Other if text.contains(r#""error""#) => {
                    return Err(Error::Unexpected { doing, frame: text.to_string() });
                }
                Seen::Other => {}
            }
        }
    }

    /// Opens one connection for each entry, in their order, a few at a time.
    pub(super) async fn join_all(&self, wanted: &[ConversationId]) -> Result<Vec<Line>, Error> {
        let mut openers = JoinSet::new();
        for opener in 0..OPENERS {
            let mine: Vec<_> =
                wanted.iter().copied().enumerate().skip(opener).step_by(OPENERS).collect();
            let place = self.clone();
            openers.spawn(async move {
                let mut lines = Vec::with_capacity(mine.len());
                for (number, conversation) in mine {
                    lines.push((number, place.join(conversation, None).await?.0));
                }
                Ok::<_, Error>(lines)
            });
        }
        let mut lines = Vec::with_capacity(wanted.len());
        while let Some(opened) = openers.join_next().await {
            lines.extend(opened.map_err(|_panic| Error::Panicked)??);
        }
        lines.sort_unstable_by_key(|(number, _)| *number);
        Ok(lines.into_iter().map(|(_, line)| line).collect())
    }
}

impl Line {
    pub(super) async fn say(&mut self, frame: String) -> Result<(), Error> {
        self.socket.send(Message::text(frame)).await.map_err(broken("writing to a socket"))
    }

    /// Sends a message.
    pub(super) async fn send(&mut self, key: &str, text: &str) -> Result<(), Error> {
        let conversation = self.conversation;
        self.say(format!(
            r#"{{"frame":"message","conversationId":"{conversation}","clientId":"{key}","text":"{text}"}}"#
        ))
        .await
    }

    /// The next frame. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Utf8Bytes, Error> {
        let doing = "reading from a socket";
        loop {
            let read = timeout(FRAME_MAX, self.socket.next()).await;
            match read.map_err(|_elapsed| Error::Silent { doing })? {
                Some(Ok(Message::Text(text))) => return Ok(text),
                Some(Ok(Message::Close(close))) => {
                    return Err(Error::Unexpected { doing, frame: format!("{close:?}") });
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(broken(doing)(error)),
                None => return Err(Error::Silent { doing }),
            }
        }
    }
}

/// A frame, as far as it is looked at: the load shares the machine, so that it is not parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// An event; the number that its text is, if it is one.
    Event {
        stamp: Option<u64>,
    },
    Other,
}

impl Seen {
    pub(super) fn of(text: &str) -> Self {
        if !text.starts_with(r#"{"frame":"event""#) {
            return Self::Other;
        }
        Self::Event { stamp: number_after(text, r#""text":""#) }
    }
}

/// The number of the key that an ack answers.
pub(super) fn acked(text: &str) -> Option<u64> {
    text.contains(r#""frame":"ack""#).then(|| number_after(text, r#""clientId":"bench-"#))?
}

fn number_after(text: &str, mark: &str) -> Option<u64> {
    let (_, rest) = text.split_once(mark)?;
    let end = rest.find(|c: char| !c.is_ascii_digit())?;
    rest.get(..end)?.parse().ok()
}

fn broken(doing: &'static str) -> impl FnOnce(tungstenite::Error) -> Error {
    move |source| Error::Socket { doing, source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_of_a_frame_is_found_without_parsing_it() {
        let event = r#"{"frame":"event","conversationId":"cnv_1","seq":3,"text":"1234","at":"x"}"#;
        assert_eq!(Seen::of(event), Seen::Event { stamp: Some(1_234) });
        let opened = r#"{"frame":"event","seq":1,"type":"conversation.created"}"#;
        assert_eq!(Seen::of(opened), Seen::Event { stamp: None });
        assert_eq!(Seen::of(r#"{"frame":"heartbeat"}"#), Seen::Other);
        let ack = r#"{"at":"x","clientId":"bench-77-2","frame":"ack","seq":9}"#;
        assert_eq!((acked(ack), acked(event)), (Some(77), None));
    }
}
