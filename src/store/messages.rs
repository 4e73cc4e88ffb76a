//! Messages: every event of every conversation, one row a seq.
//! Promises that a batch is written exactly once however often it is tried, and that no seq is left out.
//! Does not hold content twice: the late repeat of a message is a tombstone at its own seq.

mod columns;
pub mod page;
pub mod quarantine;
pub mod seeds;

use sqlx::PgConnection;

pub(super) use self::columns::{Columns, TOMBSTONE};
pub use self::columns::{Content, Entry, is_reserved_kind};
use super::checkpoints::{write_partition, write_position};
use super::{Error, while_doing};
use crate::event::{Event, MessageId, Partition};

/// What a batch did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inserted {
    /// Events that were written.
    pub rows: u64,
    /// Late repeats that were written as tombstones.
    pub tombstones: u64,
}

/// Writes events with the positions of their records, in the order of the log.
///
/// Idempotent by (conversation, seq) and by message id: what is there already is left as it is. To be used in the
/// transaction that locks and advances the partition's checkpoint.
///
/// # Errors
/// Of kind `Data` when Postgres cannot store one of them (nothing is written then), and [`Error::Inconsistent`]
/// when a seq belongs to another event.
pub async fn insert_batch(
    conn: &mut PgConnection,
    partition: Partition,
    events: &[(u64, &Event)],
) -> Result<Inserted, Error> {
    let columns = Columns::of(events)?;
    let rows = insert(conn, partition, &columns).await?;
    if rows == events.len() as u64 {
        return Ok(Inserted { rows, tombstones: 0 });
    }
    let tombstones = insert_tombstones(conn, partition, &columns).await?;
    refuse_strangers(conn, &columns).await?;
    Ok(Inserted { rows, tombstones })
}

/// Writes a tombstone in place of an event that Postgres refused. It keeps the event's id, so that a repeat of its
/// key is still known. Idempotent by (conversation, seq).
///
/// # Errors
/// [`Error::Statement`] or [`Error::Unstorable`].
pub async fn bury(
    conn: &mut PgConnection,
    partition: Partition,
    position: u64,
    event: &Event,
) -> Result<(), Error> {
    let seq = i64::try_from(event.seq).map_err(|_beyond| Error::Unstorable { column: "seq" })?;
    sqlx::query!(
        "INSERT INTO messages (conversation_id, seq, position, fingerprint, at, size, partition,
             tenant_id, id, kind)
         VALUES ($1, $2, $3, $4, $5, 0, $6, $7, $8, $9)
         ON CONFLICT DO NOTHING",
        event.conversation.uuid(),
        seq,
        write_position(position)?,
        event.fingerprint.bits().cast_signed(),
        event.at.to_offset(),
        write_partition(partition),
        event.tenant.uuid(),
        event.id.uuid(),
        TOMBSTONE
    )
    .execute(conn)
    .await
    .map_err(while_doing("bury an event"))?;
    Ok(())
}

/// The message of that id.
///
/// # Errors
/// [`Error::Statement`] or [`Error::Inconsistent`].
pub async fn find(conn: &mut PgConnection, id: MessageId) -> Result<Option<Entry>, Error> {
    sqlx::query_as!(
        columns::Row,
        "SELECT conversation_id, seq, position, fingerprint, at, tenant_id, id, duplicate_of, kind,
             client_id, sender_id, sender_role, sender_name, text, data::text, metadata::text, trace
         FROM messages WHERE id = $1",
        id.uuid()
    )
    .fetch_optional(conn)
    .await
    .map_err(while_doing("find a message"))?
    .map(Entry::try_from)
    .transpose()
}

async fn insert(
    conn: &mut PgConnection,
    partition: Partition,
    columns: &Columns<'_>,
) -> Result<u64, Error> {
    let done = sqlx::query_file!(
        "src/store/sql/insert_messages.sql",
        write_partition(partition),
        &columns.conversation,
        &columns.seq,
        &columns.position,
        &columns.fingerprint,
        &columns.at,
        &columns.size,
        &columns.tenant,
        &columns.id,
        &columns.kind as &[&str],
        &columns.client_id as &[Option<&str>],
        &columns.sender_id as &[Option<&str>],
        &columns.sender_role as &[Option<&str>],
        &columns.sender_name as &[Option<&str>],
        &columns.text as &[Option<&str>],
        &columns.data as &[Option<std::borrow::Cow<'_, str>>],
        &columns.metadata as &[Option<&str>],
        &columns.trace as &[Option<&str>]
    )
    .execute(conn)
    .await
    .map_err(while_doing("write messages"))?;
    Ok(done.rows_affected())
}

async fn insert_tombstones(
    conn: &mut PgConnection,
    partition: Partition,
    columns: &Columns<'_>,
) -> Result<u64, Error> {
    let done = sqlx::query_file!(
        "src/store/sql/insert_tombstones.sql",
        write_partition(partition),
        &columns.conversation,
        &columns.seq,
        &columns.position,
        &columns.fingerprint,
        &columns.at,
        &columns.tenant,
        &columns.id
    )
    .execute(conn)
    .await
    .map_err(while_doing("write tombstones"))?;
    Ok(done.rows_affected())
}

async fn refuse_strangers(conn: &mut PgConnection, columns: &Columns<'_>) -> Result<(), Error> {
    let stranger = sqlx::query_file!(
        "src/store/sql/find_strangers.sql",
        &columns.conversation,
        &columns.seq,
        &columns.id
    )
    .fetch_optional(conn)
    .await
    .map_err(while_doing("compare messages that exist"))?;
    match stranger {
        None => Ok(()),
        Some(_) => Err(Error::Inconsistent { table: "messages", column: "seq" }),
    }
}
