//! The commands of `forebay bench`, the arguments of `append`, and what several of them share.
//! Promises a table on standard output and, with `--json`, the same figures with all rounds in a file.
//! Does not measure; the bench room does.

mod all;
mod deliver;
mod growth;
mod live;
mod load;
mod pool;
mod project;
mod read;
mod send;
mod start;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use futures_util::future::BoxFuture;
use serde::Serialize;

use super::Failed;
use super::apart::{self, Apart, Services};
use super::serve::{self, Server};
use crate::bench::backlog::Place;
use crate::bench::send::{Answer, Hook};
use crate::bench::{append, report};
use crate::clock::Clock;
use crate::config::Config;
use crate::event::{ConversationId, TenantId};
use crate::journal::{self, Draft, Verdict};
use crate::load::{Audit, Entry, Narrator};
use crate::log::streams;
use crate::sandbox::Install;

/// The namespace of the measured server: the default.
const NAMESPACE: &str = "forebay";

/// Deadline of one append.
const APPEND_MAX: Duration = Duration::from_secs(2);

/// `forebay bench …`
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum Command {
    /// Acknowledged sends over HTTP, with --compare beside their references
    Send(send::Arguments),
    /// Sends at fixed times, from far below the maximum to three times as many, beside INSERTs
    Load(load::Arguments),
    /// Appends without HTTP: one node alone, and two nodes in turns
    Append(AppendArguments),
    /// More requests than connections can serve, for Forebay's pool, with --compare for sqlx's and PgBouncer too
    ///
    /// An open loop: requests come at fixed times, however long the answers take, and a latency counts from the moment at
    /// which the request was due. A client that has no answer at its deadline is gone. Goodput is right answers within the
    /// deadline, in per cent of what the connections can serve: connections / what one request takes alone, measured in
    /// the same run. Postgres and PgBouncer are private ones, started for this and removed at the end.
    Pool(pool::Arguments),
    /// Sockets: memory of idle ones, fan-out, conversations of two, and many that come back at once
    Live(live::Arguments),
    /// Webhooks: a healthy tenant beside a neighbour in trouble, parking and release, throughput
    Deliver(deliver::Arguments),
    /// Pages of recent and of old history, alone and beside writes, beside the same SELECT
    Read(read::Arguments),
    /// A backlog written to Postgres, beside COPY of the same rows
    Project(project::Arguments),
    /// From the start of a server until it is ready, with and without much in the log
    Start(start::Arguments),
    /// What 10 and 100 times as many conversations, and 10 times the history, cost
    Growth(growth::Arguments),
    /// All of them, one after the other, with all reports in one file
    All(all::Arguments),
    /// Charts of reports that were written with --json
    Plot(all::PlotArguments),
}

/// Starts what is to be measured and measures it.
pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    super::quiet_log_lines("error")?;
    match command {
        Command::Send(arguments) => Box::pin(send::run(&arguments, &Clock::system())).await,
        Command::Load(arguments) => Box::pin(load::run(&arguments, &Clock::system())).await,
        Command::Append(arguments) => Box::pin(append(&arguments, &Clock::system())).await,
        Command::Pool(arguments) => Box::pin(pool::run(arguments, &Clock::system())).await,
        Command::Live(arguments) => Box::pin(live::run(arguments, &Clock::system())).await,
        Command::Read(arguments) => Box::pin(read::run(&arguments, &Clock::system())).await,
        Command::Project(arguments) => Box::pin(project::run(&arguments, &Clock::system())).await,
        Command::Start(arguments) => Box::pin(start::run(&arguments, &Clock::system())).await,
        Command::Growth(arguments) => Box::pin(growth::run(&arguments, &Clock::system())).await,
        Command::All(arguments) => Box::pin(all::run(&arguments, &Clock::system())).await,
        Command::Plot(arguments) => all::plot(&arguments),
        Command::Deliver(arguments) => Box::pin(deliver::run(arguments, &Clock::system())).await,
    }
}

