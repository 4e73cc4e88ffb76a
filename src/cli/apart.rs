//! A server in a process of its own beside private services: what benchmarks measure.
//! Promises that its memory and CPU time are its own alone, and that it ends with this process.
//! Does not measure.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Deserialize;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use super::sandbox::Scratch;
use super::{operator, say};
use crate::clock::Clock;
use crate::event::{ConversationId, Partitions, Record, TenantId};
use crate::load::{Entry, entries_of};
use crate::log::{Log, Namespace, Settings};
use crate::sandbox::{Durability, Install, Nats, Options, Postgres, provide};

/// The database of the private Postgres.
const DATABASE: &str = "forebay";

/// The operator's token of the measured server, which listens on loopback for as long as it is measured.
pub(crate) const ADMIN_TOKEN: &str = "operator-of-the-benchmark";

/// Longest wait for the server to be ready.
const READY_MAX: Duration = Duration::from_mins(1);

/// How often it is asked for a tenant while its directory does not answer; each attempt has its own deadline.
const TENANT_TRIES: usize = 5;

/// How often it is asked whether it is.
const READY_PAUSE: Duration = Duration::from_millis(5);

/// The services that a benchmark has to itself.
#[derive(Debug)]
pub(crate) struct Services {
    pub(crate) postgres: Arc<Mutex<Postgres>>,
    pub(crate) nats: Nats,
    pub(crate) database_url: String,
    /// A directory on the disk that both sync to.
    pub(crate) data_dir: PathBuf,
    _scratch: Scratch,
}

impl Services {
    /// Starts both with their data beside the programs, so that what is synced is a real disk.
    pub(crate) async fn start(root: PathBuf, install: Install) -> anyhow::Result<Self> {
        Self::start_with(root, install, Duration::ZERO).await
    }

    /// The same on a disk whose every sync takes so much longer.
    pub(crate) async fn start_with(
        root: PathBuf,
        install: Install,
        sync_delay: Duration,
    ) -> anyhow::Result<Self> {
        let mut options = Options { root, install, durability: Durability::Full };
        let mut binaries = provide(&options, &mut |line: &str| say(line)).await?;
        let scratch = Scratch::within(&options.root)?;
        if !sync_delay.is_zero() {
            binaries = binaries.with_slow_syncs(&scratch.path, sync_delay)?;
        }
        options.root.clone_from(&scratch.path);
        let postgres = Postgres::start(&binaries, &options).await?;
        let nats = Nats::start(&binaries, &options).await?;
        postgres.create_database(DATABASE).await?;
        let (database_url, data_dir) = (postgres.url(DATABASE), options.root);
        let postgres = Arc::new(Mutex::new(postgres));
        Ok(Self { postgres, nats, database_url, data_dir, _scratch: scratch })
    }

    /// A connection to the log of this namespace.
    pub(crate) async fn log(&self, namespace: &str) -> anyhow::Result<Log> {
        let namespace = Namespace::parse(namespace).context("a namespace")?;
        let settings = Settings {
            url: self.nats.url(),
            namespace,
            partitions: None,
            replicas: 1,
            partition_bytes_max: i64::MAX / 2,
        };
        Ok(Log::connect(settings).await?)
    }
}

/// A server in a process of its own.
#[derive(Debug)]
pub(crate) struct Apart {
    pub(crate) url: String,
    pub(crate) pid: u32,
    pub(crate) api_key: String,
    /// How long it took from the start of the process until it was ready.
    pub(crate) ready_after: Duration,
    /// The tenant of the key.
    pub(crate) tenant: TenantId,
    child: Child,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Created {
    id: TenantId,
    api_key: String,
}

impl Apart {
    /// Starts this program as a server on these services and makes a tenant.
    pub(crate) async fn start(
        services: &Services,
        settings: &[(&str, &str)],
        clock: &Clock,
    ) -> anyhow::Result<Self> {
        let listen = free_address()?;
        let log = std::fs::File::create(services.data_dir.join("server.log"))?;
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        command
            .args(["serve", "--until-stdin-closes"])
            .env("DATABASE_URL", &services.database_url)
            .env("NATS_URL", services.nats.url())
            .env("FOREBAY_LISTEN", &listen)
            .env("FOREBAY_ADMIN_TOKEN", ADMIN_TOKEN)
            .env("RUST_LOG", "warn")
            .envs(settings.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true);
        let begun = clock.now();
        let mut child = command.spawn().context("starting the server")?;
        let pid = child.id().context("the server has ended")?;
        let url = format!("http://{listen}");
        wait_until_ready(&url, &mut child, clock.now() + READY_MAX, clock).await?;
        let ready_after = clock.now().saturating_duration_since(begun);
        let Created { id: tenant, api_key } = create_tenant(&listen).await?;
        Ok(Self { url, pid, api_key, ready_after, tenant, child })
    }

