//! The arguments of `forebay bench deliver`, and the server that it measures.
//! Promises a table on standard output and, with `--json`, the same figures in a file.
//! Does not measure; the bench room does.

use std::time::Duration;

use clap::Args;

use super::Files;
use super::pool::raise_file_limit;
use crate::bench::Error;
use crate::bench::deliver::{self, Fault, Options, Rate, Target, of_deliver};
use crate::cli::apart::{ADMIN_TOKEN, Apart, Services, sum_of};
use crate::cli::operator;
use crate::clock::Clock;
use crate::load::Narrator;
use crate::sandbox::Install;

/// Arguments of `bench deliver`.
#[derive(Args, Clone, Debug)]
pub(in crate::cli) struct Arguments {
    /// What is wrong with the neighbour; all when left out, none with --no-faults
    #[arg(long, value_enum, value_delimiter = ',')]
    faults: Vec<Fault>,
    /// Leave the neighbours out
    #[arg(long)]
    no_faults: bool,
    /// Rounds of each fault
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Length of a run, without and with the fault, in seconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(2..=3_600))]
    seconds: u16,
    /// Messages of the healthy tenant, a second
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    messages_per_second: u32,
    /// What the neighbour has waiting
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    backlog: u32,
    /// Channels of the neighbour that has many
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    channels: u32,
    /// Backlogs that are parked and released
    #[arg(long, value_delimiter = ',', default_value = "10000,100000")]
    parked: Vec<u32>,
    /// Deliveries of a measurement of throughput; 0 leaves it out
    #[arg(long, default_value_t = 20_000)]
    deliveries: u32,
    /// Deliveries of the measurement of the router; 0 leaves it out
    #[arg(long, default_value_t = 50_000)]
    routed: u32,
    /// Where it lives and what it leaves
    #[command(flatten)]
    files: Files,
}

impl Arguments {
    fn options(&self) -> Options {
        let size = |count: u32| usize::try_from(count).unwrap_or(1);
        let faults = match (self.no_faults, self.faults.is_empty()) {
            (true, _) => Vec::new(),
            (false, true) => Fault::ALL.to_vec(),
            (false, false) => self.faults.clone(),
        };
        Options {
            rounds: self.rounds,
            length: Duration::from_secs(u64::from(self.seconds)),
            messages_per_second: self.messages_per_second,
            backlog: size(self.backlog),
            channels: size(self.channels),
            faults,
            parked: self
                .parked
                .iter()
                .map(|count| size(*count))
                .filter(|count| *count > 0)
                .collect(),
            deliveries: size(self.deliveries),
        }
    }
}

/// Starts a server, measures, prints the table, writes the file.
pub(super) async fn run(arguments: Arguments, clock: &Clock) -> anyhow::Result<()> {
    raise_file_limit();
    let services = Services::start(arguments.files.data_dir.clone(), Install::Allow).await?;
    let settings = [("FOREBAY_EGRESS_ALLOW", "127.0.0.0/8"), ("DELIVERY_TIMEOUT_MS", "10000")];
    let server = Apart::start(&services, &settings, clock).await?;
    let narrator = Narrator::on_stderr();
    let (target, options) = (target(&server, &services), arguments.options());
    let found = deliver::run(&target, options, &narrator, clock).await;
    narrator.finish();
    let mut found = found?;
    server.stop().await?;
    if arguments.routed > 0 {
        found.router = Some(router(&services, arguments.routed, clock).await?);
    }
    super::tell(&of_deliver(&found), &found, arguments.files.json.as_deref())
}

fn target(server: &Apart, services: &Services) -> Target {
    Target {
        url: server.url.clone(),
        admin_token: ADMIN_TOKEN.to_owned(),
        pid: server.pid,
        data_dir: services.data_dir.clone(),
    }
}

/// A node that only routes.
async fn router(services: &Services, count: u32, clock: &Clock) -> anyhow::Result<Rate> {
    let server = Apart::start(services, &[("FOREBAY_DELIVER", "route")], clock).await?;
    let metrics = format!("{}/metrics", server.url);
    let routed = async || {
        let page = operator::probe(&metrics).await.map_err(std::io::Error::other);
        let page = page.map_err(|source| Error::Io { doing: "reading metrics", source })?;
        Ok(sum_of(&page, "forebay_routing_deliveries_total"))
    };
    let count = usize::try_from(count).unwrap_or(1);
    let found = deliver::route(&target(&server, services), count, routed, clock).await?;
    server.stop().await?;
    Ok(found)
}
