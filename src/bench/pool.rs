//! `bench pool`: more requests than a pool of connections can serve, for Forebay's pool and for what else one could take.
//! Promises fixed arrival times whatever the answers do, and that every request that was due is counted exactly once.
//! Does not start Postgres; it is given a running one that nobody else uses.

mod arrivals;
mod bag;
mod contestant;
mod table;
mod witness;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinSet;

use super::Error;
use super::machine::Machine;
use crate::clock::Clock;
use crate::load::Narrator;
use crate::load::tally::{millis, precise, rate};
use crate::sandbox::PgBouncer;
use arrivals::{Found, Schedule};
use contestant::Contestant;
pub use table::of_pool;
use witness::Witness;

/// Where everything is.
#[derive(Debug)]
pub struct Places {
    /// The database that is asked; nobody else may use it meanwhile.
    pub database_url: String,
    /// Its name.
    pub database: String,
    /// Another database of the same server, from which the first one is watched.
    pub monitor_url: String,
    /// The rivals, if they are measured too.
    pub rivals: Option<Rivals>,
    /// A directory of the machine that is described.
    pub data_dir: PathBuf,
}

/// What Forebay's pool is compared with, beside a plain pool of sqlx.
#[derive(Debug)]
pub struct Rivals {
    /// A `PgBouncer` in transaction mode. It is stopped when it has been measured.
    pub pgbouncer: PgBouncer,
    /// The address of the database through it.
    pub url: String,
    /// Connections that clients have to it, each with one request under way.
    pub clients: usize,
    /// How long it lets a request wait.
    pub query_wait: Duration,
}

/// How to measure.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Options {
    /// Requests a second, at fixed times.
    pub per_second: f64,
    /// For how long.
    pub length: Duration,
    /// Connections of each pool.
    pub connections: u16,
    /// How long Postgres sleeps for each request.
    pub service: Duration,
    /// How long a client waits for its answer.
    pub deadline: Duration,
    /// Tenants that the requests come from, in turns.
    pub tenants: u16,
}

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Who {
    /// Forebay's pool.
    Forebay,
    /// A pool of sqlx.
    Sqlx,
    /// `PgBouncer`.
    PgBouncer,
}

impl Who {
    /// How a table names it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Forebay => "forebay",
            Self::Sqlx => "sqlx::PgPool",
            Self::PgBouncer => "PgBouncer, transaction mode",
        }
    }
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// On what.
    pub machine: Machine,
    /// How.
    pub options: Options,
    /// Clients of `PgBouncer` and how long it lets them wait, if it was measured.
    pub pgbouncer: Option<(usize, Duration)>,
    /// What the connections can serve at most.
    pub capacity: Capacity,
    /// The figures of each.
    pub measured: Vec<Figures>,
}

/// What so many connections can serve at most on this server.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// What one request takes that meets no other, mean.
    pub service_ms: f64,
    /// Requests of which that is the mean, one after the other over one connection.
    pub requests: u32,
    /// The connections divided by that.
    pub per_second: f64,
}

/// What came of the requests to one pool. `sent = ok + late + refused + errors + shed`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Figures {
    /// Of whom.
    pub who: Who,
    /// Requests that were due.
    pub sent: u64,
    /// The right answer came within the deadline.
    pub ok: u64,
    /// No answer came within the deadline, or it was the client that gave up then.
    pub late: u64,
    /// The client was told within the deadline that it will get no answer.
    pub refused: u64,
    /// Anything else: a wrong answer, a broken connection.
    pub errors: u64,
    /// Requests that were due but not made, because too many were under way.
    pub shed: u64,
    /// What was refused or failed, and how often.
    pub reasons: std::collections::BTreeMap<String, u64>,
    /// Right answers within the deadline, of the capacity.
    pub goodput_percent: f64,
    /// Half of the right answers took at most this long from the moment at which the request was due.
    pub p50_ms: f64,
    /// 99 of 100 did.
    pub p99_ms: f64,
    /// Sessions that Postgres has opened for it, those of the warm-up included.
    pub sessions_opened: i64,
    /// Most backends that were seen at once.
    pub backends_peak: i64,
    /// The furthest that the load was behind its times.
    pub behind_ms: f64,
}

/// How often the backends are counted.
const LOOK: Duration = Duration::from_millis(50);

