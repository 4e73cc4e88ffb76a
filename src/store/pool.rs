//! The two guarded pools: connections that can only be had with a permit.
//! Promises a connection whose last operation was completed, and an answer, good or bad, before the deadline.
//! Does not try anything again; a failure goes to the caller, and the connection it may have spoiled is closed.
//!
//! The gate has as many permits as there are live connections, so whoever has a permit finds a connection, and nobody
//! waits in a second queue behind it. Connections are made and closed by tasks of the pool, never by who asks for one.

mod cancel;
mod census;
mod cleanup;
mod filler;
mod lease;
mod retire;
mod settings;
mod slot;
mod supply;
mod switch;

use std::fmt;
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use deadpool::unmanaged::{Object, Pool as Bag};
use futures_util::poll;
use rand::rngs::StdRng;
use tokio::sync::{Notify, watch};

use self::cancel::Cancels;
use self::census::{Census, Sizes};
pub use self::census::{Status, Totals};
pub use self::lease::Lease;
use self::retire::Farewell;
pub use self::settings::{Limits, Means, Settings};
use self::slot::{Fit, Sight, Slot};
use super::session::Opening;
use super::session::detector::Detector;
use super::session::failback::Endpoints;
use super::{Error, Target};
use crate::admission::{Gate, Overload, Permit, Tag};
use crate::clock::Clock;
use crate::lifecycle::{Kind, Supervisor};
use crate::metrics;

/// How long an idle connection that is not trusted may take to answer: a round trip takes well under a millisecond, so
/// this is a machine in trouble.
const PING_TIMEOUT: Duration = Duration::from_millis(250);

/// A wait that was cut off earlier than this says something about its deadline, nothing about Postgres.
const STALL: Duration = Duration::from_millis(250);

/// How long an acquirer hopes for a connection when there is none. To make one takes some 10 ms, and a token of the
/// bucket 200 ms at most; who waits for longer than a wait in a calm queue is better told.
const REFILL_MAX: Duration = Duration::from_millis(100);

/// How often a permit is given back and asked for anew because the connection behind it was closed meanwhile.
const RACES_MAX: usize = 2;

/// A pool for one kind of work. Cheap to clone.
pub struct Guarded<K> {
    pool: Arc<Pool>,
    kind: PhantomData<fn() -> K>,
}

/// Reads that somebody waits for.
#[derive(Clone, Copy, Debug)]
pub enum Reads {}

/// Projection and upkeep.
#[derive(Clone, Copy, Debug)]
pub enum Upkeep {}

/// The pool of reads that somebody waits for.
pub type Interactive = Guarded<Reads>;

/// The pool of projection and upkeep: its work cannot take a reader's connection.
pub type Background = Guarded<Upkeep>;

/// Both pools, with the tasks that keep them. Nothing is connected yet: a server starts while Postgres is away.
pub fn open(settings: &Settings, means: &mut Means) -> (Interactive, Background) {
    let now = means.clock.now();
    let endpoints = Endpoints::new(settings.target.clone(), settings.failback.clone(), now);
    let cancels = Arc::new(Cancels::new());
    let mut pool = |part| {
        let pool = Pool::new(part, &endpoints, &cancels, means);
        pool.keep();
        pool
    };
    let shares = settings.background.connections == 0;
    let interactive = pool(("interactive", settings.interactive, shares));
    let background = if shares {
        Arc::clone(&interactive)
    } else {
        pool(("background", settings.background, true))
    };
    if endpoints.are_two() {
        let mut pools = vec![Arc::clone(&interactive)];
        if !shares {
            pools.push(Arc::clone(&background));
        }
        means
            .supervisor
            .supervise(Kind::Pool, "failback", move |stop| switch::run(pools.clone(), stop));
    }
    (Guarded::new(interactive), Guarded::new(background))
}

impl<K> Guarded<K> {
    /// A connection for one or a few operations.
    ///
    /// Cancel safe: permit and connection are given back. One task holds at most one lease of a pool.
    ///
    /// # Errors
    /// [`Error`] of a retryable kind when there is none to be had before the deadline; at once when none can be expected.
    pub async fn acquire(&self, tag: Tag, deadline: Instant) -> Result<Lease, Error> {
        Pool::acquire(&self.pool, tag, deadline).await
    }

