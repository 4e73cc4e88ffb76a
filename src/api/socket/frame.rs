//! Pure: the frames of a socket, read and written, in JSON and MessagePack.
//! Promises that what is not of the connection's format is told.
//! Does not know the state of a connection.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use crate::api::messages::body::EventBody;
use crate::clock::Timestamp;
use crate::event::ConversationId;
use crate::live::frame::{Content, Format, Frame};

/// Deepest nesting of a MessagePack frame: that of data, and what is around it.
const DEPTH_MAX: usize = 48;

/// The subprotocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Json,
    MessagePack,
}

impl Protocol {
    /// In the order of our preference.
    pub(super) const ALL: [Self; 2] = [Self::Json, Self::MessagePack];

    /// Its name in `Sec-WebSocket-Protocol`.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Json => "forebay.v1+json",
            Self::MessagePack => "forebay.v1+msgpack",
        }
    }

    /// The frame as JSON text, which the flows read.
    ///
    /// # Errors
    /// What is wrong with it, in words for the client.
    pub(super) fn decode(self, message: Message) -> Result<Bytes, &'static str> {
        match (self, message) {
            (Self::Json, Message::Text(text)) => Ok(text.into()),
            (Self::MessagePack, Message::Binary(bytes)) => {
                let mut reader = rmp_serde::Deserializer::from_read_ref(&bytes);
                reader.set_max_depth(DEPTH_MAX);
                let value = serde_json::Value::deserialize(&mut reader);
                let value =
                    value.map_err(|_unread| "The frame is not MessagePack of JSON's types.")?;
                serde_json::to_vec(&value)
                    .map(Bytes::from)
                    .map_err(|_unread| "The frame cannot be read.")
            }
            (Self::Json, _) => Err("This connection speaks JSON: send text frames."),
            (Self::MessagePack, _) => {
                Err("This connection speaks MessagePack: send binary frames.")
            }
        }
    }

    /// A frame of the server.
    pub(super) fn encode(self, value: &impl Serialize) -> Message {
        // Serialising cannot fail: frames have only strings, numbers and lists and objects of such.
        self.message(self.pack(serde_json::to_vec(value).unwrap_or_default()))
    }

    /// An event, written once for everybody who gets it in this format.
    pub(super) fn encode_event(self, conversation: ConversationId, frame: &Frame) -> Message {
        let format = match self {
            Self::Json => Format::Json,
            Self::MessagePack => Format::MessagePack,
        };
        let write = |content: &Content| self.pack(event(conversation, content));
        self.message(frame.bytes(format, write))
    }

    fn pack(self, json: Vec<u8>) -> Bytes {
        match self {
            Self::Json => json.into(),
            Self::MessagePack => {
                let value: serde_json::Value = serde_json::from_slice(&json).unwrap_or_default();
                rmp_serde::to_vec_named(&value).unwrap_or_default().into()
            }
        }
    }

    fn message(self, bytes: Bytes) -> Message {
        match self {
            Self::Json => Message::Text(Utf8Bytes::try_from(bytes).unwrap_or_default()),
            Self::MessagePack => Message::Binary(bytes),
        }
    }
}

/// The JSON of an event's frame.
pub(in crate::api) fn event(conversation: ConversationId, content: &Content) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct EventFrame<'a> {
        frame: &'static str,
        conversation_id: ConversationId,
        #[serde(flatten)]
        event: EventBody<'a>,
    }
    let written = match content {
        Content::Tombstone { seq, duplicate_of } => {
            let reason = if duplicate_of.is_some() { "duplicate" } else { "quarantined" };
            serde_json::to_vec(&json!({
                "frame": "tombstone", "conversationId": conversation, "seq": seq, "reason": reason,
            }))
        }
        Content::Recent(entry) => {
            let event = EventBody::of_event(entry.event());
            serde_json::to_vec(&EventFrame { frame: "event", conversation_id: conversation, event })
        }
        Content::Stored(event) => {
            let event = EventBody::of_event(event);
            serde_json::to_vec(&EventFrame { frame: "event", conversation_id: conversation, event })
        }
    };
    written.unwrap_or_default()
}

/// An error on an open connection, and the close that may follow it.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub(super) struct Fault(Box<FaultBody>);

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FaultBody {
    frame: &'static str,
    code: &'static str,
    number: u16,
    message: String,
    retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation_id: Option<ConversationId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<serde_json::Value>,
}

