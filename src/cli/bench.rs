//! The arguments of `forebay bench send` and `forebay bench append`, and what they print.
//! Promises a table on standard output and, with `--json`, the same figures with all rounds in a file.
//! Does not start servers; the caller hands in what is to be measured.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;

use crate::bench::lineup::Variant;
use crate::bench::send::{self, Hooks, Target};
use crate::bench::{append, report};
use crate::clock::Clock;
use crate::event::{ConversationId, TenantId};
use crate::load::{Audit, Narrator};

/// What all benchmarks take.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Rounds of each variant; the median is told
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub rounds: u16,
    /// Length of a round, in seconds
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Bytes of a body
    #[arg(long, default_value_t = 300)]
    pub payload: usize,
    /// Conversations that are sent to
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub conversations: u32,
    /// Write every figure of every round to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Common {
    /// Length of a round, between 0.1 s and an hour.
    fn round(&self) -> Duration {
        let seconds = if self.seconds.is_finite() {
            self.seconds
        } else {
            5.0
        };
        Duration::from_secs_f64(seconds.clamp(0.1, 3_600.0))
    }
}

/// What runs before a round is measured: connections open, statements are prepared, caches warm.
const WARMUP: Duration = Duration::from_secs(1);

/// Arguments of `bench send`.
#[derive(Args, Clone, Debug)]
pub struct SendArguments {
    /// Connections, one measurement each
    #[arg(long, value_delimiter = ',', default_value = "64,256")]
    pub connections: Vec<u16>,
    /// Measure the references too: direct and gathered INSERTs, raw records, no-op
    #[arg(long)]
    pub compare: bool,
    /// Also measure Forebay with its projector held back during each round
    #[arg(long)]
    pub hold_projector: bool,
    /// What all benchmarks take
    #[command(flatten)]
    pub common: Common,
}

impl SendArguments {
    fn options(&self) -> send::Options {
        let mut variants = vec![Variant::Forebay];
        if self.hold_projector {
            variants.push(Variant::ForebayHeld);
        }
        if self.compare {
            variants.extend(Variant::REFERENCES);
        }
        let connections = self.connections.iter().filter(|count| **count > 0);
        send::Options {
            connections: connections.copied().collect(),
            rounds: usize::from(self.common.rounds),
            round: self.common.round(),
            warmup: WARMUP,
            body_bytes: self.common.payload,
            conversations: usize::try_from(self.common.conversations).unwrap_or(1),
            variants,
        }
    }
}

/// Measures sends, prints the table, writes the file.
///
/// # Errors
/// When it cannot be measured, the file not be written, or the audit is not clean.
pub async fn send(
    arguments: &SendArguments,
    target: &Target,
    hooks: &Hooks,
    clock: &Clock,
) -> anyhow::Result<()> {
    if arguments.hold_projector && hooks.hold.is_none() {
        bail!("this server's projector cannot be held back from here");
    }
    let narrator = Narrator::on_stderr();
    let found = send::run(target, arguments.options(), hooks, &narrator, clock).await?;
    tell(
        &report::of_send(&found),
        &found,
        arguments.common.json.as_deref(),
    )?;
    verdict(found.audit)
}

/// Arguments of `bench append`.
#[derive(Args, Clone, Debug)]
pub struct AppendArguments {
    /// Callers, each with one event under way
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..))]
    pub callers: u16,
    /// What all benchmarks take
    #[command(flatten)]
    pub common: Common,
}

impl AppendArguments {
    /// What `bench::append::run` takes.
    pub fn options(
        &self,
        tenant: TenantId,
        conversations: Vec<ConversationId>,
        data_dir: PathBuf,
    ) -> append::Options {
        append::Options {
            plan: append::Plan {
                callers: usize::from(self.callers),
                warmup: WARMUP,
                round: self.common.round(),
                text_bytes: self.common.payload,
                tenant,
                run: 0,
            },
            rounds: usize::from(self.common.rounds),
            conversations,
            data_dir,
        }
    }

    /// Prints the table, writes the file.
    ///
    /// # Errors
    /// When the file cannot be written or the audit is not clean.
    pub fn tell(&self, found: &append::Report) -> anyhow::Result<()> {
        tell(
            &report::of_append(found),
            found,
            self.common.json.as_deref(),
        )?;
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
        Some(audit) if !audit.is_clean() => bail!("the log does not hold what was acknowledged"),
        Some(_) | None => Ok(()),
    }
}
