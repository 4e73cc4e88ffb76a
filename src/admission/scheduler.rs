//! Pure: who gets a permit, who waits and who is refused, at one gate.
//! Promises that every arrival is answered once: with a grant, with a refusal by its due time, or by its own leaving.
//! Does not lock, sleep or wake; it says whom to wake, and when to come back.
//!
//! The rules are in the front file of the room. Here is how they meet, and what differs from Figma's `backpressure`,
//! whose shape this has: a newcomer does not overtake his own tier (Q1); one timer is set to the first due time over
//! all queues (Q2); whoever is kept back by debt alone gets a permit when nobody uses any (Q3).

mod report;

use std::time::{Duration, Instant};

use super::debt::{Debt, Trickle};
use super::limits::Limits;
use super::queue::{Newcomer, Waiter, WaiterId, Waiters};
use super::share::{Leaf, LeafId, Leaves, Tree};
use super::status::Counts;
use super::window::Window;
use super::{CLASSES, Overload, Settings, TIERS, Tag};

/// The tier that the trickle keeps moving.
const LOWEST: usize = TIERS - 1;

/// The least bound of one queue, and how many waiters for each permit it may have: more would wait longer than the
/// limits allow at any rate of turnover.
const QUEUE_MIN: usize = 16;
const QUEUE_TURNS: usize = 4;

/// The most permits that parts of the tree may have at a time.
#[derive(Clone, Copy, Debug)]
pub struct Caps {
    /// Of each class, in the order of [`Class::ALL`](super::Class::ALL).
    pub classes: [usize; CLASSES],
    /// Of each tenant.
    pub tenant: usize,
}

impl Caps {
    /// None: whoever is alone may use everything.
    pub const NONE: Self = Self { classes: [usize::MAX; CLASSES], tenant: usize::MAX };
}

/// The state of one gate. `W` is what its user wants back when somebody is to be woken.
#[derive(Debug)]
pub struct Scheduler<W> {
    capacity: usize,
    in_use: usize,
    closed: bool,
    waiters_max: usize,
    waiters: Waiters<W>,
    leaves: Leaves,
    tree: Tree,
    debt: Debt,
    trickle: Trickle,
    limits: Limits,
    window: Window,
    counts: Counts,
    /// When it was last called.
    seen: Instant,
}

/// A permit that is out. It is given back once, by [`Scheduler::release`], because it cannot be copied.
#[must_use = "a grant that is not released is lost"]
#[derive(Debug)]
pub struct Grant {
    leaf: LeafId,
    since: Instant,
}

/// What became of an arrival.
#[derive(Debug)]
#[must_use]
pub enum Arrival {
    /// It has a permit.
    Granted(Grant),
    /// It waits, or is answered already by one of the wakes of the same call.
    Waits(WaiterId),
    /// It gets none.
    Refused(Overload),
}

/// An answer for somebody who waited.
#[derive(Debug)]
pub struct Wake<W> {
    /// What was given when he came.
    pub waiter: W,
    /// What he gets.
    pub outcome: Result<Grant, Overload>,
}

impl<W> Scheduler<W> {
    /// A gate that nobody has come to.
    pub fn new(settings: &Settings, caps: Caps, now: Instant) -> Self {
        let capacity = settings.capacity;
        Self {
            capacity,
            in_use: 0,
            closed: false,
            waiters_max: settings.waiters_max,
            waiters: Waiters::new(),
            leaves: Leaves::new(caps.tenant),
            tree: Tree::new(capacity, caps.classes, settings.reserved),
            debt: Debt::new(capacity, now),
            trickle: Trickle::new(now),
            limits: Limits::new(settings.target, settings.interval, now),
            window: Window::new(settings.window, now),
            counts: Counts::default(),
            seen: now,
        }
    }

    /// Somebody wants a permit by `deadline`. Only if he must wait, `waiter` is made.
    pub fn arrive(
        &mut self,
        (tag, deadline): (Tag, Instant),
        now: Instant,
        waiter: impl FnOnce() -> W,
        wakes: &mut Vec<Wake<W>>,
    ) -> Arrival {
        self.seen = now;
        self.reap(wakes);
        self.debt.fade(now);
        let arrival = self.answer(tag, deadline, waiter);
        if self.waiters.len() > 0 {
            // Given before refused, so that a late deadline does not keep anybody from what is free.
            self.admit(wakes);
            self.reap(wakes);
        }
        if let Arrival::Waits(id) = arrival {
            self.charge(id);
        }
        arrival
    }

    /// A permit comes back.
    #[expect(clippy::needless_pass_by_value, reason = "a grant is given back once")]
    pub fn release(&mut self, grant: Grant, now: Instant, wakes: &mut Vec<Wake<W>>) {
        self.seen = now;
        let Grant { leaf, since } = grant;
        self.in_use -= 1;
        let leaf = self.leaves.get_mut(leaf);
        leaf.touched = now;
        self.tree.give(leaf.node);
        self.limits.on_release(now.saturating_duration_since(since), self.capacity, now);
        self.settle(wakes);
    }

