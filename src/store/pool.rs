//! The two guarded pools: connections that can only be had with a permit.
//! Promises a connection whose last operation was completed, and an answer, good or bad, before the deadline.
//! Does not try anything again; a failure goes to the caller, and the connection it may have spoiled is closed.

mod lease;
mod outage;
mod savepoint;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};
use tokio::time::timeout_at;
use tracing::{info, warn};

pub use self::lease::Lease;
use self::outage::{Decision, Outage, STALL};
pub use self::savepoint::savepoint;
use super::{Error, Kind, Target};
use crate::admission::{self, Gate, Tag};
use crate::clock::Clock;
use crate::metrics::{self, Metrics};

/// How long a connection may be idle before it is asked whether it still lives. Firewalls and poolers drop idle
/// sessions after minutes; `PgBouncer`'s own `server_check_delay` is the same 30 s.
const IDLE_UNASKED_MAX: Duration = Duration::from_secs(30);

/// How long that question may take: a round trip takes well under a millisecond, so this is a machine in trouble.
const PING_TIMEOUT: Duration = Duration::from_millis(250);

/// How long making a connection may take. A fork, TLS and a login take some 10 ms; ten times as many at once, 100 ms.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The bounds of one pool.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How many connections there are at most.
    pub connections: usize,
    /// How many may wait for one; whoever comes later is refused at once.
    pub waiters: usize,
    /// Longest statement, enforced by Postgres; deadlines of requests are shorter.
    pub statement_timeout: Duration,
}

impl Limits {
    /// Reads on behalf of somebody who waits. Ten connections keep two to four cores of a database busy; at 2 ms a
    /// read, 640 waiters are 130 ms of work, less than anybody's deadline.
    pub const INTERACTIVE: Self =
        Self { connections: 10, waiters: 640, statement_timeout: Duration::from_secs(15) };

    /// Projection, rebuild, verification. A few loops that take turns; nobody waits in a long queue.
    pub const BACKGROUND: Self =
        Self { connections: 10, waiters: 640, statement_timeout: Duration::from_mins(1) };
}

/// What the pools are made of.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The database.
    pub target: Target,
    /// The pool of reads that somebody waits for.
    pub interactive: Limits,
    /// The pool of everything else. With 0 connections it is the interactive pool.
    pub background: Limits,
}

/// The pool of reads that somebody waits for. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Interactive(Arc<Pool>);

/// The pool of projection and upkeep: its work cannot take a reader's connection. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Background(Arc<Pool>);

/// What a pool shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Permits, given and waited for.
    pub gate: admission::Status,
    /// Connections that nobody uses.
    pub idle: usize,
    /// Whether acquirers are refused because Postgres does not answer.
    pub away: bool,
}

/// Both pools. Nothing is connected yet: a server starts while Postgres is away.
pub fn open(settings: &Settings, clock: &Clock) -> (Interactive, Background) {
    open_counted(settings, clock, Metrics::silent(0))
}

/// The same, with acquires counted and timed.
pub fn open_counted(
    settings: &Settings,
    clock: &Clock,
    metrics: Metrics,
) -> (Interactive, Background) {
    let pool = |name, limits, metrics| {
        Pool::new((name, metrics), limits, settings.target.clone(), clock.clone())
    };
    let interactive = pool("interactive", settings.interactive, metrics.interactive);
    let background = if settings.background.connections == 0 {
        Arc::clone(&interactive)
    } else {
        pool("background", settings.background, metrics.background)
    };
    (Interactive(interactive), Background(background))
}

impl Interactive {
    /// A connection for a read that somebody waits for.
    ///
    /// Cancel safe: permit and connection are given back.
    ///
    /// # Errors
    /// [`Error`] of a retryable kind when there is none to be had before the deadline; at once when none can be expected.
    pub async fn acquire(&self, tag: Tag, deadline: Instant) -> Result<Lease, Error> {
        Pool::acquire(&self.0, tag, deadline).await
    }

    /// What is going on.
    pub fn status(&self) -> Status {
        self.0.status()
    }

    /// Refuses everybody from here on and closes idle connections; leases that are out stay valid.
    pub fn close(&self) {
        self.0.close();
    }
}

impl Background {
    /// A connection for work that nobody waits for.
    ///
    /// Cancel safe: permit and connection are given back.
    ///
    /// # Errors
    /// [`Error`] of a retryable kind when there is none to be had before the deadline; at once when none can be expected.
    pub async fn acquire(&self, tag: Tag, deadline: Instant) -> Result<Lease, Error> {
        Pool::acquire(&self.0, tag, deadline).await
    }

    /// What is going on.
    pub fn status(&self) -> Status {
        self.0.status()
    }

    /// Refuses everybody from here on and closes idle connections; leases that are out stay valid.
    pub fn close(&self) {
        self.0.close();
    }
}

