//! What a drain gives along with a delivery that it lets go, to hear what became of it.
//! Promises that every delivery that was let go is told of once, also when its attempt ended without a result.
//! Does not judge.

use tokio::sync::mpsc;

use crate::delivery::verdict::Sign;
use crate::event::Fate;

/// What became of a delivery of a backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::delivery) struct Done {
    pub(super) sequence: u64,
    /// `None` when nobody knows: the attempt was given up half way.
    pub(super) came: Option<(Sign, Fate)>,
}

/// Tells a drain of one delivery.
#[derive(Debug)]
pub(in crate::delivery) struct Ticket {
    sequence: u64,
    told: Option<mpsc::Sender<Done>>,
}

impl Ticket {
    pub(super) fn new(sequence: u64, told: mpsc::Sender<Done>) -> Self {
        Self { sequence, told: Some(told) }
    }

    /// The delivery was attempted.
    pub(in crate::delivery) fn tell(mut self, sign: Sign, fate: Fate) {
        self.send(Some((sign, fate)));
    }

    /// The delivery was not let go after all.
    pub(super) fn forget(mut self) {
        self.told = None;
    }

    fn send(&mut self, came: Option<(Sign, Fate)>) {
        // There is room for as many as may be under way; a drain that has ended reads its backlog anew.
        if let Some(told) = self.told.take() {
            let _ended = told.try_send(Done { sequence: self.sequence, came });
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.send(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_let_go_is_told_of_once_whatever_became_of_it() {
        let (told, mut done) = mpsc::channel(8);
        Ticket::new(1, told.clone()).tell(Sign::Success, Fate::Delivered);
        Ticket::new(2, told.clone()).forget();
        drop(Ticket::new(3, told));
        let all: Vec<_> = std::iter::from_fn(|| done.try_recv().ok()).collect();
        let known = Some((Sign::Success, Fate::Delivered));
        assert_eq!(all, [Done { sequence: 1, came: known }, Done { sequence: 3, came: None }]);
    }
}
