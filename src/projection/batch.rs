//! What is written together: records after the checkpoint, from the tail or from the log.
//! Promises whole records, contiguous and in order, and at least one where there is one.
//! Does not write them.

use std::sync::Arc;

use tracing::error;

use super::Error;
use crate::event::record::CodecError;
use crate::event::{Event, Outcome, Partition, Record};
use crate::journal::Tail;
use crate::journal::ring::{Folded, Window};
use crate::lifecycle::chain;
use crate::log::Follow;

/// Most bytes of a batch, give or take its last record: what 2 000 events of 4 KiB take.
const BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Contiguous records after a position.
#[derive(Debug, Default)]
pub struct Batch {
    records: Vec<Arc<Folded>>,
    /// The last position that it covers; beyond the last record where unreadable ones follow.
    last: u64,
}

impl Batch {
    /// From the tail; `None` when the tail begins after that position.
    pub fn from_tail(tail: &Tail, position: u64, events_max: usize) -> Option<Self> {
        match tail.records_after(position, events_max) {
            Window::Forgotten => None,
            Window::Records(records) => {
                let last = records.last().map_or(position, |folded| folded.position);
                Some(Self { records, last })
            }
        }
    }

    /// From the log, up to a position and within so many events.
    ///
    /// # Errors
    /// When the log cannot be read or a newer version wrote to it.
    pub async fn from_log(
        follow: &mut Follow,
        partition: Partition,
        (end, events_max): (u64, usize),
    ) -> Result<Self, Error> {
        let mut batch = Self { records: Vec::new(), last: follow.position() };
        let (mut events, mut bytes) = (0, 0);
        while events < events_max && bytes < BATCH_BYTES_MAX && follow.position() < end {
            let (position, raw) = follow.next_known().await?;
            bytes += raw.len();
            batch.last = position;
            match Record::decode(&raw) {
                Ok(record) => {
                    events += record.entries();
                    batch.records.push(Arc::new(Folded { position, bytes: raw.len(), record }));
                }
                Err(source @ CodecError::Version(_)) => {
                    return Err(Error::Newer { partition, position, source });
                }
                Err(other) => error!(
                    position,
                    error = %chain(&other),
                    "position {position} of partition {partition} holds no record and is not projected"
                ),
            }
        }
        Ok(batch)
    }

    /// Whether it covers nothing.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Its events with the positions of their records.
    pub fn events(&self) -> Vec<(u64, &Event)> {
        let of = |folded: &'_ Arc<Folded>| folded.position;
        self.records
            .iter()
            .flat_map(|folded| folded.record.events.iter().map(move |event| (of(folded), event)))
            .collect()
    }

    /// What became of deliveries, with the positions of their records.
    pub fn outcomes(&self) -> Vec<(u64, &Outcome)> {
        let of = |folded: &'_ Arc<Folded>| folded.position;
        self.records
            .iter()
            .flat_map(|folded| folded.record.outcomes.iter().map(move |one| (of(folded), one)))
            .collect()
    }

    /// The last position that it covers.
    pub fn last_position(&self) -> u64 {
        self.last
    }
}
