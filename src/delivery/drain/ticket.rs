//! What a drain gives along with a delivery that it lets go, to hear what became of it.
//! Promises that every delivery that was let go is told of once, also when its attempt ended without a result.
//! Does not judge.

use std::time::Duration;

use tokio::sync::mpsc;

use crate::delivery::verdict::Sign;
use crate::event::Fate;

/// What became of a delivery of a backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::delivery) struct Done {
    pub(super) sequence: u64,
    /// `None` when nobody knows: the attempt was given up half way.
    pub(super) came: Option<Came>,
    /// Whether the drain keeps it for its next attempt.
    pub(super) keeps_retry: bool,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::delivery) struct Came {
    /// What it says of the channel.
    pub(in crate::delivery) sign: Sign,
    /// What follows for the delivery.
    pub(in crate::delivery) fate: Fate,
    /// For how long the receiver wants nothing.
    pub(in crate::delivery) pause: Duration,
}

/// Tells a drain of one delivery.
#[derive(Debug)]
pub(in crate::delivery) struct Ticket {
    sequence: u64,
    keeps_retry: bool,
    told: Option<mpsc::Sender<Done>>,
}

impl Ticket {
    pub(super) fn new(sequence: u64, keeps_retry: bool, told: mpsc::Sender<Done>) -> Self {
        Self { sequence, keeps_retry, told: Some(told) }
    }

    /// Whether the drain keeps the delivery for its next attempt, because others of its conversation wait behind it. It
    /// was decided when it was let go; the channel's settings may have changed since.
    pub(in crate::delivery) const fn keeps_retry(&self) -> bool {
        self.keeps_retry
    }

    /// The delivery was attempted.
    pub(in crate::delivery) fn tell(mut self, came: Came) {
        self.send(Some(came));
    }

    /// The delivery was not let go after all.
    pub(super) fn forget(mut self) {
        self.told = None;
    }

    fn send(&mut self, came: Option<Came>) {
        // There is room for as many as may be under way; a drain that has ended reads its backlog anew.
        if let Some(told) = self.told.take() {
            let Self { sequence, keeps_retry, .. } = *self;
            let _ended = told.try_send(Done { sequence, came, keeps_retry });
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
        let came = Came { sign: Sign::Success, fate: Fate::Delivered, pause: Duration::ZERO };
        Ticket::new(1, false, told.clone()).tell(came);
        Ticket::new(2, false, told.clone()).forget();
        drop(Ticket::new(3, true, told));
        let all: Vec<_> = std::iter::from_fn(|| done.try_recv().ok()).collect();
        assert_eq!(
            all,
            [
                Done { sequence: 1, came: Some(came), keeps_retry: false },
                Done { sequence: 3, came: None, keeps_retry: true }
            ]
        );
    }
}