/// Where a benchmark lives and what it leaves.
#[derive(Args, Clone, Debug)]
pub(super) struct Files {
    /// Where programs are kept; the data of the run is beside them, and removed at the end
    #[arg(long, default_value = ".forebay")]
    pub data_dir: PathBuf,
    /// Write every figure to this file
    #[arg(long, value_name = "FILE", value_parser = writable)]
    pub json: Option<PathBuf>,
}

/// How much is measured.
#[derive(Args, Clone, Debug)]
pub(super) struct Extent {
    /// Rounds of each variant; the median is told
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub rounds: u16,
    /// Length of a round, in seconds
    #[arg(long, default_value = "5", value_parser = length)]
    pub seconds: Duration,
    /// Bytes of a body
    #[arg(long, default_value_t = 300)]
    pub payload: usize,
    /// Conversations that are sent to
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub conversations: u32,
    /// Where it lives and what it leaves
    #[command(flatten)]
    pub files: Files,
}

/// A length in seconds, from 0.1 to 3 600.
fn length(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3_600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "not within 0.1 to 3600".to_owned())
}

/// A file that can be written: who measures for an hour should hear of it before.
fn writable(text: &str) -> Result<PathBuf, String> {
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(text);
    opened.map(|_file| PathBuf::from(text)).map_err(|error| error.to_string())
}

/// The seed that somebody asked for, or one that is drawn.
fn seed(asked: Option<u32>) -> u32 {
    asked.unwrap_or_else(|| u32::try_from(super::seed() & 0xffff_ffff).unwrap_or(0))
}

/// What runs before a round is measured: connections open, statements are prepared, caches warm.
const WARMUP: Duration = Duration::from_secs(1);

/// Where a measured server has its log and its tables.
async fn place(services: &Services, server: &Apart, clock: &Clock) -> anyhow::Result<Place> {
    let log = services.log(NAMESPACE).await?;
    let partitions = streams::shape(&log).await?.partitions;
    let (tenant, database_url) = (server.tenant, services.database_url.clone());
    let (pids, clock) = (send::pids(services, server).await, clock.clone());
    Ok(Place { log, partitions, tenant, database_url, pids, clock })
}

/// Measures appends, prints the table, writes the file. Fails when the audit is not clean.
async fn append(arguments: &AppendArguments, clock: &Clock) -> anyhow::Result<()> {
    let services = Services::start(arguments.extent.files.data_dir.clone(), Install::Allow).await?;
    let (database, nats) = (services.database_url.clone(), services.nats.url());
    let start = |namespace: &'static str| {
        let settings = [
            ("DATABASE_URL", database.clone()),
            ("NATS_URL", nats.clone()),
            ("FOREBAY_NAMESPACE", namespace.to_owned()),
            ("FOREBAY_ADMIN_TOKEN", "operator-of-the-benchmark".to_owned()),
            ("FOREBAY_LISTEN", "127.0.0.1:0".to_owned()),
            ("FOREBAY_PROJECT", "off".to_owned()),
            // Two logs share a server that reserves what they may grow to.
            ("FOREBAY_PARTITION_BYTES_MAX", (8_u64 << 30).to_string()),
        ];
        let look_up = |name: &str| {
            settings.iter().find(|(set, _)| *set == name).map(|(_, value)| value.clone())
        };
        let config = Config::read(&look_up);
        async move { anyhow::Ok(serve::start(config?, clock.clone(), super::seed()).await?) }
    };
    let servers = [start("alone").await?, start("pair").await?, start("pair").await?];
    let nodes = servers.each_ref().map(|server| node(server, clock));
    let logs: Vec<_> = servers[..2].iter().map(|s| (s.log.clone(), s.shape.partitions)).collect();
    let stored = move |conversations: Vec<ConversationId>| -> Answer<Vec<Entry>> {
        let logs = logs.clone();
        Box::pin(async move {
            let mut entries = Vec::new();
            for (log, partitions) in logs {
                entries.extend(apart::stored(&log, partitions, &conversations).await?);
            }
            Ok(entries)
        })
    };
    // Each line-up has its own.
    let count = arguments.extent.conversations * 2;
    let conversations = (0..count).map(|_| servers[0].ingest.make_conversation(clock.timestamp()));
    let tenant = TenantId::derive([7; 16]);
    let options = arguments.options(tenant, conversations.collect(), services.data_dir.clone());
    let (hook, narrator): (Hook<_, _>, _) = (Some(Box::new(stored)), Narrator::on_stderr());
    let line_ups = [&nodes[..1], &nodes[1..]];
    let found = append::run(options, &line_ups, &hook, &narrator, clock).await?;
    narrator.finish();
    drop(nodes);
    for server in servers {
        server.stop().await;
    }
    arguments.tell(&found)
}

