//! Pure: whether Postgres answers, told from connects, pings and statements that did or did not end.
//! Promises that after a few failures in a row nobody waits, except one probe after each cool-down.
//! Does not connect; the pool does, and tells what came of it.

use std::time::{Duration, Instant};

/// So many failures in a row open the breaker: one can be the server's backend, two a coincidence.
pub(super) const FAILURES_TO_OPEN: u32 = 3;

/// How long nobody is let through after a failure. A reader is told to come back after about a second, so it finds
/// the result of a probe; a paused Postgres costs one connect in a second.
pub(super) const COOL_DOWN: Duration = Duration::from_secs(1);

/// A wait that was cut off earlier than this says something about its deadline, nothing about Postgres.
pub(super) const STALL: Duration = Duration::from_millis(250);

/// What an acquirer may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Decision {
    /// Use a connection.
    Pass,
    /// Find out whether there is one to be had; nobody else may until [`Outage::on_answer`],
    /// [`Outage::on_silence`] or [`Outage::on_abandon`].
    Probe,
    /// Do not wait.
    Refuse,
}

/// What the breaker knows. `closed` = traffic passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum State {
    #[default]
    Closed,
    Open {
        until: Instant,
    },
    HalfOpen {
        until: Instant,
    },
}

/// The breaker between the acquirers of a pool and a Postgres that does not answer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outage {
    state: State,
    failures: u32,
}

impl Outage {
    /// Somebody wants a connection and is ready to use it.
    pub(super) fn on_acquire(&mut self, now: Instant) -> Decision {
        match self.state {
            State::Closed => Decision::Pass,
            State::Open { until } if now >= until => {
                self.state = State::HalfOpen { until };
                Decision::Probe
            }
            State::Open { .. } | State::HalfOpen { .. } => Decision::Refuse,
        }
    }

    /// Whether it would be refused; changes nothing, so it may be asked before queueing.
    pub(super) fn refuses(&self, now: Instant) -> bool {
        match self.state {
            State::Closed => false,
            State::Open { until } => now < until,
            State::HalfOpen { .. } => true,
        }
    }

    /// Postgres answered something.
    pub(super) fn on_answer(&mut self) {
        *self = Self::default();
    }

    /// A connect failed, or a wait of at least [`STALL`] ended without an answer.
    pub(super) fn on_silence(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        let probing = self.state != State::Closed;
        if probing || self.failures >= FAILURES_TO_OPEN {
            self.state = State::Open { until: now + COOL_DOWN };
        }
    }

    /// The prober went away without a result; the next acquirer probes.
    pub(super) fn on_abandon(&mut self) {
        if let State::HalfOpen { until } = self.state {
            self.state = State::Open { until };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::test_start;

    fn opened(start: Instant) -> Outage {
        let mut outage = Outage::default();
        for _ in 0..FAILURES_TO_OPEN {
            assert_eq!(outage.on_acquire(start), Decision::Pass);
            outage.on_silence(start);
        }
        outage
    }

    #[test]
    fn only_failures_in_a_row_open_it() {
        let start = test_start();
        let mut outage = Outage::default();
        for _ in 0..10 {
            outage.on_silence(start);
            outage.on_silence(start);
            outage.on_answer();
        }
        assert_eq!(outage.on_acquire(start), Decision::Pass);
        assert_eq!(opened(start).on_acquire(start), Decision::Refuse);
    }

    #[test]
    fn one_probe_after_each_cool_down() {
        let start = test_start();
        let mut outage = opened(start);
        let later = start + COOL_DOWN;
        assert!(!outage.refuses(later));
        assert_eq!(outage.on_acquire(later), Decision::Probe);
        assert_eq!(outage.on_acquire(later), Decision::Refuse);
        outage.on_silence(later);
        assert_eq!(outage.on_acquire(later), Decision::Refuse);
        assert_eq!(outage.on_acquire(later + COOL_DOWN), Decision::Probe);
        outage.on_answer();
        assert_eq!(outage.on_acquire(later + COOL_DOWN), Decision::Pass);
    }

    #[test]
    fn a_probe_that_is_dropped_is_taken_over_by_the_next() {
        let start = test_start();
        let mut outage = opened(start);
        let later = start + COOL_DOWN;
        assert_eq!(outage.on_acquire(later), Decision::Probe);
        outage.on_abandon();
        assert_eq!(outage.on_acquire(later), Decision::Probe);
    }

    #[test]
    fn a_late_failure_of_a_holder_prolongs_an_outage_but_does_not_double_it() {
        let start = test_start();
        let mut outage = opened(start);
        outage.on_silence(start + COOL_DOWN / 2);
        assert!(outage.refuses(start + COOL_DOWN));
        assert!(!outage.refuses(start + COOL_DOWN + COOL_DOWN / 2));
        outage.on_answer();
        assert!(!outage.refuses(start));
    }
}
