//! `bench send`: acknowledged sends over HTTP, Forebay and its references in interleaved rounds.
//! Promises that each variant meets an idle machine: before the next round the projector has caught up.
//! Does not judge; the report shows each figure beside its references.

pub mod offered;
mod order;
mod rounds;
mod table;

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::Serialize;

pub use self::table::{broken, of_load};

use self::rounds::Bench;
use super::lineup::{Places, References, Variant};
use super::machine::{Cost, Machine, Pids};
use super::{Error, first_run};
use crate::clock::Clock;
use crate::event::ConversationId;
use crate::lifecycle::Failure;
use crate::load::{Audit, Entry, Ledger, Narrator, Round, open_conversations};

/// A running Forebay and what stands beside it.
#[derive(Clone, Debug)]
pub struct Target {
    /// `http://host:port` of the server.
    pub url: String,
    /// A key of a tenant without a quota that would bind.
    pub api_key: String,
    /// Where the references live.
    pub places: Places,
    /// A directory on the disk that is synced to.
    pub data_dir: PathBuf,
    /// Processes to watch.
    pub pids: Pids,
}

/// How to measure.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Options {
    /// Connections, one measurement each.
    pub connections: Vec<u16>,
    /// Rounds of each variant.
    pub rounds: usize,
    /// Length of a round.
    pub round: Duration,
    /// What is sent before a round is measured.
    pub warmup: Duration,
    /// Bytes of a send's body.
    pub body_bytes: usize,
    /// Conversations that the sends go to.
    pub conversations: usize,
    /// What is measured.
    pub variants: Vec<Variant>,
    /// How much longer each sync of Postgres and nats-server was made.
    pub sync_delay: Duration,
    /// Of the order in which the variants of a round take turns.
    pub seed: u32,
}

/// The answer of a hook.
pub type Answer<T> = BoxFuture<'static, Result<T, Failure>>;

/// Something that the owner of the server is asked for.
pub type Hook<Q, A> = Option<Box<dyn Fn(Q) -> Answer<A> + Send + Sync>>;

/// What only the owner of the server can do; each may be missing.
#[derive(Default)]
pub struct Hooks {
    /// How many events of the log the projector has not written yet.
    pub lag: Hook<(), u64>,
    /// Holds the projector back or lets it go on. Needed for [`Variant::ForebayHeld`].
    pub hold: Hook<Projector, ()>,
    /// Everything that the log holds of these conversations, for the audit.
    pub stored: Hook<Vec<ConversationId>, Vec<Entry>>,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks")
            .field("lag", &self.lag.is_some())
            .field("hold", &self.hold.is_some())
            .field("stored", &self.stored.is_some())
            .finish()
    }
}

/// What the projector is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projector {
    /// To write nothing.
    Hold,
    /// To write again.
    Run,
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// When it began, RFC 3339.
    pub at: String,
    /// On what.
    pub machine: Machine,
    /// How.
    pub options: Options,
    /// The figures, by connections and in the order of the variants.
    pub measured: Vec<Measured>,
    /// The audit of Forebay's receipts, if its log could be read back.
    pub audit: Option<Audit>,
    /// Receipts of Forebay in all rounds and warm-ups.
    pub acknowledged: u64,
    /// The server's resident memory at the end, in bytes.
    pub server_rss_bytes: Option<u64>,
}

/// One variant at one number of connections.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Measured {
    /// What.
    pub variant: Variant,
    /// Over how many connections, or by how many callers.
    pub connections: u16,
    /// Its rounds.
    pub rounds: Vec<Round>,
    /// What the processes took, a round each. A reference shares its process with the load, so that only nats-server and
    /// Postgres are told of it.
    pub taken: Vec<Taken>,
}

/// What one round took beside its answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Taken {
    /// For the sends that were acknowledged, warm-up included.
    #[serde(flatten)]
    pub cost: Cost,
    /// Events that were acknowledged but not projected when the round was over.
    pub lag_at_end: Option<u64>,
    /// Rows a second that the projector wrote during the round, under load.
    pub projected_per_second: Option<f64>,
    /// Rows a second that it wrote after the round, if the lag was worth measuring.
    pub caught_up_per_second: Option<f64>,
}

/// Measures.
///
/// # Errors
/// When something cannot be prepared, the projector does not catch up, or a variant acknowledges nothing.
pub async fn run(
    target: &Target,
    options: Options,
    hooks: &Hooks,
    narrator: &Narrator,
    clock: &Clock,
) -> Result<Report, Error> {
    let mut bench = prepare(target, options, hooks, narrator, clock).await?;
    let ended = bench.all_rounds().await;
    bench.remove_references().await?;
    ended?;
    bench.finish().await
}

/// Starts the references, opens the conversations and looks at the machine.
async fn prepare<'a>(
    target: &'a Target,
    options: Options,
    hooks: &'a Hooks,
    narrator: &'a Narrator,
    clock: &'a Clock,
) -> Result<Bench<'a>, Error> {
    let compares = options.variants.iter().any(|variant| !variant.is_forebay());
    let references =
        if compares { Some(References::start(target.places.clone(), clock).await?) } else { None };
    narrator.line(&format!("opening {} conversations", options.conversations));
    let conversations =
        open_conversations(&target.url, &target.api_key, options.conversations.max(1)).await?;
    Ok(Bench {
        report: Report {
            at: clock.timestamp().to_string(),
            machine: Machine::look(&target.data_dir, clock).await?,
            measured: empty_measures(&options),
            options,
            audit: None,
            acknowledged: 0,
            server_rss_bytes: None,
        },
        target,
        hooks,
        narrator,
        clock,
        references,
        conversations,
        ledger: Ledger::default(),
        run: first_run(clock),
    })
}

fn empty_measures(options: &Options) -> Vec<Measured> {
    let of = |connections: &u16| {
        let connections = *connections;
        let variants = options.variants.iter();
        variants.map(move |variant| Measured {
            variant: *variant,
            connections,
            rounds: Vec::new(),
            taken: Vec::new(),
        })
    };
    options.connections.iter().flat_map(of).collect()
}

/// The answer of a hook, with what it was asked for in case it fails.
pub(super) async fn asked<T>(
    doing: &'static str,
    answer: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Error> {
    answer.await.map_err(|source| Error::Hook { doing, source })
}
