//! Deliveries: one row for each that was attempted, with what its last attempt left.
//! Promises that writing the same outcomes again changes nothing, and that what was delivered stays so.
//! Does not know deliveries that nobody has attempted yet; the queues do.

pub mod attempts;
mod columns;
mod fold;

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use self::columns::Columns;
use self::fold::fold;
use super::checkpoints::{write_partition, write_position};
use super::{Error, while_doing};
use crate::clock::Timestamp;
use crate::event::{
    ChannelId, ConversationId, DeliveryId, Fate, MessageId, Outcome, Partition, Reason, TenantId,
};

/// Most rows of one listing.
pub const LIST_MAX: usize = 200;

/// Every state that a row can have.
const STATES: [&str; 3] = ["delivered", "retrying", "failed"];

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
    /// When the one did that its state comes from: of a delivered one the first that succeeded.
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

/// Writes what became of attempts, given with the positions of their records. Idempotent: the same outcomes give the
/// same rows, in whatever batches they come. To be used in the transaction that advances the checkpoint over them.
///
/// # Errors
/// [`Error::Statement`] or [`Error::Unstorable`].
pub async fn upsert_batch(
    conn: &mut PgConnection,
    partition: Partition,
    outcomes: &[(u64, &Outcome)],
) -> Result<(), Error> {
    let rows = fold(outcomes);
    if rows.is_empty() {
        return Ok(());
    }
    let of = |column: fn(&Outcome) -> Uuid| {
        rows.values().map(|row| column(row.counts)).collect::<Vec<_>>()
    };
    let unstorable = |column| Error::Unstorable { column };
    let (mut seq, mut attempts) = (Vec::new(), Vec::new());
    let (mut first_position, mut position) = (Vec::new(), Vec::new());
    for row in rows.values() {
        seq.push(i64::try_from(row.counts.seq).map_err(|_beyond| unstorable("seq"))?);
        first_position.push(write_position(row.first_position)?);
        position.push(write_position(row.position)?);
        attempts.push(i32::try_from(row.attempts).map_err(|_beyond| unstorable("attempt"))?);
    }
    let first_at: Vec<_> = rows.values().map(|row| row.first_attempt_at.to_offset()).collect();
    let last_at: Vec<_> = rows.values().map(|row| row.counts.began_at.to_offset()).collect();
    let next_at: Vec<_> = rows.values().map(|row| next_attempt_at(row.counts.fate)).collect();
    let status: Vec<_> = rows.values().map(|row| row.counts.status.map(i32::from)).collect();
    let state: Vec<_> = rows.values().map(|row| row.counts.fate.as_str()).collect();
    let reason: Vec<_> = rows.values().map(|row| row.counts.reason.map(Reason::as_str)).collect();
    sqlx::query_file!(
        "src/store/sql/upsert_deliveries.sql",
        write_partition(partition),
        &of(|o| o.delivery.uuid()),
        &of(|o| o.tenant.uuid()),
        &of(|o| o.channel.uuid()),
        &of(|o| o.conversation.uuid()),
        &of(|o| o.message.uuid()),
        &seq,
        &first_position,
        &position,
        &first_at,
        &last_at,
        &next_at as &[Option<OffsetDateTime>],
        &attempts,
        &status as &[Option<i32>],
        &state as &[&str],
        &reason as &[Option<&str>]
    )
    .execute(conn)
    .await
    .map_err(while_doing("write deliveries"))?;
    Ok(())
}

fn next_attempt_at(fate: Fate) -> Option<OffsetDateTime> {
    match fate {
        Fate::Retry(at) => Some(at.to_offset()),
        Fate::Delivered | Fate::Failed => None,
    }
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

/// The deliveries of a channel after this one, in the order of their ids, which no later outcome changes.
///
/// # Errors
/// [`Error::Statement`] or [`Error::Inconsistent`].
pub async fn of_channel(
    conn: &mut PgConnection,
    channel: ChannelId,
    filter: &Filter,
    (after, limit): (Option<DeliveryId>, usize),
) -> Result<Vec<Row>, Error> {
    let found = sqlx::query_file_as!(
        Columns,
        "src/store/sql/list_deliveries.sql",
        channel.uuid(),
        &filter.states() as &[&str],
        after.map_or(Uuid::nil(), DeliveryId::uuid),
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
        r#"SELECT COALESCE(SUM(held.rows), 0)::bigint AS "count!"
         FROM UNNEST($2::text[]) AS wanted (state)
         CROSS JOIN LATERAL (
             SELECT COUNT(*) AS rows FROM deliveries
             WHERE channel_id = $1 AND deliveries.state = wanted.state
                 AND ($3::timestamptz IS NULL OR last_attempt_at >= $3)
                 AND ($4::timestamptz IS NULL OR last_attempt_at < $4)
         ) AS held"#,
        channel.uuid(),
        &filter.states() as &[&str],
        filter.from.map(Timestamp::to_offset),
        filter.to.map(Timestamp::to_offset)
    )
    .fetch_one(conn)
    .await
    .map_err(while_doing("count the deliveries of a channel"))?;
    Ok(count.unsigned_abs())
}

impl Filter {
    /// The states that it lets through.
    fn states(&self) -> Vec<&str> {
        self.state.as_deref().map_or_else(|| STATES.to_vec(), |state| vec![state])
    }
}
