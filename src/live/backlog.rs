//! Pure: live frames that are held until what lies before them was sent.
//! Promises the order of their seqs, and never more than the bounds.
//! Does not drop anything at a bound; whoever adds asks first.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::command::Live;

/// Most frames held for one session: ten seconds of a very lively conversation, and with the frames shared between
/// connections a few KiB of pointers (API: 256 frames).
pub const FRAMES_MAX: usize = 256;

/// Most bytes held for one session: two frames of the largest usual size (API: 256 KiB).
pub const BYTES_MAX: usize = 256 * 1024;

/// Longest time that a live frame is held, and that a page is waited for: a reader is told within two seconds how
/// things stand (API: 2 s).
pub const HOLD_MAX: Duration = Duration::from_secs(2);

/// Frames that are held.
#[derive(Debug)]
pub struct Backlog<F> {
    frames: BTreeMap<u64, (Instant, Live<F>)>,
    /// Invariant: the sum over the frames.
    bytes: usize,
}

impl<F> Backlog<F> {
    /// Nothing is held.
    pub const fn new() -> Self {
        Self { frames: BTreeMap::new(), bytes: 0 }
    }

    /// How many are held.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// What they weigh.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The lowest seq that is held.
    pub fn first(&self) -> Option<u64> {
        self.frames.first_key_value().map(|(&seq, _)| seq)
    }

    /// The highest seq that is held.
    pub fn last(&self) -> Option<u64> {
        self.frames.last_key_value().map(|(&seq, _)| seq)
    }

    /// Since when the lowest one is held.
    pub fn since(&self) -> Option<Instant> {
        self.frames.first_key_value().map(|(_, &(since, _))| since)
    }

    /// Whether this seq is held.
    pub fn contains(&self, seq: u64) -> bool {
        self.frames.contains_key(&seq)
    }

    /// Whether one more of this weight keeps the bounds.
    pub fn has_room_for(&self, bytes: usize) -> bool {
        self.frames.len() < FRAMES_MAX && self.bytes.saturating_add(bytes) <= BYTES_MAX
    }

    /// Holds a frame that is not held yet and has room.
    pub fn hold(&mut self, live: Live<F>, now: Instant) {
        debug_assert!(self.has_room_for(live.bytes) && !self.contains(live.seq));
        self.bytes += live.bytes;
        self.frames.insert(live.seq, (now, live));
    }

    /// Gives out the frame of this seq.
    pub fn take(&mut self, seq: u64) -> Option<Live<F>> {
        let (_, live) = self.frames.remove(&seq)?;
        self.bytes -= live.bytes;
        Some(live)
    }

    /// Forgets everything up to this seq.
    pub fn skip(&mut self, watermark: u64) {
        while let Some(seq) = self.first().filter(|&seq| seq <= watermark) {
            self.take(seq);
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.bytes = 0;
    }
}

impl<F> Default for Backlog<F> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::test_start;

    fn live(seq: u64, bytes: usize) -> Live<u64> {
        Live { seq, bytes, frame: seq }
    }

    #[test]
    fn frames_come_out_in_order_and_take_their_weight_along() {
        let start = test_start();
        let mut backlog = Backlog::new();
        backlog.hold(live(9, 5), start + HOLD_MAX);
        backlog.hold(live(7, 3), start);
        assert_eq!((backlog.first(), backlog.last()), (Some(7), Some(9)));
        assert_eq!((backlog.since(), backlog.bytes()), (Some(start), 8));
        backlog.skip(8);
        assert_eq!((backlog.since(), backlog.bytes()), (Some(start + HOLD_MAX), 5));
        assert_eq!((backlog.take(8), backlog.take(9)), (None, Some(live(9, 5))));
        assert!(backlog.is_empty() && backlog.bytes() == 0);
    }

    #[test]
    fn the_bounds_are_told_before_they_are_passed() {
        let start = test_start();
        let mut backlog = Backlog::new();
        assert!(backlog.has_room_for(BYTES_MAX) && !backlog.has_room_for(BYTES_MAX + 1));
        for seq in 1..=FRAMES_MAX as u64 {
            assert!(backlog.has_room_for(1));
            backlog.hold(live(seq, 1), start);
        }
        assert!(!backlog.has_room_for(0));
        backlog.clear();
        assert!(backlog.has_room_for(BYTES_MAX));
    }
}