/// How a node of `bench append` appends.
type Appending = BoxFuture<'static, Result<Vec<Verdict>, journal::Error>>;

/// A node of `bench append`: its journal, and its counts from its page of metrics.
fn node(
    server: &Server,
    clock: &Clock,
) -> append::Node<
    impl Fn(Vec<Draft>) -> Appending + Clone + Send + Sync + 'static,
    impl Fn() -> append::Counts,
> {
    let (journal, clock) = (server.journal.clone(), clock.clone());
    let exporter = server.exporter.clone();
    append::Node {
        append: move |drafts: Vec<Draft>| {
            let (journal, clock) = (journal.clone(), clock.clone());
            let appending: Appending = Box::pin(async move {
                let bytes = drafts.iter().map(|draft| draft.body.size()).sum();
                let conversation = drafts[0].conversation;
                let place =
                    journal.admit(conversation, bytes).map_err(|_busy| journal::Error::Late)?;
                journal.append(place, drafts, None, clock.now() + APPEND_MAX).await
            });
            appending
        },
        counts: move || {
            let page = exporter.render();
            let conflicts = apart::sum_of(&page, "forebay_journal_conflicts_total");
            let won = apart::sum_of(&page, "forebay_journal_record_events_count");
            append::Counts { published: won + conflicts, conflicts }
        },
    }
}

/// Arguments of `bench append`.
#[derive(Args, Clone, Debug)]
pub(super) struct AppendArguments {
    /// Callers, each with one event under way
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..))]
    pub callers: u16,
    /// How much is measured
    #[command(flatten)]
    pub extent: Extent,
}

impl AppendArguments {
    /// What `bench::append::run` takes.
    pub(super) fn options(
        &self,
        tenant: TenantId,
        conversations: Vec<ConversationId>,
        data_dir: PathBuf,
    ) -> append::Options {
        append::Options {
            plan: append::Plan {
                callers: usize::from(self.callers),
                warmup: WARMUP,
                round: self.extent.seconds,
                text_bytes: self.extent.payload,
                tenant,
                run: 0,
            },
            rounds: usize::from(self.extent.rounds),
            conversations,
            data_dir,
        }
    }

    /// Prints the table, writes the file.
    ///
    /// # Errors
    /// When the file cannot be written or the audit is not clean.
    pub(super) fn tell(&self, found: &append::Report) -> anyhow::Result<()> {
        tell(&report::of_append(found), found, self.extent.files.json.as_deref())?;
        verdict(found.audit)
    }
}

fn tell(text: &str, figures: &impl Serialize, file: Option<&Path>) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{text}").context("printing the report")?;
    if let Some(file) = file {
        let json = serde_json::to_vec_pretty(figures).context("writing the report as JSON")?;
        std::fs::write(file, json).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(())
}

fn verdict(audit: Option<Audit>) -> anyhow::Result<()> {
    match audit {
        Some(audit) if !audit.is_clean() => {
            Err(Failed::Found("the log does not hold what was acknowledged".to_owned()).into())
        }
        Some(_) | None => Ok(()),
    }
}
