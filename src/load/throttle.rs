//! Pure: the adaptive throttle of a client: when a server refuses, most calls are given up before they are sent.
//! Promises to refuse nothing while at least every second call is accepted, and to go on probing however bad it is.
//! Does not wait and does not repeat; whoever is refused decides what to do then.

use std::time::{Duration, Instant};

use crate::admission::Priority;

/// Calls may outnumber accepted ones by this factor before any is refused ("Handling Overload", Site Reliability
/// Engineering, O'Reilly 2016): 2 lets a server that recovers be seen soon, at the price of one refusal for each call
/// that it does.
const K: f64 = 2.0;

/// Calls that are let through in a window although none is accepted: one a second.
const PROBES: f64 = 60.0;

/// Slices of the window, the oldest of which makes room for the next.
const SLICES: usize = 10;

/// Length of a slice; all of them are a minute. The youngest is being filled, so the window is 54 to 60 s long.
const SLICE: Duration = Duration::from_secs(6);

/// Priorities, the most urgent first.
const PRIORITIES: usize = 4;

/// How a call ended, as far as the throttle is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The server answered, and for any reason but overload: done, wrong, forbidden, over the caller's own quota.
    Accepted,
    /// The server had no time for it: it said so, said nothing, or is not there.
    Overloaded,
}

impl Ending {
    /// What an HTTP status means. 503 is the only one by which Forebay speaks of itself as a whole; 502 and 504 are
    /// what a proxy says when the server said nothing. 429 is the caller's own quota, kept by a server that is well:
    /// holding back calls of others would not help, and its `Retry-After` is waited for anyway. 500 is a mistake.
    pub const fn of_status(status: u16) -> Self {
        match status {
            502..=504 => Self::Overloaded,
            _ => Self::Accepted,
        }
    }
}

/// Whether to send a call.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Send it, and tell with [`Throttle::on_end`] how it ends.
    Send,
    /// Give it up. It counts as a call all the same.
    HoldBack,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slice {
    calls: [u64; PRIORITIES],
    accepted: [u64; PRIORITIES],
}

/// What a minute of calls says about the next one.
///
/// A call is counted when it is sent and accepted when it has ended, so that a server that hangs is seen at once and
/// not when its calls time out. That makes calls under way look refused, which is right for all but the first ones:
/// they are the `slack`.
#[derive(Clone, Debug)]
pub struct Throttle {
    slices: [Slice; SLICES],
    /// Where the youngest slice is and when it began.
    youngest: usize,
    since: Instant,
    /// Calls that the owner has under way at the same time while all is well.
    slack: f64,
}

impl Throttle {
    /// Nothing has been called yet. `slack` calls may be under way before anything follows from it.
    pub fn new(slack: u16, now: Instant) -> Self {
        Self {
            slices: [Slice::default(); SLICES],
            youngest: 0,
            since: now,
            slack: f64::from(slack),
        }
    }

    /// A call is about to be sent; `draw` is uniform in `[0, 1)`.
    pub fn on_call(&mut self, priority: Priority, draw: f64, now: Instant) -> Decision {
        self.rotate(now);
        let held_back = draw < self.probability(priority);
        self.slices[self.youngest].calls[priority as usize] += 1;
        if held_back { Decision::HoldBack } else { Decision::Send }
    }

    /// A call that was sent has ended. It counts in the slice in which it ends.
    pub fn on_end(&mut self, priority: Priority, ending: Ending, now: Instant) {
        self.rotate(now);
        if ending == Ending::Accepted {
            self.slices[self.youngest].accepted[priority as usize] += 1;
        }
    }

    /// The probability that a call of this priority is held back now.
    pub fn status(&self, priority: Priority, now: Instant) -> f64 {
        let mut seen = self.clone();
        seen.rotate(now);
        seen.probability(priority)
    }

    /// `max(0, (R' - K A) / (R' + m))`, where calls of higher priorities that were not accepted count as this one's.
    fn probability(&self, priority: Priority) -> f64 {
        let of = priority as usize;
        let sum = |pick: fn(&Slice) -> &[u64; PRIORITIES], priority: usize| {
            let counts = self.slices.iter().map(|slice| pick(slice)[priority]);
            precise(counts.sum())
        };
        let calls = |priority| sum(|slice| &slice.calls, priority);
        let accepted = |priority| sum(|slice| &slice.accepted, priority);
        // A window may begin between a call and its end, so a difference may be below zero.
        let above: f64 = (0..of).map(|above| (calls(above) - accepted(above)).max(0.0)).sum();
        let wanted = calls(of) + above;
        ((wanted - K * accepted(of) - self.slack) / (wanted + PROBES)).max(0.0)
    }

    /// Takes a new slice for every slice's length that has passed. A clock that goes back takes none.
    fn rotate(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        let steps = u32::try_from(passed.as_millis() / SLICE.as_millis()).unwrap_or(u32::MAX);
        if usize::try_from(steps).is_ok_and(|steps| steps < SLICES) {
            for _ in 0..steps {
                self.youngest = (self.youngest + 1) % SLICES;
                self.slices[self.youngest] = Slice::default();
            }
            self.since += SLICE * steps;
        } else {
            // Everything is older than the window.
            self.slices = [Slice::default(); SLICES];
            self.since = now;
        }
    }
}

/// Counts of a minute are far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts of a minute stay below 2^53")]
const fn precise(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests;
