//! A closed loop of N callers without HTTP: each calls again as soon as it has its answer.
//! Promises the same measures and the same ledger as the load over HTTP, told apart by group of callers.
//! Does not know what is called.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::ledger::{Entry, Ledger};
use super::tally::{Tally, Window};
use crate::clock::Clock;

/// How many call, for how long.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Callers, at least one.
    pub callers: usize,
    /// Groups that are tallied apart: caller n is of group n modulo this. At least one.
    pub groups: usize,
    /// How long at the start calls are not tallied; the ledger has them.
    pub warmup: Duration,
    /// How long to call after the warm-up.
    pub length: Duration,
}

/// What a call came to.
#[derive(Clone, Copy, Debug)]
pub enum Called {
    /// Acknowledged for the first time; with what the ledger is to remember.
    Stored(Option<Entry>),
    /// Acknowledged as stored before.
    Repeated(Option<Entry>),
    /// Not acknowledged.
    Refused(&'static str),
}

/// What the callers came to.
#[derive(Debug)]
pub struct Outcome {
    /// A tally for each group.
    pub groups: Vec<Tally>,
    /// Every receipt, those of the warm-up included.
    pub ledger: Ledger,
    /// Calls that had no answer within [`super::GRACE`] after the end.
    pub unfinished: u64,
}

impl Outcome {
    /// All groups together.
    pub fn total(&self) -> Tally {
        let mut total = Tally::default();
        for group in &self.groups {
            total.absorb(group);
        }
        total
    }
}

/// Lets `call(caller, number)` be called by all callers at once until the time is over, on the caller's runtime.
pub async fn drive<C, F>(plan: Plan, clock: &Clock, call: C) -> Outcome
where
    C: Fn(usize, u64) -> F + Send + Sync + 'static,
    F: Future<Output = Called> + Send,
{
    let measured_from = clock.now() + plan.warmup;
    let window = Window { from: measured_from, until: measured_from + plan.length };
    let call = Arc::new(call);
    let mut tasks = JoinSet::new();
    for caller in 0..plan.callers {
        let (call, clock) = (Arc::clone(&call), clock.clone());
        tasks.spawn(async move {
            let found = repeat(caller, &clock, window, &*call).await;
            (caller % plan.groups.max(1), found)
        });
    }
    let mut outcome = Outcome {
        groups: vec![Tally::default(); plan.groups.max(1)],
        ledger: Ledger::default(),
        unfinished: plan.callers as u64,
    };
    let give_up = tokio::time::Instant::from_std(window.until + super::GRACE);
    while let Ok(Some(ended)) = tokio::time::timeout_at(give_up, tasks.join_next()).await {
        let Ok((group, (tally, ledger))) = ended else {
            continue;
        };
        outcome.unfinished -= 1;
        outcome.groups[group].absorb(&tally);
        outcome.ledger.absorb(ledger);
    }
    outcome
}

async fn repeat<C, F>(caller: usize, clock: &Clock, window: Window, call: &C) -> (Tally, Ledger)
where
    C: Fn(usize, u64) -> F,
    F: Future<Output = Called>,
{
    let (mut tally, mut ledger) = (Tally::default(), Ledger::default());
    let mut began = clock.now();
    for number in 0.. {
        if began >= window.until {
            break;
        }
        let called = call(caller, number).await;
        let ended = clock.now();
        if let Called::Stored(Some(entry)) | Called::Repeated(Some(entry)) = called {
            ledger.acknowledge(entry);
        }
        let (counted, noted) = (u64::from(window.has_answer(ended)), window.has_call(began));
        match called {
            Called::Stored(_) => tally.stored += counted,
            Called::Repeated(_) => tally.repeated += counted,
            Called::Refused(reason) if noted => tally.refuse(reason),
            Called::Refused(_) => {}
        }
        if noted && !matches!(called, Called::Refused(_)) {
            tally.took(ended.saturating_duration_since(began));
        }
        began = ended;
    }
    (tally, ledger)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{ConversationId, MessageId};

    #[tokio::test]
    async fn groups_are_tallied_apart_and_every_receipt_is_kept() {
        let plan = Plan {
            callers: 6,
            groups: 2,
            warmup: Duration::ZERO,
            length: Duration::from_millis(30),
        };
        let outcome = drive(plan, &Clock::system(), |caller, number| async move {
            tokio::task::yield_now().await;
            let mut name = [u8::try_from(caller).unwrap(); 16];
            name[..8].copy_from_slice(&number.to_be_bytes());
            let entry = Entry {
                message: MessageId::derive(name),
                conversation: ConversationId::derive([1; 16]),
                seq: number,
            };
            if caller % 2 == 0 { Called::Stored(Some(entry)) } else { Called::Refused("full") }
        })
        .await;
        let [even, odd] = &outcome.groups[..] else { panic!("two groups") };
        assert!(even.stored > 0 && even.failed() == 0);
        assert!(odd.stored == 0 && odd.refused["full"] > 0);
        assert!(outcome.ledger.len() as u64 >= even.stored);
        assert_eq!((outcome.unfinished, outcome.total().failed()), (0, odd.failed()));
    }
}
