//! `bench growth`: sends to 1, 10 and 100 times as many conversations, pages of 1 and 10 times as long a history.
//! Promises the same load at every size, so that what differs is what the size costs.
//! Does not fill logs; it is told that more is there.

use std::time::Duration;

use serde::Serialize;

use super::{Age, Options, Reading, Target, Who};
use crate::bench::machine::{Cost, Machine};
use crate::bench::report::{
    cost_of_thousand, grouped, machine_line, megabytes, plain, plain_table,
};
use crate::bench::{Error, first_run};
use crate::load::{Narrator, Pace, Round};

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// On what.
    pub machine: Machine,
    /// Sends a second of the paced rounds.
    pub per_second: f64,
    /// Connections that send.
    pub writers: u16,
    /// Connections that read.
    pub readers: u16,
    /// Sends, by number of conversations.
    pub sends: Vec<Size>,
    /// Old pages, by events of history.
    pub reads: Vec<Size>,
}

/// One size.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Size {
    /// Conversations, or events of history.
    pub count: u64,
    /// The load: paced for sends, as fast as it goes for pages.
    pub round: Round,
    /// What it cost.
    pub cost: Cost,
    /// The closed loop of sends, as fast as it goes; nothing for pages.
    pub fastest: Option<Round>,
}

/// What one size is measured with.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Sends a second of the paced round.
    pub per_second: f64,
    /// How to read and write.
    pub options: Options,
}

impl Plan {
    /// Sends to the target's recent conversations, paced and as fast as it goes.
    ///
    /// # Errors
    /// When the server is not reached.
    pub async fn send(&self, target: &Target, narrator: &Narrator) -> Result<Size, Error> {
        let count = u64::try_from(target.recent.len()).unwrap_or(u64::MAX);
        let run = first_run(&target.place.clock);
        let mut reading = Reading { target, options: &self.options, narrator, run };
        let (round, cost) = reading.write(Pace::PerSecond(self.per_second)).await?;
        target.place.level().await?;
        let (fastest, _) = reading.write(Pace::AnswerByAnswer).await?;
        target.place.level().await?;
        narrator.line(&format!(
            "{} conversations: p99 {} ms at {}/s, at most {}/s",
            grouped(count),
            plain(round.p99_ms),
            plain(self.per_second),
            plain(fastest.per_second)
        ));
        Ok(Size { count, round, cost, fastest: Some(fastest) })
    }

    /// Reads old pages, of a history of so many events.
    ///
    /// # Errors
    /// When the server is not reached.
    pub async fn read(
        &self,
        target: &Target,
        events: u64,
        narrator: &Narrator,
    ) -> Result<Size, Error> {
        let run = first_run(&target.place.clock);
        let mut reading = Reading { target, options: &self.options, narrator, run };
        let found = reading.round(Age::Old, Who::Forebay, None).await?;
        let speed = plain(found.pages.per_second);
        narrator.line(&format!("{} events: {speed} old pages/s", grouped(events)));
        Ok(Size { count: events, round: found.pages, cost: found.cost, fastest: None })
    }
}

impl Report {
    /// A report without figures.
    ///
    /// # Errors
    /// When the machine cannot be looked at.
    pub async fn begin(
        plan: &Plan,
        data_dir: &std::path::Path,
        target: &Target,
    ) -> Result<Self, Error> {
        Ok(Self {
            machine: Machine::look(data_dir, &target.place.clock).await?,
            per_second: plan.per_second,
            writers: plan.options.writers,
            readers: plan.options.readers,
            sends: Vec::new(),
            reads: Vec::new(),
        })
    }
}

/// The whole report, in Markdown that also reads well on a terminal.
pub fn of_growth(report: &Report) -> String {
    let mut sends = plain_table(&[
        "conversations",
        "p50 ms",
        "p99 ms",
        "errors",
        "CPU ms / 1 000 sends: server, nats, postgres",
        "server MB at most",
        "at most, acks/s",
        "p99 ms then",
    ]);
    for size in &report.sends {
        let fastest = |of: fn(&Round) -> f64| {
            size.fastest.as_ref().map_or_else(String::new, |round| plain(of(round)))
        };
        sends.add_row([
            grouped(size.count),
            plain(size.round.p50_ms),
            plain(size.round.p99_ms),
            grouped(size.round.errors()),
            cost_of_thousand(&size.cost),
            megabytes(&size.cost),
            fastest(|round| round.per_second),
            fastest(|round| round.p99_ms),
        ]);
    }
    let mut reads = plain_table(&[
        "events of history",
        "old pages/s",
        "p50 ms",
        "p99 ms",
        "errors",
        "CPU ms / 1 000 pages: server, nats, postgres",
    ]);
    for size in &report.reads {
        reads.add_row([
            grouped(size.count),
            plain(size.round.per_second),
            plain(size.round.p50_ms),
            plain(size.round.p99_ms),
            grouped(size.round.errors()),
            cost_of_thousand(&size.cost),
        ]);
    }
    format!(
        "{}\n\n{}/s over {} connections, and as fast as it goes\n{sends}\n\n{} readers\n{reads}",
        machine_line(&report.machine),
        plain(report.per_second),
        report.writers,
        report.readers,
    )
}

/// How long a filled conversation rests before it is measured: the follower has folded it then.
pub const REST: Duration = Duration::from_millis(500);
