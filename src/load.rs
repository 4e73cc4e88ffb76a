//! The load generator: sends over N keep-alive connections, each with one send under way at a time.
//! Promises to note every receipt in the ledger and every other outcome in a tally, and to cost the machine little: one thread,
//! requests made once, answers taken apart in place.
//! Does not know what it measures; Forebay and the reference endpoints are addressed alike.

mod arrivals;
pub mod backoff;
pub mod callers;
pub mod connection;
pub mod ledger;
pub mod narrator;
pub mod tally;
pub mod throttle;
pub mod wire;
mod worker;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;

pub use connection::open_conversations;
pub use ledger::{Audit, Entry, Ledger, entries_of};
pub use narrator::Narrator;
pub use tally::{Round, Spread, Tally};
pub use wire::Keys;

use crate::clock::Clock;
use crate::event::ConversationId;
use connection::address_of;
use tally::Window;
use throttle::Throttle;
use wire::conversation_text;
use worker::{Found, Job, work};

/// Why a load could not be run. What a server does under load is an outcome, not an error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is of another form.
    #[error("{url} is not of the form http://host:port")]
    Address {
        /// What was given.
        url: String,
    },
    /// The host's name is unknown.
    #[error("resolving the server's address")]
    Resolve(#[source] std::io::Error),
    /// Nobody listens.
    #[error("connecting to the server")]
    Connect(#[source] std::io::Error),
    /// The connection broke during the preparations.
    #[error("opening conversations")]
    OpenConversations(#[source] std::io::Error),
    /// The server refused the preparations.
    #[error("the server answered {status} when a conversation was opened: {body}")]
    Refused {
        /// The status.
        status: u16,
        /// The body.
        body: String,
    },
    /// The load's own thread could not be made.
    #[error("starting the thread of the load")]
    StartThread(#[source] std::io::Error),
    /// A defect in the load generator.
    #[error("the load generator panicked")]
    Panicked,
}

/// What to send, where and for how long.
#[derive(Clone, Debug)]
pub struct Plan {
    /// `http://host:port` of the server.
    pub url: String,
    /// The tenant's key.
    pub api_key: String,
    /// Conversations, spread over the connections. At least one.
    pub conversations: Vec<ConversationId>,
    /// Connections, at least one and at most 65 535.
    pub connections: u16,
    /// When to end.
    pub amount: Amount,
    /// How long at the start sends are not tallied; the ledger has them.
    pub warmup: Duration,
    /// Bytes of each body.
    pub body_bytes: usize,
    /// Whether sends carry keys.
    pub keys: Keys,
    /// How fast to send.
    pub pace: Pace,
    /// What a connection does with a send that was not acknowledged.
    pub on_refusal: OnRefusal,
    /// What all connections together do when the server is overloaded.
    pub on_overload: OnOverload,
    /// Makes the keys of this run its own.
    pub run: u32,
}

/// When a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// After this time, warm-up not counted.
    For(Duration),
    /// After so many sends.
    Sends(u64),
}

/// How fast to send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Each connection sends again as soon as it has its answer (closed loop).
    AnswerByAnswer,
    /// So many sends a second, however long the answers take (open loop); a latency counts from the moment at which the
    /// send was due. Due times are kept to a millisecond.
    PerSecond(f64),
    /// An open loop in which the connections share what is due: a send takes any connection that is free, and one that
    /// finds none for this long is not made at all and counts as [`SHED`].
    Shared {
        /// Sends a second.
        per_second: f64,
        /// How long a send waits for a free connection.
        patience: Duration,
    },
}

/// The reason under which sends are tallied that found no free connection in time.
pub const SHED: &str = "no free connection";

/// What a connection does with a send that was not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnRefusal {
    /// Forgets it and sends the next one.
    GoOn,
    /// Sends it again under the same key after a pause of its [`backoff`], until it is acknowledged or the run ends.
    Repeat,
}

/// What all connections together do when the server is overloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnOverload {
    /// Hold sends back before they are sent, as the [`throttle`] says, and pause after each refusal: what every client
    /// should do.
    HoldBack,
    /// Go on sending. For measurements of what a server carries: there the connections are the bound of the load, a
    /// refusal is a result, and a send that was held back would hide it.
    PressOn,
}

