//! A part of a transaction that can fail by itself.
//! Promises that after a failure the transaction is as it was before the part began, and goes on.
//! Does not commit anything; the transaction does.

use sqlx::{Connection, PgConnection};

use crate::store::{Error, while_doing};

/// Performs an operation within the open transaction of this connection, under a savepoint.
///
/// # Errors
/// What the operation failed with; the transaction can go on if Postgres refused a statement.
pub async fn savepoint<T, F>(conn: &mut PgConnection, operation: F) -> Result<T, Error>
where
    F: AsyncFnOnce(&mut PgConnection) -> Result<T, Error>,
{
    let mut part = conn.begin().await.map_err(while_doing("set a savepoint"))?;
    let result = operation(&mut part).await;
    match &result {
        Ok(_) => part.commit().await.map_err(while_doing("release a savepoint"))?,
        Err(_) => part.rollback().await.map_err(while_doing("roll back to a savepoint"))?,
    }
    result
}
