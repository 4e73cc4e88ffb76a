//! `bench deliver`: a healthy tenant's webhooks beside a neighbour in trouble, parking and release, and throughput.
//! Promises that every delivery of the healthy tenant is accounted for, and that each fault stands beside a run without.
//! Does not start Forebay; it is given a running one that nobody else uses.

mod caller;
mod neighbours;
mod rates;
mod table;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::Error;
use super::machine::Machine;
use crate::clock::Clock;
use crate::load::tally::millis;
use crate::load::{Entry, Narrator, Tally};
use crate::receiver::Receiver;

pub use neighbours::Fault;
pub use table::of_deliver;

/// Pause between rounds.
const QUIET: Duration = Duration::from_secs(3);

/// A running Forebay whose attempts end after ten seconds and that may deliver to loopback.
#[derive(Clone, Debug)]
pub struct Target {
    /// `http://host:port` of the server.
    pub url: String,
    /// The operator's token.
    pub admin_token: String,
    /// Its process.
    pub pid: u32,
    /// A directory of the machine that is described.
    pub data_dir: PathBuf,
}

/// How to measure.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Options {
    /// Rounds of each fault.
    pub rounds: u16,
    /// Length of one, the same without the fault included.
    pub length: Duration,
    /// Messages of the healthy tenant, a second.
    pub messages_per_second: u32,
    /// What the neighbour has waiting.
    pub backlog: usize,
    /// Channels of the neighbour that has many.
    pub channels: usize,
    /// The faults.
    pub faults: Vec<Fault>,
    /// Backlogs that are parked and released.
    pub parked: Vec<usize>,
    /// Deliveries of a measurement of throughput.
    pub deliveries: usize,
}

/// Quantiles of ack → received.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Latency {
    /// Messages that were acknowledged.
    pub sent: u64,
    /// Of these, those that never came.
    pub missing: u64,
    /// Attempts beyond the first.
    pub repeated: u64,
    /// Half of them.
    pub p50_ms: f64,
    /// 95 of 100.
    pub p95_ms: f64,
    /// 99 of 100.
    pub p99_ms: f64,
    /// All of them, to be taken together with those of other rounds.
    #[serde(skip)]
    tally: Tally,
}

impl Latency {
    /// From what came, and what was counted beside.
    pub fn new(tally: Tally, sent: u64, missing: u64, repeated: u64) -> Self {
        let [p50_ms, p95_ms, p99_ms] = [0.5, 0.95, 0.99].map(|share| millis(tally.quantile(share)));
        Self { sent, missing, repeated, p50_ms, p95_ms, p99_ms, tally }
    }

    /// Those of several rounds as if they were one.
    pub fn over(rounds: &[&Self]) -> Self {
        let (mut tally, mut counts) = (Tally::default(), [0; 3]);
        for round in rounds {
            tally.absorb(&round.tally);
            counts[0] += round.sent;
            counts[1] += round.missing;
            counts[2] += round.repeated;
        }
        Self::new(tally, counts[0], counts[1], counts[2])
    }
}

/// One round of a fault.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Round {
    /// The fault.
    pub fault: Fault,
    /// Just before, without it.
    pub without: Latency,
    /// With it.
    pub with: Latency,
    /// What the neighbour's own deliveries reached of what its cap allows, where that can be said.
    pub neighbour_share: Option<f64>,
    /// Requests for the neighbour that came to the receiver: without any there was no trouble.
    pub neighbour_came: usize,
    /// What was acknowledged to the healthy tenant, with its place in the log.
    #[serde(skip)]
    pub receipts: Vec<Entry>,
}

/// A backlog that was parked and released.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Parked {
    /// How many.
    pub deliveries: usize,
    /// From the last acknowledgement until all are parked.
    pub park_s: f64,
    /// From the resume until the last was received.
    pub release_s: f64,
    /// Received more than once.
    pub repeated: u64,
    /// Not received.
    pub missing: u64,
    /// Received before one that came before it.
    pub out_of_order: u64,
    /// Most in flight in the first 100 ms of the release.
    pub in_flight_max: usize,
}

/// How many deliveries a second.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rate {
    /// What was measured.
    pub what: String,
    /// Deliveries a second.
    pub per_second: f64,
    /// CPU time of the server for each, in microseconds; `None` for what the server has no part in.
    pub cpu_us: Option<f64>,
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// On what.
    pub machine: Machine,
    /// How.
    pub options: Options,
    /// Neighbours in trouble.
    pub rounds: Vec<Round>,
    /// Parking and release.
    pub parked: Vec<Parked>,
    /// Throughput, the plain client last.
    pub rates: Vec<Rate>,
    /// The router alone, on a node that makes no attempts.
    pub router: Option<Rate>,
}

/// Measures how many deliveries a second a node queues that makes none; `routed` tells how many it has in all.
///
/// # Errors
/// When the server refuses or is gone.
pub async fn route(
    target: &Target,
    count: usize,
    routed: impl AsyncFn() -> Result<u64, Error>,
    clock: &Clock,
) -> Result<Rate, Error> {
    let receiver = listen(clock)?;
    rates::route(&caller::Stage { target, receiver: &receiver, clock }, count, routed).await
}

fn listen(clock: &Clock) -> Result<Receiver, Error> {
    let listening = Receiver::start((Ipv4Addr::LOCALHOST, 0).into(), clock.clone());
    listening.map_err(|source| Error::Io { doing: "starting a receiver", source })
}

/// Measures.
///
/// # Errors
/// When the server refuses or is gone.
pub async fn run(
    target: &Target,
    options: Options,
    narrator: &Narrator,
    clock: &Clock,
) -> Result<Report, Error> {
    let receiver = listen(clock)?;
    let stage = caller::Stage { target, receiver: &receiver, clock };
    let mut report = Report {
        machine: Machine::look(&target.data_dir, clock).await?,
        options: options.clone(),
        rounds: Vec::new(),
        parked: Vec::new(),
        rates: Vec::new(),
        router: None,
    };
    if !options.faults.is_empty() {
        narrator.moment("warming up");
        neighbours::warm_up(&stage, &options).await?;
    }
    for fault in &options.faults {
        for nth in 1..=options.rounds {
            narrator.moment(&format!("{}: round {nth} of {}", fault.name(), options.rounds));
            let round = neighbours::measure(&stage, *fault, &options).await?;
            narrator.line(&table::line_of(&round));
            report.rounds.push(round);
            // What the neighbour left behind is not the next one's.
            tokio::time::sleep(QUIET).await;
        }
    }
    for count in &options.parked {
        narrator.moment(&format!("parking {count}"));
        report.parked.push(rates::park(&stage, *count).await?);
    }
    if options.deliveries > 0 {
        narrator.moment("throughput");
        report.rates = rates::measure(&stage, options.deliveries).await?;
    }
    Ok(report)
}
