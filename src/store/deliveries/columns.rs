//! The columns of a delivery, and what they say.
//! Promises that a value that no row of this program has is told, with its column.
//! Does not send statements.

use time::OffsetDateTime;
use uuid::Uuid;

use super::{Error, Row};
use crate::clock::Timestamp;
use crate::event::{ChannelId, ConversationId, DeliveryId, MessageId, TenantId};

/// A row as Postgres has it.
pub(super) struct Columns {
    pub(super) id: Uuid,
    pub(super) tenant_id: Uuid,
    pub(super) channel_id: Uuid,
    pub(super) conversation_id: Uuid,
    pub(super) message_id: Uuid,
    pub(super) seq: i64,
    pub(super) first_attempt_at: OffsetDateTime,
    pub(super) last_attempt_at: OffsetDateTime,
    pub(super) next_attempt_at: Option<OffsetDateTime>,
    pub(super) attempts: i32,
    pub(super) status: Option<i32>,
    pub(super) state: String,
    pub(super) reason: Option<String>,
}

impl Columns {
    pub(super) fn read(self) -> Result<Row, Error> {
        let odd = |column| Error::Inconsistent { table: "deliveries", column };
        let at = |at: OffsetDateTime, column| Timestamp::from_offset(at).ok_or_else(|| odd(column));
        Ok(Row {
            id: DeliveryId::from_uuid(self.id),
            tenant: TenantId::from_uuid(self.tenant_id),
            channel: ChannelId::from_uuid(self.channel_id),
            conversation: ConversationId::from_uuid(self.conversation_id),
            message: MessageId::from_uuid(self.message_id),
            seq: u64::try_from(self.seq).map_err(|_negative| odd("seq"))?,
            state: self.state,
            attempts: u32::try_from(self.attempts).map_err(|_negative| odd("attempts"))?,
            status: self.status.and_then(|status| u16::try_from(status).ok()),
            reason: self.reason,
            first_attempt_at: at(self.first_attempt_at, "first_attempt_at")?,
            last_attempt_at: at(self.last_attempt_at, "last_attempt_at")?,
            next_attempt_at: self
                .next_attempt_at
                .map(|next| at(next, "next_attempt_at"))
                .transpose()?,
        })
    }
}
