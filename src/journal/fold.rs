//! Pure: what a node knows of one partition, folded record by record: heads, recent keys, newest records.
//! Promises that positions are folded once, in order and without a hole.
//! Does not read the log; the follower and the writer bring the records.

pub mod heads;
pub mod keys;
pub mod ring;

use std::sync::Arc;

use crate::clock::Timestamp;
use heads::{Head, Heads};
use keys::{Keys, Memory};
use ring::{Folded, Ring};

/// How much of a partition is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// How long and how many idempotency keys.
    pub keys: Memory,
    /// How many heads.
    pub heads_max: usize,
    /// How many bytes of encoded records.
    pub ring_bytes_max: usize,
}

/// Where a fold begins.
#[derive(Debug)]
pub struct Start {
    /// The first record that will be folded lies after this position.
    pub position: u64,
    /// When the first record was stored, or now for an empty log.
    pub since: Timestamp,
    /// Heads from a snapshot, with the floor that they had.
    pub heads: Heads,
}

/// What a node knows of one partition.
#[derive(Debug)]
pub struct Fold {
    position: u64,
    /// Heads of conversations.
    pub heads: Heads,
    /// Recent idempotency keys.
    pub keys: Keys,
    /// Newest records.
    pub ring: Ring,
    bounds: Bounds,
    /// The partition's checkpoint, as far as this node has heard.
    checkpoint: u64,
}

/// How a record fits to what is folded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Fit {
    /// It was the next one and is folded.
    Folded,
    /// It was folded before.
    Known,
    /// Records between are missing; nothing was folded.
    Ahead,
}

impl Fold {
    /// A fold that knows nothing but where it begins.
    pub fn new(start: Start, bounds: Bounds) -> Self {
        Self {
            position: start.position,
            heads: start.heads,
            keys: Keys::starting_after(start.position, start.since),
            ring: Ring::starting_after(start.position, bounds.ring_bytes_max),
            bounds,
            checkpoint: 0,
        }
    }

    /// The last position that was folded.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// How a position fits, before the record is decoded.
    pub fn fit(&self, position: u64) -> Fit {
        match position {
            known if known <= self.position => Fit::Known,
            next if next == self.position + 1 => Fit::Folded,
            _ => Fit::Ahead,
        }
    }

    /// Folds a record if it is the next one.
    pub fn apply(&mut self, folded: &Arc<Folded>, now: Timestamp) -> Fit {
        let fit = self.fit(folded.position);
        if fit == Fit::Folded {
            self.position = folded.position;
            for event in &folded.record.events {
                self.heads.apply(event, folded.position);
            }
            self.keys.apply(&folded.record.events, folded.position);
            self.keys.trim(self.bounds.keys, now);
            self.heads.trim(self.bounds.heads_max, self.checkpoint);
            self.ring.push(folded);
        }
        fit
    }

    /// Passes a position that holds no readable record, if it is the next one.
    pub fn skip(&mut self, position: u64) -> Fit {
        let fit = self.fit(position);
        if fit == Fit::Folded {
            self.position = position;
        }
        fit
    }

    /// The partition's checkpoint moved; it never moves back.
    pub fn note_checkpoint(&mut self, position: u64) {
        self.checkpoint = self.checkpoint.max(position);
    }

    /// The partition's checkpoint, as far as this node has heard.
    pub fn checkpoint(&self) -> u64 {
        self.checkpoint
    }

    /// The head of a conversation, if it is in memory.
    pub fn head(&self, conversation: crate::event::ConversationId) -> Option<Head> {
        self.heads.get(conversation).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::event::{
        Body, ConversationId, Event, Fingerprint, MessageId, NodeId, Record, RecordId, TenantId,
    };

    fn folded(position: u64) -> Arc<Folded> {
        let event = Event {
            tenant: TenantId::derive([1; 16]),
            conversation: ConversationId::derive([1; 16]),
            seq: position,
            id: MessageId::derive([2; 16]),
            at: Timestamp::default(),
            fingerprint: Fingerprint::default(),
            trace: None,
            body: Body::Reopened,
        };
        let record = Record {
            version: 1,
            id: RecordId::derive([1; 16]),
            node: NodeId::derive([1; 16]),
            events: vec![event],
            outcomes: Vec::new(),
        };
        Arc::new(Folded { position, bytes: 10, record })
    }

    #[test]
    fn positions_are_folded_once_and_in_order() {
        let keys = Memory { window: Duration::from_secs(1), keys_max: 10 };
        let bounds = Bounds { keys, heads_max: 10, ring_bytes_max: 100 };
        let start =
            Start { position: 4, since: Timestamp::default(), heads: Heads::starting_after(4) };
        let mut fold = Fold::new(start, bounds);
        let now = Timestamp::default();
        let fits = [4, 6, 5, 5, 6].map(|position| fold.apply(&folded(position), now));
        assert_eq!(fits, [Fit::Known, Fit::Ahead, Fit::Folded, Fit::Known, Fit::Folded]);
        assert_eq!((fold.skip(8), fold.skip(7), fold.position()), (Fit::Ahead, Fit::Folded, 7));
        assert_eq!(fold.head(ConversationId::derive([1; 16])).map(|head| head.seq), Some(6));
    }
}