    /// Somebody who waits went away. `false` when he was answered before.
    pub fn cancel(&mut self, id: WaiterId, now: Instant, wakes: &mut Vec<Wake<W>>) -> bool {
        self.seen = now;
        let Some(waiter) = self.leave(id) else {
            return false;
        };
        self.window.on_cancel(now.saturating_duration_since(waiter.entered), now);
        // He may have been the one whom others waited for.
        self.settle(wakes);
        true
    }

    /// Time has passed; to be called at [`Scheduler::next_wake`].
    pub fn tick(&mut self, now: Instant, wakes: &mut Vec<Wake<W>>) {
        self.seen = now;
        self.settle(wakes);
    }

    /// There are so many permits. Those that are out stay out; whoever waits at a capacity of zero may wait on.
    pub fn resize(&mut self, capacity: usize, now: Instant, wakes: &mut Vec<Wake<W>>) {
        self.seen = now;
        self.capacity = capacity;
        self.tree.on_resize(capacity);
        self.debt.on_resize(capacity, now);
        self.limits.on_resize(capacity);
        self.settle(wakes);
    }

    /// Refuses everybody who waits or comes; whoever has a permit may finish.
    pub fn close(&mut self, now: Instant, wakes: &mut Vec<Wake<W>>) {
        self.seen = now;
        self.closed = true;
        while let Some(waiter) = self.waiters.any().and_then(|id| self.leave(id)) {
            self.counts.on_refusal(Overload::Closed, waiter.tier);
            wakes.push(Wake { waiter: waiter.payload, outcome: Err(Overload::Closed) });
        }
    }

    /// When something changes by itself: somebody's time is up, debt has faded enough, or the trickle is due. Always
    /// later than the last call, so that it does not have to be called twice for one time.
    pub fn next_wake(&self) -> Option<Instant> {
        let mut next = self.waiters.next_due();
        let free = self.free();
        if free > 0 && self.waiters.len() > 0 {
            let waits = |&tier: &usize| self.waiters.in_tier(tier) > 0;
            let fades = (0..TIERS).filter(waits).find_map(|tier| self.debt.admits_at(tier, free));
            let trickles = waits(&LOWEST).then(|| self.trickle.next());
            let times = [fades, trickles].into_iter().flatten().filter(|&at| at > self.seen);
            next = next.into_iter().chain(times).min();
        }
        next
    }

    /// Counts a refusal that the caller decided on.
    pub fn refuse(&mut self, reason: Overload, tag: Tag) {
        self.counts.on_refusal(reason, tag.priority.tier());
    }

