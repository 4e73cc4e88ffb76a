//! Pure: what one node sees of one channel's attempts, and when that is reason to stop.
//! Promises bounded memory, and that a channel that mostly works is never stopped for its few failures.
//! Does not stop anything; the breaker's entry does.

use std::time::{Duration, Instant};

use super::verdict::Sign;

/// Transient failures one after the other that open the breaker.
const FAILURES_MAX: u32 = 5;

/// Permanent failures one after the other that open it: a bad credential must not use up a whole backlog.
const PERMANENT_MAX: u32 = 20;

/// The window of the share of failures, in parts.
const PART: Duration = Duration::from_secs(10);
const PARTS: usize = 6;

/// Attempts within the window below which a share says nothing.
const SHARE_ATTEMPTS_MIN: u32 = 20;

/// The window of slowness.
const SLOW_WINDOW: Duration = Duration::from_secs(10);

/// Mean time of an attempt from which it is slow.
const SLOW_MEAN: Duration = Duration::from_secs(5);

/// Why a channel is to be set apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trip {
    /// Five transient failures one after the other.
    Failures,
    /// At least half of at least twenty attempts of the last minute failed for the moment.
    Flapping,
    /// Twenty permanent failures one after the other.
    Permanent,
    /// It takes more than half of its tier's time, five seconds and more for each: it is set apart, not stopped.
    Slow,
}

/// One attempt.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// What it says.
    pub sign: Sign,
    /// How long it took.
    pub took: Duration,
}

/// What is known of one channel; about 150 bytes.
#[derive(Clone, Debug)]
pub struct Health {
    transient: u32,
    permanent: u32,
    /// Attempts and transient failures of the last parts of the window; the part's number tells whether they are still of it.
    parts: [(u64, u32, u32); PARTS],
    began: Instant,
    slow_since: Instant,
    slow_time: Duration,
    slow_count: u32,
    last: Instant,
}

impl Health {
    /// A channel that nothing is known of.
    pub fn new(now: Instant) -> Self {
        Self {
            transient: 0,
            permanent: 0,
            parts: [(0, 0, 0); PARTS],
            began: now,
            slow_since: now,
            slow_time: Duration::ZERO,
            slow_count: 0,
            last: now,
        }
    }

    /// Failures one after the other.
    pub fn consecutive_failures(&self) -> u32 {
        self.transient + self.permanent
    }

