//! An event on its way to many connections: written once in each format, then shared.
//! Promises that the second subscriber of an event costs a counter and no copy.
//! Does not know the formats; the doors write them.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::event::{Event, MessageId};
use crate::journal::ring::Entry;

/// What an event weighs beside its content: names of fields, ids, times.
const ENVELOPE_BYTES: usize = 320;

/// In what it can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JSON, as a frame of a socket.
    Json,
    /// MessagePack, as a frame of a socket.
    MessagePack,
    /// JSON, as the data of a server-sent event.
    Data,
}

/// What a frame carries.
#[derive(Debug)]
pub enum Content {
    /// An event that memory has.
    Recent(Entry),
    /// An event from Postgres.
    Stored(Box<Event>),
    /// A seq without content.
    Tombstone {
        /// Its place.
        seq: u64,
        /// Whose repeat it is, if it is one.
        duplicate_of: Option<MessageId>,
    },
}

/// An event with what was written of it. Cheap to clone; all clones share what is written.
#[derive(Clone, Debug)]
pub struct Frame(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    content: Content,
    written: [OnceLock<Bytes>; 3],
}

impl Frame {
    /// An event that nobody has written yet.
    pub fn new(content: Content) -> Self {
        Self(Arc::new(Shared { content, written: Default::default() }))
    }

    /// What it carries.
    pub fn content(&self) -> &Content {
        &self.0.content
    }

    /// Its event, unless it is a tombstone.
    pub fn event(&self) -> Option<&Event> {
        match &self.0.content {
            Content::Recent(entry) => Some(entry.event()),
            Content::Stored(event) => Some(event),
            Content::Tombstone { .. } => None,
        }
    }

    /// Its place in the conversation.
    pub fn seq(&self) -> u64 {
        match &self.0.content {
            Content::Tombstone { seq, .. } => *seq,
            Content::Recent(_) | Content::Stored(_) => self.event().map_or(0, |event| event.seq),
        }
    }

    /// What it weighs while it waits, in bytes; about what it will be when it is written.
    pub fn weight(&self) -> usize {
        ENVELOPE_BYTES + self.event().map_or(0, |event| event.body.size())
    }

    /// The bytes in this format, written by `write` if nobody has asked for them before.
    pub fn bytes(&self, format: Format, write: impl FnOnce(&Content) -> Bytes) -> Bytes {
        let written = &self.0.written[format as usize];
        written.get_or_init(|| write(&self.0.content)).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_is_written_once() {
        let frame = Frame::new(Content::Tombstone { seq: 3, duplicate_of: None });
        assert_eq!((frame.seq(), frame.event()), (3, None));
        let other = frame.clone();
        assert_eq!(frame.bytes(Format::Json, |_| Bytes::from_static(b"once")), "once");
        assert_eq!(other.bytes(Format::Json, |_| unreachable!("it is written")), "once");
        assert_eq!(other.bytes(Format::MessagePack, |_| Bytes::from_static(b"too")), "too");
    }
}