/// How often the moving line is renewed.
const TELL_EVERY: u32 = 10;

/// Measures Forebay's pool and, if they are there, its rivals, one after the other.
///
/// # Errors
/// When Postgres refuses something that no contestant has asked for.
pub async fn run(
    places: Places,
    options: Options,
    narrator: &Narrator,
    clock: &Clock,
) -> Result<Report, Error> {
    let mut witness = Witness::connect(&places.monitor_url, &places.database).await?;
    narrator.moment("measuring what one request takes");
    let capacity = witness::capacity(&places.database_url, &options, clock).await?;
    let mut report = Report {
        machine: Machine::look(&places.data_dir, clock).await?,
        pgbouncer: places.rivals.as_ref().map(|rivals| (rivals.clients, rivals.query_wait)),
        options: options.clone(),
        capacity,
        measured: Vec::new(),
    };
    let mut contest = Contest { witness: &mut witness, report: &mut report, narrator, clock };
    let url = &places.database_url;
    contest.take(async { Contestant::forebay(url, &options, clock) }).await?;
    if let Some(rivals) = places.rivals {
        contest.take(async { Contestant::sqlx(url, &options) }).await?;
        contest.take(Contestant::pgbouncer(rivals, &options)).await?;
    }
    Ok(report)
}

/// A comparison under way.
struct Contest<'a> {
    witness: &'a mut Witness,
    report: &'a mut Report,
    narrator: &'a Narrator,
    clock: &'a Clock,
}

impl Contest<'_> {
    /// Opens a contestant, measures it and closes it.
    async fn take(
        &mut self,
        opening: impl Future<Output = Result<Contestant, Error>>,
    ) -> Result<(), Error> {
        // Before it is opened: PgBouncer connects when its first client comes.
        let before = self.witness.sessions_when_quiet(self.clock).await?;
        let contestant = Arc::new(opening.await?);
        let who = contestant.who();
        let options = &self.report.options;
        contestant.warm(options, self.clock).await?;
        let schedule = Schedule::of(options);
        let ended = Arc::new(AtomicU64::new(0));
        let mut driving = JoinSet::new();
        let (asked, clock) = (Arc::clone(&contestant), self.clock.clone());
        driving.spawn(arrivals::drive(asked, schedule, Arc::clone(&ended), clock));
        let mut peak = 0;
        let found = 'driven: loop {
            for _ in 0..TELL_EVERY {
                tokio::select! {
                    found = driving.join_next() => break 'driven found,
                    () = tokio::time::sleep(LOOK) => peak = peak.max(self.witness.backends().await?),
                }
            }
            let (ended, sent) = (ended.load(Ordering::Relaxed), schedule.requests);
            self.narrator.moment(&format!("{}: {ended} of {sent} requests", who.label()));
        };
        let Some(Ok(found)) = found else {
            return Err(Error::Panicked);
        };
        let contestant = Arc::into_inner(contestant).ok_or(Error::Panicked)?;
        contestant.close().await?;
        let after = self.witness.sessions_when_quiet(self.clock).await?;
        let figures = self.figures(who, &found, (after - before, peak));
        self.narrator.line(&table::line_of(&figures));
        self.report.measured.push(figures);
        Ok(())
    }

    fn figures(&self, who: Who, found: &Found, (sessions, backends): (i64, i64)) -> Figures {
        let capacity = self.report.capacity.per_second;
        let goodput = rate(found.ok, found.span.max(self.report.options.length));
        Figures {
            who,
            sent: found.sent,
            ok: found.ok,
            late: found.late,
            refused: found.refused,
            errors: found.errors,
            shed: found.shed,
            reasons: found.tally.refused.clone(),
            goodput_percent: 100.0 * goodput / capacity.max(f64::MIN_POSITIVE),
            p50_ms: millis(found.tally.quantile(0.5)),
            p99_ms: millis(found.tally.quantile(0.99)),
            sessions_opened: sessions,
            backends_peak: backends,
            behind_ms: millis(found.behind),
        }
    }
}

impl Capacity {
    fn of(requests: u32, took: Duration, connections: u16) -> Self {
        let service = took.as_secs_f64() / precise(u64::from(requests.max(1)));
        Self {
            service_ms: service * 1_000.0,
            requests,
            per_second: f64::from(connections) / service.max(f64::MIN_POSITIVE),
        }
    }
}
