//! `bench read`: pages of recent and of old history, alone and beside writes; `bench growth`: what more of both costs.
//! Promises that recent pages are those that the node has in memory, and that old ones are older than that.
//! Does not start servers or fill logs; it is given a running server and what it holds.

pub mod growth;
mod pages;
mod table;

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::backlog::Place;
use super::machine::{Cost, Machine, Meter};
use super::report::line_of_round;
use super::{Error, first_run};
use crate::event::ConversationId;
use crate::load::{self, Amount, Keys, Narrator, OnOverload, OnRefusal, Pace, Round, SHED, Watch};
use pages::Pages;

pub use growth::of_growth;
pub use table::of_read;

/// A running server and what it holds.
#[derive(Clone, Debug)]
pub struct Target {
    /// `http://host:port`.
    pub url: String,
    /// A key of the tenant.
    pub api_key: String,
    /// The log and the tables.
    pub place: Place,
    /// Conversations whose newest messages the server has in memory; these are also written to.
    pub recent: Vec<ConversationId>,
    /// Conversations whose oldest messages it has not.
    pub old: Vec<ConversationId>,
}

/// How to measure.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Options {
    /// Connections that read; each asks for a page as soon as it has one.
    pub readers: u16,
    /// Connections that write.
    pub writers: u16,
    /// Messages of a page.
    pub limit: u16,
    /// Seqs after which an old page may begin: it is drawn from 0 to this.
    pub old_seqs: u64,
    /// Connections of the reference to Postgres: as many as Forebay's pool of requests has.
    pub connections: u32,
    /// Rounds of each.
    pub rounds: usize,
    /// Length of a round.
    pub round: Duration,
    /// What is read before it is measured.
    pub warmup: Duration,
    /// Bytes of what is written.
    pub body_bytes: usize,
}

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Age {
    /// The newest messages of a conversation.
    Recent,
    /// Messages that memory has let go of.
    Old,
}

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Who {
    /// Forebay over HTTP.
    Forebay,
    /// Postgres, with the statement that Forebay uses.
    Select,
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// On what.
    pub machine: Machine,
    /// How.
    pub options: Options,
    /// Sends a second at most, over the connections that write, while nothing is read.
    pub write_maximum: f64,
    /// Sends a second while pages are read beside them: half of that.
    pub write_rate: f64,
    /// The figures.
    pub measured: Vec<Measured>,
}

/// One kind of page, of one origin, alone or beside writes.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Measured {
    /// What was read.
    pub age: Age,
    /// Who was asked.
    pub who: Who,
    /// Whether there were writes meanwhile.
    pub beside_writes: bool,
    /// The rounds.
    pub rounds: Vec<Round>,
    /// What each cost, writes included.
    pub costs: Vec<Cost>,
    /// The writes meanwhile.
    pub writes: Vec<Round>,
}

/// Measures.
///
/// # Errors
/// When the server or Postgres cannot be reached, or nothing is read.
pub async fn run(
    target: &Target,
    options: Options,
    data_dir: &std::path::Path,
    narrator: &Narrator,
) -> Result<Report, Error> {
    let clock = &target.place.clock;
    let mut reading = Reading { target, options: &options, narrator, run: first_run(clock) };
    let (maximum, _) = reading.write(Pace::AnswerByAnswer).await?;
    narrator.line(&line_of_round("writing alone", options.writers, 1, &maximum));
    target.place.level().await?;
    let write_rate = maximum.per_second / 2.0;
    let mut measured = Vec::new();
    for beside_writes in [false, true] {
        for age in [Age::Recent, Age::Old] {
            for who in [Who::Forebay, Who::Select] {
                let (rounds, costs, writes) = Default::default();
                measured.push(Measured { age, who, beside_writes, rounds, costs, writes });
            }
        }
    }
    for nth in 1..=options.rounds {
        for measured in &mut measured {
            let writes = measured.beside_writes.then_some(write_rate);
            let found = reading.round(measured.age, measured.who, writes).await?;
            let label = table::label(measured);
            narrator.line(&line_of_round(&label, options.readers, nth, &found.pages));
            if found.pages.acknowledged == 0 {
                let reasons = found.pages.refused;
                return Err(Error::NothingAcknowledged { what: "a page", reasons });
            }
            measured.rounds.push(found.pages);
            measured.costs.push(found.cost);
            measured.writes.extend(found.writes);
        }
    }
    let machine = Machine::look(data_dir, clock).await?;
    Ok(Report { machine, write_maximum: maximum.per_second, write_rate, options, measured })
}

/// A measurement under way.
pub(super) struct Reading<'a> {
    target: &'a Target,
    options: &'a Options,
    narrator: &'a Narrator,
    run: u32,
}

/// One round.
pub(super) struct Found {
    pages: Round,
    cost: Cost,
    writes: Option<Round>,
}

impl Reading<'_> {
    /// Reads for a round, beside so many writes a second if there are to be any.
    async fn round(&mut self, age: Age, who: Who, writes: Option<f64>) -> Result<Found, Error> {
        self.narrator.moment(&format!("pages: {age:?}, {who:?}, writes {writes:?}"));
        let pages = Pages::open(self.target, self.options, age, who).await?;
        let meter = Meter::start(self.target.place.pids);
        let (outcome, writes) = match writes {
            None => (pages.read().await, None),
            Some(per_second) => {
                let reading = pages.read();
                let writing = self.write(Pace::PerSecond(per_second));
                let (outcome, written) = tokio::join!(reading, writing);
                (outcome, Some(written?.0))
            }
        };
        let tally = outcome.total();
        let round = Round::of(&tally, self.options.round, outcome.unfinished);
        // Pages of the warm-up cost as well: by the length of both.
        let whole = (self.options.round + self.options.warmup).as_secs_f64();
        let share = whole / self.options.round.as_secs_f64().max(0.001);
        let read = load::tally::precise(round.acknowledged) * share;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
        let cost = meter.cost(read as u64);
        if writes.is_some() {
            self.target.place.level().await?;
        }
        Ok(Found { pages: round, cost, writes })
    }

    /// Writes for a round; also says what it cost.
    async fn write(&mut self, pace: Pace) -> Result<(Round, Cost), Error> {
        self.run = self.run.wrapping_add(1);
        let plan = load::Plan {
            url: self.target.url.clone(),
            api_key: self.target.api_key.clone(),
            conversations: self.target.recent.clone(),
            connections: self.options.writers,
            amount: Amount::For(self.options.round),
            warmup: self.options.warmup,
            body_bytes: self.options.body_bytes,
            keys: Keys::Given,
            pace,
            on_refusal: OnRefusal::GoOn,
            on_overload: OnOverload::PressOn,
            run: self.run,
        };
        let meter = Meter::start(self.target.place.pids);
        let watch = Arc::new(Watch::default());
        let outcome = load::run(plan, watch, self.target.place.clock.clone()).await?;
        let cost = meter.cost(u64::try_from(outcome.ledger.len()).unwrap_or(u64::MAX));
        debug_assert!(!outcome.phases[0].refused.contains_key(SHED), "no pace of these sheds");
        Ok((Round::of(&outcome.phases[0], outcome.span, outcome.unfinished), cost))
    }
}