    /// Lets it drain and waits for its end.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait().await?;
        if !status.success() {
            bail!("the server ended with {status}");
        }
        Ok(())
    }
}

fn free_address() -> anyhow::Result<String> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").context("looking for a free port")?;
    Ok(listener.local_addr()?.to_string())
}

async fn wait_until_ready(
    url: &str,
    child: &mut Child,
    deadline: Instant,
    clock: &Clock,
) -> anyhow::Result<()> {
    loop {
        let answer = operator::probe(&format!("{url}/readyz")).await;
        if answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")) {
            return Ok(());
        }
        if let Some(status) = child.try_wait()? {
            bail!("the server ended with {status} while it started");
        }
        if clock.now() > deadline {
            bail!("the server is not ready after {} s", READY_MAX.as_secs());
        }
        tokio::time::sleep(READY_PAUSE).await;
    }
}

/// What the server answers to the operator, its head included.
pub(crate) async fn as_operator(
    host: &str,
    (method, path): (&str, &str),
    body: &str,
) -> std::io::Result<String> {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\
         Authorization: Bearer {ADMIN_TOKEN}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    operator::exchange(host, &request).await
}

async fn create_tenant(host: &str) -> anyhow::Result<Created> {
    let body = r#"{"name":"bench"}"#;
    let ask = || async {
        as_operator(host, ("POST", "/v1/tenants"), body).await.context("creating a tenant")
    };
    let mut answer = ask().await?;
    // A disk that stands still for a moment is refused as that; a tenant too many does no harm here.
    for _ in 1..TENANT_TRIES {
        if !answer.starts_with("HTTP/1.1 503") {
            break;
        }
        answer = ask().await?;
    }
    let (_head, body) = answer.split_once("\r\n\r\n").context("an answer without a body")?;
    serde_json::from_str(body).with_context(|| format!("creating a tenant: {body}"))
}

/// Everything that the log holds of these conversations.
///
/// # Errors
/// When the log cannot be read.
pub async fn stored(
    log: &Log,
    partitions: Partitions,
    conversations: &[ConversationId],
) -> anyhow::Result<Vec<Entry>> {
    let wanted: std::collections::HashSet<_> = conversations.iter().copied().collect();
    let mut entries = Vec::new();
    for partition in partitions.all() {
        let bounds = log.bounds(partition).await?;
        let mut follow = log.follow(partition, bounds.first.max(1) - 1);
        while follow.position() < bounds.last {
            let (_, bytes) = follow.next_known().await?;
            let record = Record::decode(&bytes)?;
            entries.extend(entries_of(&record).filter(|e| wanted.contains(&e.conversation)));
        }
    }
    Ok(entries)
}

/// The sum of a metric over all of its labels, from a page of metrics.
pub(crate) fn sum_of(page: &str, name: &str) -> u64 {
    let value = |line: &str| -> Option<f64> {
        let rest = line.strip_prefix(name)?;
        let is_whole_name = rest.starts_with(['{', ' ']);
        is_whole_name.then(|| rest.rsplit(' ').next()?.parse().ok())?
    };
    let sum: f64 = page.lines().filter_map(value).sum();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a counter")]
    let sum = sum as u64;
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_summed_over_its_labels_and_not_with_its_namesakes() {
        let page =
            "# HELP a_total x\na_total{p=\"0\"} 3\na_total{p=\"1\"} 4\na_total_more 9\nb 1\n";
        assert_eq!(sum_of(page, "a_total"), 7);
        assert_eq!(sum_of(page, "c"), 0);
    }
}
