//! A pool of connections as a loop of events: somebody arrives, somebody is done, a timer is due.
//! Promises that one seed gives one run, and that a policy sees nothing but arrivals, releases and time.
//! Does not judge; the tests do.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use forebay::admission::scheduler::{Arrival, Caps, Grant, Scheduler, Wake};
use forebay::admission::{Class, Origin, Priority, Settings, Source, Tag};
use forebay::clock::test_start;
use forebay::event::TenantId;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Requests of one kind.
pub struct Load {
    pub tag: Tag,
    /// Per second.
    pub rate: f64,
    /// Mean time for which a permit is held.
    pub held: Duration,
    /// How long the client waits for the answer.
    pub patience: Duration,
}

/// What became of the requests of one kind.
#[derive(Default)]
pub struct Outcome {
    pub arrived: usize,
    /// Answered while the client still waited.
    pub good: usize,
    /// Their latencies, in seconds, sorted.
    pub latencies: Vec<f64>,
    /// Permits in use on average.
    pub permits: f64,
}

impl Outcome {
    pub fn success(&self) -> f64 {
        share(self.good, self.arrived)
    }

    pub fn percentile(&self, part: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        self.latencies.get((last as f64 * part) as usize).copied().unwrap_or(f64::INFINITY)
    }
}

pub fn share(part: usize, of: usize) -> f64 {
    part as f64 / of.max(1) as f64
}

/// Who gets a permit.
pub enum Policy {
    /// The gate.
    Gate(Box<Scheduler<usize>>),
    /// In order of arrival, without bounds: the usual pool.
    Fifo { free: usize, queue: VecDeque<usize> },
}

pub fn interactive(capacity: usize) -> Settings {
    Settings {
        capacity,
        waiters_max: 64 * capacity,
        target: Duration::from_millis(50),
        interval: Duration::from_secs(1),
        window: Duration::from_secs(5),

        tenant_max: usize::MAX,
        reserved: None,
    }
}

pub fn background(capacity: usize) -> Settings {
    Settings {
        target: Duration::from_millis(500),
        interval: Duration::from_secs(5),
        ..interactive(capacity)
    }
}

pub fn origin(class: Class, tenant: u128) -> Origin {
    let tenant = Some(TenantId::from_uuid(uuid::Uuid::from_u128(tenant)));
    Origin { class, tenant, source: Source::Rest }
}

pub fn high(tenant: u128) -> Tag {
    origin(Class::High, tenant).at(Priority::High)
}

/// The gate under these loads.
pub fn gate(settings: &Settings, loads: &[Load], seconds: u64) -> Vec<Outcome> {
    let start = test_start();
    let scheduler = Scheduler::new(settings, Caps::NONE, start);
    World::new(Policy::Gate(Box::new(scheduler)), start).run(loads, seconds)
}

/// A plain queue under these loads.
pub fn fifo(capacity: usize, loads: &[Load], seconds: u64) -> Vec<Outcome> {
    let policy = Policy::Fifo { free: capacity, queue: VecDeque::new() };
    World::new(policy, test_start()).run(loads, seconds)
}

struct World {
    policy: Policy,
    now: Instant,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    /// Gives events of one time an order.
    count: u64,
    requests: Vec<Request>,
    rng: SmallRng,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// One request of this load.
    Arrive(usize),
    /// The request that has a permit is done.
    Done(usize),
}

struct Request {
    load: usize,
    arrived: Instant,
    granted: Instant,
    grant: Option<Grant>,
}

impl World {
    fn new(policy: Policy, now: Instant) -> Self {
        let (events, requests) = (BinaryHeap::new(), Vec::new());
        Self { policy, now, events, count: 0, requests, rng: SmallRng::seed_from_u64(7) }
    }

    fn run(mut self, loads: &[Load], seconds: u64) -> Vec<Outcome> {
        let mut outcomes: Vec<Outcome> = loads.iter().map(|_| Outcome::default()).collect();
        let end = self.now + Duration::from_secs(seconds);
        for (load, of) in loads.iter().enumerate() {
            self.plan_arrival(load, of);
        }
        while let Some(at) = self.next_time().filter(|&at| at < end) {
            self.now = at;
            match self.events.peek() {
                Some(Reverse((time, ..))) if *time <= at => {
                    let Some(Reverse((_, _, event))) = self.events.pop() else {
                        continue;
                    };
                    self.happen(event, loads, &mut outcomes);
                }
                Some(_) | None => self.change(loads, Scheduler::tick),
            }
        }
        for outcome in &mut outcomes {
            outcome.permits /= seconds as f64;
            outcome.latencies.sort_by(f64::total_cmp);
        }
        outcomes
    }

