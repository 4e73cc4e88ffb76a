//! The board on which the rooms write whether they can work, and from which the probes read.
//! Promises one place where drain, start and every check are seen; reading it never waits for anything.
//! Does not check anything itself: each check is set by its owner.

pub mod pressure;
pub mod verdict;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use verdict::{Check, Report, State, View};

/// How far Postgres is behind the log. It is shown and never decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// Events that Postgres does not have yet.
    pub events: u64,
    /// Age of the oldest of them.
    pub oldest: Duration,
}

/// What the board shows at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The state of every check, in the order of [`Check::ALL`].
    pub states: [State; Check::ALL.len()],
    /// How far Postgres is behind.
    pub lag: Lag,
    /// How long requests waited for a connection lately, on the mean.
    pub wait: Duration,
}

/// The board of one server. Clones are the same board.
#[derive(Clone, Debug)]
pub struct Board(Arc<Mutex<Snapshot>>);

impl Board {
    /// A board of a server that starts now: nothing is known to work, nothing drains.
    pub fn new(now: Instant) -> Self {
        let waiting = State { failure: Some("not reported yet"), since: now };
        let mut states = [waiting; Check::ALL.len()];
        states[Check::Started as usize].failure = Some("the server starts");
        // Nobody has waited for a connection yet, and nobody has asked it to stop.
        for check in [Check::Pool, Check::Draining] {
            states[check as usize].failure = None;
        }
        let (lag, wait) = (Lag::default(), Duration::ZERO);
        Self(Arc::new(Mutex::new(Snapshot { states, lag, wait })))
    }

    /// This check works from now on.
    pub fn pass(&self, check: Check, now: Instant) {
        self.set(check, None, now);
    }

    /// This check does not work from now on. The reason is shown to everybody who asks.
    pub fn fail(&self, check: Check, reason: &'static str, now: Instant) {
        self.set(check, Some(reason), now);
    }

    /// The server drains: every view turns to not ready, for good.
    pub fn drain(&self, now: Instant) {
        self.set(Check::Draining, Some("the server drains"), now);
    }

    /// Shows how far Postgres is behind.
    pub fn note_lag(&self, lag: Lag) {
        self.lock().lag = lag;
    }

    /// Shows how long requests wait for a connection.
    pub fn note_wait(&self, wait: Duration) {
        self.lock().wait = wait;
    }

    /// Whether the server drains.
    pub fn is_draining(&self) -> bool {
        self.lock().states[Check::Draining as usize].failure.is_some()
    }

    /// What the board shows.
    pub fn snapshot(&self) -> Snapshot {
        self.lock().clone()
    }

    fn set(&self, check: Check, failure: Option<&'static str>, now: Instant) {
        let mut shown = self.lock();
        let state = &mut shown.states[check as usize];
        if state.failure.is_some() != failure.is_some() {
            state.since = now;
        }
        state.failure = failure;
        if verdict::has_started(&shown.states) {
            let started = &mut shown.states[Check::Started as usize];
            if started.failure.take().is_some() {
                started.since = now;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Snapshot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::test_start;

    fn is_ready(board: &Board, view: View) -> bool {
        verdict::judge(&board.snapshot().states, view, &[]).ready
    }

    #[test]
    fn a_server_is_ready_once_everything_worked_and_stays_so_without_the_database() {
        let now = test_start();
        let board = Board::new(now);
        board.pass(Check::Log, now);
        assert!(is_ready(&board, View::Ingest));
        assert!(!is_ready(&board, View::All));
        board.pass(Check::Database, now);
        assert!(!is_ready(&board, View::All));
        board.pass(Check::Migrations, now);
        assert!(is_ready(&board, View::All) && is_ready(&board, View::Reads));
        board.fail(Check::Database, "refused", now);
        assert!(is_ready(&board, View::All) && is_ready(&board, View::Ingest));
        assert!(!is_ready(&board, View::Reads));
        board.fail(Check::Log, "disconnected", now);
        assert!(!is_ready(&board, View::All) && !is_ready(&board, View::Ingest));
    }

    #[test]
    fn a_pool_under_pressure_turns_everything_but_sends() {
        let now = test_start();
        let board = Board::new(now);
        for check in [Check::Log, Check::Database, Check::Migrations] {
            board.pass(check, now);
        }
        board.fail(Check::Pool, "waits", now);
        assert!(is_ready(&board, View::Ingest));
        assert!(!is_ready(&board, View::All) && !is_ready(&board, View::Reads));
        board.pass(Check::Pool, now);
        assert!(is_ready(&board, View::All) && is_ready(&board, View::Reads));
    }

    #[test]
    fn draining_turns_every_view() {
        let now = test_start();
        let board = Board::new(now);
        for check in [Check::Log, Check::Database, Check::Migrations] {
            board.pass(check, now);
        }
        board.drain(now);
        assert!(board.is_draining());
        for view in [View::All, View::Ingest, View::Reads] {
            assert!(!is_ready(&board, view), "{view:?}");
        }
    }

    #[test]
    fn since_tells_the_last_change_and_not_the_last_report() {
        let now = test_start();
        let board = Board::new(now);
        let later = now + Duration::from_secs(1);
        board.pass(Check::Log, later);
        board.pass(Check::Log, later + Duration::from_secs(1));
        assert_eq!(board.snapshot().states[Check::Log as usize].since, later);
    }
}
