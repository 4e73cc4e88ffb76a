//! What a node does with the deliveries that it has pulled: attempts them, moves them aside, or knows them already.
//! Promises that a delivery leaves its queue only once its outcome is in the log, or its retry or backlog is stored.
//! Does not pull; loops do, and hand in what they got.

mod conclusions;
mod outcome;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::StdRng;
use tokio::sync::{Notify, mpsc};
use tracing::{debug, warn};

use super::attempt::Sender;
use super::breaker::Why;
use super::divert::{Moving, fail};
use super::drain::{Came, Ticket};
use super::health::Health;
use super::keeper::Keeper;
use super::recent::Recent;
use super::retry::Policy;
use super::slots::{Class, Key, Overflow, Slots, Started};
use super::verdict::{Sign, Verdict, Wish, judge};
use crate::clock::Clock;
use crate::directory::{Channel, ChannelStatus, Directory, Lane};
use crate::event::{ChannelId, Delivery, Fate, Outcome, TenantId};
use crate::journal::{Haste, Journal, Place};
use crate::lifecycle::{Kind, Supervisor, chain};
use crate::log::Log;
use crate::log::batch::Posted;
use crate::log::queue::Taken;
use crate::metrics;
use outcome::outcome;

/// How long an outcome may take to be acknowledged before it is handed in again.
const NOTE_MAX: Duration = Duration::from_secs(5);

/// Pause between tries of what must succeed before a delivery is settled.
const AGAIN: Duration = Duration::from_millis(200);

/// How often a queue is told that an attempt is still under way; well within the queue's patience.
const HOLD_EVERY: Duration = Duration::from_secs(3);

/// Deleted channels that are remembered; beyond it they are asked for anew.
const GONE_MAX: usize = 10_000;

/// Deadline of asking whether a channel was deleted.
const LOOK_MAX: Duration = Duration::from_secs(2);

/// A delivery that is held, and where it is to be settled.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) delivery: Delivery,
    pub(super) origin: Origin,
}

/// Where a delivery came from.
#[derive(Debug)]
pub(super) enum Origin {
    /// A queue.
    Queue(Box<Taken>),
    /// A backlog, whose drain is told.
    Backlog(Ticket),
}

/// Everything that attempts need.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) log: Log,
    pub(super) journal: Journal,
    pub(super) directory: Directory,
    pub(super) keeper: Keeper,
    pub(super) sender: Sender,
    pub(super) clock: Clock,
    pub(super) metrics: metrics::Delivery,
    pub(super) supervisor: Supervisor,
    pub(super) moving: mpsc::Sender<Moving>,
    /// Rings when a slot was freed or something was pushed.
    pub(super) wake: Notify,
    pub(super) slots: Mutex<Slots<Held>>,
    pub(super) health: Mutex<HashMap<ChannelId, Health>>,
    pub(super) recent: Mutex<Recent>,
    /// Channels that were deleted, as the directory's leader has said.
    pub(super) gone: Mutex<HashSet<ChannelId>>,
    pub(super) rng: Mutex<StdRng>,
}

impl Worker {
    /// Takes in what came out of a queue: it is settled at once, moved aside, or waits for a slot.
    pub(super) async fn take_in(&self, class: Class, taken: Taken) {
        if class == Class::Fresh && taken.payload().is_empty() {
            return self.called(taken).await;
        }
        // Both subjects end so: deliver.<lane>.<channel>, retry.due.<lane>.<channel>.
        let lane = taken.subject().rsplit('.').nth(1).and_then(Lane::parse);
        let Some((lane, delivery)) = lane.zip(Delivery::decode(taken.payload()).ok()) else {
            warn!("a message of {} is no delivery and is left out", taken.subject());
            return taken.settle().await;
        };
        if lock(&self.recent).is_settled(delivery.id, delivery.attempt) {
            return taken.settle().await;
        }
        let Some(channel) = self.directory.channel(delivery.tenant, delivery.channel) else {
            // One that this node has not heard of yet comes again.
            if self.is_gone(delivery.tenant, delivery.channel).await {
                taken.settle().await;
            }
            return;
        };
        if let Some(why) = self.apart(&channel) {
            return self.divert(taken, delivery, why).await;
        }
        let key = Key { lane, tenant: delivery.tenant, channel: delivery.channel };
        let held = Held { delivery, origin: Origin::Queue(Box::new(taken)) };
        let cap = channel.settings.max_in_flight;
        let pushed = lock(&self.slots).push((key, class), cap, held, self.clock.now());
        match pushed {
            Ok(()) => self.wake.notify_one(),
            Err(Overflow(held)) => self.set_apart(vec![(key, held)], Why::Busy).await,
        }
    }

