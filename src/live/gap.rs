//! Pure: the seqs of a conversation that are missing below what was sent.
//! Promises that gaps are in order, apart from each other, and never more than the bound.
//! Does not fetch them.

use std::collections::VecDeque;

/// Most gaps of one session. Each is a loss of its own, so more than a few mean that live frames come faster than
/// this connection gets them; at the bound they are withheld (see `session`).
pub const GAPS_MAX: usize = 16;

/// Seqs that are missing: all from `from` to `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The first.
    pub from: u64,
    /// The last.
    pub to: u64,
}

/// What is missing, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Gaps {
    /// Invariant: `from <= to` in each, and each ends at least one seq before the next begins.
    list: VecDeque<Gap>,
}

impl Gaps {
    /// The oldest.
    pub fn first(&self) -> Option<Gap> {
        self.list.front().copied()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether nothing is missing.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether this seq is missing.
    pub fn contains(&self, seq: u64) -> bool {
        self.list.iter().any(|gap| gap.from <= seq && seq <= gap.to)
    }

    /// Whether a gap that begins here would keep the bound.
    pub fn has_room_for(&self, from: u64) -> bool {
        self.list.len() < GAPS_MAX || self.list.back().is_some_and(|last| last.to + 1 == from)
    }

    /// Adds a gap behind all others; one that touches the newest becomes part of it.
    pub fn push(&mut self, gap: Gap) {
        match self.list.back_mut() {
            Some(last) if last.to + 1 == gap.from => last.to = gap.to,
            _ => self.list.push_back(gap),
        }
        debug_assert!(self.list.len() <= GAPS_MAX, "the bound is looked at before");
    }

    /// Takes this seq out if it is the first that is missing.
    pub fn take(&mut self, seq: u64) -> bool {
        let Some(gap) = self.list.front_mut().filter(|gap| gap.from == seq) else {
            return false;
        };
        gap.from += 1;
        if gap.from > gap.to {
            self.list.pop_front();
        }
        true
    }

    /// Takes out everything up to this seq.
    pub fn skip(&mut self, watermark: u64) {
        self.list.retain(|gap| gap.to > watermark);
        if let Some(gap) = self.list.front_mut() {
            gap.from = gap.from.max(watermark + 1);
        }
    }

    /// The oldest gap begins here already.
    pub fn widen(&mut self, from: u64) {
        if let Some(gap) = self.list.front_mut() {
            gap.from = gap.from.min(from);
        }
    }

    /// Nothing is missing any more.
    pub fn clear(&mut self) {
        self.list.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(list: &[(u64, u64)]) -> Gaps {
        let mut gaps = Gaps::default();
        for &(from, to) in list {
            gaps.push(Gap { from, to });
        }
        gaps
    }

    fn list(gaps: &Gaps) -> Vec<(u64, u64)> {
        gaps.list.iter().map(|gap| (gap.from, gap.to)).collect()
    }

    #[test]
    fn gaps_that_touch_are_one() {
        assert_eq!(list(&gaps(&[(3, 5), (6, 9), (11, 11)])), [(3, 9), (11, 11)]);
    }

    #[test]
    fn only_the_first_missing_seq_is_taken() {
        let mut gaps = gaps(&[(3, 4), (8, 8)]);
        assert_eq!([4, 8, 2].map(|seq| gaps.take(seq)), [false; 3]);
        assert_eq!([3, 4, 8].map(|seq| gaps.take(seq)), [true; 3]);
        assert!(gaps.is_empty());
    }

    #[test]
    fn what_the_client_has_is_skipped_and_what_it_lacks_widens_the_oldest() {
        let mut gaps = gaps(&[(3, 4), (8, 12), (20, 21)]);
        gaps.skip(9);
        assert_eq!(list(&gaps), [(10, 12), (20, 21)]);
        gaps.widen(2);
        assert_eq!(list(&gaps), [(2, 12), (20, 21)]);
        gaps.skip(21);
        assert!(gaps.is_empty());
        gaps.widen(2);
        assert!(gaps.is_empty());
    }

    #[test]
    fn at_the_bound_only_what_touches_the_newest_has_room() {
        let full: Vec<_> = (1..=GAPS_MAX as u64).map(|n| (n * 10, n * 10 + 2)).collect();
        let gaps = gaps(&full);
        let last = gaps.list.back().unwrap().to;
        assert!(gaps.has_room_for(last + 1) && !gaps.has_room_for(last + 2));
    }
}
