//! A page of a conversation, with what Postgres knows of the conversation at the same moment.
//! Promises that page, head and checkpoint are of one snapshot, and that a page has a bound in rows and in bytes.
//! Does not know the tail; history puts the two together.

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use super::columns::{self, Entry};
use crate::event::limits::{PAGE_BYTES_MAX, PAGE_MESSAGES_MAX};
use crate::event::{ConversationId, Partition};
use crate::store::checkpoints::{read_position, write_partition};
use crate::store::conversations::{Head, HeadColumns};
use crate::store::{Error, while_doing};

/// Where a page begins and in which direction it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The messages after this seq, oldest first; 0 for the beginning.
    After(u64),
    /// The messages before this seq, newest first; `u64::MAX` for the end.
    Before(u64),
}

/// What Postgres has of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The partition's checkpoint: everything up to this stream sequence is written. 0 if nothing is.
    pub checkpoint: u64,
    /// The conversation's head, if it is there.
    pub head: Option<Head>,
    /// The messages, in the order asked for.
    pub entries: Vec<Entry>,
}

/// Reads at most `limit` messages, [`PAGE_MESSAGES_MAX`] at most, and stops after the one that reaches [`PAGE_BYTES_MAX`].
///
/// # Errors
/// [`Error::Statement`] or [`Error::Inconsistent`].
pub async fn read(
    conn: &mut PgConnection,
    partition: Partition,
    conversation: ConversationId,
    start: Start,
    limit: usize,
) -> Result<Page, Error> {
    let (bound, ascending) = match start {
        Start::After(seq) => (seq, true),
        Start::Before(seq) => (seq, false),
    };
    let rows = sqlx::query_file_as!(
        Row,
        "src/store/sql/read_page.sql",
        write_partition(partition),
        conversation.uuid(),
        i64::try_from(bound).unwrap_or(i64::MAX),
        i64::try_from(limit.min(PAGE_MESSAGES_MAX)).unwrap_or(i64::MAX),
        ascending,
        i64::try_from(PAGE_BYTES_MAX).unwrap_or(i64::MAX)
    )
    .fetch_all(conn)
    .await
    .map_err(while_doing("read a page"))?;
    let mut page = Page { checkpoint: 0, head: None, entries: Vec::with_capacity(rows.len()) };
    for row in rows {
        page.checkpoint = read_position(row.checkpoint)?;
        page.head = row.head().read()?;
        if let Some(message) = row.message(conversation.uuid()) {
            page.entries.push(Entry::try_from(message)?);
        }
    }
    Ok(page)
}

/// What every row says of the conversation, and the columns of one message if it has one.
struct Row {
    checkpoint: i64,
    head_tenant: Option<Uuid>,
    head_seq: Option<i64>,
    head_status: Option<String>,
    head_opened_at: Option<OffsetDateTime>,
    head_position: Option<i64>,
    seq: Option<i64>,
    position: Option<i64>,
    fingerprint: Option<i64>,
    at: Option<OffsetDateTime>,
    tenant_id: Option<Uuid>,
    id: Option<Uuid>,
    duplicate_of: Option<Uuid>,
    kind: Option<String>,
    client_id: Option<String>,
    sender_id: Option<String>,
    sender_role: Option<String>,
    sender_name: Option<String>,
    text: Option<String>,
    data: Option<String>,
    metadata: Option<String>,
    trace: Option<String>,
}

impl Row {
    fn head(&self) -> HeadColumns<'_> {
        HeadColumns {
            tenant: self.head_tenant,
            seq: self.head_seq,
            status: self.head_status.as_deref(),
            opened_at: self.head_opened_at,
            position: self.head_position,
        }
    }

    fn message(self, conversation_id: Uuid) -> Option<columns::Row> {
        Some(columns::Row {
            conversation_id,
            seq: self.seq?,
            position: self.position?,
            fingerprint: self.fingerprint?,
            at: self.at?,
            tenant_id: self.tenant_id?,
            kind: self.kind?,
            id: self.id,
            duplicate_of: self.duplicate_of,
            client_id: self.client_id,
            sender_id: self.sender_id,
            sender_role: self.sender_role,
            sender_name: self.sender_name,
            text: self.text,
            data: self.data,
            metadata: self.metadata,
            trace: self.trace,
        })
    }
}
