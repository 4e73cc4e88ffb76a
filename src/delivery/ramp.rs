//! Pure: how fast a backlog is released, and how fast a channel wants to be delivered to.
//! Promises that a release begins with one delivery and doubles with every round that works.
//! Does not wait; it says until when.

use std::time::{Duration, Instant};

use crate::directory::{Per, RateLimit};

/// How many deliveries of a backlog may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ramp {
    window: usize,
    cap: usize,
    /// Failures one after the other.
    failures: u32,
}

/// Failures one after the other that end a release. One alone says little: what fails now and then is released too.
const FAILURES_MAX: u32 = 2;

impl Ramp {
    /// A release that begins; `cap` is the channel's.
    pub fn new(cap: usize) -> Self {
        Self { window: 1, cap: cap.max(1), failures: 0 }
    }

    /// No release: a channel that is always delivered to from its backlog.
    pub fn open() -> Self {
        Self { window: usize::MAX, cap: 1, failures: 0 }
    }

    /// How many may be under way now.
    pub fn window(&self) -> usize {
        self.window.min(self.cap)
    }

    /// The channel's cap changed.
    pub fn set_cap(&mut self, cap: usize) {
        self.cap = cap.max(1);
    }

    /// One more was delivered: a whole window of them doubles it.
    pub fn on_success(&mut self) {
        self.failures = 0;
        self.window = self.window.saturating_add(1).min(self.cap);
    }

    /// One failed: the window halves while the release has not reached the cap. True when that ends the release.
    #[must_use]
    pub fn on_failure(&mut self) -> bool {
        if self.window >= self.cap {
            return false;
        }
        self.failures += 1;
        self.window = (self.window / 2).max(1);
        self.failures >= FAILURES_MAX
    }
}

/// A bucket of tokens. It holds one second's worth, at least one.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    interval: Duration,
    /// The moment up to which tokens are taken (the generic cell rate algorithm).
    taken: Instant,
    burst: Duration,
}

impl Rate {
    /// A full bucket.
    pub fn new(limit: RateLimit, now: Instant) -> Self {
        let per = match limit.per {
            Per::Second => Duration::from_secs(1),
            Per::Minute => Duration::from_mins(1),
        };
        let interval = per / u32::try_from(limit.count).unwrap_or(u32::MAX).max(1);
        let burst = Duration::from_secs(1).saturating_sub(interval);
        Self { interval, taken: now, burst }
    }

    /// Takes a token.
    ///
    /// # Errors
    /// The moment at which there will be one.
    pub fn take(&mut self, now: Instant) -> Result<(), Instant> {
        let from = self.taken.max(now);
        if from.saturating_duration_since(now) > self.burst {
            return Err(from.checked_sub(self.burst).unwrap_or(from));
        }
        self.taken = from + self.interval;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::test_start;

    #[test]
    fn a_release_doubles_with_every_round_up_to_the_cap() {
        let mut ramp = Ramp::new(10);
        let mut windows = Vec::new();
        for _ in 0..5 {
            windows.push(ramp.window());
            (0..ramp.window()).for_each(|_| ramp.on_success());
        }
        assert_eq!(windows, [1, 2, 4, 8, 10]);
        assert!(!ramp.on_failure(), "the release is over");
        let mut ramp = Ramp::new(10);
        (0..6).for_each(|_| ramp.on_success());
        assert!(!ramp.on_failure());
        assert_eq!(ramp.window(), 3);
        ramp.on_success();
        assert!(!ramp.on_failure(), "one after a success is the first again");
        assert!(ramp.on_failure());
        assert!(!Ramp::new(1).on_failure() && !Ramp::open().on_failure());
    }

    #[test]
    fn a_rate_is_kept_over_any_time_and_bursts_for_a_second_at_most() {
        for (text, per_minute, burst) in [("80/s", 4_800, 80), ("1000/m", 1_000, 16), ("1/m", 1, 1)]
        {
            let limit = RateLimit::parse(text).unwrap();
            let begin = test_start();
            let mut rate = Rate::new(limit, begin);
            let at_once = (0..1_000).filter(|_| rate.take(begin).is_ok()).count();
            assert_eq!(at_once, burst, "{text}");
            let begin = test_start();
            let mut rate = Rate::new(limit, begin);
            let (mut now, mut taken) = (begin, 0);
            while now < begin + Duration::from_mins(1) {
                match rate.take(now) {
                    Ok(()) => taken += 1,
                    Err(then) => now = then,
                }
            }
            assert!((per_minute..=per_minute + burst).contains(&taken), "{text}: {taken}");
        }
    }
}
