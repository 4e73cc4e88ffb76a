//! Looks at log, database and memory once a second, and writes what it sees on the board and into the gauges.
//! Promises that probes and metrics read what was seen lately, and never wait for anything themselves.
//! Does not take a connection from a pool: a pool that is under pressure would look like a database that is away.

mod sight;

use std::time::{Duration, Instant};

use self::sight::Sight;
use tokio::time::interval;
use tracing::{info, warn};

use crate::clock::Clock;
use crate::journal::Journal;
use crate::journal::tail::STALL_MAX;
use crate::lifecycle::Stop;
use crate::log::Log;
use crate::metrics::Metrics;
use crate::readiness::pressure::{Decision, Pressure};
use crate::readiness::{Board, Check, Lag, View, verdict};
use crate::store::{self, Background, Interactive, PgConnection, checkpoints, pool, schema};

/// How often it looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// Deadline of one look at the database.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// What can go wrong: nothing; what fails is seen as failing.
#[derive(Debug, thiserror::Error)]
#[error("never")]
pub enum Never {}

/// Looks and writes down.
#[derive(Clone, Debug)]
pub struct Watch {
    /// The log.
    pub log: Log,
    /// What is known of it.
    pub journal: Journal,
    /// The log's incarnation; checkpoints of another one say nothing.
    pub epoch: String,
    /// The pools, to be counted.
    pub pools: (Interactive, Background),
    /// The mean wait for a connection at which the server is not ready; zero for never.
    pub wait_limit: Duration,
    /// Where it is written for the probes.
    pub board: Board,
    /// Where it is written for the metrics.
    pub metrics: Metrics,
    /// Where time comes from.
    pub clock: Clock,
}

impl Watch {
    /// Looks until it is stopped.
    ///
    /// # Errors
    /// Never.
    pub async fn run(self, stop: Stop) -> Result<(), Never> {
        let mut pressure = Pressure::new(self.wait_limit);
        let mut was_ready = [None; 2];
        let mut tick = interval(INTERVAL);
        let looking = async {
            while !stop.is_requested() {
                tick.tick().await;
                self.look_at_log();
                self.look_at_memory();
                self.look_at_pool(&mut pressure);
                self.tell_of_readiness(&mut was_ready);
            }
        };
        // Apart, because it waits for Postgres, and the others are to see in time what that does.
        let asking = async {
            let mut own = None;
            while !stop.is_requested() {
                own = self.look_at_database(own).await;
                tokio::time::sleep(INTERVAL).await;
            }
        };
        tokio::select! {
            () = stop.requested() => {}
            () = async { tokio::join!(looking, asking); } => {}
        }
        Ok(())
    }

    fn look_at_log(&self) {
        let now = self.clock.now();
        let is_stalled = self.journal.tails().iter().any(|t| t.stalled_for(now) > STALL_MAX);
        if !self.log.is_connected() {
            self.board.fail(Check::Log, "not connected to the log", now);
        } else if is_stalled {
            self.board.fail(Check::Log, "the log does not acknowledge", now);
        } else {
            self.board.pass(Check::Log, now);
        }
    }

    fn look_at_memory(&self) {
        for (tail, gauges) in self.journal.tails().iter().zip(&self.metrics.journal) {
            let (heads, keys, bytes) = tail.sizes();
            let (requests, queued) = tail.queue();
            gauges.tail_bytes.set(float(bytes));
            gauges.tail_heads.set(float(heads));
            gauges.tail_keys.set(float(keys));
            gauges.queue_requests.set(float(requests));
            gauges.queue_bytes.set(float(queued));
        }
        Sight::of(&self.pools.0.status()).note(&self.metrics.interactive);
        // One pool for both kinds of work is shown once.
        if !self.pools.1.is(&self.pools.0) {
            Sight::of(&self.pools.1.status()).note(&self.metrics.background);
        }
        self.note_lag();
    }

