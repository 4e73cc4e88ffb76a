//! Pure: whether requests wait so long for a connection that others should serve them.
//! Promises that one bad second changes nothing, and that a node that was taken out comes back only when waits are short.
//! Does not measure; it is told the mean wait of a window at every look.

use std::time::Duration;

/// So many looks in a row must find the waits too long: one can be a burst that is over.
const LOOKS_TO_DEGRADE: u32 = 2;

/// What a look means for readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Decision {
    /// Requests are served soon enough.
    Bear,
    /// They wait too long.
    Degrade,
}

/// What is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The mean wait at the last look.
    pub wait: Duration,
    /// Whether the last look meant [`Decision::Degrade`].
    pub is_degraded: bool,
}

/// The memory of the last looks, with hysteresis: it degrades at a wait and recovers below its half.
#[derive(Clone, Copy, Debug)]
pub struct Pressure {
    /// The wait at which it degrades; zero for never.
    limit: Duration,
    looks_over: u32,
    status: Status,
}

impl Pressure {
    /// Degrades at this mean wait; at zero, never.
    pub const fn new(limit: Duration) -> Self {
        let status = Status { wait: Duration::ZERO, is_degraded: false };
        Self { limit, looks_over: 0, status }
    }

    /// The mean wait is this now.
    pub fn on_look(&mut self, wait: Duration) -> Decision {
        let is_over = !self.limit.is_zero() && wait >= self.limit;
        self.looks_over = if is_over { self.looks_over.saturating_add(1) } else { 0 };
        self.status.wait = wait;
        self.status.is_degraded = if self.status.is_degraded {
            wait >= self.limit / 2
        } else {
            self.looks_over >= LOOKS_TO_DEGRADE
        };
        if self.status.is_degraded { Decision::Degrade } else { Decision::Bear }
    }

    /// What is known.
    pub const fn status(&self) -> Status {
        self.status
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: u64 = 200;

    fn looks(limit: u64, waits: &[u64]) -> Vec<bool> {
        let mut pressure = Pressure::new(Duration::from_millis(limit));
        let look = |wait: &u64| pressure.on_look(Duration::from_millis(*wait)) == Decision::Degrade;
        waits.iter().map(look).collect()
    }

    #[test]
    fn two_looks_in_a_row_degrade_and_less_than_half_recovers() {
        for (waits, degraded) in [
            (&[200, 200][..], &[false, true][..]),
            (&[200, 199, 200, 199], &[false; 4]),
            (&[5_000, 0, 5_000, 0], &[false; 4]),
            (&[200, 300, 199, 100, 99, 200], &[false, true, true, true, false, false]),
            (&[200, 200, 0, 200, 200], &[false, true, false, false, true]),
        ] {
            assert_eq!(looks(LIMIT, waits), degraded, "{waits:?}");
        }
    }

    #[test]
    fn zero_turns_it_off() {
        assert_eq!(looks(0, &[0, 0, 0, 60_000, 60_000]), [false; 5]);
    }

    #[test]
    fn the_status_is_what_the_last_look_found() {
        let mut pressure = Pressure::new(Duration::from_millis(LIMIT));
        let wait = Duration::from_millis(250);
        assert_eq!(pressure.on_look(wait), Decision::Bear);
        assert_eq!(pressure.status(), Status { wait, is_degraded: false });
        assert_eq!(pressure.on_look(wait), Decision::Degrade);
        assert_eq!(pressure.status(), Status { wait, is_degraded: true });
    }

    proptest! {
        #[test]
        fn it_turns_only_where_it_may(waits in prop::collection::vec(0..400_u64, 2..60)) {
            let degraded = looks(LIMIT, &waits);
            for at in 1..waits.len() {
                match (degraded[at - 1], degraded[at]) {
                    (false, true) => prop_assert!(waits[at - 1] >= LIMIT && waits[at] >= LIMIT),
                    (true, false) => prop_assert!(waits[at] < LIMIT / 2),
                    (true, true) => prop_assert!(waits[at] >= LIMIT / 2),
                    (false, false) => prop_assert!(waits[at] < LIMIT || waits[at - 1] < LIMIT || at == 1),
                }
            }
        }
    }
}
