//! What the pools are made of: bounds, endpoints, and what they are given to work with.
//! Promises the reasons of every bound.
//! Does not read the configuration; it is told.

use std::time::Duration;

use rand::rngs::StdRng;

use crate::clock::Clock;
use crate::lifecycle::Supervisor;
use crate::metrics::Metrics;
use crate::store::Target;

/// The bounds of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many connections there are at most.
    pub connections: usize,
    /// How many are kept when nobody asks for one; no more than there may be.
    pub connections_min: usize,
    /// How many may wait for one; whoever comes later is refused at once.
    pub waiters: usize,
    /// Longest statement, enforced by Postgres; deadlines of requests are shorter.
    pub statement_timeout: Duration,
    /// Longest wait in a queue that stands.
    pub target: Duration,
    /// How long a queue may stand, and the longest wait in one that does not.
    pub interval: Duration,
    /// Over how long the mean wait is taken.
    pub window: Duration,
    /// The most connections that one tenant may use at a time; [`usize::MAX`] for no bound but the pool's.
    pub tenant_max: usize,
}

impl Limits {
    /// Reads on behalf of somebody who waits. Ten connections keep two to four cores of a database busy; at 2 ms a
    /// read, 640 waiters are 130 ms of work, less than anybody's deadline.
    pub const INTERACTIVE: Self = Self {
        connections: 10,
        connections_min: 2,
        waiters: 640,
        statement_timeout: Duration::from_secs(15),
        target: Duration::from_millis(50),
        interval: Duration::from_secs(1),
        window: Duration::from_secs(5),
        tenant_max: usize::MAX,
    };

    /// Projection, rebuild, verification. A few loops that take turns; nobody waits in a long queue.
    pub const BACKGROUND: Self = Self {
        statement_timeout: Duration::from_mins(1),
        target: Duration::from_millis(500),
        interval: Duration::from_secs(5),
        ..Self::INTERACTIVE
    };
}

impl Limits {
    /// How many connections are kept: one at least, or nobody would ever be let in.
    pub(super) fn least(&self) -> usize {
        self.connections_min.max(1).min(self.connections)
    }
}

/// What the pools are made of.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The database.
    pub target: Target,
    /// Another one that is used when it fails: a standby that was promoted.
    pub failback: Option<Target>,
    /// The pool of reads that somebody waits for.
    pub interactive: Limits,
    /// The pool of everything else. With 0 connections it is the interactive pool.
    pub background: Limits,
}

/// What the pools are given to work with.
#[derive(Debug)]
pub struct Means {
    /// Where time comes from.
    pub clock: Clock,
    /// Where acquires are counted and timed.
    pub metrics: Metrics,
    /// Who runs the tasks of the pools.
    pub supervisor: Supervisor,
    /// Where lifetimes and pauses are drawn from.
    pub rng: StdRng,
}
