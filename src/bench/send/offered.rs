//! `bench load`: acknowledged sends and their latency against the load that is offered, up to far beyond the maximum.
//! Promises fixed arrival times whatever the answers do, and loads in per cent of each variant's own maximum in the same run.
//! Does not judge; the report sets each figure beside its aim.

use std::time::Duration;

use serde::Serialize;

use super::rounds::{Bench, Drive};
use super::{Hook, Hooks, Taken, Target, asked, prepare};
use crate::bench::Error;
use crate::bench::lineup::Variant;
use crate::bench::machine::Machine;
use crate::bench::report::line_of_round;
use crate::clock::Clock;
use crate::load::tally::precise;
use crate::load::{Audit, Narrator, Pace, Round};

/// How to measure.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Options {
    /// Connections; each has one send under way at most.
    pub connections: u16,
    /// Connections of the closed loops that find the maximum: as many as serve every variant well.
    pub maximum_connections: u16,
    /// What is offered, in per cent of the variant's own maximum.
    pub percents: Vec<u32>,
    /// Length of a step.
    pub round: Duration,
    /// What is offered before a step is measured.
    pub warmup: Duration,
    /// Bytes of a send's body.
    pub body_bytes: usize,
    /// Conversations that the sends go to.
    pub conversations: usize,
    /// How long a send waits for a free connection; then it is not made.
    pub patience: Duration,
    /// The quota of [`Way::WithQuota`], in per cent of Forebay's maximum.
    pub quota_percent: u32,
}

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Way {
    /// Forebay, its projector at work, without a quota.
    Forebay,
    /// The same with a send quota for the tenant, below the maximum.
    WithQuota,
    /// One `INSERT` a send.
    Direct,
    /// `INSERT`s gathered across sends.
    Gathered,
}

impl Way {
    /// In the order of the tables.
    pub const ALL: [Self; 4] = [Self::Forebay, Self::WithQuota, Self::Direct, Self::Gathered];

    /// How a table names it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Forebay => "forebay",
            Self::WithQuota => "forebay, quota",
            Self::Direct => "one INSERT a send",
            Self::Gathered => "INSERTs gathered",
        }
    }

    const fn variant(self) -> Variant {
        match self {
            Self::Forebay | Self::WithQuota => Variant::Forebay,
            Self::Direct => Variant::Direct,
            Self::Gathered => Variant::Gathered,
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
    /// The figures of each.
    pub ways: Vec<Measured>,
    /// The audit of Forebay's receipts.
    pub audit: Option<Audit>,
}

/// One variant at all loads.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Measured {
    /// Who.
    pub way: Way,
    /// How a table names it.
    pub label: &'static str,
    /// The quota, in messages a second, if there is one.
    pub quota: Option<u32>,
    /// Closed loops, before and after all steps: what is taken for the maximum is the first for
    /// the offers, and the mean of both for the judgement.
    pub maxima: Vec<f64>,
    /// The loads, in the order in which they were offered.
    pub steps: Vec<Step>,
}

impl Measured {
    /// The mean of the maxima.
    pub fn maximum(&self) -> f64 {
        let count = u64::try_from(self.maxima.len()).unwrap_or(1).max(1);
        self.maxima.iter().sum::<f64>() / precise(count)
    }
}

/// One load.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// Of the maximum.
    pub percent: u32,
    /// Sends that were due a second.
    pub offered_per_second: f64,
    /// What came of them.
    pub round: Round,
    /// What Forebay's processes took meanwhile; nothing for a reference.
    pub taken: Option<Taken>,
}

/// What only the owner of the server can do, beside the [`Hooks`] of `bench send`.
pub type Limit = Hook<Option<u32>, ()>;

/// How far the quota lets a tenant exceed it for a moment: a tenth of a second's worth.
pub const BURST_SHARE: u32 = 10;