    /// Waits until the pool has its least number of connections, or an attempt to make one failed, and says whether it has
    /// them.
    pub async fn warm(&self, deadline: Instant) -> bool {
        self.pool.warm(deadline).await
    }

    /// The database that is used now, with the number of that choice.
    pub fn database(&self) -> (u64, Target) {
        self.pool.endpoints.current()
    }

    /// Whether there is another database.
    pub fn has_failback(&self) -> bool {
        self.pool.endpoints.are_two()
    }

    /// Uses the other database, if there is one and it takes connections: for a server that starts without the primary.
    pub fn leave_primary(&self) {
        self.pool.endpoints.decide(Detector::on_absence);
    }

    /// Uses the primary database again, if it is ready, without waiting for it to prove itself.
    pub fn return_to_primary(&self) {
        self.pool.endpoints.decide(Detector::on_request);
    }

    /// Whether this is one pool with the other.
    pub fn is<L>(&self, other: &Guarded<L>) -> bool {
        Arc::ptr_eq(&self.pool, &other.pool)
    }

    /// What is going on.
    pub fn status(&self) -> Status {
        self.pool.status()
    }

    /// Refuses everybody from here on, waits for the leases that are out, and closes every connection; at the deadline
    /// without waiting. Whatever is given back later is closed too.
    pub async fn close(&self, deadline: Instant) {
        self.pool.close(deadline).await;
    }
}

impl<K> Clone for Guarded<K> {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.pool))
    }
}

impl<K> fmt::Debug for Guarded<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pool.fmt(f)
    }
}

impl<K> Guarded<K> {
    fn new(pool: Arc<Pool>) -> Self {
        Self { pool, kind: PhantomData }
    }
}

struct Pool {
    name: &'static str,
    limits: Limits,
    /// What a transaction begins with.
    opening: Opening,
    /// Whether it must be able to write, and so never uses a standby.
    writes: bool,
    gate: Gate,
    /// Idle connections. The last one in is the first one out, so that what is not needed grows old and is seen to be so.
    bag: Bag<Slot>,
    /// Held while somebody looks into the bag: the sweep takes everything out of it for a moment.
    looking: Mutex<()>,
    /// Those who wait for the first connection after there was none.
    hoping: AtomicUsize,
    endpoints: Endpoints,
    cancels: Arc<Cancels>,
    census: Mutex<Census>,
    rng: Mutex<StdRng>,
    /// Wakes the filler.
    demand: Notify,
    sizes: watch::Sender<Sizes>,
    supervisor: Supervisor,
    metrics: metrics::Pool,
    clock: Clock,
}

impl Pool {
    async fn acquire(pool: &Arc<Self>, tag: Tag, deadline: Instant) -> Result<Lease, Error> {
        let began = pool.clock.now();
        let acquired = Self::try_acquire(pool, tag, deadline).await;
        match &acquired {
            Ok(_) => {
                let took = pool.clock.now().saturating_duration_since(began);
                pool.metrics.acquire_duration.record(took.as_secs_f64());
            }
            Err(_) => pool.metrics.refused_acquires.increment(1),
        }
        acquired
    }

    async fn try_acquire(pool: &Arc<Self>, tag: Tag, deadline: Instant) -> Result<Lease, Error> {
        for _ in 0..RACES_MAX {
            let permit = match pool.permit(tag, deadline).await {
                Err(Overload::ZeroCapacity) if pool.is_refilled(deadline).await => continue,
                permit => permit.map_err(|source| pool.refused(source))?,
            };
            if let Some(lease) = Self::lease(pool, permit, deadline).await? {
                return Ok(lease);
            }
        }
        Err(pool.refused(Overload::ZeroCapacity))
    }

