//! The arguments of `forebay bench live`, and the server that it measures.
//! Promises a table on standard output and, with `--json`, the same figures in a file.
//! Does not measure; the bench room does.

use std::time::Duration;

use clap::Args;
use rustix::process::{Resource, getrlimit};

use super::Files;
use super::pool::raise_file_limit;
use crate::bench::live::{self, Options, Part, Target, of_live};
use crate::bench::send::{Answer, Hook};
use crate::cli::apart::{Apart, Services};
use crate::cli::{operator, say};
use crate::clock::Clock;
use crate::load::Narrator;
use crate::sandbox::Install;

/// Files that a process has open beside its sockets, at most.
const FILES_BESIDE: usize = 300;

/// Arguments of `bench live`.
#[derive(Args, Clone, Debug)]
pub(in crate::cli) struct Arguments {
    /// What to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "idle,fan-out,pairs,storm")]
    parts: Vec<Part>,
    /// Idle connections
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=25_000))]
    idle: u32,
    /// Conversations that the idle connections, and those of the storm, are spread over
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    conversations: u32,
    /// Connections that one conversation fans out to
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    receivers: u32,
    /// Messages that fan out
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    messages: u32,
    /// So many of them a second
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    messages_per_second: u32,
    /// Conversations with two connections each
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    pairs: u32,
    /// Sends a second of all pairs together; one connection may send 20
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    sends_per_second: u32,
    /// How long the pairs send, in seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=3_600))]
    seconds: u16,
    /// Clients that come back at once
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    storm: u32,
    /// Where it lives and what it leaves
    #[command(flatten)]
    files: Files,
}

impl Arguments {
    fn options(&self) -> Options {
        let size = |count: u32| usize::try_from(count).unwrap_or(1);
        Options {
            parts: self.parts.clone(),
            idle: size(self.idle),
            conversations: size(self.conversations),
            receivers: size(self.receivers),
            messages: size(self.messages),
            messages_per_second: self.messages_per_second,
            pairs: size(self.pairs),
            sends_per_second: self.sends_per_second,
            length: Duration::from_secs(u64::from(self.seconds)),
            storm: size(self.storm),
        }
    }
}

/// Starts a server, measures, prints the table, writes the file.
pub(super) async fn run(arguments: Arguments, clock: &Clock) -> anyhow::Result<()> {
    raise_file_limit();
    let mut options = arguments.options();
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let room = usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(FILES_BESIDE);
    if options.idle > room {
        say(&format!("only {limit} files may be open: {room} idle connections instead"));
        options.idle = room.max(1);
    }
    let services = Services::start(arguments.files.data_dir.clone(), Install::Allow).await?;
    // Its children inherit the limit of open files.
    let settings = [("FOREBAY_CONNECTIONS_MAX", "30000")];
    let server = Apart::start(&services, &settings, clock).await?;
    let target = Target {
        url: server.url.clone(),
        api_key: server.api_key.clone(),
        pid: server.pid,
        data_dir: services.data_dir.clone(),
    };
    let metrics = format!("{}/metrics", server.url);
    let acquires = move |()| -> Answer<u64> {
        let metrics = metrics.clone();
        Box::pin(async move { Ok(interactive_acquires(&operator::probe(&metrics).await?)) })
    };
    let hook: Hook<(), u64> = Some(Box::new(acquires));
    let narrator = Narrator::on_stderr();
    let found = live::run(&target, options, &hook, &narrator, clock).await;
    narrator.finish();
    let found = found?;
    super::tell(&of_live(&found), &found, arguments.files.json.as_deref())?;
    server.stop().await
}

/// How often the pool of requests gave a connection.
fn interactive_acquires(page: &str) -> u64 {
    let name = "forebay_admission_granted_acquires_total{";
    let lines = page
        .lines()
        .filter(|line| line.starts_with(name) && line.contains(r#"pool="interactive""#));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acquires_of_the_other_pool_do_not_count() {
        let name = "forebay_admission_granted_acquires_total";
        let page = format!(
            "{name}{{pool=\"interactive\",priority=\"high\"}} 3\n{name}{{pool=\"background\"}} 9\n\
             {name}{{priority=\"low\",pool=\"interactive\"}} 4\n"
        );
        assert_eq!(interactive_acquires(&page), 7);
    }
}
