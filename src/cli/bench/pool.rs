//! The arguments of `forebay bench pool`, and what it starts: a private Postgres and, to compare with, a `PgBouncer`.
//! Promises a table on standard output and, with `--json`, the same figures in a file.
//! Does not measure; the bench room does.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::bench::pool::{self, Options, Places, Rivals, of_pool};
use crate::cli::sandbox::Scratch;
use crate::cli::say;
use crate::clock::Clock;
use crate::load::Narrator;
use crate::sandbox::{self, Durability, Install, PgBouncer, Pooling, Postgres};

/// The database that is asked.
const DATABASE: &str = "forebay";

/// The database from which it is watched; every Postgres has it.
const MONITOR: &str = "postgres";

/// Arguments of `bench pool`.
#[derive(Args, Clone, Debug)]
pub(in crate::cli) struct Arguments {
    /// Measure a plain pool of sqlx and PgBouncer in transaction mode too
    #[arg(long)]
    compare: bool,
    /// Requests a second
    #[arg(long, default_value_t = 3_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    rate: u32,
    /// Length of each measurement, in seconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=3_600))]
    seconds: u16,
    /// Connections of each pool
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=100))]
    connections: u16,
    /// How long each request takes in Postgres, in milliseconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    service_ms: u16,
    /// How long a client waits, in milliseconds
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u16).range(1..=60_000))]
    deadline_ms: u16,
    /// Tenants that the requests come from, in turns
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    tenants: u16,
    /// Connections of clients to PgBouncer
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    clients: u16,
    /// How long PgBouncer lets a request wait before it disconnects its client, in milliseconds
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=600_000))]
    query_wait_ms: u32,
    /// Where programs are kept; the data of the run is beside them, and removed at the end
    #[arg(long, default_value = ".forebay")]
    data_dir: PathBuf,
    /// Print the commands that would install what is missing, and fail
    #[arg(long)]
    no_install: bool,
    /// Write every figure to this file
    #[arg(long, value_name = "FILE", value_parser = super::writable)]
    json: Option<PathBuf>,
}

impl Arguments {
    fn options(&self) -> Options {
        Options {
            per_second: f64::from(self.rate),
            length: Duration::from_secs(u64::from(self.seconds)),
            connections: self.connections,
            service: Duration::from_millis(u64::from(self.service_ms)),
            deadline: Duration::from_millis(u64::from(self.deadline_ms)),
            tenants: self.tenants,
        }
    }

    fn query_wait(&self) -> Duration {
        Duration::from_millis(u64::from(self.query_wait_ms))
    }

    /// A client that leaves is replaced by one that connects, and `PgBouncer` may see the second first.
    fn pooling(&self) -> Pooling {
        Pooling {
            pool_size: self.connections,
            clients_max: self.clients.saturating_mul(2),
            query_wait: self.query_wait(),
        }
    }
}

/// Starts what is needed, measures, prints the table, writes the file.
pub(super) async fn run(arguments: Arguments, clock: &Clock) -> anyhow::Result<()> {
    let install = if arguments.no_install { Install::PrintOnly } else { Install::Allow };
    let root = arguments.data_dir.clone();
    let mut options = sandbox::Options { root, install, durability: Durability::Fast };
    raise_file_limit();
    let binaries = sandbox::provide(&options, &mut |line: &str| say(line)).await?;
    let pgbouncer = if arguments.compare {
        Some(sandbox::provide_pgbouncer(&options, &mut |line: &str| say(line)).await?)
    } else {
        None
    };
    let scratch = Scratch::within(&options.root)?;
    options.root.clone_from(&scratch.path);
    let postgres = Postgres::start(&binaries, &options).await?;
    postgres.create_database(DATABASE).await?;
    let rivals = match pgbouncer {
        Some(program) => {
            let pooling = arguments.pooling();
            let pgbouncer = PgBouncer::start(&program, &options, &postgres, pooling).await?;
            Some(Rivals {
                url: pgbouncer.url(DATABASE),
                pgbouncer,
                clients: usize::from(arguments.clients),
                query_wait: arguments.query_wait(),
            })
        }
        None => None,
    };
    let places = Places {
        database_url: postgres.url(DATABASE),
        database: DATABASE.to_owned(),
        monitor_url: postgres.url(MONITOR),
        rivals,
        data_dir: options.root.clone(),
    };
    let narrator = Narrator::on_stderr();
    let found = pool::run(places, arguments.options(), &narrator, clock).await;
    narrator.finish();
    let found = found.context("measuring pools")?;
    super::tell(&of_pool(&found), &found, arguments.json.as_deref())?;
    postgres.stop().await?;
    Ok(())
}

/// Takes as many open files as the system allows: each client of `PgBouncer` is one here and one there, which inherits
/// the limit. Where that is not allowed, connecting says so.
pub(super) fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}
