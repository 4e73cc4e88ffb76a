//! Writes the log to Postgres: one projector a partition, on any node, one at a time.
//! Promises that rows and checkpoint commit together, so that every event is written exactly once and in order.
//! Does not let one bad event stop a partition: it goes to quarantine, and its seq becomes a tombstone.

pub mod batch;
pub mod directory;
pub mod poison;
pub mod rebuild;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tracing::{debug, error, info};

use crate::admission::{Origin, Priority, Source, Tag};
use crate::clock::Clock;
use crate::event::record::CodecError;
use crate::event::{ConversationId, Partition};
use crate::journal::{Journal, Tail};
use crate::lifecycle::Stop;
use crate::log::{Follow, Log};
use crate::metrics;
use crate::store::{
    self, Background, PgConnection, attempts, checkpoints, conversations, deliveries, messages,
};

use batch::Batch;

/// The log is being written to Postgres now; everything else in this pool can wait for it.
const LIVE: Tag = Origin::system(Source::Projector).at(Priority::High);

/// Most events of a batch, give or take its last record. Larger batches gain nothing (MEASUREMENTS: 64 000 rows/s at
/// 100, 70 000 at 2 000) and hold the checkpoint longer.
pub const BATCH_EVENTS_MAX: usize = 2_000;

/// How long a batch gathers. A page read right after a send finds it in the tail, so there is no hurry.
pub const BATCH_AGE_MAX: Duration = Duration::from_millis(20);

/// Deadline of one batch, lock to commit.
const COMMIT_MAX: Duration = Duration::from_secs(30);

/// How long to leave a partition alone that another node projects.
const ELSEWHERE_PAUSE: Duration = Duration::from_millis(500);

/// How long an idle projector waits for the tail to move before it looks all the same.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// What stops a projector; it starts again after a pause.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Postgres failed, in a way that may pass or not.
    #[error("projecting partition {partition}")]
    Store {
        /// Which partition.
        partition: Partition,
        /// What happened.
        #[source]
        source: store::Error,
    },
    /// The log failed.
    #[error("reading the log to project it")]
    Log(#[from] crate::log::Error),
    /// A newer version wrote a record.
    #[error("position {position} of partition {partition} needs a newer version of this program")]
    Newer {
        /// Which partition.
        partition: Partition,
        /// Which position.
        position: u64,
        /// What the codec says.
        #[source]
        source: CodecError,
    },
    /// Postgres failed while tenants and channels were written.
    #[error("projecting the directory")]
    Directory(#[source] store::Error),
    /// Postgres failed while the tables were rebuilt; the old ones are in place.
    #[error("rebuilding the tables")]
    Rebuild(#[source] store::Error),
    /// Another rebuild is under way.
    #[error("another rebuild of these tables is under way")]
    RebuildBusy,
    /// New records came faster than they could be projected anew.
    #[error(
        "the fresh tables were not level with the old ones after {attempts} attempts; try again when there is less to do"
    )]
    NeverLevel {
        /// How many times it was tried.
        attempts: usize,
    },
    /// The rows belong to another log.
    #[error(
        "Postgres has projected log {stored}, this is log {current}; `forebay rebuild` projects this one"
    )]
    OtherLog {
        /// The epoch in the checkpoint.
        stored: String,
        /// The log's epoch.
        current: String,
    },
}

impl Error {
    /// Whether Postgres could not be had and may be had later.
    pub fn is_shortage(&self) -> bool {
        match self {
            Self::Store { source, .. } | Self::Directory(source) | Self::Rebuild(source) => {
                source.is_retryable()
            }
            Self::Log(_)
            | Self::Newer { .. }
            | Self::RebuildBusy
            | Self::NeverLevel { .. }
            | Self::OtherLog { .. } => false,
        }
    }
}

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It wrote this many events.
    Wrote(usize),
    /// There was nothing to write.
    Idle,
    /// Another node has the partition, or had it since the last step.
    Elsewhere,
}

/// Writes one partition of the log to Postgres.
#[derive(Debug)]
pub struct Projector {
    tail: Tail,
    log: Log,
    epoch: String,
    database: Background,
    clock: Clock,
    metrics: metrics::Projection,
    /// Where the checkpoint is, as far as this projector knows.
    position: Option<u64>,
    /// Reads the log while the tail does not reach back to the checkpoint.
    behind: Option<Follow>,
}

