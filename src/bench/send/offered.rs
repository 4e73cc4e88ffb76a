//! `bench load`: acknowledged sends and their latency against the load that is offered, up to far beyond the maximum.
//! Promises fixed arrival times whatever the answers do, and loads in per cent of each variant's own maximum in the same run.
//! Does not judge; the report sets each figure beside its aim.

use std::time::Duration;

use serde::Serialize;

use super::order::order;
use super::rounds::{Bench, Drive, Onto};
use super::{Hook, Hooks, Projector, Taken, Target, asked, prepare};
use crate::bench::Error;
use crate::bench::lineup::Variant;
use crate::bench::machine::Machine;
use crate::bench::report::line_of_round;
use crate::clock::Clock;
use crate::load::{Audit, Narrator, Pace, Round};

/// How to measure.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Options {
    /// Connections; each has one send under way at most.
    pub connections: u16,
    /// Connections of the closed loops that find the maximum, beside loops over as many as a step has: as many as serve
    /// every variant well.
    pub maximum_connections: u16,
    /// Connections of [`Way::FullQueue`].
    pub queue_connections: u16,
    /// Bytes of its bodies.
    pub queue_body_bytes: usize,
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
    /// Of the order in which the variants take turns.
    pub seed: u32,
}

/// Connections that have more under way than the queue of a partition has room for, with bodies of [`QUEUE_BODY_BYTES`].
pub const QUEUE_CONNECTIONS: u16 = 5_000;

/// Bytes of a body that arrives in one piece with its head, so that a refusal does not have to wait for the rest.
pub const QUEUE_BODY_BYTES: usize = 6_000;

/// From so many per cent of the maximum on, a load is one that nobody could serve.
pub(super) const OVERLOAD_PERCENT: u32 = 300;

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Way {
    /// Forebay, its projector at work, without a quota.
    Forebay,
    /// The same with a send quota for the tenant, below the maximum.
    WithQuota,
    /// Forebay without a quota, and all sends to the conversations of one partition, larger and over more connections than
    /// its queue holds. Measured at the highest load only.
    FullQueue,
    /// One `INSERT` a send.
    Direct,
    /// `INSERT`s gathered across sends.
    Gathered,
}

impl Way {
    /// In the order of the tables.
    pub const ALL: [Self; 5] =
        [Self::Forebay, Self::WithQuota, Self::FullQueue, Self::Direct, Self::Gathered];

    /// How a table names it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Forebay => "forebay",
            Self::WithQuota => "forebay, quota",
            Self::FullQueue => "forebay, one full queue",
            Self::Direct => "one INSERT a send",
            Self::Gathered => "INSERTs gathered",
        }
    }

    const fn variant(self) -> Variant {
        match self {
            Self::Forebay | Self::WithQuota | Self::FullQueue => Variant::Forebay,
            Self::Direct => Variant::Direct,
            Self::Gathered => Variant::Gathered,
        }
    }

    /// Whether it is Forebay itself.
    pub const fn is_forebay(self) -> bool {
        self.variant().is_forebay()
    }

    /// Whether it is offered so much.
    fn is_offered(self, percent: u32, percents: &[u32]) -> bool {
        let highest = percents.iter().max().is_some_and(|highest| percent == *highest);
        self != Self::FullQueue || (highest && percent >= OVERLOAD_PERCENT)
    }

    const fn onto(self, options: &Options) -> Onto {
        match self {
            Self::FullQueue => Onto::OnePartition { body_bytes: options.queue_body_bytes },
            Self::Forebay | Self::WithQuota | Self::Direct | Self::Gathered => Onto::AllPartitions,
        }
    }

    /// Connections of its steps.
    pub const fn connections(self, options: &Options) -> u16 {
        match self {
            Self::FullQueue => options.queue_connections,
            Self::Forebay | Self::WithQuota | Self::Direct | Self::Gathered => options.connections,
        }
    }

    /// Connections of the closed loops that find its maximum. Those of a quota are those of Forebay, and over as many
    /// connections as fill the queue a closed loop would be refused as well.
    fn loops(self, options: &Options) -> Vec<u16> {
        let few = options.maximum_connections;
        match self {
            Self::WithQuota => Vec::new(),
            Self::Forebay | Self::Direct | Self::Gathered if few != options.connections => {
                vec![few, options.connections]
            }
            Self::Forebay | Self::Direct | Self::Gathered | Self::FullQueue => vec![few],
        }
    }
}

/// What a closed loop came to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Loop {
    /// Over how many connections.
    pub connections: u16,
    /// Acknowledged sends a second.
    pub per_second: f64,
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
    /// Closed loops, before all steps and after them. Offers are in per cent of the fastest one before, judgements go by
    /// the fastest of all.
    pub loops: Vec<Loop>,
    /// The loads, in the order in which they were offered.
    pub steps: Vec<Step>,
}

impl Measured {
    /// The most that a closed loop came to so far.
    pub fn maximum(&self) -> f64 {
        self.loops.iter().map(|found| found.per_second).fold(0.0, f64::max)
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
    /// What the processes took meanwhile; the server's own is not told of a reference.
    pub taken: Taken,
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
        sync_delay: Duration::ZERO,
        seed: options.seed,
    };
    let bench = prepare(target, of_send, hooks, narrator, clock).await?;
    let measured = |way: Way| Measured {
        way,
        label: way.label(),
        quota: None,
        loops: Vec::new(),
        steps: Vec::new(),
    };
    let ways = Way::ALL.map(measured).to_vec();
    let mut ladder = Ladder { bench, options, limit, ways, offers: Vec::new() };
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
    /// What 100 per cent are, in the order of `ways`.
    offers: Vec<f64>,
}

