//! The gate: who may use one of a counted number of things, and who waits for how long.
//! Promises that at most `capacity` permits are out, that the queue is bounded, and that nobody waits past a deadline.
//! Does not know what a permit is for; the store asks for one before it hands out a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio::time::timeout_at;

use crate::event::TenantId;

/// How much it matters that an acquirer is served soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// The health of the service itself.
    Critical,
    /// Somebody waits for one answer: a lookup on the way of a send, a page of history.
    High,
    /// Somebody waits for a long answer: a replay of several pages, an export.
    Medium,
    /// Nobody waits: projection of the past, verification, backfill.
    Low,
}

/// The branch of the tree of shares at the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// The service's own work: projection, upkeep.
    System,
    /// Tenants of the tier `high`.
    High,
    /// Tenants of the tier `standard`.
    Standard,
    /// Tenants of the tier `bulk`.
    Bulk,
}

/// Through which door a wish came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// A call of REST.
    Rest,
    /// A WebSocket.
    Socket,
    /// A stream of server-sent events.
    Sse,
    /// A webhook that came in.
    Inbound,
    /// An operator's command.
    Operator,
    /// The projection of the log.
    Projector,
}

/// For whom a permit is: a path down the tree of shares, class, tenant, source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The branch at the top.
    pub class: Class,
    /// Whose request it is; `None` for the service's own work.
    pub tenant: Option<TenantId>,
    /// Where it came in.
    pub source: Source,
}

impl Origin {
    /// The service's own work.
    pub const fn system(source: Source) -> Self {
        Self { class: Class::System, tenant: None, source }
    }

    /// A wish of this origin.
    pub const fn at(self, priority: Priority) -> Tag {
        Tag { priority, origin: self }
    }
}

/// What every acquirer is tagged with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// How much it matters that it is served soon.
    pub priority: Priority,
    /// For whom it is.
    pub origin: Origin,
}

/// Why no permit was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Overload {
    /// It waited for longer than the queue is let stand.
    #[error("the queue stands")]
    Queue,
    /// As many wait as may wait; refused at once.
    #[error("the queue is full")]
    QueueFull,
    /// None became free before the deadline.
    #[error("no permit became free before the deadline")]
    Deadline,
    /// There is nothing behind the gate now; refused at once.
    #[error("there is no permit to be had now")]
    ZeroCapacity,
    /// The task has a permit of this gate already; waiting for another could wait for itself.
    #[error("the task holds a permit of the same gate already")]
    Nested,
    /// The server stops.
    #[error("the gate is closed")]
    Closed,
}

/// What a gate shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// How many permits there are.
    pub capacity: usize,
    /// How many of them are out.
    pub in_use: usize,
    /// How many acquirers wait.
    pub waiting: usize,
}

/// Gives out permits in the order of arrival. Cheap to clone; all clones are one gate.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    permits: Arc<Semaphore>,
    capacity: usize,
    waiters_max: usize,
    /// Invariant: counts exactly the live [`Place`]s.
    waiting: AtomicUsize,
}

/// The right to use one of the things behind the gate; it goes back when this is dropped.
#[must_use = "dropping a permit gives it back"]
#[derive(Debug)]
pub struct Permit {
    _held: OwnedSemaphorePermit,
}

impl Gate {
    /// A gate with so many permits and room for so many waiters.
    pub fn new(capacity: usize, waiters_max: usize) -> Self {
        let capacity = capacity.min(Semaphore::MAX_PERMITS);
        Self(Arc::new(Inner {
            permits: Arc::new(Semaphore::new(capacity)),
            capacity,
            waiters_max,
            waiting: AtomicUsize::new(0),
        }))
    }

    /// A permit, at once or as soon as one is free and everybody who came before has theirs.
    ///
    /// Cancel safe: a waiter that is dropped leaves the queue, and a permit that was on its way to it goes on.
    ///
    /// # Errors
    /// [`Overload`] when the queue is full, the deadline passes or the gate closes.
    pub async fn acquire(&self, tag: Tag, deadline: Instant) -> Result<Permit, Overload> {
        let Tag { priority: _, origin: _ } = tag;
        match Arc::clone(&self.0.permits).try_acquire_owned() {
            Ok(held) => return Ok(Permit { _held: held }),
            Err(TryAcquireError::Closed) => return Err(Overload::Closed),
            Err(TryAcquireError::NoPermits) => {}
        }
        let _place = Place::take(&self.0).ok_or(Overload::QueueFull)?;
        let turn = Arc::clone(&self.0.permits).acquire_owned();
        match timeout_at(deadline.into(), turn).await {
            Ok(Ok(held)) => Ok(Permit { _held: held }),
            Ok(Err(_closed)) => Err(Overload::Closed),
            Err(_elapsed) => Err(Overload::Deadline),
        }
    }

