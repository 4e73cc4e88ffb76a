//! The arguments of `forebay bench load`, and the quota that it sets.
//! Promises tables on standard output and, with `--json`, the same figures in a file.
//! Does not measure; the bench room does.

use std::time::Duration;

use clap::Args;

use super::pool::raise_file_limit;
use super::send::measured;
use super::{Files, length};
use crate::bench::send::offered::{self, BURST_SHARE, Limit, Options};
use crate::bench::send::{Answer, broken, of_load};
use crate::cli::Failed;
use crate::cli::apart::{Apart, Services, as_operator};
use crate::clock::Clock;
use crate::load::Narrator;
use crate::sandbox::Install;

/// Arguments of `bench load`.
#[derive(Args, Clone, Debug)]
pub(in crate::cli) struct Arguments {
    /// What is offered, in per cent of each variant's own maximum
    #[arg(long, value_delimiter = ',', default_value = "10,25,50,75,90,100,150,300", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    percents: Vec<u32>,
    /// Connections; each has one send under way at most
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(1..=20_000))]
    connections: u16,
    /// Connections of the closed loops that find each variant's maximum
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=20_000))]
    maximum_connections: u16,
    /// Connections that send to one partition at the highest load, more than its queue has room for
    #[arg(long, default_value_t = offered::QUEUE_CONNECTIONS, value_parser = clap::value_parser!(u16).range(1..=20_000))]
    queue_connections: u16,
    /// Bytes of a body of theirs
    #[arg(long, default_value_t = offered::QUEUE_BODY_BYTES)]
    queue_payload: usize,
    /// Length of a step, in seconds
    #[arg(long, default_value = "3", value_parser = length)]
    seconds: Duration,
    /// How long a send waits for a free connection before it is given up, in milliseconds
    #[arg(long, default_value_t = 20)]
    patience: u16,
    /// The quota of the variant that has one, in per cent of Forebay's maximum
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    quota: u32,
    /// Bytes of a body
    #[arg(long, default_value_t = 300)]
    payload: usize,
    /// Conversations that are sent to
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    conversations: u32,
    /// Order in which the variants take turns; drawn anew without it
    #[arg(long)]
    seed: Option<u32>,
    /// Where it lives and what it leaves
    #[command(flatten)]
    files: Files,
}

impl Arguments {
    fn options(&self) -> Options {
        let round = self.seconds;
        Options {
            connections: self.connections,
            maximum_connections: self.maximum_connections,
            queue_connections: self.queue_connections,
            queue_body_bytes: self.queue_payload,
            percents: self.percents.clone(),
            round,
            warmup: super::WARMUP.min(round),
            body_bytes: self.payload,
            conversations: usize::try_from(self.conversations).unwrap_or(1),
            patience: Duration::from_millis(self.patience.into()),
            quota_percent: self.quota,
            seed: super::seed(self.seed),
        }
    }
}

/// Starts a server, measures, prints the tables, writes the file. Fails when the audit is not clean, or a send
/// ended as none should.
pub(super) async fn run(arguments: &Arguments, clock: &Clock) -> anyhow::Result<()> {
    raise_file_limit();
    let services = Services::start(arguments.files.data_dir.clone(), Install::Allow).await?;
    let settings = [("FOREBAY_CONNECTIONS_MAX", "30000")];
    let server = Apart::start(&services, &settings, clock).await?;
    let (target, hooks) = measured(&services, &server).await?;
    let (limit, narrator): (Limit, _) = (Some(Box::new(limit(&server))), Narrator::on_stderr());
    let options = arguments.options();
    let found = offered::run(&target, options, (&hooks, &limit), &narrator, clock).await?;
    narrator.finish();
    super::tell(&of_load(&found), &found, arguments.files.json.as_deref())?;
    server.stop().await?;
    super::verdict(found.audit)?;
    match broken(&found.ways) {
        Some(broken) => Err(Failed::Found(broken).into()),
        None => Ok(()),
    }
}

/// Sets the tenant's quota, or takes it away.
fn limit(server: &Apart) -> impl Fn(Option<u32>) -> Answer<()> + Send + Sync + 'static {
    let host = server.url.trim_start_matches("http://").to_owned();
    let path = format!("/v1/tenants/{}", server.tenant);
    move |quota: Option<u32>| -> Answer<()> {
        let body = match quota {
            Some(quota) => {
                let burst = (quota / BURST_SHARE).max(1);
                format!(r#"{{"sendQuota":{{"perSecond":{quota},"burst":{burst}}}}}"#)
            }
            None => r#"{"sendQuota":null}"#.to_owned(),
        };
        let (host, path) = (host.clone(), path.clone());
        Box::pin(async move {
            let answer = as_operator(&host, ("PATCH", &path), &body).await?;
            if answer.starts_with("HTTP/1.1 200") {
                return Ok(());
            }
            Err(std::io::Error::other(answer).into())
        })
    }
}
