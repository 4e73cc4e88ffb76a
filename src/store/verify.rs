//! Comparing Postgres with the log: row by row, and each conversation within itself.
//! Promises to name every difference it meets; the comparison of values is Postgres' own.
//! Does not read the log and does not repair; a rebuild does.

use std::borrow::Cow;
use std::collections::BTreeSet;

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use super::checkpoints::{write_partition, write_position};
use super::conversations::{self, HeadRow};
use super::messages::{Columns, TOMBSTONE};
use super::{Error, while_doing};
use crate::event::{ConversationId, Event, Partition};

/// Something that Postgres does not have as the log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// In which conversation.
    pub conversation: ConversationId,
    /// At which seq; for a head, the one that the log says.
    pub seq: u64,
    /// What is different.
    pub what: What,
}

/// What is different.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// There is no row.
    Missing,
    /// The row has other values in these columns.
    Columns(Vec<String>),
}

/// A conversation whose rows do not go from 1 to its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Which.
    pub conversation: ConversationId,
    /// How many messages it has.
    pub rows: u64,
    /// The highest seq among them.
    pub seq_max: u64,
    /// What its own row says, if there is one.
    pub head_seq: Option<u64>,
}

/// Compares events, given with the positions of their records and in their order, with the messages.
///
/// An event in quarantine must be a tombstone; its content is not compared.
///
/// # Errors
/// [`Error::Statement`], [`Error::Inconsistent`] or [`Error::Unstorable`].
pub async fn compare(
    conn: &mut PgConnection,
    partition: Partition,
    events: &[(u64, &Event)],
) -> Result<Vec<Difference>, Error> {
    let (Some((first, _)), Some((last, _))) = (events.first(), events.last()) else {
        return Ok(Vec::new());
    };
    let buried = quarantined(conn, partition, *first, *last).await?;
    let (buried, kept): (Vec<_>, Vec<_>) = events
        .iter()
        .copied()
        .partition(|(_, event)| buried.contains(&(event.conversation.uuid(), event.seq)));
    let mut differences = compare_kept(conn, partition, &kept).await?;
    for (_, event) in buried {
        if !is_tombstone(conn, event).await? {
            differences.push(Difference {
                conversation: event.conversation,
                seq: event.seq,
                what: What::Columns(vec!["kind".to_owned()]),
            });
        }
    }
    Ok(differences)
}

/// Compares heads, folded from some events of a partition, with the conversations. One that is further is newer, not
/// different; its opening is compared all the same.
///
/// # Errors
/// [`Error::Statement`], [`Error::Inconsistent`] or [`Error::Unstorable`].
pub async fn compare_heads(
    conn: &mut PgConnection,
    partition: Partition,
    heads: &[HeadRow<'_>],
) -> Result<Vec<Difference>, Error> {
    let columns = conversations::Columns::of(heads)?;
    let has_opening: Vec<bool> = heads.iter().map(|h| h.opening.is_some()).collect();
    sqlx::query_file!(
        "src/store/sql/compare_conversations.sql",
        write_partition(partition),
        &columns.id,
        &columns.tenant,
        &columns.seq,
        &columns.position,
        &columns.opened_at,
        &columns.closed_at as &[Option<OffsetDateTime>],
        &columns.status as &[&str],
        &columns.metadata as &[Option<&str>],
        &columns.channels as &[Cow<'_, str>],
        &has_opening
    )
    .fetch_all(conn)
    .await
    .map_err(while_doing("compare conversations"))?
    .into_iter()
    .map(|row| difference(row.id, row.head_seq, row.missing, row.columns))
    .collect()
}

/// The first `limit` conversations whose rows do not go from 1 to their head. It reads the whole index once.
///
/// # Errors
/// [`Error::Statement`].
pub async fn gaps(conn: &mut PgConnection, limit: usize) -> Result<Vec<Gap>, Error> {
    let rows = sqlx::query!(
        r#"SELECT COALESCE(held.conversation_id, conversations.id) AS "conversation_id!",
             COALESCE(held.rows, 0) AS "rows!", COALESCE(held.seq_max, 0) AS "seq_max!",
             conversations.head_seq AS "head_seq?"
         FROM (
             SELECT conversation_id, COUNT(*) AS rows, MAX(seq) AS seq_max FROM messages
             GROUP BY conversation_id
         ) AS held
         FULL JOIN conversations ON conversations.id = held.conversation_id
         WHERE held.rows IS DISTINCT FROM held.seq_max
             OR conversations.head_seq IS DISTINCT FROM held.seq_max
         ORDER BY 1 LIMIT $1"#,
        i64::try_from(limit).unwrap_or(i64::MAX)
    )
    .fetch_all(conn)
    .await
    .map_err(while_doing("look for gaps"))?;
    let gap = |conversation, rows: i64, seq_max: i64, head_seq: Option<i64>| Gap {
        conversation: ConversationId::from_uuid(conversation),
        rows: rows.unsigned_abs(),
        seq_max: seq_max.unsigned_abs(),
        head_seq: head_seq.map(i64::unsigned_abs),
    };
    Ok(rows
        .into_iter()
        .map(|row| gap(row.conversation_id, row.rows, row.seq_max, row.head_seq))
        .collect())
}

async fn compare_kept(
    conn: &mut PgConnection,
    partition: Partition,
    events: &[(u64, &Event)],
) -> Result<Vec<Difference>, Error> {
    let columns = Columns::of(events)?;
    sqlx::query_file!(
        "src/store/sql/compare_messages.sql",
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
        &columns.data as &[Option<Cow<'_, str>>],
        &columns.metadata as &[Option<&str>],
        &columns.trace as &[Option<&str>]
    )
    .fetch_all(conn)
    .await
    .map_err(while_doing("compare messages"))?
    .into_iter()
    .map(|row| difference(row.conversation_id, row.seq, row.missing, row.columns))
    .collect()
}

async fn quarantined(
    conn: &mut PgConnection,
    partition: Partition,
    first: u64,
    last: u64,
) -> Result<BTreeSet<(Uuid, u64)>, Error> {
    let rows = sqlx::query!(
        "SELECT conversation_id, seq FROM quarantine
         WHERE partition = $1 AND position BETWEEN $2 AND $3",
        write_partition(partition),
        write_position(first)?,
        write_position(last)?
    )
    .fetch_all(conn)
    .await
    .map_err(while_doing("read the quarantine"))?;
    let key = |conversation, seq: i64| (conversation, seq.unsigned_abs());
    Ok(rows.into_iter().map(|row| key(row.conversation_id, row.seq)).collect())
}

async fn is_tombstone(conn: &mut PgConnection, event: &Event) -> Result<bool, Error> {
    sqlx::query_scalar!(
        r#"SELECT EXISTS (
             SELECT FROM messages WHERE conversation_id = $1 AND seq = $2 AND kind = $3
         ) AS "exists!""#,
        event.conversation.uuid(),
        i64::try_from(event.seq).unwrap_or(i64::MAX),
        TOMBSTONE
    )
    .fetch_one(conn)
    .await
    .map_err(while_doing("look for a tombstone"))
}

fn difference(
    conversation: Uuid,
    seq: i64,
    missing: bool,
    columns: Vec<String>,
) -> Result<Difference, Error> {
    Ok(Difference {
        conversation: ConversationId::from_uuid(conversation),
        seq: u64::try_from(seq)
            .map_err(|_negative| Error::Inconsistent { table: "messages", column: "seq" })?,
        what: if missing { What::Missing } else { What::Columns(columns) },
    })
}
