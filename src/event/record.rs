//! Pure: the record codec, that is what a partition's log holds, as MessagePack with named fields.
//! Promises that every record written by this or an older version can be read, and that unknown fields are ignored.
//! Does not decide what goes into a record; the sequencer does.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::id::{ChannelId, ConversationId, MessageId, NodeId, RecordId, TenantId};
use super::key::{ClientId, Fingerprint};
use super::limits::{EVENT_OVERHEAD_BYTES, RECORD_BYTES_MAX, RECORD_EVENTS_MAX};
use super::outcome::Outcome;
use crate::clock::Timestamp;

/// The version that this code writes. A reader refuses a higher one instead of guessing at it.
pub const VERSION: u8 = 2;

/// Events that were committed together: one message of a partition's stream.
///
/// The field names in the log are short on purpose: they are repeated in every event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Format version.
    #[serde(rename = "v")]
    pub version: u8,
    /// Names this record; a record that is published again keeps it.
    #[serde(rename = "r")]
    pub id: RecordId,
    /// The node that wrote it.
    #[serde(rename = "n")]
    pub node: NodeId,
    /// The events, in the order of their commit.
    #[serde(rename = "e")]
    pub events: Vec<Event>,
    /// What became of attempts to deliver (since version 2). They have no place in a conversation. With the events
    /// they are 1 to [`RECORD_EVENTS_MAX`].
    #[serde(rename = "o", default, skip_serializing_if = "Vec::is_empty")]
    pub outcomes: Vec<Outcome>,
}

/// One entry of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Whose conversation it is.
    #[serde(rename = "t")]
    pub tenant: TenantId,
    /// The conversation.
    #[serde(rename = "c")]
    pub conversation: ConversationId,
    /// Place within the conversation: 1, 2, 3 … without holes.
    #[serde(rename = "s")]
    pub seq: u64,
    /// Names the event for clients; derived from the idempotency key where there is one.
    #[serde(rename = "i")]
    pub id: MessageId,
    /// When the server accepted it.
    #[serde(rename = "a")]
    pub at: Timestamp,
    /// Fingerprint of the payload, to tell a repeat from a conflict under the same key.
    #[serde(rename = "f")]
    pub fingerprint: Fingerprint,
    /// W3C `traceparent` of the request that sent it.
    #[serde(rename = "w", default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Box<str>>,
    /// What happened.
    #[serde(rename = "b")]
    pub body: Body,
}

/// What an event says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// A client sent something.
    #[serde(rename = "m")]
    Message(Box<Message>),
    /// The conversation was opened; always its seq 1.
    #[serde(rename = "o")]
    Opened(Box<Opening>),
    /// The conversation was closed; it takes no messages until it is reopened.
    #[serde(rename = "x")]
    Closed,
    /// The conversation was reopened.
    #[serde(rename = "y")]
    Reopened,
}

/// What a client sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The client's own type, `message` unless it said otherwise.
    #[serde(rename = "k")]
    pub kind: Box<str>,
    /// The idempotency key, if the client gave one.
    #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<ClientId>,
    /// Who sent it.
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    pub sender: Option<Sender>,
    /// Plain text.
    #[serde(rename = "t", default, skip_serializing_if = "Option::is_none")]
    pub text: Option<Box<str>>,
    /// Structured content.
    #[serde(rename = "d", default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Json>,
    /// The client's notes about it.
    #[serde(rename = "m", default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Json>,
}

/// Who sent a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sender {
    /// The tenant's own name for the user.
    #[serde(rename = "i")]
    pub id: Box<str>,
    /// For example `agent` or `customer`.
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Box<str>>,
    /// A name to show.
    #[serde(rename = "n", default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Box<str>>,
}

/// How a conversation begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opening {
    /// Channels that are linked to it.
    #[serde(rename = "h", default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<ChannelId>,
    /// The client's notes about it.
    #[serde(rename = "m", default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Json>,
}

/// A JSON text that was checked at the door: valid, within the limits, and storable as `jsonb`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Json(Box<str>);

impl Json {
    /// Wraps a text that the caller has checked, or that the log or Postgres gave back.
    pub fn from_checked(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// The JSON text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Json {
    /// Only the size: contents never reach a log line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Json({} bytes)", self.0.len())
    }
}

impl Event {
    /// The client id, for events that have one.
    pub fn client_id(&self) -> Option<&ClientId> {
        match &self.body {
            Body::Message(message) => message.client_id.as_ref(),
            Body::Opened(_) | Body::Closed | Body::Reopened => None,
        }
    }

