//! `bench live`: what open sockets cost, how fast events reach many, and what happens when many come back at once.
//! Promises that every client of a measurement is accounted for: joined or failed, and each delivery arrived or missing.
//! Does not start Forebay; it is given a running one that nobody else uses.

mod fan;
mod idle;
mod line;
mod pairs;
mod storm;
mod table;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::Error;
use super::machine::Machine;
use super::send::Hook;
use crate::clock::Clock;
use crate::load::tally::millis;
use crate::load::{Narrator, Tally, open_conversations};
pub use table::of_live;

/// A running Forebay.
#[derive(Clone, Debug)]
pub struct Target {
    /// `http://host:port` of the server.
    pub url: String,
    /// A key of a tenant without a quota that would bind.
    pub api_key: String,
    /// Its process.
    pub pid: u32,
    /// A directory of the machine that is described.
    pub data_dir: PathBuf,
}

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "camelCase")]
pub enum Part {
    /// Memory of connections on which nothing happens.
    Idle,
    /// One conversation with many connections.
    FanOut,
    /// Many conversations with two connections each.
    Pairs,
    /// Many clients that come back at the same moment.
    Storm,
}

/// How to measure.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Options {
    /// What.
    pub parts: Vec<Part>,
    /// Idle connections.
    pub idle: usize,
    /// Conversations that these, and those of the storm, are spread over.
    pub conversations: usize,
    /// Connections that one conversation fans out to.
    pub receivers: usize,
    /// Messages that fan out.
    pub messages: usize,
    /// So many of them a second.
    pub messages_per_second: u32,
    /// Conversations of two.
    pub pairs: usize,
    /// Sends a second of all pairs together.
    pub sends_per_second: u32,
    /// For how long.
    pub length: Duration,
    /// Clients of the storm.
    pub storm: usize,
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// On what.
    pub machine: Machine,
    /// How.
    pub options: Options,
    /// Idle connections.
    pub idle: Option<Idle>,
    /// Fan-out at a pace, and all at once.
    pub fan_out: Vec<FanOut>,
    /// Pairs.
    pub pairs: Option<Pairs>,
    /// The storm.
    pub storm: Option<Storm>,
}

/// What idle connections cost.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Idle {
    /// Connections that have joined and still answered at the end.
    pub connections: usize,
    /// Conversations that they are spread over.
    pub conversations: usize,
    /// The server's resident memory before the first of them.
    pub rss_before: u64,
    /// With all of them.
    pub rss_after: u64,
    /// The difference for each connection.
    pub bytes_a_connection: f64,
    /// From the first connect to the last replayComplete.
    pub took_ms: f64,
}

/// Half and 99 of 100 took at most so long, and the longest.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "the unit belongs to the name")]
pub struct Latency {
    /// Half.
    pub p50_ms: f64,
    /// 99 of 100.
    pub p99_ms: f64,
    /// All.
    pub max_ms: f64,
}

impl Latency {
    fn of(tally: &Tally) -> Self {
        Self {
            p50_ms: millis(tally.quantile(0.5)),
            p99_ms: millis(tally.quantile(0.99)),
            max_ms: millis(tally.longest()),
        }
    }
}

/// How one conversation reached many.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FanOut {
    /// Messages a second; `None` when they were sent at once.
    pub messages_per_second: Option<u32>,
    /// Messages.
    pub messages: usize,
    /// Connections that each should reach.
    pub receivers: usize,
    /// Events that arrived.
    pub delivered: u64,
    /// Events that did not.
    pub missing: u64,
    /// Arrivals a second, from the first send to the last arrival.
    pub deliveries_per_second: f64,
    /// From when a send was due to an arrival.
    pub latency: Latency,
}

/// How conversations of two went.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pairs {
    /// Conversations.
    pub conversations: usize,
    /// Sends that were due.
    pub sent: u64,
    /// Sends that were acknowledged.
    pub acknowledged: u64,
    /// Sends whose event reached the other.
    pub delivered: u64,
    /// From when a send was due to its ack.
    pub ack: Latency,
    /// From the same moment to its arrival at the other.
    pub arrival: Latency,
    /// The p99 of arrivals, in p99s of acks.
    pub ratio: f64,
}

/// How a storm went.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Storm {
    /// Clients that came back at once.
    pub clients: usize,
    /// Those that got what they had missed, and `replayComplete`.
    pub complete: usize,
    /// Those that did not.
    pub failed: usize,
    /// Events that each of them had missed.
    pub missed_each: u64,
    /// From the first connect to the last `replayComplete`.
    pub took_ms: f64,
    /// Of a client, from its start.
    pub latency: Latency,
    /// Connections to Postgres that were taken for somebody who waits, meanwhile.
    pub acquires: Option<u64>,
}

/// What every part has to hand.
struct Stage<'a> {
    target: &'a Target,
    options: &'a Options,
    /// How often the interactive pool gave a connection, so far.
    acquires: &'a Hook<(), u64>,
    clock: &'a Clock,
}

/// Measures one part after the other.
///
/// # Errors
/// When something cannot be prepared, or a connection of the preparations breaks.
pub async fn run(
    target: &Target,
    options: Options,
    acquires: &Hook<(), u64>,
    narrator: &Narrator,
    clock: &Clock,
) -> Result<Report, Error> {
    let mut report = Report {
        machine: Machine::look(&target.data_dir, clock).await?,
        options: options.clone(),
        idle: None,
        fan_out: Vec::new(),
        pairs: None,
        storm: None,
    };
    let stage = Stage { target, options: &options, acquires, clock };
    for part in &options.parts {
        match part {
            Part::Idle => {
                narrator.line(&format!("{} idle connections", options.idle));
                report.idle = Some(stage.idle().await?);
            }
            Part::FanOut => {
                narrator.line(&format!("one conversation to {} connections", options.receivers));
                report.fan_out = stage.fan_out().await?;
            }
            Part::Pairs => {
                narrator.line(&format!("{} conversations of two", options.pairs));
                report.pairs = Some(stage.pairs().await?);
            }
            Part::Storm => {
                narrator.line(&format!("{} clients come back", options.storm));
                report.storm = Some(stage.storm().await?);
            }
        }
    }
    Ok(report)
}

impl Stage<'_> {
    async fn conversations(
        &self,
        count: usize,
    ) -> Result<Vec<crate::event::ConversationId>, Error> {
        Ok(open_conversations(&self.target.url, &self.target.api_key, count.max(1)).await?)
    }
}

/// The time that a message carries: since the beginning, in microseconds.
fn stamp(begin: Instant, at: Instant) -> String {
    at.saturating_duration_since(begin).as_micros().to_string()
}

fn since(begin: Instant, micros: u64) -> Instant {
    begin + Duration::from_micros(micros)
}
