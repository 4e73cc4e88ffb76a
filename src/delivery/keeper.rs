//! The channels that are set apart, as all nodes agree on them through a bucket, and which nodes are alive.
//! Promises that one node wins a transition, and that an entry of a dead node's is taken over.
//! Does not drain backlogs; it says whose they are.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::breaker::{Entry, Why};
use crate::clock::Clock;
use crate::event::{ChannelId, NodeId};
use crate::lifecycle::{Stop, chain};
use crate::log::bucket::{self, Bucket, Change};

/// How often a node says that it is alive, and after which silence it counts as dead.
const BEAT: Duration = Duration::from_secs(2);
const SILENCE_MAX: Duration = Duration::from_secs(7);

/// Deadline of one request.
const REQUEST_MAX: Duration = Duration::from_secs(2);

/// How often a transition is tried against others.
const TRIES_MAX: usize = 8;

/// What the keys of nodes begin with.
const NODE: &str = "node.";

/// The channels that are set apart. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Keeper(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bucket: Bucket,
    node: NodeId,
    clock: Clock,
    memory: Mutex<Memory>,
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Memory {
    entries: HashMap<ChannelId, (Arc<Entry>, u64)>,
    /// When each node was last heard of, by this node's clock.
    nodes: HashMap<NodeId, Instant>,
    /// Whether the bucket was read once.
    level: bool,
    /// Channels that were told of since the bucket is read anew; what is not told of by the end is gone.
    told: Option<HashSet<ChannelId>>,
}

impl Memory {
    /// Channels whose owner has said goodbye, or was not heard of for too long: every node says that it is there before it
    /// makes an entry.
    fn orphans(&self, own: NodeId, now: Instant) -> Vec<ChannelId> {
        let is_orphan = |owner: NodeId| {
            let heard = self.nodes.get(&owner);
            owner != own && heard.is_none_or(|at| now.saturating_duration_since(*at) > SILENCE_MAX)
        };
        let known = self.entries.iter().filter(|_| self.level);
        known.filter(|(_, (e, _))| is_orphan(e.owner)).map(|(channel, _)| *channel).collect()
    }
}

impl Keeper {
    /// A keeper that knows nothing until it runs.
    pub fn new(bucket: Bucket, node: NodeId, clock: Clock) -> Self {
        let (memory, changes) = (Mutex::default(), watch::Sender::new(0));
        Self(Arc::new(Inner { bucket, node, clock, memory, changes }))
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.0.node
    }

    /// The entry of a channel, if it is set apart.
    pub fn get(&self, channel: ChannelId) -> Option<Arc<Entry>> {
        self.memory().entries.get(&channel).map(|(entry, _)| Arc::clone(entry))
    }

    /// Whether the bucket was read; before that nobody knows who is set apart.
    pub fn is_level(&self) -> bool {
        self.memory().level
    }

    /// Channels whose backlog this node drains, and how many are set apart in all.
    pub fn own(&self) -> (Vec<ChannelId>, usize) {
        let memory = self.memory();
        let own = memory.entries.iter().filter(|(_, (entry, _))| entry.owner == self.0.node);
        (own.map(|(channel, _)| *channel).collect(), memory.entries.len())
    }

    /// Rises whenever an entry changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Sets a channel apart if it is not, as the bucket's leader has it. What this node drains itself needs no look there:
    /// it forgets an entry before it looks for the last time whether the backlog is empty.
    ///
    /// Idempotency key: the channel.
    ///
    /// # Errors
    /// When the bucket does not answer.
    pub async fn ensure(&self, channel: ChannelId, why: Why) -> Result<(), bucket::Error> {
        let own = self.get(channel).is_some_and(|entry| entry.owner == self.0.node);
        if own || self.read(channel).await?.is_some() {
            return Ok(());
        }
        let entry = Entry::divert(self.0.node, why, self.0.clock.timestamp());
        match self.0.bucket.create(&channel.to_string(), encode(&entry), self.deadline()).await {
            Ok(revision) => {
                debug!(channel.id = %channel, ?why, "channel {channel} is set apart");
                self.learn(channel, Some((entry, revision)));
                Ok(())
            }
            Err(bucket::Error::Exists | bucket::Error::RevisionConflict) => {
                self.read(channel).await.map(drop)
            }
            Err(other) => Err(other),
        }
    }

