//! What a send needs from Postgres when memory has forgotten its conversation or its key.
//! Promises checkpoint, head and stored message of one snapshot: the journal can tell whether they are recent enough.
//! Does not decide that; the journal compares the checkpoint with what it still remembers.

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use super::columns::read_at;
use crate::clock::Timestamp;
use crate::event::{ConversationId, Fingerprint, MessageId, Partition};
use crate::store::checkpoints::{read_position, write_partition};
use crate::store::conversations::{Head, HeadColumns};
use crate::store::{Error, while_doing};

/// What Postgres says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeedRow {
    /// The partition's checkpoint; 0 if nothing is written.
    pub checkpoint: u64,
    /// The conversation's head, if it is there.
    pub head: Option<Head>,
    /// The message with the id that was asked for, if there is one.
    pub stored: Option<Stored>,
}

/// A message's receipt and fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its id.
    pub id: MessageId,
    /// Its seq.
    pub seq: u64,
    /// When it was accepted.
    pub at: Timestamp,
    /// Fingerprint of its payload.
    pub fingerprint: Fingerprint,
}

/// Looks up a conversation and, with an id, the message of that id in it.
///
/// # Errors
/// [`Error::Statement`] or [`Error::Inconsistent`].
pub async fn look_up(
    conn: &mut PgConnection,
    partition: Partition,
    conversation: ConversationId,
    id: Option<MessageId>,
) -> Result<SeedRow, Error> {
    let row = sqlx::query_as!(
        Row,
        r#"SELECT COALESCE(checkpoints.position, 0) AS "checkpoint!",
             conversations.tenant_id AS "head_tenant?", conversations.head_seq AS "head_seq?",
             conversations.status AS "head_status?", conversations.opened_at AS "head_opened_at?",
             conversations.position AS "head_position?",
             messages.id AS "id?", messages.seq AS "seq?", messages.at AS "at?",
             messages.fingerprint AS "fingerprint?"
         FROM (SELECT 1) AS always
         LEFT JOIN checkpoints ON checkpoints.partition = $1
         LEFT JOIN conversations ON conversations.id = $2
         LEFT JOIN messages ON messages.id = $3 AND messages.conversation_id = $2"#,
        write_partition(partition),
        conversation.uuid(),
        id.map(MessageId::uuid)
    )
    .fetch_one(conn)
    .await
    .map_err(while_doing("look up a conversation"))?;
    Ok(SeedRow {
        checkpoint: read_position(row.checkpoint)?,
        head: row.head().read()?,
        stored: row.stored()?,
    })
}

struct Row {
    checkpoint: i64,
    head_tenant: Option<Uuid>,
    head_seq: Option<i64>,
    head_status: Option<String>,
    head_opened_at: Option<OffsetDateTime>,
    head_position: Option<i64>,
    id: Option<Uuid>,
    seq: Option<i64>,
    at: Option<OffsetDateTime>,
    fingerprint: Option<i64>,
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

    fn stored(&self) -> Result<Option<Stored>, Error> {
        let (Some(id), Some(seq), Some(at), Some(bits)) =
            (self.id, self.seq, self.at, self.fingerprint)
        else {
            return Ok(None);
        };
        Ok(Some(Stored {
            id: MessageId::from_uuid(id),
            seq: u64::try_from(seq)
                .map_err(|_negative| Error::Inconsistent { table: "messages", column: "seq" })?,
            at: read_at(at)?,
            fingerprint: Fingerprint::from_bits(bits.cast_unsigned()),
        }))
    }
}
