//! Attempts: one row for each request of a delivery.
//! Promises that writing the same outcomes again changes nothing.
//! Does not delete; attempts stay as long as their delivery.

use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::clock::Timestamp;
use crate::event::{DeliveryId, Outcome, Partition, Reason};
use crate::store::checkpoints::{write_partition, write_position};
use crate::store::{Error, while_doing};

/// Most rows of one listing.
pub const LIST_MAX: usize = 100;

/// One attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "attempt is the word for its number everywhere")]
pub struct Attempt {
    /// 1 for the first.
    pub attempt: u32,
    /// When it began.
    pub began_at: Timestamp,
    /// How long it took, in milliseconds.
    pub took_ms: u32,
    /// The status of the answer.
    pub status: Option<u16>,
    /// Why it failed.
    pub reason: Option<String>,
    /// The beginning of the answer, of failures.
    pub answer: Option<String>,
}

/// Writes attempts, given with the positions of their records. To be used in the transaction that advances the
/// checkpoint over them.
///
/// # Errors
/// [`Error::Statement`] or [`Error::Unstorable`].
pub async fn insert_batch(
    conn: &mut PgConnection,
    partition: Partition,
    outcomes: &[(u64, &Outcome)],
) -> Result<(), Error> {
    if outcomes.is_empty() {
        return Ok(());
    }
    let unstorable = |column| Error::Unstorable { column };
    let mut numbers = (Vec::new(), Vec::new(), Vec::new());
    for (position, outcome) in outcomes {
        numbers.0.push(write_position(*position)?);
        numbers.1.push(i32::try_from(outcome.attempt).map_err(|_beyond| unstorable("attempt"))?);
        numbers.2.push(i32::try_from(outcome.took_ms).unwrap_or(i32::MAX));
    }
    let id: Vec<_> = outcomes.iter().map(|(_, o)| o.delivery.uuid()).collect();
    let at: Vec<_> = outcomes.iter().map(|(_, o)| o.began_at.to_offset()).collect();
    let status: Vec<_> = outcomes.iter().map(|(_, o)| o.status.map(i32::from)).collect();
    let state: Vec<_> = outcomes.iter().map(|(_, o)| o.fate.as_str()).collect();
    let reason: Vec<_> = outcomes.iter().map(|(_, o)| o.reason.map(Reason::as_str)).collect();
    let answer: Vec<_> = outcomes.iter().map(|(_, o)| o.answer.as_deref()).collect();
    sqlx::query!(
        "INSERT INTO attempts (delivery_id, began_at, position, attempt, took_ms, status, partition, state, reason,
             answer)
         SELECT id, at, position, attempt, took, status, $1, state, reason, answer
         FROM UNNEST($2::uuid[], $3::timestamptz[], $4::bigint[], $5::integer[], $6::integer[], $7::integer[],
             $8::text[], $9::text[], $10::text[])
             AS new (id, at, position, attempt, took, status, state, reason, answer)
         ON CONFLICT DO NOTHING",
        write_partition(partition),
        &id,
        &at,
        &numbers.0,
        &numbers.1,
        &numbers.2,
        &status as &[Option<i32>],
        &state as &[&str],
        &reason as &[Option<&str>],
        &answer as &[Option<&str>]
    )
    .execute(conn)
    .await
    .map_err(while_doing("write attempts"))?;
    Ok(())
}

/// Which of these outcomes have no row as they say, or a delivery that does not count them.
///
/// # Errors
/// [`Error::Statement`] or [`Error::Unstorable`].
pub async fn differing(
    conn: &mut PgConnection,
    outcomes: &[&Outcome],
) -> Result<Vec<(DeliveryId, u32)>, Error> {
    let numbers = outcomes.iter().map(|o| i32::try_from(o.attempt));
    let attempt: Result<Vec<_>, _> = numbers.collect();
    let attempt = attempt.map_err(|_beyond| Error::Unstorable { column: "attempt" })?;
    let id: Vec<_> = outcomes.iter().map(|o| o.delivery.uuid()).collect();
    let at: Vec<_> = outcomes.iter().map(|o| o.began_at.to_offset()).collect();
    let status: Vec<_> = outcomes.iter().map(|o| o.status.map(i32::from)).collect();
    let state: Vec<_> = outcomes.iter().map(|o| o.fate.as_str()).collect();
    let reason: Vec<_> = outcomes.iter().map(|o| o.reason.map(Reason::as_str)).collect();
    let rows = sqlx::query_file!(
        "src/store/sql/compare_attempts.sql",
        &id,
        &at,
        &attempt,
        &status as &[Option<i32>],
        &state as &[&str],
        &reason as &[Option<&str>]
    )
    .fetch_all(conn)
    .await
    .map_err(while_doing("compare attempts"))?;
    let named = |id, attempt| (DeliveryId::from_uuid(id), u32::try_from(attempt).unwrap_or(0));
    Ok(rows.into_iter().map(|row| named(row.id, row.attempt)).collect())
}

/// The attempts of a delivery, the oldest first, [`LIST_MAX`] at most.
///
/// # Errors
/// [`Error::Statement`] or [`Error::Inconsistent`].
pub async fn list(conn: &mut PgConnection, delivery: DeliveryId) -> Result<Vec<Attempt>, Error> {
    let rows = sqlx::query_as!(
        Columns,
        "SELECT attempt, began_at, took_ms, status, reason, answer FROM attempts
         WHERE delivery_id = $1 ORDER BY began_at, attempt LIMIT $2",
        delivery.uuid(),
        i64::try_from(LIST_MAX).unwrap_or(i64::MAX)
    )
    .fetch_all(conn)
    .await
    .map_err(while_doing("list attempts"))?;
    rows.into_iter().map(Columns::read).collect()
}

struct Columns {
    attempt: i32,
    began_at: OffsetDateTime,
    took_ms: i32,
    status: Option<i32>,
    reason: Option<String>,
    answer: Option<String>,
}

impl Columns {
    fn read(self) -> Result<Attempt, Error> {
        let odd = |column| Error::Inconsistent { table: "attempts", column };
        Ok(Attempt {
            attempt: u32::try_from(self.attempt).map_err(|_negative| odd("attempt"))?,
            began_at: Timestamp::from_offset(self.began_at).ok_or_else(|| odd("began_at"))?,
            took_ms: u32::try_from(self.took_ms).map_err(|_negative| odd("took_ms"))?,
            status: self.status.and_then(|status| u16::try_from(status).ok()),
            reason: self.reason,
            answer: self.answer,
        })
    }
}
