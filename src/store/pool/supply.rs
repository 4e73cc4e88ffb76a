//! Pure: when a pool makes another connection.
//! Promises one attempt at a time, no more than the bucket allows, and pauses that grow while attempts fail.
//! Does not connect; the filler does, and tells what came of it.

use std::time::{Duration, Instant};

use crate::admission::bucket::{Bucket, Decision};

/// Connections that may be made a second. A fork, TLS and a login cost a server some 10 ms of one core: several nodes
/// that lost all their connections at once keep it busy for a moment, not down.
pub(super) const CREATIONS_PER_SECOND: u32 = 5;

/// Connections that may be made at once after a while without any.
pub(super) const CREATIONS_BURST: u32 = 5;

/// First and longest bound of the pause after a failed attempt; the pause is drawn from between 0 and the bound. A
/// second at most: what was away is used again within a second of its return.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What a pool has and what is asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Demand {
    /// Connections that can be used.
    pub(super) live: usize,
    /// Connections that are being closed and still count at the server.
    pub(super) retiring: usize,
    /// Permits that are out.
    pub(super) in_use: usize,
    /// Acquirers that wait.
    pub(super) waiting: usize,
    /// The least and the largest number of connections.
    pub(super) bounds: (usize, usize),
    /// Whether the only connection is past its time: it is closed when there is another.
    pub(super) renews: bool,
}

impl Demand {
    /// Whether one more connection would be of use and is allowed.
    fn wants_more(self) -> bool {
        let (least, most) = self.bounds;
        if self.renews && self.live == 1 {
            return true;
        }
        let target = (self.in_use + self.waiting).clamp(least, most);
        self.live < target && self.live + self.retiring < most
    }
}

/// What the filler is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Next {
    /// Make a connection now.
    Connect,
    /// Look again then, or when demand changes.
    At(Instant),
    /// Look again when demand changes.
    OnDemand,
}

/// The supply of one pool.
#[derive(Debug)]
pub(super) struct Supply {
    creation: Bucket,
    /// Attempts that failed in a row.
    failures: u32,
    not_before: Option<Instant>,
}

impl Supply {
    /// A supply that has made nothing yet.
    pub(super) fn new(now: Instant) -> Self {
        let creation = Bucket::new(CREATIONS_PER_SECOND, CREATIONS_BURST, now);
        Self { creation, failures: 0, not_before: None }
    }

    /// What to do. The token of an attempt is taken before it is made, and a failed attempt does not give it back.
    pub(super) fn on_look(&mut self, demand: Demand, now: Instant) -> Next {
        if !demand.wants_more() {
            return Next::OnDemand;
        }
        if let Some(until) = self.not_before.filter(|until| now < *until) {
            return Next::At(until);
        }
        match self.creation.try_take(now) {
            Decision::Taken => Next::Connect,
            Decision::Wait(wait) => Next::At(now + wait),
        }
    }

    /// Takes the token of an attempt that nobody's demand asks for.
    pub(super) fn take_token(&mut self, now: Instant) -> Decision {
        self.creation.try_take(now)
    }

    /// The attempt succeeded.
    pub(super) fn on_connected(&mut self) {
        self.failures = 0;
        self.not_before = None;
    }

    /// The attempt failed. `draw` is uniform in [0, 1).
    pub(super) fn on_failed(&mut self, now: Instant, draw: f64) {
        let bound = PAUSE_FIRST.saturating_mul(1 << self.failures.min(10)).min(PAUSE_MAX);
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(now + bound.mul_f64(draw.clamp(0.0, 1.0)));
    }

    /// Whether the last attempt failed.
    pub(super) fn is_failing(&self) -> bool {
        self.failures > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::test_start;

    const CALM: Demand =
        Demand { live: 2, retiring: 0, in_use: 1, waiting: 0, bounds: (2, 10), renews: false };

    #[test]
    fn a_pool_grows_with_what_is_asked_of_it_up_to_its_bounds() {
        for (demand, more) in [
            (CALM, false),
            (Demand { live: 0, in_use: 0, ..CALM }, true),
            (Demand { live: 1, ..CALM }, true),
            (Demand { in_use: 2, ..CALM }, false),
            (Demand { in_use: 2, waiting: 1, ..CALM }, true),
            (Demand { live: 9, in_use: 9, waiting: 500, ..CALM }, true),
            (Demand { live: 10, in_use: 10, waiting: 500, ..CALM }, false),
            // What is being closed counts at the server.
            (Demand { live: 8, retiring: 2, in_use: 8, waiting: 5, ..CALM }, false),
            (Demand { live: 0, in_use: 0, bounds: (0, 0), ..CALM }, false),
            // The only one is renewed by making another first.
            (Demand { live: 1, in_use: 1, bounds: (1, 1), ..CALM }, false),
            (Demand { live: 1, in_use: 1, bounds: (1, 1), renews: true, ..CALM }, true),
            (Demand { live: 2, in_use: 1, bounds: (1, 1), renews: true, ..CALM }, false),
        ] {
            assert_eq!(demand.wants_more(), more, "{demand:?}");
        }
    }

    #[test]
    fn no_more_are_made_than_the_bucket_allows_however_many_wait() {
        let start = test_start();
        let mut now = start;
        let mut supply = Supply::new(start);
        let mut made = Vec::new();
        while now < start + Duration::from_secs(2) {
            let demand = Demand { live: made.len().min(9), waiting: 50, ..CALM };
            match supply.on_look(demand, now) {
                Next::Connect => {
                    made.push(now);
                    supply.on_connected();
                }
                Next::At(at) => {
                    assert!(at > now);
                    now = at;
                }
                Next::OnDemand => unreachable!("50 wait"),
            }
        }
        assert_eq!(made.iter().filter(|at| **at == start).count(), 5);
        assert!((14..=15).contains(&made.len()), "{}", made.len());
    }

    #[test]
    fn attempts_that_fail_cost_their_token_and_are_made_ever_more_rarely() {
        let start = test_start();
        let mut supply = Supply::new(start);
        let none = Demand { live: 0, in_use: 0, ..CALM };
        let mut now = start;
        let (mut attempts, mut longest) = (0, Duration::ZERO);
        while now < start + Duration::from_mins(1) {
            match supply.on_look(none, now) {
                Next::Connect => {
                    attempts += 1;
                    supply.on_failed(now, 0.99);
                }
                Next::At(at) => {
                    longest = longest.max(at - now);
                    now = at;
                }
                Next::OnDemand => unreachable!("there are none"),
            }
        }
        assert!(supply.is_failing());
        assert!(longest <= PAUSE_MAX && longest > PAUSE_MAX / 2, "{longest:?}");
        assert!((58..=75).contains(&attempts), "{attempts}");
        supply.on_connected();
        assert!(!supply.is_failing());
        assert_eq!(supply.on_look(none, now), Next::Connect);
    }
}
