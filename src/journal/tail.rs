//! What others may read of a partition's fold, and where callers reserve room before they send.
//! Promises that a read sees whole records only, and that a refusal costs no more than two counters.
//! Does not change the fold; the partition's writer does.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::fold::Fold;
use super::heads::Head;
use super::ring::{Entry, Unprojected, Window};
use crate::clock::Timestamp;
use crate::event::{ConversationId, Partition};

/// Most requests that wait for one partition's writer. At 50 000 a second it is 0.2 s of work.
pub const QUEUE_REQUESTS_MAX: usize = 10_000;

/// Most bytes of requests that wait for one partition's writer.
pub const QUEUE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How long a partition may go without any progress before new requests are refused at once: longer than a slow
/// fsync, shorter than a client's patience.
pub const STALL_MAX: Duration = Duration::from_secs(1);

/// Why there is no room for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Busy {
    /// [`QUEUE_REQUESTS_MAX`] or [`QUEUE_BYTES_MAX`] is reached.
    #[error("the partition's queue is full")]
    Full,
    /// What waits has made no progress for [`STALL_MAX`]: the log does not acknowledge.
    #[error("the log does not acknowledge")]
    Stalled,
    /// The server stops.
    #[error("the server stops")]
    Stopping,
}

/// What others may read of one partition. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tail {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    partition: Partition,
    /// Held for the folding or the staging of one record at most, and never across an await.
    fold: Mutex<Fold>,
    position: AtomicU64,
    advanced: watch::Sender<u64>,
    requests: AtomicUsize,
    bytes: AtomicUsize,
    /// When the oldest doubt began, in nanoseconds after `origin` plus one; 0 while nothing waits.
    waiting_since: AtomicU64,
    stopping: std::sync::atomic::AtomicBool,
    origin: Instant,
}

/// Room that was reserved in a partition's queue; it is given back when this is dropped.
#[derive(Debug)]
pub struct Place {
    shared: Arc<Shared>,
    bytes: usize,
}