    /// Changes a channel's entry by compare-and-set; `None` when it is gone or the change does not apply to it.
    ///
    /// # Errors
    /// When the bucket does not answer, or others change it all the time.
    pub async fn change(
        &self,
        channel: ChannelId,
        change: impl Fn(Entry) -> Option<Entry>,
    ) -> Result<Option<Arc<Entry>>, bucket::Error> {
        self.enter(channel, |entry| entry.and_then(&change)).await
    }

    /// The same, and what to make of a channel that is not set apart: in one step, because an entry without a backlog
    /// may be given up at any moment.
    ///
    /// # Errors
    /// When the bucket does not answer, or others change it all the time.
    pub async fn enter(
        &self,
        channel: ChannelId,
        change: impl Fn(Option<Entry>) -> Option<Entry>,
    ) -> Result<Option<Arc<Entry>>, bucket::Error> {
        let key = channel.to_string();
        for _ in 0..TRIES_MAX {
            let (entry, revision) = self.read(channel).await?.unzip();
            let Some(next) = change(entry) else { return Ok(None) };
            let (value, deadline) = (encode(&next), self.deadline());
            let stored = match revision {
                Some(revision) => self.0.bucket.update(&key, value, revision, deadline).await,
                None => self.0.bucket.create(&key, value, deadline).await,
            };
            match stored {
                Ok(revision) => {
                    info!(channel.id = %channel, "channel {channel}: {:?}, {:?}", next.state, next.why);
                    return Ok(self.learn(channel, Some((next, revision))));
                }
                Err(bucket::Error::RevisionConflict | bucket::Error::Exists) => {}
                Err(other) => return Err(other),
            }
        }
        Err(bucket::Error::RevisionConflict)
    }

    /// Gives a channel that this node drains back to everybody. False when its entry has changed since.
    ///
    /// # Errors
    /// When the bucket does not answer.
    pub async fn release(&self, channel: ChannelId) -> Result<bool, bucket::Error> {
        let known = self.memory().entries.get(&channel).cloned();
        let Some((_, revision)) = known.filter(|(entry, _)| entry.owner == self.0.node) else {
            return Ok(false);
        };
        let key = channel.to_string();
        match self.0.bucket.delete_at(&key, revision, self.deadline()).await {
            Ok(_) => {
                self.learn(channel, None);
                Ok(true)
            }
            Err(bucket::Error::RevisionConflict) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// Follows the bucket and says that this node is alive, until the stop.
    ///
    /// # Errors
    /// When the bucket can be reached but not be watched.
    pub async fn run(self, stop: Stop) -> Result<(), bucket::Error> {
        let mut watch = self.0.bucket.watch();
        // Before anything is set apart here, so that no entry is of a node that nobody has heard of.
        self.beat().await;
        let mut beat = tokio::time::interval(BEAT);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.requested() => break,
                change = watch.next() => {
                    let change = change?;
                    let is_level = matches!(change, Change::Level { .. });
                    self.on_change(change);
                    if is_level {
                        beat.reset_immediately();
                    }
                }
                _ = beat.tick() => self.beat().await,
            }
        }
        // Whoever is told need not wait for the silence.
        drop(self.0.bucket.delete(&self.own_key(), self.deadline()).await);
        Ok(())
    }