/// What a projector is made of.
#[derive(Clone, Debug)]
pub struct Parts {
    /// What is known of the log.
    pub journal: Journal,
    /// The log.
    pub log: Log,
    /// Its incarnation.
    pub epoch: String,
    /// The pool of background work.
    pub database: Background,
    /// Where time comes from.
    pub clock: Clock,
}

impl Projector {
    /// A projector of one partition.
    pub fn new(parts: Parts, partition: Partition, metrics: metrics::Projection) -> Self {
        let Parts { journal, log, epoch, database, clock } = parts;
        let tail = journal.tail(partition).clone();
        Self { tail, log, epoch, database, clock, metrics, position: None, behind: None }
    }

    /// Runs until it is stopped: a batch as soon as there is something, and at the latest when it is old enough.
    ///
    /// # Errors
    /// [`Error`] when a step fails; the next run goes on from the checkpoint.
    pub async fn run(mut self, stop: Stop) -> Result<(), Error> {
        let mut advanced = self.tail.advanced();
        let mut stopping = false;
        loop {
            let pause = match self.step().await? {
                Step::Wrote(events) if events >= BATCH_EVENTS_MAX => continue,
                Step::Wrote(_) => BATCH_AGE_MAX,
                Step::Idle | Step::Elsewhere if stopping => return Ok(()),
                Step::Idle => IDLE_MAX,
                Step::Elsewhere => ELSEWHERE_PAUSE,
            };
            let is_idle = pause == IDLE_MAX;
            tokio::select! {
                // What was acknowledged before the stop is written before the end, as far as the time allows.
                () = stop.requested(), if !stopping => stopping = true,
                () = tokio::time::sleep(pause) => {}
                // Whoever lost the partition to another node stands back for the whole of its pause.
                _ = advanced.changed(), if is_idle => tokio::time::sleep(BATCH_AGE_MAX).await,
            }
        }
    }

    /// Writes one batch, if there is one and no other node has the partition.
    ///
    /// Idempotency key: the checkpoint, in the same transaction as the rows.
    ///
    /// # Errors
    /// [`Error`]; nothing of the batch is written then, or it is not known whether all of it is.
    pub async fn step(&mut self) -> Result<Step, Error> {
        let position = match self.position {
            Some(position) => position,
            None => self.look().await?,
        };
        let batch = self.gather(position).await?;
        if batch.is_empty() {
            return Ok(Step::Idle);
        }
        let started = self.clock.now();
        let written = self.write(position, &batch, started + COMMIT_MAX).await;
        match written {
            Ok(Some(written)) => {
                self.note(batch.last_position());
                let took = self.clock.now().saturating_duration_since(started);
                self.count(&written, took);
                Ok(Step::Wrote(written.events))
            }
            Ok(None) => {
                self.position = None;
                self.behind = None;
                Ok(Step::Elsewhere)
            }
            Err(source) => {
                self.position = None;
                self.behind = None;
                Err(self.failed(source))
            }
        }
    }

    /// Reads where the checkpoint is, and that it belongs to this log.
    async fn look(&mut self) -> Result<u64, Error> {
        let deadline = self.clock.now() + COMMIT_MAX;
        let (partition, epoch) = (self.tail.partition(), self.epoch.clone());
        let read = async {
            let mut lease = self.database.acquire(LIVE, deadline).await?;
            lease.run(deadline, async |conn| checkpoints::read_all(conn).await).await
        };
        let all = read.await.map_err(|source| self.failed(source))?;
        let found = all.into_iter().find(|checkpoint| checkpoint.partition == partition.number());
        let position = match found {
            Some(found) if found.epoch == epoch => found.position,
            Some(found) => return Err(Error::OtherLog { stored: found.epoch, current: epoch }),
            None => 0,
        };
        self.note(position);
        Ok(position)
    }

    fn note(&mut self, position: u64) {
        self.position = Some(position);
        self.tail.note_checkpoint(position);
    }

    /// The next records: from the tail where it reaches back far enough, else from the log.
    async fn gather(&mut self, position: u64) -> Result<Batch, Error> {
        if let Some(batch) = Batch::from_tail(&self.tail, position, BATCH_EVENTS_MAX) {
            if self.behind.take().is_some() {
                debug!("partition {} is caught up", self.tail.partition());
            }
            return Ok(batch);
        }
        let partition = self.tail.partition();
        let follow = match self.behind.take() {
            Some(follow) if follow.position() == position => follow,
            Some(_) | None => {
                info!("partition {partition} is read from the log after position {position}");
                self.log.follow(partition, position)
            }
        };
        let follow = self.behind.insert(follow);
        let end = self.tail.position();
        Batch::from_log(follow, partition, (end, BATCH_EVENTS_MAX)).await
    }

