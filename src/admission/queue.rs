//! Pure: who waits, in queues that turn around when they stand (CoDel with adaptive LIFO), and until when.
//! Promises that joining, leaving and finding the next one do not depend on how many wait, and that a queue is empty
//! exactly when nobody waits in it.
//! Does not give out permits.
//!
//! A queue that has not been empty for the long limit stands: more comes in than goes out. From then until it is empty
//! the newest is served first, and whoever has waited for the short limit is refused, the oldest first.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::limits::Limits;
use super::share::LeafId;
use super::{Overload, TIERS};

/// Names a waiter; never another one after he has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaiterId {
    index: u32,
    /// How often the place was used before.
    turn: u32,
}

/// Nobody.
const NONE: u32 = u32::MAX;

/// The lists that a waiter is in: that of his queue, and that of his tier.
const QUEUE: usize = 0;
const TIER: usize = 1;

/// Who waits, oldest first.
#[derive(Debug)]
struct List {
    oldest: u32,
    newest: u32,
    len: usize,
}

impl List {
    const EMPTY: Self = Self { oldest: NONE, newest: NONE, len: 0 };
}

/// The waiters of one tier at one leaf.
#[derive(Debug)]
pub(super) struct Queue {
    list: List,
    empty_at: Instant,
    /// Whether it stands, so that the newest is served first.
    stands: bool,
}

impl Queue {
    pub(super) fn new(now: Instant) -> Self {
        Self { list: List::EMPTY, empty_at: now, stands: false }
    }

    pub(super) fn len(&self) -> usize {
        self.list.len
    }

    /// Looks whether it is empty or stands. Before a joining and after a leaving.
    fn look(&mut self, now: Instant, long: Duration) {
        if self.list.len == 0 {
            self.empty_at = now;
            self.stands = false;
        } else if now.saturating_duration_since(self.empty_at) > long {
            self.stands = true;
        }
    }
}

/// Somebody who waits.
#[derive(Debug)]
pub(super) struct Waiter<W> {
    pub(super) payload: W,
    pub(super) tier: usize,
    pub(super) leaf: LeafId,
    pub(super) entered: Instant,
    due: Instant,
    /// What he is told when his time is up.
    pub(super) reason: Overload,
    links: [Link; 2],
}

/// His neighbours in one list.
#[derive(Clone, Copy, Debug)]
struct Link {
    older: u32,
    newer: u32,
}

/// Somebody who is about to wait.
#[derive(Debug)]
pub(super) struct Newcomer<W> {
    pub(super) payload: W,
    pub(super) tier: usize,
    pub(super) leaf: LeafId,
    pub(super) deadline: Instant,
}

/// Everybody who waits.
#[derive(Debug)]
pub(super) struct Waiters<W> {
    slots: Vec<Slot<W>>,
    free: Vec<u32>,
    /// Invariant: one entry for each waiter; so there is one timer for all of them.
    dues: BTreeSet<(Instant, WaiterId)>,
    tiers: [List; TIERS],
}

#[derive(Debug)]
struct Slot<W> {
    turn: u32,
    waiter: Option<Waiter<W>>,
}

impl<W> Waiters<W> {
    pub(super) fn new() -> Self {
        let tiers = std::array::from_fn(|_| List::EMPTY);
        Self { slots: Vec::new(), free: Vec::new(), dues: BTreeSet::new(), tiers }
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.dues.len()
    }

    /// How many wait in one tier.
    pub(super) fn in_tier(&self, tier: usize) -> usize {
        self.tiers[tier].len
    }

    /// When the one who has waited longest in a tier began to.
    pub(super) fn oldest(&self, tier: usize) -> Option<Instant> {
        self.at(self.tiers[tier].oldest).map(|waiter| waiter.entered)
    }