    /// A channel whose deliveries the router has put into its backlog, too many at once for its lane. Whose it is, and so whether
    /// it is paused, a call does not say: its drain looks.
    async fn called(&self, taken: Taken) {
        let Some(channel) =
            taken.subject().rsplit('.').next().and_then(|n| ChannelId::parse(n).ok())
        else {
            warn!("a message of {} names no channel and is left out", taken.subject());
            return taken.settle().await;
        };
        let why = self.keeper.get(channel).map_or(Why::Busy, |entry| entry.why);
        drop(self.moving.send(Moving { taken, channel, delivery: None, why }).await);
    }

    /// Whether a channel that is not known here was deleted: then its deliveries are done with.
    pub(super) async fn is_gone(&self, tenant: TenantId, channel: ChannelId) -> bool {
        if lock(&self.gone).contains(&channel) {
            return true;
        }
        let gone = self.directory.is_gone(tenant, channel, self.clock.now() + LOOK_MAX).await;
        let is_gone = gone.unwrap_or_else(|error| {
            debug!(error = %chain(&error), "it is not known whether channel {channel} is gone");
            false
        });
        if is_gone {
            let mut gone = lock(&self.gone);
            if gone.len() >= GONE_MAX {
                gone.clear();
            }
            gone.insert(channel);
        }
        is_gone
    }

    /// Why a channel's deliveries go through its backlog, if they do.
    fn apart(&self, channel: &Channel) -> Option<Why> {
        if channel.status == ChannelStatus::Paused {
            return Some(Why::Paused);
        }
        if channel.is_pinned() {
            return Some(Why::Pinned);
        }
        self.keeper.get(channel.id).map(|entry| entry.why)
    }

    /// Moves held deliveries to their backlogs, and everything of their channels that waits after them. Their channels are
    /// set apart by whoever moves them, many at once: nobody who pulls waits for that.
    pub(super) async fn set_apart(&self, held: Vec<(Key, Held)>, why: Why) {
        for (key, held) in held {
            let mut waiting = lock(&self.slots).take_channel(key.lane, key.channel);
            waiting.push((key, held));
            for (_, held) in waiting {
                if let Origin::Queue(taken) = held.origin {
                    self.divert(*taken, held.delivery, why).await;
                }
            }
        }
    }

    async fn divert(&self, taken: Taken, delivery: Delivery, why: Why) {
        // Only fails when the mover has ended, and then the queue gives it to somebody else.
        let channel = delivery.channel;
        drop(self.moving.send(Moving { taken, channel, delivery: Some(delivery), why }).await);
    }

    /// Starts every attempt that may start, and moves aside what has waited too long.
    pub(super) async fn start_all(self: &Arc<Self>) -> Option<Instant> {
        loop {
            let next = lock(&self.slots).start();
            let Some(started) = next else { break };
            let worker = Arc::clone(self);
            self.supervisor.spawn(Kind::Delivery, async move { worker.work(started).await });
        }
        let now = self.clock.now();
        let expired = lock(&self.slots).expired(now);
        self.set_apart(expired, Why::Busy).await;
        lock(&self.slots).next_wake()
    }

    /// One attempt with everything that follows from it.
    async fn work(self: Arc<Self>, started: Started<Held>) {
        let Started { key, class, item: Held { delivery, origin } } = started;
        let slot = Slot { worker: &self, key, class };
        let hold = async {
            loop {
                tokio::time::sleep(HOLD_EVERY).await;
                if let Origin::Queue(taken) = &origin {
                    taken.hold().await;
                }
            }
        };
        let came = tokio::select! {
            came = self.attempt((slot, &origin), &delivery) => came,
            () = hold => return,
        };
        // Without an end it comes again, from its queue or its drain.
        let Some(came) = came else { return };
        match origin {
            Origin::Queue(taken) => taken.settle().await,
            Origin::Backlog(ticket) => ticket.tell(came),
        }
        fail("attempted");
    }

