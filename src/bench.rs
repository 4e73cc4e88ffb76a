//! Benchmarks: Forebay beside what a service without a log could do, in the same run, on the same machine.
//! Promises interleaved rounds, medians with their spread, and an audit of every receipt where the store can be read back.
//! Does not start Forebay; it is given a running one.

pub mod append;
pub mod backlog;
pub mod deliver;
pub mod live;
pub mod machine;
pub mod pool;
pub mod read;
pub mod reference;
pub mod report;
pub mod send;

pub use reference::{lineup, raw, rows};

use crate::clock::Clock;
use crate::lifecycle::Failure;
use crate::{load, sandbox, store};

/// Why a benchmark could not be run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The load could not be run.
    #[error("running the load")]
    Load(#[from] load::Error),
    /// The machine refused something.
    #[error("{doing}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// Postgres refused something.
    #[error("{doing}")]
    Database {
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        source: sqlx::Error,
    },
    /// NATS is not reached.
    #[error("connecting to NATS")]
    Nats(#[source] async_nats::ConnectError),
    /// A stream of the raw records cannot be made.
    #[error("making a stream for raw records")]
    MakeStream(#[source] async_nats::jetstream::context::CreateStreamError),
    /// A stream of the raw records is gone.
    #[error("finding a stream of raw records")]
    FindStream(#[source] async_nats::jetstream::context::GetStreamError),
    /// A stream of the raw records cannot be emptied.
    #[error("emptying a stream of raw records")]
    EmptyStream(#[source] async_nats::jetstream::stream::PurgeError),
    /// A stream of the raw records cannot be deleted.
    #[error("deleting a stream of raw records")]
    DeleteStream(#[source] async_nats::jetstream::context::DeleteStreamError),
    /// One of the [`send::Hooks`] failed.
    #[error("{doing}")]
    Hook {
        /// What it was asked for.
        doing: &'static str,
        /// Why it failed.
        source: Failure,
    },
    /// The projector did not catch up with a round.
    #[error("the projector does not catch up")]
    ProjectorBehind,
    /// Nothing was acknowledged, so that there is nothing to compare.
    #[error("{what} acknowledged nothing: {reasons:?}")]
    NothingAcknowledged {
        /// What was measured.
        what: &'static str,
        /// How the calls ended instead.
        reasons: std::collections::BTreeMap<String, u64>,
    },
    /// The log cannot be read.
    #[error("reading the log")]
    Log(#[source] crate::log::Error),
    /// A record that was to be put into the log is none.
    #[error("making a record")]
    Encode(#[source] crate::event::record::CodecError),
    /// The log does not take what it is to be filled with.
    #[error("filling the log: {0:?}")]
    NotStored(crate::log::Outcome),
    /// A chart cannot be drawn.
    #[error("drawing a chart")]
    Plot(#[source] plotters::drawing::DrawingAreaErrorKind<std::io::Error>),
    /// Forebay's pool refused something that was no request of the measurement.
    #[error("opening Forebay's pool")]
    Store(#[source] store::Error),
    /// A pool did not get its connections before the measurement.
    #[error("{who} does not answer the first requests: {how}")]
    Cold {
        /// Which pool.
        who: &'static str,
        /// What it did.
        how: String,
    },
    /// Connections to the measured database stay open.
    #[error("the measured database does not become quiet")]
    NotQuiet,
    /// A private service could not be stopped.
    #[error("stopping a private service")]
    Sandbox(#[source] sandbox::Error),
    /// A socket broke.
    #[error("{doing}")]
    Socket {
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        source: Box<tokio_tungstenite::tungstenite::Error>,
    },
    /// Nothing came on a socket.
    #[error("{doing}: nothing came")]
    Silent {
        /// What was being done.
        doing: &'static str,
    },
    /// Something else came on a socket.
    #[error("{doing}: {frame}")]
    Unexpected {
        /// What was being done.
        doing: &'static str,
        /// What came.
        frame: String,
    },
    /// A step did not end by its deadline, so that there is no figure.
    #[error("{doing} takes longer than {} s", within.as_secs())]
    Late {
        /// What was waited for.
        doing: &'static str,
        /// How long.
        within: std::time::Duration,
    },
    /// A task of the benchmark is gone.
    #[error("a task of the benchmark panicked")]
    Panicked,
}

/// The first run of a benchmark: its keys differ from those of one that was started in another millisecond.
fn first_run(clock: &Clock) -> u32 {
    u32::try_from(clock.timestamp().millis() & 0xffff_ffff).unwrap_or(0)
}

fn io(doing: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::Io { doing, source }
}
