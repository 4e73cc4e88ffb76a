//! The backlog of one channel that is set apart, delivered in order by the one node that owns it.
//! Promises that a backlog's message is deleted only once it and everything before it is settled.
//! Does not attempt by itself: what it lets go competes for the node's slots like everything else.

mod line;
pub(super) mod owner;
mod ticket;

pub(super) use ticket::{Came, Ticket};

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::breaker::{Entry, Probe, State, Why};
use super::ramp::{Ramp, Rate};
use super::slots::{Class, Key, Overflow};
use super::verdict::Sign;
use super::worker::{Held, Origin, Worker, lock};
use crate::clock::Timestamp;
use crate::directory::{Channel, ChannelStatus, Lane, RateLimit};
use crate::event::{ChannelId, Delivery, Fate, TenantId};
use crate::lifecycle::{Stop, chain};
use crate::log;
use crate::log::backlog::PURGE_EVERY;
use line::{Line, Next};
use ticket::{Done, Told};

/// Messages of one page of a backlog.
const PAGE: usize = 256;

/// How often a backlog with nothing to do is looked at: a nudge may be lost.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Most deliveries whose attempts are over and whose outcomes are on their way into the log: twice as many as are a record at
/// once. More would be held in memory for nothing.
const LANDED_MAX: usize = 512;

/// Most of what waits to be taken in. Two things are told of each delivery that is not settled, and the largest cap is 1 000.
const TOLD_MAX: usize = 2 * (LANDED_MAX + 1_000);

/// Pause before a look at the entry while the channel waits.
const BREATH: Duration = Duration::from_millis(20);

/// Pause before a place in the lane's line is asked for again: there are hundreds of backlogs then, and slots are few.
const LINE_PAUSE: Duration = Duration::from_millis(100);