    /// Sends, judges, and stores what follows; the next attempt too, unless whoever let it go keeps it. Nothing is sent when
    /// the channel was deleted meanwhile, and there is no end while that is not known.
    async fn attempt(
        &self,
        (slot, origin): (Slot<'_>, &Origin),
        delivery: &Delivery,
    ) -> Option<Came> {
        let keeps = matches!(origin, Origin::Backlog(ticket) if ticket.keeps_retry());
        let Some(channel) = self.directory.channel(delivery.tenant, delivery.channel) else {
            let gone = Came { sign: Sign::Success, fate: Fate::Failed, pause: Duration::ZERO };
            return self.is_gone(delivery.tenant, delivery.channel).await.then_some(gone);
        };
        let (key, began, began_at) = (slot.key, self.clock.now(), self.clock.timestamp());
        let came = self.sender.send(&channel, delivery, began_at).await;
        let took = self.clock.now().saturating_duration_since(began);
        let policy = Policy::of(channel.settings.retry);
        let number = delivery.attempt - delivery.before.min(delivery.attempt - 1);
        let (jitter, now) = (lock(&self.rng).random::<f64>(), self.clock.timestamp());
        let verdict = judge(came.met, number, &policy, now, jitter);
        fail("sent");
        let outcome = outcome(delivery, &came, (began_at, took), verdict);
        let place = self.journal.admit(outcome.conversation, outcome.size()).ok();
        // A failure keeps its slot until its breaker has heard of it. A success makes room as soon as the log has a place
        // for its outcome; while it has none, slots bound what waits.
        let makes_room = verdict.sign == Sign::Success && place.is_some();
        let slot = (!makes_room).then_some(slot);
        if makes_room {
            if let Origin::Backlog(ticket) = origin {
                ticket.land();
            }
            // Before any failure that ends later.
            self.draw_conclusions(key, &channel, (verdict, took)).await;
        }
        // What comes next in order waits for this one, and a failure's slot does.
        let waits = !makes_room || channel.settings.ordered;
        self.note((outcome, if waits { Haste::Now } else { Haste::Soon }), place).await;
        if let Fate::Retry(at) = verdict.fate
            && !keeps
        {
            self.schedule(key.lane, delivery, at).await;
        }
        self.count(key.lane, took, verdict);
        if !makes_room {
            self.draw_conclusions(key, &channel, (verdict, took)).await;
        }
        drop(slot);
        let pause = match verdict.wish {
            Some(Wish::Throttle(pause)) => pause,
            Some(Wish::Pause) | None => Duration::ZERO,
        };
        Some(Came { sign: verdict.sign, fate: verdict.fate, pause })
    }

    /// Puts an outcome into the log, again and again until it is there: until then the delivery is in its queue. What waits
    /// here is bounded by slots and by the places that the log's writers give. A stop ends it, and then the queue gives
    /// the delivery to somebody else.
    async fn note(&self, (outcome, haste): (Outcome, Haste), mut place: Option<Place>) {
        let conversation = outcome.conversation;
        loop {
            let deadline = self.clock.now() + NOTE_MAX;
            let admitted = place
                .take()
                .map_or_else(|| self.journal.admit(conversation, outcome.size()).ok(), Some);
            let noted = match admitted {
                Some(place) => {
                    let outcomes = (vec![outcome.clone()], haste);
                    self.journal.note(place, outcomes, deadline).await
                }
                None => Err(crate::journal::Error::Late),
            };
            match noted {
                Ok(()) => break,
                Err(crate::journal::Error::Stopping) => std::future::pending::<()>().await,
                Err(error) => {
                    debug!(error = %chain(&error), "an outcome is not in the log yet");
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
        lock(&self.recent).note(&outcome);
        fail("noted");
    }

    /// Stores the next attempt of a delivery for its time, again and again until it is stored; bounded as [`Self::note`].
    async fn schedule(&self, lane: Lane, delivery: &Delivery, at: crate::clock::Timestamp) {
        let subject = format!("retry.at.{}.{}", delivery.channel, delivery.id);
        let target = format!("retry.due.{}.{}", lane.name(), delivery.channel);
        let next = Delivery { attempt: delivery.attempt + 1, ..delivery.clone() }.encode();
        loop {
            match self.log.schedule((&subject, &target), at, next.clone()).await {
                Posted::Stored(_) => return fail("scheduled"),
                other @ (Posted::Conflict | Posted::Full | Posted::Unknown(_)) => {
                    warn!("a retry was not stored: {other:?}");
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }

    fn count(&self, lane: Lane, took: Duration, verdict: Verdict) {
        let (tier, result) = (
            lane.tier as usize,
            match verdict.fate {
                Fate::Delivered => 0,
                Fate::Retry(_) => 1,
                Fate::Failed => 2,
            },
        );
        self.metrics.attempts[tier][result].increment(1);
        self.metrics.attempt_duration[tier].record(took.as_secs_f64());
    }

    /// How often a channel's attempts failed one after the other, as far as this node has seen, and how many are under
    /// way here.
    pub(super) fn sight(&self, channel: ChannelId) -> (u32, usize) {
        let failures = lock(&self.health).get(&channel).map_or(0, Health::consecutive_failures);
        (failures, lock(&self.slots).in_flight(channel))
    }
}

/// A slot that is given back when this is dropped.
struct Slot<'a> {
    worker: &'a Worker,
    key: Key,
    class: Class,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        lock(&self.worker.slots).finish(self.key, self.class);
        self.worker.wake.notify_one();
    }
}

/// The value behind a lock that nobody holds across an await.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
