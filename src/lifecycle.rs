//! Starting, watching and stopping the tasks of one server.
//! Promises that a task's failure is never silent, that the first stop request drains in order and that the second forces.
//! Does not know what the tasks do; [`task::Kind`] says how each is to be treated.

#[cfg(feature = "broken")]
pub mod broken;
pub mod restraint;
mod roster;
pub mod task;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error, info, warn};

use crate::clock::Clock;

use restraint::{Decision, Restraint};

pub use roster::{Roster, Seat};
pub use task::{Backoff, Kind, OnError, OnStop};

/// Why a task ended before it was asked to.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How many fatal failures can wait to be read; the first one already stops the server.
const FATAL_QUEUE: usize = 16;

/// A request to stop, as a task sees it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Stop(CancellationToken);

impl Stop {
    /// Waits until the stop is requested.
    ///
    /// Cancel safe: it holds no state of its own.
    pub async fn requested(&self) {
        self.0.cancelled().await;
    }

    /// Whether the stop was requested.
    pub fn is_requested(&self) -> bool {
        self.0.is_cancelled()
    }

    /// A stop that nobody requests, for tests that drive a task's `step` by hand.
    pub fn never() -> Self {
        Self(CancellationToken::new())
    }
}

/// One kind's tasks: a token of their own, so that they stop in the table's order, and a tracker to wait for them.
#[derive(Debug)]
struct Stage {
    kind: Kind,
    stop: CancellationToken,
    tracker: TaskTracker,
}

/// Holds the tasks of one server. Two servers in one process have one each and share nothing.
#[derive(Clone, Debug)]
pub struct Supervisor {
    stages: Arc<Vec<Stage>>,
    /// Dismissed when draining takes too long: ends every task at its next await.
    force: Roster,
    fatal: mpsc::Sender<String>,
    fatal_inbox: Arc<Mutex<Option<mpsc::Receiver<String>>>>,
}

impl Default for Supervisor {
    fn default() -> Self {
        Self::new()
    }
}

impl Supervisor {
    /// A supervisor without tasks.
    pub fn new() -> Self {
        let (fatal, inbox) = mpsc::channel(FATAL_QUEUE);
        let stage = |kind: &Kind| Stage {
            kind: *kind,
            stop: CancellationToken::new(),
            tracker: TaskTracker::new(),
        };
        Self {
            stages: Arc::new(Kind::ALL.iter().map(stage).collect()),
            force: Roster::default(),
            fatal,
            fatal_inbox: Arc::new(Mutex::new(Some(inbox))),
        }
    }

    /// The stop request that tasks of this kind see.
    pub fn stop(&self, kind: Kind) -> Stop {
        Stop(self.stage(kind).stop.clone())
    }

    /// Runs a loop under the rules of its kind: `make` builds it, anew after each failure that is to be restarted.
    pub fn supervise<F, R, E>(&self, kind: Kind, name: impl Into<String>, mut make: F)
    where
        F: FnMut(Stop) -> R + Send + 'static,
        R: Future<Output = Result<(), E>> + Send,
        E: Into<Failure>,
    {
        let (stop, mut force) = (self.stop(kind), self.force.join());
        let (fatal, clock) = (self.fatal.clone(), Clock::system());
        let name = name.into();
        self.track(kind, async move {
            let (mut failures, mut restraint) = (0_u32, Restraint::default());
            loop {
                let began = clock.now();
                let running = AssertUnwindSafe(async { make(stop.clone()).await }).catch_unwind();
                let ended = tokio::select! {
                    ended = running => match ended {
                        Ok(ended) => ended.map_err(Into::into),
                        Err(panic) => Err(Failure::from(panic_text(&*panic))),
                    },
                    () = force.dismissed() => return,
                };
                let Err(failure) = ended else { return };
                if clock.now().saturating_duration_since(began) > STEADY {
                    failures = 0;
                }
                failures = failures.saturating_add(1);
                match kind.on_error() {
                    OnError::Restart(backoff) => {
                        let pause = backoff.pause(failures);
                        let error = chain(&*failure);
                        match restraint.on_event(clock.now()) {
                            Decision::Log { suppressed } => {
                                warn!(task.name = %name, suppressed, error = %error, "task {name} failed, restarts in {pause:?}");
                            }
                            Decision::Drop => {
                                debug!(task.name = %name, error = %error, "task {name} failed again, restarts in {pause:?}");
                            }
                        }
                        tokio::select! {
                            () = tokio::time::sleep(pause) => {}
                            () = stop.requested() => return,
                        }
                    }
                    OnError::Stop => {
                        error!(task.name = %name, error = %chain(&*failure), "task {name} failed, the server stops");
                        drop(fatal.try_send(format!("{name}: {}", chain(&*failure))));
                        return;
                    }
                }
            }
        });
    }

