//! Projects the log anew into fresh tables and puts them in the place of the old ones.
//! Promises that sends, reads and the running projection go on meanwhile, and that readers never see less than before.
//! Does not touch the log. Rows older than the log are copied, because only Postgres has them.

use std::time::{Duration, Instant};

use tracing::info;

use super::batch::Batch;
use super::{BATCH_EVENTS_MAX, Error};
use crate::clock::Clock;
use crate::event::{Partition, Partitions};
use crate::log::Log;
use crate::store::rebuild::{Plan, Swap, lock};
use crate::store::{self, PgConnection, Target, checkpoints};

/// Deadline of one batch.
const BATCH_MAX: Duration = Duration::from_mins(1);

/// Deadline of copying rows that the log has forgotten.
const COPY_MAX: Duration = Duration::from_hours(6);

/// Longest wait for the lock. The janitor holds it for 10 s at most (its `READ_MAX`), the session of a rebuild that has ended for
/// less, and another rebuild for minutes.
const LOCK_MAX: Duration = Duration::from_secs(15);

/// Pause between two looks at the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// Most attempts to swap; each is preceded by another catching up.
const SWAPS_MAX: usize = 50;

/// What is rebuilt.
#[derive(Clone, Debug)]
pub struct Rebuild {
    /// The log.
    pub log: Log,
    /// Its partitions.
    pub partitions: Partitions,
    /// Its incarnation.
    pub epoch: String,
    /// The tables' database and schema.
    pub target: Target,
    /// Where time comes from.
    pub clock: Clock,
}

impl Rebuild {
    /// Rebuilds, and says how many events were projected. `progress` hears of them as they are.
    ///
    /// # Errors
    /// [`Error`]; the old tables are as they were then.
    pub async fn run(&self, progress: &(dyn Fn(u64) + Send + Sync)) -> Result<u64, Error> {
        let plan = Plan::new(&self.target).map_err(Error::Rebuild)?;
        let mut live = self.session(&self.target).await?;
        // Held by this session to its end: by a second rebuild's hand rows would be lost that only Postgres has, and the
        // janitor must not delete what is about to be read.
        self.lock(&mut live).await?;
        self.prepare(&plan).await?;
        let mut fresh = self.session(&plan.fresh()).await?;
        let mut events = 0;
        for attempt in 1..=SWAPS_MAX {
            for partition in self.partitions.all() {
                events += self.catch_up(&mut fresh, partition, events, progress).await?;
            }
            let swapped = match self.swap(&plan, &mut live).await {
                // A reader that holds a table for long is waited for again, after another catching up.
                Err(Error::Rebuild(error)) if error.is_retryable() && attempt < SWAPS_MAX => {
                    info!("attempt {attempt}: the tables were not free: {error}");
                    continue;
                }
                other => other?,
            };
            match swapped {
                Swap::Done => {
                    let discarded = plan.discard(&mut live).await;
                    discarded.map_err(Error::Rebuild)?;
                    return Ok(events);
                }
                Swap::Behind { partition, old, new } => info!(
                    "attempt {attempt}: partition {partition} was at {old} and is rebuilt up to {new}"
                ),
            }
        }
        Err(Error::NeverLevel { attempts: SWAPS_MAX })
    }

    /// Takes the lock, which the janitor has for moments, and the session of a rebuild that has just ended too.
    async fn lock(&self, live: &mut PgConnection) -> Result<(), Error> {
        let until = self.clock.now() + LOCK_MAX;
        while !lock(live).await.map_err(Error::Rebuild)? {
            if self.clock.now() >= until {
                return Err(Error::RebuildBusy);
            }
            tokio::time::sleep(LOCK_PAUSE).await;
        }
        Ok(())
    }

    async fn prepare(&self, plan: &Plan) -> Result<(), Error> {
        let deadline = self.clock.now() + BATCH_MAX;
        let prepared = plan.prepare(self.partitions, &self.epoch, deadline).await;
        prepared.map_err(Error::Rebuild)?;
        let mut conn = self.session(&plan.fresh()).await?;
        for partition in self.partitions.all() {
            let floor = self.log.bounds(partition).await?.first.max(1);
            let copying = transaction(&mut conn, self.clock.now() + COPY_MAX, async |conn| {
                plan.copy_below(conn, partition, floor).await
            });
            copying.await.map_err(Error::Rebuild)?;
        }
        Ok(())
    }

    /// Projects a partition into the fresh tables up to the log's present end.
    async fn catch_up(
        &self,
        fresh: &mut PgConnection,
        partition: Partition,
        before: u64,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<u64, Error> {
        let end = self.log.bounds(partition).await?.last;
        let all = checkpoints::read_all(fresh).await;
        let all = all.map_err(Error::Rebuild)?;
        let of_this = all.iter().find(|row| row.partition == partition.number());
        let mut position = of_this.map_or(0, |row| row.position);
        let mut follow = self.log.follow(partition, position);
        let mut events = 0;
        while position < end {
            let batch = Batch::from_log(&mut follow, partition, (end, BATCH_EVENTS_MAX)).await?;
            let (now, deadline) = (self.clock.timestamp(), self.clock.now() + BATCH_MAX);
            let writing = transaction(fresh, deadline, async |conn| {
                if !super::take(conn, partition, position).await? {
                    return Ok(false);
                }
                let written = super::poison::write(conn, partition, &batch, now).await?;
                super::finish(conn, partition, &batch, &written.buried).await?;
                Ok(true)
            });
            if !writing.await.map_err(Error::Rebuild)? {
                return Err(Error::RebuildBusy);
            }
            position = batch.last_position();
            events += batch.events().len() as u64;
            progress(before + events);
        }
        Ok(events)
    }

    async fn swap(&self, plan: &Plan, live: &mut PgConnection) -> Result<Swap, Error> {
        let swapping = transaction(live, self.clock.now() + BATCH_MAX, async |conn| {
            let old = checkpoints::lock_all(conn).await?;
            plan.swap(conn, &old).await
        });
        swapping.await.map_err(Error::Rebuild)
    }

    async fn session(&self, target: &Target) -> Result<PgConnection, Error> {
        let deadline = self.clock.now() + BATCH_MAX;
        let session = target.connect("rebuild", COPY_MAX, deadline).await;
        session.map_err(Error::Rebuild)
    }
}

/// One transaction on a session of its own, within a deadline.
async fn transaction<T, F>(
    conn: &mut PgConnection,
    deadline: Instant,
    operation: F,
) -> Result<T, store::Error>
where
    F: AsyncFnOnce(&mut PgConnection) -> Result<T, store::Error>,
{
    let working = store::savepoint(conn, operation);
    match tokio::time::timeout_at(deadline.into(), working).await {
        Ok(result) => result,
        Err(_elapsed) => Err(store::Error::Deadline { doing: "rebuild" }),
    }
}
