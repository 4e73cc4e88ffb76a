//! Handles of one pool's metrics, and of the gate before it.
//! Promises a handle for every value of every label, at the place that the enum behind the label has.
//! Does not count: totals and gauges are set from what the pool shows, so that they cannot drift from it.

use std::sync::Arc;

use metrics::{Counter, Gauge, Histogram};

use super::Registry;
use super::label::{CANCELS, CLASSES, ENDPOINTS, PRIORITIES, REASONS, STATES};

/// What one pool of database connections reports.
#[derive(Clone, Debug)]
pub struct Pool {
    /// The gate before it.
    pub gate: Arc<Gate>,
    /// `forebay_store_connections`, in the order of [`STATES`].
    pub connections: [Gauge; STATES.len()],
    /// `forebay_store_created_connections_total`.
    pub created_connections: Counter,
    /// `forebay_store_destroyed_connections_total`.
    pub destroyed_connections: Counter,
    /// `forebay_store_cancels_total`, in the order of [`CANCELS`].
    pub cancels: [Counter; CANCELS.len()],
    /// `forebay_store_rollbacks_total`.
    pub rollbacks: Counter,
    /// `forebay_store_failbacks_total`, in the order of [`ENDPOINTS`].
    pub failbacks: [Counter; ENDPOINTS.len()],
    /// `forebay_store_refused_acquires_total`.
    pub refused_acquires: Counter,
    /// `forebay_store_acquire_duration_seconds`.
    pub acquire_duration: Histogram,
}

/// What the gate before a pool reports.
#[derive(Clone, Debug)]
pub struct Gate {
    /// `forebay_admission_granted_acquires_total`, in the order of [`PRIORITIES`].
    pub granted_acquires: [Counter; PRIORITIES.len()],
    /// `forebay_admission_refused_acquires_total`, in the order of [`REASONS`], then of [`PRIORITIES`].
    pub refused_acquires: [[Counter; PRIORITIES.len()]; REASONS.len()],
    /// `forebay_admission_debt_permits`, in the order of [`PRIORITIES`].
    pub debt: [Gauge; PRIORITIES.len()],
    /// `forebay_admission_share_permits`, in the order of [`CLASSES`].
    pub share: [Gauge; CLASSES.len()],
    /// `forebay_admission_waiting_acquires`, in the order of [`CLASSES`].
    pub waiting: [Gauge; CLASSES.len()],
    /// `forebay_admission_mean_wait_seconds`.
    pub mean_wait: Gauge,
}

impl Registry<'_> {
    pub(super) fn pool(&self, pool: &str) -> Pool {
        let at = &[("pool", pool)];
        let and = |label, value| [("pool", pool), (label, value)];
        Pool {
            gate: Arc::new(self.gate(pool)),
            connections: STATES
                .map(|state| self.gauge("forebay_store_connections", &and("state", state))),
            created_connections: self.counter("forebay_store_created_connections_total", at),
            destroyed_connections: self.counter("forebay_store_destroyed_connections_total", at),
            cancels: CANCELS.map(|outcome| {
                self.counter("forebay_store_cancels_total", &and("outcome", outcome))
            }),
            rollbacks: self.counter("forebay_store_rollbacks_total", at),
            failbacks: ENDPOINTS
                .map(|to| self.counter("forebay_store_failbacks_total", &and("to", to))),
            refused_acquires: self.counter("forebay_store_refused_acquires_total", at),
            acquire_duration: self.histogram("forebay_store_acquire_duration_seconds", at),
        }
    }

    fn gate(&self, pool: &str) -> Gate {
        let and = |label, value| [("pool", pool), (label, value)];
        let refused = |reason| {
            PRIORITIES.map(|priority| {
                let labels = [("pool", pool), ("reason", reason), ("priority", priority)];
                self.counter("forebay_admission_refused_acquires_total", &labels)
            })
        };
        let class = |name| CLASSES.map(|class| self.gauge(name, &and("class", class)));
        Gate {
            granted_acquires: PRIORITIES.map(|priority| {
                let name = "forebay_admission_granted_acquires_total";
                self.counter(name, &and("priority", priority))
            }),
            refused_acquires: REASONS.map(refused),
            debt: PRIORITIES.map(|priority| {
                self.gauge("forebay_admission_debt_permits", &and("priority", priority))
            }),
            share: class("forebay_admission_share_permits"),
            waiting: class("forebay_admission_waiting_acquires"),
            mean_wait: self.gauge("forebay_admission_mean_wait_seconds", &[("pool", pool)]),
        }
    }
}