    /// Runs a short task of this kind to its end, for example one connection. It is forced, never restarted.
    pub fn spawn(&self, kind: Kind, task: impl Future<Output = ()> + Send + 'static) {
        let mut force = self.force.join();
        self.track(kind, async move {
            tokio::select! {
                biased;
                () = task => {}
                () = force.dismissed() => {}
            }
        });
    }

    /// Waits for a task's fatal failure and says which it was. To be called once.
    pub async fn failed(&self) -> String {
        let inbox = self.fatal_inbox.lock().unwrap_or_else(PoisonError::into_inner).take();
        let failure = match inbox {
            Some(mut inbox) => inbox.recv().await,
            None => None,
        };
        match failure {
            Some(failure) => failure,
            None => std::future::pending().await,
        }
    }

    /// Stops every task in the reverse of the table's order, each kind within its allowance.
    ///
    /// Says whether all ended by themselves; those that did not were ended at their next await.
    pub async fn drain(&self) -> bool {
        let mut clean = true;
        for stage in self.stages.iter().rev() {
            stage.stop.cancel();
            stage.tracker.close();
            let allowance = match stage.kind.on_stop() {
                OnStop::Drain(allowance) => allowance,
                OnStop::Drop => Duration::ZERO,
            };
            let ended = tokio::time::timeout(allowance, stage.tracker.wait()).await.is_ok();
            if !ended && allowance > Duration::ZERO {
                warn!(task.kind = ?stage.kind, "{:?} tasks did not end within {allowance:?}", stage.kind);
                clean = false;
            }
        }
        self.force().await;
        clean
    }

    /// Ends whatever still runs, at its next await.
    pub async fn force(&self) {
        self.force.dismiss();
        for stage in self.stages.iter() {
            stage.stop.cancel();
            stage.tracker.close();
            if tokio::time::timeout(FORCE_ALLOWANCE, stage.tracker.wait()).await.is_err() {
                warn!(task.kind = ?stage.kind, "a {:?} task does not yield and is abandoned", stage.kind);
            }
        }
    }

    fn stage(&self, kind: Kind) -> &Stage {
        &self.stages[kind as usize]
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that spawns; everything else asks it"
    )]
    fn track(&self, kind: Kind, task: impl Future<Output = ()> + Send + 'static) {
        let tracker = &self.stage(kind).tracker;
        drop(tokio::spawn(tracker.track_future(task)));
    }
}

/// A task that ran for this long was in order: its next failure is the first one again.
const STEADY: Duration = Duration::from_mins(1);

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&'static str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("without a message"))
}

/// How long a forced task may take to reach its next await.
const FORCE_ALLOWANCE: Duration = Duration::from_millis(500);

/// Waits for SIGINT or SIGTERM.
///
/// # Errors
/// When the signals cannot be registered, which only a broken platform does.
pub async fn signal() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = interrupt.recv() => info!("interrupted"),
        _ = terminate.recv() => info!("asked to terminate"),
    }
    Ok(())
}

/// An error with all its causes on one line.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Many errors of libraries say their cause themselves.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests;