/// What a drain is given.
#[derive(Debug)]
pub(super) struct Drain {
    worker: Arc<Worker>,
    channel: ChannelId,
    name: String,
    line: Line,
    in_flight: usize,
    unsettled: usize,
    ramp: Ramp,
    rate: Option<(RateLimit, Rate)>,
    purged: (Instant, u64),
    told: mpsc::Sender<Told>,
    done: mpsc::Receiver<Told>,
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
        let (told, done) = mpsc::channel(TOLD_MAX);
        let now = worker.clock.now();
        Self {
            worker,
            channel,
            name: channel.to_string(),
            line: Line::new(),
            in_flight: 0,
            unsettled: 0,
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
                done = self.done.recv() => if let Some(told) = done { self.on_told(told).await },
                () = nudged.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
            while let Ok(told) = self.done.try_recv() {
                self.on_told(told).await;
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
        if self.line.is_read() {
            self.read().await?;
        }
        let Some(tenant) = self.line.sample().map(|delivery| delivery.tenant) else {
            return self.finish(&entry).await;
        };
        let Some(channel) = worker.directory.channel(tenant, self.channel) else {
            return self.forget(tenant).await;
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
            // A success from before is no answer to the probe, so nothing else is under way beside it.
            State::HalfOpen if self.unsettled > 0 || self.probing == Some(entry.epoch) => {
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
        if pinned || waits || self.line.is_open() {
            // What is moved there at this moment is found by the sweep.
            let since = match entry.state {
                State::Open { until } => Some(until),
                // A probe whose delivery is gone has no end.
                State::HalfOpen if self.unsettled == 0 => Some(entry.changed_at),
                State::HalfOpen | State::Closed => None,
            };
            let long_ago = worker.clock.timestamp().minus(Duration::from_hours(1));
            if since.is_some_and(|since| since <= long_ago) {
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
                // Whoever moved something here meanwhile saw the entry, or this look sees what was moved.
                let left = worker.log.backlog_sizes(&self.name).await?;
                if left.values().sum::<u64>() > 0 {
                    if let Err(error) = worker.keeper.ensure(self.channel, Why::Leftover).await {
                        warn!(error = %chain(&error), "channel {} waits for the sweep", self.name);
                    }
                    return Ok(Turn::Wait(BREATH));
                }
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

    /// The channel is not known here: if it was deleted, so is its backlog.
    async fn forget(&mut self, tenant: TenantId) -> Result<Turn, log::Error> {
        if !self.worker.is_gone(tenant, self.channel).await {
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
        while self.in_flight < window && self.landed() < LANDED_MAX {
            let now = self.worker.clock.timestamp();
            let (sequence, delivery) = match self.line.next(channel.settings.ordered, now) {
                Next::Go(placed) => placed,
                Next::Read if self.read().await? => continue,
                Next::Read | Next::Nothing => {
                    let wait = self.line.until_again(now).unwrap_or(LOOK_EVERY);
                    return Ok(wait.clamp(BREATH, LOOK_EVERY));
                }
            };
            if lock(&self.worker.recent).is_settled(delivery.id, delivery.attempt) {
                self.line.settle(sequence, &delivery);
                continue;
            }
            if let Some((_, rate)) = &mut self.rate
                && let Err(then) = rate.take(self.worker.clock.now())
            {
                self.line.put_back((sequence, delivery), Timestamp::default());
                return Ok(then.saturating_duration_since(self.worker.clock.now()));
            }
            let ticket = Ticket::new(sequence, self.line.is_head(&delivery), self.told.clone());
            let origin = Origin::Backlog(ticket);
            let held = Held { delivery: delivery.clone(), origin };
            let (cap, now) = (channel.settings.max_in_flight, self.worker.clock.now());
            let pushed = lock(&self.worker.slots).push((key, Class::Backlog), cap, held, now);
            if let Err(Overflow(held)) = pushed {
                if let Origin::Backlog(ticket) = held.origin {
                    ticket.forget();
                }
                self.line.put_back((sequence, delivery), Timestamp::default());
                return Ok(LINE_PAUSE);
            }
            self.line.went((sequence, delivery));
            self.in_flight += 1;
            self.unsettled += 1;
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

    /// Reads a page; whether there was any.
    async fn read(&mut self) -> Result<bool, log::Error> {
        let found = self.worker.log.backlog_page(&self.name, self.line.cursor(), PAGE).await?;
        let any = !found.is_empty();
        for waiting in found {
            let delivery = Delivery::decode(&waiting.payload).ok();
            if delivery.is_none() {
                warn!("position {} of a backlog is no delivery", waiting.sequence);
            }
            self.line.take_in(waiting.sequence, delivery);
        }
        Ok(any)
    }

    /// Deliveries whose attempts are over and that are not settled.
    fn landed(&self) -> usize {
        self.unsettled.saturating_sub(self.in_flight)
    }

    async fn on_told(&mut self, told: Told) {
        match told {
            Told::Landed => {
                self.in_flight = self.in_flight.saturating_sub(1);
                if self.probing.is_none() {
                    self.ramp.on_success();
                }
            }
            Told::Done(done) => self.on_done(done).await,
        }
    }

    /// Takes in what became of a delivery that was let go.
    async fn on_done(&mut self, done: Done) {
        self.unsettled = self.unsettled.saturating_sub(1);
        if !done.has_landed {
            self.in_flight = self.in_flight.saturating_sub(1);
        }
        let sign = done.came.map(|came| came.sign);
        let success = sign == Some(Sign::Success);
        let now = self.worker.clock.timestamp();
        if let Some(epoch) = self.probing.take() {
            let pause = done.came.map_or(Duration::ZERO, |came| came.pause);
            let probe = Probe { epoch, success, pause };
            let probed = self.worker.keeper.change(self.channel, |entry| entry.probed(probe, now));
            if let Err(error) = probed.await {
                warn!(error = %chain(&error), "a probe of channel {} was not noted", self.name);
            }
            self.ramp = Ramp::new(1);
        } else if success {
            if !done.has_landed {
                self.ramp.on_success();
            }
        } else if sign == Some(Sign::Transient) && self.ramp.on_failure() {
            let shut = |entry: Entry| {
                let closed = entry.state == State::Closed;
                closed.then(|| entry.trip(Why::Failures, now))
            };
            if let Err(error) = self.worker.keeper.change(self.channel, shut).await {
                warn!(error = %chain(&error), "channel {} was not stopped", self.name);
            }
        }
        let Some(delivery) = self.line.get(done.sequence).cloned() else { return };
        // An attempt that nobody knows the end of may have been made or not: it is made again, after a breath.
        let Some(fate) = done.came.map(|came| came.fate) else {
            self.line.put_back((done.sequence, delivery), now.plus(LOOK_EVERY));
            return;
        };
        match fate {
            // The head of a conversation in order stays at its place until it is settled.
            Fate::Retry(at) if done.keeps_retry => {
                let next = Delivery { attempt: delivery.attempt + 1, ..delivery };
                self.line.put_back((done.sequence, next), at);
            }
            Fate::Retry(_) | Fate::Delivered | Fate::Failed => {
                self.line.settle(done.sequence, &delivery);
            }
        }
    }

    /// Deletes what is settled from the front, now and then or at once.
    async fn purge(&mut self, at_once: bool) -> Result<(), log::Error> {
        let below = self.line.settled_below();
        let now = self.worker.clock.now();
        let due = at_once || now.saturating_duration_since(self.purged.0) >= PURGE_EVERY;
        if below > self.purged.1 && due {
            self.worker.log.backlog_purge(&self.name, below).await?;
            self.purged = (now, below);
        }
        Ok(())
    }
}