impl Ladder<'_> {
    async fn climb(&mut self) -> Result<(), Error> {
        // The first round of a process is slower than all others: caches are cold, connections are made.
        for place in 0..self.ways.len() {
            let way = self.ways[place].way;
            if way != Way::WithQuota {
                self.closed_loop(way, self.options.maximum_connections).await?;
            }
        }
        self.measure_maxima(0).await?;
        self.offers = self.ways.iter().map(Measured::maximum).collect();
        for nth in 0..self.options.percents.len() {
            let percent = self.options.percents[nth];
            // Every load has an order of its own, so that a drift of the machine meets all alike.
            for place in order(self.ways.len(), nth + 1, self.options.seed) {
                if self.ways[place].way.is_offered(percent, &self.options.percents) {
                    self.step(place, percent).await?;
                }
            }
        }
        self.measure_maxima(self.options.percents.len() + 1).await
    }

    async fn measure_maxima(&mut self, nth: usize) -> Result<(), Error> {
        for place in order(self.ways.len(), nth, self.options.seed) {
            let way = self.ways[place].way;
            for connections in way.loops(&self.options) {
                let found = self.closed_loop(way, connections).await?;
                self.ways[place].loops.push(found);
            }
        }
        // A quota changes nothing about what the server could do.
        let of = |way| self.ways.iter().position(|measured| measured.way == way);
        if let (Some(from), Some(to)) = (of(Way::Forebay), of(Way::WithQuota)) {
            let loops = self.ways[from].loops.clone();
            self.ways[to].loops = loops;
        }
        Ok(())
    }

    async fn closed_loop(&mut self, way: Way, connections: u16) -> Result<Loop, Error> {
        let (round, _) = self.drive(way, connections, Pace::AnswerByAnswer).await?;
        self.tell(way, ("the maximum", connections), &round);
        Ok(Loop { connections, per_second: round.per_second })
    }

    async fn step(&mut self, place: usize, percent: u32) -> Result<(), Error> {
        let (way, maximum) = (self.ways[place].way, self.offers[place]);
        let per_second = (maximum * f64::from(percent) / 100.0).max(1.0);
        if way == Way::WithQuota {
            let quota = whole(maximum * f64::from(self.options.quota_percent) / 100.0);
            self.ways[place].quota = Some(quota);
            self.limit(Some(quota)).await?;
        }
        let pace = Pace::Shared { per_second, patience: self.options.patience };
        let connections = way.connections(&self.options);
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
    ) -> Result<(Round, Taken), Error> {
        self.bench.narrator.moment(&format!("{}, {pace:?}", way.label()));
        self.bench.checkpoint().await?;
        let onto = way.onto(&self.options);
        if let Some(url) = self.bench.emptied(way.variant()).await? {
            return self.bench.reference_round(Drive { url, connections, pace, onto }).await;
        }
        let drive = Drive { url: self.bench.target.url.clone(), connections, pace, onto };
        self.bench.forebay_round(Projector::Run, drive).await
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

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options {
            connections: 1_000,
            maximum_connections: 256,
            queue_connections: QUEUE_CONNECTIONS,
            queue_body_bytes: QUEUE_BODY_BYTES,
            percents: vec![100, 300],
            round: Duration::from_secs(3),
            warmup: Duration::from_secs(1),
            body_bytes: 300,
            conversations: 10,
            patience: Duration::from_millis(20),
            quota_percent: 90,
            seed: 7,
        }
    }

    #[test]
    fn a_maximum_is_looked_for_over_both_numbers_of_connections() {
        let mut options = options();
        for (way, loops) in [
            (Way::Forebay, vec![256, 1_000]),
            (Way::WithQuota, vec![]),
            (Way::FullQueue, vec![256]),
            (Way::Direct, vec![256, 1_000]),
            (Way::Gathered, vec![256, 1_000]),
        ] {
            assert_eq!(way.loops(&options), loops, "{way:?}");
        }
        options.connections = 256;
        assert_eq!(Way::Direct.loops(&options), [256], "once is enough");
    }

    #[test]
    fn the_full_queue_is_offered_the_highest_load_only_and_only_if_it_is_too_much() {
        for (way, percent, percents, expected) in [
            (Way::Forebay, 100, [100, 300], true),
            (Way::FullQueue, 100, [100, 300], false),
            (Way::FullQueue, 300, [100, 300], true),
            (Way::FullQueue, 300, [300, 500], false),
            (Way::FullQueue, 150, [100, 150], false),
        ] {
            assert_eq!(way.is_offered(percent, &percents), expected, "{way:?} {percent}");
        }
    }

    #[test]
    fn a_queue_is_smaller_than_what_its_connections_have_under_way() {
        let options = options();
        let bytes = usize::from(options.queue_connections) * options.queue_body_bytes;
        assert!(bytes > crate::journal::tail::QUEUE_BYTES_MAX, "nothing would be refused");
    }
}
