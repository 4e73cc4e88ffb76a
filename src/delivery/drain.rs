//! The backlog of one channel that is set apart, delivered in order by the one node that owns it.
//! Promises that a backlog's message is deleted only once it and everything before it is settled.
//! Does not attempt by itself: what it lets go competes for the node's slots like everything else.

pub(super) mod owner;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::breaker::{Entry, State, Why};
use super::ramp::{Ramp, Rate};
use super::slots::{Class, Key, Overflow};
use super::verdict::Sign;
use super::worker::{Done, Held, Origin, Worker, lock};
use crate::clock::Timestamp;
use crate::directory::{Channel, ChannelStatus, Lane, RateLimit};
use crate::event::{ChannelId, ConversationId, Delivery, Fate};
use crate::lifecycle::{Stop, chain};
use crate::log;
use crate::log::backlog::PURGE_EVERY;

/// Messages of one page of a backlog.
const PAGE: usize = 256;

/// Most deliveries of an ordered channel that wait behind the heads of their conversations. At the bound nothing more is
/// read until one of them is settled.
const BEHIND_MAX: usize = 1_000;

/// How often a backlog with nothing to do is looked at: a nudge may be lost.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Most outcomes that wait to be taken in: the largest cap of a channel, each of which answers one delivery.
const DONE_MAX: usize = 1_000;

/// Pause before a slot is asked for again, and before a look at the entry while the channel waits.
const BREATH: Duration = Duration::from_millis(20);

/// What a drain is given.
#[derive(Debug)]
pub(super) struct Drain {
    worker: Arc<Worker>,
    channel: ChannelId,
    name: String,
    /// Where the next page begins, in the stream's sequences.
    cursor: u64,
    page: VecDeque<(u64, Delivery)>,
    /// What is not settled, by sequence.
    open: BTreeMap<u64, Delivery>,
    /// What waits for the head of its conversation, in order (ordered channels).
    behind: BTreeMap<ConversationId, VecDeque<(u64, Delivery)>>,
    /// Heads of conversations that are tried again at a time (ordered channels).
    again: BTreeMap<(Timestamp, u64), Delivery>,
    in_flight: usize,
    ramp: Ramp,
    rate: Option<(RateLimit, Rate)>,
    purged: (Instant, u64),
    told: mpsc::Sender<Done>,
    done: mpsc::Receiver<Done>,
    /// The epoch under which the probe went out that is under way.
    probing: Option<u64>,
}

/// What a turn leaves to wait for.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    /// There is nothing more to do for this node.
    Over,
    /// Until this moment, a nudge, or an outcome.
    Wait(Duration),
}

impl Drain {
    pub(super) fn new(worker: Arc<Worker>, channel: ChannelId) -> Self {
        let (told, done) = mpsc::channel(DONE_MAX);
        let now = worker.clock.now();
        Self {
            worker,
            channel,
            name: channel.to_string(),
            cursor: 1,
            page: VecDeque::new(),
            open: BTreeMap::new(),
            behind: BTreeMap::new(),
            again: BTreeMap::new(),
            in_flight: 0,
            ramp: Ramp::new(1),
            rate: None,
            purged: (now, 1),
            told,
            done,
            probing: None,
        }
    }

