//! Pure: what lower priorities owe to higher ones, and the little that the lowest gets all the same.
//! Promises that debt never falls from one tier to the next lower one, stays within its bound and fades to zero.
//! Does not know who waits; the scheduler says who was blocked.

use std::time::{Duration, Instant};

use super::TIERS;

/// In how long the largest debt fades to nothing, as in Figma's `backpressure`.
const DECAY: Duration = Duration::from_secs(10);

/// What an acquire that need not wait takes off the debt to it. At 0.1 debt settles where 9 % of them wait.
const FORGIVEN: f64 = 0.1;

/// A debt below this is none: times have nanoseconds, so what fades in one of them is not to be waited for.
const NOTHING: f64 = 1e-6;

/// How often the lowest tier gets a permit, whatever it owes.
const TRICKLE: Duration = Duration::from_secs(1);

/// How many permits each tier must leave free when it takes one.
#[derive(Debug)]
pub(super) struct Debt {
    /// Invariant: never falls from one tier to the next, the first is 0, the last at most `max`.
    owed: [f64; TIERS],
    max: f64,
    at: Instant,
}

impl Debt {
    pub(super) fn new(capacity: usize, now: Instant) -> Self {
        Self { owed: [0.0; TIERS], max: max(capacity), at: now }
    }

    /// The bound follows the capacity, and the speed of fading with it.
    pub(super) fn on_resize(&mut self, capacity: usize, now: Instant) {
        self.fade(now);
        self.max = max(capacity);
        for owed in &mut self.owed {
            *owed = owed.min(self.max);
        }
    }

    /// Takes off what has faded since the last call. A clock that went back takes off nothing.
    pub(super) fn fade(&mut self, now: Instant) {
        if !self.is_none() {
            self.owed = self.owed(now);
        }
        self.at = now;
    }

    /// Somebody of `tier` must wait: every lower tier is to leave one more permit free.
    pub(super) fn charge(&mut self, tier: usize) {
        for owed in &mut self.owed[tier + 1..] {
            *owed = (*owed + 1.0).min(self.max);
        }
        debug_assert!(self.owed.is_sorted());
    }

    /// Somebody of `tier` did not have to wait.
    pub(super) fn forgive(&mut self, tier: usize) {
        if self.is_none() {
            return;
        }
        for lower in tier + 1..TIERS {
            self.owed[lower] = (self.owed[lower] - FORGIVEN).max(self.owed[lower - 1]);
        }
        debug_assert!(self.owed.is_sorted());
    }

    /// Whether `tier` may take one of `free` permits.
    pub(super) fn admits(&self, tier: usize, free: usize) -> bool {
        self.missing(tier, free) <= NOTHING
    }

    /// When fading debt will let `tier` take one of `free` permits; `None` when nothing but debt is not in its way, or
    /// when no permit is free at all.
    pub(super) fn admits_at(&self, tier: usize, free: usize) -> Option<Instant> {
        let missing = self.missing(tier, free);
        let fades = free > 0 && missing > NOTHING;
        // Rounded up, so that it is over when the time comes.
        let wait =
            Duration::from_secs_f64(missing.max(0.0) / self.rate()) + Duration::from_nanos(1);
        fades.then(|| self.at + wait)
    }

    /// What each tier will owe then. To look changes nothing: what fades must first be given out, or it is forgotten.
    pub(super) fn owed(&self, now: Instant) -> [f64; TIERS] {
        let faded = now.saturating_duration_since(self.at).as_secs_f64() * self.rate();
        self.owed.map(|owed| (owed - faded).max(0.0))
    }

    fn missing(&self, tier: usize, free: usize) -> f64 {
        1.0 + self.owed[tier] - real(free)
    }

    fn is_none(&self) -> bool {
        self.owed[TIERS - 1] <= 0.0
    }

    /// Per second.
    fn rate(&self) -> f64 {
        self.max / DECAY.as_secs_f64()
    }
}

/// A quarter of the capacity: enough that a burst of the higher tiers finds room, and not so much that permits stand
/// idle while lower tiers get nothing. Below the capacity, or a tier in debt could only ever run alone.
fn max(capacity: usize) -> f64 {
    let most = if capacity > 1 { real(capacity - 1) } else { 1.0 };
    (real(capacity) / 4.0).max(1.0).min(most)
}

/// The lowest tier gets a permit each second that it waits, so that it moves whatever the others do.
#[derive(Debug)]
pub(super) struct Trickle {
    next: Instant,
}

impl Trickle {
    pub(super) fn new(now: Instant) -> Self {
        Self { next: now }
    }

    /// The lowest tier got a permit, one way or the other.
    pub(super) fn on_grant(&mut self, now: Instant) {
        self.next = now + TRICKLE;
    }

