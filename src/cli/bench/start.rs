//! The arguments of `forebay bench start`, and the cases in which a server is started.
//! Promises a table on standard output and, with `--json`, the same figures in a file.
//! Does not measure; the bench room does.

use clap::Args;

use super::Files;
use super::place;
use crate::bench::backlog::fill::Filling;
use crate::bench::backlog::of_start;
use crate::bench::backlog::start::{Case, Report, Started, read_back};
use crate::bench::machine::Machine;
use crate::cli::apart::{Apart, Services};
use crate::clock::Clock;
use crate::load::Narrator;
use crate::sandbox::Install;

/// Arguments of `bench start`.
#[derive(Args, Clone, Debug)]
pub(in crate::cli) struct Arguments {
    /// Events in the log
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1_000..=20_000_000))]
    events: u32,
    /// Starts of each case; the median is told
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Where it lives and what it leaves
    #[command(flatten)]
    files: Files,
}

/// A window of keys that no event of the log is younger than, in the environment of a server.
const SHORT_WINDOW: (&str, &str) = ("FOREBAY_DEDUPE_WINDOW_S", "1");

/// Nothing is projected, so that there is no checkpoint to begin from.
const NO_PROJECTOR: (&str, &str) = ("FOREBAY_PROJECT", "off");

/// Starts servers, again and again.
pub(super) async fn run(arguments: &Arguments, clock: &Clock) -> anyhow::Result<()> {
    let narrator = Narrator::on_stderr();
    let services = Services::start(arguments.files.data_dir.clone(), Install::Allow).await?;
    let mut starting = Starting { services: &services, rounds: 1, narrator: &narrator, clock };
    let mut cases = vec![starting.case("nothing: log and tables are made", &[]).await?];
    starting.rounds = arguments.rounds;
    cases.push(starting.case("an empty log, no projector", &[NO_PROJECTOR]).await?);
    let server = Apart::start(&services, &[NO_PROJECTOR], clock).await?;
    let mut place = place(&services, &server, clock).await?;
    server.stop().await?;
    narrator.moment("putting events into the log");
    let events = place.fill(Filling::of(1, arguments.events.into(), 300)).await?.events;
    let millions = crate::load::tally::precise(events) / 1e6;
    let of = |what: &str| format!("{millions:.1} million events, {what}");
    starting.rounds = 1;
    // Only the first start has no snapshot: every server leaves one when it stops.
    let what = of("without snapshot and checkpoint, no projector");
    cases.push(starting.case(&what, &[NO_PROJECTOR]).await?);
    narrator.moment("waiting until Postgres has them");
    let server = Apart::start(&services, &[], clock).await?;
    place.pids.server = Some(server.pid);
    place.level().await?;
    server.stop().await?;
    starting.rounds = arguments.rounds;
    let what = of("snapshot and checkpoint, all keys within the dedupe window");
    cases.push(starting.case(&what, &[]).await?);
    let what = of("snapshot and checkpoint, all keys older than the window");
    cases.push(starting.case(&what, &[SHORT_WINDOW]).await?);
    let mut read_back_ms = Vec::new();
    for _ in 0..arguments.rounds {
        read_back_ms.push(read_back(&place).await?);
    }
    let machine = Machine::look(&services.data_dir, clock).await?;
    let report = Report { machine, events, cases, read_back_ms };
    narrator.finish();
    super::tell(&of_start(&report), &report, arguments.files.json.as_deref())
}

/// Servers that are started one after the other on the same services.
struct Starting<'a> {
    services: &'a Services,
    rounds: u16,
    narrator: &'a Narrator,
    clock: &'a Clock,
}

impl Starting<'_> {
    async fn case(&self, what: &str, settings: &[(&str, &str)]) -> anyhow::Result<Case> {
        let mut starts = Vec::new();
        for _ in 0..self.rounds {
            let server = Apart::start(self.services, settings, self.clock).await?;
            starts.push(Started::look(server.pid, server.ready_after).await);
            server.stop().await?;
        }
        let ready: Vec<String> = starts.iter().map(|s| format!("{:.0}", s.ready_ms)).collect();
        self.narrator.line(&format!("{what}: ready after {} ms", ready.join(", ")));
        Ok(Case { what: what.to_owned(), starts })
    }
}
