//! What a node does with the deliveries that it has pulled: attempts them, moves them aside, or knows them already.
//! Promises that a delivery leaves its queue only once its outcome is in the log, or its retry or backlog is stored.
//! Does not pull; loops do, and hand in what they got.

mod outcome;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::StdRng;
use tokio::sync::{Notify, mpsc};
use tracing::{debug, warn};

use super::attempt::Sender;
use super::breaker::{Entry, State, Why};
use super::divert::{Moving, fail};
use super::drain::Ticket;
use super::health::{Health, Sample};
use super::keeper::Keeper;
use super::recent::Recent;
use super::retry::Policy;
use super::slots::{Class, Key, Overflow, Slots, Started};
use super::verdict::{Sign, Verdict, Wish, judge};
use crate::clock::Clock;
use crate::directory::{Channel, ChannelPatch, ChannelStatus, Directory, Lane, When};
use crate::event::{ChannelId, Delivery, Fate, Outcome};
use crate::journal::Journal;
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

/// Channels whose health is remembered; the idle ones go first.
const HEALTH_MAX: usize = 10_000;

/// Deadline of pausing a channel whose receiver is gone.
const PAUSE_MAX: Duration = Duration::from_secs(5);

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
    pub(super) rng: Mutex<StdRng>,
}

impl Worker {
    /// Takes in what came out of a queue: it is settled at once, moved aside, or waits for a slot.
    pub(super) async fn take_in(&self, class: Class, taken: Taken) {
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
            // Deleted; or this node has not heard of it yet, and then it comes again.
            return if self.directory.status().level { taken.settle().await } else { drop(taken) };
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
        drop(self.moving.send(Moving { taken, delivery, why }).await);
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
        let (sign, fate) = tokio::select! {
            done = self.attempt(slot, &delivery) => done,
            () = hold => return,
        };
        match origin {
            Origin::Queue(taken) => taken.settle().await,
            Origin::Backlog(ticket) => ticket.tell(sign, fate),
        }
        fail("attempted");
    }

    /// Sends, judges, and stores what follows. Nothing is sent when the channel was deleted meanwhile.
    async fn attempt(&self, slot: Slot<'_>, delivery: &Delivery) -> (Sign, Fate) {
        let Some(channel) = self.directory.channel(delivery.tenant, delivery.channel) else {
            return (Sign::Success, Fate::Failed);
        };
        let (key, began, began_at) = (slot.key, self.clock.now(), self.clock.timestamp());
        let came = self.sender.send(&channel, delivery, began_at).await;
        let took = self.clock.now().saturating_duration_since(began);
        let policy = Policy::of(channel.settings.retry);
        let number = delivery.attempt - delivery.before.min(delivery.attempt - 1);
        let (jitter, now) = (lock(&self.rng).random::<f64>(), self.clock.timestamp());
        let verdict = judge(came.met, number, &policy, now, jitter);
        fail("sent");
        // A failure keeps its slot until its breaker has heard of it; a success makes room at once.
        let slot = (verdict.sign != Sign::Success).then_some(slot);
        self.note(outcome(delivery, &came, (began_at, took), verdict)).await;
        if let Fate::Retry(at) = verdict.fate
            && !channel.settings.ordered
        {
            self.schedule(key.lane, delivery, at).await;
        }
        self.count(key.lane, took, verdict);
        self.draw_conclusions(key, &channel, (verdict, took)).await;
        drop(slot);
        (verdict.sign, verdict.fate)
    }

    /// Puts an outcome into the log, again and again until it is there: until then the delivery is in its queue, and
    /// what waits here is bounded by what was pulled, [`Slots::room`] of every lane. A stop ends it, and then the queue
    /// gives the delivery to somebody else.
    async fn note(&self, outcome: Outcome) {
        let conversation = outcome.conversation;
        loop {
            let deadline = self.clock.now() + NOTE_MAX;
            let noted = match self.journal.admit(conversation, outcome.size()) {
                Ok(place) => self.journal.note(place, vec![outcome.clone()], deadline).await,
                Err(_busy) => Err(crate::journal::Error::Late),
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

    /// What an attempt means for its channel: its breaker, a pause that its receiver asks for.
    async fn draw_conclusions(
        &self,
        key: Key,
        channel: &Channel,
        (verdict, took): (Verdict, Duration),
    ) {
        let entry = self.keeper.get(channel.id);
        let probing = entry.as_ref().is_some_and(|entry| entry.state == State::HalfOpen);
        match verdict.wish {
            Some(Wish::Pause) => self.pause(key, channel).await,
            // A probe that is refused with a wish has failed all the same; its cooldown is at least as long.
            Some(Wish::Throttle(pause)) if !probing => {
                self.open(key, Why::Throttled, |entry, now| entry.throttle(pause, now)).await;
            }
            Some(Wish::Throttle(_)) | None => {}
        }
        let now = self.clock.now();
        let slots = lock(&self.slots).size(key.lane.tier);
        let trip = {
            let mut health = lock(&self.health);
            if health.len() >= HEALTH_MAX {
                health.retain(|_, known| !known.is_idle(now));
            }
            let known = health.entry(channel.id).or_insert_with(|| Health::new(now));
            known.on_sample(Sample { sign: verdict.sign, took }, slots, now)
        };
        // The probe of a half-open breaker is judged by whoever drains the backlog.
        let Some(trip) = trip.filter(|_| !probing) else { return };
        let why = Why::from(trip);
        if why == Why::Slow {
            if entry.is_none() {
                let waiting = lock(&self.slots).take_channel(key.lane, key.channel);
                self.set_apart(waiting, why).await;
                drop(self.keeper.ensure(channel.id, why).await);
            }
            return;
        }
        self.open(key, why, |entry, now| entry.trip(why, now)).await;
    }

    /// Opens the breaker of a channel, unless it is open already, and moves aside what waits here.
    async fn open(
        &self,
        key: Key,
        why: Why,
        change: impl Fn(Entry, crate::clock::Timestamp) -> Entry,
    ) {
        let (node, now) = (self.keeper.node(), self.clock.timestamp());
        let shut = |entry: Option<Entry>| {
            let entry = entry.unwrap_or_else(|| Entry::divert(node, why, now));
            let closed = entry.state == State::Closed;
            closed.then(|| change(entry, now))
        };
        if let Err(error) = self.keeper.enter(key.channel, shut).await {
            warn!(error = %chain(&error), "the breaker of channel {} was not opened", key.channel);
        }
        let waiting = lock(&self.slots).take_channel(key.lane, key.channel);
        self.set_apart(waiting, why).await;
    }

    /// The receiver is gone for good: its owner has to say when it is back.
    async fn pause(&self, key: Key, channel: &Channel) {
        let (node, now) = (self.keeper.node(), self.clock.timestamp());
        let blame = |entry: Option<Entry>| {
            let entry = entry.unwrap_or_else(|| Entry::divert(node, Why::Gone, now));
            Some(entry.blame(Why::Gone, now))
        };
        if let Err(error) = self.keeper.enter(key.channel, blame).await {
            debug!(error = %chain(&error), "why channel {} is paused is not kept", channel.id);
        }
        let patch = ChannelPatch { status: Some(ChannelStatus::Paused), ..ChannelPatch::default() };
        let deadline = self.clock.now() + PAUSE_MAX;
        let when = When { now: self.clock.timestamp(), deadline };
        let paused = self.directory.update_channel(channel.tenant, channel.id, patch, when).await;
        if let Err(error) = paused {
            warn!(error = %chain(&error), "channel {} could not be paused", channel.id);
        }
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
