//! The one or two databases of a server, and which of them is used.
//! Promises that every connection knows for which choice it was made, so that none of a former choice is used.
//! Does not decide; the detector does. Does not connect; the pools do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep_until;

use super::detector::{Decision, Detector, Outcome, Status};
use super::{Opening, Target, Topology};
use crate::clock::Clock;

/// The endpoints of a server. Cheap to clone; all clones choose together.
#[derive(Clone, Debug)]
pub(in crate::store) struct Endpoints(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    primary: Target,
    failback: Option<Target>,
    /// Counts the switches: even numbers mean the primary, odd ones the failback.
    generation: AtomicU64,
    choice: Mutex<Choice>,
    /// Tells whoever carries decisions out that there is one.
    decided: Notify,
}

#[derive(Debug)]
struct Choice {
    detector: Detector,
    /// What was decided and not taken up yet.
    pending: Option<Decision>,
}

impl Endpoints {
    pub(in crate::store) fn new(primary: Target, failback: Option<Target>, now: Instant) -> Self {
        let choice = Choice { detector: Detector::new(now), pending: None };
        Self(Arc::new(Inner {
            primary,
            failback,
            generation: AtomicU64::new(0),
            choice: Mutex::new(choice),
            decided: Notify::new(),
        }))
    }

    /// What stands before both.
    pub(in crate::store) fn topology(&self) -> Topology {
        self.0.primary.topology()
    }

    /// What a transaction at either of them begins with.
    pub(in crate::store) fn opening(&self, statement_timeout: Duration) -> Opening {
        self.0.primary.opening(statement_timeout)
    }

    /// Whether there are two.
    pub(in crate::store) fn are_two(&self) -> bool {
        self.0.failback.is_some()
    }

    /// The number of the present choice.
    pub(in crate::store) fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }

    /// The present choice with its number.
    pub(in crate::store) fn current(&self) -> (u64, Target) {
        let generation = self.generation();
        (generation, self.of(generation).clone())
    }

    /// The other endpoint with the number that it will have.
    pub(in crate::store) fn other(&self) -> (u64, Target) {
        let next = self.generation() + 1;
        (next, self.of(next).clone())
    }

    /// Where requests belong.
    pub(in crate::store) fn primary(&self) -> &Target {
        &self.0.primary
    }

    /// An operation ended: with a failure that says that the endpoint is not in order, or with anything else.
    /// What comes from a former choice says nothing of the present one.
    pub(in crate::store) fn note(
        &self,
        generation: u64,
        is_infrastructure_failure: bool,
        now: Instant,
    ) {
        if !self.are_two() || generation != self.generation() {
            return;
        }
        let outcome =
            if is_infrastructure_failure { Outcome::InfrastructureError } else { Outcome::Ok };
        self.decide(|detector| detector.on_outcome(outcome, now));
    }

    /// Lets the detector decide. What is not to be left alone is left for [`Endpoints::decision`].
    pub(in crate::store) fn decide(&self, ask: impl FnOnce(&mut Detector) -> Decision) {
        if !self.are_two() {
            return;
        }
        let mut choice = self.choice();
        let decision = ask(&mut choice.detector);
        if let Decision::Switch { .. } = decision {
            self.0.generation.fetch_add(1, Ordering::AcqRel);
        }
        if decision != Decision::Stay {
            choice.pending = Some(decision);
            self.0.decided.notify_one();
        }
    }

    /// The preparations, if there are any, failed; everything stays as it is.
    pub(in crate::store) fn give_up_preparing(&self, now: Instant) {
        self.choice().detector.on_prepare_failed(now);
    }

    /// Waits for the next decision.
    ///
    /// Cancel safe: a decision is taken up when it is returned, and not before.
    pub(in crate::store) async fn decision(&self, clock: &Clock) -> Decision {
        loop {
            let wake = {
                let mut choice = self.choice();
                if let Some(decision) = choice.pending.take() {
                    return decision;
                }
                choice.detector.next_wake()
            };
            let waking = async {
                match wake {
                    Some(at) => sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.0.decided.notified() => {}
                () = waking => self.decide(|detector| detector.on_wake(clock.now())),
            }
        }
    }

    /// What the detector knows.
    pub(in crate::store) fn status(&self) -> Status {
        self.choice().detector.status()
    }

    fn of(&self, generation: u64) -> &Target {
        let failback = self.0.failback.as_ref().filter(|_| generation % 2 == 1);
        failback.unwrap_or(&self.0.primary)
    }

    fn choice(&self) -> MutexGuard<'_, Choice> {
        self.0.choice.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
