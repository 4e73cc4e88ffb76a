//! Pure: a token bucket: a rate with a burst, by GCRA (ITU-T I.371).
//! Promises that never more than burst + rate x time are taken, and that a clock that steps back gives none away.
//! Does not wait; it says how long to.
//!
//! Rate and burst are whole numbers, so that there is no rate that is not a number or has no end.

use std::time::{Duration, Instant};

/// A bucket. It begins full.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    /// How long it takes until another token is there. Invariant: not zero.
    interval: Duration,
    burst: u32,
    /// When all of the burst is back (the theoretical arrival time of GCRA).
    full_at: Instant,
}

/// Whether a token was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Decision {
    /// It was.
    Taken,
    /// It was not; there will be one after this long. Not zero.
    Wait(Duration),
}

impl Bucket {
    /// So many tokens a second and at most so many at once. 0 counts as 1.
    pub fn new(per_second: u32, burst: u32, now: Instant) -> Self {
        let interval = Duration::from_nanos(1_000_000_000 / u64::from(per_second.max(1)));
        Self { interval, burst: burst.max(1), full_at: now }
    }

    /// Takes a token if there is one.
    pub fn try_take(&mut self, now: Instant) -> Decision {
        let debt = self.full_at.saturating_duration_since(now);
        let room = self.interval * (self.burst - 1);
        match debt.checked_sub(room) {
            Some(wait) if !wait.is_zero() => Decision::Wait(wait),
            _ => {
                self.full_at = self.full_at.max(now) + self.interval;
                Decision::Taken
            }
        }
    }

    /// Takes a token whether there is one or not. What is owed never exceeds a burst, so that one bad moment is not
    /// paid for long.
    pub fn charge(&mut self, now: Instant) {
        let most = now + self.interval * self.burst * 2;
        self.full_at = (self.full_at.max(now) + self.interval).min(most);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::clock::test_start;

    #[test]
    fn a_burst_goes_at_once_and_then_a_token_an_interval() {
        let start = test_start();
        let mut bucket = Bucket::new(5, 3, start);
        for _ in 0..3 {
            assert_eq!(bucket.try_take(start), Decision::Taken);
        }
        let wait = Duration::from_millis(200);
        assert_eq!(bucket.try_take(start), Decision::Wait(wait));
        assert_eq!(bucket.try_take(start + wait), Decision::Taken);
        assert_eq!(bucket.try_take(start + wait), Decision::Wait(wait));
    }

    #[test]
    fn what_is_charged_is_waited_for_and_bounded() {
        let start = test_start();
        let mut bucket = Bucket::new(2, 2, start);
        for _ in 0..100 {
            bucket.charge(start);
        }
        let Decision::Wait(wait) = bucket.try_take(start) else { panic!("nothing is left") };
        assert_eq!(wait, Duration::from_millis(1_500));
    }

    #[test]
    fn a_rate_of_nothing_counts_as_one() {
        let start = test_start();
        let mut bucket = Bucket::new(0, 0, start);
        assert_eq!(bucket.try_take(start), Decision::Taken);
        assert_eq!(bucket.try_take(start), Decision::Wait(Duration::from_secs(1)));
    }

    proptest! {
        #[test]
        fn never_more_than_burst_and_rate_allow(
            steps in prop::collection::vec((0_u64..400, any::<bool>()), 1..200),
        ) {
            let start = test_start() + Duration::from_secs(100);
            let mut bucket = Bucket::new(5, 4, start);
            let (mut now, mut latest, mut taken) = (start, start, 0_u32);
            for (millis, back) in steps {
                let step = Duration::from_millis(millis);
                now = if back { now.checked_sub(step / 4).unwrap() } else { now + step };
                latest = latest.max(now);
                taken += u32::from(bucket.try_take(now) == Decision::Taken);
                let allowed = 4.0 + (latest - start).as_secs_f64() * 5.0;
                prop_assert!(f64::from(taken) <= allowed + 1e-6, "{taken} of {allowed}");
            }
        }
    }
}
