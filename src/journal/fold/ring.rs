//! Pure: the newest records of a partition, whole, and where each conversation's events are in them.
//! Promises that what it holds is contiguous, in positions and in every conversation's seq.
//! Does not hold more than its bound of bytes; at the bound the oldest record goes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::clock::Timestamp;
use crate::event::{ConversationId, Event, Record};

/// A record with its place in the log.
#[derive(Debug)]
pub struct Folded {
    /// Stream sequence.
    pub position: u64,
    /// The encoded size, in bytes.
    pub bytes: usize,
    /// What it holds.
    pub record: Record,
}

/// One event of a record that is in the ring.
#[derive(Clone, Debug)]
pub struct Entry {
    folded: Arc<Folded>,
    index: u32,
}

impl Entry {
    /// Every event of a record, in their order.
    pub fn all_of(folded: &Arc<Folded>) -> impl Iterator<Item = Self> + use<'_> {
        let events = folded.record.events.iter().zip(0_u32..);
        events.map(|(_, index)| Self { folded: Arc::clone(folded), index })
    }

    /// The event.
    pub fn event(&self) -> &Event {
        &self.folded.record.events[self.index as usize]
    }

    /// Position of its record.
    pub fn position(&self) -> u64 {
        self.folded.position
    }
}

/// What records lie after a position.
#[derive(Debug)]
pub enum Window {
    /// The ring begins after that position: they are to be read from the log.
    Forgotten,
    /// The records, oldest first; none when the position is the newest.
    Records(Vec<Arc<Folded>>),
}

/// How much of a partition Postgres does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unprojected {
    /// Events; an estimate by the ring's density where they are older than the ring.
    pub events: u64,
    /// When the oldest of them that is in the ring was accepted.
    pub oldest: Option<Timestamp>,
}

/// The newest records of a partition.
#[derive(Debug)]
pub struct Ring {
    records: VecDeque<Arc<Folded>>,
    places: HashMap<ConversationId, VecDeque<Entry>>,
    bytes: usize,
    bytes_max: usize,
    /// The newest position that is not in the ring any more, or never was.
    forgotten: u64,
}

impl Ring {
    /// An empty ring of a fold that begins after `position`.
    pub fn starting_after(position: u64, bytes_max: usize) -> Self {
        Self {
            records: VecDeque::new(),
            places: HashMap::new(),
            bytes: 0,
            bytes_max,
            forgotten: position,
        }
    }

    /// Takes the next record in and lets the oldest go while there are too many bytes.
    pub fn push(&mut self, folded: &Arc<Folded>) {
        for (event, index) in folded.record.events.iter().zip(0_u32..) {
            let entry = Entry { folded: Arc::clone(folded), index };
            self.places.entry(event.conversation).or_default().push_back(entry);
        }
        self.bytes += folded.bytes;
        self.records.push_back(Arc::clone(folded));
        while self.bytes > self.bytes_max && self.records.len() > 1 {
            self.pop();
        }
    }

    fn pop(&mut self) {
        let Some(oldest) = self.records.pop_front() else {
            return;
        };
        self.bytes -= oldest.bytes;
        self.forgotten = oldest.position;
        for event in &oldest.record.events {
            if let Some(entries) = self.places.get_mut(&event.conversation) {
                entries.pop_front();
                if entries.is_empty() {
                    self.places.remove(&event.conversation);
                }
            }
        }
    }

    /// The events of a conversation after `seq`, at most `limit`, and the lowest seq that the ring has of it.
    pub fn span(
        &self,
        conversation: ConversationId,
        after: u64,
        limit: usize,
    ) -> (Option<u64>, Vec<Entry>) {
        let Some(entries) = self.places.get(&conversation) else {
            return (None, Vec::new());
        };
        let first = entries.front().map(|entry| entry.event().seq);
        let begin = entries.partition_point(|entry| entry.event().seq <= after);
        (first, entries.range(begin..).take(limit).cloned().collect())
    }

    /// The newest seq of a conversation whose record lies at or below `position`, as far as the ring has it.
    pub fn seq_at(&self, conversation: ConversationId, position: u64) -> Option<u64> {
        let entries = self.places.get(&conversation)?;
        let end = entries.partition_point(|entry| entry.position() <= position);
        entries.get(end.checked_sub(1)?).map(|entry| entry.event().seq)
    }

    /// The newest position that it does not hold any more, or never did.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// The records after a position, as many as begin within `events_max` events.
    pub fn after(&self, position: u64, events_max: usize) -> Window {
        if position < self.forgotten {
            return Window::Forgotten;
        }
        let begin = self.records.partition_point(|folded| folded.position <= position);
        let mut events = 0;
        let fits = |folded: &&Arc<Folded>| {
            let room = events < events_max;
            events += folded.record.entries();
            room
        };
        Window::Records(self.records.range(begin..).take_while(fits).cloned().collect())
    }

