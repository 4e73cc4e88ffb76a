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
use std::pin::pin;
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
use super::Error;
use super::session::Opening;
use super::session::failback::Endpoints;
use crate::admission::{Gate, Overload, Permit, Tag};
use crate::clock::Clock;
use crate::lifecycle::{Kind, Supervisor};
use crate::metrics;

/// How long an idle connection that is not trusted may take to answer: a round trip takes well under a millisecond, so
/// this is a machine in trouble.
const PING_TIMEOUT: Duration = Duration::from_millis(250);

/// A wait that was cut off earlier than this says something about its deadline, nothing about Postgres.
const STALL: Duration = Duration::from_millis(250);

/// How often a permit is given back and asked for anew because the connection behind it was closed meanwhile.
const RACES_MAX: usize = 2;

/// The pool of reads that somebody waits for. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Interactive(Arc<Pool>);

/// The pool of projection and upkeep: its work cannot take a reader's connection. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Background(Arc<Pool>);

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
    (Interactive(interactive), Background(background))
}

/// The calls that both pools have alike.
macro_rules! guarded {
    ($pool:ident) => {
        impl $pool {
            /// A connection for one or a few operations.
            ///
            /// Cancel safe: permit and connection are given back. One task holds at most one lease of a pool.
            ///
            /// # Errors
            /// [`Error`] of a retryable kind when there is none to be had before the deadline; at once when none can be
            /// expected.
            pub async fn acquire(&self, tag: Tag, deadline: Instant) -> Result<Lease, Error> {
                Pool::acquire(&self.0, tag, deadline).await
            }

            /// Waits until the pool has its least number of connections, and says whether it has them.
            pub async fn warm(&self, deadline: Instant) -> bool {
                self.0.warm(deadline).await
            }

            /// Uses the primary database again, if it is ready, without waiting for it to prove itself.
            pub fn return_to_primary(&self) {
                self.0.endpoints.request_primary();
            }

            /// What is going on.
            pub fn status(&self) -> Status {
                self.0.status()
            }

            /// Refuses everybody from here on, waits for the leases that are out, and closes every connection; at the
            /// deadline without waiting. Whatever is given back later is closed too.
            pub async fn close(&self, deadline: Instant) {
                self.0.close(deadline).await;
            }
        }
    };
}

guarded!(Interactive);
guarded!(Background);

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
            let permit = pool.permit(tag, deadline).await.map_err(|source| pool.refused(source))?;
            if let Some(lease) = Self::lease(pool, permit, deadline).await {
                return Ok(lease);
            }
        }
        Err(pool.refused(Overload::ZeroCapacity))
    }

    fn refused(&self, source: Overload) -> Error {
        // Whoever finds no connection because none can be made has found out that Postgres is away.
        if source == Overload::ZeroCapacity && self.census().supply.is_failing() {
            self.note_outcome(true);
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
    async fn lease(pool: &Arc<Self>, permit: Permit, deadline: Instant) -> Option<Lease> {
        let mut permit = Some(permit);
        while let Some(slot) = pool.take_idle().await {
            match slot.fit(pool.sight()) {
                Fit::Ready => return Some(Lease::new(Arc::clone(pool), slot, permit.take()?)),
                Fit::Retire => pool.retire(slot, Farewell::Close),
                Fit::Ask => {
                    let mut lease = Lease::new(Arc::clone(pool), slot, permit.take()?);
                    let until = deadline.min(pool.clock.now() + PING_TIMEOUT);
                    if lease.ask(until).await.is_ok() {
                        return Some(lease);
                    }
                    permit = lease.give_up();
                }
            }
        }
        None
    }

    /// The connection that was used last. The sweep of idle connections takes them all out for some microseconds.
    async fn take_idle(&self) -> Option<Object<Slot>> {
        for _ in 0..SWEEP_YIELDS {
            if let Ok(slot) = self.bag.try_get() {
                return Some(slot);
            }
            tokio::task::yield_now().await;
        }
        self.bag.try_get().ok()
    }

    fn sight(&self) -> Sight {
        let now = self.clock.now();
        Sight { now, generation: self.endpoints.generation(), broke_at: self.census().broke_at }
    }

    fn give_back(self: &Arc<Self>, mut slot: Object<Slot>) {
        slot.idle_since = self.clock.now();
        let is_former = slot.generation != self.endpoints.generation();
        if is_former || self.gate.is_closed() {
            self.retire(slot, Farewell::Close);
        }
    }

    fn note_broken(&self) {
        self.census().broke_at = Some(self.clock.now());
    }

    /// Tells who chooses between the endpoints what came of an operation.
    fn note_outcome(&self, is_infrastructure_failure: bool) {
        self.endpoints.note(is_infrastructure_failure, self.clock.now());
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

/// How often an acquirer that finds no connection steps aside for a sweep.
const SWEEP_YIELDS: usize = 3;

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.name)
            .field("endpoints", &self.endpoints)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