    /// How far Postgres is behind: for the metrics by partition, for the board over all of them.
    fn note_lag(&self) {
        let now = self.clock.timestamp();
        let mut lag = Lag::default();
        for (tail, gauges) in self.journal.tails().iter().zip(&self.metrics.projection) {
            let lacking = tail.unprojected();
            let age = lacking.oldest.map_or(Duration::ZERO, |at| now.since(at));
            gauges.lag_events.set(float(usize::try_from(lacking.events).unwrap_or(usize::MAX)));
            gauges.lag_age.set(age.as_secs_f64());
            lag.events += lacking.events;
            lag.oldest = lag.oldest.max(age);
        }
        self.board.note_lag(lag);
    }

    /// How long requests wait. What was measured is read; nobody waits for a connection to find out.
    fn look_at_pool(&self, pressure: &mut Pressure) {
        let (now, wait) = (self.clock.now(), wait_of(&self.pools.0.status()));
        self.board.note_wait(wait);
        match pressure.on_look(wait) {
            Decision::Bear => self.board.pass(Check::Pool, now),
            Decision::Degrade => {
                self.board.fail(Check::Pool, "requests wait too long for a connection", now);
            }
        }
    }

    /// A line when a view turns: what load balancers do then is to be understood afterwards.
    fn tell_of_readiness(&self, was: &mut [Option<bool>; 2]) {
        let states = self.board.snapshot().states;
        let views = [(View::All, "all traffic"), (View::Reads, "reads")];
        for ((view, name), was) in views.into_iter().zip(was) {
            let report = verdict::judge(&states, view, &[]);
            let failing = |line: &&verdict::Line| line.decides && line.state.failure.is_some();
            match (*was, report.ready) {
                // A start is no news.
                (None, false) => continue,
                (None, true) => info!("ready for {name}"),
                (Some(false), true) => warn!("ready for {name} again"),
                (Some(true), false) => {
                    let line = report.lines.iter().find(failing);
                    let why = line.and_then(|line| line.state.failure).unwrap_or_default();
                    let check = line.map(|line| line.check.name());
                    warn!(check, "not ready for {name}: {why}");
                }
                (Some(true), true) | (Some(false), false) => {}
            }
            *was = Some(report.ready);
        }
    }

    async fn look_at_database(&self, own: Option<Own>) -> Option<Own> {
        let now = self.clock.now();
        let Some((conn, pending)) = self.ask(own, now + LOOK_MAX).await else {
            self.board.fail(Check::Database, "Postgres does not answer", self.clock.now());
            return None;
        };
        self.board.pass(Check::Database, now);
        if pending == 0 {
            self.board.pass(Check::Migrations, now);
        } else {
            self.board.fail(Check::Migrations, "migrations are not applied", now);
        }
        Some(conn)
    }

    /// How many migrations are pending, on a connection that is kept as long as it works.
    async fn ask(&self, own: Option<Own>, deadline: Instant) -> Option<(Own, usize)> {
        let (choice, database) = self.pools.1.database();
        let mut conn = match own {
            Some(own) if own.choice == choice => own.conn,
            Some(_) | None => database.connect("watch", LOOK_MAX, deadline).await.ok()?,
        };
        let asking = database.perform(&mut conn, async |conn| {
            let pending = schema::pending(conn).await?;
            // A node that projects nothing would not hear of the others' checkpoints otherwise.
            let found = if pending == 0 { checkpoints::read_all(conn).await? } else { vec![] };
            Ok::<_, store::Error>((pending, found))
        });
        let (pending, found) = tokio::time::timeout_at(deadline.into(), asking).await.ok()?.ok()?;
        for checkpoint in found.iter().filter(|found| found.epoch == self.epoch) {
            let tails = self.journal.tails().iter();
            let of_this = tails.filter(|t| t.partition().number() == checkpoint.partition);
            of_this.for_each(|tail| tail.note_checkpoint(checkpoint.position));
        }
        Some((Own { choice, conn }, pending))
    }
}

/// The watch's own connection, and for which choice of the database it was made.
struct Own {
    choice: u64,
    conn: PgConnection,
}

/// The mean wait for a connection of the pool.
fn wait_of(status: &pool::Status) -> Duration {
    status.gate.wait
}

#[expect(clippy::cast_precision_loss, reason = "a gauge of counts and bytes, exact up to 2^53")]
fn float(count: usize) -> f64 {
    count as f64
}
