//! Fills a log with conversations, in large records, as fast as it takes them.
//! Promises seqs without holes and records that every reader of the log can read; each partition goes on where it ends.
//! Does not pass through a server: nothing is checked, nothing is answered.

use std::time::Duration;

use super::Place;
use crate::bench::Error;
use crate::clock::Timestamp;
use crate::event::key::message_id;
use crate::event::{
    Body, ClientId, ConversationId, Event, Fingerprint, Message, NodeId, Opening, Partition,
    Record, RecordId, TenantId,
};
use crate::log::{Outcome, Outgoing};

/// Events of one record: half of what one may hold, which is what a busy server writes.
const RECORD_EVENTS: u64 = 500;

/// What to put into a log.
#[derive(Clone, Copy, Debug)]
pub struct Filling {
    /// Makes its ids its own.
    pub run: u32,
    /// Conversations, spread over the partitions by their hash.
    pub conversations: u32,
    /// Events of each, its opening among them.
    pub events_each: u64,
    /// Bytes of a message's text.
    pub text_bytes: usize,
}

/// What was put there.
#[derive(Clone, Debug, Default)]
pub struct Filled {
    /// The conversations, each with as many events as was asked for.
    pub conversations: Vec<ConversationId>,
    /// Events.
    pub events: u64,
    /// How long it took.
    pub took: Duration,
}

/// The events of one partition, one round over its conversations after the other.
#[derive(Clone, Debug)]
pub(super) struct Source {
    filling: Filling,
    tenant: TenantId,
    conversations: Vec<ConversationId>,
    text: Box<str>,
    next: u64,
}

impl Filling {
    /// So many events in conversations of 200.
    pub fn of(run: u32, events: u64, text_bytes: usize) -> Self {
        const EVENTS_EACH: u64 = 200;
        let conversations = u32::try_from(events / EVENTS_EACH).unwrap_or(u32::MAX).max(1);
        Self { run, conversations, events_each: EVENTS_EACH, text_bytes }
    }

    fn conversation(self, number: u32) -> ConversationId {
        let mut name = [0; 16];
        name[..4].copy_from_slice(&self.run.to_be_bytes());
        // Bytes 6 and 8 lose bits to the version and variant of the id.
        name[9..13].copy_from_slice(&number.to_be_bytes());
        ConversationId::derive(name)
    }

    /// Its conversations.
    pub fn conversations(self) -> Vec<ConversationId> {
        (0..self.conversations).map(|number| self.conversation(number)).collect()
    }
}

impl Source {
    pub(super) fn new(place: &Place, filling: Filling, partition: Partition) -> Self {
        let mut conversations = filling.conversations();
        conversations.retain(|id| place.partitions.of(*id) == partition);
        let text = "x".repeat(filling.text_bytes).into();
        Self { filling, tenant: place.tenant, conversations, text, next: 0 }
    }

    /// How many events are left.
    fn left(&self) -> u64 {
        let count = u64::try_from(self.conversations.len()).unwrap_or(0);
        count * self.filling.events_each - self.next
    }

    /// The next events, so many at most; none at the end.
    pub(super) fn take(&mut self, events: u64, at: Timestamp) -> Vec<Event> {
        (0..events.min(self.left())).map(|_| self.event(at)).collect()
    }

    fn event(&mut self, at: Timestamp) -> Event {
        let count = u64::try_from(self.conversations.len()).unwrap_or(1);
        let place = usize::try_from(self.next % count).unwrap_or(0);
        let (conversation, seq) = (self.conversations[place], self.next / count + 1);
        self.next += 1;
        let run = self.filling.run;
        let client_id = ClientId::parse(&format!("{run:08x}-{:012x}", self.next));
        let client_id = client_id.expect("hexadecimal digits and a dash are a client id");
        let id = message_id(self.tenant, conversation, None, &client_id);
        let body = if seq == 1 {
            Body::Opened(Box::<Opening>::default())
        } else {
            Body::Message(Box::new(Message {
                kind: "message".into(),
                client_id: Some(client_id),
                text: Some(self.text.clone()),
                ..Message::default()
            }))
        };
        let fingerprint = Fingerprint::from_bits(self.next);
        Event { tenant: self.tenant, conversation, seq, id, at, fingerprint, trace: None, body }
    }
}

impl Place {
    /// Puts conversations into the log, all partitions at once.
    ///
    /// # Errors
    /// [`Error::NotStored`] when the log does not take a record.
    pub async fn fill(&self, filling: Filling) -> Result<Filled, Error> {
        let begun = self.clock.now();
        let each = self.partitions.all().map(|partition| self.fill_one(filling, partition));
        let counts = futures_util::future::try_join_all(each).await?;
        Ok(Filled {
            conversations: filling.conversations(),
            events: counts.into_iter().sum(),
            took: self.clock.now().saturating_duration_since(begun),
        })
    }

    async fn fill_one(&self, filling: Filling, partition: Partition) -> Result<u64, Error> {
        let mut source = Source::new(self, filling, partition);
        let mut expected = self.log.bounds(partition).await.map_err(Error::Log)?.last;
        let mut stored = 0;
        loop {
            let events = source.take(RECORD_EVENTS, self.clock.timestamp());
            if events.is_empty() {
                return Ok(stored);
            }
            let count = u64::try_from(events.len()).unwrap_or(0);
            let mut name = [0; 16];
            name[..4].copy_from_slice(&filling.run.to_be_bytes());
            name[4..6].copy_from_slice(&partition.number().to_be_bytes());
            name[9..].copy_from_slice(&expected.to_be_bytes()[1..]);
            let id = RecordId::derive(name);
            let node = NodeId::derive([3; 16]);
            let version = crate::event::record::VERSION;
            let record = Record { version, id, node, events, outcomes: Vec::new() };
            let bytes = record.encode().map_err(Error::Encode)?.into();
            let outcome = self.log.append(partition, Outgoing { id, expected, bytes }).await;
            let Outcome::Stored { position } = outcome else {
                return Err(Error::NotStored(outcome));
            };
            expected = position;
            stored += count;
        }
    }
}