    fn on_change(&self, change: Change) {
        let now = self.0.clock.now();
        match change {
            Change::Afresh => {
                self.memory().told = Some(HashSet::new());
            }
            Change::Level { .. } => {
                let mut memory = self.memory();
                memory.level = true;
                if let Some(told) = memory.told.take() {
                    memory.entries.retain(|channel, _| told.contains(channel));
                }
                drop(memory);
                self.0.changes.send_modify(|count| *count += 1);
            }
            Change::Behind => {}
            Change::Entry(entry) => {
                if let Some(node) = entry.key.strip_prefix(NODE) {
                    let Ok(node) = NodeId::parse(node) else { return };
                    match entry.value {
                        Some(_) => drop(self.memory().nodes.insert(node, now)),
                        None => drop(self.memory().nodes.remove(&node)),
                    }
                } else if let Ok(channel) = ChannelId::parse(&entry.key) {
                    if let Some(told) = &mut self.memory().told {
                        told.insert(channel);
                    }
                    let value = entry.value.as_deref();
                    let value = value.and_then(|bytes| serde_json::from_slice(bytes).ok());
                    let found = value.map(|value: Entry| (value, entry.revision));
                    if self.is_news(channel, entry.revision) {
                        self.learn(channel, found);
                    }
                }
            }
        }
    }

    /// Says that this node is alive, and takes over what dead nodes drained.
    async fn beat(&self) {
        let (key, value) = (self.own_key(), b"{}".as_slice().into());
        if let Err(error) = self.0.bucket.put(&key, value, self.deadline()).await {
            warn!(error = %chain(&error), "the bucket of breakers does not answer");
            return;
        }
        let orphans = self.memory().orphans(self.0.node, self.0.clock.now());
        for channel in orphans {
            let (node, now) = (self.0.node, self.0.clock.timestamp());
            let taken = self.change(channel, |entry| Some(entry.take_over(node, now))).await;
            if let Err(error) = taken {
                warn!(error = %chain(&error), "a backlog was not taken over");
            }
        }
    }

    async fn read(&self, channel: ChannelId) -> Result<Option<(Entry, u64)>, bucket::Error> {
        let found = self.0.bucket.get(&channel.to_string(), self.deadline()).await?;
        let found = found.and_then(|found| {
            let entry = serde_json::from_slice::<Entry>(&found.value).ok()?;
            Some((entry, found.revision))
        });
        if let Some((entry, revision)) = &found
            && self.is_news(channel, *revision)
        {
            self.learn(channel, Some((entry.clone(), *revision)));
        }
        Ok(found)
    }

    fn is_news(&self, channel: ChannelId, revision: u64) -> bool {
        self.memory().entries.get(&channel).is_none_or(|(_, known)| revision > *known)
    }

    fn learn(&self, channel: ChannelId, entry: Option<(Entry, u64)>) -> Option<Arc<Entry>> {
        let learnt = {
            let mut memory = self.memory();
            if let Some((entry, revision)) = entry {
                let entry = Arc::new(entry);
                memory.entries.insert(channel, (Arc::clone(&entry), revision));
                Some(entry)
            } else {
                memory.entries.remove(&channel);
                None
            }
        };
        self.0.changes.send_modify(|count| *count += 1);
        learnt
    }

    fn own_key(&self) -> String {
        format!("{NODE}{}", self.0.node)
    }

    fn deadline(&self) -> Instant {
        self.0.clock.now() + REQUEST_MAX
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.0.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn encode(entry: &Entry) -> bytes::Bytes {
    serde_json::to_vec(entry).expect("numbers, words and ids can be encoded").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Timestamp, test_start};

    #[test]
    fn who_said_goodbye_is_followed_at_once_and_who_fell_silent_after_a_while() {
        let node = |number: u8| NodeId::derive([number; 16]);
        let (own, silent, gone) = (node(1), node(2), node(3));
        let start = test_start();
        let mut memory = Memory { level: true, ..Memory::default() };
        for (number, owner) in [(1, own), (2, silent), (3, gone)] {
            let entry = Entry::divert(owner, Why::Pinned, Timestamp::default());
            memory.entries.insert(ChannelId::derive([number; 16]), (Arc::new(entry), 1));
        }
        memory.nodes.insert(silent, start);
        let later = start + SILENCE_MAX + Duration::from_millis(1);
        assert_eq!(memory.orphans(own, start), [ChannelId::derive([3; 16])]);
        assert_eq!(memory.orphans(own, later).len(), 2);
        memory.level = false;
        assert!(memory.orphans(own, later).is_empty(), "not everything was read yet");
    }
}
