//! One connection's loop: takes a send when it is due, makes the request, notes what came of it.
//! Promises that a send is noted exactly once an attempt, in the phase in which the attempt began, and that a refused one
//! backs off, further each time.
//! Does not decide when the run ends; the job does.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::arrivals::{Arrivals, GivenUp, due};
use super::backoff::Backoff;
use super::connection::{Connection, Receipt};
use super::ledger::{Entry, Ledger};
use super::tally::{Tally, Window};
use super::throttle::{Decision, Ending, Throttle};
use super::wire::{ConversationText, KeyOf, SendRequest, Template};
use super::{FOREVER, LOOK_UP, OnOverload, OnRefusal, PHASES_MAX, Pace, Plan, SHED, Watch};
use crate::admission::Priority;
use crate::clock::Clock;
use crate::event::ConversationId;

/// What the connections share.
pub(super) struct Job {
    pub(super) plan: Plan,
    pub(super) address: SocketAddr,
    pub(super) texts: Vec<ConversationText>,
    pub(super) watch: Arc<Watch>,
    pub(super) clock: Clock,
    pub(super) begin: Instant,
    /// What is tallied; no send begins after its end.
    pub(super) window: Window,
    pub(super) sends_left: AtomicU64,
    /// Sends that were taken so far, where the connections share them.
    pub(super) arrivals: AtomicU64,
    /// Only if sends are held back from a server that is overloaded. Touched by one thread only, too.
    pub(super) throttle: Option<Mutex<Throttle>>,
    /// Touched by one thread only, so the lock is never waited for.
    pub(super) found: Mutex<Found>,
}

pub(super) struct Found {
    pub(super) phases: [Tally; PHASES_MAX],
    pub(super) ledger: Ledger,
    pub(super) last_answer: Instant,
}

/// One connection's part of the job.
pub(super) async fn work(job: Arc<Job>, worker: u16) {
    let plan = &job.plan;
    let mut request = SendRequest::new(Template {
        host: plan.url.trim_start_matches("http://").trim_end_matches('/'),
        api_key: &plan.api_key,
        body_bytes: plan.body_bytes,
        keys: plan.keys,
    });
    let mine = share_of(job.texts.len(), usize::from(plan.connections), usize::from(worker));
    let mut connection = None;
    let mut rng = job.rng_of(worker);
    let mut backoff: Option<Backoff> = None;
    for (number, place) in (0..=u32::MAX).zip(mine.cycle()) {
        let Some(due) = job.next_send(worker, number).await else {
            return;
        };
        let key = KeyOf { run: plan.run, worker, number };
        let bytes = request.addressed(&job.texts[place], key);
        loop {
            let phase = job.watch.phase.load(Ordering::Relaxed);
            let answered = job.throttled(&mut connection, bytes, &mut rng).await;
            job.note(plan.conversations[place], phase, due, &answered);
            let Err(refused) = answered else {
                backoff = None;
                break;
            };
            if connection.is_none() || plan.pauses_when_refused() {
                let backoff = backoff.get_or_insert_default();
                job.pause(backoff.next(refused.asked(), rng.random())).await;
            }
            if plan.on_refusal == OnRefusal::GoOn || job.is_over() {
                break;
            }
        }
    }
}

impl Plan {
    fn pauses_when_refused(&self) -> bool {
        self.on_refusal == OnRefusal::Repeat || self.on_overload == OnOverload::HoldBack
    }
}

/// Places of the conversations that this connection sends to: each conversation has one connection as long as there
/// are enough, else the connections share.
fn share_of(
    conversations: usize,
    workers: usize,
    worker: usize,
) -> impl Iterator<Item = usize> + Clone {
    let first = worker % conversations.max(1);
    (first..conversations).step_by(workers.max(1))
}

/// Why a send was not acknowledged.
enum Refused {
    /// By the server, which may have said how long to wait.
    Status(u16, Option<Duration>),
    /// By the network, or by what came over it.
    Broken(&'static str),
    /// By the throttle: it was not sent.
    HeldBack,
}

impl Refused {
    fn asked(&self) -> Option<Duration> {
        if let Self::Status(_, asked) = self { *asked } else { None }
    }

    fn ending(&self) -> Ending {
        match self {
            Self::Status(status, _) => Ending::of_status(*status),
            Self::Broken(_) | Self::HeldBack => Ending::Overloaded,
        }
    }
}

impl Job {
    fn is_over(&self) -> bool {
        self.watch.over.load(Ordering::Relaxed) || self.clock.now() >= self.window.until
    }

    /// When the send is due, after waiting for that; `None` when the run is over.
    async fn next_send(&self, worker: u16, number: u32) -> Option<Instant> {
        let due = match self.plan.pace {
            Pace::AnswerByAnswer => self.clock.now(),
            Pace::PerSecond(rate) => {
                let nth = f64::from(number) * f64::from(self.plan.connections) + f64::from(worker);
                self.wait_for(due(nth, rate)).await
            }
            Pace::Shared { per_second, patience } => {
                self.next_arrival(self.arrivals_of(per_second, patience)).await
            }
        };
        let take = |left: u64| left.checked_sub(1);
        let left = &self.sends_left;
        let over = due >= self.window.until || self.watch.over.load(Ordering::Relaxed);
        let taken = !over && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        taken.then_some(due)
    }

    fn arrivals_of(&self, per_second: f64, patience: Duration) -> Arrivals {
        let since_begin = |then: Instant| then.saturating_duration_since(self.begin);
        let (warmup, end) = (since_begin(self.window.from), since_begin(self.window.until));
        Arrivals { per_second, patience, warmup, end }
    }

