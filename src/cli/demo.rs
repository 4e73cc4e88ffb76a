//! `forebay demo`: the guided tour. Sends over 64 connections, stops Postgres in the middle, resumes, verifies.
//! Promises that what it prints was measured in this run, and exits with 5 when a promise of the product was broken.
//! Does not keep anything.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};

use super::apart;
use super::dev::{House, Plan};
use super::{Failed, print, say};
use crate::clock::Clock;
use crate::load::{self, Amount, Audit, Keys, Narrator, Outcome, Tally, Watch};
use crate::load::{OnOverload, OnRefusal, Pace};
use crate::operate::verify::{Findings, Verifier};
use crate::sandbox::Install;

/// Connections that send.
const CONNECTIONS: u16 = 64;

/// Sends a second: enough to be a load, little enough that latencies mean something on any machine.
const SENDS_PER_SECOND: f64 = 2_000.0;

/// Conversations that are sent to.
const CONVERSATIONS: usize = 200;

/// How long each of the three phases takes: before, while Postgres stands still, and after.
const PHASE: Duration = Duration::from_secs(5);

/// Sends that are not tallied: connections open and caches warm.
const WARMUP: Duration = Duration::from_millis(500);

/// Longest wait for Postgres to be level again.
const LEVEL_MAX: Duration = Duration::from_secs(30);

/// Arguments of `forebay demo`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Where programs are kept; the data of the tour is kept nowhere
    #[arg(long, default_value = ".forebay")]
    data_dir: PathBuf,
}

/// What the tour came to.
struct Tour {
    outcome: Outcome,
    level_after: Duration,
    findings: Findings,
    audit: Audit,
}

/// Takes the tour.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    super::quiet_log_lines("error")?;
    let (clock, narrator) = (Clock::system(), Narrator::on_stderr());
    narrator.line("starting Postgres, nats-server and Forebay");
    let plan = Plan {
        root: arguments.data_dir,
        ephemeral: true,
        install: Install::Allow,
        listen: Some(([127, 0, 0, 1], 0).into()),
    };
    let house = House::set_up(plan, &clock).await?;
    let tour = tokio::select! {
        tour = tour(&house, &narrator, &clock) => tour,
        _ = crate::lifecycle::signal() => Err(Failed::Interrupted.into()),
    };
    narrator.finish();
    house.take_down().await?;
    let tour = tour?;
    print(&table(&tour));
    verdict(&tour)
}

async fn tour(house: &House, narrator: &Narrator, clock: &Clock) -> anyhow::Result<Tour> {
    let (url, api_key) = (house.state.url.clone(), house.state.api_key.clone());
    let conversations = load::open_conversations(&url, &api_key, CONVERSATIONS).await?;
    let plan = load::Plan {
        url,
        api_key,
        conversations: conversations.clone(),
        connections: CONNECTIONS,
        amount: Amount::For(PHASE * 3),
        warmup: WARMUP,
        body_bytes: 300,
        keys: Keys::Given,
        pace: Pace::PerSecond(SENDS_PER_SECOND),
        on_refusal: OnRefusal::Repeat,
        on_overload: OnOverload::HoldBack,
        run: 1,
    };
    let watch = Arc::new(Watch::default());
    let sending = load::run(plan, Arc::clone(&watch), clock.clone());
    let staging = stage(house, narrator, &watch, clock);
    let (outcome, ()) = tokio::join!(sending, staging);
    let mut outcome = outcome?;
    narrator.line("waiting until Postgres has everything");
    let level_after = wait_until_level(house, clock).await?;
    narrator.line("comparing every event of the log with Postgres and with the receipts");
    let verifier = Verifier {
        log: house.server.log.clone(),
        partitions: house.server.shape.partitions,
        epoch: house.server.shape.epoch.clone(),
        database: house.server.pools.1.clone(),
        clock: clock.clone(),
    };
    let findings = verifier.run(&|_events| {}).await?;
    let partitions = house.server.shape.partitions;
    let stored = apart::stored(&house.server.log, partitions, &conversations).await?;
    let audit = outcome.ledger.audit(stored);
    Ok(Tour { outcome, level_after, findings, audit })
}

/// Stops Postgres after a third of the time and lets it go on after two.
async fn stage(house: &House, narrator: &Narrator, watch: &Watch, clock: &Clock) {
    let begin = clock.now() + WARMUP;
    let progress = |text: &str| {
        narrator.moment(&format!("{text} · {} sends acknowledged", watch.acknowledged()));
    };
    narrator.line(&format!(
        "sending {SENDS_PER_SECOND} messages a second over {CONNECTIONS} connections"
    ));
    until(begin + PHASE, clock, || progress("everything runs")).await;
    narrator.line("stopping Postgres (SIGSTOP); sends go on");
    watch.enter_phase(1);
    house.postgres.pause().await;
    until(begin + PHASE * 2, clock, || progress("Postgres stands still")).await;
    narrator.line("Postgres goes on (SIGCONT)");
    house.postgres.resume();
    watch.enter_phase(2);
    until(begin + PHASE * 3, clock, || progress("Postgres catches up")).await;
}

/// Waits and speaks ten times a second.
async fn until(end: Instant, clock: &Clock, mut speak: impl FnMut()) {
    while clock.now() < end {
        speak();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn wait_until_level(house: &House, clock: &Clock) -> anyhow::Result<Duration> {
    let begin = clock.now();
    loop {
        let is_level = |tail: &crate::journal::Tail| tail.checkpoint() >= tail.position();
        let took = clock.now().saturating_duration_since(begin);
        if house.server.journal.tails().iter().all(is_level) {
            return Ok(took);
        }
        if took > LEVEL_MAX {
            anyhow::bail!("Postgres is not level after {} s", LEVEL_MAX.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn table(tour: &Tour) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY);
    table.set_header(["", "before", "Postgres stopped", "after"]);
    let phases = &tour.outcome.phases[..3];
    let row = |name: &str, cell: &dyn Fn(&Tally) -> String| {
        let cells = phases.iter().map(cell);
        std::iter::once(name.to_owned()).chain(cells).collect::<Vec<_>>()
    };
    table.add_row(row("sent", &|t| (t.acknowledged() + t.failed()).to_string()));
    table.add_row(row("acknowledged (2xx)", &|t| t.acknowledged().to_string()));
    table.add_row(row("other answers", &|t| t.failed().to_string()));
    table.add_row(row("p50", &|t| format!("{:.1} ms", load::tally::millis(t.quantile(0.5)))));
    table.add_row(row("p99", &|t| format!("{:.1} ms", load::tally::millis(t.quantile(0.99)))));
    for column in 1..=3 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let Audit { lost, duplicated, gaps, acknowledged, .. } = tour.audit;
    let (events, differences) = (tour.findings.events, tour.findings.differences.len());
    format!(
        "{table}\n\
         {acknowledged} receipts audited: {lost} lost, {duplicated} duplicated, {gaps} gaps\n\
         Postgres was level {:.1} s after the last send; {events} events compared with it: {differences} differences",
        tour.level_after.as_secs_f64()
    )
}

fn verdict(tour: &Tour) -> anyhow::Result<()> {
    let refused = tour.outcome.phases[1].failed();
    if refused > 0 {
        say(&format!("{refused} sends were not acknowledged while Postgres stood still"));
    }
    let is_kept = tour.audit.is_clean() && tour.findings.is_clean() && refused == 0;
    if is_kept { Ok(()) } else { Err(Failed::Found("a promise was broken".to_owned()).into()) }
}
