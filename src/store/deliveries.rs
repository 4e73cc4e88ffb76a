//! Deliveries: one row for each that was attempted, with what its last attempt left.
//! Promises that writing the same outcomes again changes nothing, and that what was delivered stays so.
//! Does not know deliveries that nobody has attempted yet; the queues do.

pub mod attempts;

use std::collections::BTreeMap;

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use super::checkpoints::{write_partition, write_position};
use super::{Error, while_doing};
use crate::clock::Timestamp;
use crate::event::{
    ChannelId, ConversationId, DeliveryId, Fate, MessageId, Outcome, Partition, Reason, TenantId,
};

/// Most rows of one listing.
pub const LIST_MAX: usize = 200;

/// A delivery that was attempted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its id.
    pub id: DeliveryId,
    /// Whose channel it is.
    pub tenant: TenantId,
    /// The channel.
    pub channel: ChannelId,
    /// The conversation of the event.
    pub conversation: ConversationId,
    /// The event.
    pub message: MessageId,
    /// Its place in the conversation; 0 for a test.
    pub seq: u64,
    /// `delivered`, `retrying` or `failed`.
    pub state: String,
    /// How many attempts there were.
    pub attempts: u32,
    /// The status of the last answer.
    pub status: Option<u16>,
    /// Why the last attempt failed.
    pub reason: Option<String>,
    /// When the first attempt began.
    pub first_attempt_at: Timestamp,
    /// When the last one did.
    pub last_attempt_at: Timestamp,
    /// When the next one is due.
    pub next_attempt_at: Option<Timestamp>,
}

/// Which deliveries of a channel are listed.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only those of this state.
    pub state: Option<String>,
    /// Only those whose last attempt began at or after this.
    pub from: Option<Timestamp>,
    /// Only those whose last attempt began before this.
    pub to: Option<Timestamp>,
}

/// Writes what became of attempts, given with the positions of their records. To be used in the transaction that
/// advances the checkpoint over them.
///
/// # Errors
/// [`Error::Statement`] or [`Error::Unstorable`].
pub async fn upsert_batch(
    conn: &mut PgConnection,
    partition: Partition,
    outcomes: &[(u64, &Outcome)],
) -> Result<(), Error> {
    let last = fold(outcomes);
    if last.is_empty() {
        return Ok(());
    }
    let of =
        |column: fn(&Outcome) -> Uuid| last.values().map(|(_, o)| column(o)).collect::<Vec<_>>();
    let unstorable = |column| Error::Unstorable { column };
    let mut numbers = (Vec::new(), Vec::new(), Vec::new());
    for (position, outcome) in last.values() {
        numbers.0.push(i64::try_from(outcome.seq).map_err(|_beyond| unstorable("seq"))?);
        numbers.1.push(write_position(*position)?);
        numbers.2.push(i32::try_from(outcome.attempt).map_err(|_beyond| unstorable("attempt"))?);
    }
    let at: Vec<_> = last.values().map(|(_, o)| o.began_at.to_offset()).collect();
    let next: Vec<Option<OffsetDateTime>> = last
        .values()
        .map(|(_, o)| match o.fate {
            Fate::Retry(at) => Some(at.to_offset()),
            Fate::Delivered | Fate::Failed => None,
        })
        .collect();
    let status: Vec<_> = last.values().map(|(_, o)| o.status.map(i32::from)).collect();
    let state: Vec<_> = last.values().map(|(_, o)| o.fate.as_str()).collect();
    let reason: Vec<_> = last.values().map(|(_, o)| o.reason.map(Reason::as_str)).collect();
    sqlx::query_file!(
        "src/store/sql/upsert_deliveries.sql",
        write_partition(partition),
        &of(|o| o.delivery.uuid()),
        &of(|o| o.tenant.uuid()),
        &of(|o| o.channel.uuid()),
        &of(|o| o.conversation.uuid()),
        &of(|o| o.message.uuid()),
        &numbers.0,
        &numbers.1,
        &at,
        &next as &[Option<OffsetDateTime>],
        &numbers.2,
        &status as &[Option<i32>],
        &state as &[&str],
        &reason as &[Option<&str>]
    )
    .execute(conn)
    .await
    .map_err(while_doing("write deliveries"))?;
    Ok(())
}

/// The outcome of each delivery that counts: a statement may touch a row once only.
fn fold<'a>(outcomes: &[(u64, &'a Outcome)]) -> BTreeMap<DeliveryId, (u64, &'a Outcome)> {
    let mut last: BTreeMap<DeliveryId, (u64, &Outcome)> = BTreeMap::new();
    for (position, outcome) in outcomes {
        let counts = last.get(&outcome.delivery).is_none_or(|(_, kept)| {
            kept.fate != Fate::Delivered
                && (outcome.fate == Fate::Delivered || outcome.attempt >= kept.attempt)
        });
        if counts {
            last.insert(outcome.delivery, (*position, outcome));
        }
    }
    last
}

