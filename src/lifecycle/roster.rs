//! Telling many tasks one thing at a time of need, without a lock that all of them would meet at every poll.
//! Promises that a member that joins after the dismissal is dismissed at once.
//! Does not wait for members; trackers do.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Members that can be dismissed together. Clones are the same roster.
///
/// A shared token would do the same, but it takes a lock at every poll of every task that waits for it, and
/// connections are polled for every request.
#[derive(Clone, Debug, Default)]
pub struct Roster {
    members: Arc<Mutex<Members>>,
}

#[derive(Debug, Default)]
struct Members {
    next: u64,
    is_dismissed: bool,
    tell: HashMap<u64, oneshot::Sender<()>>,
}

/// One member's place on a roster; it is free again when this is dropped.
#[derive(Debug)]
pub struct Seat {
    roster: Roster,
    number: u64,
    told: oneshot::Receiver<()>,
}

impl Roster {
    /// A place for one more member.
    pub fn join(&self) -> Seat {
        let (tell, told) = oneshot::channel();
        let mut members = self.lock();
        let number = members.next;
        members.next += 1;
        if !members.is_dismissed {
            members.tell.insert(number, tell);
        }
        drop(members);
        Seat { roster: self.clone(), number, told }
    }

    /// Dismisses every member, those that come later too.
    pub fn dismiss(&self) {
        let mut members = self.lock();
        members.is_dismissed = true;
        let told = std::mem::take(&mut members.tell);
        // The members' wakers run here, so the lock must be gone.
        drop(members);
        drop(told);
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Waits for the dismissal; once it came, it must not be awaited again.
    ///
    /// Cancel safe: it holds no state of its own.
    pub async fn dismissed(&mut self) {
        // The sender only ever says something by going away.
        drop((&mut self.told).await);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.roster.lock().tell.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn everybody_is_dismissed_the_late_ones_too() {
        let roster = Roster::default();
        let (mut early, gone) = (roster.join(), roster.join());
        drop(gone);
        roster.dismiss();
        early.dismissed().await;
        roster.join().dismissed().await;
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_dismissed_before() {
        let mut seat = Roster::default().join();
        let waited = tokio::time::timeout(std::time::Duration::from_secs(1), seat.dismissed());
        assert!(waited.await.is_err());
    }
}
