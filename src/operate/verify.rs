//! Compares Postgres with the log: every event, every head, every conversation's seqs, every attempt of a delivery.
//! Promises to name differences, up to a bound, and to compare only what both are supposed to have.
//! Does not repair; a rebuild does.

use std::time::{Duration, Instant};

use tracing::warn;

use crate::admission::{Origin, Priority, Source, Tag};
use crate::clock::Clock;
use crate::event::{Event, Outcome, Partition, Partitions, Record};
use crate::log::{self, Log};
use crate::store::{self, Background, attempts, checkpoints, conversations, verify};

/// Nobody waits for a comparison.
const PAST: Tag = Origin::system(Source::Operator).at(Priority::Low);

/// Events that are compared with one statement.
const BATCH_EVENTS: usize = 2_000;

/// Most differences that are named; what is beyond is counted.
pub const DIFFERENCES_MAX: usize = 100;

/// Deadline of one statement. Looking for gaps reads a whole index.
const STATEMENT_MAX: Duration = Duration::from_mins(10);

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log failed.
    #[error("reading the log")]
    Log(#[from] log::Error),
    /// Postgres failed.
    #[error("reading Postgres")]
    Store(#[from] store::Error),
    /// The rows belong to another log.
    #[error("Postgres has projected log {stored}, this is log {current}")]
    OtherLog {
        /// The epoch in the checkpoint.
        stored: String,
        /// The log's epoch.
        current: String,
    },
}

/// What was compared and what was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Events of the log that were compared.
    pub events: u64,
    /// Attempts of deliveries that were compared.
    pub attempts: u64,
    /// Records of the log that Postgres does not have yet; not a difference.
    pub records_ahead: u64,
    /// Differences, one line each, [`DIFFERENCES_MAX`] at most.
    pub differences: Vec<String>,
    /// Differences beyond those.
    pub further: u64,
}

impl Findings {
    /// Whether nothing is different.
    pub fn is_clean(&self) -> bool {
        self.differences.is_empty()
    }

    fn add(&mut self, line: String) {
        if self.differences.len() < DIFFERENCES_MAX {
            self.differences.push(line);
        } else {
            self.further += 1;
        }
    }
}

/// What is compared.
#[derive(Clone, Debug)]
pub struct Verifier {
    /// The log.
    pub log: Log,
    /// Its partitions.
    pub partitions: Partitions,
    /// Its incarnation.
    pub epoch: String,
    /// The pool of background work.
    pub database: Background,
    /// Where time comes from.
    pub clock: Clock,
}

impl Verifier {
    /// Compares everything up to the checkpoints. `progress` hears of the events compared so far.
    ///
    /// # Errors
    /// [`Error`] when one of the two cannot be read.
    pub async fn run(&self, progress: &(dyn Fn(u64) + Send + Sync)) -> Result<Findings, Error> {
        let mut findings = Findings::default();
        let mut lease = self.database.acquire(PAST, self.deadline()).await?;
        let all =
            lease.run(self.deadline(), async |conn| checkpoints::read_all(conn).await).await?;
        // Nothing of Postgres is held while the log is asked.
        drop(lease);
        if let Some(other) = all.iter().find(|checkpoint| checkpoint.epoch != self.epoch) {
            let (stored, current) = (other.epoch.clone(), self.epoch.clone());
            return Err(Error::OtherLog { stored, current });
        }
        for partition in self.partitions.all() {
            let of_this = all.iter().find(|row| row.partition == partition.number());
            let position = of_this.map_or(0, |row| row.position);
            self.compare(partition, position, (&mut findings, progress)).await?;
        }
        self.look_for_gaps(&mut findings).await?;
        Ok(findings)
    }

    async fn compare(
        &self,
        partition: Partition,
        checkpoint: u64,
        (findings, progress): (&mut Findings, &(dyn Fn(u64) + Send + Sync)),
    ) -> Result<(), Error> {
        let bounds = self.log.bounds(partition).await?;
        if checkpoint > bounds.last {
            findings.add(format!(
                "partition {partition}: Postgres is written up to position {checkpoint}, the log ends at {}",
                bounds.last
            ));
        }
        findings.records_ahead += bounds.last.saturating_sub(checkpoint);
        let end = checkpoint.min(bounds.last);
        let mut follow = self.log.follow(partition, bounds.first.max(1) - 1);
        let (mut events, mut outcomes): (Vec<(u64, Event)>, Vec<Outcome>) = Default::default();
        while follow.position() < end {
            let (position, bytes) = follow.next_known().await?;
            match Record::decode(&bytes) {
                Ok(record) => {
                    events.extend(record.events.into_iter().map(|event| (position, event)));
                    outcomes.extend(record.outcomes);
                }
                Err(error) => {
                    warn!(position, "position {position} of partition {partition}: {error}");
                    findings.add(format!("partition {partition}: position {position}: {error}"));
                }
            }
            if events.len() + outcomes.len() >= BATCH_EVENTS || follow.position() >= end {
                self.compare_batch(partition, &events, findings).await?;
                self.compare_attempts(&outcomes, findings).await?;
                findings.events += events.len() as u64;
                findings.attempts += outcomes.len() as u64;
                progress(findings.events);
                events.clear();
                outcomes.clear();
            }
        }
        Ok(())
    }

    async fn compare_batch(
        &self,
        partition: Partition,
        events: &[(u64, Event)],
        findings: &mut Findings,
    ) -> Result<(), Error> {
        let borrowed: Vec<_> = events.iter().map(|(position, event)| (*position, event)).collect();
        let mut lease = self.database.acquire(PAST, self.deadline()).await?;
        let differences = lease
            .run(self.deadline(), async |conn| {
                let mut found = verify::compare(conn, partition, &borrowed).await?;
                let heads = conversations::fold(&borrowed);
                found.extend(verify::compare_heads(conn, partition, &heads).await?);
                Ok(found)
            })
            .await?;
        for verify::Difference { conversation, seq, what } in differences {
            let what = match what {
                verify::What::Missing => "is missing".to_owned(),
                verify::What::Columns(columns) => format!("differs in {}", columns.join(", ")),
            };
            findings.add(format!("{conversation} seq {seq} {what}"));
        }
        Ok(())
    }

    async fn compare_attempts(
        &self,
        outcomes: &[Outcome],
        findings: &mut Findings,
    ) -> Result<(), Error> {
        if outcomes.is_empty() {
            return Ok(());
        }
        let borrowed: Vec<_> = outcomes.iter().collect();
        let mut lease = self.database.acquire(PAST, self.deadline()).await?;
        let found = lease
            .run(self.deadline(), async |conn| attempts::differing(conn, &borrowed).await)
            .await?;
        for (delivery, attempt) in found {
            findings.add(format!("attempt {attempt} of {delivery} is missing or differs"));
        }
        Ok(())
    }

    async fn look_for_gaps(&self, findings: &mut Findings) -> Result<(), Error> {
        let mut lease = self.database.acquire(PAST, self.deadline()).await?;
        let gaps = lease
            .run(self.deadline(), async |conn| verify::gaps(conn, DIFFERENCES_MAX + 1).await)
            .await?;
        for gap in gaps {
            let head = gap.head_seq.map_or_else(|| "none".to_owned(), |seq| seq.to_string());
            findings.add(format!(
                "{} has {} rows up to seq {} and a head of {head}",
                gap.conversation, gap.rows, gap.seq_max
            ));
        }
        Ok(())
    }

    fn deadline(&self) -> Instant {
        self.clock.now() + STATEMENT_MAX
    }
}
