//! The arguments of `forebay bench read`, and the history that it makes.
//! Promises a table on standard output and, with `--json`, the same figures in a file.
//! Does not measure; the bench room does.

use std::time::Duration;

use clap::Args;

use super::{Files, length, place};
use crate::bench::backlog::fill::Filling;
use crate::bench::read::{self, Options, Target, of_read};
use crate::cli::apart::{Apart, Services};
use crate::clock::Clock;
use crate::load::Narrator;
use crate::sandbox::Install;

/// Conversations that are read while they are new, and written to: few enough that memory holds 100 messages of each.
const RECENT: Filling = Filling { run: 2, conversations: 200, events_each: 200, text_bytes: 300 };

/// Old pages begin in the first half of a conversation: what is behind it in the log is more than memory holds.
const OLD_SEQS: u64 = 100;

/// Connections of Forebay's pool of requests unless it is configured otherwise.
const POOL_CONNECTIONS: u32 = 10;

/// Arguments of `bench read`.
#[derive(Args, Clone, Debug)]
pub(in crate::cli) struct Arguments {
    /// Events of old history
    #[arg(long, default_value_t = 400_000, value_parser = clap::value_parser!(u32).range(100_000..=20_000_000))]
    events: u32,
    /// Connections that read; with more than Forebay's pool has, some old pages are refused, because a queue stands
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    readers: u16,
    /// Connections that write meanwhile
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    writers: u16,
    /// Messages of a page
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=90))]
    limit: u16,
    /// Rounds of each; the median is told
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Length of a round, in seconds
    #[arg(long, default_value = "3", value_parser = length)]
    seconds: Duration,
    /// Where it lives and what it leaves
    #[command(flatten)]
    files: Files,
}

impl Arguments {
    fn options(&self) -> Options {
        Options {
            limit: self.limit,
            rounds: self.rounds.into(),
            ..options((self.readers, self.writers), self.seconds)
        }
    }
}

/// How pages are read and what is written beside them, unless somebody asks otherwise.
pub(super) fn options((readers, writers): (u16, u16), round: Duration) -> Options {
    Options {
        readers,
        writers,
        limit: 50,
        old_seqs: OLD_SEQS,
        connections: POOL_CONNECTIONS,
        rounds: 1,
        round,
        warmup: (super::WARMUP / 2).min(round),
        body_bytes: 300,
    }
}

/// Starts a server, gives it a history, measures, prints the table, writes the file.
pub(super) async fn run(arguments: &Arguments, clock: &Clock) -> anyhow::Result<()> {
    let services = Services::start(arguments.files.data_dir.clone(), Install::Allow).await?;
    let server = Apart::start(&services, &[], clock).await?;
    let narrator = Narrator::on_stderr();
    let place = place(&services, &server, clock).await?;
    narrator.line(&format!("putting {} events into the log", arguments.events));
    let old = place.fill(Filling::of(1, arguments.events.into(), 300)).await?;
    let recent = place.fill(RECENT).await?;
    narrator.line("waiting until Postgres has them");
    place.level().await?;
    let target = Target {
        url: server.url.clone(),
        api_key: server.api_key.clone(),
        place,
        recent: recent.conversations,
        old: old.conversations,
    };
    let found = read::run(&target, arguments.options(), &services.data_dir, &narrator).await?;
    narrator.finish();
    super::tell(&of_read(&found), &found, arguments.files.json.as_deref())?;
    server.stop().await
}
