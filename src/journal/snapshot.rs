//! Saving a partition's heads in a bucket and finding them again, so that a restart without Postgres knows them.
//! Promises that a snapshot is used whole or not at all, whatever was half written or written by two nodes at once.
//! Does not need to succeed: without it a node folds from the checkpoint or from the beginning of the log.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use super::heads::{Head, Status};
use super::opening::Saved;
use super::tail::Tail;
use super::{Error, Journal};
use crate::clock::{Clock, Timestamp};
use crate::event::{ConversationId, Partition, TenantId};
use crate::lifecycle::{Stop, chain};
use crate::log::bucket::{self, Bucket};

/// How often heads are saved, if they have moved.
const INTERVAL: Duration = Duration::from_secs(20);

/// Heads of one value of the bucket: at about 80 bytes each, 480 KB of the 768 KB that a value may have.
const CHUNK_HEADS: usize = 6_000;

/// Most values of one snapshot; heads beyond them are the oldest, and looked up in Postgres when they are needed.
const CHUNKS_MAX: usize = 200;

/// Longest wait for one value to be written or read.
const VALUE_MAX: Duration = Duration::from_secs(2);

/// What the newest snapshot is: written last, read first.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Manifest {
    position: u64,
    floor: u64,
    chunks: usize,
    /// Names this snapshot; every chunk of it says the same. It is also when it was begun, in microseconds.
    mark: u64,
    /// The log's incarnation.
    epoch: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Chunk {
    mark: u64,
    heads: Vec<Row>,
}

/// A head as a tuple: conversation, tenant, seq, open, opened at, position.
type Row = (ConversationId, TenantId, u64, bool, Option<Timestamp>, u64);

/// Where heads are saved and found again. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Saver {
    /// The bucket.
    pub bucket: Bucket,
    /// The log's incarnation.
    pub epoch: String,
    /// Where time comes from.
    pub clock: Clock,
}

/// Saves every partition's heads from time to time, and once more at the end.
///
/// # Errors
/// Never; a snapshot that fails is tried again at the next interval.
pub async fn run(saver: Saver, journal: Journal, stop: Stop) -> Result<(), Error> {
    let mut saved: Vec<u64> = vec![0; journal.tails().len()];
    loop {
        let stopping = tokio::select! {
            () = stop.requested() => true,
            () = tokio::time::sleep(INTERVAL) => false,
        };
        for (tail, saved) in journal.tails().iter().zip(&mut saved) {
            if tail.position() == *saved {
                continue;
            }
            match saver.save(tail, stopping).await {
                Ok(position) => *saved = position,
                Err(error) => {
                    warn!(error = %chain(&error), "heads of partition {} are not saved", tail.partition());
                }
            }
        }
        if stopping {
            return Ok(());
        }
    }
}

impl Saver {
    /// Saves one partition's heads and says up to which position. One node is enough: a snapshot that another one has
    /// just begun is left alone, or the two would write into each other's. The last one of a node that stops is
    /// always written.
    async fn save(&self, tail: &Tail, stopping: bool) -> Result<u64, bucket::Error> {
        let mark = self.clock.timestamp().micros().unsigned_abs();
        let interval = u64::try_from(INTERVAL.as_micros()).unwrap_or(u64::MAX);
        let newest = self.manifest(tail.partition()).await?;
        let is_young = |newest: &Manifest| {
            newest.epoch == self.epoch && newest.mark.saturating_add(interval / 2) > mark
        };
        if let Some(newest) = newest.filter(|newest| !stopping && is_young(newest)) {
            return Ok(newest.position);
        }
        let (position, floor, mut heads) = tail.snapshot();
        heads.sort_unstable_by_key(|(_, head)| std::cmp::Reverse(head.position));
        let floor = match heads.get(CHUNK_HEADS * CHUNKS_MAX) {
            Some((_, beyond)) => floor.max(beyond.position),
            None => floor,
        };
        heads.truncate(CHUNK_HEADS * CHUNKS_MAX);
        let chunks = heads.chunks(CHUNK_HEADS);
        let count = chunks.len();
        for (number, heads) in chunks.enumerate() {
            let heads = heads.iter().map(|(id, head)| row(*id, head)).collect();
            let key = chunk_key(tail.partition(), number);
            self.bucket.put(&key, pack(&Chunk { mark, heads }), self.deadline()).await?;
        }
        let epoch = self.epoch.clone();
        let manifest = Manifest { position, floor, chunks: count, mark, epoch };
        let key = manifest_key(tail.partition());
        self.bucket.put(&key, pack(&manifest), self.deadline()).await?;
        debug!("saved {} heads of partition {}", heads.len(), tail.partition());
        Ok(position)
    }

