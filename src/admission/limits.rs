//! Pure: how long one may wait, as a function of how long permits are held.
//! Promises limits between their bounds, recomputed at most once a second, and the short one never above the long one.
//! Does not watch the queues; they ask for the limits when somebody joins.
//!
//! Permits turn over every `S / C`, held time over capacity. Limits that are right for one pool are wrong for another:
//! with 5 ms and 100 ms a pool of five permits that are held for a second leaves a fifth of itself idle at 1.2 times
//! its load, with `2 S/C` and `20 S/C` a twentieth.

use std::time::{Duration, Instant};

use super::debt::real;

/// The constants of Facebook's controlled delay ("Fail at Scale", 2015), good for permits that are held for
/// milliseconds: no limit is below them unless its upper bound is.
const SHORT_MIN: Duration = Duration::from_millis(5);
const LONG_MIN: Duration = Duration::from_millis(100);

/// The short limit is so many turnovers, the long one so many.
const SHORT_TURNS: f64 = 2.0;
const LONG_TURNS: f64 = 20.0;

/// How often the limits change.
const PERIOD: Duration = Duration::from_secs(1);

/// How much of the mean the newest period is.
const NEWEST: f64 = 0.25;

/// Longest hold that counts; beyond it both limits are at their upper bounds anyway.
const HELD_MAX: Duration = Duration::from_hours(1);

/// The limits of one gate.
#[derive(Debug)]
pub(super) struct Limits {
    target: Duration,
    interval: Duration,
    /// Moving average of the hold times, in seconds; `None` until the first period is over.
    held: Option<f64>,
    /// Hold times of this period.
    sum: Duration,
    count: u32,
    since: Instant,
    short: Duration,
    long: Duration,
}

impl Limits {
    pub(super) fn new(target: Duration, interval: Duration, now: Instant) -> Self {
        let (sum, count) = (Duration::ZERO, 0);
        let (short, long) = (SHORT_MIN.min(target), LONG_MIN.min(interval));
        Self { target, interval, held: None, sum, count, since: now, short, long }
    }

    /// A permit was given back after `held`.
    pub(super) fn on_release(&mut self, held: Duration, capacity: usize, now: Instant) {
        self.sum = self.sum.saturating_add(held.min(HELD_MAX));
        self.count = self.count.saturating_add(1);
        if now.saturating_duration_since(self.since) < PERIOD {
            self.since = self.since.min(now);
            return;
        }
        let mean = self.sum.as_secs_f64() / f64::from(self.count);
        let held = self.held.map_or(mean, |held| held + NEWEST * (mean - held));
        (self.held, self.sum, self.count, self.since) = (Some(held), Duration::ZERO, 0, now);
        self.on_resize(capacity);
    }

    /// There are more permits, or fewer.
    pub(super) fn on_resize(&mut self, capacity: usize) {
        let Some(held) = self.held.filter(|_| capacity > 0) else {
            return;
        };
        let turn = held / real(capacity);
        self.short = bounded(SHORT_TURNS * turn, SHORT_MIN, self.target);
        self.long = bounded(LONG_TURNS * turn, LONG_MIN, self.interval);
    }

    /// How long one waits in a queue that stands.
    pub(super) fn short(&self) -> Duration {
        self.short
    }

    /// For how long a queue may go without being empty before it stands.
    pub(super) fn long(&self) -> Duration {
        self.long
    }
}

fn bounded(seconds: f64, least: Duration, most: Duration) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(most).clamp(least.min(most), most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::test_start;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// The limits of a pool whose permits are held for `held`, after a second.
    fn after(held: Duration, capacity: usize, (target, interval): (u64, u64)) -> (u64, u64) {
        let start = test_start();
        let mut limits = Limits::new(ms(target), ms(interval), start);
        limits.on_release(held, capacity, start + PERIOD);
        let whole = |limit: Duration| u64::try_from(limit.as_micros() / 1000).unwrap();
        (whole(limits.short()), whole(limits.long()))
    }

    #[test]
    fn limits_follow_the_turnover_between_their_bounds() {
        assert_eq!(after(ms(10), 10, (50, 1000)), (5, 100), "quick: the least there is");
        assert_eq!(after(ms(100), 10, (50, 1000)), (20, 200));
        assert_eq!(after(ms(1000), 5, (500, 5000)), (400, 4000), "slow, in the background");
        assert_eq!(after(ms(1000), 5, (50, 1000)), (50, 1000), "slow: the most that was set");
        assert_eq!(after(Duration::MAX, 1, (50, 1000)), (50, 1000));
        assert_eq!(after(ms(1), 10, (2, 40)), (2, 40), "a bound below the least one wins");
    }

    #[test]
    fn limits_change_once_a_second_and_with_the_capacity() {
        let start = test_start();
        let mut limits = Limits::new(ms(500), ms(5000), start);
        limits.on_release(ms(1000), 10, start + ms(999));
        assert_eq!((limits.short(), limits.long()), (ms(5), ms(100)), "nothing is known yet");
        limits.on_release(ms(1000), 10, start + ms(1000));
        assert_eq!((limits.short(), limits.long()), (ms(200), ms(2000)));
        limits.on_release(ms(0), 10, start + ms(1500));
        assert_eq!(limits.short(), ms(200), "half a second later");
        limits.on_release(ms(0), 10, start + ms(2000));
        assert_eq!(limits.short(), ms(150), "a quarter of the way");
        limits.on_resize(5);
        assert_eq!((limits.short(), limits.long()), (ms(300), ms(3000)));
        limits.on_resize(0);
        assert_eq!(limits.short(), ms(300), "no permits, no turnover");
    }

    #[test]
    fn a_clock_that_steps_back_does_not_stop_the_limits() {
        let start = test_start() + ms(10_000_000);
        let mut limits = Limits::new(ms(500), ms(5000), start);
        let back = start.checked_sub(ms(3_600_000)).unwrap();
        limits.on_release(ms(1000), 10, back);
        limits.on_release(ms(1000), 10, back + PERIOD);
        assert_eq!(limits.short(), ms(200));
    }
}
