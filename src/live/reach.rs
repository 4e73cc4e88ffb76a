//! Pure: how far a connection has been served: what was sent, what is missing below it, what is still owed.
//! Promises that an event passes once and in its turn, and that one acknowledged to its own sender is not sent.
//! Does not hold frames.

use std::collections::BTreeSet;

use super::gap::{Gap, Gaps};

/// Most own sends that are remembered ahead of their turn: eight times what may be in flight. At the bound an
/// event is sent although it was acknowledged, and the client drops it by its seq.
pub const ACKED_MAX: usize = 256;

/// What became of an event that was to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Pass {
    /// It is to be sent.
    Send,
    /// Its turn came, and this connection has it by an ack.
    Acked,
    /// It had passed before, or it is not its turn.
    NotNext,
}

/// How far a connection has been served.
#[derive(Clone, Debug)]
pub struct Reach {
    /// Everything up to here has passed or is in a gap.
    frontier: u64,
    /// Invariant: all below the frontier or at it.
    gaps: Gaps,
    /// Everything up to here is owed: it does not come live any more. Invariant: it never falls.
    due: u64,
    /// The highest seq that was heard of.
    head: u64,
    /// Own sends that were acknowledged before their turn.
    acked: BTreeSet<u64>,
}

impl Reach {
    /// A client that has everything up to the watermark, of a conversation with this head.
    pub fn new(watermark: u64, head: u64) -> Self {
        let frontier = watermark.min(head);
        Self { frontier, gaps: Gaps::default(), due: head, head, acked: BTreeSet::new() }
    }

    /// Everything up to here has passed.
    pub fn contiguous(&self) -> u64 {
        self.gaps.first().map_or(self.frontier, |gap| gap.from - 1)
    }

    /// Everything up to here has passed or is in a gap.
    pub const fn frontier(&self) -> u64 {
        self.frontier
    }

    /// Everything up to here is owed.
    pub const fn due(&self) -> u64 {
        self.due
    }

    /// The highest seq that was heard of.
    pub const fn head(&self) -> u64 {
        self.head
    }

    /// What is missing below the frontier.
    pub const fn gaps(&self) -> &Gaps {
        &self.gaps
    }

    /// Whether something is owed that is in no gap.
    pub const fn is_behind(&self) -> bool {
        self.frontier < self.due
    }

    /// There is such a seq.
    pub fn see(&mut self, seq: u64) {
        self.head = self.head.max(seq);
    }

    /// This seq does not come live again.
    pub fn owe(&mut self, seq: u64) {
        self.see(seq);
        self.due = self.due.max(seq);
    }

    /// Nothing of what is owed will pass here.
    pub const fn mute(&mut self) {
        self.due = u64::MAX;
    }

    /// Lets an event pass if it is its turn: the first that is missing, or the next after the frontier.
    pub fn pass(&mut self, seq: u64) -> Pass {
        if !self.gaps.take(seq) {
            if seq != self.frontier + 1 {
                return Pass::NotNext;
            }
            self.frontier = seq;
        }
        self.see(seq);
        if self.acked.remove(&seq) { Pass::Acked } else { Pass::Send }
    }

    /// An own send of this connection was acknowledged with this seq.
    pub fn ack(&mut self, seq: u64) {
        self.see(seq);
        let is_open = seq > self.frontier || self.gaps.contains(seq);
        if is_open && self.acked.len() < ACKED_MAX {
            self.acked.insert(seq);
        }
    }

    /// Lets own sends pass whose turn has come, up to `limit` above the frontier.
    pub fn absorb(&mut self, limit: u64) {
        while let Some(gap) = self.gaps.first().filter(|gap| self.acked.contains(&gap.from)) {
            self.gaps.take(gap.from);
            self.acked.remove(&gap.from);
        }
        while self.frontier < limit && self.acked.remove(&(self.frontier + 1)) {
            self.frontier += 1;
        }
    }

    /// Gives up everything between the frontier and `to` for now. `None` if there is no room for one more gap.
    pub fn open_gap(&mut self, to: u64) -> Option<Gap> {
        let gap = Gap { from: self.frontier + 1, to };
        debug_assert!(gap.from <= gap.to, "a gap has at least one seq");
        self.gaps.has_room_for(gap.from).then(|| {
            self.gaps.push(gap);
            self.frontier = to;
            gap
        })
    }

    /// The client has everything up to here, wherever it got it.
    pub fn skip(&mut self, watermark: u64) {
        self.gaps.skip(watermark);
        self.frontier = self.frontier.max(watermark);
        self.acked = self.acked.split_off(&(watermark + 1));
    }

    /// The client has nothing beyond this watermark: all of it is owed again. Only without gaps.
    pub fn rewind(&mut self, watermark: u64) {
        debug_assert!(self.gaps.is_empty());
        self.due = self.due.max(self.frontier);
        self.frontier = watermark;
        self.acked = self.acked.split_off(&(watermark + 1));
    }

    /// The same with gaps: what the client lacks belongs to the oldest.
    pub fn widen(&mut self, watermark: u64) {
        if self.gaps.is_empty() && watermark < self.frontier {
            self.gaps.push(Gap { from: watermark + 1, to: self.frontier });
        }
        self.gaps.widen(watermark + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_passes_once_and_in_its_turn() {
        let mut reach = Reach::new(3, 3);
        assert_eq!(
            [3, 5, 4, 4].map(|seq| reach.pass(seq) == Pass::Send),
            [false, false, true, false]
        );
        assert_eq!((reach.contiguous(), reach.head()), (4, 4));
    }

    #[test]
    fn an_acknowledged_event_is_not_sent_wherever_it_lies() {
        let mut reach = Reach::new(0, 0);
        assert_eq!(reach.open_gap(3), Some(Gap { from: 1, to: 3 }));
        for seq in [1, 3, 4, 6] {
            reach.ack(seq);
        }
        reach.absorb(u64::MAX);
        assert_eq!((reach.contiguous(), reach.frontier()), (1, 4));
        assert_eq!((reach.pass(2), reach.pass(3)), (Pass::Send, Pass::Acked));
        assert_eq!((reach.pass(5), reach.pass(6)), (Pass::Send, Pass::Acked));
        assert!(reach.acked.is_empty());
    }

    #[test]
    fn what_is_acknowledged_ahead_is_bounded() {
        let mut reach = Reach::new(0, 0);
        (2..2_000).for_each(|seq| reach.ack(seq));
        assert_eq!(reach.acked.len(), ACKED_MAX);
        reach.skip(1_999);
        assert!(reach.acked.is_empty());
    }

    #[test]
    fn what_is_owed_never_falls() {
        let mut reach = Reach::new(5, 9);
        assert!(reach.is_behind());
        reach.skip(12);
        assert!(!reach.is_behind());
        reach.rewind(2);
        assert_eq!((reach.due(), reach.contiguous()), (12, 2));
    }
}