    /// Waits a little for the first connection when there is none but nothing says that none can be made: one was just
    /// lost, or is being renewed.
    async fn is_refilled(&self, deadline: Instant) -> bool {
        if self.census().supply.is_failing() || self.gate.is_closed() {
            return false;
        }
        let Some(_hope) = Hope::take(&self.hoping, self.limits.waiters) else { return false };
        let until = deadline.min(self.clock.now() + REFILL_MAX);
        let mut sizes = self.sizes.subscribe();
        let refilled = sizes.wait_for(|sizes| sizes.live > 0);
        tokio::time::timeout_at(until.into(), refilled).await.is_ok_and(|seen| seen.is_ok())
    }

    fn refused(&self, source: Overload) -> Error {
        // Whoever finds no connection because none can be made has found out that Postgres is away.
        if source == Overload::ZeroCapacity && self.census().supply.is_failing() {
            self.note_outcome(self.endpoints.generation(), true);
        }
        Error::Refused { pool: self.name, source }
    }

    /// A permit; whoever has to wait for it wakes the filler.
    async fn permit(&self, tag: Tag, deadline: Instant) -> Result<Permit, Overload> {
        let mut turn = pin!(self.gate.acquire(tag, deadline));
        if let Poll::Ready(permit) = poll!(&mut turn) {
            return permit;
        }
        self.demand.notify_one();
        turn.await
    }

    /// The lease of an idle connection that can be trusted; `None` if they were all closed since the permit was given.
    async fn lease(
        pool: &Arc<Self>,
        permit: Permit,
        deadline: Instant,
    ) -> Result<Option<Lease>, Error> {
        let mut permit = Some(permit);
        while let Some(slot) = pool.take_idle() {
            let fit = slot.fit(pool.sight());
            if fit == Fit::Retire {
                pool.retire(slot, Farewell::Close);
                continue;
            }
            let Some(held) = permit.take() else { break };
            let mut lease = Lease::new(Arc::clone(pool), slot, held);
            if fit == Fit::Ready {
                return Ok(Some(lease));
            }
            let patience = pool.clock.now() + PING_TIMEOUT;
            match lease.ask(deadline.min(patience)).await {
                Ok(()) => return Ok(Some(lease)),
                // It had no time to answer, so it is not at fault.
                Err(error @ Error::Deadline { .. }) if deadline < patience => return Err(error),
                Err(_) => permit = lease.give_up(),
            }
        }
        Ok(None)
    }

    /// The connection that was used last.
    fn take_idle(&self) -> Option<Object<Slot>> {
        let _looking = self.look();
        self.bag.try_get().ok()
    }

    fn look(&self) -> MutexGuard<'_, ()> {
        self.looking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sight(&self) -> Sight {
        let now = self.clock.now();
        Sight { now, generation: self.endpoints.generation(), broke_at: self.census().broke_at }
    }

    fn give_back(self: &Arc<Self>, mut slot: Object<Slot>) {
        let now = self.clock.now();
        slot.idle_since = now;
        let is_former = slot.generation != self.endpoints.generation();
        if is_former || self.gate.is_closed() || self.may_renew(&slot, now) {
            self.retire(slot, Farewell::Close);
        }
    }

    fn note_broken(&self) {
        self.census().broke_at = Some(self.clock.now());
    }

    /// Tells who chooses between the endpoints what came of an operation on a connection of this choice.
    fn note_outcome(&self, generation: u64, is_infrastructure_failure: bool) {
        self.endpoints.note(generation, is_infrastructure_failure, self.clock.now());
    }

    fn count(&self, count: impl FnOnce(&mut Totals)) {
        count(&mut self.census().totals);
    }

    fn census(&self) -> MutexGuard<'_, Census> {
        self.census.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draw(&self) -> f64 {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        rand::RngExt::random(&mut *rng)
    }
}

/// A place among those who hope, given up on drop.
struct Hope<'p>(&'p AtomicUsize);

impl<'p> Hope<'p> {
    fn take(hoping: &'p AtomicUsize, most: usize) -> Option<Self> {
        let taken = hoping.try_update(Ordering::Relaxed, Ordering::Relaxed, |hoping| {
            (hoping < most).then(|| hoping + 1)
        });
        taken.ok().map(|_before| Self(hoping))
    }
}

impl Drop for Hope<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.name)
            .field("endpoints", &self.endpoints)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