    /// The type that clients see.
    pub fn kind(&self) -> &str {
        match &self.body {
            Body::Message(message) => &message.kind,
            Body::Opened(_) => "conversation.opened",
            Body::Closed => "conversation.closed",
            Body::Reopened => "conversation.reopened",
        }
    }
}

impl Body {
    /// An upper bound of what an event with this body takes in a record, in bytes.
    pub fn size(&self) -> usize {
        let length = |text: &Option<Box<str>>| text.as_ref().map_or(0, |t| t.len());
        let json = |text: &Option<Json>| text.as_ref().map_or(0, |t| t.as_str().len());
        let content = match self {
            Self::Message(m) => {
                let sender =
                    m.sender.as_ref().map_or(0, |s| s.id.len() + length(&s.role) + length(&s.name));
                let client_id = m.client_id.as_ref().map_or(0, |c| c.as_str().len());
                m.kind.len()
                    + client_id
                    + sender
                    + length(&m.text)
                    + json(&m.data)
                    + json(&m.metadata)
            }
            Self::Opened(o) => o.channels.len() * 18 + json(&o.metadata),
            Self::Closed | Self::Reopened => 0,
        };
        content + EVENT_OVERHEAD_BYTES
    }
}

/// Why bytes are not a record, or a record cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// A newer version wrote it.
    #[error("the record has version {0}, this build reads up to {VERSION}")]
    Version(u8),
    /// It breaks one of the record's bounds.
    #[error(
        "the record has {events} events in {bytes} bytes, beyond 1..={RECORD_EVENTS_MAX} in {RECORD_BYTES_MAX}"
    )]
    Bounds {
        /// How many events it has.
        events: usize,
        /// How long it is.
        bytes: usize,
    },
    /// Not MessagePack, or without a field that version 1 has.
    #[error("the bytes are not a record")]
    Decode(#[source] rmp_serde::decode::Error),
    /// Only possible when memory runs out.
    #[error("the record cannot be encoded")]
    Encode(#[source] rmp_serde::encode::Error),
}

impl Record {
    /// The bytes that go into the log.
    ///
    /// # Errors
    /// [`CodecError::Bounds`] when the record has no event, too many, or too many bytes.
    pub fn encode(&self) -> Result<Vec<u8>, CodecError> {
        let bytes = rmp_serde::to_vec_named(self).map_err(CodecError::Encode)?;
        self.check_bounds(bytes.len())?;
        Ok(bytes)
    }

    /// A record from the bytes of the log.
    ///
    /// # Errors
    /// [`CodecError`] when a newer version wrote it, when it is damaged, or when it breaks a bound.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        if let Some(version) = Self::peek_version(bytes).filter(|version| *version > VERSION) {
            return Err(CodecError::Version(version));
        }
        let record: Self = rmp_serde::from_slice(bytes).map_err(CodecError::Decode)?;
        record.check_bounds(bytes.len())?;
        Ok(record)
    }

    /// Id and node of a record, without decoding it: version 1 writes them right after the version, as 16 bytes each.
    pub fn peek(bytes: &[u8]) -> Option<(RecordId, NodeId)> {
        let rest = bytes.get(4..)?.strip_prefix(&[0xa1, b'r', 0xc4, 16])?;
        let (id, rest) = rest.split_first_chunk::<16>()?;
        let (node, _) = rest.strip_prefix(&[0xa1, b'n', 0xc4, 16])?.split_first_chunk::<16>()?;
        let uuid = uuid::Uuid::from_bytes;
        Some((RecordId::from_uuid(uuid(*id)), NodeId::from_uuid(uuid(*node))))
    }

    /// The version field, which every version writes first: map header, `"v"`, a small integer.
    fn peek_version(bytes: &[u8]) -> Option<u8> {
        match bytes {
            [map, 0xa1, b'v', version, ..] if map & 0xf0 == 0x80 && *version < 0x80 => {
                Some(*version)
            }
            _ => None,
        }
    }

    /// How many entries it has: events and outcomes.
    pub fn entries(&self) -> usize {
        self.events.len() + self.outcomes.len()
    }

    fn check_bounds(&self, bytes: usize) -> Result<(), CodecError> {
        let events = self.entries();
        if (1..=RECORD_EVENTS_MAX).contains(&events) && bytes <= RECORD_BYTES_MAX {
            Ok(())
        } else {
            Err(CodecError::Bounds { events, bytes })
        }
    }
}

#[cfg(test)]
mod tests;