    /// The first time at which somebody's time is up.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.dues.first().map(|&(at, _)| at)
    }

    /// Somebody whose time is up.
    pub(super) fn overdue(&self, now: Instant) -> Option<WaiterId> {
        self.dues.first().filter(|&&(at, _)| at <= now).map(|&(_, id)| id)
    }

    /// Anybody.
    pub(super) fn any(&self) -> Option<WaiterId> {
        self.dues.first().map(|&(_, id)| id)
    }

    pub(super) fn get(&self, id: WaiterId) -> Option<&Waiter<W>> {
        let slot = self.slots.get(id.index as usize).filter(|slot| slot.turn == id.turn)?;
        slot.waiter.as_ref()
    }

    /// Who is served next in this queue.
    pub(super) fn next(&self, queue: &mut Queue, now: Instant, long: Duration) -> Option<WaiterId> {
        queue.look(now, long);
        let index = if queue.stands { queue.list.newest } else { queue.list.oldest };
        let slot = self.slots.get(index as usize)?;
        Some(WaiterId { index, turn: slot.turn })
    }

    /// Joins a queue.
    ///
    /// CoDel refuses the oldest when the queue stands and he is older than the short limit. With `e` the time of the
    /// last emptiness, the queue stands from `e + long` until it is empty, and he is in it until then or gone. So his
    /// time is known from the start: `max(e + long, entered + short)`. Before `e + long` nobody can be older than the
    /// long limit, because nobody entered before `e`. Who entered later is due later, so they go in order.
    pub(super) fn enter(
        &mut self,
        queue: &mut Queue,
        newcomer: Newcomer<W>,
        now: Instant,
        limits: &Limits,
    ) -> WaiterId {
        queue.look(now, limits.long());
        let stands = queue.empty_at + limits.long();
        let reap = stands.max(now + limits.short());
        let Newcomer { payload, tier, leaf, deadline } = newcomer;
        let reason = if deadline < reap { Overload::Deadline } else { Overload::Queue };
        let (due, links) = (reap.min(deadline), [Link { older: NONE, newer: NONE }; 2]);
        let waiter = Waiter { payload, tier, leaf, entered: now, due, reason, links };
        let id = self.insert(waiter);
        self.dues.insert((due, id));
        self.link(&mut queue.list, QUEUE, id.index);
        let mut list = std::mem::replace(&mut self.tiers[tier], List::EMPTY);
        self.link(&mut list, TIER, id.index);
        self.tiers[tier] = list;
        id
    }

    /// Leaves the queue that he joined; `None` when he has left already.
    pub(super) fn leave(
        &mut self,
        queue: &mut Queue,
        id: WaiterId,
        now: Instant,
        long: Duration,
    ) -> Option<Waiter<W>> {
        let waiter = self.get(id)?;
        let (tier, due) = (waiter.tier, waiter.due);
        self.unlink(&mut queue.list, QUEUE, id.index);
        let mut list = std::mem::replace(&mut self.tiers[tier], List::EMPTY);
        self.unlink(&mut list, TIER, id.index);
        self.tiers[tier] = list;
        self.dues.remove(&(due, id));
        queue.look(now, long);
        let slot = &mut self.slots[id.index as usize];
        slot.turn = slot.turn.wrapping_add(1);
        self.free.push(id.index);
        slot.waiter.take()
    }

    fn insert(&mut self, waiter: Waiter<W>) -> WaiterId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { turn: 0, waiter: None });
            u32::try_from(self.slots.len() - 1).expect("waiters are bounded")
        });
        let slot = &mut self.slots[index as usize];
        slot.waiter = Some(waiter);
        WaiterId { index, turn: slot.turn }
    }

    fn at(&self, index: u32) -> Option<&Waiter<W>> {
        self.slots.get(index as usize)?.waiter.as_ref()
    }

    fn link_of(&mut self, index: u32, of: usize) -> Option<&mut Link> {
        let waiter = self.slots.get_mut(index as usize)?.waiter.as_mut()?;
        Some(&mut waiter.links[of])
    }

    fn link(&mut self, list: &mut List, of: usize, index: u32) {
        let older = list.newest;
        if let Some(link) = self.link_of(index, of) {
            *link = Link { older, newer: NONE };
        }
        match self.link_of(older, of) {
            Some(neighbour) => neighbour.newer = index,
            None => list.oldest = index,
        }
        list.newest = index;
        list.len += 1;
    }

    fn unlink(&mut self, list: &mut List, of: usize, index: u32) {
        let Some(Link { older, newer }) = self.link_of(index, of).map(|link| *link) else {
            return;
        };
        match self.link_of(older, of) {
            Some(neighbour) => neighbour.newer = newer,
            None => list.oldest = newer,
        }
        match self.link_of(newer, of) {
            Some(neighbour) => neighbour.older = older,
            None => list.newest = older,
        }
        list.len -= 1;
    }
}

#[cfg(test)]
mod tests;
