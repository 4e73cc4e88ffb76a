//! An open loop: requests at fixed times, each measured from the moment at which it was due.
//! Promises that a slow answer delays no other request, and that each request is counted exactly once.
//! Does not know who is asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::Options;
use super::contestant::{Asked, Contestant};
use crate::clock::Clock;
use crate::load::Tally;

/// Requests under way at most; one more is shed. A client gives up at its deadline, so that even at 20 000 a second with
/// a deadline of a second there is room.
const IN_FLIGHT_MAX: usize = 20_000;

/// How long after the last deadline requests are waited for that should have ended then.
const GRACE: Duration = Duration::from_secs(5);

/// When which request is due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    /// How many there are.
    pub(super) requests: u64,
    per_second: f64,
    deadline: Duration,
}

/// What came of the requests.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) sent: u64,
    pub(super) ok: u64,
    pub(super) late: u64,
    pub(super) refused: u64,
    pub(super) errors: u64,
    pub(super) shed: u64,
    /// Latencies of the right answers, reasons of the refusals and errors.
    pub(super) tally: Tally,
    /// From the first due time to the last right answer.
    pub(super) span: Duration,
    /// The furthest that a request was made after its time.
    pub(super) behind: Duration,
}

/// A request that has ended.
struct Ended {
    asked: Asked,
    due: Instant,
    at: Instant,
}

impl Schedule {
    pub(super) fn of(options: &Options) -> Self {
        let requests = options.per_second * options.length.as_secs_f64();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a small count"
        )]
        let requests = requests.round().clamp(1.0, 1e9) as u64;
        Self { requests, per_second: options.per_second, deadline: options.deadline }
    }

    fn due(&self, begin: Instant, number: u64) -> Instant {
        let nth = crate::load::tally::precise(number);
        begin + Duration::from_secs_f64(nth / self.per_second.max(f64::MIN_POSITIVE))
    }
}

/// Asks for everything that is due and waits until each request has ended.
pub(super) async fn drive(
    contestant: Arc<Contestant>,
    schedule: Schedule,
    ended: Arc<AtomicU64>,
    clock: Clock,
) -> Found {
    let begin = clock.now();
    let (mut found, mut under_way) = (Found::default(), JoinSet::new());
    while found.sent < schedule.requests {
        let due = schedule.due(begin, found.sent);
        tokio::time::sleep_until(due.into()).await;
        let now = clock.now();
        found.behind = found.behind.max(now.saturating_duration_since(due));
        while found.sent < schedule.requests && schedule.due(begin, found.sent) <= now {
            let (number, due) = (found.sent, schedule.due(begin, found.sent));
            found.sent += 1;
            if under_way.len() >= IN_FLIGHT_MAX {
                found.shed += 1;
                continue;
            }
            let (contestant, clock) = (Arc::clone(&contestant), clock.clone());
            under_way.spawn(async move {
                let asked = contestant.ask(number, due + schedule.deadline).await;
                Ended { asked, due, at: clock.now() }
            });
        }
        while let Some(Ok(request)) = under_way.try_join_next() {
            found.note(request, begin, schedule.deadline);
        }
        ended.store(found.sent - under_way.len() as u64, Ordering::Relaxed);
    }
    let give_up = schedule.due(begin, schedule.requests) + schedule.deadline + GRACE;
    while let Ok(Some(request)) =
        tokio::time::timeout_at(give_up.into(), under_way.join_next()).await
    {
        if let Ok(request) = request {
            found.note(request, begin, schedule.deadline);
        }
    }
    under_way.shutdown().await;
    found.close();
    found
}

impl Found {
    fn note(&mut self, Ended { asked, due, at }: Ended, begin: Instant, deadline: Duration) {
        let took = at.saturating_duration_since(due);
        match asked {
            // What comes too late is too late, whatever it is: the client has left.
            _ if took > deadline => self.late += 1,
            Asked::Answered => {
                self.ok += 1;
                self.tally.took(took);
                self.span = self.span.max(at.saturating_duration_since(begin));
            }
            Asked::Late => self.late += 1,
            Asked::Refused(reason) => {
                self.refused += 1;
                self.tally.refuse(&reason);
            }
            Asked::Failed(reason) => {
                self.errors += 1;
                self.tally.refuse(&reason);
            }
        }
    }

    /// Requests that never ended, or whose task is gone, are errors.
    fn close(&mut self) {
        let counted = self.ok + self.late + self.refused + self.errors + self.shed;
        for _ in counted..self.sent {
            self.errors += 1;
            self.tally.refuse("without an end");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::test_start;

    const DEADLINE: Duration = Duration::from_millis(500);

    fn options(per_second: f64, seconds: f64) -> Options {
        Options {
            per_second,
            length: Duration::from_secs_f64(seconds),
            connections: 1,
            service: Duration::ZERO,
            deadline: DEADLINE,
            tenants: 1,
        }
    }

    #[test]
    fn due_times_depend_on_nothing_but_the_number() {
        let schedule = Schedule::of(&options(3_000.0, 20.0));
        assert_eq!(schedule.requests, 60_000);
        let begin = test_start();
        let after = |number| schedule.due(begin, number).duration_since(begin);
        assert_eq!(after(0), Duration::ZERO);
        assert_eq!(after(3_000), Duration::from_secs(1));
        assert_eq!(after(60_000), Duration::from_secs(20));
        assert_eq!(Schedule::of(&options(0.1, 1.0)).requests, 1);
    }

    #[test]
    fn every_request_is_counted_once_and_what_comes_late_is_late() {
        let (begin, mut found) = (test_start(), Found::default());
        let (early, late) = (Duration::from_millis(20), DEADLINE + Duration::from_millis(1));
        for (asked, took) in [
            (Asked::Answered, early),
            (Asked::Answered, late),
            (Asked::Late, early),
            (Asked::Refused("queue".to_owned()), early),
            (Asked::Refused("queue".to_owned()), late),
            (Asked::Failed("wrong".to_owned()), early),
        ] {
            found.sent += 1;
            found.note(Ended { asked, due: begin, at: begin + took }, begin, DEADLINE);
        }
        (found.sent, found.shed) = (found.sent + 3, 1);
        found.close();
        assert_eq!((found.ok, found.late, found.refused), (1, 3, 1));
        assert_eq!((found.errors, found.shed, found.sent), (3, 1, 9));
        assert_eq!(found.tally.refused["without an end"], 2);
        assert_eq!(found.span, early);
    }
}
