//! Pure: the idempotency keys of the newest part of a partition, with what their first use was answered.
//! Promises that every key used at or after `since` is known, as long as the fold began before it.
//! Does not know older keys; Postgres does, and says so in a seed.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::clock::Timestamp;
use crate::event::{Event, Fingerprint, MessageId};

/// What the first use of a key was answered. The key itself is the message id derived from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Place in the conversation.
    pub seq: u64,
    /// When it was accepted.
    pub at: Timestamp,
    /// Fingerprint of the payload.
    pub fingerprint: Fingerprint,
}

/// How long and how many keys are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// How long a key is remembered.
    pub window: Duration,
    /// Most keys a partition remembers; at the bound the oldest are forgotten before their time.
    pub keys_max: usize,
}

/// The keys that a partition's fold has in memory.
#[derive(Debug)]
pub struct Keys {
    used: HashMap<MessageId, Used>,
    /// The keys in the order in which the log has them.
    order: VecDeque<MessageId>,
    /// For each record, its position and how many of `order` it put there.
    records: VecDeque<(u64, u32)>,
    /// A key that is not in memory was used at or below this position.
    floor: u64,
    /// Every key used at or after this time is in memory.
    since: Timestamp,
}

impl Keys {
    /// Keys of a fold that begins after `floor`, whose first record was stored at `since`.
    pub fn starting_after(floor: u64, since: Timestamp) -> Self {
        let (used, order, records) = (HashMap::new(), VecDeque::new(), VecDeque::new());
        Self { used, order, records, floor, since }
    }

    /// What the first use was answered, if it is in memory.
    pub fn get(&self, id: MessageId) -> Option<&Used> {
        self.used.get(&id)
    }

    /// A key that is not in memory was used at or below this position.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Every key used at or after this time is in memory.
    pub fn since(&self) -> Timestamp {
        self.since
    }

    /// How many are in memory.
    pub fn len(&self) -> usize {
        self.used.len()
    }

    /// Whether none is in memory.
    pub fn is_empty(&self) -> bool {
        self.used.is_empty()
    }

    /// Takes a record's keys in. A key that is known keeps its first use.
    pub fn apply(&mut self, events: &[Event], position: u64) {
        let mut count = 0_u32;
        for event in events.iter().filter(|event| event.client_id().is_some()) {
            let used = Used { seq: event.seq, at: event.at, fingerprint: event.fingerprint };
            if let std::collections::hash_map::Entry::Vacant(place) = self.used.entry(event.id) {
                place.insert(used);
                self.order.push_back(event.id);
                count += 1;
            }
        }
        if count > 0 {
            self.records.push_back((position, count));
        }
    }

    /// Forgets the oldest records' keys while they are older than the window or too many.
    pub fn trim(&mut self, memory: Memory, now: Timestamp) {
        let horizon = now.minus(memory.window);
        while let Some((position, count)) = self.records.front().copied() {
            let newest = self.order.get(count as usize - 1).and_then(|id| self.used.get(id));
            let newest_at = newest.map(|used| used.at).unwrap_or_default();
            if newest_at >= horizon && self.used.len() <= memory.keys_max {
                break;
            }
            for id in self.order.drain(..count as usize) {
                self.used.remove(&id);
            }
            self.records.pop_front();
            self.floor = self.floor.max(position);
            self.since = self.since.max(newest_at.plus(Duration::from_micros(1)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Body, ClientId, ConversationId, Message, TenantId};

    const MEMORY: Memory = Memory { window: Duration::from_secs(10), keys_max: 5 };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000).unwrap()
    }

    fn keyed(n: u8, seconds: i64) -> Event {
        let client_id = Some(ClientId::parse("k").unwrap());
        Event {
            tenant: TenantId::derive([1; 16]),
            conversation: ConversationId::derive([1; 16]),
            seq: u64::from(n),
            id: MessageId::derive([n; 16]),
            at: at(seconds),
            fingerprint: Fingerprint::default(),
            trace: None,
            body: Body::Message(Box::new(Message { client_id, ..Message::default() })),
        }
    }

    fn seq(keys: &Keys, n: u8) -> Option<u64> {
        keys.get(MessageId::derive([n; 16])).map(|used| used.seq)
    }

    #[test]
    fn a_key_is_known_until_the_window_has_passed() {
        let mut keys = Keys::starting_after(0, at(0));
        keys.apply(&[keyed(1, 100), keyed(2, 101)], 7);
        keys.apply(&[keyed(3, 105)], 8);
        keys.trim(MEMORY, at(111));
        assert_eq!(
            (seq(&keys, 1), keys.floor()),
            (Some(1), 0),
            "its record's newest key is 10 s old"
        );
        keys.trim(MEMORY, at(112));
        assert_eq!((seq(&keys, 1), seq(&keys, 2), seq(&keys, 3)), (None, None, Some(3)));
        assert_eq!((keys.floor(), keys.since().micros()), (7, 101_000_001));
    }

    #[test]
    fn at_the_bound_the_oldest_go_before_their_time() {
        let mut keys = Keys::starting_after(0, at(0));
        for n in 1..=7 {
            keys.apply(&[keyed(n, 100)], u64::from(n));
        }
        keys.trim(MEMORY, at(100));
        assert_eq!((keys.len(), seq(&keys, 2), seq(&keys, 3), keys.floor()), (5, None, Some(3), 2));
    }

    #[test]
    fn the_first_use_of_a_key_is_kept() {
        let mut keys = Keys::starting_after(0, at(0));
        keys.apply(&[keyed(1, 100)], 7);
        let mut late = keyed(1, 103);
        late.seq = 99;
        keys.apply(&[late], 8);
        assert_eq!((seq(&keys, 1), keys.len()), (Some(1), 1));
        keys.trim(MEMORY, at(200));
        assert!(keys.is_empty());
    }
}