    /// Whether it was not heard of for a window: what it knows says nothing any more.
    pub fn is_idle(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) > PART * 6 && self.consecutive_failures() == 0
    }

    /// Takes an attempt in; `slots` is how many the tier has. After a trip it begins anew.
    #[must_use]
    pub fn on_sample(&mut self, sample: Sample, slots: usize, now: Instant) -> Option<Trip> {
        self.last = now;
        match sample.sign {
            Sign::Success => (self.transient, self.permanent) = (0, 0),
            Sign::Transient => self.transient += 1,
            Sign::Permanent => self.permanent += 1,
        }
        // Permanent failures have an alarm of their own.
        self.count(sample.sign == Sign::Transient, now);
        let slow = self.is_slow(sample.took, slots, now);
        let trip = if self.transient >= FAILURES_MAX {
            Some(Trip::Failures)
        } else if self.permanent >= PERMANENT_MAX {
            Some(Trip::Permanent)
        } else if self.is_flapping(now) {
            Some(Trip::Flapping)
        } else {
            slow.then_some(Trip::Slow)
        };
        if trip.is_some() {
            *self = Self::new(now);
        }
        trip
    }

    fn part(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_secs() / PART.as_secs()
    }

    fn count(&mut self, failed: bool, now: Instant) {
        let part = self.part(now);
        let slot = &mut self.parts[usize::try_from(part).unwrap_or(0) % PARTS];
        if slot.0 != part {
            *slot = (part, 0, 0);
        }
        slot.1 += 1;
        slot.2 += u32::from(failed);
    }

    fn is_flapping(&self, now: Instant) -> bool {
        let part = self.part(now);
        let recent = self.parts.iter().filter(|slot| slot.0 + (PARTS as u64) > part);
        let (attempts, failures) =
            recent.fold((0, 0), |sum, slot| (sum.0 + slot.1, sum.1 + slot.2));
        attempts >= SHARE_ATTEMPTS_MIN && failures * 2 >= attempts
    }

    fn is_slow(&mut self, took: Duration, slots: usize, now: Instant) -> bool {
        if now.saturating_duration_since(self.slow_since) > SLOW_WINDOW {
            (self.slow_since, self.slow_time, self.slow_count) = (now, Duration::ZERO, 0);
        }
        self.slow_time += took;
        self.slow_count += 1;
        let whole = SLOW_WINDOW * u32::try_from(slots).unwrap_or(u32::MAX);
        self.slow_time * 2 > whole && self.slow_time >= SLOW_MEAN * self.slow_count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::test_start;

    fn sample(sign: Sign, millis: u64) -> Sample {
        Sample { sign, took: Duration::from_millis(millis) }
    }

    /// Signs by letter, one every `gap`; what tripped, and after how many.
    fn run(signs: &str, gap: Duration, millis: u64) -> Option<(usize, Trip)> {
        let mut health = Health::new(test_start());
        for (number, letter) in signs.chars().enumerate() {
            let sign = match letter {
                's' => Sign::Success,
                't' => Sign::Transient,
                _ => Sign::Permanent,
            };
            let now = test_start() + gap * u32::try_from(number).unwrap();
            if let Some(trip) = health.on_sample(sample(sign, millis), 20, now) {
                return Some((number + 1, trip));
            }
        }
        None
    }

    #[test]
    fn each_kind_of_trouble_trips_and_what_mostly_works_does_not() {
        let (tick, ms) = (Duration::from_millis(500), 20);
        assert_eq!(run("ttttt", tick, ms), Some((5, Trip::Failures)));
        assert_eq!(run(&"tttts".repeat(3), tick, ms), None, "too few to say");
        assert_eq!(run(&"tttts".repeat(8), tick, ms), Some((20, Trip::Flapping)));
        assert_eq!(run(&"ts".repeat(40), tick, ms), Some((20, Trip::Flapping)));
        assert_eq!(run(&"sssst".repeat(200), tick, ms), None, "flapping 4:1 goes on");
        assert_eq!(run(&"p".repeat(20), tick, ms), Some((20, Trip::Permanent)));
        assert_eq!(run(&"pppps".repeat(40), tick, ms), None, "an alarm of their own");
        assert_eq!(run(&"ts".repeat(40), Duration::from_secs(9), ms), None, "too seldom to say");
    }

    #[test]
    fn slowness_trips_by_its_share_of_the_tiers_time() {
        // Half of twenty slots for ten seconds are 100 s of attempts.
        let tick = Duration::from_millis(100);
        assert_eq!(run(&"s".repeat(50), tick, 9_000), Some((12, Trip::Slow)));
        assert_eq!(run(&"s".repeat(50), tick, 4_900), None, "not slow, however much");
        assert_eq!(run(&"s".repeat(50), Duration::from_secs(1), 9_000), None, "too few at once");
    }

    #[test]
    fn it_begins_anew_after_a_trip_and_is_forgotten_when_idle() {
        let mut health = Health::new(test_start());
        for _ in 0..4 {
            assert_eq!(health.on_sample(sample(Sign::Transient, 1), 20, test_start()), None);
        }
        assert_eq!(health.consecutive_failures(), 4);
        let trip = health.on_sample(sample(Sign::Transient, 1), 20, test_start());
        assert_eq!((trip, health.consecutive_failures()), (Some(Trip::Failures), 0));
        assert!(!health.is_idle(test_start()));
        assert!(health.is_idle(test_start() + Duration::from_secs(61)));
    }
}
