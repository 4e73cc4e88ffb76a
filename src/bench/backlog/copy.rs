//! The projector's reference: the same rows, copied into a table of the same shape with the same indexes.
//! Promises as many connections as there are projectors, a commit for as many rows as one of their batches has, and rows whose
//! text was made before the clock runs.
//! Does not read a log, keep heads or move checkpoints: all of that is to its advantage.

use std::time::Duration;

use bytes::Bytes;
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

/// All that is to be copied, as text in memory: half a kilobyte a row.
pub(super) struct Prepared {
    /// A partition's connection and its batches.
    each: Vec<(PgConnection, Vec<Bytes>)>,
}

/// Makes the table and the text of all rows, and connects.
pub(super) async fn prepare(place: &Place, filling: Filling) -> Result<Prepared, Error> {
    let mut conn = place.connect().await?;
    for sql in SETUP {
        let made = statement(sql).execute(&mut conn).await;
        made.map_err(database("making the table to copy into"))?;
    }
    let mut each = Vec::new();
    for partition in place.partitions.all() {
        let source = Source::new(place, filling, partition);
        let (place, conn) = (place.clone(), place.connect().await?);
        let texts = tokio::task::spawn_blocking(move || batches(&place, source, partition));
        each.push((conn, texts.await.map_err(|_panic| Error::Panicked)?));
    }
    Ok(Prepared { each })
}

fn batches(place: &Place, mut source: Source, partition: Partition) -> Vec<Bytes> {
    let batch = u64::try_from(BATCH_EVENTS_MAX).unwrap_or(u64::MAX);
    let mut texts = Vec::new();
    loop {
        let events = source.take(batch, place.clock.timestamp());
        if events.is_empty() {
            return texts;
        }
        let rows: String = events.iter().map(|event| row(event, partition)).collect();
        texts.push(rows.into());
    }
}

impl Prepared {
    /// Copies all of it.
    pub(super) async fn copy(self, place: &Place) -> Result<Copied, Error> {
        let begun = place.clock.now();
        let each = self.each.into_iter().map(|(mut conn, texts)| async move {
            let rows = copy_one(&mut conn, texts).await?;
            Ok::<_, Error>((rows, conn))
        });
        let copied = futures_util::future::try_join_all(each).await?;
        let took = place.clock.now().saturating_duration_since(begun);
        let (rows, backends): (Vec<u64>, _) = copied.into_iter().unzip();
        Ok(Copied { rows: rows.into_iter().sum(), took, backends })
    }
}

/// Removes what was copied, and lets Postgres write what both ways left in its memory.
pub(super) async fn remove(place: &Place) -> Result<(), Error> {
    let mut conn = place.connect().await?;
    for sql in ["DROP SCHEMA forebay_bench CASCADE", "CHECKPOINT"] {
        let removed = statement(sql).execute(&mut conn).await;
        removed.map_err(database("removing the table that was copied into"))?;
    }
    Ok(())
}

async fn copy_one(conn: &mut PgConnection, texts: Vec<Bytes>) -> Result<u64, Error> {
    let mut rows = 0;
    for text in texts {
        let mut copying =
            conn.copy_in_raw(COPY).await.map_err(database("beginning to copy rows"))?;
        copying.send(text).await.map_err(database("copying rows"))?;
        rows += copying.finish().await.map_err(database("committing copied rows"))?;
    }
    Ok(rows)
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