/// Longest time that passes until a pausing connection sees that the run is over.
const LOOK_UP: Duration = Duration::from_millis(50);

/// How long after the end sends that are under way are waited for; above every server's request deadline.
pub const GRACE: Duration = Duration::from_secs(20);

/// Phases that a run can tell apart.
pub const PHASES_MAX: usize = 4;

/// A running load as others see and steer it. Cheap to read.
#[derive(Debug, Default)]
pub struct Watch {
    acknowledged: AtomicU64,
    failed: AtomicU64,
    phase: AtomicUsize,
    over: AtomicBool,
}

impl Watch {
    /// Sends acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Sends refused or broken so far.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Tallies sends from here on under this phase, at most [`PHASES_MAX`] - 1.
    pub fn enter_phase(&self, phase: usize) {
        self.phase.store(phase.min(PHASES_MAX - 1), Ordering::Relaxed);
    }

    /// Ends the run: no further sends begin.
    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// What a run came to.
#[derive(Debug)]
pub struct Outcome {
    /// A tally for each phase.
    pub phases: [Tally; PHASES_MAX],
    /// Every receipt, those of the warm-up included.
    pub ledger: Ledger,
    /// From the end of the warm-up to the end of the run.
    pub span: Duration,
    /// Sends without an answer when the grace was over.
    pub unfinished: u64,
}

/// Runs the load on a thread of its own. When the future is dropped the run ends.
///
/// # Errors
/// When the address is unusable or the thread cannot run; an unreachable server is an outcome, not an error.
pub async fn run(plan: Plan, watch: Arc<Watch>, clock: Clock) -> Result<Outcome, Error> {
    let address = address_of(&plan.url).await?;
    let end_when_dropped = EndWhenDropped(Arc::clone(&watch));
    let thread = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::StartThread)?;
        Ok(runtime.block_on(drive(plan, address, watch, clock)))
    });
    let outcome = thread.await.map_err(|_panic| Error::Panicked)?;
    drop(end_when_dropped);
    outcome
}

struct EndWhenDropped(Arc<Watch>);

impl Drop for EndWhenDropped {
    fn drop(&mut self) {
        self.0.end();
    }
}

async fn drive(plan: Plan, address: SocketAddr, watch: Arc<Watch>, clock: Clock) -> Outcome {
    let begin = clock.now();
    let measured_from = begin + plan.warmup;
    let (length, sends) = match plan.amount {
        Amount::For(length) => (length, u64::MAX),
        Amount::Sends(sends) => (FOREVER, sends),
    };
    let job = Arc::new(Job {
        texts: plan.conversations.iter().map(|id| conversation_text(*id)).collect(),
        address,
        watch,
        clock: clock.clone(),
        begin,
        window: Window { from: measured_from, until: measured_from + length },
        sends_left: AtomicU64::new(sends),
        arrivals: AtomicU64::new(0),
        throttle: (plan.on_overload == OnOverload::HoldBack)
            .then(|| Mutex::new(Throttle::new(plan.connections, begin))),
        found: Mutex::new(Found {
            phases: Default::default(),
            ledger: Ledger::default(),
            last_answer: measured_from,
        }),
        plan,
    });
    let mut workers = JoinSet::new();
    for worker in 0..job.plan.connections {
        workers.spawn(work(Arc::clone(&job), worker));
    }
    let mut unfinished = u64::from(job.plan.connections);
    let give_up = tokio::time::Instant::from_std(job.window.until + GRACE);
    while let Ok(Some(_ended)) = tokio::time::timeout_at(give_up, workers.join_next()).await {
        unfinished -= 1;
    }
    workers.shutdown().await;
    let mut found = job.found.lock().unwrap_or_else(PoisonError::into_inner);
    let end = found.last_answer.min(job.window.until);
    Outcome {
        phases: std::mem::take(&mut found.phases),
        ledger: std::mem::take(&mut found.ledger),
        span: match job.plan.amount {
            Amount::For(length) if !job.watch.over.load(Ordering::Relaxed) => length,
            Amount::For(_) | Amount::Sends(_) => end.saturating_duration_since(measured_from),
        },
        unfinished,
    }
}

/// As long as any run may last.
const FOREVER: Duration = Duration::from_hours(24);

#[cfg(test)]
mod tests;
