//! What an operator does to an installation: migrate, streams, rebuild, verify, healthcheck.
//! Promises that a check that finds something exits with 5, and that every refusal says why.
//! Does not start a server.

use std::time::Duration;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::settings::Flags;
use super::{Failed, print, say};
use crate::clock::Clock;
use crate::config::{self, Config};
use crate::lifecycle::Supervisor;
use crate::log::{Log, streams};
use crate::metrics::Metrics;
use crate::operate::verify::{self, Findings, Verifier};
use crate::projection::rebuild::Rebuild;
use crate::store::{self, schema};

/// Deadline of migrations.
const MIGRATE_MAX: Duration = Duration::from_mins(10);

/// Longest wait for the first connection.
const DATABASE_MAX: Duration = Duration::from_secs(10);

/// Longest wait for a probe's answer.
const PROBE_MAX: Duration = Duration::from_secs(3);

/// Longest answer that is read: a page of metrics is the longest.
const ANSWER_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Settings that a command may not need, with values that pass for them.
pub(crate) const ADMIN_TOKEN: (&str, &str) = ("FOREBAY_ADMIN_TOKEN", "this-command-needs-no-token");
const DATABASE_URL: (&str, &str) = ("DATABASE_URL", "postgres://none");

/// `forebay streams …`
#[derive(Subcommand, Debug)]
pub(crate) enum Streams {
    /// Create what is missing and change what may be changed
    Apply(Flags),
    /// Print every difference; exit code 5 when there is one
    Check(Flags),
}

/// Arguments of `forebay healthcheck`.
#[derive(Args, Debug)]
pub(crate) struct HealthArguments {
    /// The probe to ask; by default /readyz of this configuration's address
    url: Option<String>,
}

/// Brings the schema up to date.
pub(crate) async fn migrate(config: &Config) -> anyhow::Result<()> {
    let clock = Clock::system();
    let deadline = clock.now() + MIGRATE_MAX;
    let target = &config.database;
    let mut conn = target.connect("migrate", MIGRATE_MAX, deadline).await?;
    let count = schema::migrate(&mut conn, target, deadline).await?;
    say(&match count {
        0 => "the schema was up to date".to_owned(),
        count => format!("applied {count} migration(s)"),
    });
    Ok(())
}

/// Compares or applies the streams.
pub(crate) async fn streams(command: Streams) -> anyhow::Result<()> {
    match command {
        Streams::Apply(flags) => {
            let log = Log::connect(flags.config_without(&[ADMIN_TOKEN, DATABASE_URL])?.log).await?;
            let epoch = format!("{:08x}", super::seed() & 0xffff_ffff);
            let shape = streams::apply(&log, &epoch).await.map_err(refused)?;
            let count = shape.partitions.count();
            say(&format!("the log has {count} partitions and epoch {}", shape.epoch));
            Ok(())
        }
        Streams::Check(flags) => {
            let log = Log::connect(flags.config_without(&[ADMIN_TOKEN, DATABASE_URL])?.log).await?;
            let drifts = streams::check(&log).await.map_err(refused)?;
            for drift in &drifts {
                let remedy = if drift.mendable { "" } else { " (cannot be changed)" };
                print(&format!("{drift}{remedy}"));
            }
            match drifts.len() {
                0 => {
                    say("the streams are as they should be");
                    Ok(())
                }
                count => Err(Failed::Found(format!("{count} difference(s)")).into()),
            }
        }
    }
}

/// A mismatch of the streams is a conflict; everything else is a failure.
fn refused(error: crate::log::Error) -> anyhow::Error {
    if let crate::log::Error::Streams(mismatch) = &error {
        return Failed::Conflict(mismatch.to_string()).into();
    }
    error.into()
}

/// Projects the log anew.
pub(crate) async fn rebuild(config: &Config) -> anyhow::Result<()> {
    super::quiet_log_lines("error")?;
    let log = Log::connect(config.log.clone()).await?;
    let shape = streams::shape(&log).await.map_err(refused)?;
    let rebuild = Rebuild {
        log,
        partitions: shape.partitions,
        epoch: shape.epoch,
        target: config.database.clone(),
        clock: Clock::system(),
    };
    let bar = counter("events projected");
    let events = rebuild.run(&|events| bar.set_position(events)).await?;
    bar.finish_and_clear();
    say(&format!("rebuilt from {events} events; the new tables are in place"));
    Ok(())
}