    /// When the next send is due that nobody has taken, after waiting for that and giving up what is overdue.
    async fn next_arrival(&self, arrivals: Arrivals) -> Instant {
        loop {
            let nth = self.arrivals.fetch_add(1, Ordering::Relaxed);
            let due = self.wait_for(arrivals.due(nth)).await;
            let passed = self.clock.now().saturating_duration_since(self.begin);
            let untaken = self.arrivals.load(Ordering::Relaxed);
            match arrivals.given_up(nth, untaken, passed) {
                None => return due,
                Some(given_up) => self.give_up(given_up),
            }
        }
    }

    /// When a send is due that is so long after the beginning, after waiting for that, but not beyond the end of the run.
    async fn wait_for(&self, after: Duration) -> Instant {
        let due = self.begin + after.min(FOREVER);
        let wake = due.min(self.window.until);
        // What is due already costs no timer: at the most that a generator can do, all is.
        if wake > self.clock.now() {
            tokio::time::sleep_until(tokio::time::Instant::from_std(wake)).await;
        }
        due
    }

    /// Notes sends that were due and are not made.
    fn give_up(&self, GivenUp { next, count, tallied }: GivenUp) {
        self.arrivals.fetch_max(next, Ordering::Relaxed);
        self.watch.failed.fetch_add(count, Ordering::Relaxed);
        if tallied > 0 {
            let phase = self.watch.phase.load(Ordering::Relaxed);
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            found.phases[phase].refuse_many(SHED, tallied);
        }
    }

    /// Draws of one connection; two runs on one machine must not draw alike, or they come back together.
    fn rng_of(&self, worker: u16) -> SmallRng {
        let seed = self.clock.timestamp().micros().unsigned_abs();
        SmallRng::seed_from_u64(seed.rotate_left(16) ^ u64::from(worker))
    }

    /// Sleeps, but not past the end of the run.
    async fn pause(&self, length: Duration) {
        let end = (self.clock.now() + length).min(self.window.until);
        while !self.is_over() {
            let left = end.saturating_duration_since(self.clock.now());
            if left.is_zero() {
                break;
            }
            tokio::time::sleep(left.min(LOOK_UP)).await;
        }
    }

    /// One attempt, unless the throttle holds it back.
    async fn throttled(
        &self,
        held: &mut Option<Connection>,
        bytes: &[u8],
        rng: &mut SmallRng,
    ) -> Result<Receipt, Refused> {
        let Some(throttle) = &self.throttle else {
            return self.attempt(held, bytes).await;
        };
        let locked = || throttle.lock().unwrap_or_else(PoisonError::into_inner);
        let decision = locked().on_call(Priority::High, rng.random(), self.clock.now());
        if decision == Decision::HoldBack {
            return Err(Refused::HeldBack);
        }
        let answered = self.attempt(held, bytes).await;
        let ending = answered.as_ref().map_or_else(Refused::ending, |_receipt| Ending::Accepted);
        locked().on_end(Priority::High, ending, self.clock.now());
        answered
    }

    /// One request and its answer; opens the connection if there is none, and drops it when it is of no more use.
    async fn attempt(
        &self,
        held: &mut Option<Connection>,
        bytes: &[u8],
    ) -> Result<Receipt, Refused> {
        let mut connection = match held.take() {
            Some(connection) => connection,
            None => match Connection::open(self.address).await {
                Ok(connection) => connection,
                Err(_unreachable) => return Err(Refused::Broken("unreachable")),
            },
        };
        let Ok(answer) = connection.exchange(bytes).await else {
            return Err(Refused::Broken("broken"));
        };
        let receipt = match answer.status {
            200 | 201 => {
                Receipt::read(connection.body(&answer)).ok_or(Refused::Broken("unreadable"))
            }
            status => Err(Refused::Status(status, connection.retry_after(&answer))),
        };
        if !answer.closes {
            *held = Some(connection);
        }
        receipt
    }

    fn note(
        &self,
        conversation: ConversationId,
        phase: usize,
        due: Instant,
        answered: &Result<Receipt, Refused>,
    ) {
        let now = self.clock.now();
        let counter = if answered.is_ok() { &self.watch.acknowledged } else { &self.watch.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.last_answer = now;
        if let Ok(receipt) = answered {
            found.ledger.acknowledge(Entry { message: receipt.id, conversation, seq: receipt.seq });
        }
        let (counted, noted) = (u64::from(self.window.has_answer(now)), self.window.has_call(due));
        let tally = &mut found.phases[phase];
        match answered {
            Ok(receipt) => {
                if noted {
                    tally.took(now.saturating_duration_since(due));
                }
                if receipt.duplicate {
                    tally.repeated += counted;
                } else {
                    tally.stored += counted;
                }
            }
            Err(_) if !noted => {}
            Err(Refused::Status(status, _)) => {
                tally.refuse(&status.to_string());
                tally.took_to_refuse(now.saturating_duration_since(due));
            }
            Err(Refused::Broken(how)) => tally.refuse(how),
            Err(Refused::HeldBack) => tally.refuse("held back"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_conversation_has_one_connection_while_there_are_enough() {
        let mut all: Vec<usize> = (0..3).flat_map(|w| share_of(10, 3, w)).collect();
        all.sort_unstable();
        assert_eq!(all, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn more_connections_than_conversations_share_them() {
        let first = |w| share_of(2, 5, w).next();
        assert_eq!(
            (0..5).map(first).collect::<Vec<_>>(),
            [Some(0), Some(1), Some(0), Some(1), Some(0)]
        );
    }
}
