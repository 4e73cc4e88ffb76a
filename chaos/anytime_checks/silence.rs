//! Pure: how long nothing was acknowledged, told by a count that is looked at again and again.
//! Promises that a silence counts from the begin and up to the last look: a load of which nothing comes is one silence.
//! Does not count.

use std::time::{Duration, Instant};

/// Whether the count went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Look {
    /// Something was acknowledged since the last look.
    Rose,
    /// Nothing was.
    Stood,
}

/// What is known so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    count: u64,
    since: Instant,
    longest: Duration,
}

impl Silence {
    /// Nothing was acknowledged yet.
    pub(crate) const fn new(begun: Instant) -> Self {
        Self { count: 0, since: begun, longest: Duration::ZERO }
    }

    /// The count at this moment.
    pub(crate) fn on_count(&mut self, count: u64, now: Instant) -> Look {
        self.longest = self.longest.max(now.saturating_duration_since(self.since));
        if count <= self.count {
            return Look::Stood;
        }
        self.count = count;
        self.since = now;
        Look::Rose
    }

    /// The longest so far.
    pub(crate) const fn longest(&self) -> Duration {
        self.longest
    }
}

#[cfg(test)]
mod tests {
    use forebay::clock::Clock;

    use super::*;

    #[test]
    fn the_longest_silence_counts_from_the_begin_and_to_the_last_look() {
        let begun = Clock::system().now();
        let longest = |counts: &[(u64, u64)]| {
            let mut silence = Silence::new(begun);
            for (second, count) in counts {
                let look = silence.on_count(*count, begun + Duration::from_secs(*second));
                assert!(look == Look::Rose || look == Look::Stood);
            }
            silence.longest().as_secs()
        };
        for (counts, wanted) in [
            (&[(1, 1), (2, 2), (3, 3)][..], 1),
            (&[(1, 0), (5, 0), (9, 0)], 9),
            (&[(4, 1), (5, 2), (6, 3)], 4),
            (&[(1, 1), (2, 2), (8, 2)], 6),
            (&[(1, 1), (6, 2), (7, 3)], 5),
        ] {
            assert_eq!(longest(counts), wanted, "{counts:?}");
        }
    }

    #[test]
    fn only_a_higher_count_is_a_rise() {
        let begun = Clock::system().now();
        let mut silence = Silence::new(begun);
        let wanted = [(0, Look::Stood), (2, Look::Rose), (2, Look::Stood), (3, Look::Rose)];
        assert!(wanted.iter().all(|(count, look)| silence.on_count(*count, begun) == *look));
    }
}
