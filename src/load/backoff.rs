//! Pure: how long to pause before the next attempt: exponential, with full jitter, never below what the server asks for.
//! Promises that callers that failed together do not come back together.
//! Does not sleep and does not give up; the run's end does.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// Longest first pause: a server that was restarted is back in about that time.
pub const PAUSE_FIRST_MAX: Duration = Duration::from_millis(50);

/// Longest pause: long for a server that has fallen, short for a person who waits for a run to go on.
pub const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Each pause may be this much longer than the one before.
const FACTOR: f32 = 2.0;

/// Longest wait that a server can ask for; no server of ours asks for more, and a run would only sleep.
pub const RETRY_AFTER_MAX: Duration = Duration::from_mins(1);

/// The pauses of one caller.
#[derive(Debug)]
pub struct Backoff {
    longest: ExponentialBackoff,
}

impl Backoff {
    /// The next pause is a first one.
    pub fn new() -> Self {
        Self::between(PAUSE_FIRST_MAX, PAUSE_MAX)
    }

    /// The same with other bounds: the longest first pause, and the longest of all.
    pub fn between(first: Duration, longest: Duration) -> Self {
        let growing = ExponentialBuilder::new()
            .with_factor(FACTOR)
            .with_min_delay(first)
            .with_max_delay(longest)
            .without_max_times();
        Self { longest: growing.build() }
    }

    /// The next pause; `draw` is uniform in `[0, 1)`. What the server asks for is a floor with jitter on top: a floor
    /// alone would bring everybody back at the same moment.
    pub fn next(&mut self, asked: Option<Duration>, draw: f64) -> Duration {
        let longest = self.longest.next().unwrap_or(PAUSE_MAX);
        let floor = asked.unwrap_or_default().min(RETRY_AFTER_MAX);
        floor + longest.mul_f64(1.0 - draw.clamp(0.0, 1.0))
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    #[test]
    fn pauses_double_up_to_their_bound() {
        let mut backoff = Backoff::new();
        let pauses: Vec<u128> = (0..8).map(|_| backoff.next(None, 0.0).as_millis()).collect();
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1_600, 2_000, 2_000]);
    }

    #[test]
    fn a_pause_is_anywhere_between_nothing_and_its_bound() {
        for draw in [0.0, 0.25, 0.5, 0.999] {
            let pause = Backoff::new().next(None, draw);
            let expected = PAUSE_FIRST_MAX.mul_f64(1.0 - draw);
            assert!(
                pause.abs_diff(expected) < MILLI && pause > Duration::ZERO,
                "{draw}: {pause:?}"
            );
        }
    }

    #[test]
    fn what_the_server_asks_for_is_a_floor_and_no_two_wait_for_it_alike() {
        let asked = Duration::from_millis(1_250);
        let (early, late) =
            (Backoff::new().next(Some(asked), 0.9), Backoff::new().next(Some(asked), 0.1));
        assert!(early > asked && late > early && late <= asked + PAUSE_FIRST_MAX);
        let absurd = Backoff::new().next(Some(Duration::from_hours(9)), 0.0);
        assert_eq!(absurd, RETRY_AFTER_MAX + PAUSE_FIRST_MAX);
    }
}
