//! Answers that were given up because Postgres could not be had: each is counted, and now and then one is told.
//! Promises that an outage with a thousand refused readers a second is a line in ten seconds, with their number.
//! Does not decide what is given up; the flows do.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tracing::warn;

use crate::lifecycle::restraint::{Decision, Restraint};
use crate::metrics::{Database, Source};

/// Counts and tells. Clones share what they remember.
#[derive(Clone, Debug)]
pub struct Shortage {
    metrics: Database,
    /// One a source, by its number.
    restraints: Arc<[Mutex<Restraint>]>,
}

impl Shortage {
    /// Counts in these metrics.
    pub fn new(metrics: Database) -> Self {
        let restraints = Source::ALL.iter().map(|_| Mutex::default()).collect();
        Self { metrics, restraints }
    }

    /// An answer was given up. What the cause is goes into the log only.
    pub(super) fn note(&self, source: Source, cause: &str, now: Instant) {
        self.metrics.unavailable(source).increment(1);
        let restraint = &self.restraints[source as usize];
        let decision = restraint.lock().unwrap_or_else(PoisonError::into_inner).on_event(now);
        if let Decision::Log { suppressed } = decision {
            let source = Source::ALL[source as usize].1;
            warn!(
                source,
                suppressed,
                error = %cause,
                "requests by {source} are answered without what only Postgres has"
            );
        }
    }
}
