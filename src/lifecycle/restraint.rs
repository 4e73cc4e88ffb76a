//! Pure: whether something that goes on and on is worth another line of the log.
//! Promises one line at once, then at most one in each [`PAUSE`], and that no occurrence is left uncounted between two lines.
//! Does not write lines, and does not say that it is over: silence does.

use std::time::{Duration, Instant};

/// Shortest time between two lines: six a minute are read, and say that it goes on.
pub const PAUSE: Duration = Duration::from_secs(10);

/// What to do about one occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Decision {
    /// Write a line.
    Log {
        /// How many occurrences had none since the last line.
        suppressed: u64,
    },
    /// Write none.
    Drop,
}

/// The memory of one kind of occurrence.
#[derive(Clone, Copy, Debug, Default)]
pub struct Restraint {
    logged_at: Option<Instant>,
    suppressed: u64,
}

impl Restraint {
    /// It happened. A clock that goes backwards keeps quiet until it is where it was.
    pub fn on_event(&mut self, now: Instant) -> Decision {
        let rested = |at: Instant| now.saturating_duration_since(at) >= PAUSE;
        if self.logged_at.is_some_and(|at| !rested(at)) {
            self.suppressed = self.suppressed.saturating_add(1);
            return Decision::Drop;
        }
        self.logged_at = Some(now);
        Decision::Log { suppressed: std::mem::take(&mut self.suppressed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::test_start;

    #[test]
    fn the_first_is_logged_and_then_one_in_each_pause_with_the_number_of_the_others() {
        let start = test_start();
        let mut restraint = Restraint::default();
        let mut lines = Vec::new();
        for tick in 0..=250_u32 {
            let at = Duration::from_millis(100) * tick;
            if let Decision::Log { suppressed } = restraint.on_event(start + at) {
                lines.push((at.as_secs(), suppressed));
            }
        }
        assert_eq!(lines, [(0, 0), (10, 99), (20, 99)]);
    }

    #[test]
    fn what_comes_again_after_a_long_rest_is_logged_at_once() {
        let start = test_start();
        let mut restraint = Restraint::default();
        assert_eq!(restraint.on_event(start), Decision::Log { suppressed: 0 });
        assert_eq!(restraint.on_event(start + PAUSE / 2), Decision::Drop);
        let later = start + Duration::from_hours(1);
        assert_eq!(restraint.on_event(later), Decision::Log { suppressed: 1 });
        assert_eq!(restraint.on_event(start), Decision::Drop, "the clock went backwards");
    }
}
