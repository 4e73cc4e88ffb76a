//! Clears away what a dropped operation left on its connection: the rest of an answer, a running statement, a transaction.
//! Promises that a connection goes back with nothing of its last user on it, or not at all, within two seconds.
//! Does not know what the operation was.
//!
//! The permit stays out meanwhile, so the pool never has more users than connections.

use std::sync::Arc;
use std::time::Duration;

use deadpool::unmanaged::Object;
use sqlx::{Connection as _, PgConnection};
use tokio::time::timeout;
use tracing::warn;

use super::cancel::Cancelled;
use super::slot::Slot;
use super::{Farewell, Pool};
use crate::admission::Permit;
use crate::lifecycle::Kind;
use crate::store::Topology;

/// How long a statement may go on by itself before it is cancelled. Most end within it, and a cancel costs the server a
/// round trip and a look at its sessions.
const GRACE: Duration = Duration::from_millis(5);

/// How long a cancelled statement may take to end.
const END_MAX: Duration = Duration::from_secs(1);

/// The longest that all of it may take. Then the connection is closed: somebody else could have used its place.
const CLEANUP_MAX: Duration = Duration::from_secs(2);

/// Most answers that are read while waiting for the server to be ready: that of the statement, that of a cancel, and
/// one to spare.
const ANSWERS_MAX: usize = 3;

/// Why a connection could not be cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spoiled {
    /// The connection is broken.
    Broken,
    /// The server does not end the statement.
    Stuck,
}

/// How far the connection is.
enum Drained {
    Ready,
    NotYet,
}

/// Clears the connection in a task of its own; without a runtime it is closed.
pub(super) fn start(pool: &Arc<Pool>, slot: Object<Slot>, mut permit: Option<Permit>) {
    // Whoever was served over this connection may ask for the next one meanwhile.
    if let Some(permit) = permit.as_mut() {
        permit.hand_over();
    }
    let mut ward = Ward { pool: Arc::clone(pool), slot: Some(slot) };
    if tokio::runtime::Handle::try_current().is_err() {
        return;
    }
    pool.supervisor.spawn(Kind::Pool, async move {
        let cleared = match ward.slot.as_mut() {
            Some(slot) => timeout(CLEANUP_MAX, clear(&ward.pool, slot)).await,
            None => return,
        };
        match cleared {
            Ok(Ok(())) => ward.give_back(),
            Ok(Err(why)) => ward.warn(why),
            Err(_elapsed) => ward.warn(Spoiled::Stuck),
        }
        drop((ward, permit));
    });
}

/// A connection that is being cleared. Dropped early, for whatever reason, it is closed and not given back.
struct Ward {
    pool: Arc<Pool>,
    slot: Option<Object<Slot>>,
}

impl Ward {
    fn give_back(&mut self) {
        if let Some(mut slot) = self.slot.take() {
            slot.dirty = false;
            self.pool.note_outcome(slot.generation, false);
            self.pool.give_back(slot);
        }
    }

    fn warn(&self, why: Spoiled) {
        let pid = self.slot.as_ref().and_then(|slot| slot.backend).map(|backend| backend.pid);
        if why == Spoiled::Stuck {
            warn!(db.pid = pid, "a connection of the {} pool does not come free", self.pool.name);
        }
        self.pool.note_broken();
        if let Some(slot) = self.slot.as_ref() {
            self.pool.note_outcome(slot.generation, true);
        }
    }
}

impl Drop for Ward {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.pool.retire(slot, Farewell::Drop);
        }
    }
}

async fn clear(pool: &Pool, slot: &mut Slot) -> Result<(), Spoiled> {
    // Whoever is asked to cancel must be the server on which it runs.
    let is_current = slot.generation == pool.endpoints.generation();
    let backend = slot.backend.filter(|_| is_current);
    let conn = slot.conn.as_mut().ok_or(Spoiled::Broken)?;
    if matches!(drain(conn, GRACE).await?, Drained::NotYet) {
        let backend = match (pool.endpoints.topology(), backend) {
            (Topology::Direct, Some(backend)) => backend,
            (Topology::Direct | Topology::TransactionPooler, _) => return Err(Spoiled::Stuck),
        };
        let now = pool.clock.now();
        let cancelled = pool.cancels.cancel(&pool.endpoints, backend, now).await;
        match cancelled {
            Cancelled::Delivered => pool.count(|totals| totals.cancels_sent += 1),
            Cancelled::Gone => return Err(Spoiled::Broken),
            Cancelled::Unknown => {
                pool.count(|totals| totals.cancels_failed += 1);
                return Err(Spoiled::Stuck);
            }
        }
        match drain(conn, END_MAX).await? {
            Drained::Ready => {}
            Drained::NotYet => return Err(Spoiled::Stuck),
        }
        probe(conn).await?;
    }
    roll_back(conn).await?;
    pool.count(|totals| totals.rollbacks += 1);
    if conn.is_in_transaction() || conn.should_flush() { Err(Spoiled::Broken) } else { Ok(()) }
}

/// Reads what the server still sends until it is ready. A ping that is cut off goes on where it was.
async fn drain(conn: &mut PgConnection, patience: Duration) -> Result<Drained, Spoiled> {
    let reading = async {
        for _ in 0..ANSWERS_MAX {
            match conn.ping().await {
                Ok(()) => return Ok(Drained::Ready),
                // The answer of the statement: it failed, or it was cancelled.
                Err(error) if error.as_database_error().is_some() => {}
                Err(_broken) => return Err(Spoiled::Broken),
            }
        }
        Err(Spoiled::Broken)
    };
    timeout(patience, reading).await.unwrap_or(Ok(Drained::NotYet))
}

/// A cancel that arrived late hits this statement instead of the next user's.
async fn probe(conn: &mut PgConnection) -> Result<(), Spoiled> {
    for _ in 0..2 {
        match sqlx::raw_sql("SELECT 1").execute(&mut *conn).await {
            Ok(_) => return Ok(()),
            Err(error) if error.as_database_error().is_some() => {}
            Err(_broken) => return Err(Spoiled::Broken),
        }
    }
    Err(Spoiled::Broken)
}

/// A BEGIN may have been sent whose answer nobody read; the driver does not know of that transaction.
async fn roll_back(conn: &mut PgConnection) -> Result<(), Spoiled> {
    sqlx::raw_sql("ROLLBACK").execute(conn).await.map(drop).map_err(|_broken| Spoiled::Broken)
}
