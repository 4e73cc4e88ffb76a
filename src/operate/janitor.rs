//! Deletes records of the log that Postgres has and that are older than the retention.
//! Promises never to delete a position above a checkpoint, whatever the clock says.
//! Does not touch Postgres' rows; they stay.

use std::time::Duration;

use tracing::{info, warn};

use crate::admission::{self, Origin, Priority, Tag};
use crate::clock::{Clock, Timestamp};
use crate::event::Partition;
use crate::event::delivery::Place;
use crate::lifecycle::{Stop, chain};
use crate::log::queue::Source;
use crate::log::{self, Log};
use crate::store::{self, Background, PgConnection, checkpoints, rebuild};

/// Upkeep goes before work on the past and after the projection.
const UPKEEP: Tag = Origin::system(admission::Source::Projector).at(Priority::Medium);

/// How often the janitor looks.
const INTERVAL: Duration = Duration::from_mins(1);

/// Deadline of reading the checkpoints.
const READ_MAX: Duration = Duration::from_secs(10);

/// Fewest records that are worth a purge.
const PURGE_RECORDS_MIN: u64 = 100;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log failed.
    #[error("looking after the log")]
    Log(#[from] log::Error),
    /// Postgres failed.
    #[error("reading the checkpoints")]
    Store(#[from] store::Error),
}

/// Looks after the log's age.
#[derive(Clone, Debug)]
pub struct Janitor {
    /// The log.
    pub log: Log,
    /// The pool of background work.
    pub database: Background,
    /// How long records stay.
    pub retention: Duration,
    /// The log's incarnation; checkpoints of another one say nothing.
    pub epoch: String,
    /// Where time comes from.
    pub clock: Clock,
}

impl Janitor {
    /// Looks from time to time until it is stopped.
    ///
    /// # Errors
    /// Never; what fails is tried again at the next interval.
    pub async fn run(self, stop: Stop) -> Result<(), Error> {
        loop {
            tokio::select! {
                () = stop.requested() => return Ok(()),
                () = tokio::time::sleep(INTERVAL) => {}
            }
            if let Err(error) = self.step().await {
                warn!(error = %chain(&error), "the log was not looked after");
            }
        }
    }

    /// Deletes what can go, and says how many records that were.
    ///
    /// # Errors
    /// [`Error`]; what was deleted until then could go.
    pub async fn step(&self) -> Result<u64, Error> {
        let deadline = self.clock.now() + READ_MAX;
        let mut lease = self.database.acquire(UPKEEP, deadline).await?;
        let read = async |conn: &mut PgConnection| {
            let free = rebuild::is_free(conn).await?;
            // A rebuild reads the log from its first record on.
            if free { checkpoints::read_all(conn).await } else { Ok(Vec::new()) }
        };
        let all = lease.transaction(deadline, read).await?;
        // Nothing of Postgres is held while the log is asked.
        drop(lease);
        let horizon = self.clock.timestamp().minus(self.retention);
        let mut purged = 0;
        for checkpoint in all.iter().filter(|checkpoint| checkpoint.epoch == self.epoch) {
            let parts = crate::event::Partitions::new(checkpoint.partition + 1);
            let Some(partition) = parts.and_then(|parts| parts.get(checkpoint.partition)) else {
                continue;
            };
            // What is not routed yet has to stay, however long ago Postgres took it.
            let routed = self.routed(partition).await?;
            purged += self.tidy(partition, checkpoint.position.min(routed), horizon).await?;
        }
        Ok(purged)
    }

    /// How far a partition is routed.
    async fn routed(&self, partition: Partition) -> Result<u64, log::Error> {
        let (stream, subject) =
            (self.log.queue_stream(Source::Deliver), self.log.routed_subject(partition));
        let last = self.log.last(&stream, &subject).await?;
        let place = last.and_then(|(_, bytes)| rmp_serde::from_slice::<Place>(&bytes).ok());
        Ok(place.unwrap_or_default().position)
    }

    async fn tidy(
        &self,
        partition: Partition,
        checkpoint: u64,
        horizon: Timestamp,
    ) -> Result<u64, log::Error> {
        let bounds = self.log.bounds(partition).await?;
        let (mut keep, mut go) = (checkpoint.min(bounds.last), bounds.first.max(1) - 1);
        // The newest position is kept in any case: it is what the guard of the next record names.
        while keep > go + 1 {
            let middle = go + (keep - go) / 2;
            if self.log.get(partition, middle).await?.time < horizon {
                go = middle;
            } else {
                keep = middle;
            }
        }
        let count = go.saturating_sub(bounds.first.max(1) - 1);
        if count < PURGE_RECORDS_MIN {
            return Ok(0);
        }
        self.log.purge_below(partition, go + 1).await?;
        info!("purged {count} records of partition {partition}, up to position {go}");
        Ok(count)
    }
}
