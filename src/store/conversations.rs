//! Conversations: one row each, with its head and how it was opened.
//! Promises that a head grows only, however often and in whatever batches its events are written.
//! Does not hold messages.

mod fold;

use std::borrow::Cow;

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

pub use self::fold::{HeadRow, fold};
use super::checkpoints::{write_partition, write_position};
use super::{Error, while_doing};
use crate::clock::Timestamp;
use crate::event::{ChannelId, ConversationId, Json, Partition, TenantId};

/// Whether a conversation takes messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It does.
    Open,
    /// It does not, until it is reopened.
    Closed,
}

/// What Postgres knows of a conversation's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Whose conversation it is.
    pub tenant: TenantId,
    /// Its last seq, at least 1.
    pub seq: u64,
    /// Whether it takes messages.
    pub status: Status,
    /// When it was opened.
    pub opened_at: Timestamp,
    /// Stream sequence of the record with its last event.
    pub position: u64,
}

/// Everything that its row says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    /// Its end.
    pub head: Head,
    /// When it was closed, if it is.
    pub closed_at: Option<Timestamp>,
    /// The client's notes about it.
    pub metadata: Option<Json>,
    /// Channels that are linked to it.
    pub channels: Vec<ChannelId>,
}

/// Writes heads. Idempotent: a head that is not beyond what is there changes nothing. To be used in the transaction
/// that writes the events they were folded from.
///
/// # Errors
/// [`Error::Statement`] or [`Error::Unstorable`].
pub async fn upsert_batch(
    conn: &mut PgConnection,
    partition: Partition,
    heads: &[HeadRow<'_>],
) -> Result<(), Error> {
    let columns = Columns::of(heads)?;
    sqlx::query_file!(
        "src/store/sql/upsert_conversations.sql",
        write_partition(partition),
        &columns.id,
        &columns.tenant,
        &columns.seq,
        &columns.position,
        &columns.opened_at,
        &columns.closed_at as &[Option<OffsetDateTime>],
        &columns.status as &[&str],
        &columns.metadata as &[Option<&str>],
        &columns.channels as &[Cow<'_, str>]
    )
    .execute(conn)
    .await
    .map_err(while_doing("write conversations"))?;
    Ok(())
}

/// The conversation of that id.
///
/// # Errors
/// [`Error::Statement`] or [`Error::Inconsistent`].
pub async fn find(
    conn: &mut PgConnection,
    id: ConversationId,
) -> Result<Option<Conversation>, Error> {
    let row = sqlx::query!(
        "SELECT tenant_id, head_seq, position, opened_at, closed_at, status, metadata::text, channel_ids
         FROM conversations WHERE id = $1",
        id.uuid()
    )
    .fetch_optional(conn)
    .await
    .map_err(while_doing("find a conversation"))?;
    let Some(row) = row else { return Ok(None) };
    let head = HeadColumns {
        tenant: Some(row.tenant_id),
        seq: Some(row.head_seq),
        status: Some(&row.status),
        opened_at: Some(row.opened_at),
        position: Some(row.position),
    };
    let closed_at = row.closed_at.map(|at| read_at(at, "closed_at")).transpose()?;
    Ok(head.read()?.map(|head| Conversation {
        head,
        closed_at,
        metadata: row.metadata.map(Json::from_checked),
        channels: row.channel_ids.into_iter().map(ChannelId::from_uuid).collect(),
    }))
}

impl Status {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
        }
    }
}

/// The columns of a head, each absent where a join found no conversation.
pub(super) struct HeadColumns<'r> {
    pub(super) tenant: Option<Uuid>,
    pub(super) seq: Option<i64>,
    pub(super) status: Option<&'r str>,
    pub(super) opened_at: Option<OffsetDateTime>,
    pub(super) position: Option<i64>,
}

impl HeadColumns<'_> {
    pub(super) fn read(self) -> Result<Option<Head>, Error> {
        let (Some(tenant), Some(seq), Some(status), Some(opened_at), Some(position)) =
            (self.tenant, self.seq, self.status, self.opened_at, self.position)
        else {
            return Ok(None);
        };
        let number = |value, column| u64::try_from(value).map_err(|_negative| odd(column));
        Ok(Some(Head {
            tenant: TenantId::from_uuid(tenant),
            seq: number(seq, "head_seq")?,
            status: match status {
                "open" => Status::Open,
                "closed" => Status::Closed,
                _ => return Err(odd("status")),
            },
            opened_at: read_at(opened_at, "opened_at")?,
            position: number(position, "position")?,
        }))
    }
}

/// Heads, a list a column.
#[derive(Default)]
pub(super) struct Columns<'h> {
    pub(super) id: Vec<Uuid>,
    pub(super) tenant: Vec<Uuid>,
    pub(super) seq: Vec<i64>,
    pub(super) position: Vec<i64>,
    pub(super) opened_at: Vec<OffsetDateTime>,
    pub(super) closed_at: Vec<Option<OffsetDateTime>>,
    pub(super) status: Vec<&'static str>,
    pub(super) metadata: Vec<Option<&'h str>>,
    pub(super) channels: Vec<Cow<'static, str>>,
}

impl<'h> Columns<'h> {
    pub(super) fn of(heads: &'h [HeadRow<'_>]) -> Result<Self, Error> {
        let mut columns = Self::default();
        for row in heads {
            let seq = i64::try_from(row.head.seq)
                .map_err(|_beyond| Error::Unstorable { column: "head_seq" })?;
            columns.id.push(row.conversation.uuid());
            columns.tenant.push(row.head.tenant.uuid());
            columns.seq.push(seq);
            columns.position.push(write_position(row.head.position)?);
            columns.opened_at.push(row.head.opened_at.to_offset());
            columns.closed_at.push(row.closed_at.map(Timestamp::to_offset));
            columns.status.push(row.head.status.as_str());
            columns.metadata.push(row.opening.and_then(|o| o.metadata.as_ref()).map(Json::as_str));
            columns.channels.push(array_text(row.opening.map_or(&[], |o| &o.channels)));
        }
        Ok(columns)
    }
}

/// Ids in the text form of a Postgres array: a list of lists cannot be unnested row by row.
fn array_text(channels: &[ChannelId]) -> Cow<'static, str> {
    if channels.is_empty() {
        return Cow::Borrowed("{}");
    }
    let ids: Vec<String> = channels.iter().map(|c| c.uuid().to_string()).collect();
    Cow::Owned(format!("{{{}}}", ids.join(",")))
}

fn read_at(at: OffsetDateTime, column: &'static str) -> Result<Timestamp, Error> {
    Timestamp::from_offset(at).ok_or_else(|| odd(column))
}

fn odd(column: &'static str) -> Error {
    Error::Inconsistent { table: "conversations", column }
}