    fn next_time(&self) -> Option<Instant> {
        let event = self.events.peek().map(|Reverse((at, ..))| *at);
        let timer = match &self.policy {
            Policy::Gate(scheduler) => scheduler.next_wake(),
            Policy::Fifo { .. } => None,
        };
        event.into_iter().chain(timer).min()
    }

    fn happen(&mut self, event: Event, loads: &[Load], outcomes: &mut [Outcome]) {
        match event {
            Event::Arrive(load) => {
                outcomes[load].arrived += 1;
                self.plan_arrival(load, &loads[load]);
                self.arrive(load, loads);
            }
            Event::Done(request) => {
                let Request { load, arrived, granted, .. } = self.requests[request];
                let latency = self.now.saturating_duration_since(arrived);
                let outcome = &mut outcomes[load];
                outcome.permits += self.now.saturating_duration_since(granted).as_secs_f64();
                if latency <= loads[load].patience {
                    outcome.good += 1;
                    outcome.latencies.push(latency.as_secs_f64());
                }
                self.release(request, loads);
            }
        }
    }

    fn arrive(&mut self, load: usize, loads: &[Load]) {
        let (now, request) = (self.now, self.requests.len());
        self.requests.push(Request { load, arrived: now, granted: now, grant: None });
        match &mut self.policy {
            Policy::Gate(scheduler) => {
                let mut wakes = Vec::new();
                let wish = (loads[load].tag, now + loads[load].patience);
                let arrival = scheduler.arrive(wish, now, || request, &mut wakes);
                if let Arrival::Granted(grant) = arrival {
                    self.begin(request, Some(grant), loads);
                }
                self.wake(wakes, loads);
            }
            Policy::Fifo { free: 0, queue } => queue.push_back(request),
            Policy::Fifo { free, .. } => {
                *free -= 1;
                self.begin(request, None, loads);
            }
        }
    }

    fn release(&mut self, request: usize, loads: &[Load]) {
        match &mut self.policy {
            Policy::Gate(_) => {
                let grant = self.requests[request].grant.take().unwrap();
                self.change(loads, |scheduler, now, wakes| scheduler.release(grant, now, wakes));
            }
            Policy::Fifo { free, queue } => match queue.pop_front() {
                Some(next) => self.begin(next, None, loads),
                None => *free += 1,
            },
        }
    }

    fn change(
        &mut self,
        loads: &[Load],
        change: impl FnOnce(&mut Scheduler<usize>, Instant, &mut Vec<Wake<usize>>),
    ) {
        let mut wakes = Vec::new();
        if let Policy::Gate(scheduler) = &mut self.policy {
            change(scheduler, self.now, &mut wakes);
        }
        self.wake(wakes, loads);
    }

    fn wake(&mut self, wakes: Vec<Wake<usize>>, loads: &[Load]) {
        for Wake { waiter, outcome } in wakes {
            if let Ok(grant) = outcome {
                self.begin(waiter, Some(grant), loads);
            }
        }
    }

    fn begin(&mut self, request: usize, grant: Option<Grant>, loads: &[Load]) {
        let held = self.draw(loads[self.requests[request].load].held.as_secs_f64());
        self.requests[request].grant = grant;
        self.requests[request].granted = self.now;
        self.plan(held, Event::Done(request));
    }

    fn plan_arrival(&mut self, load: usize, of: &Load) {
        let pause = self.draw(1.0 / of.rate);
        self.plan(pause, Event::Arrive(load));
    }

    fn plan(&mut self, after: Duration, event: Event) {
        self.count += 1;
        self.events.push(Reverse((self.now + after, self.count, event)));
    }

    /// Exponentially distributed, in seconds.
    fn draw(&mut self, mean: f64) -> Duration {
        let uniform: f64 = self.rng.random();
        Duration::from_secs_f64(-mean * (1.0 - uniform).ln())
    }
}
