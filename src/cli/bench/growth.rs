//! The arguments of `forebay bench growth`, and how conversations and history grow.
//! Promises tables on standard output and, with `--json`, the same figures in a file.
//! Does not measure; the bench room does.

use std::time::Duration;

use clap::Args;

use super::{Files, length, place, read};
use crate::bench::backlog::fill::Filling;
use crate::bench::read::growth::{Plan, REST, Report};
use crate::bench::read::{Target, of_growth};
use crate::cli::apart::{Apart, Services};
use crate::clock::Clock;
use crate::load::Narrator;
use crate::sandbox::Install;

/// Numbers of conversations, in smallest ones.
const CONVERSATIONS: [u32; 3] = [1, 10, 100];

/// Lengths of history, in smallest ones.
const HISTORIES: [u32; 2] = [1, 10];

/// Arguments of `bench growth`.
#[derive(Args, Clone, Debug)]
pub(in crate::cli) struct Arguments {
    /// The smallest number of conversations; also measured: 10 and 100 times as many
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    conversations: u32,
    /// Events of the shortest history; also measured: 10 times as many
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1_000..=1_000_000))]
    events: u32,
    /// Sends a second
    #[arg(long, default_value_t = 5_000.0)]
    per_second: f64,
    /// Length of a round, in seconds
    #[arg(long, default_value = "5", value_parser = length)]
    seconds: Duration,
    /// Where it lives and what it leaves
    #[command(flatten)]
    files: Files,
}

/// Starts a server, measures, makes what it has grow, measures again.
pub(super) async fn run(arguments: &Arguments, clock: &Clock) -> anyhow::Result<()> {
    let services = Services::start(arguments.files.data_dir.clone(), Install::Allow).await?;
    let server = Apart::start(&services, &[], clock).await?;
    let narrator = Narrator::on_stderr();
    let plan = Plan {
        per_second: arguments.per_second.clamp(1.0, 1e6),
        options: read::options((10, 256), arguments.seconds),
    };
    let mut target = Target {
        url: server.url.clone(),
        api_key: server.api_key.clone(),
        place: place(&services, &server, clock).await?,
        recent: Vec::new(),
        old: Vec::new(),
    };
    let mut report = Report::begin(&plan, &services.data_dir, &target).await?;
    for (factor, run) in CONVERSATIONS.into_iter().zip(1..) {
        let conversations = arguments.conversations * factor;
        let filling = Filling { run, conversations, events_each: 1, text_bytes: 0 };
        target.recent = target.place.fill(filling).await?.conversations;
        target.place.level().await?;
        tokio::time::sleep(REST).await;
        report.sends.push(plan.send(&target, &narrator).await?);
    }
    let mut events: u64 = 0;
    for (factor, run) in HISTORIES.into_iter().zip(101..) {
        let wanted = u64::from(arguments.events) * u64::from(factor);
        let filled = target.place.fill(Filling::of(run, wanted - events, 300)).await?;
        events += filled.events;
        target.old.extend(filled.conversations);
        // What memory holds is newer than every page that is read.
        target.place.fill(Filling::of(run + 100, 100_000, 300)).await?;
        target.place.level().await?;
        report.reads.push(plan.read(&target, events, &narrator).await?);
    }
    narrator.finish();
    super::tell(&of_growth(&report), &report, arguments.files.json.as_deref())?;
    server.stop().await
}
