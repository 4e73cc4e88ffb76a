//! A connection on loan.
//! Promises that only a connection whose last operation was completed goes back to the pool.
//! Does not wait without a deadline, and does not try an operation twice.

use std::sync::Arc;
use std::time::Instant;

use sqlx::{Connection, PgConnection};
use tokio::time::timeout_at;

use super::Pool;
use crate::admission::Permit;
use crate::store::{Error, while_doing};

/// A connection on loan, with the permit that it was had for. Dropping it gives both back.
#[derive(Debug)]
pub struct Lease {
    pool: Arc<Pool>,
    /// Invariant: the connection is here only while no operation is under way. An operation owns it, so that an
    /// operation that is dropped or cut off closes it: what it had sent, and what would have been answered to it,
    /// can then reach nobody.
    conn: Option<PgConnection>,
    _permit: Permit,
}

impl Lease {
    pub(super) fn new(pool: Arc<Pool>, conn: PgConnection, permit: Permit) -> Self {
        Self { pool, conn: Some(conn), _permit: permit }
    }

    /// Performs one operation, outside of a transaction or with nothing left of one.
    ///
    /// Cancel safe in that nothing spoiled is given back; whether the statement took effect is not known then.
    ///
    /// # Errors
    /// What the operation failed with; [`Error::Deadline`] when it did not end in time, after which the lease is spent.
    pub async fn run<T, F>(&mut self, deadline: Instant, operation: F) -> Result<T, Error>
    where
        F: AsyncFnOnce(&mut PgConnection) -> Result<T, Error>,
    {
        let mut conn = self.conn.take().ok_or(Error::Lost)?;
        let started = self.pool.clock.now();
        let ended = timeout_at(deadline.into(), operation(&mut conn)).await;
        let Ok(result) = ended else {
            self.pool.note_silence(started);
            return Err(Error::Deadline { doing: "use Postgres" });
        };
        let spared = match &result {
            Ok(_) => true,
            Err(error) => error.spares_connection(),
        };
        if spared {
            self.pool.health().outage.on_answer();
            // A transaction that was dropped open leaves a ROLLBACK unsent; such a connection still holds its locks.
            if !conn.is_in_transaction() && !conn.should_flush() {
                self.conn = Some(conn);
            }
        } else {
            self.pool.note_broken();
        }
        result
    }

    /// Performs one operation in a transaction: committed when it succeeds, rolled back when it fails.
    ///
    /// # Errors
    /// As [`Lease::run`]. After [`Error::Deadline`] it is not known whether the commit took effect.
    pub async fn transaction<T, F>(&mut self, deadline: Instant, operation: F) -> Result<T, Error>
    where
        F: AsyncFnOnce(&mut PgConnection) -> Result<T, Error>,
    {
        self.run(deadline, async |conn| {
            let mut open = conn.begin().await.map_err(while_doing("begin"))?;
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
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            self.pool.give_back(conn);
        }
    }
}
