//! The projector's reference: the same rows, copied into a table of the same shape with the same indexes.
//! Promises as many connections as there are projectors, and a commit for as many rows as one of their batches has.
//! Does not read a log, keep heads or move checkpoints: all of that is to its advantage.

use std::time::Duration;

use sqlx::postgres::PgConnection;

use super::fill::{Filling, Source};
use super::{Place, database};
use crate::bench::Error;
use crate::bench::reference::rows::statement;
use crate::event::{Body, Event, Partition};
use crate::projection::BATCH_EVENTS_MAX;

const SETUP: [&str; 3] = [
    "DROP SCHEMA IF EXISTS forebay_bench CASCADE",
    "CREATE SCHEMA forebay_bench",
    "CREATE TABLE forebay_bench.messages (LIKE public.messages INCLUDING ALL)",
];

const COPY: &str = "COPY forebay_bench.messages (conversation_id, seq, position, fingerprint, at, size, partition, \
     tenant_id, id, kind, client_id, text) FROM STDIN";

/// What was copied.
pub(super) struct Copied {
    pub(super) rows: u64,
    pub(super) took: Duration,
    /// Open until they are dropped: the processor time of a backend that has ended cannot be read.
    pub(super) backends: Vec<PgConnection>,
}

/// Copies the events of a filling.
pub(super) async fn copy(place: &Place, filling: Filling) -> Result<Copied, Error> {
    let mut conn = place.connect().await?;
    for sql in SETUP {
        let made = statement(sql).execute(&mut conn).await;
        made.map_err(database("making the table to copy into"))?;
    }
    let begun = place.clock.now();
    let each = place.partitions.all().map(|partition| async move {
        let mut conn = place.connect().await?;
        let source = Source::new(place, filling, partition);
        let rows = copy_one(place, &mut conn, source, partition).await?;
        Ok::<_, Error>((rows, conn))
    });
    let copied = futures_util::future::try_join_all(each).await?;
    let took = place.clock.now().saturating_duration_since(begun);
    let (rows, backends): (Vec<u64>, _) = copied.into_iter().unzip();
    let removed = statement("DROP SCHEMA forebay_bench CASCADE").execute(&mut conn).await;
    removed.map_err(database("removing the table that was copied into"))?;
    Ok(Copied { rows: rows.into_iter().sum(), took, backends })
}

async fn copy_one(
    place: &Place,
    conn: &mut PgConnection,
    mut source: Source,
    partition: Partition,
) -> Result<u64, Error> {
    let batch = u64::try_from(BATCH_EVENTS_MAX).unwrap_or(u64::MAX);
    let (mut rows, mut text) = (0, String::new());
    loop {
        let events = source.take(batch, place.clock.timestamp());
        if events.is_empty() {
            return Ok(rows);
        }
        text.clear();
        for event in &events {
            text.push_str(&row(event, partition));
        }
        let mut copying =
            conn.copy_in_raw(COPY).await.map_err(database("beginning to copy rows"))?;
        copying.send(text.as_bytes()).await.map_err(database("copying rows"))?;
        rows += copying.finish().await.map_err(database("committing copied rows"))?;
    }
}

/// A row in the text format of `COPY`. No column of these events holds a character that would have to be escaped.
fn row(event: &Event, partition: Partition) -> String {
    let (client_id, body) = match &event.body {
        Body::Message(message) => (
            message.client_id.as_ref().map_or("\\N", |id| id.as_str()),
            message.text.as_deref().unwrap_or("\\N"),
        ),
        Body::Opened(_) | Body::Closed | Body::Reopened => ("\\N", "\\N"),
    };
    format!(
        "{}\t{}\t1\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{client_id}\t{body}\n",
        event.conversation.uuid(),
        event.seq,
        event.fingerprint.bits().cast_signed(),
        event.at,
        event.body.size(),
        partition.number(),
        event.tenant.uuid(),
        event.id.uuid(),
        event.kind(),
    )
}