struct Pool {
    name: &'static str,
    metrics: metrics::Pool,
    gate: Gate,
    target: Target,
    statement_timeout: Duration,
    clock: Clock,
    /// The last one in is the first one out, so that what is not needed grows old and is seen to be so.
    idle: Mutex<Vec<Idle>>,
    health: Mutex<Health>,
}

struct Idle {
    conn: PgConnection,
    since: Instant,
}

#[derive(Default)]
struct Health {
    outage: Outage,
    /// When a connection last broke. Those that were idle then are asked before they are used.
    broke_at: Option<Instant>,
}

impl Pool {
    fn new(
        (name, metrics): (&'static str, metrics::Pool),
        limits: Limits,
        target: Target,
        clock: Clock,
    ) -> Arc<Self> {
        Arc::new(Self {
            name,
            metrics,
            gate: Gate::new(limits.connections, limits.waiters),
            target,
            statement_timeout: limits.statement_timeout,
            clock,
            idle: Mutex::new(Vec::with_capacity(limits.connections)),
            health: Mutex::default(),
        })
    }

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
        if pool.health().outage.refuses(pool.clock.now()) {
            return Err(Error::Away { pool: pool.name });
        }
        let permit = pool
            .gate
            .acquire(tag, deadline)
            .await
            .map_err(|source| Error::Refused { pool: pool.name, source })?;
        let decision = pool.health().outage.on_acquire(pool.clock.now());
        let conn = match decision {
            Decision::Refuse => return Err(Error::Away { pool: pool.name }),
            Decision::Pass => pool.connection(deadline).await?,
            Decision::Probe => {
                let _probe = Probe(pool);
                info!("the {} pool asks whether Postgres is back", pool.name);
                pool.connection(deadline).await?
            }
        };
        Ok(Lease::new(Arc::clone(pool), conn, permit))
    }

    /// An idle connection that can be trusted, or a new one.
    async fn connection(&self, deadline: Instant) -> Result<PgConnection, Error> {
        while let Some((mut conn, trusted)) = self.take_idle() {
            if trusted {
                return Ok(conn);
            }
            let started = self.clock.now();
            let until = deadline.min(started + PING_TIMEOUT);
            match timeout_at(until.into(), conn.ping()).await {
                Ok(Ok(())) => {
                    self.health().outage.on_answer();
                    return Ok(conn);
                }
                Ok(Err(_gone)) => self.note_broken(),
                Err(_elapsed) => {
                    self.note_silence(started);
                    if self.health().outage.refuses(self.clock.now()) {
                        return Err(Error::Away { pool: self.name });
                    }
                }
            }
        }
        self.connect(deadline).await
    }

    async fn connect(&self, deadline: Instant) -> Result<PgConnection, Error> {
        let started = self.clock.now();
        let until = deadline.min(started + CONNECT_TIMEOUT);
        let connected = self.target.connect(self.name, self.statement_timeout, until).await;
        match &connected {
            Err(Error::Deadline { .. }) => self.note_silence(started),
            Err(error) if error.kind() == Kind::Unavailable => {
                let now = self.clock.now();
                self.health().outage.on_silence(now);
            }
            // A refusal is an answer too: too many connections, a wrong password, an unknown database.
            Ok(_) | Err(_) => self.health().outage.on_answer(),
        }
        connected
    }

    /// The connection that was used last, and whether it may be used unasked.
    fn take_idle(&self) -> Option<(PgConnection, bool)> {
        let Idle { conn, since } = self.idle().pop()?;
        let now = self.clock.now();
        let health = self.health();
        let fresh = now.saturating_duration_since(since) <= IDLE_UNASKED_MAX;
        let outlived = health.broke_at.is_none_or(|broke_at| since > broke_at);
        Some((conn, fresh && outlived))
    }

    fn give_back(&self, conn: PgConnection) {
        let since = self.clock.now();
        if !self.gate.is_closed() {
            self.idle().push(Idle { conn, since });
        }
    }

    fn note_broken(&self) {
        let now = self.clock.now();
        self.health().broke_at = Some(now);
    }

    /// A wait that began then ended without an answer.
    fn note_silence(&self, started: Instant) {
        let now = self.clock.now();
        let mut health = self.health();
        health.broke_at = Some(now);
        if now.saturating_duration_since(started) >= STALL {
            health.outage.on_silence(now);
            if health.outage.refuses(now) {
                warn!("Postgres does not answer; the {} pool refuses", self.name);
            }
        }
    }

    fn status(&self) -> Status {
        let away = self.health().outage.refuses(self.clock.now());
        Status { gate: self.gate.status(), idle: self.idle().len(), away }
    }

    fn close(&self) {
        self.gate.close();
        self.idle().clear();
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.name)
            .field("target", &self.target)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

/// Ends a probe that was dropped before it had a result.
struct Probe<'p>(&'p Pool);

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        self.0.health().outage.on_abandon();
    }
}
