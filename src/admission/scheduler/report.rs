//! Pure: what a scheduler shows of itself.
//! Promises that to look changes nothing that is decided later.
//! Does not keep anything; all of it is read off the state.

use std::time::{Duration, Instant};

use super::Scheduler;
use crate::admission::debt::real;
use crate::admission::share::{Demand, Tree, water_level};
use crate::admission::{CLASSES, Class, ClassStatus, Status, TIERS};

impl<W> Scheduler<W> {
    /// What is going on.
    pub fn status(&mut self, now: Instant) -> Status {
        let oldest = (0..TIERS).filter_map(|tier| self.waiters.oldest(tier)).min();
        Status {
            capacity: self.capacity,
            in_use: self.in_use,
            waiting: self.waiters.len(),
            wait: self.window.mean(now),
            oldest: oldest.map_or(Duration::ZERO, |at| now.saturating_duration_since(at)),
            short: self.limits.short(),
            long: self.limits.long(),
            debt: self.debt.owed(now),
            classes: self.classes(),
            granted: self.counts.granted,
            refusals: self.counts.refusals,
            leaves: self.leaves.count(),
        }
    }

    fn classes(&self) -> [ClassStatus; CLASSES] {
        let demands = Class::ALL.map(|class| {
            let (in_use, waiting, cap) = self.tree.counts(Tree::class(class));
            let wanted = real(cap.min(in_use.saturating_add(waiting)));
            let kept = real(self.tree.kept_for(class));
            Demand { weight: f64::from(class.weight()), wanted, kept }
        });
        let level = water_level(real(self.capacity), &demands);
        Class::ALL.map(|class| {
            let (in_use, waiting, _) = self.tree.counts(Tree::class(class));
            ClassStatus { class, in_use, waiting, entitled: level[class.index()] }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Desk, ms, origin};
    use crate::admission::{Class, Overload, Priority};

    #[test]
    fn the_status_shows_what_each_class_has_and_is_due() {
        let mut desk = Desk::new(7);
        for _ in 0..7 {
            desk.arrive(origin(Class::Bulk, 1).at(Priority::High));
        }
        for _ in 0..7 {
            desk.arrive(origin(Class::High, 1).at(Priority::High));
            desk.arrive(origin(Class::Standard, 1).at(Priority::High));
        }
        desk.pass(ms(10));
        let status = desk.status();
        let due = status.classes.map(|class| class.entitled);
        for (got, want) in due.iter().zip([0.0, 4.0, 2.0, 1.0]) {
            assert!((got - want).abs() < 1e-9, "{due:?}");
        }
        assert_eq!(status.classes.map(|class| class.in_use), [0, 0, 0, 7]);
        assert_eq!(status.classes.map(|class| class.waiting), [0, 7, 7, 0]);
        assert_eq!((status.granted, status.leaves), ([0, 7, 0, 0], 3));
        assert_eq!((status.oldest, status.short, status.long), (ms(10), ms(5), ms(100)));
        // Seven did not wait, fourteen have for 10 ms.
        assert_eq!(status.wait, std::time::Duration::from_nanos(6_666_666));
        desk.pass(ms(1000));
        assert_eq!(desk.status().refused(Overload::Queue, Priority::High), 14);
        assert!(desk.status().wait >= ms(60));
    }
}
