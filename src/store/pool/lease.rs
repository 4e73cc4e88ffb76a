//! A connection on loan.
//! Promises that a connection is given to the next one only when the last operation on it was completed.
//! Does not wait without a deadline, and does not try an operation twice.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use deadpool::unmanaged::Object;
use sqlx::{Connection as _, PgConnection};
use tokio::time::timeout_at;

use super::slot::Slot;
use super::{Farewell, Pool, STALL, cleanup};
use crate::admission::Permit;
use crate::store::{Error, Topology, while_doing};

/// A connection on loan, with the permit that it was had for. Dropping it gives both back: at once when its last
/// operation was completed, else after what is left of that operation was cleared away.
pub struct Lease {
    pool: Arc<Pool>,
    /// `None` once the lease is spent.
    slot: Option<Object<Slot>>,
    permit: Option<Permit>,
}

impl Lease {
    pub(super) fn new(pool: Arc<Pool>, slot: Object<Slot>, permit: Permit) -> Self {
        Self { pool, slot: Some(slot), permit: Some(permit) }
    }

    /// Performs one operation, outside of a transaction or with nothing left of one. Behind a pooler of transactions it
    /// is a transaction of its own.
    ///
    /// Cancel safe in that nothing unfinished is given back; whether the statement took effect is not known then.
    ///
    /// # Errors
    /// What the operation failed with; [`Error::Deadline`] when it did not end in time, after which the lease is spent.
    pub async fn run<T, F>(&mut self, deadline: Instant, operation: F) -> Result<T, Error>
    where
        F: AsyncFnOnce(&mut PgConnection) -> Result<T, Error>,
    {
        match self.pool.endpoints.topology() {
            Topology::Direct => self.perform(deadline, operation).await,
            Topology::TransactionPooler => self.transaction(deadline, operation).await,
        }
    }

    /// Performs one operation in a transaction: committed when it succeeds, rolled back when it fails.
    ///
    /// # Errors
    /// As [`Lease::run`]. After [`Error::Deadline`] it is not known whether the commit took effect.
    pub async fn transaction<T, F>(&mut self, deadline: Instant, operation: F) -> Result<T, Error>
    where
        F: AsyncFnOnce(&mut PgConnection) -> Result<T, Error>,
    {
        let opening = self.pool.opening.clone();
        self.perform(deadline, async |conn| {
            let mut open = opening.begin(conn).await?;
            let result = operation(&mut open).await;
            match &result {
                Ok(_) => open.commit().await.map_err(while_doing("commit"))?,
                Err(error) if error.spares_connection() => {
                    open.rollback().await.map_err(while_doing("roll back"))?;
                }
                Err(_) => {}
            }
            result
        })
        .await
    }

    /// Whether the connection answers.
    pub(super) async fn ask(&mut self, deadline: Instant) -> Result<(), Error> {
        self.perform(deadline, async |conn| conn.ping().await.map_err(while_doing("ping"))).await
    }

    /// Ends the lease of a connection that did not answer, and keeps the permit for another one.
    pub(super) fn give_up(mut self) -> Option<Permit> {
        if let Some(slot) = self.slot.take() {
            self.pool.retire(slot, Farewell::Drop);
        }
        self.permit.take()
    }

    async fn perform<T, F>(&mut self, deadline: Instant, operation: F) -> Result<T, Error>
    where
        F: AsyncFnOnce(&mut PgConnection) -> Result<T, Error>,
    {
        let slot = self.slot.as_mut().filter(|slot| !slot.dirty).ok_or(Error::Lost)?;
        // Set before the first byte: if this future is dropped, the connection is cleared before anybody has it.
        slot.dirty = true;
        let generation = slot.generation;
        let conn = slot.conn.as_mut().ok_or(Error::Lost)?;
        let started = self.pool.clock.now();
        let ended = timeout_at(deadline.into(), operation(conn)).await;
        let Ok(result) = ended else {
            // Whether Postgres or the statement is at fault is found out when the connection is cleared.
            if self.pool.clock.now().saturating_duration_since(started) >= STALL {
                self.pool.note_broken();
            }
            return Err(Error::Deadline { doing: "use Postgres" });
        };
        let spared = result.as_ref().err().is_none_or(Error::spares_connection);
        let failed = result.as_ref().err().is_some_and(Error::is_infrastructure);
        self.pool.note_outcome(generation, failed);
        if spared {
            // A transaction that was dropped open leaves a ROLLBACK unsent; such a connection still holds its locks.
            slot.dirty = conn.is_in_transaction() || conn.should_flush();
        } else {
            self.pool.note_broken();
            if let Some(slot) = self.slot.take() {
                self.pool.retire(slot, Farewell::Drop);
            }
        }
        result
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let (Some(slot), permit) = (self.slot.take(), self.permit.take()) else { return };
        if slot.dirty {
            cleanup::start(&self.pool, slot, permit);
        } else {
            self.pool.give_back(slot);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("pool", &self.pool.name).finish_non_exhaustive()
    }
}
