//! Pure: what a gate shows of itself, and the counts behind it.
//! Promises plain data: a copy that later grants do not change.
//! Does not name metrics; who reports them reads this.

use std::time::Duration;

use super::{CLASSES, Class, Overload, Priority, REASONS, TIERS};

/// What a gate shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// How many permits there are.
    pub capacity: usize,
    /// How many of them are out; after the capacity shrank, this may be more.
    pub in_use: usize,
    /// How many acquirers wait.
    pub waiting: usize,
    /// The mean wait within the window, of those who were answered and of those who still wait.
    pub wait: Duration,
    /// How long the one who has waited longest waits.
    pub oldest: Duration,
    /// How long one waits in a queue that stands.
    pub short: Duration,
    /// For how long a queue may go without being empty before it stands.
    pub long: Duration,
    /// How many permits each priority must leave free when it takes one.
    pub debt: [f64; TIERS],
    /// The same for each class, in the order of [`Class::ALL`].
    pub classes: [ClassStatus; CLASSES],
    /// How many permits were given so far, by priority.
    pub granted: [u64; TIERS],
    /// How many were refused so far; [`Status::refused`] reads it.
    pub refusals: [[u64; TIERS]; REASONS],
    /// How many leaves the tree of shares has.
    pub leaves: usize,
}

/// What a gate shows of a class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassStatus {
    /// Which one.
    pub class: Class,
    /// How many permits it has.
    pub in_use: usize,
    /// How many of it wait.
    pub waiting: usize,
    /// How many permits it is due of those there are, given what all classes want now.
    pub entitled: f64,
}

impl Status {
    /// How many acquires of this priority were refused for this reason so far.
    pub fn refused(&self, reason: Overload, priority: Priority) -> u64 {
        self.refusals[reason.index()][priority.tier()]
    }
}

/// Counts since the gate was made.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) granted: [u64; TIERS],
    pub(super) refusals: [[u64; TIERS]; REASONS],
}

impl Counts {
    pub(super) fn on_grant(&mut self, tier: usize) {
        self.granted[tier] += 1;
    }

    pub(super) fn on_refusal(&mut self, reason: Overload, tier: usize) {
        self.refusals[reason.index()][tier] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_priority_and_reason_has_its_own_place() {
        assert!(Class::ALL.iter().enumerate().all(|(at, class)| class.index() == at));
        assert!(Priority::ALL.iter().enumerate().all(|(at, priority)| priority.tier() == at));
        assert!(Overload::ALL.iter().enumerate().all(|(at, reason)| reason.index() == at));
    }
}