    /// Drains until the backlog is empty and given back, or somebody else's, or the stop.
    pub(super) async fn run(mut self, nudged: Arc<tokio::sync::Notify>, stop: Stop) {
        while !stop.is_requested() {
            let wait = match self.turn().await {
                Ok(Turn::Over) => return,
                Ok(Turn::Wait(wait)) => wait,
                Err(error) => {
                    warn!(error = %chain(&error), "the backlog of channel {} waits", self.name);
                    LOOK_EVERY
                }
            };
            tokio::select! {
                () = stop.requested() => return,
                done = self.done.recv() => if let Some(done) = done { self.on_done(done).await },
                () = nudged.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
            while let Ok(done) = self.done.try_recv() {
                self.on_done(done).await;
            }
        }
    }

    /// Lets go what may go.
    async fn turn(&mut self) -> Result<Turn, log::Error> {
        let worker = Arc::clone(&self.worker);
        let Some(entry) = worker.keeper.get(self.channel) else { return Ok(Turn::Over) };
        if entry.owner != worker.keeper.node() {
            return Ok(Turn::Over);
        }
        self.purge(false).await?;
        if self.page.is_empty() {
            self.read().await?;
        }
        let first = self.page.front().map(|(_, delivery)| delivery);
        let tenant = first.or_else(|| self.open.values().next()).map(|delivery| delivery.tenant);
        let Some(tenant) = tenant else { return self.finish(&entry).await };
        let Some(channel) = worker.directory.channel(tenant, self.channel) else {
            return self.forget().await;
        };
        if channel.status == ChannelStatus::Paused {
            return Ok(Turn::Wait(LOOK_EVERY));
        }
        let lane = worker.directory.tenant(tenant).map(|tenant| tenant.tier).unwrap_or_default();
        let key = Key { lane: Lane::of(lane, tenant), tenant, channel: self.channel };
        let cap = lock(&worker.slots).cap(key.lane.tier, channel.settings.max_in_flight);
        if entry.why == Why::Pinned {
            self.ramp = Ramp::open();
        }
        self.ramp.set_cap(cap);
        match entry.state {
            State::Open { until } => self.wait_or_probe(until).await,
            State::HalfOpen if self.in_flight > 0 || self.probing == Some(entry.epoch) => {
                Ok(Turn::Wait(LOOK_EVERY))
            }
            State::HalfOpen => {
                let wait = self.let_go(key, &channel, 1).await?;
                self.probing = (self.in_flight > 0).then_some(entry.epoch);
                Ok(Turn::Wait(wait))
            }
            State::Closed => {
                let window = self.ramp.window();
                Ok(Turn::Wait(self.let_go(key, &channel, window).await?))
            }
        }
    }

    /// Nothing is in the backlog as far as was read: gives the channel back, if that is so for everybody.
    async fn finish(&mut self, entry: &Entry) -> Result<Turn, log::Error> {
        self.purge(true).await?;
        let worker = &self.worker;
        let pinned = self.is_pinned();
        let waits = !matches!(entry.state, State::Closed);
        // A breaker that is open stays so until a delivery has tried; a channel that is in order is always drained.
        if pinned || waits || !self.open.is_empty() {
            if let State::Open { until } = entry.state
                && until <= worker.clock.timestamp().minus(Duration::from_hours(1))
            {
                drop(worker.keeper.release(self.channel).await);
            }
            return Ok(Turn::Wait(LOOK_EVERY));
        }
        let left = worker.log.backlog_sizes(&self.name).await?;
        if left.values().sum::<u64>() > 0 {
            return Ok(Turn::Wait(BREATH));
        }
        match worker.keeper.release(self.channel).await {
            Ok(true) => {
                debug!("channel {} is delivered to directly again", self.name);
                Ok(Turn::Over)
            }
            Ok(false) => Ok(Turn::Wait(BREATH)),
            Err(error) => {
                warn!(error = %chain(&error), "channel {} was not given back", self.name);
                Ok(Turn::Wait(LOOK_EVERY))
            }
        }
    }

    fn is_pinned(&self) -> bool {
        let channels = self.worker.directory.pinned_channels();
        channels.iter().any(|channel| channel.id == self.channel)
    }

    /// The channel was deleted, and so is its backlog.
    async fn forget(&mut self) -> Result<Turn, log::Error> {
        if !self.worker.directory.status().level {
            return Ok(Turn::Wait(LOOK_EVERY));
        }
        self.worker.log.backlog_purge(&self.name, u64::MAX >> 1).await?;
        drop(self.worker.keeper.release(self.channel).await);
        Ok(Turn::Over)
    }

    async fn wait_or_probe(&mut self, until: Timestamp) -> Result<Turn, log::Error> {
        let now = self.worker.clock.timestamp();
        if now < until {
            // The entry may be changed by others meanwhile.
            return Ok(Turn::Wait(until.since(now).min(LOOK_EVERY)));
        }
        let now = self.worker.clock.timestamp();
        if let Err(error) = self.worker.keeper.change(self.channel, |entry| entry.probe(now)).await
        {
            warn!(error = %chain(&error), "channel {} was not probed", self.name);
            return Ok(Turn::Wait(LOOK_EVERY));
        }
        Ok(Turn::Wait(Duration::ZERO))
    }

    /// Lets deliveries go until so many are under way; says how long to wait for more.
    async fn let_go(
        &mut self,
        key: Key,
        channel: &Channel,
        window: usize,
    ) -> Result<Duration, log::Error> {
        self.keep_rate(channel);
        while self.in_flight < window {
            let Some((sequence, delivery)) = self.pick(channel.settings.ordered).await? else {
                return Ok(self.until_again());
            };
            if lock(&self.worker.recent).is_settled(delivery.id, delivery.attempt) {
                self.settle(sequence, &delivery);
                continue;
            }
            if let Some((_, rate)) = &mut self.rate
                && let Err(then) = rate.take(self.worker.clock.now())
            {
                self.put_back(sequence, delivery);
                return Ok(then.saturating_duration_since(self.worker.clock.now()));
            }
            let origin = Origin::Backlog(sequence, self.told.clone());
            let held = Held { delivery: delivery.clone(), origin };
            let (cap, now) = (channel.settings.max_in_flight, self.worker.clock.now());
            let pushed = lock(&self.worker.slots).push((key, Class::Backlog), cap, held, now);
            if let Err(Overflow(_)) = pushed {
                self.put_back(sequence, delivery);
                return Ok(BREATH);
            }
            self.open.insert(sequence, delivery);
            self.in_flight += 1;
            self.worker.wake.notify_one();
        }
        Ok(LOOK_EVERY)
    }

    fn keep_rate(&mut self, channel: &Channel) {
        let (asked, now) = (channel.settings.rate_limit, self.worker.clock.now());
        if self.rate.as_ref().map(|(limit, _)| *limit) != asked {
            self.rate = asked.map(|limit| (limit, Rate::new(limit, now)));
        }
    }

    /// The next delivery that may go: a head that is due again, or the next of the backlog whose conversation is free.
    async fn pick(&mut self, ordered: bool) -> Result<Option<(u64, Delivery)>, log::Error> {
        if let Some(((at, sequence), _)) = self.again.first_key_value()
            && *at <= self.worker.clock.timestamp()
        {
            let key = (*at, *sequence);
            return Ok(self.again.remove(&key).map(|delivery| (key.1, delivery)));
        }
        loop {
            if self.page.is_empty() {
                self.read().await?;
            }
            let waiting: usize = self.behind.values().map(VecDeque::len).sum();
            if waiting >= BEHIND_MAX {
                return Ok(None);
            }
            let Some((sequence, delivery)) = self.page.pop_front() else { return Ok(None) };
            if !ordered {
                return Ok(Some((sequence, delivery)));
            }
            // An entry, also an empty one, says that the conversation's head is under way.
            if let Some(line) = self.behind.get_mut(&delivery.conversation) {
                self.open.insert(sequence, delivery.clone());
                line.push_back((sequence, delivery));
                continue;
            }
            self.behind.insert(delivery.conversation, VecDeque::new());
            return Ok(Some((sequence, delivery)));
        }
    }

    fn put_back(&mut self, sequence: u64, delivery: Delivery) {
        let (at, key) = (Timestamp::default(), sequence);
        self.open.insert(sequence, delivery.clone());
        self.again.insert((at, key), delivery);
    }

    fn until_again(&self) -> Duration {
        let now = self.worker.clock.timestamp();
        let first = self.again.first_key_value().map(|((at, _), _)| at.since(now));
        first.map_or(LOOK_EVERY, |first| first.clamp(BREATH, LOOK_EVERY))
    }

    async fn read(&mut self) -> Result<(), log::Error> {
        let found = self.worker.log.backlog_page(&self.name, self.cursor, PAGE).await?;
        for waiting in found {
            self.cursor = waiting.sequence + 1;
            if let Ok(delivery) = Delivery::decode(&waiting.payload) {
                self.page.push_back((waiting.sequence, delivery));
            } else {
                warn!("position {} of a backlog is no delivery", waiting.sequence);
            }
        }
        Ok(())
    }

    /// Takes in what became of a delivery that was let go.
    async fn on_done(&mut self, done: Done) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let success = done.sign == Sign::Success;
        let now = self.worker.clock.timestamp();
        if let Some(epoch) = self.probing.take() {
            let probed =
                self.worker.keeper.change(self.channel, |entry| entry.probed(epoch, success, now));
            if let Err(error) = probed.await {
                warn!(error = %chain(&error), "a probe of channel {} was not noted", self.name);
            }
            self.ramp = Ramp::new(1);
        } else if success {
            self.ramp.on_success();
        } else if done.sign == Sign::Transient && self.ramp.on_failure() {
            let shut = |entry: Entry| {
                let closed = entry.state == State::Closed;
                closed.then(|| entry.trip(Why::Failures, now))
            };
            if let Err(error) = self.worker.keeper.change(self.channel, shut).await {
                warn!(error = %chain(&error), "channel {} was not stopped", self.name);
            }
        }
        let Some(delivery) = self.open.get(&done.sequence).cloned() else { return };
        match done.fate {
            // The head of a conversation in order stays at its place until it is settled.
            Fate::Retry(at) if self.behind.contains_key(&delivery.conversation) => {
                let next = Delivery { attempt: delivery.attempt + 1, ..delivery };
                self.open.insert(done.sequence, next.clone());
                self.again.insert((at, done.sequence), next);
            }
            Fate::Retry(_) | Fate::Delivered | Fate::Failed => {
                self.settle(done.sequence, &delivery);
            }
        }
    }

    /// A delivery is done with; the next of its conversation may go.
    fn settle(&mut self, sequence: u64, delivery: &Delivery) {
        self.open.remove(&sequence);
        let Some(line) = self.behind.get_mut(&delivery.conversation) else { return };
        match line.pop_front() {
            Some((next, delivery)) => {
                self.again.insert((Timestamp::default(), next), delivery);
            }
            None => drop(self.behind.remove(&delivery.conversation)),
        }
    }

    /// Deletes what is settled from the front, now and then or at once.
    async fn purge(&mut self, at_once: bool) -> Result<(), log::Error> {
        let unread = self.page.front().map_or(self.cursor, |(sequence, _)| *sequence);
        let open = self.open.keys().next().copied().unwrap_or(unread);
        let below = open.min(unread);
        let now = self.worker.clock.now();
        let due = at_once || now.saturating_duration_since(self.purged.0) >= PURGE_EVERY;
        if below > self.purged.1 && due {
            self.worker.log.backlog_purge(&self.name, below).await?;
            self.purged = (now, below);
        }
        Ok(())
    }
}