    /// Refuses everybody who waits or comes; permits that are out stay valid.
    pub fn close(&self) {
        self.0.permits.close();
    }

    /// Whether [`Gate::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.0.permits.is_closed()
    }

    /// What is going on.
    pub fn status(&self) -> Status {
        Status {
            capacity: self.0.capacity,
            in_use: self.0.capacity.saturating_sub(self.0.permits.available_permits()),
            waiting: self.0.waiting.load(Ordering::Relaxed),
        }
    }
}

/// A place in the queue, given back on drop, so that a waiter that is cancelled does not count for ever.
struct Place<'g>(&'g Inner);

impl<'g> Place<'g> {
    fn take(gate: &'g Inner) -> Option<Self> {
        gate.waiting
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| {
                (waiting < gate.waiters_max).then(|| waiting + 1)
            })
            .ok()
            .map(|_before| Place(gate))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;
    use crate::clock::test_start;

    const CLASS: Tag = Origin::system(Source::Projector).at(Priority::High);

    fn far() -> Instant {
        test_start() + Duration::from_mins(10)
    }

    #[tokio::test]
    async fn no_more_permits_are_out_than_there_are() {
        let gate = Gate::new(2, 4);
        let (first, _second) =
            (gate.acquire(CLASS, far()).await.unwrap(), gate.acquire(CLASS, far()).await.unwrap());
        let mut third = Box::pin(gate.acquire(CLASS, far()));
        assert!(third.as_mut().now_or_never().is_none());
        assert_eq!((gate.status().in_use, gate.status().waiting), (2, 1));
        drop(first);
        let _third = third.await.unwrap();
        assert_eq!((gate.status().in_use, gate.status().waiting), (2, 0));
    }

    #[tokio::test]
    async fn a_free_permit_is_given_even_after_the_deadline() {
        let gate = Gate::new(1, 0);
        assert!(gate.acquire(CLASS, test_start()).await.is_ok());
    }

    #[tokio::test]
    async fn a_full_queue_refuses_at_once_and_a_deadline_ends_the_wait() {
        let gate = Gate::new(1, 1);
        let _held = gate.acquire(CLASS, far()).await.unwrap();
        let mut waits = Box::pin(gate.acquire(CLASS, far()));
        assert!(waits.as_mut().now_or_never().is_none());
        let refused = gate.acquire(CLASS, far()).now_or_never().unwrap();
        assert_eq!(refused.unwrap_err(), Overload::QueueFull);
        drop(waits);
        let late = gate.acquire(CLASS, test_start()).await;
        assert_eq!(late.unwrap_err(), Overload::Deadline);
        assert_eq!(gate.status().waiting, 0);
    }

    #[tokio::test]
    async fn those_who_came_first_are_served_first() {
        let gate = Gate::new(1, 8);
        let held = gate.acquire(CLASS, far()).await.unwrap();
        let mut first = Box::pin(gate.acquire(CLASS, far()));
        let mut second = Box::pin(gate.acquire(CLASS, far()));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        drop(held);
        assert!(second.as_mut().now_or_never().is_none());
        let _first = first.now_or_never().unwrap().unwrap();
        assert!(second.as_mut().now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_permit_on_its_way_to_a_dropped_waiter_goes_to_the_next() {
        let gate = Gate::new(1, 8);
        let held = gate.acquire(CLASS, far()).await.unwrap();
        let mut first = Box::pin(gate.acquire(CLASS, far()));
        let mut second = Box::pin(gate.acquire(CLASS, far()));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        drop(held);
        drop(first);
        assert!(second.now_or_never().unwrap().is_ok());
        assert_eq!((gate.status().in_use, gate.status().waiting), (0, 0));
    }

    #[tokio::test]
    async fn closing_wakes_everybody_who_waits() {
        let gate = Gate::new(1, 8);
        let _held = gate.acquire(CLASS, far()).await.unwrap();
        let mut waits = Box::pin(gate.acquire(CLASS, far()));
        assert!(waits.as_mut().now_or_never().is_none());
        gate.close();
        assert_eq!(waits.await.unwrap_err(), Overload::Closed);
        assert_eq!(gate.acquire(CLASS, far()).await.unwrap_err(), Overload::Closed);
    }
}
