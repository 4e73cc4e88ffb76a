//! Moves deliveries of channels that are set apart from the queue to the channel's backlog, many at once; answers calls.
//! Promises that a delivery leaves the queue only once its backlog has it, and a call only once somebody drains that backlog.
//! Does not decide who is set apart.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::sync::mpsc;
use tracing::{debug, error, warn};

use super::breaker::Why;
use super::keeper::Keeper;
use crate::clock::Clock;
use crate::event::{ChannelId, Delivery};
use crate::lifecycle::restraint::{Decision, Restraint};
use crate::lifecycle::{Stop, chain};
use crate::log::Log;
use crate::log::batch::{BATCH_BYTES_MAX, Posted, Posting};
use crate::log::queue::Taken;
use crate::metrics;

/// Most deliveries that wait to be moved; whoever brings more waits.
pub(super) const WAITING_MAX: usize = 4_096;

/// Most deliveries of one move.
const MOVE_MAX: usize = 900;

/// Entries that are looked at together.
const ENSURED_AT_ONCE: usize = 64;

/// Pause after a move that was refused or not acknowledged.
const PAUSE: Duration = Duration::from_millis(200);

/// A delivery that is to be moved, and why; none where only the channel is to be set apart, because its backlog has what is
/// to be delivered.
#[derive(Debug)]
pub(super) struct Moving {
    pub(super) taken: Taken,
    pub(super) channel: ChannelId,
    pub(super) delivery: Option<Delivery>,
    pub(super) why: Why,
}

/// Moves deliveries.
#[derive(Debug)]
pub(super) struct Diverter {
    pub(super) log: Log,
    pub(super) keeper: Keeper,
    pub(super) metrics: metrics::Delivery,
    pub(super) rng: StdRng,
    pub(super) clock: Clock,
}

impl Diverter {
    /// Moves what is brought, until nobody brings anything or the stop.
    pub(super) async fn run(&mut self, inbox: &mut mpsc::Receiver<Moving>, stop: &Stop) {
        let mut waiting: Vec<Moving> = Vec::new();
        let mut refusals = Restraint::default();
        loop {
            if waiting.is_empty() {
                tokio::select! {
                    () = stop.requested() => return,
                    count = inbox.recv_many(&mut waiting, MOVE_MAX) => if count == 0 { return },
                }
            }
            let (mut bytes, mut count) = (0, 0);
            for moving in waiting.iter().take(MOVE_MAX) {
                bytes += moving.delivery.as_ref().map_or(0, |delivery| delivery.body.len());
                if count > 0 && bytes > BATCH_BYTES_MAX {
                    break;
                }
                count += 1;
            }
            let rest = waiting.split_off(count);
            let moved = std::mem::replace(&mut waiting, rest);
            tokio::select! {
                () = stop.requested() => return,
                () = self.go(moved, &mut refusals) => {}
            }
        }
    }

    /// Moves these, however long it takes; where the backlogs have no room their queue gives them again later, so that
    /// those of others, and everybody's attempts, need not wait for room. Calls need none, and go first: to drain is what makes
    /// room.
    ///
    /// Cancel safe: what was not settled comes again.
    async fn go(&mut self, moved: Vec<Moving>, refusals: &mut Restraint) {
        let (moved, calls): (Vec<_>, Vec<_>) =
            moved.into_iter().partition(|moving| moving.delivery.is_some());
        if !calls.is_empty() {
            fail("called");
        }
        self.conclude(calls).await;
        while !moved.is_empty() {
            match self.store(&moved).await {
                Posted::Stored(_) => break,
                Posted::Full => {
                    if let Decision::Log { suppressed } = refusals.on_event(self.clock.now()) {
                        error!(
                            suppressed,
                            "the stream of backlogs is full; its queue gives deliveries again later"
                        );
                    }
                    return;
                }
                other @ (Posted::Conflict | Posted::Unknown(_)) => {
                    if let Decision::Log { suppressed } = refusals.on_event(self.clock.now()) {
                        warn!(suppressed, "deliveries were not moved to their backlogs: {other:?}");
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        // Stored once: only what follows is tried again.
        self.conclude(moved).await;
    }

    /// Has these channels drained, and settles what has brought them here.
    async fn conclude(&self, moved: Vec<Moving>) {
        if moved.is_empty() {
            return;
        }
        while !self.set_apart(&moved).await {
            tokio::time::sleep(PAUSE).await;
        }
        self.settle(moved).await;
    }

    /// Stores a move in the backlogs. A move whose acknowledgement is lost is stored twice; the drain tells by the ids of
    /// what is settled, and makes an attempt twice of what is not.
    async fn store(&mut self, moving: &[Moving]) -> Posted {
        let posting = |delivery: &Delivery| Posting {
            subject: self.log.backlog_subject(&delivery.channel.to_string()),
            name: None,
            guard: None,
            payload: delivery.encode(),
        };
        let deliveries = moving.iter().filter_map(|moving| moving.delivery.as_ref());
        let postings = deliveries.map(posting).collect();
        let name = format!("{:032x}", self.rng.random::<u128>());
        let posted = self.log.post(&name, postings).await;
        if matches!(posted, Posted::Stored(_)) {
            fail("diverted");
        }
        posted
    }

    /// Sees to it that each backlog is drained; whether that is sure.
    async fn set_apart(&self, moving: &[Moving]) -> bool {
        let channels: BTreeMap<ChannelId, Why> =
            moving.iter().map(|moving| (moving.channel, moving.why)).collect();
        // Only now: an entry that was there before may have been given up while this move was under way.
        let ensure = |(channel, why): (&ChannelId, &Why)| {
            let (keeper, channel, why) = (self.keeper.clone(), *channel, *why);
            async move { keeper.ensure(channel, why).await }
        };
        let ensuring: Vec<_> = channels.iter().map(ensure).collect();
        let mut ensuring = futures_util::stream::iter(ensuring).buffer_unordered(ENSURED_AT_ONCE);
        while let Some(ensured) = ensuring.next().await {
            if let Err(error) = ensured {
                debug!(error = %chain(&error), "a channel could not be set apart yet");
                return false;
            }
        }
        drop(ensuring);
        self.log.nudge(&channels.into_keys().collect::<Vec<_>>()).await;
        true
    }

    async fn settle(&self, moved: Vec<Moving>) {
        let count = moved.iter().filter(|moving| moving.delivery.is_some()).count();
        self.metrics.diverted.increment(count as u64);
        for moving in moved {
            moving.taken.settle().await;
            fail("settled");
        }
    }
}

/// A place at which tests end the process, to see that nothing is lost by it: `FOREBAY_FAIL_AT` names it, in builds
/// for tests only.
#[cfg(debug_assertions)]
#[expect(
    clippy::disallowed_methods,
    reason = "no setting of a server: only tests name such a place"
)]
pub(super) fn fail(place: &str) {
    if std::env::var("FOREBAY_FAIL_AT").is_ok_and(|named| named == place) {
        std::process::abort();
    }
}

/// See the other one: in a release there is no such place.
#[cfg(not(debug_assertions))]
pub(super) fn fail(_place: &str) {}
