//! Pure: the last `seq` and status of conversations, folded from the log.
//! Promises that a head never goes back, and that it is known what is not known: the floor.
//! Does not look anything up; a cold head comes in as a [`Seed`].

use crate::clock::Timestamp;
use crate::event::{MessageId, TenantId};

/// Whether a conversation takes messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It takes messages.
    Open,
    /// It takes none until it is reopened.
    Closed,
}

/// A conversation's last `seq` and status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Whose conversation it is.
    pub tenant: TenantId,
    /// Its last seq, at least 1.
    pub seq: u64,
    /// Whether it takes messages.
    pub status: Status,
    /// When it was opened.
    pub opened_at: Timestamp,
    /// Stream sequence of the record with its last event.
    pub position: u64,
}

/// What Postgres said about a conversation or key that is not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed {
    /// The partition's checkpoint in the snapshot in which the rest was read.
    pub checkpoint: u64,
    /// The conversation's head, if Postgres has the conversation.
    pub head: Option<Head>,
    /// The message that already has the draft's id, if there is one: its receipt and fingerprint.
    pub stored: Option<Stored>,
}

/// A message that Postgres already has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its id.
    pub id: MessageId,
    /// Its seq.
    pub seq: u64,
    /// When it was accepted.
    pub at: Timestamp,
    /// Fingerprint of its payload.
    pub fingerprint: crate::event::Fingerprint,
}
