//! What an attempt means for its channel: its health, its breaker, a pause that its receiver asks for.
//! Promises that a channel whose breaker opens holds no line of the node's any more.
//! Does not settle deliveries.

use std::time::Duration;

use tracing::{debug, warn};

use super::{Worker, lock};
use crate::clock::Timestamp;
use crate::delivery::breaker::{Entry, State, Why};
use crate::delivery::health::{Health, Sample};
use crate::delivery::slots::Key;
use crate::delivery::verdict::{Verdict, Wish};
use crate::directory::{Channel, ChannelPatch, ChannelStatus, When};
use crate::lifecycle::chain;

/// Channels whose health is remembered; the idle ones go first, and if there are none, all begin anew.
const HEALTH_MAX: usize = 10_000;

/// Deadline of pausing a channel whose receiver is gone.
const PAUSE_MAX: Duration = Duration::from_secs(5);

impl Worker {
    /// What an attempt means for its channel: its breaker, a pause that its receiver asks for.
    pub(super) async fn draw_conclusions(
        &self,
        key: Key,
        channel: &Channel,
        (verdict, took): (Verdict, Duration),
    ) {
        let entry = self.keeper.get(channel.id);
        let probing = entry.as_ref().is_some_and(|entry| entry.state == State::HalfOpen);
        match verdict.wish {
            Some(Wish::Pause) => self.pause(key, channel).await,
            // A probe that is refused with a wish has failed all the same; its drain tells the breaker of both.
            Some(Wish::Throttle(pause)) if !probing => {
                self.open(key, Why::Throttled, |entry, now| entry.throttle(pause, now)).await;
            }
            Some(Wish::Throttle(_)) | None => {}
        }
        let now = self.clock.now();
        let slots = lock(&self.slots).size(key.lane.tier);
        let trip = {
            let mut health = lock(&self.health);
            if health.len() >= HEALTH_MAX && !health.contains_key(&channel.id) {
                health.retain(|_, known| !known.is_idle(now));
                if health.len() >= HEALTH_MAX {
                    health.clear();
                }
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
    async fn open(&self, key: Key, why: Why, change: impl Fn(Entry, Timestamp) -> Entry) {
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
}