/// A delivery of a tenant.
///
/// # Errors
/// [`Error::Statement`] or [`Error::Inconsistent`].
pub async fn find(
    conn: &mut PgConnection,
    tenant: TenantId,
    id: DeliveryId,
) -> Result<Option<Row>, Error> {
    let found = sqlx::query_as!(
        Columns,
        "SELECT id, tenant_id, channel_id, conversation_id, message_id, seq, first_attempt_at, last_attempt_at,
             next_attempt_at, attempts, status, state, reason
         FROM deliveries WHERE id = $1 AND tenant_id = $2",
        id.uuid(),
        tenant.uuid()
    )
    .fetch_optional(conn)
    .await
    .map_err(while_doing("find a delivery"))?;
    found.map(Columns::read).transpose()
}

/// The deliveries of an event, [`LIST_MAX`] at most.
///
/// # Errors
/// [`Error::Statement`] or [`Error::Inconsistent`].
pub async fn of_message(
    conn: &mut PgConnection,
    tenant: TenantId,
    message: MessageId,
) -> Result<Vec<Row>, Error> {
    let found = sqlx::query_as!(
        Columns,
        "SELECT id, tenant_id, channel_id, conversation_id, message_id, seq, first_attempt_at, last_attempt_at,
             next_attempt_at, attempts, status, state, reason
         FROM deliveries WHERE message_id = $1 AND tenant_id = $2 ORDER BY id LIMIT $3",
        message.uuid(),
        tenant.uuid(),
        i64::try_from(LIST_MAX).unwrap_or(i64::MAX)
    )
    .fetch_all(conn)
    .await
    .map_err(while_doing("list the deliveries of an event"))?;
    found.into_iter().map(Columns::read).collect()
}

/// The deliveries of a channel after this one, in the order of their ids.
///
/// # Errors
/// [`Error::Statement`] or [`Error::Inconsistent`].
pub async fn of_channel(
    conn: &mut PgConnection,
    channel: ChannelId,
    filter: &Filter,
    (after, limit): (Option<DeliveryId>, usize),
) -> Result<Vec<Row>, Error> {
    let found = sqlx::query_as!(
        Columns,
        "SELECT id, tenant_id, channel_id, conversation_id, message_id, seq, first_attempt_at, last_attempt_at,
             next_attempt_at, attempts, status, state, reason
         FROM deliveries
         WHERE channel_id = $1 AND id > $2 AND ($3::text IS NULL OR state = $3)
             AND ($4::timestamptz IS NULL OR last_attempt_at >= $4)
             AND ($5::timestamptz IS NULL OR last_attempt_at < $5)
         ORDER BY id LIMIT $6",
        channel.uuid(),
        after.map_or(Uuid::nil(), DeliveryId::uuid),
        filter.state,
        filter.from.map(Timestamp::to_offset),
        filter.to.map(Timestamp::to_offset),
        i64::try_from(limit.min(LIST_MAX)).unwrap_or(i64::MAX)
    )
    .fetch_all(conn)
    .await
    .map_err(while_doing("list the deliveries of a channel"))?;
    found.into_iter().map(Columns::read).collect()
}

/// How many deliveries of a channel there are.
///
/// # Errors
/// [`Error::Statement`].
pub async fn count(
    conn: &mut PgConnection,
    channel: ChannelId,
    filter: &Filter,
) -> Result<u64, Error> {
    let count = sqlx::query_scalar!(
        r#"SELECT COUNT(*) AS "count!" FROM deliveries
         WHERE channel_id = $1 AND ($2::text IS NULL OR state = $2)
             AND ($3::timestamptz IS NULL OR last_attempt_at >= $3)
             AND ($4::timestamptz IS NULL OR last_attempt_at < $4)"#,
        channel.uuid(),
        filter.state,
        filter.from.map(Timestamp::to_offset),
        filter.to.map(Timestamp::to_offset)
    )
    .fetch_one(conn)
    .await
    .map_err(while_doing("count the deliveries of a channel"))?;
    Ok(count.unsigned_abs())
}

struct Columns {
    id: Uuid,
    tenant_id: Uuid,
    channel_id: Uuid,
    conversation_id: Uuid,
    message_id: Uuid,
    seq: i64,
    first_attempt_at: OffsetDateTime,
    last_attempt_at: OffsetDateTime,
    next_attempt_at: Option<OffsetDateTime>,
    attempts: i32,
    status: Option<i32>,
    state: String,
    reason: Option<String>,
}

impl Columns {
    fn read(self) -> Result<Row, Error> {
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