/// Measures.
///
/// # Errors
/// As [`super::run`].
pub async fn run(
    target: &Target,
    options: Options,
    (hooks, limit): (&Hooks, &Limit),
    narrator: &Narrator,
    clock: &Clock,
) -> Result<Report, Error> {
    let of_send = super::Options {
        connections: vec![options.connections],
        rounds: 1,
        round: options.round,
        warmup: options.warmup,
        body_bytes: options.body_bytes,
        conversations: options.conversations,
        variants: Way::ALL.map(Way::variant).to_vec(),
    };
    let bench = prepare(target, of_send, hooks, narrator, clock).await?;
    let measured = |way: Way| Measured {
        way,
        label: way.label(),
        quota: None,
        maxima: Vec::new(),
        steps: Vec::new(),
    };
    let ways = Way::ALL.map(measured).to_vec();
    let mut ladder = Ladder { bench, options, limit, ways };
    let ended = ladder.climb().await;
    ladder.bench.remove_references().await?;
    ended?;
    let Ladder { bench, options, ways, .. } = ladder;
    let found = bench.finish().await?;
    Ok(Report { machine: found.machine, options, ways, audit: found.audit })
}

/// A measurement under way.
struct Ladder<'a> {
    bench: Bench<'a>,
    options: Options,
    limit: &'a Limit,
    ways: Vec<Measured>,
}

impl Ladder<'_> {
    async fn climb(&mut self) -> Result<(), Error> {
        // The first round of a process is slower than all others: caches are cold, connections are made.
        self.measure_maxima().await?;
        self.ways.iter_mut().for_each(|measured| measured.maxima.clear());
        self.measure_maxima().await?;
        for nth in 0..self.options.percents.len() {
            let percent = self.options.percents[nth];
            for place in 0..self.ways.len() {
                // Every step begins with another one, so that a drift of the machine meets all alike.
                self.step((place + nth) % self.ways.len(), percent).await?;
            }
        }
        self.measure_maxima().await
    }

    async fn measure_maxima(&mut self) -> Result<(), Error> {
        for place in 0..self.ways.len() {
            let way = self.ways[place].way;
            if way == Way::WithQuota {
                continue;
            }
            let connections = self.options.maximum_connections;
            let (round, _) = self.drive(way, connections, Pace::AnswerByAnswer).await?;
            let maximum = round.per_second;
            self.tell(way, ("the maximum", connections), &round);
            self.ways[place].maxima.push(maximum);
            if way == Way::Forebay {
                self.ways[place + 1].maxima.push(maximum);
            }
        }
        Ok(())
    }

    async fn step(&mut self, place: usize, percent: u32) -> Result<(), Error> {
        let Measured { way, ref maxima, .. } = self.ways[place];
        let maximum = maxima.first().copied().unwrap_or_default();
        let per_second = (maximum * f64::from(percent) / 100.0).max(1.0);
        if way == Way::WithQuota {
            let quota = whole(maximum * f64::from(self.options.quota_percent) / 100.0);
            self.ways[place].quota = Some(quota);
            self.limit(Some(quota)).await?;
        }
        let pace = Pace::Shared { per_second, patience: self.options.patience };
        let connections = self.options.connections;
        let driven = self.drive(way, connections, pace).await;
        if way == Way::WithQuota {
            self.limit(None).await?;
        }
        let (round, taken) = driven?;
        self.tell(way, (&format!("{percent} % = {per_second:.0}/s"), connections), &round);
        let step = Step { percent, offered_per_second: per_second, round, taken };
        self.ways[place].steps.push(step);
        Ok(())
    }

    async fn drive(
        &mut self,
        way: Way,
        connections: u16,
        pace: Pace,
    ) -> Result<(Round, Option<Taken>), Error> {
        self.bench.narrator.moment(&format!("{}, {pace:?}", way.label()));
        if let Some(url) = self.bench.emptied(way.variant()).await? {
            let (round, _) = self.bench.load(Drive { url, connections, pace }).await?;
            return Ok((round, None));
        }
        let url = self.bench.target.url.clone();
        let drive = Drive { url, connections, pace };
        let (round, taken) = self.bench.forebay_round(false, drive).await?;
        Ok((round, Some(taken)))
    }

    async fn limit(&self, quota: Option<u32>) -> Result<(), Error> {
        match self.limit {
            Some(limit) => asked("setting the tenant's quota", limit(quota)).await,
            None => Ok(()),
        }
    }

    fn tell(&self, way: Way, (what, connections): (&str, u16), round: &Round) {
        let label = format!("{} {what}", way.label());
        self.bench.narrator.line(&line_of_round(&label, connections, 1, round));
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate of sends")]
fn whole(rate: f64) -> u32 {
    rate.clamp(1.0, 1e6) as u32
}
