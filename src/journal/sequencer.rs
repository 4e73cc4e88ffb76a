//! Pure: stages records from queued drafts: assigns `seq`, answers duplicates, refuses drafts for closed conversations.
//! Promises one verdict a draft, and that nothing is staged again before the fold has reached the conflicting position.
//! Does not publish; the writer does, and tells what came of it.

use crate::clock::Timestamp;
use crate::event::{Body, ConversationId, Fingerprint, MessageId, TenantId};

/// A checked wish to append one event.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Who wishes it.
    pub tenant: TenantId,
    /// Where it is to go.
    pub conversation: ConversationId,
    /// Id of the event; derived from the key when there is one.
    pub id: MessageId,
    /// When the server accepted it.
    pub at: Timestamp,
    /// Fingerprint of the payload.
    pub fingerprint: Fingerprint,
    /// W3C `traceparent` of the request.
    pub trace: Option<Box<str>>,
    /// What it says.
    pub body: Body,
    /// What it takes the conversation to be.
    pub intent: Intent,
}

/// What a draft takes its conversation to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// A message for an open conversation.
    Send,
    /// Opens a conversation whose id the server has just made: no lookup is needed.
    OpenNew,
    /// Opens a conversation with an id of the client's: it may exist.
    OpenNamed,
    /// Closes an open conversation.
    Close,
    /// Reopens a closed one.
    Reopen,
}

/// Where and when an event was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Its id.
    pub id: MessageId,
    /// Its place in the conversation.
    pub seq: u64,
    /// When it was accepted.
    pub at: Timestamp,
    /// The conversation's head when the receipt was given: everything up to it is durable.
    pub watermark: u64,
}

/// What became of a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is stored durably.
    Stored(Receipt),
    /// The same key with the same payload was stored before; the first receipt. Opening, closing or reopening
    /// what already is so answers this too.
    Duplicate(Receipt),
    /// The same key was stored with another payload.
    KeyConflict,
    /// The conversation is closed.
    Closed,
    /// There is no such conversation of this tenant.
    NotFound,
    /// Memory does not know the conversation or key and the seed is missing or too old; nothing was stored.
    Cold,
}
