//! How many connections a pool has, in which state, and how many it has had.
//! Promises that the gate's capacity is the number of live connections, whatever changes it.
//! Does not make or close any.

use std::time::Instant;

use super::Pool;
use super::supply::{Demand, Supply};
use crate::admission;
use crate::admission::bucket::Bucket;
use crate::store::session::detector::Endpoint;

/// Connections that may be closed for their age a second, and at once: the place of each is empty until another is
/// made, and a server that sees a hundred log-ins at once is busy with nothing else.
const CLOSINGS_PER_SECOND: u32 = 2;
const CLOSINGS_BURST: u32 = 2;

/// The counts of one pool.
#[derive(Debug)]
pub(super) struct Census {
    /// Connections that are used or can be.
    pub(super) live: usize,
    /// Attempts under way.
    pub(super) creating: usize,
    /// Connections that are being closed.
    pub(super) retiring: usize,
    pub(super) totals: Totals,
    pub(super) supply: Supply,
    pub(super) closings: Bucket,
    /// Whether the last connection is past its time and waits for another one.
    pub(super) renews: bool,
    /// When a connection last broke. Those that were idle then are asked before they are used.
    pub(super) broke_at: Option<Instant>,
}

/// The counts that somebody waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) live: usize,
    pub(super) retiring: usize,
    /// Whether the last attempt to make a connection failed.
    pub(super) is_failing: bool,
}

/// What has happened since the pool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Connections that were made.
    pub created: u64,
    /// Connections that were closed, or lost.
    pub destroyed: u64,
    /// Statements that the server was asked to cancel.
    pub cancels_sent: u64,
    /// Statements of which it is not known whether the server heard that they are to be cancelled.
    pub cancels_failed: u64,
    /// Transactions that were ended because their owner had gone, or might have been left open.
    pub rollbacks: u64,
    /// Switches to the other endpoint.
    pub failbacks: u64,
}

/// What a pool shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// Permits, given and waited for.
    pub gate: admission::Status,
    /// Connections that are used or can be.
    pub live: usize,
    /// Connections that nobody uses.
    pub idle: usize,
    /// Attempts under way to make one.
    pub creating: usize,
    /// Connections that are being closed.
    pub retiring: usize,
    /// Whether the last attempt failed.
    pub away: bool,
    /// Whether the other database is used.
    pub uses_failback: bool,
    /// What has happened.
    pub totals: Totals,
}

impl Census {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            live: 0,
            creating: 0,
            retiring: 0,
            totals: Totals::default(),
            supply: Supply::new(now),
            closings: Bucket::new(CLOSINGS_PER_SECOND, CLOSINGS_BURST, now),
            renews: false,
            broke_at: None,
        }
    }
}

impl Pool {
    /// Changes the counts, and the gate with them. Under one lock, so that of two changes the later one stays.
    pub(super) fn recount(&self, change: impl FnOnce(&mut Census)) {
        let mut census = self.census();
        change(&mut census);
        let is_failing = census.supply.is_failing();
        let sizes = Sizes { live: census.live, retiring: census.retiring, is_failing };
        self.gate.resize(sizes.live);
        self.sizes.send_replace(sizes);
        drop(census);
        self.demand.notify_one();
    }

    pub(super) fn demand(&self) -> Demand {
        let gate = self.gate.status();
        let census = self.census();
        Demand {
            live: census.live,
            retiring: census.retiring,
            in_use: gate.in_use,
            waiting: gate.waiting,
            bounds: (self.limits.least(), self.limits.connections),
            renews: census.renews,
        }
    }

    pub(super) fn status(&self) -> Status {
        let (gate, idle) = (self.gate.status(), self.bag.status().available);
        let uses_failback = self.endpoints.status().active == Endpoint::Failback;
        let census = self.census();
        Status {
            gate,
            live: census.live,
            idle,
            creating: census.creating,
            retiring: census.retiring,
            away: census.supply.is_failing(),
            uses_failback,
            totals: census.totals,
        }
    }
}