    /// Writes a batch; `None` when the checkpoint is not where this projector takes it to be, or locked.
    async fn write(
        &self,
        position: u64,
        batch: &Batch,
        deadline: Instant,
    ) -> Result<Option<Written>, store::Error> {
        let partition = self.tail.partition();
        let now = self.clock.timestamp();
        let mut lease = self.database.acquire(LIVE, deadline).await?;
        #[cfg(feature = "broken")]
        let position = if crate::lifecycle::broken::Break::LooseCheckpoint.is_chosen() {
            let last = batch.last_position();
            let moved = lease
                .transaction(deadline, async |conn| {
                    let is_taken = take(conn, partition, position).await?;
                    if is_taken {
                        checkpoints::advance(conn, partition, last).await?;
                    }
                    Ok(is_taken)
                })
                .await?;
            if !moved {
                return Ok(None);
            }
            // So long that a session which is ended while it is in use mostly ends here.
            tokio::time::sleep(Duration::from_millis(20)).await;
            last
        } else {
            position
        };
        let attempt = lease
            .transaction(deadline, async |conn| {
                if !take(conn, partition, position).await? {
                    return Ok(None);
                }
                let events = batch.events();
                let inserted = messages::insert_batch(conn, partition, &events).await?;
                finish(conn, partition, batch, &BTreeSet::new()).await?;
                let (events, tombstones) = (events.len(), inserted.tombstones);
                Ok(Some(Written { events, tombstones, quarantined: 0 }))
            })
            .await;
        let refusal = match attempt {
            Err(error) if error.kind() == store::Kind::Data => error,
            other => return other,
        };
        error!(
            partition = partition.number(),
            error = %crate::lifecycle::chain(&refusal),
            "Postgres refuses a batch of partition {partition}; looking for the event"
        );
        lease
            .transaction(deadline, async |conn| {
                if !take(conn, partition, position).await? {
                    return Ok(None);
                }
                let written = poison::write(conn, partition, batch, now).await?;
                finish(conn, partition, batch, &written.buried).await?;
                let (events, tombstones) = (batch.events().len(), written.tombstones);
                let quarantined = written.buried.len() as u64;
                Ok(Some(Written { events, tombstones, quarantined }))
            })
            .await
    }

    fn failed(&self, source: store::Error) -> Error {
        Error::Store { partition: self.tail.partition(), source }
    }

    fn count(&self, written: &Written, took: Duration) {
        let events = u32::try_from(written.events).unwrap_or(u32::MAX);
        self.metrics.rows.increment(u64::from(events));
        self.metrics.tombstones.increment(written.tombstones);
        self.metrics.quarantined_events.increment(written.quarantined);
        self.metrics.batch_events.record(f64::from(events));
        self.metrics.batch_duration.record(took.as_secs_f64());
    }
}

/// What a batch did.
struct Written {
    events: usize,
    tombstones: u64,
    quarantined: u64,
}

/// Takes the partition for this transaction; not, when another node has it or moved its checkpoint.
async fn take(
    conn: &mut PgConnection,
    partition: Partition,
    position: u64,
) -> Result<bool, store::Error> {
    let checkpoint = checkpoints::lock(conn, partition).await?;
    Ok(checkpoint.is_some_and(|checkpoint| checkpoint.position == position))
}

/// Writes the heads and what became of deliveries, and moves the checkpoint, in the transaction that wrote the events.
async fn finish(
    conn: &mut PgConnection,
    partition: Partition,
    batch: &Batch,
    buried: &BTreeSet<(ConversationId, u64)>,
) -> Result<(), store::Error> {
    let events = batch.events();
    let mut heads = conversations::fold(&events);
    // An opening that Postgres refuses as a message it refuses as a conversation too.
    for head in heads.iter_mut().filter(|head| buried.contains(&(head.conversation, 1))) {
        head.opening = None;
    }
    conversations::upsert_batch(conn, partition, &heads).await?;
    let outcomes = batch.outcomes();
    deliveries::upsert_batch(conn, partition, &outcomes).await?;
    attempts::insert_batch(conn, partition, &outcomes).await?;
    checkpoints::advance(conn, partition, batch.last_position()).await
}