    /// How many permits there are.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many permits are out.
    pub fn in_use(&self) -> usize {
        self.in_use
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Whether [`Scheduler::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    fn answer(&mut self, tag: Tag, deadline: Instant, waiter: impl FnOnce() -> W) -> Arrival {
        let tier = tag.priority.tier();
        if self.closed {
            return self.refuse_at_once(Overload::Closed, tier);
        }
        if self.capacity == 0 {
            return self.refuse_at_once(Overload::ZeroCapacity, tier);
        }
        let leaf = self.leaves.of(tag.origin, self.seen, &mut self.tree);
        let Leaf { node, queues, .. } = self.leaves.get(leaf);
        if self.nobody_waits(0..=tier) && self.debt_admits(tier) && self.tree.fits(*node) {
            self.debt.forgive(tier);
            return Arrival::Granted(self.grant(leaf, tier, Duration::ZERO));
        }
        let queue_max = QUEUE_MIN.max(self.capacity.saturating_mul(QUEUE_TURNS));
        if self.waiters.len() >= self.waiters_max || queues[tier].len() >= queue_max {
            return self.refuse_at_once(Overload::QueueFull, tier);
        }
        Arrival::Waits(self.enter(Newcomer { payload: waiter(), tier, leaf, deadline }))
    }

    /// Refuses whose time is up, then gives what is free. In this order, because an answer that comes too late is work
    /// for nobody; a waiter whom nothing but debt kept back does not get so far (Q3).
    fn settle(&mut self, wakes: &mut Vec<Wake<W>>) {
        if self.waiters.len() > 0 {
            self.reap(wakes);
            self.debt.fade(self.seen);
            self.admit(wakes);
        }
    }

    fn admit(&mut self, wakes: &mut Vec<Wake<W>>) {
        self.trickle(wakes);
        for tier in 0..TIERS {
            while self.waiters.in_tier(tier) > 0 {
                // Debt grows downwards, so what one tier may not have the next may not either.
                if self.free() == 0 || !self.debt_admits(tier) {
                    return;
                }
                // Nobody of this tier can have what is free, by a cap of his own or because it is kept for others.
                let Some(leaf) = self.tree.pick(tier) else {
                    break;
                };
                self.grant_next(leaf, tier, wakes);
            }
        }
    }

    fn reap(&mut self, wakes: &mut Vec<Wake<W>>) {
        while let Some(waiter) = self.waiters.overdue(self.seen).and_then(|id| self.leave(id)) {
            self.count_refusal(waiter.reason, waiter.tier, waiter.entered);
            wakes.push(Wake { waiter: waiter.payload, outcome: Err(waiter.reason) });
        }
    }

    /// Gives one permit to the lowest tier if it went without for long. It overtakes higher waiters, but none that has
    /// waited for the long limit.
    fn trickle(&mut self, wakes: &mut Vec<Wake<W>>) {
        let long = self.limits.long();
        let old = |at: Instant| self.seen.saturating_duration_since(at) > long;
        let due = self.waiters.in_tier(LOWEST) > 0
            && self.free() > 0
            && self.trickle.is_due(self.seen)
            && !(0..LOWEST).filter_map(|tier| self.waiters.oldest(tier)).any(old);
        if let Some(leaf) = due.then(|| self.tree.pick(LOWEST)).flatten() {
            self.grant_next(leaf, LOWEST, wakes);
        }
    }

    /// Gives a permit to the next in the queue of the leaf that was picked.
    fn grant_next(&mut self, leaf: LeafId, tier: usize, wakes: &mut Vec<Wake<W>>) {
        let (now, long) = (self.seen, self.limits.long());
        let queue = &mut self.leaves.get_mut(leaf).queues[tier];
        let next = self.waiters.next(queue, now, long);
        let waiter = next.and_then(|id| self.leave(id)).expect("the tree counts the waiters");
        let wait = now.saturating_duration_since(waiter.entered);
        let grant = self.grant(leaf, tier, wait);
        wakes.push(Wake { waiter: waiter.payload, outcome: Ok(grant) });
    }

    fn grant(&mut self, leaf: LeafId, tier: usize, wait: Duration) -> Grant {
        let now = self.seen;
        self.in_use += 1;
        debug_assert!(self.in_use <= self.capacity);
        let at = self.leaves.get_mut(leaf);
        at.touched = now;
        self.tree.take(at.node);
        self.window.on_grant(wait, now);
        self.counts.on_grant(tier);
        if tier == LOWEST {
            self.trickle.on_grant(now);
        }
        Grant { leaf, since: now }
    }

    fn enter(&mut self, newcomer: Newcomer<W>) -> WaiterId {
        let (now, tier) = (self.seen, newcomer.tier);
        let at = self.leaves.get_mut(newcomer.leaf);
        self.tree.enter(at.node, tier);
        self.window.on_enter(now);
        self.waiters.enter(&mut at.queues[tier], newcomer, now, &self.limits)
    }

    fn leave(&mut self, id: WaiterId) -> Option<Waiter<W>> {
        let (leaf, tier) = self.waiters.get(id).map(|waiter| (waiter.leaf, waiter.tier))?;
        let at = self.leaves.get_mut(leaf);
        at.touched = self.seen;
        let queue = &mut at.queues[tier];
        let waiter = self.waiters.leave(queue, id, self.seen, self.limits.long())?;
        self.tree.leave(at.node, tier);
        self.window.on_leave(waiter.entered);
        Some(waiter)
    }

    fn refuse_at_once(&mut self, reason: Overload, tier: usize) -> Arrival {
        match reason {
            Overload::Closed | Overload::ZeroCapacity => {
                self.counts.on_refusal(reason, tier);
                self.window.on_turned_away(self.seen);
            }
            Overload::Queue | Overload::QueueFull | Overload::Deadline | Overload::Nested => {
                self.count_refusal(reason, tier, self.seen);
            }
        }
        Arrival::Refused(reason)
    }

    fn count_refusal(&mut self, reason: Overload, tier: usize, entered: Instant) {
        self.counts.on_refusal(reason, tier);
        self.window.on_refusal(self.seen.saturating_duration_since(entered), self.seen);
    }

    /// Holds it against lower tiers that this one still waits; unless that is by a cap of his own or a reservation of
    /// others, or he asks for more than a fair share.
    fn charge(&mut self, id: WaiterId) {
        let Some(waiter) = self.waiters.get(id) else {
            return;
        };
        let (node, tier) = (self.leaves.get(waiter.leaf).node, waiter.tier);
        let for_want = self.free() == 0 || self.tree.fits(node);
        if for_want && self.tree.is_within_caps(node) && self.tree.is_entitled(node) {
            self.debt.charge(tier);
        }
    }

    /// Whether debt lets this tier have a permit. It does when nobody uses any and nobody above waits: what is idle
    /// helps nobody.
    fn debt_admits(&self, tier: usize) -> bool {
        self.debt.admits(tier, self.free())
            || (self.in_use == 0 && self.capacity > 0 && self.nobody_waits(0..tier))
    }

    fn nobody_waits(&self, mut tiers: impl Iterator<Item = usize>) -> bool {
        self.waiters.len() == 0 || tiers.all(|tier| self.waiters.in_tier(tier) == 0)
    }

    /// After the capacity shrank there may be more out than there are.
    fn free(&self) -> usize {
        self.capacity.saturating_sub(self.in_use)
    }
}

#[cfg(test)]
mod corners;
#[cfg(test)]
mod quirks;
#[cfg(test)]
mod tests;
