//! Pure: when a node may publish to a partition that other nodes write to as well.
//! Promises that an idle partition is never waited for, and that a node that keeps losing is let through.
//! Does not guard the order of the log, the publish guard does; turns only save lost races.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::event::NodeId;

/// A node that was seen this many acknowledgement times ago still counts as active.
const ACTIVE_ACKS: u32 = 20;

/// The least time for which a node that was seen counts as active.
const ACTIVE_MIN: Duration = Duration::from_millis(20);

/// What an acknowledgement takes before one was measured.
const ACK_GUESS: Duration = Duration::from_millis(1);

/// Longest acknowledgement time that counts; a stall must not turn into a long turn.
const ACK_MAX: Duration = Duration::from_millis(50);

/// Losses in a row after which a node announces itself.
const LOSSES_ANNOUNCED: u32 = 2;

/// The turns of one partition, as one node sees them.
#[derive(Debug)]
pub struct Turns {
    me: NodeId,
    seen: BTreeMap<NodeId, Instant>,
    /// Moving average of this node's own acknowledgement times.
    ack: Duration,
    /// Moving average of how long after this node's wins the next foreign record was folded here. It holds what an
    /// acknowledgement does not: the record's way to the other node and back.
    turn: Duration,
    /// When this node won, until the next foreign record.
    won_at: Option<Instant>,
    /// Records of others to wait for before the next publish.
    owed: usize,
    /// When waiting ends even if they do not come.
    patience_ends: Instant,
    losses: u32,
}

/// What a lost race asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Loss {
    /// Nothing beyond staging again.
    Bear,
    /// Tell the others: they are to leave the next turn to this node.
    Announce,
}

impl Turns {
    /// Turns of a node that has seen nobody.
    pub fn new(me: NodeId, now: Instant) -> Self {
        Self {
            me,
            seen: BTreeMap::new(),
            ack: ACK_GUESS,
            turn: Duration::ZERO,
            won_at: None,
            owed: 0,
            patience_ends: now,
            losses: 0,
        }
    }

    /// When this node may publish: now, or at the returned time unless a foreign record comes first.
    pub fn wait(&self, now: Instant) -> Option<Instant> {
        (self.owed > 0 && now < self.patience_ends).then_some(self.patience_ends)
    }

    /// This node's record was stored after `took`.
    pub fn on_win(&mut self, took: Duration, now: Instant) {
        self.ack = (self.ack * 7 + took.min(ACK_MAX)) / 8;
        self.losses = 0;
        self.won_at = Some(now);
        self.leave_turns(self.active(now), now);
    }

    /// Another node won the position that this node wanted.
    pub fn on_loss(&mut self) -> Loss {
        self.losses += 1;
        // Whoever lost is next: its own wait is over.
        self.owed = 0;
        if self.losses >= LOSSES_ANNOUNCED { Loss::Announce } else { Loss::Bear }
    }

    /// A record of this node or another one was folded.
    pub fn on_record(&mut self, node: NodeId, now: Instant) {
        if node == self.me {
            return;
        }
        self.seen.insert(node, now);
        self.owed = self.owed.saturating_sub(1);
        let took = self.won_at.take().map(|won| now.saturating_duration_since(won));
        if let Some(took) = took.filter(|took| *took < ACK_MAX) {
            self.turn = (self.turn * 7 + took) / 8;
        }
    }

    /// Another node announced that it keeps losing.
    pub fn on_announcement(&mut self, node: NodeId, now: Instant) {
        if node == self.me {
            return;
        }
        self.seen.insert(node, now);
        self.leave_turns(self.owed.max(1), now);
    }

    /// How many other nodes write to this partition at present.
    pub fn active(&self, now: Instant) -> usize {
        let within = (self.ack.max(self.turn) * ACTIVE_ACKS).max(ACTIVE_MIN);
        self.seen.values().filter(|seen| now.saturating_duration_since(**seen) < within).count()
    }

    fn leave_turns(&mut self, turns: usize, now: Instant) {
        self.owed = turns;
        // Half again as long as it takes: enough for a record that is on its way, short if there is none.
        let each = self.ack.max(self.turn) * 3 / 2;
        self.patience_ends = now + each * u32::try_from(turns).unwrap_or(u32::MAX);
        let within = (self.ack.max(self.turn) * ACTIVE_ACKS).max(ACTIVE_MIN);
        self.seen.retain(|_, seen| now.saturating_duration_since(*seen) < within);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::test_start;

    const MS: Duration = Duration::from_millis(1);

    fn node(n: u8) -> NodeId {
        NodeId::derive([n; 16])
    }

    #[test]
    fn a_lone_node_never_waits() {
        let now = test_start();
        let mut turns = Turns::new(node(1), now);
        turns.on_win(2 * MS, now);
        turns.on_record(node(1), now);
        assert_eq!(turns.wait(now), None);
    }

    #[test]
    fn after_a_win_the_others_have_their_turn_or_their_time() {
        let now = test_start();
        let mut turns = Turns::new(node(1), now);
        turns.on_record(node(2), now);
        turns.on_record(node(3), now);
        turns.on_win(MS, now);
        let ends = turns.wait(now).unwrap();
        assert_eq!(ends - now, 3 * MS);
        turns.on_record(node(2), now);
        assert!(turns.wait(now).is_some(), "one of two has written");
        turns.on_record(node(3), now);
        assert_eq!(turns.wait(now), None);
        turns.on_win(MS, now);
        assert_eq!(turns.wait(ends), None, "their time is over");
    }

    #[test]
    fn others_are_given_the_time_that_their_records_really_take_to_get_here() {
        let mut now = test_start();
        let mut turns = Turns::new(node(1), now);
        turns.on_record(node(2), now);
        for _ in 0..60 {
            turns.on_win(MS, now);
            now += 4 * MS;
            turns.on_record(node(2), now);
        }
        turns.on_win(MS, now);
        let patience = turns.wait(now).unwrap() - now;
        assert!((5 * MS..=6 * MS).contains(&patience), "{patience:?}");
    }

    #[test]
    fn a_node_that_is_silent_is_not_waited_for() {
        let now = test_start();
        let mut turns = Turns::new(node(1), now);
        turns.on_record(node(2), now);
        turns.on_win(MS, now + 100 * MS);
        assert_eq!(turns.wait(now + 100 * MS), None);
    }

    #[test]
    fn who_keeps_losing_announces_itself_and_is_let_through() {
        let now = test_start();
        let mut loser = Turns::new(node(1), now);
        assert_eq!(loser.on_loss(), Loss::Bear);
        assert_eq!(loser.on_loss(), Loss::Announce);
        let mut winner = Turns::new(node(2), now);
        assert_eq!(winner.wait(now), None);
        winner.on_announcement(node(1), now);
        assert!(winner.wait(now).is_some());
        winner.on_record(node(1), now);
        assert_eq!(winner.wait(now), None);
    }

    #[test]
    fn its_own_announcement_means_nothing() {
        let now = test_start();
        let mut turns = Turns::new(node(1), now);
        turns.on_announcement(node(1), now);
        assert_eq!(turns.wait(now), None);
    }
}
