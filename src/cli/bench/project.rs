//! The arguments of `forebay bench project`, and the backlog that it makes.
//! Promises a table on standard output and, with `--json`, the same figures in a file.
//! Does not measure; the bench room does.

use clap::Args;

use super::Files;
use super::place;
use crate::bench::backlog::fill::Filling;
use crate::bench::backlog::of_project;
use crate::bench::backlog::project::{self, First, Report, Rows};
use crate::cli::apart::{Apart, Services};
use crate::clock::Clock;
use crate::load::Narrator;
use crate::sandbox::Install;

/// Arguments of `bench project`.
#[derive(Args, Clone, Debug)]
pub(in crate::cli) struct Arguments {
    /// Events of the backlog; an hour of 100 a second unless given
    #[arg(long, default_value_t = 360_000, value_parser = clap::value_parser!(u32).range(1_000..=20_000_000))]
    events: u32,
    /// Rounds, each with services of its own
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Bytes of a message's text
    #[arg(long, default_value_t = 300)]
    payload: usize,
    /// Where it lives and what it leaves
    #[command(flatten)]
    files: Files,
}

/// Makes a backlog while nobody projects, then starts a node that does.
pub(super) async fn run(arguments: &Arguments, clock: &Clock) -> anyhow::Result<()> {
    let narrator = Narrator::on_stderr();
    let filling = Filling::of(1, arguments.events.into(), arguments.payload);
    let mut report: Option<Report> = None;
    let (mut projected, mut copied) = (Vec::new(), Vec::new());
    for nth in 1..=arguments.rounds {
        let services = Services::start(arguments.files.data_dir.clone(), Install::Allow).await?;
        // It makes the log, the tables and the tenant.
        let server = Apart::start(&services, &[("FOREBAY_PROJECT", "off")], clock).await?;
        let mut place = place(&services, &server, clock).await?;
        server.stop().await?;
        narrator.moment("putting events into the log");
        let filled = place.fill(filling).await?;
        if report.is_none() {
            let begun = Report::begin(&services.data_dir, (filling, &filled), clock).await?;
            report = Some(begun);
        }
        let first = First::of_round(nth);
        if first == First::Copy {
            copied.push(project::copy_rows(&place, filling).await?);
        }
        let server = Apart::start(&services, &[], clock).await?;
        place.pids.server = Some(server.pid);
        projected.push(project::catch_up(&place, filled.events, server.ready_after).await?);
        server.stop().await?;
        place.pids.server = None;
        if first == First::Projector {
            copied.push(project::copy_rows(&place, filling).await?);
        }
        let told = |all: &[Rows]| all.last().map_or(0.0, |rows| rows.per_second);
        let (ours, theirs) = (told(&projected), told(&copied));
        narrator.line(&format!("round {nth}: projected {ours:.0} rows/s, copied {theirs:.0}"));
    }
    narrator.finish();
    match report {
        Some(report) => {
            let report = Report { projected, copied, ..report };
            super::tell(&of_project(&report), &report, arguments.files.json.as_deref())
        }
        None => Ok(()),
    }
}
