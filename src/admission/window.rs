//! Pure: the mean wait over the last seconds, of those who were answered and of those who still wait.
//! Promises that a stall is seen while it lasts: who waits counts with his age, who is refused with the stall's.
//! Does not judge; readiness compares the mean with its bounds.
//!
//! An average over those who got something reads zero when nobody gets anything any more. That is why everybody
//! counts here, and why a refusal, which the gate gives quickly on purpose, counts as long as refusing goes on.

use std::time::{Duration, Instant};

/// In how many steps the window moves.
const BUCKETS: usize = 10;
const BUCKETS_OF_WINDOW: u32 = 10;

/// The window of one gate. All of it is O(1), and nothing is allocated.
#[derive(Debug)]
pub(super) struct Window {
    ring: [Bucket; BUCKETS],
    /// Invariant: the sum of the ring.
    total: Bucket,
    at: usize,
    /// When the bucket `at` is full.
    ends: Instant,
    width: Duration,
    /// The ages of those who wait are `waiting` times now, less this; both counted from `anchor`.
    entered: u128,
    waiting: usize,
    anchor: Instant,
    /// The first refusal after the last grant.
    stalled: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    nanos: u64,
    count: u32,
}

impl Window {
    pub(super) fn new(length: Duration, now: Instant) -> Self {
        let width = (length / BUCKETS_OF_WINDOW).max(Duration::from_millis(1));
        let (ring, total) = ([Bucket::default(); BUCKETS], Bucket::default());
        let (ends, anchor) = (now + width, now);
        Self { ring, total, at: 0, ends, width, entered: 0, waiting: 0, anchor, stalled: None }
    }

    /// Somebody begins to wait.
    pub(super) fn on_enter(&mut self, now: Instant) {
        self.waiting += 1;
        self.entered += self.since_anchor(now);
    }

    /// Somebody who entered then waits no more, whatever came of it.
    pub(super) fn on_leave(&mut self, entered: Instant) {
        self.waiting = self.waiting.saturating_sub(1);
        self.entered = self.entered.saturating_sub(self.since_anchor(entered));
    }

    /// A permit was given after `wait`.
    pub(super) fn on_grant(&mut self, wait: Duration, now: Instant) {
        self.stalled = None;
        self.record(wait, now);
    }

    /// A permit was refused after `wait`. A stall is as old as the window at most, and one that nobody saw for longer
    /// than that is a new one.
    pub(super) fn on_refusal(&mut self, wait: Duration, now: Instant) {
        self.turn(now);
        if self.total.count == 0 && self.waiting == 0 {
            self.stalled = None;
        }
        let stalled = *self.stalled.get_or_insert(now);
        let length = self.width * BUCKETS_OF_WINDOW;
        self.record(wait.max(now.saturating_duration_since(stalled).min(length)), now);
    }

    /// Somebody was told at once that there are no permits. That is an outage, which is told elsewhere, and no wait.
    pub(super) fn on_turned_away(&mut self, now: Instant) {
        self.record(Duration::ZERO, now);
    }

    /// Somebody went away after `wait`; that says neither that permits are given nor that they are not.
    pub(super) fn on_cancel(&mut self, wait: Duration, now: Instant) {
        self.record(wait, now);
    }