/// Compares Postgres with the log.
pub(crate) async fn verify(config: &Config) -> anyhow::Result<()> {
    super::quiet_log_lines("error")?;
    let bar = counter("events compared");
    let findings = findings(config, &|events| bar.set_position(events)).await?;
    bar.finish_and_clear();
    report(&findings)
}

/// Compares Postgres with the log, for those who judge by themselves.
///
/// # Errors
/// When one of the two cannot be read, or the rows belong to another log.
pub async fn findings(
    config: &Config,
    progress: &(dyn Fn(u64) + Send + Sync),
) -> anyhow::Result<Findings> {
    let log = Log::connect(config.log.clone()).await?;
    let shape = streams::shape(&log).await.map_err(refused)?;
    let clock = Clock::system();
    // Says at once, and why, when there is no Postgres to ask.
    let deadline = clock.now() + DATABASE_MAX;
    drop(config.database.connect("verify", DATABASE_MAX, deadline).await?);
    let supervisor = Supervisor::new();
    let mut means = store::Means {
        clock: clock.clone(),
        metrics: Metrics::silent(0),
        supervisor: supervisor.clone(),
        rng: StdRng::seed_from_u64(super::seed()),
    };
    let (_interactive, database) = store::open(&config.store(), &mut means);
    database.warm(clock.now() + DATABASE_MAX).await;
    let (partitions, epoch) = (shape.partitions, shape.epoch);
    let verifier = Verifier { log, partitions, epoch, database, clock };
    verifier.run(progress).await.map_err(of_another_log)
}

/// Rows of another log are a conflict; everything else is a failure.
fn of_another_log(error: verify::Error) -> anyhow::Error {
    if matches!(error, verify::Error::OtherLog { .. }) {
        return Failed::Conflict(error.to_string()).into();
    }
    error.into()
}

/// Prints what a comparison found.
pub(crate) fn report(findings: &Findings) -> anyhow::Result<()> {
    for difference in &findings.differences {
        print(difference);
    }
    if findings.further > 0 {
        print(&format!("… and {} more", findings.further));
    }
    if findings.records_ahead > 0 {
        let records = findings.records_ahead;
        say(&format!("{records} records of the log are not projected yet and were not compared"));
    }
    let events = findings.events;
    if findings.is_clean() {
        if findings.attempts > 0 {
            say(&format!("{} attempts of deliveries compared", findings.attempts));
        }
        say(&format!("{events} events compared: Postgres is what the log says"));
        return Ok(());
    }
    let count = findings.differences.len() as u64 + findings.further;
    Err(Failed::Found(format!("{count} difference(s) in {events} events")).into())
}

/// A counter on a terminal, nothing elsewhere.
fn counter(what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {human_pos} {msg} ({per_sec})");
    let bar = ProgressBar::new_spinner().with_message(what);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_never) => bar,
    }
}

/// Asks a server whether it is ready.
pub(crate) async fn healthcheck(arguments: &HealthArguments) -> anyhow::Result<()> {
    let own = || {
        let listen = config::environment("FOREBAY_LISTEN");
        let listen = listen.unwrap_or_else(|| "127.0.0.1:8080".to_owned());
        format!("http://{}/readyz", listen.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]"))
    };
    let url = arguments.url.clone().unwrap_or_else(own);
    let asking = probe(&url);
    let asked = tokio::time::timeout(PROBE_MAX, asking).await;
    let answer = match asked {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Err(Failed::NotReady(format!("{url}: {error}")).into()),
        Err(_elapsed) => return Err(Failed::NotReady(format!("{url}: no answer")).into()),
    };
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).unwrap_or("?");
    if status == "200" {
        say("ready");
        return Ok(());
    }
    Err(Failed::NotReady(format!("{url}: {status} {}", body.trim())).into())
}

/// One GET over a connection of its own. A client library would be the larger part of a health check.
///
/// # Errors
/// When nobody answers.
pub async fn probe(url: &str) -> std::io::Result<String> {
    let rest = url.strip_prefix("http://").ok_or(std::io::ErrorKind::InvalidInput)?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, "readyz"));
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    exchange(host, &request).await
}

/// Sends one request that asks for the connection to be closed, and reads the answer up to that.
///
/// # Errors
/// When nobody answers.
pub async fn exchange(host: &str, request: &str) -> std::io::Result<String> {
    let mut stream = tokio::net::TcpStream::connect(host).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer).await?;
    Ok(answer)
}
