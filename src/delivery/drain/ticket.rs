//! What a drain gives along with a delivery that it lets go, to hear what became of it.
//! Promises that every delivery that was let go is told of once, also when its attempt ended without a result.
//! Does not judge.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::delivery::verdict::Sign;
use crate::event::Fate;

/// What a drain hears of a delivery that it let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::delivery) enum Told {
    /// Its attempt is over and was a success; its outcome is on the way into the log. The channel has room for another.
    Landed,
    /// All that there is to say.
    Done(Done),
}

/// What became of a delivery of a backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::delivery) struct Done {
    pub(super) sequence: u64,
    /// Whether it was told before that it had landed.
    pub(super) has_landed: bool,
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
    has_landed: AtomicBool,
    told: Option<mpsc::Sender<Told>>,
}

impl Ticket {
    pub(super) fn new(sequence: u64, keeps_retry: bool, told: mpsc::Sender<Told>) -> Self {
        Self { sequence, keeps_retry, has_landed: AtomicBool::new(false), told: Some(told) }
    }

    /// The attempt is over: another may begin, while its outcome goes into the log.
    pub(in crate::delivery) fn land(&self) {
        if let Some(told) = &self.told
            && !self.has_landed.swap(true, Ordering::Relaxed)
        {
            let _ended = told.try_send(Told::Landed);
        }
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
        // There is room for all that may be unsettled; a drain that has ended reads its backlog anew.
        if let Some(told) = self.told.take() {
            let (sequence, keeps_retry) = (self.sequence, self.keeps_retry);
            let has_landed = self.has_landed.load(Ordering::Relaxed);
            let _ended =
                told.try_send(Told::Done(Done { sequence, has_landed, came, keeps_retry }));
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

    fn done(sequence: u64, (came, has_landed): (Option<Came>, bool)) -> Done {
        Done { sequence, has_landed, came, keeps_retry: false }
    }

    #[test]
    fn what_was_let_go_is_told_of_once_whatever_became_of_it() {
        let (told, mut heard) = mpsc::channel(16);
        let came = Came { sign: Sign::Success, fate: Fate::Delivered, pause: Duration::ZERO };
        Ticket::new(1, false, told.clone()).tell(came);
        Ticket::new(2, false, told.clone()).forget();
        drop(Ticket::new(3, true, told.clone()));
        let landed = Ticket::new(4, false, told.clone());
        landed.land();
        landed.land();
        landed.tell(came);
        Ticket::new(5, false, told).land();
        let all: Vec<_> = std::iter::from_fn(|| heard.try_recv().ok()).collect();
        assert_eq!(
            all,
            [
                Told::Done(done(1, (Some(came), false))),
                Told::Done(Done { keeps_retry: true, ..done(3, (None, false)) }),
                Told::Landed,
                Told::Done(done(4, (Some(came), true))),
                Told::Landed,
                Told::Done(done(5, (None, true))),
            ]
        );
    }
}
