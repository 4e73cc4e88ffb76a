//! One connection of a pool, and whether it may be used as it is.
//! Promises that a connection with an unfinished operation, of a former endpoint or past its lifetime is not used unseen.
//! Does not ask or close anything; the pool does.

use std::time::{Duration, Instant};

use sqlx::PgConnection;
use time::OffsetDateTime;

/// How long a connection may be idle before it is asked whether it still lives. Firewalls and poolers drop idle
/// sessions after minutes; `PgBouncer`'s own `server_check_delay` is the same 30 s.
pub(super) const IDLE_UNASKED_MAX: Duration = Duration::from_secs(30);

/// How long a connection beyond the least number may be idle before it is given up (the default of sqlx and `HikariCP`).
pub(super) const IDLE_MAX: Duration = Duration::from_mins(10);

/// Longest life of a connection. Postgres keeps what a session has seen in caches that only grow, and a changed address
/// or balance of servers is taken up only by new connections (the default of sqlx and `HikariCP`).
const LIFETIME_MAX: Duration = Duration::from_mins(30);

/// A connection lives for between this part of the longest life and all of it, so that those that were made together
/// are not renewed together.
const LIFETIME_JITTER: f64 = 0.2;

/// Whose session a connection has, for cancelling what it runs. A pid alone may be somebody else's by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Backend {
    /// The server's process.
    pub(super) pid: i32,
    /// When it began.
    pub(super) start: OffsetDateTime,
}

/// A connection of a pool.
#[derive(Debug)]
pub(super) struct Slot {
    /// `None` once it is being closed.
    pub(super) conn: Option<PgConnection>,
    /// `None` behind a pooler, where nobody may be cancelled.
    pub(super) backend: Option<Backend>,
    /// To which choice of endpoint it leads.
    pub(super) generation: u64,
    /// When it is to be renewed.
    pub(super) retire_at: Instant,
    /// When it was last given back, or made.
    pub(super) idle_since: Instant,
    /// Invariant: set before the first byte of an operation is sent, and cleared only when the operation was completed.
    pub(super) dirty: bool,
}

/// What a pool knows when it looks at an idle connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight {
    pub(super) now: Instant,
    /// The endpoint's present choice.
    pub(super) generation: u64,
    /// When a connection last broke.
    pub(super) broke_at: Option<Instant>,
}

/// What is to be done with an idle connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Fit {
    /// It may be used.
    Ready,
    /// It may be used once it has answered.
    Ask,
    /// It may not be used.
    Retire,
}

impl Slot {
    /// A connection that was made now. `draw` is uniform in [0, 1).
    pub(super) fn new(
        conn: PgConnection,
        backend: Option<Backend>,
        generation: u64,
        (now, draw): (Instant, f64),
    ) -> Self {
        let retire_at = now + LIFETIME_MAX.mul_f64(1.0 - LIFETIME_JITTER * draw.clamp(0.0, 1.0));
        Self { conn: Some(conn), backend, generation, retire_at, idle_since: now, dirty: false }
    }

    /// Whether it may be used. A connection past its lifetime may: it is renewed when its turn to be closed has come.
    pub(super) fn fit(&self, sight: Sight) -> Fit {
        if self.conn.is_none() || self.dirty || self.generation != sight.generation {
            return Fit::Retire;
        }
        judge(self.idle_since, sight)
    }

    /// Whether nobody has needed it for long.
    pub(super) fn is_unused(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.idle_since) > IDLE_MAX
    }
}

fn judge(idle_since: Instant, sight: Sight) -> Fit {
    let fresh = sight.now.saturating_duration_since(idle_since) <= IDLE_UNASKED_MAX;
    let outlived = sight.broke_at.is_none_or(|broke_at| idle_since > broke_at);
    if fresh && outlived { Fit::Ready } else { Fit::Ask }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::test_start;

    #[test]
    fn a_connection_is_asked_after_a_long_rest_and_when_another_broke_since() {
        let start = test_start();
        let sight = |now, broke_at| Sight { now, generation: 0, broke_at };
        let (soon, late) = (start + IDLE_UNASKED_MAX, start + IDLE_UNASKED_MAX * 2);
        let second = Duration::from_secs(1);
        for (seen, fit) in [
            (sight(soon, None), Fit::Ready),
            (sight(late, None), Fit::Ask),
            (sight(soon, Some(start)), Fit::Ask),
            (sight(soon, Some(start + second)), Fit::Ask),
        ] {
            assert_eq!(judge(start, seen), fit, "{seen:?}");
        }
        assert_eq!(judge(start + second, sight(soon, Some(start))), Fit::Ready);
    }
}