/// Codes of errors with their numbers, as in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    BadRequest = 1000,
    NoSession = 1001,
    InvalidWatermark = 1003,
    InvalidMessage = 1004,
    Unauthorized = 2000,
    TokenExpired = 2001,
    Forbidden = 2002,
    RateLimited = 3000,
    PayloadTooLarge = 3001,
    TooManyInFlight = 3002,
    SlowConsumer = 3004,
    ConversationClosed = 4000,
    ConversationNotFound = 4001,
    Unavailable = 9001,
    ReplayUnavailable = 9002,
}

impl Code {
    const fn name(self) -> &'static str {
        match self {
            Self::BadRequest => "bad_request",
            Self::NoSession => "no_session",
            Self::InvalidWatermark => "invalid_watermark",
            Self::InvalidMessage => "invalid_message",
            Self::Unauthorized => "unauthorized",
            Self::TokenExpired => "token_expired",
            Self::Forbidden => "forbidden",
            Self::RateLimited => "rate_limited",
            Self::PayloadTooLarge => "payload_too_large",
            Self::TooManyInFlight => "too_many_in_flight",
            Self::SlowConsumer => "slow_consumer",
            Self::ConversationClosed => "conversation_closed",
            Self::ConversationNotFound => "conversation_not_found",
            Self::Unavailable => "unavailable",
            Self::ReplayUnavailable => "replay_unavailable",
        }
    }

    const fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::RateLimited
                | Self::TooManyInFlight
                | Self::SlowConsumer
                | Self::TokenExpired
                | Self::Unavailable
                | Self::ReplayUnavailable
        )
    }
}

impl Fault {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self(Box::new(FaultBody {
            frame: "error",
            code: code.name(),
            number: code as u16,
            message: message.into(),
            retryable: code.is_retryable(),
            retry_after_ms: None,
            conversation_id: None,
            client_id: None,
            details: None,
        }))
    }

    pub(super) fn code(&self) -> &'static str {
        self.0.code
    }

    pub(super) fn after(mut self, wait: Duration) -> Self {
        self.0.retry_after_ms = Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        self
    }

    pub(super) fn of(mut self, conversation: ConversationId) -> Self {
        self.0.conversation_id = Some(conversation);
        self
    }

    pub(super) fn for_send(mut self, client_id: Option<String>) -> Self {
        self.0.client_id = client_id;
        self
    }

    pub(super) fn with(mut self, details: serde_json::Value) -> Self {
        self.0.details = Some(details);
        self
    }

    /// The reason of a close: the same in at most 123 bytes (RFC 6455, 5.5).
    pub(super) fn reason(&self) -> String {
        let code = self.0.code;
        match self.0.retry_after_ms {
            Some(wait) => format!(r#"{{"reason":"{code}","retryAfterMs":{wait}}}"#),
            None => format!(r#"{{"reason":"{code}"}}"#),
        }
    }
}

/// When something was stored, as it is written.
pub(super) fn time(at: Timestamp) -> String {
    at.to_string()
}

#[cfg(test)]
mod tests {
    use super::super::incoming::Incoming;
    use super::*;

    #[test]
    fn a_frame_of_the_wrong_kind_is_told_from_one_that_is_broken() {
        let json = Protocol::Json;
        assert!(json.decode(Message::text("{}")).is_ok());
        assert!(json.decode(Message::binary(b"{}".to_vec())).is_err());
        let pack = Protocol::MessagePack;
        let ping = rmp_serde::to_vec_named(&json!({"frame": "ping", "nonce": 7})).unwrap();
        let text = pack.decode(Message::binary(ping.clone())).unwrap();
        let read: Incoming = serde_json::from_slice(&text).unwrap();
        assert_eq!((read.frame.as_str(), read.nonce), ("ping", Some(json!(7))));
        assert!(pack.decode(Message::binary(ping[..ping.len() - 1].to_vec())).is_err());
        assert!(pack.decode(Message::text("{}")).is_err());
    }

    #[test]
    fn a_bomb_of_message_pack_is_refused_and_not_unfolded() {
        // An array that says that it has 2^32-1 members, and one that is nested 10 000 times.
        let wide = vec![0xdd, 0xff, 0xff, 0xff, 0xff];
        let deep = vec![0x91; 10_000];
        for bomb in [wide, deep] {
            assert!(Protocol::MessagePack.decode(Message::binary(bomb)).is_err());
        }
    }

    #[test]
    fn a_reason_fits_into_a_close() {
        let fault = Fault::new(Code::ConversationNotFound, "x").after(Duration::from_mins(10));
        assert!(fault.reason().len() <= 123);
        assert_eq!(fault.reason(), r#"{"reason":"conversation_not_found","retryAfterMs":600000}"#);
    }
}