impl Place {
    /// The partition in which the room is.
    pub fn partition(&self) -> Partition {
        self.shared.partition
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.requests.fetch_sub(1, Ordering::Relaxed);
        self.shared.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The newest part of a conversation that is in memory.
#[derive(Clone, Debug)]
pub struct Span {
    /// Its head, if that is in memory.
    pub head: Option<Head>,
    /// The lowest seq of it that is in memory.
    pub first_seq: Option<u64>,
    /// The events after the asked seq, ascending and without a hole.
    pub entries: Vec<Entry>,
    /// The newest seq that Postgres has, as far as memory can tell.
    pub projected_seq: Option<u64>,
}

impl Tail {
    pub(super) fn new(partition: Partition, fold: Fold, now: Instant) -> Self {
        let position = fold.position();
        let (advanced, _) = watch::channel(position);
        let shared = Shared {
            partition,
            fold: Mutex::new(fold),
            position: AtomicU64::new(position),
            advanced,
            requests: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            waiting_since: AtomicU64::new(0),
            stopping: std::sync::atomic::AtomicBool::new(false),
            origin: now,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Which partition this is.
    pub fn partition(&self) -> Partition {
        self.shared.partition
    }

    /// The position up to which everything is folded.
    pub fn position(&self) -> u64 {
        self.shared.position.load(Ordering::Acquire)
    }

    /// A conversation that is not in memory has its last event at or below this position.
    pub fn floor(&self) -> u64 {
        self.lock().heads.floor()
    }

    /// The head of a conversation, if it is in memory.
    pub fn head(&self, conversation: ConversationId) -> Option<Head> {
        self.lock().head(conversation)
    }

    /// Every key used at or after this time is in memory; `None` when every key ever used is.
    pub fn keys_since(&self) -> Option<Timestamp> {
        let fold = self.lock();
        (fold.keys.floor() > 0).then(|| fold.keys.since())
    }

    /// The events of a conversation after a seq, as far as they are in memory, at most `limit`.
    pub fn span(&self, conversation: ConversationId, after: u64, limit: usize) -> Span {
        let fold = self.lock();
        let (first_seq, entries) = fold.ring.span(conversation, after, limit);
        let head = fold.head(conversation);
        let checkpoint = fold.checkpoint();
        let projected_seq = match head {
            Some(head) if head.position <= checkpoint => Some(head.seq),
            Some(_) => fold.ring.seq_at(conversation, checkpoint),
            None => None,
        };
        Span { head, first_seq, entries, projected_seq }
    }

    /// The records after a position, as many as begin within `events_max` events.
    pub fn records_after(&self, position: u64, events_max: usize) -> Window {
        self.lock().ring.after(position, events_max)
    }

    /// Changes whenever the fold has moved; the value is its position.
    pub fn advanced(&self) -> watch::Receiver<u64> {
        self.shared.advanced.subscribe()
    }

    /// The partition's checkpoint, as far as this node has heard.
    pub fn checkpoint(&self) -> u64 {
        self.lock().checkpoint()
    }

    /// The newest position whose record is not in memory any more, or never was.
    pub fn forgotten(&self) -> u64 {
        self.lock().ring.forgotten()
    }

    /// The partition's checkpoint moved.
    pub fn note_checkpoint(&self, position: u64) {
        self.lock().note_checkpoint(position);
    }

    /// What is in memory: heads, keys, and bytes of encoded records.
    pub fn sizes(&self) -> (usize, usize, usize) {
        let fold = self.lock();
        (fold.heads.len(), fold.keys.len(), fold.ring.bytes())
    }

    /// How much of the log Postgres does not have, as far as this node has heard.
    pub fn unprojected(&self) -> Unprojected {
        let fold = self.lock();
        fold.ring.unprojected(fold.checkpoint(), fold.position())
    }

    /// All heads and the floor, for a snapshot at the returned position.
    pub fn snapshot(&self) -> (u64, u64, Vec<(ConversationId, Head)>) {
        let fold = self.lock();
        (fold.position(), fold.heads.floor(), fold.heads.copy())
    }

    /// Requests and bytes that wait for the writer.
    pub fn queue(&self) -> (usize, usize) {
        let shared = &self.shared;
        (shared.requests.load(Ordering::Relaxed), shared.bytes.load(Ordering::Relaxed))
    }

    /// How long the writer has made no progress although something waits.
    pub fn stalled_for(&self, now: Instant) -> Duration {
        match self.shared.waiting_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => {
                let since = self.shared.origin + Duration::from_nanos(since - 1);
                now.saturating_duration_since(since)
            }
        }
    }

    /// Whether there is room at this moment. Reserves nothing: a body that is still to be read must not hold any.
    ///
    /// # Errors
    /// [`Busy`] when a bound of the queue is reached.
    pub fn check_room(&self, now: Instant) -> Result<(), Busy> {
        let shared = &self.shared;
        if shared.stopping.load(Ordering::Relaxed) {
            return Err(Busy::Stopping);
        }
        if self.stalled_for(now) > STALL_MAX {
            return Err(Busy::Stalled);
        }
        let (requests, bytes) = self.queue();
        let is_full = requests >= QUEUE_REQUESTS_MAX || bytes >= QUEUE_BYTES_MAX;
        if is_full { Err(Busy::Full) } else { Ok(()) }
    }

    /// Reserves room for one request of this many bytes.
    ///
    /// # Errors
    /// [`Busy`], at once, when a bound of the queue is reached.
    pub fn admit(&self, bytes: usize, now: Instant) -> Result<Place, Busy> {
        self.check_room(now)?;
        let shared = &self.shared;
        let requests = shared.requests.fetch_add(1, Ordering::Relaxed);
        let queued = shared.bytes.fetch_add(bytes, Ordering::Relaxed);
        let place = Place { shared: Arc::clone(shared), bytes };
        // A request that is alone may be of any size that the door lets through.
        let fits =
            requests < QUEUE_REQUESTS_MAX && (queued + bytes <= QUEUE_BYTES_MAX || requests == 0);
        if fits { Ok(place) } else { Err(Busy::Full) }
    }

    /// From here on nobody is admitted.
    pub(super) fn refuse_new(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
    }

    /// The writer made progress, or has nothing to do.
    pub(super) fn note_progress(&self, is_waiting: bool, now: Instant) {
        let since = now.saturating_duration_since(self.shared.origin).as_nanos();
        let since = u64::try_from(since).unwrap_or(u64::MAX - 1) + 1;
        self.shared.waiting_since.store(if is_waiting { since } else { 0 }, Ordering::Relaxed);
    }

    /// Something begins to wait; an earlier beginning stays.
    pub(super) fn note_waiting(&self, now: Instant) {
        if self.shared.waiting_since.load(Ordering::Relaxed) == 0 {
            self.note_progress(true, now);
        }
    }

    /// The fold, for the writer. The guard must be gone before the next await.
    pub(super) fn lock(&self) -> MutexGuard<'_, Fold> {
        self.shared.fold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells everybody who waits that the fold has moved.
    pub(super) fn publish(&self, position: u64) {
        self.shared.position.store(position, Ordering::Release);
        self.shared.advanced.send_replace(position);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::test_start;
    use crate::event::Partitions;
    use crate::journal::fold::{Bounds, Start};
    use crate::journal::heads::Heads;
    use crate::journal::keys::Memory;

    fn tail(now: Instant) -> Tail {
        let keys = Memory { window: Duration::from_secs(1), keys_max: 1 };
        let start =
            Start { position: 0, since: Timestamp::default(), heads: Heads::starting_after(0) };
        let bounds = Bounds { keys, heads_max: 1, ring_bytes_max: 1 };
        let partition = Partitions::new(1).and_then(|one| one.get(0)).unwrap();
        Tail::new(partition, Fold::new(start, bounds), now)
    }

    #[test]
    fn every_bound_is_named_and_says_what_happens_at_it() {
        let now = test_start();
        let tail = tail(now);
        let places: Vec<_> = (0..QUEUE_REQUESTS_MAX).map(|_| tail.admit(1, now).unwrap()).collect();
        assert_eq!(tail.admit(1, now).unwrap_err(), Busy::Full);
        assert_eq!(tail.queue(), (QUEUE_REQUESTS_MAX, QUEUE_REQUESTS_MAX));
        drop(places);
        assert_eq!(tail.queue(), (0, 0));
        let large = tail.admit(QUEUE_BYTES_MAX + 1, now).unwrap();
        assert_eq!(tail.admit(1, now).unwrap_err(), Busy::Full);
        drop(large);
        assert!(tail.admit(1, now).is_ok());
        tail.refuse_new();
        assert_eq!(tail.admit(1, now).unwrap_err(), Busy::Stopping);
    }

    #[test]
    fn a_partition_without_progress_refuses_until_it_moves() {
        let now = test_start();
        let tail = tail(now);
        tail.note_waiting(now);
        let late = now + STALL_MAX + Duration::from_millis(1);
        tail.note_waiting(late);
        assert!(tail.admit(1, now + STALL_MAX).is_ok());
        assert_eq!(tail.admit(1, late).unwrap_err(), Busy::Stalled);
        tail.note_progress(true, late);
        assert!(tail.admit(1, late).is_ok());
        tail.note_progress(false, late);
        assert_eq!(tail.stalled_for(late + STALL_MAX), Duration::ZERO);
    }
}
