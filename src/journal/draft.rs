//! What can be asked of the journal and what it answers.
//! Promises that a verdict says what is durable: `Stored` and `Duplicate` never speak of anything else.
//! Does not decide; the sequencer does.

use std::time::Instant;

use super::heads::Seed;
use crate::clock::Timestamp;
use crate::event;
use crate::event::{Body, ConversationId, Event, Fingerprint, MessageId, TenantId};

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
    /// When the key was first used, as far as the client tells. A time before the keys in memory asks for a seed.
    pub key_time: Option<Timestamp>,
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

impl Draft {
    /// The event that this draft becomes at its place.
    pub(super) fn into_event(self, seq: u64) -> Event {
        Event {
            tenant: self.tenant,
            conversation: self.conversation,
            seq,
            id: self.id,
            at: self.at,
            fingerprint: self.fingerprint,
            trace: self.trace,
            body: self.body,
        }
    }

    /// The draft that an event was, for an event that did not get into the log.
    pub(super) fn from_event(event: Event, intent: Intent, key_time: Option<Timestamp>) -> Self {
        Self {
            tenant: event.tenant,
            conversation: event.conversation,
            id: event.id,
            at: event.at,
            fingerprint: event.fingerprint,
            trace: event.trace,
            body: event.body,
            intent,
            key_time,
        }
    }

    /// Whether it has an idempotency key.
    pub(super) fn is_keyed(&self) -> bool {
        match &self.body {
            Body::Message(message) => message.client_id.is_some(),
            Body::Opened(_) | Body::Closed | Body::Reopened => false,
        }
    }
}

/// Drafts of one conversation that are to stand next to each other, and who waits for their verdicts.
#[derive(Debug)]
pub struct Request<T> {
    /// Who waits.
    pub ticket: T,
    /// The drafts; together they fit one record.
    pub drafts: Vec<Draft>,
    /// What became of attempts to deliver; a request has these or drafts. They are stored as they are.
    pub outcomes: Vec<event::Outcome>,
    /// What Postgres said, if memory did not know enough.
    pub seed: Option<Seed>,
    /// When nobody waits any more.
    pub deadline: Instant,
    /// Whether the fold was brought level with the log since the request was made. Only then may it be refused for
    /// what the fold does not have: another node may have opened or reopened the conversation a moment ago.
    pub is_level: bool,
    /// How soon it is to be in the log.
    pub haste: Haste,
}

/// How soon a request is to become a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Haste {
    /// With the next record, which is made for it.
    Now,
    /// With the next record, and at the latest a moment after the last: nobody waits for it.
    Soon,
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
    /// The same key with the same payload was stored before: the first receipt. Opening, closing or reopening what
    /// already is so answers this too, with the head.
    Duplicate(Receipt),
    /// The same key was stored with another payload.
    KeyConflict,
    /// The conversation is closed.
    Closed,
    /// There is no such conversation of this tenant.
    NotFound,
}

/// Why a request has no verdicts.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// Its deadline passed first. What was on its way may be stored or not.
    #[error("the deadline passed before the log acknowledged")]
    Late,
    /// Memory does not know the conversation or a key, and the seed is missing or too old. Nothing was stored; the
    /// drafts come back.
    #[error("memory does not know the conversation or a key")]
    Cold(Vec<Draft>),
    /// It would be refused for what the fold says, and the fold may lag behind the log. Nothing was stored; the drafts
    /// come back, to be asked again once the fold is level.
    #[error("the fold may lag behind the log")]
    Doubtful(Vec<Draft>),
    /// JetStream refused the record, for example because the disk is full; nothing of it is in the log.
    #[error("the log refused the record: {0}")]
    Refused(String),
}

/// The answer to one request: one verdict a draft, in their order; none for outcomes.
#[derive(Debug)]
pub struct Answer<T> {
    /// Who waits.
    pub ticket: T,
    /// The verdicts.
    pub verdicts: Result<Vec<Verdict>, Unanswered>,
}
