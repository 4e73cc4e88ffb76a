//! The arguments of `forebay bench send`, the server that it measures, and what is asked of its owner.
//! Promises a table on standard output and, with `--json`, the same figures with all rounds in a file.
//! Does not measure; the bench room does.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use super::{Extent, NAMESPACE, WARMUP};
use crate::bench::lineup::{Places, Variant};
use crate::bench::machine::Pids;
use crate::bench::report;
use crate::bench::send::{self, Answer, Hooks, Target};
use crate::cli::apart::{self, Apart, Services};
use crate::cli::operator;
use crate::clock::Clock;
use crate::event::{ConversationId, Partitions};
use crate::load::{Entry, Narrator};
use crate::log::{Log, streams};
use crate::sandbox::Install;

/// Arguments of `bench send`.
#[derive(Args, Clone, Debug)]
pub(in crate::cli) struct Arguments {
    /// Connections, one measurement each
    #[arg(long, value_delimiter = ',', default_value = "64,256", value_parser = clap::value_parser!(u16).range(1..))]
    pub connections: Vec<u16>,
    /// Measure the references too: direct and gathered INSERTs, raw records, no-op
    #[arg(long)]
    pub compare: bool,
    /// Also measure Forebay with its projector held back during each round
    #[arg(long)]
    pub hold_projector: bool,
    /// Make each sync of Postgres and nats-server so many milliseconds longer; needs strace
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000))]
    pub sync_delay_ms: u64,
    /// Order in which the variants of a round take turns; drawn anew without it
    #[arg(long)]
    pub seed: Option<u32>,
    /// How much is measured
    #[command(flatten)]
    pub extent: Extent,
}

impl Arguments {
    fn options(&self) -> send::Options {
        let mut variants = vec![Variant::Forebay];
        if self.hold_projector {
            variants.push(Variant::ForebayHeld);
        }
        if self.compare {
            variants.extend(Variant::REFERENCES);
        }
        send::Options {
            connections: self.connections.clone(),
            rounds: usize::from(self.extent.rounds),
            round: self.extent.seconds,
            warmup: WARMUP,
            body_bytes: self.extent.payload,
            conversations: usize::try_from(self.extent.conversations).unwrap_or(1),
            variants,
            sync_delay: Duration::from_millis(self.sync_delay_ms),
            seed: super::seed(self.seed),
        }
    }
}

/// Measures sends, prints the table, writes the file. Fails when the audit is not clean.
pub(super) async fn run(arguments: &Arguments, clock: &Clock) -> anyhow::Result<()> {
    let (root, options) = (arguments.extent.files.data_dir.clone(), arguments.options());
    let services = Services::start_with(root, Install::Allow, options.sync_delay).await?;
    let server = Apart::start(&services, &[], clock).await?;
    let (target, hooks) = measured(&services, &server).await?;
    let narrator = Narrator::on_stderr();
    let found = send::run(&target, options, &hooks, &narrator, clock).await?;
    narrator.finish();
    super::tell(&report::of_send(&found), &found, arguments.extent.files.json.as_deref())?;
    server.stop().await?;
    super::verdict(found.audit)
}

/// What is measured, and what the benchmark asks of its owner.
pub(super) async fn measured(
    services: &Services,
    server: &Apart,
) -> anyhow::Result<(Target, Hooks)> {
    let log = services.log(NAMESPACE).await?;
    let partitions = streams::shape(&log).await?.partitions;
    let target = Target {
        url: server.url.clone(),
        api_key: server.api_key.clone(),
        places: Places {
            database_url: services.database_url.clone(),
            nats_url: services.nats.url(),
            name: format!("{NAMESPACE}-bench"),
            partitions,
        },
        data_dir: services.data_dir.clone(),
        pids: pids(services, server).await,
    };
    Ok((target, hooks(services, &server.url, (log, partitions))))
}

/// The processes of a measured server and of its services.
pub(super) async fn pids(services: &Services, server: &Apart) -> Pids {
    Pids {
        server: Some(server.pid),
        nats: Some(services.nats.pid()),
        postgres: Some(services.postgres.lock().await.pid()),
    }
}

/// What the benchmark asks of the server's owner. Holding the projector back is stopping its Postgres: sends need none.
fn hooks(services: &Services, url: &str, (log, partitions): (Log, Partitions)) -> Hooks {
    let (postgres, metrics) = (Arc::clone(&services.postgres), format!("{url}/metrics"));
    let lag = move |()| -> Answer<u64> {
        let metrics = metrics.clone();
        Box::pin(async move {
            let page = operator::probe(&metrics).await?;
            let appended = apart::sum_of(&page, "forebay_journal_appended_events_total");
            Ok(appended.saturating_sub(apart::sum_of(&page, "forebay_projection_rows_total")))
        })
    };
    let hold = move |projector| -> Answer<()> {
        let postgres = Arc::clone(&postgres);
        Box::pin(async move {
            let postgres = postgres.lock().await;
            match projector {
                send::Projector::Hold => postgres.pause().await,
                send::Projector::Run => postgres.resume(),
            }
            Ok(())
        })
    };
    let stored = move |conversations: Vec<ConversationId>| -> Answer<Vec<Entry>> {
        let log = log.clone();
        Box::pin(async move { Ok(apart::stored(&log, partitions, &conversations).await?) })
    };
    Hooks { lag: Some(Box::new(lag)), hold: Some(Box::new(hold)), stored: Some(Box::new(stored)) }
}
