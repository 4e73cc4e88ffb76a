//! Pure: the sends of an open loop: when each is due, and which are given up because nobody took them in time.
//! Promises that a send is made or given up once, and that giving up costs one step however many it concerns.
//! Does not wait; times count from the beginning of the run.

use std::time::Duration;

use super::tally::precise;

/// Sends at a fixed rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Arrivals {
    /// Sends a second.
    pub(super) per_second: f64,
    /// How long a send waits to be taken.
    pub(super) patience: Duration,
    /// Sends that are due earlier are not tallied.
    pub(super) warmup: Duration,
    /// Sends that are due then or later are not made.
    pub(super) end: Duration,
}

/// Sends that were not made in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GivenUp {
    /// The send that is to be taken next.
    pub(super) next: u64,
    /// How many they are.
    pub(super) count: u64,
    /// How many of them are tallied.
    pub(super) tallied: u64,
}

impl Arrivals {
    /// When the nth send is due.
    pub(super) fn due(&self, nth: u64) -> Duration {
        due(precise(nth), self.per_second)
    }

    /// What is given up now that so much time has passed: this send, which somebody has taken, and all overdue ones from the
    /// first that nobody has. `None` while this one is in time. Those between are others', who see to them.
    pub(super) fn given_up(&self, taken: u64, untaken: u64, passed: Duration) -> Option<GivenUp> {
        let oldest = passed.saturating_sub(self.patience).min(self.end);
        let (in_time, measured) = (self.first_due_at(oldest), self.first_due_at(self.warmup));
        (taken < in_time).then(|| GivenUp {
            next: in_time.max(untaken),
            count: 1 + in_time.saturating_sub(untaken),
            tallied: u64::from(taken >= measured) + in_time.saturating_sub(untaken.max(measured)),
        })
    }

    /// The first send that is due then or later.
    fn first_due_at(&self, then: Duration) -> u64 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
        let mut nth = (then.as_secs_f64() * self.per_second) as u64;
        // What is lost in the product is less than one send either way.
        nth = nth.saturating_sub(1);
        while self.due(nth) < then && nth < u64::MAX {
            nth += 1;
        }
        nth
    }
}

/// When a send is due at this rate.
pub(super) fn due(nth: f64, per_second: f64) -> Duration {
    let seconds = nth / per_second.max(f64::MIN_POSITIVE);
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn arrivals(per_second: f64) -> Arrivals {
        Arrivals {
            per_second,
            patience: Duration::from_millis(20),
            warmup: Duration::from_secs(1),
            end: Duration::from_secs(4),
        }
    }

    #[test]
    fn all_that_is_overdue_and_nobodys_is_given_up_in_one_step() {
        let given_up = |taken, untaken, millis| {
            let found = arrivals(1_000.0).given_up(taken, untaken, Duration::from_millis(millis));
            found.map(|GivenUp { next, count, tallied }| (next, count, tallied))
        };
        for (taken, untaken, millis, expected) in [
            // Not due yet, due just now, at the end of its patience.
            (500, 501, 400, None),
            (500, 501, 500, None),
            (500, 501, 520, None),
            // A millisecond, then half a second too late, within the warm-up and beyond it.
            (500, 501, 521, Some((501, 1, 0))),
            (500, 501, 980, Some((960, 460, 0))),
            (500, 501, 1_520, Some((1_500, 1_000, 500))),
            (1_200, 1_201, 1_520, Some((1_500, 300, 300))),
            // Others have taken some of those that are overdue, all of them, and more than those.
            (1_200, 1_300, 1_520, Some((1_500, 201, 201))),
            (1_200, 1_500, 1_520, Some((1_500, 1, 1))),
            (1_200, 1_900, 1_520, Some((1_900, 1, 1))),
            // Those that are due after the end are nobody's.
            (3_900, 3_901, 9_000, Some((4_000, 100, 100))),
            (4_000, 4_001, 9_000, None),
        ] {
            let found = given_up(taken, untaken, millis);
            assert_eq!(found, expected, "{taken} taken, {untaken} not, after {millis} ms");
        }
    }

    #[test]
    fn a_rate_of_nothing_gives_nothing_up() {
        assert_eq!(arrivals(0.0).given_up(1, 2, Duration::from_secs(3)), None);
        assert_eq!(arrivals(0.0).due(1), Duration::MAX);
    }

    proptest! {
        #[test]
        fn what_is_given_up_is_late_and_what_follows_is_not(
            rate in 1.0..500_000.0_f64,
            taken in 0..100_000_u64,
            others in 0..1_000_u64,
            micros in 0..6_000_000_u64,
        ) {
            let (all, passed) = (arrivals(rate), Duration::from_micros(micros));
            let is_late = |nth| all.due(nth) + all.patience < passed && all.due(nth) < all.end;
            let untaken = taken + 1 + others;
            match all.given_up(taken, untaken, passed) {
                None => prop_assert!(!is_late(taken)),
                Some(GivenUp { next, count, tallied }) => {
                    prop_assert!(is_late(taken) && !is_late(next));
                    prop_assert!(next == untaken || is_late(next - 1));
                    prop_assert_eq!(count, 1 + next - untaken);
                    prop_assert!(tallied <= count);
                }
            }
        }
    }
}
