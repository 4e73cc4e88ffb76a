//! Quarantine: events that Postgres refused, kept as the log has them.
//! Promises that nothing of the log is lost from sight, and that a person can see why.
//! Does not try them again; a rebuild with a version that can store them does.

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::event::{ConversationId, Partition};
use crate::store::checkpoints::{read_position, write_partition, write_position};
use crate::store::{Error, while_doing};

/// Most rows of one listing; the count says how many there are.
pub const LIST_MAX: usize = 1_000;

/// An event that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Stream sequence of its record.
    pub position: u64,
    /// Its place within the record, from 0.
    pub place: usize,
    /// Its conversation.
    pub conversation: ConversationId,
    /// Its seq there.
    pub seq: u64,
    /// What Postgres said.
    pub reason: String,
    /// The event, in `MessagePack`.
    pub event: Vec<u8>,
    /// When it was refused.
    pub at: Timestamp,
}

/// Keeps an event. Idempotent by (partition, position, place); the first reason stays. To be used in the transaction
/// that advances the checkpoint over it.
///
/// # Errors
/// [`Error::Statement`] or [`Error::Unstorable`].
pub async fn insert(
    conn: &mut PgConnection,
    partition: Partition,
    refused: &Refused,
) -> Result<(), Error> {
    let unstorable = |column| Error::Unstorable { column };
    sqlx::query!(
        "INSERT INTO quarantine (partition, position, place, conversation_id, seq, reason, event, at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
         ON CONFLICT DO NOTHING",
        write_partition(partition),
        write_position(refused.position)?,
        i32::try_from(refused.place).map_err(|_beyond| unstorable("place"))?,
        refused.conversation.uuid(),
        // A seq beyond bigint is one of the reasons to be here; its true value is in the event.
        i64::try_from(refused.seq).unwrap_or(i64::MAX),
        // What Postgres says can quote what it refused, and U+0000 is among that.
        refused.reason.replace('\0', "\u{fffd}"),
        refused.event,
        refused.at.to_offset()
    )
    .execute(conn)
    .await
    .map_err(while_doing("quarantine an event"))?;
    Ok(())
}

/// The oldest ones with their partitions, [`LIST_MAX`] at most.
///
/// # Errors
/// [`Error::Statement`] or [`Error::Inconsistent`].
pub async fn list(conn: &mut PgConnection, limit: usize) -> Result<Vec<(u16, Refused)>, Error> {
    sqlx::query_as!(
        Row,
        "SELECT partition, position, place, conversation_id, seq, reason, event, at FROM quarantine
         ORDER BY partition, position, place LIMIT $1",
        i64::try_from(limit.min(LIST_MAX)).unwrap_or(i64::MAX)
    )
    .fetch_all(conn)
    .await
    .map_err(while_doing("list the quarantine"))?
    .into_iter()
    .map(Row::read)
    .collect()
}

/// How many there are.
///
/// # Errors
/// [`Error::Statement`].
pub async fn count(conn: &mut PgConnection) -> Result<u64, Error> {
    let count = sqlx::query_scalar!(r#"SELECT COUNT(*) AS "count!" FROM quarantine"#)
        .fetch_one(conn)
        .await
        .map_err(while_doing("count the quarantine"))?;
    Ok(count.unsigned_abs())
}

struct Row {
    partition: i16,
    position: i64,
    place: i32,
    conversation_id: Uuid,
    seq: i64,
    reason: String,
    event: Vec<u8>,
    at: OffsetDateTime,
}

impl Row {
    fn read(self) -> Result<(u16, Refused), Error> {
        let odd = |column| Error::Inconsistent { table: "quarantine", column };
        let partition = u16::try_from(self.partition).map_err(|_negative| odd("partition"))?;
        let refused = Refused {
            position: read_position(self.position)?,
            place: usize::try_from(self.place).map_err(|_negative| odd("place"))?,
            conversation: ConversationId::from_uuid(self.conversation_id),
            seq: u64::try_from(self.seq).map_err(|_negative| odd("seq"))?,
            reason: self.reason,
            event: self.event,
            at: Timestamp::from_offset(self.at).ok_or_else(|| odd("at"))?,
        };
        Ok((partition, refused))
    }
}