    /// The mean wait.
    pub(super) fn mean(&mut self, now: Instant) -> Duration {
        self.turn(now);
        let ages = (self.since_anchor(now) * self.waiting as u128).saturating_sub(self.entered);
        let count = u128::from(self.total.count) + self.waiting as u128;
        let mean = (u128::from(self.total.nanos) + ages).checked_div(count).unwrap_or(0);
        Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX))
    }

    fn record(&mut self, wait: Duration, now: Instant) {
        self.turn(now);
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        // What would overflow is cut, so that the ring and its sum stay equal.
        let nanos = nanos.min(u64::MAX - self.total.nanos);
        let count = u32::from(self.total.count < u32::MAX);
        for bucket in [&mut self.total, &mut self.ring[self.at]] {
            bucket.nanos += nanos;
            bucket.count += count;
        }
    }

    /// Empties the buckets whose time is over.
    fn turn(&mut self, now: Instant) {
        if now < self.ends {
            // A clock that went back must not stop the window until it is where it was.
            self.ends = self.ends.min(now + self.width);
            return;
        }
        let late = now.saturating_duration_since(self.ends).as_nanos() / self.width.as_nanos();
        let steps = u32::try_from(late).unwrap_or(u32::MAX).saturating_add(1);
        let all = steps as usize >= BUCKETS;
        for _ in 0..BUCKETS.min(steps as usize) {
            self.at = (self.at + 1) % BUCKETS;
            let old = std::mem::take(&mut self.ring[self.at]);
            self.total.nanos -= old.nanos;
            self.total.count -= old.count;
        }
        self.ends = if all { now + self.width } else { self.ends + self.width * steps };
    }

    fn since_anchor(&self, at: Instant) -> u128 {
        at.saturating_duration_since(self.anchor).as_nanos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::test_start;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn window() -> (Window, Instant) {
        let start = test_start() + ms(10_000_000);
        (Window::new(ms(5000), start), start)
    }

    #[test]
    fn the_mean_is_over_what_was_finished_within_the_window() {
        let (mut window, start) = window();
        assert_eq!(window.mean(start), Duration::ZERO, "nobody came");
        window.on_grant(ms(10), start);
        window.on_grant(ms(30), start + ms(2000));
        assert_eq!(window.mean(start + ms(2000)), ms(20));
        assert_eq!(window.mean(start + ms(5100)), ms(30), "the first one is too long ago");
        assert_eq!(window.mean(start + ms(60_000)), Duration::ZERO);
        window.on_grant(ms(4), start + ms(60_000));
        assert_eq!(window.mean(start + ms(60_001)), ms(4));
    }

    #[test]
    fn who_still_waits_counts_with_his_age() {
        let (mut window, start) = window();
        window.on_enter(start);
        window.on_enter(start + ms(100));
        assert_eq!(window.mean(start + ms(200)), ms(150));
        window.on_leave(start);
        window.on_grant(ms(200), start + ms(200));
        assert_eq!(window.mean(start + ms(200)), ms(150), "one was answered, one waits");
        window.on_leave(start + ms(100));
        window.on_cancel(ms(150), start + ms(250));
        assert_eq!(window.mean(start + ms(250)), ms(175), "who went away had waited too");
    }

    #[test]
    fn a_stall_shows_although_everybody_is_refused_at_once() {
        let (mut window, start) = window();
        for second in 0..20 {
            window.on_refusal(Duration::ZERO, start + ms(1000 * second));
        }
        assert_eq!(window.mean(start + ms(19_000)), ms(5_000), "as old as the window at most");
        window.on_grant(Duration::ZERO, start + ms(30_000));
        window.on_refusal(ms(7), start + ms(30_100));
        assert_eq!(window.mean(start + ms(30_100)), Duration::from_micros(3500), "it is over");
    }

    #[test]
    fn one_refusal_after_a_quiet_hour_is_no_stall() {
        let (mut window, start) = window();
        window.on_refusal(ms(3), start);
        window.on_refusal(ms(5), start + ms(3_600_000));
        assert_eq!(window.mean(start + ms(3_600_000)), ms(5));
    }

    #[test]
    fn an_outage_in_which_nobody_is_let_wait_is_no_wait() {
        let (mut window, start) = window();
        for second in 0..20 {
            window.on_turned_away(start + ms(1000 * second));
        }
        assert_eq!(window.mean(start + ms(19_000)), Duration::ZERO);
    }

    #[test]
    fn a_clock_that_steps_back_or_far_ahead_does_no_harm() {
        let (mut window, start) = window();
        window.on_enter(start);
        let ahead = start + ms(3_600_000);
        window.on_grant(ms(10), ahead);
        assert!(window.mean(ahead) > ms(1_000_000), "an hour has passed for who waits");
        assert_eq!(window.mean(start), ms(5), "and has not");
        let back = start.checked_sub(ms(3_600_000)).unwrap();
        window.on_leave(start);
        window.on_enter(back);
        window.on_refusal(Duration::MAX, back);
        window.on_refusal(Duration::MAX, back);
        window.on_leave(back);
        assert!(window.mean(back + ms(5600)) <= ms(10), "the window goes on from there");
    }
}