    /// The newest snapshot of a partition; `None` when there is none of this log, or only a half of one.
    pub async fn load(&self, partition: Partition) -> Option<Saved> {
        match self.try_load(partition).await {
            Ok(saved) => saved,
            Err(error) => {
                warn!(error = %chain(&error), "heads of partition {partition} cannot be recalled");
                None
            }
        }
    }

    async fn try_load(&self, partition: Partition) -> Result<Option<Saved>, bucket::Error> {
        let newest = self.manifest(partition).await?;
        let Some(manifest) = newest.filter(|manifest| manifest.epoch == self.epoch) else {
            return Ok(None);
        };
        let mut heads = HashMap::new();
        for number in 0..manifest.chunks.min(CHUNKS_MAX) {
            let key = chunk_key(partition, number);
            let Some(found) = self.bucket.get(&key, self.deadline()).await? else {
                return Ok(None);
            };
            match rmp_serde::from_slice::<Chunk>(&found.value) {
                Ok(chunk) if chunk.mark == manifest.mark => {
                    heads.extend(chunk.heads.into_iter().map(head));
                }
                Ok(_) | Err(_) => return Ok(None),
            }
        }
        Ok(Some(Saved { position: manifest.position, floor: manifest.floor, heads }))
    }

    async fn manifest(&self, partition: Partition) -> Result<Option<Manifest>, bucket::Error> {
        let found = self.bucket.get(&manifest_key(partition), self.deadline()).await?;
        Ok(found.and_then(|found| rmp_serde::from_slice(&found.value).ok()))
    }

    fn deadline(&self) -> Instant {
        self.clock.now() + VALUE_MAX
    }
}

fn row(conversation: ConversationId, head: &Head) -> Row {
    let is_open = head.status == Status::Open;
    (conversation, head.tenant, head.seq, is_open, head.opened_at, head.position)
}

fn head((conversation, tenant, seq, is_open, opened_at, position): Row) -> (ConversationId, Head) {
    let status = if is_open { Status::Open } else { Status::Closed };
    (conversation, Head { tenant, seq, status, opened_at, position })
}

fn pack(value: &impl Serialize) -> bytes::Bytes {
    rmp_serde::to_vec(value).expect("plain numbers and ids always encode").into()
}

fn manifest_key(partition: Partition) -> String {
    format!("{partition}.manifest")
}

fn chunk_key(partition: Partition, number: usize) -> String {
    format!("{partition}.{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_survives_its_row_and_a_chunk_fits_a_value() {
        let of = |n: u64| Head {
            tenant: TenantId::derive([1; 16]),
            seq: n,
            status: if n.is_multiple_of(2) { Status::Open } else { Status::Closed },
            opened_at: Timestamp::from_micros(i64::MAX / 100_000),
            position: u64::MAX,
        };
        let id = ConversationId::derive([9; 16]);
        for n in [1, 2, u64::MAX] {
            assert_eq!(head(row(id, &of(n))), (id, of(n)));
        }
        let heads = vec![row(id, &of(u64::MAX)); CHUNK_HEADS];
        let size = pack(&Chunk { mark: u64::MAX, heads }).len();
        assert!(size < 700_000, "{size} bytes");
    }
}