    /// How much lies above a checkpoint, up to `newest`.
    pub fn unprojected(&self, checkpoint: u64, newest: u64) -> Unprojected {
        let begin = self.records.partition_point(|folded| folded.position <= checkpoint);
        let count = |from| self.records.range(from..).map(|f| f.record.entries() as u64).sum();
        let (held, all): (u64, u64) = (count(begin), count(0));
        let older = self.forgotten.min(newest).saturating_sub(checkpoint);
        let density = (all / (self.records.len() as u64).max(1)).max(1);
        let oldest = self.records.get(begin).and_then(|folded| folded.record.events.first());
        Unprojected { events: held + older * density, oldest: oldest.map(|event| event.at) }
    }

    /// Bytes of the encoded records that are held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Body, Fingerprint, MessageId, NodeId, RecordId, TenantId};

    fn folded(position: u64, events: &[(u8, u64)]) -> Arc<Folded> {
        let event = |(conversation, seq): &(u8, u64)| Event {
            tenant: TenantId::derive([1; 16]),
            conversation: ConversationId::derive([*conversation; 16]),
            seq: *seq,
            id: MessageId::derive([2; 16]),
            at: Timestamp::default(),
            fingerprint: Fingerprint::default(),
            trace: None,
            body: Body::Closed,
        };
        let record = Record {
            version: 1,
            id: RecordId::derive([1; 16]),
            node: NodeId::derive([1; 16]),
            events: events.iter().map(event).collect(),
            outcomes: Vec::new(),
        };
        Arc::new(Folded { position, bytes: 100, record })
    }

    fn seqs(ring: &Ring, conversation: u8, after: u64, limit: usize) -> (Option<u64>, Vec<u64>) {
        let (first, entries) = ring.span(ConversationId::derive([conversation; 16]), after, limit);
        (first, entries.iter().map(|entry| entry.event().seq).collect())
    }

    #[test]
    fn a_conversation_is_found_from_any_seq_that_the_ring_has() {
        let mut ring = Ring::starting_after(4, 1_000);
        ring.push(&folded(5, &[(1, 1), (1, 2), (2, 7)]));
        ring.push(&folded(6, &[(1, 3), (2, 8)]));
        assert_eq!(seqs(&ring, 1, 0, 10), (Some(1), vec![1, 2, 3]));
        assert_eq!(seqs(&ring, 1, 1, 1), (Some(1), vec![2]));
        assert_eq!(seqs(&ring, 2, 8, 10), (Some(7), vec![]));
        assert_eq!(seqs(&ring, 3, 0, 10), (None, vec![]));
        let conversation = ConversationId::derive([1; 16]);
        assert_eq!(ring.seq_at(conversation, 5), Some(2));
        assert_eq!(ring.seq_at(conversation, 4), None);
    }

    #[test]
    fn at_the_bound_the_oldest_record_goes_and_is_known_to_be_gone() {
        let mut ring = Ring::starting_after(4, 250);
        for position in 5..=8 {
            ring.push(&folded(position, &[(1, position)]));
        }
        assert_eq!(ring.bytes(), 200);
        assert_eq!(seqs(&ring, 1, 0, 10), (Some(7), vec![7, 8]));
        assert!(matches!(ring.after(5, 10), Window::Forgotten));
        let Window::Records(records) = ring.after(6, 10) else { panic!("it holds 7 and 8") };
        assert_eq!(records.iter().map(|f| f.position).collect::<Vec<_>>(), [7, 8]);
    }

    #[test]
    fn what_postgres_lacks_is_counted_and_estimated_where_it_is_forgotten() {
        let mut ring = Ring::starting_after(0, 250);
        for position in 1..=4 {
            ring.push(&folded(position, &[(1, 2 * position), (1, 2 * position + 1)]));
        }
        let events = |checkpoint| ring.unprojected(checkpoint, 4).events;
        assert_eq!([events(4), events(3), events(2), events(0)], [0, 2, 4, 8]);
        assert_eq!(ring.unprojected(4, 4).oldest, None);
    }

    #[test]
    fn records_are_handed_out_within_the_bound_and_at_least_one() {
        let mut ring = Ring::starting_after(0, 1_000);
        ring.push(&folded(1, &[(1, 1), (1, 2)]));
        ring.push(&folded(2, &[(1, 3), (1, 4)]));
        ring.push(&folded(3, &[(1, 5)]));
        let count = |position, max| match ring.after(position, max) {
            Window::Records(records) => records.len(),
            Window::Forgotten => usize::MAX,
        };
        assert_eq!((count(0, 1), count(0, 3), count(0, 99), count(3, 99)), (1, 2, 3, 0));
    }
}
