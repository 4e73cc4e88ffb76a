//! Checkpoints: per partition, the stream sequence up to which Postgres is written.
//! Promises that one projector at a time holds a partition, and that a checkpoint never goes back.
//! Does not commit; the caller's transaction holds the lock, the rows and the new position together.

use sqlx::PgConnection;

use super::{Error, while_doing};
use crate::event::{Partition, Partitions};

/// One partition's state of projection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Its number.
    pub partition: u16,
    /// Every record up to this stream sequence is written.
    pub position: u64,
    /// The incarnation of the log that was written from.
    pub epoch: String,
}

struct Row {
    partition: i16,
    position: i64,
    epoch: String,
}

impl TryFrom<Row> for Checkpoint {
    type Error = Error;

    fn try_from(row: Row) -> Result<Self, Error> {
        Ok(Self {
            partition: read_partition(row.partition)?,
            position: read_position(row.position)?,
            epoch: row.epoch,
        })
    }
}

/// Makes the missing rows, at position 0. Idempotent by partition; what exists stays as it is.
///
/// # Errors
/// [`Error::Statement`].
pub async fn ensure(
    conn: &mut PgConnection,
    partitions: Partitions,
    epoch: &str,
) -> Result<(), Error> {
    let numbers: Vec<i16> = partitions.all().map(write_partition).collect();
    sqlx::query!(
        "INSERT INTO checkpoints (partition, position, epoch)
         SELECT partition, 0, $2 FROM UNNEST($1::smallint[]) AS given (partition)
         ON CONFLICT DO NOTHING",
        &numbers,
        epoch
    )
    .execute(conn)
    .await
    .map_err(while_doing("make checkpoints"))?;
    Ok(())
}

/// Takes a partition until the end of the transaction. `None`: somebody else has it, or it has no row yet.
///
/// # Errors
/// [`Error::Statement`] or [`Error::Inconsistent`].
pub async fn lock(
    conn: &mut PgConnection,
    partition: Partition,
) -> Result<Option<Checkpoint>, Error> {
    sqlx::query_as!(
        Row,
        "SELECT partition, position, epoch FROM checkpoints WHERE partition = $1 FOR UPDATE SKIP LOCKED",
        write_partition(partition)
    )
    .fetch_optional(conn)
    .await
    .map_err(while_doing("lock a checkpoint"))?
    .map(Checkpoint::try_from)
    .transpose()
}

/// Moves a checkpoint forward, in the transaction that wrote the rows up to there. A lower position changes nothing.
///
/// # Errors
/// [`Error::Statement`].
pub async fn advance(
    conn: &mut PgConnection,
    partition: Partition,
    position: u64,
) -> Result<(), Error> {
    sqlx::query!(
        "UPDATE checkpoints SET position = $2 WHERE partition = $1 AND position < $2",
        write_partition(partition),
        write_position(position)?
    )
    .execute(conn)
    .await
    .map_err(while_doing("advance a checkpoint"))?;
    Ok(())
}

/// All of them, by partition.
///
/// # Errors
/// [`Error::Statement`] or [`Error::Inconsistent`].
pub async fn read_all(conn: &mut PgConnection) -> Result<Vec<Checkpoint>, Error> {
    sqlx::query_as!(Row, "SELECT partition, position, epoch FROM checkpoints ORDER BY partition")
        .fetch_all(conn)
        .await
        .map_err(while_doing("read checkpoints"))?
        .into_iter()
        .map(Checkpoint::try_from)
        .collect()
}

/// Waits for every projector and keeps them out until the end of the transaction.
///
/// # Errors
/// [`Error::Statement`] or [`Error::Inconsistent`].
pub async fn lock_all(conn: &mut PgConnection) -> Result<Vec<Checkpoint>, Error> {
    sqlx::query_as!(
        Row,
        "SELECT partition, position, epoch FROM checkpoints ORDER BY partition FOR UPDATE"
    )
    .fetch_all(conn)
    .await
    .map_err(while_doing("lock all checkpoints"))?
    .into_iter()
    .map(Checkpoint::try_from)
    .collect()
}

/// There are at most 64 partitions.
pub(super) fn write_partition(partition: Partition) -> i16 {
    i16::try_from(partition.number()).unwrap_or(i16::MAX)
}

pub(super) fn write_position(position: u64) -> Result<i64, Error> {
    i64::try_from(position).map_err(|_beyond| Error::Unstorable { column: "position" })
}

fn read_partition(number: i16) -> Result<u16, Error> {
    u16::try_from(number)
        .map_err(|_negative| Error::Inconsistent { table: "checkpoints", column: "partition" })
}

pub(super) fn read_position(position: i64) -> Result<u64, Error> {
    u64::try_from(position)
        .map_err(|_negative| Error::Inconsistent { table: "checkpoints", column: "position" })
}
