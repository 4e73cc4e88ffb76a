//! Who listens to which conversation on this node, and the tasks that tell them what the tail has folded.
//! Promises that joining and leaving do not depend on how many listen, and that no listener waits for another.
//! Does not decide what a listener is sent; its session does.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use tracing::warn;

use super::frame::{Content, Frame};
use super::inbox::{Inbox, News, Notice};
use super::whisper::{Said, Whisper};
use crate::event::{ConversationId, Outcome, Partition, TenantId};
use crate::journal::Journal;
use crate::journal::ring::{Entry, Window};
use crate::lifecycle::Stop;
use crate::log::Log;

/// Events that are told in one turn, between which others may join and leave.
const TURN_EVENTS: usize = 200;

/// Pause before whispers are listened to anew. They are worth no hurry.
const WHISPER_PAUSE: Duration = Duration::from_secs(1);

/// The hub of one node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Hub(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    journal: Journal,
    log: Log,
    /// One a partition, by its number.
    members: Vec<Mutex<Members>>,
    next: AtomicU64,
    count: AtomicUsize,
}

type Members = HashMap<ConversationId, HashMap<u64, Inbox>>;

/// What memory knows of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Its last seq.
    EndsAt(u64),
    /// That it is another tenant's.
    Foreign,
    /// Nothing; Postgres may.
    Nothing,
}

/// A place among the listeners of a conversation, given up on drop.
#[derive(Debug)]
pub struct Membership {
    hub: Hub,
    conversation: ConversationId,
    number: u64,
}

impl Hub {
    /// A hub that nobody has joined.
    pub fn new(journal: Journal, log: Log) -> Self {
        let members = journal.tails().iter().map(|_| Mutex::default()).collect();
        let (next, count) = (AtomicU64::new(0), AtomicUsize::new(0));
        Self(Arc::new(Inner { journal, log, members, next, count }))
    }

    /// From here on every event of the conversation is put into the inbox.
    pub fn join(&self, conversation: ConversationId, inbox: &Inbox) -> Membership {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let mut members = self.members(self.0.journal.partitions().of(conversation));
        members.entry(conversation).or_default().insert(number, inbox.clone());
        self.0.count.fetch_add(1, Ordering::Relaxed);
        Membership { hub: self.clone(), conversation, number }
    }

    /// Where a conversation ends, if memory knows.
    pub fn head(&self, conversation: ConversationId) -> Option<u64> {
        self.0.journal.tail_of(conversation).head(conversation).map(|head| head.seq)
    }

    /// What memory knows of a tenant's conversation.
    pub fn look(&self, tenant: TenantId, conversation: ConversationId) -> Known {
        match self.0.journal.tail_of(conversation).head(conversation) {
            Some(head) if head.tenant == tenant => Known::EndsAt(head.seq),
            Some(_) => Known::Foreign,
            None => Known::Nothing,
        }
    }

    /// How many memberships there are.
    pub fn count(&self) -> usize {
        self.0.count.load(Ordering::Relaxed)
    }

    /// Says something to everybody who listens to the conversation, on every node. It may be lost.
    pub async fn whisper(&self, whisper: &Whisper) {
        if let Some(bytes) = whisper.encode() {
            self.0.log.whisper(bytes.into()).await;
        }
    }

    /// Tells what happens in one partition, until the stop.
    ///
    /// # Errors
    /// Never.
    pub async fn run(self, partition: Partition, stop: Stop) -> Result<(), Infallible> {
        let tail = self.0.journal.tail(partition).clone();
        let mut advanced = tail.advanced();
        let mut position = tail.position();
        loop {
            tokio::select! {
                () = stop.requested() => return Ok(()),
                _ = advanced.changed() => {}
            }
            loop {
                match tail.records_after(position, TURN_EVENTS) {
                    // Whoever listens finds the hole and reads what is missing.
                    Window::Forgotten => position = tail.position(),
                    Window::Records(records) => {
                        let Some(newest) = records.last() else { break };
                        position = newest.position;
                        for folded in &records {
                            self.tell(partition, Entry::all_of(folded));
                            self.tell_outcomes(partition, &folded.record.outcomes);
                        }
                    }
                }
                tokio::task::yield_now().await;
            }
        }
    }

    /// Tells the whispers of all nodes, until the stop.
    ///
    /// # Errors
    /// Never.
    pub async fn run_whispers(self, stop: Stop) -> Result<(), Infallible> {
        loop {
            match self.0.log.whispers().await {
                Ok(mut whispers) => loop {
                    tokio::select! {
                        () = stop.requested() => return Ok(()),
                        bytes = whispers.next() => match bytes {
                            Some(bytes) => self.pass_on(&bytes),
                            None => break,
                        },
                    }
                },
                Err(error) => warn!(%error, "whispers are not heard: {error}"),
            }
            tokio::select! {
                () = stop.requested() => return Ok(()),
                () = tokio::time::sleep(WHISPER_PAUSE) => {}
            }
        }
    }

    fn tell(&self, partition: Partition, entries: impl Iterator<Item = Entry>) {
        let members = self.members(partition);
        if members.is_empty() {
            return;
        }
        for entry in entries {
            let conversation = entry.event().conversation;
            let Some(listeners) = members.get(&conversation) else { continue };
            let frame = Frame::new(Content::Recent(entry));
            for inbox in listeners.values() {
                inbox.push(Notice { conversation, news: News::Event(frame.clone()) });
            }
        }
    }

    /// Like whispers: what is missed can be asked for.
    fn tell_outcomes(&self, partition: Partition, outcomes: &[Outcome]) {
        let members = self.members(partition);
        for outcome in outcomes {
            let conversation = outcome.conversation;
            let Some(listeners) = members.get(&conversation) else { continue };
            let said = Said::Delivery(Box::new(outcome.clone()));
            let (user, connection) = (None, None);
            let whisper = Arc::new(Whisper { conversation, user, connection, said });
            for inbox in listeners.values() {
                inbox.push(Notice { conversation, news: News::Whisper(Arc::clone(&whisper)) });
            }
        }
    }

    fn pass_on(&self, bytes: &[u8]) {
        let Some(whisper) = Whisper::decode(bytes) else { return };
        let conversation = whisper.conversation;
        let whisper = Arc::new(whisper);
        let members = self.members(self.0.journal.partitions().of(conversation));
        for inbox in members.get(&conversation).into_iter().flat_map(HashMap::values) {
            inbox.push(Notice { conversation, news: News::Whisper(Arc::clone(&whisper)) });
        }
    }

    fn members(&self, partition: Partition) -> MutexGuard<'_, Members> {
        self.0.members[partition.index()].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let partition = self.hub.0.journal.partitions().of(self.conversation);
        let mut members = self.hub.members(partition);
        if let Some(listeners) = members.get_mut(&self.conversation) {
            listeners.remove(&self.number);
            if listeners.is_empty() {
                members.remove(&self.conversation);
            }
        }
        self.hub.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}