    /// Whether the lowest tier has gone without for long enough.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        // A clock that went back must not hold it up.
        now >= self.next || self.next.saturating_duration_since(now) > TRICKLE
    }

    /// When it will have.
    pub(super) fn next(&self) -> Instant {
        self.next
    }
}

/// A count as a number to calculate with; counts here are far below what would be rounded.
pub(super) fn real(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::test_start;

    const SECOND: Duration = Duration::from_secs(1);

    #[expect(clippy::float_cmp, reason = "small numbers that floats hold exactly")]
    #[test]
    fn debt_is_bounded_by_a_quarter_of_the_capacity_and_never_takes_the_whole_pool() {
        for (capacity, most) in [(0, 1.0), (1, 1.0), (2, 1.0), (4, 1.0), (10, 2.5), (100, 25.0)] {
            let mut debt = Debt::new(capacity, test_start());
            for _ in 0..1000 {
                debt.charge(0);
            }
            assert_eq!(debt.owed(debt.at), [0.0, most, most, most], "capacity {capacity}");
        }
    }

    #[test]
    fn a_tier_in_debt_must_leave_permits_free() {
        let mut debt = Debt::new(100, test_start());
        debt.charge(1);
        debt.charge(1);
        assert!(debt.admits(1, 1), "the tier that waited owes nothing");
        assert!(!debt.admits(2, 2) && debt.admits(2, 3));
        assert!(!debt.admits(3, 2) && debt.admits(3, 3));
        assert!(!debt.admits(0, 0));
    }

    #[test]
    fn the_largest_debt_fades_in_ten_seconds_and_says_when_it_admits() {
        let start = test_start();
        let mut debt = Debt::new(40, start);
        for _ in 0..20 {
            debt.charge(0);
        }
        let at = debt.admits_at(3, 6).expect("five of ten must fade");
        let wait = at.saturating_duration_since(start);
        assert!(wait >= 5 * SECOND && wait < 5 * SECOND + Duration::from_micros(1), "{wait:?}");
        debt.fade(at.checked_sub(Duration::from_millis(1)).unwrap());
        assert!(!debt.admits(3, 6));
        debt.fade(at);
        assert!(debt.admits(3, 6));
        assert_eq!(debt.admits_at(3, 6), None);
        assert_eq!(debt.admits_at(3, 0), None, "without a free permit time changes nothing");
        debt.fade(start + 11 * SECOND);
        assert!(debt.admits(3, 1));
    }

    #[test]
    fn who_need_not_wait_forgives_a_little_but_never_below_a_higher_tier() {
        let mut debt = Debt::new(100, test_start());
        debt.charge(0);
        debt.charge(1);
        for _ in 0..100 {
            debt.forgive(1);
        }
        assert!(
            (debt.owed(debt.at)[1] - 1.0).abs() < 1e-9,
            "a lower tier forgives nothing to a higher one"
        );
        assert!((debt.owed(debt.at)[3] - 1.0).abs() < 1e-9);
        debt.forgive(0);
        assert!((debt.owed(debt.at)[3] - 0.9).abs() < 1e-9);
    }

    #[test]
    fn a_change_of_capacity_changes_the_bound_and_the_speed() {
        let start = test_start();
        let mut debt = Debt::new(100, start);
        for _ in 0..50 {
            debt.charge(0);
        }
        debt.on_resize(10, start);
        assert!((debt.owed(debt.at)[3] - 2.5).abs() < 1e-9);
        debt.fade(start + 4 * SECOND);
        assert!((debt.owed(debt.at)[3] - 1.5).abs() < 1e-9);
    }

    #[test]
    fn a_clock_that_steps_back_or_far_ahead_does_no_harm() {
        let start = test_start() + 10_000 * SECOND;
        let mut debt = Debt::new(40, start);
        debt.charge(0);
        debt.fade(start.checked_sub(3600 * SECOND).unwrap());
        assert!((debt.owed(debt.at)[3] - 1.0).abs() < 1e-9);
        debt.fade(start + 3600 * SECOND);
        assert!(debt.owed(debt.at)[3].abs() < 1e-9);
    }

    #[test]
    fn the_trickle_comes_due_a_second_after_the_last_grant() {
        let start = test_start() + 10_000 * SECOND;
        let mut trickle = Trickle::new(start);
        assert!(trickle.is_due(start));
        trickle.on_grant(start);
        assert!(!trickle.is_due(start + Duration::from_millis(999)));
        assert!(trickle.is_due(trickle.next()));
        let back = start.checked_sub(3600 * SECOND).unwrap();
        assert!(trickle.is_due(back), "a clock that went back does not hold it up");
    }
}
