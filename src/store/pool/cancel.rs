//! The cancel lane: ends statements that nobody waits for any more, over connections that do nothing else.
//! Promises that it is known when a cancel has been delivered: a connection that is used again before could be hit by it.
//! Does not cancel behind a pooler, where the session of a pid belongs to somebody else the next moment.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use tokio::sync::Semaphore;
use tokio::time::timeout_at;

use super::slot::Backend;
use crate::store::session::failback::Endpoints;

/// Connections of the lane: two cancels at a time end some thousand statements a second.
const LANE_CONNECTIONS: usize = 2;

/// Most cancels that wait for the lane. More than that are as many stuck statements as there are connections in two
/// full pools; whoever is beyond closes the connection instead.
const LANE_QUEUE: usize = 64;

/// Longest wait for a cancel, with the queue and a connect: a server that is slower than this does not listen.
const CANCEL_MAX: Duration = Duration::from_millis(500);

/// Statement timeout of the lane's own sessions.
const STATEMENT_MAX: Duration = Duration::from_secs(1);

/// What came of a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cancelled {
    /// The server has signalled the session.
    Delivered,
    /// The session is not there any more.
    Gone,
    /// It is not known whether the session was signalled.
    Unknown,
}

/// The lane.
pub(super) struct Cancels {
    places: Semaphore,
    /// Invariant: counts exactly the live [`Turn`]s.
    queued: AtomicUsize,
    idle: Mutex<Vec<(u64, PgConnection)>>,
}

impl Cancels {
    pub(super) fn new() -> Self {
        Self {
            places: Semaphore::new(LANE_CONNECTIONS),
            queued: AtomicUsize::new(0),
            idle: Mutex::default(),
        }
    }

    /// Asks the server to cancel what this session runs, and waits until it has been told.
    ///
    /// Not cancel safe: a caller that is dropped does not know whether the session will be signalled, and closes it.
    pub(super) async fn cancel(
        &self,
        endpoints: &Endpoints,
        backend: Backend,
        now: Instant,
    ) -> Cancelled {
        let Some(_turn) = Turn::take(&self.queued) else { return Cancelled::Unknown };
        let deadline = now + CANCEL_MAX;
        let asking = async {
            let _place = self.places.acquire().await.ok()?;
            let (generation, target) = endpoints.current();
            // One that has rested may have been lost meanwhile; a fresh one tells.
            if let Some(conn) = self.take_idle(generation)
                && let Some(found) = self.ask(generation, conn, backend).await
            {
                return Some(found);
            }
            let conn = target.connect("cancel", STATEMENT_MAX, deadline).await.ok()?;
            self.ask(generation, conn, backend).await
        };
        timeout_at(deadline.into(), asking).await.ok().flatten().unwrap_or(Cancelled::Unknown)
    }

    /// `None` when the connection is lost. Not known then whether the server was told; to tell it twice does no harm,
    /// because nobody uses the session meanwhile.
    async fn ask(
        &self,
        generation: u64,
        mut conn: PgConnection,
        backend: Backend,
    ) -> Option<Cancelled> {
        let found = signal(&mut conn, backend).await.ok()?;
        self.idle().push((generation, conn));
        Some(if found { Cancelled::Delivered } else { Cancelled::Gone })
    }

    /// An idle connection to the endpoint of this choice; those of others are closed.
    fn take_idle(&self, generation: u64) -> Option<PgConnection> {
        let mut idle = self.idle();
        idle.retain(|(made_for, _)| *made_for == generation);
        idle.pop().map(|(_, conn)| conn)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(u64, PgConnection)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether there was such a session to be signalled.
async fn signal(conn: &mut PgConnection, backend: Backend) -> Result<bool, sqlx::Error> {
    let signalled = sqlx::query_scalar!(
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND backend_start = $2",
        backend.pid,
        backend.start
    );
    Ok(signalled.fetch_optional(conn).await?.flatten().unwrap_or(false))
}

/// A place in the lane's queue, given back on drop.
struct Turn<'q>(&'q AtomicUsize);

impl<'q> Turn<'q> {
    fn take(queued: &'q AtomicUsize) -> Option<Self> {
        let taken = queued.try_update(Ordering::Relaxed, Ordering::Relaxed, |queued| {
            (queued < LANE_QUEUE).then(|| queued + 1)
        });
        taken.ok().map(|_before| Self(queued))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
