//! Clients that send over REST, a group for each node, all to the same conversations.
//! Promises a receipt in the ledger for every acknowledgement, and to repeat what was not acknowledged under the same key.
//! Does not judge what was answered.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use forebay::clock::Clock;
use forebay::load::{
    self, Amount, Keys, Ledger, OnOverload, OnRefusal, Outcome, Pace, Tally, Watch,
};
use tokio::task::JoinSet;

use crate::stage::{CONVERSATIONS, Tenant};

/// Bytes of a body.
const BODY_BYTES: usize = 300;

/// Sends that are in the ledger and not in the figures: connections open and caches warm.
pub(crate) const WARMUP: Duration = Duration::from_secs(1);

/// Before, during and after the fault.
pub(crate) const PHASES: usize = 3;

/// A running load.
#[derive(Debug)]
pub(crate) struct Sending {
    watches: Vec<Arc<Watch>>,
    groups: JoinSet<Result<Outcome, load::Error>>,
}

/// What became of it.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// Before, during and after the fault.
    pub(crate) phases: [Tally; PHASES],
    /// Every receipt.
    pub(crate) ledger: Ledger,
    /// Sends that had no answer long after the end.
    pub(crate) unfinished: u64,
}

impl Sending {
    /// Starts so many sends a second for so long, spread over the doors.
    pub(crate) fn start(
        doors: &[SocketAddr],
        tenant: &Tenant,
        (per_second, length): (u32, Duration),
        clock: &Clock,
    ) -> Self {
        let mut sending = Self { watches: Vec::new(), groups: JoinSet::new() };
        let share = f64::from(per_second) / f64::from(u32::try_from(doors.len()).unwrap_or(1));
        for (door, run) in doors.iter().zip(1_u32..) {
            let plan = load::Plan {
                url: format!("http://{door}"),
                api_key: tenant.api_key.clone(),
                conversations: tenant.conversations.clone(),
                connections: u16::try_from(CONVERSATIONS).unwrap_or(u16::MAX),
                amount: Amount::For(length.saturating_sub(WARMUP)),
                warmup: WARMUP,
                body_bytes: BODY_BYTES,
                keys: Keys::Given,
                pace: Pace::PerSecond(share),
                on_refusal: OnRefusal::Repeat,
                on_overload: OnOverload::PressOn,
                run,
            };
            let watch = Arc::new(Watch::default());
            sending.watches.push(Arc::clone(&watch));
            sending.groups.spawn(load::run(plan, watch, clock.clone()));
        }
        sending
    }

    /// What reads how much was acknowledged so far.
    pub(crate) fn acknowledged(&self) -> impl Fn() -> u64 + Send + 'static {
        let watches = self.watches.clone();
        move || watches.iter().map(|watch| watch.acknowledged()).sum()
    }

    /// Tallies sends from here on under this phase.
    pub(crate) fn enter_phase(&self, phase: usize) {
        for watch in &self.watches {
            watch.enter_phase(phase);
        }
    }

    /// Waits for the end.
    pub(crate) async fn finish(mut self) -> anyhow::Result<Sent> {
        let mut sent = Sent::default();
        while let Some(ended) = self.groups.join_next().await {
            let outcome = ended.context("a load ended early")??;
            for (all, own) in sent.phases.iter_mut().zip(&outcome.phases) {
                all.absorb(own);
            }
            sent.ledger.absorb(outcome.ledger);
            sent.unfinished += outcome.unfinished;
        }
        Ok(sent)
    }
}
