//! The path of a batch that Postgres refuses: halves it until the bad events stand alone, and writes all others.
//! Promises that every seq has a row afterwards, and that what was refused is kept in quarantine as the log has it.
//! Does not judge why; it keeps what Postgres said.

use std::collections::BTreeSet;
use std::ops::Range;

use tracing::error;

use super::batch::Batch;
use crate::clock::Timestamp;
use crate::event::{ConversationId, Event, Partition};
use crate::store::{self, PgConnection, messages, quarantine};

/// What was written around the bad events.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// Late repeats that were written as tombstones.
    pub(super) tombstones: u64,
    /// The events that went to quarantine, by conversation and seq.
    pub(super) buried: BTreeSet<(ConversationId, u64)>,
}

/// Writes a batch around its bad events. To be used in the transaction that
/// locks and advances the checkpoint.
///
/// # Errors
/// What is not the fault of an event.
pub(super) async fn write(
    conn: &mut PgConnection,
    partition: Partition,
    batch: &Batch,
    now: Timestamp,
) -> Result<Written, store::Error> {
    let events = batch.events();
    let mut written = Written::default();
    // The left half is taken from the stack first: a repeat must find what it repeats.
    let whole: Range<usize> = 0..events.len();
    let mut open = vec![whole];
    while let Some(range) = open.pop() {
        let part = &events[range.clone()];
        match attempt(conn, partition, part).await {
            Ok(inserted) => written.tombstones += inserted.tombstones,
            Err(refusal) if refusal.kind() != store::Kind::Data => return Err(refusal),
            Err(_refusal) if part.len() > 1 => {
                let middle = range.start + part.len() / 2;
                open.push(middle..range.end);
                open.push(range.start..middle);
            }
            Err(refusal) => {
                let (position, event) = part[0];
                let first = events.partition_point(|(earlier, _)| *earlier < position);
                bury(conn, partition, (position, range.start - first, event), &refusal, now)
                    .await?;
                written.buried.insert((event.conversation, event.seq));
            }
        }
    }
    Ok(written)
}

/// Tries to write some events under a savepoint.
async fn attempt(
    conn: &mut PgConnection,
    partition: Partition,
    events: &[(u64, &Event)],
) -> Result<messages::Inserted, store::Error> {
    store::savepoint(conn, async |conn| messages::insert_batch(conn, partition, events).await).await
}

async fn bury(
    conn: &mut PgConnection,
    partition: Partition,
    (position, place, event): (u64, usize, &Event),
    refusal: &store::Error,
    now: Timestamp,
) -> Result<(), store::Error> {
    let reason = crate::lifecycle::chain(refusal);
    error!(
        partition = partition.number(),
        position,
        seq = event.seq,
        conversation.id = %event.conversation,
        error = %reason,
        "Postgres refuses event {} of conversation {}; it goes to quarantine",
        event.seq,
        event.conversation
    );
    let refused = quarantine::Refused {
        position,
        place,
        conversation: event.conversation,
        seq: event.seq,
        reason,
        event: rmp_serde::to_vec_named(event).unwrap_or_default(),
        at: now,
    };
    quarantine::insert(conn, partition, &refused).await?;
    messages::bury(conn, partition, position, event).await
}
