//! Pure: the last `seq` and status of conversations, folded from the log.
//! Promises that a head never goes back, and that it is known what is not known: the floor.
//! Does not look anything up; a cold head comes in as a [`Seed`].

use std::collections::HashMap;

use crate::clock::Timestamp;
use crate::event::{Body, ConversationId, Event, Fingerprint, MessageId, TenantId};

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
    /// When it was opened; unknown where the fold began later and nobody looked it up.
    pub opened_at: Option<Timestamp>,
    /// Stream sequence of the record with its last event.
    pub position: u64,
}

/// What Postgres said about a conversation or key that is not in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seed {
    /// The partition's checkpoint in the snapshot in which the rest was read.
    pub checkpoint: u64,
    /// The conversation's head, if Postgres has the conversation.
    pub head: Option<Head>,
    /// Which of the drafts' ids Postgres has messages of already.
    pub stored: Vec<Stored>,
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
    pub fingerprint: Fingerprint,
}

impl Head {
    /// The head after one more event; `None` is the head of a conversation that is not there yet.
    pub fn after(before: Option<&Self>, event: &Event, position: u64) -> Self {
        let status = match (&event.body, before) {
            (Body::Closed, _) => Status::Closed,
            (Body::Opened(_) | Body::Reopened, _) | (Body::Message(_), None) => Status::Open,
            (Body::Message(_), Some(head)) => head.status,
        };
        let opened_at = match (&event.body, before) {
            (Body::Opened(_), _) => Some(event.at),
            (_, before) => before.and_then(|head| head.opened_at),
        };
        Self { tenant: event.tenant, seq: event.seq, status, opened_at, position }
    }
}

/// The heads that a partition's fold has in memory.
#[derive(Debug, Default)]
pub struct Heads {
    known: HashMap<ConversationId, Head>,
    /// A conversation that is not in memory has its last event at or below this position.
    floor: u64,
    /// No sweep below this many: while Postgres is away nothing may be forgotten, and looking for it each time would
    /// cost more than the heads.
    sweep_at: usize,
}

/// By which share the heads may outgrow their bound before the oldest are forgotten in one sweep; makes the
/// sweep's cost a constant per event.
const SLACK_SHARE: usize = 8;

impl Heads {
    /// Heads of a fold that begins after `floor`.
    pub fn starting_after(floor: u64) -> Self {
        Self { known: HashMap::new(), floor, sweep_at: 0 }
    }

    /// Heads that another fold knew, with its floor.
    pub fn from_snapshot(known: HashMap<ConversationId, Head>, floor: u64) -> Self {
        Self { known, floor, sweep_at: 0 }
    }

    /// The head, if it is in memory.
    pub fn get(&self, conversation: ConversationId) -> Option<&Head> {
        self.known.get(&conversation)
    }

    /// A conversation that is not in memory has its last event at or below this position.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// How many are in memory.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether none is in memory.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Takes an event in. One that is not beyond the known head changes nothing: the fold may begin before a snapshot.
    pub fn apply(&mut self, event: &Event, position: u64) {
        let before = self.known.get(&event.conversation);
        if before.is_none_or(|head| head.seq < event.seq) {
            let head = Head::after(before, event, position);
            self.known.insert(event.conversation, head);
        }
    }

    /// Forgets the longest unused heads when there are more than `max` and an eighth, down to `max`, as far as
    /// Postgres has them: none above `checkpoint` is forgotten, so that they outgrow the bound while Postgres is away.
    pub fn trim(&mut self, max: usize, checkpoint: u64) {
        let slack = max / SLACK_SHARE;
        if self.known.len() <= self.sweep_at.max(max + slack) {
            return;
        }
        let mut positions: Vec<u64> = self.known.values().map(|head| head.position).collect();
        let surplus = positions.len() - max;
        let (_, nth, _) = positions.select_nth_unstable(surplus - 1);
        let threshold = (*nth).min(checkpoint);
        self.known.retain(|_, head| head.position > threshold);
        self.floor = self.floor.max(threshold);
        self.sweep_at = self.known.len() + slack;
    }

    /// A copy of all of them, for a snapshot.
    pub fn copy(&self) -> Vec<(ConversationId, Head)> {
        self.known.iter().map(|(conversation, head)| (*conversation, *head)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(conversation: u8, seq: u64, body: Body) -> Event {
        Event {
            tenant: TenantId::derive([1; 16]),
            conversation: ConversationId::derive([conversation; 16]),
            seq,
            id: MessageId::derive([seq.to_le_bytes()[0]; 16]),
            at: Timestamp::from_micros(i64::try_from(seq).unwrap()).unwrap(),
            fingerprint: Fingerprint::default(),
            trace: None,
            body,
        }
    }

    fn opened() -> Body {
        Body::Opened(Box::default())
    }

    #[test]
    fn a_head_follows_its_conversation_and_never_goes_back() {
        let mut heads = Heads::starting_after(0);
        let id = ConversationId::derive([1; 16]);
        let steps = [
            (1, opened(), 1, Status::Open),
            (2, Body::Closed, 2, Status::Closed),
            (3, Body::Reopened, 3, Status::Open),
            (2, Body::Closed, 3, Status::Open),
            (4, Body::Message(Box::default()), 4, Status::Open),
        ];
        for (seq, body, head_seq, status) in steps {
            heads.apply(&event(1, seq, body), 10 + seq);
            let head = heads.get(id).unwrap();
            assert_eq!(
                (head.seq, head.status, head.opened_at.map(Timestamp::micros)),
                (head_seq, status, Some(1))
            );
        }
    }

    #[test]
    fn trimming_forgets_the_oldest_and_raises_the_floor() {
        let mut heads = Heads::starting_after(3);
        for n in 0..=20 {
            heads.apply(&event(n, 1, opened()), 100 + u64::from(n));
        }
        heads.trim(100, 1_000);
        assert_eq!((heads.len(), heads.floor()), (21, 3));
        heads.trim(16, 1_000);
        assert_eq!((heads.len(), heads.floor()), (16, 104));
        assert!(heads.get(ConversationId::derive([4; 16])).is_none());
        assert!(heads.get(ConversationId::derive([5; 16])).is_some());
    }

    #[test]
    fn nothing_is_forgotten_that_postgres_does_not_have() {
        let mut heads = Heads::starting_after(0);
        for n in 0..=20 {
            heads.apply(&event(n, 1, opened()), 100 + u64::from(n));
        }
        heads.trim(4, 102);
        assert_eq!((heads.len(), heads.floor()), (18, 102));
    }
}
