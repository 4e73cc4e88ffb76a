//! Pure: when a session tries again to get what is missing.
//! Promises that a failure is waited out, and that tries keep a rate and a burst, whoever asks for them.
//! Does not fetch.

use std::time::{Duration, Instant};

use crate::admission::bucket::{Bucket, Decision};

/// Pages a second of one session in a gap. Many sessions come out of the same outage at once, and nobody waits with
/// an empty screen: live frames are there already.
pub(super) const PAGES_PER_SECOND: u32 = 4;

/// Pages at once: with 200 frames each, most gaps are closed by these.
pub(super) const PAGES_BURST: u32 = 8;

/// Shortest wait after a failure, whatever the answer said.
pub(super) const WAIT_MIN: Duration = Duration::from_millis(100);

/// When to fetch the next page of the oldest gap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refill {
    bucket: Bucket,
    at: Instant,
    is_asked: bool,
}

impl Refill {
    /// Nothing to wait for.
    pub(super) fn new(now: Instant) -> Self {
        Self { bucket: Bucket::new(PAGES_PER_SECOND, PAGES_BURST, now), at: now, is_asked: false }
    }

    /// The last try failed.
    pub(super) fn on_failed(&mut self, retry_after: Duration, now: Instant) {
        self.at = now + retry_after.max(WAIT_MIN);
    }

    /// The last try brought something: go on.
    pub(super) const fn on_progress(&mut self, now: Instant) {
        self.at = now;
    }

    /// The client asks: try now, and have an answer for it.
    pub(super) const fn on_asked(&mut self, now: Instant) {
        self.at = now;
        self.is_asked = true;
    }

    /// Whether the client waits for an answer; asked once.
    pub(super) const fn take_asked(&mut self) -> bool {
        std::mem::replace(&mut self.is_asked, false)
    }

    /// Whether to fetch now; if not, there is a later time to ask again.
    pub(super) fn try_start(&mut self, now: Instant) -> bool {
        if now < self.at {
            return false;
        }
        match self.bucket.try_take(now) {
            Decision::Taken => true,
            Decision::Wait(wait) => {
                self.at = now + wait;
                false
            }
        }
    }

    /// When to ask again.
    pub(super) const fn next(&self) -> Instant {
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::test_start;

    #[test]
    fn a_failure_is_waited_out_and_never_less_than_the_least() {
        let start = test_start();
        let mut refill = Refill::new(start);
        assert!(refill.try_start(start));
        refill.on_failed(Duration::from_secs(3), start);
        assert!(!refill.try_start(start + Duration::from_millis(2_999)));
        assert!(refill.try_start(start + Duration::from_secs(3)));
        refill.on_failed(Duration::ZERO, start);
        assert_eq!(refill.next(), start + WAIT_MIN);
    }

    #[test]
    fn a_client_that_asks_is_heard_at_once_but_keeps_the_rate() {
        let start = test_start();
        let mut refill = Refill::new(start);
        for _ in 0..PAGES_BURST {
            refill.on_failed(Duration::from_secs(9), start);
            refill.on_asked(start);
            assert!(refill.try_start(start));
        }
        refill.on_asked(start);
        assert!(!refill.try_start(start));
        assert_eq!(refill.next(), start + Duration::from_millis(250));
        assert!(refill.take_asked() && !refill.take_asked());
    }
}
