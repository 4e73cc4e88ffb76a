//! Many conversations of two: how long an ack takes, and how long until the other has the message.
//! Promises fixed send times whatever the answers do, and both latencies from the same moment.
//! Does not send again what was refused; it counts as not acknowledged.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};

use super::line::{Line, Place, Seen, acked};
use super::{Latency, Pairs, Stage, since, stamp};
use crate::bench::Error;
use crate::clock::Clock;
use crate::load::Tally;

/// How long after the last send answers are waited for.
const GRACE: Duration = Duration::from_secs(10);

/// When the sends of one pair are due.
#[derive(Clone, Copy)]
struct Course {
    /// Of the whole measurement; stamps count from here.
    begin: Instant,
    first: Instant,
    interval: Duration,
    sends: u32,
}

impl Course {
    fn due(&self, number: u32) -> Instant {
        self.first + self.interval * number
    }

    fn until(&self) -> Instant {
        self.due(self.sends) + GRACE
    }
}

/// Latencies in microseconds.
enum Found {
    Acks(Vec<u64>),
    Arrivals(Vec<u64>),
}

impl Stage<'_> {
    pub(super) async fn pairs(&self) -> Result<Pairs, Error> {
        let place = Place::of(self.target).await?;
        let conversations = self.conversations(self.options.pairs).await?;
        let senders = place.join_all(&conversations).await?;
        let receivers = place.join_all(&conversations).await?;
        let rate = self.options.sends_per_second.max(1);
        let pairs = u32::try_from(senders.len()).unwrap_or(u32::MAX);
        let interval = Duration::from_secs(1) * pairs / rate;
        let sends = self.options.length.as_micros() / interval.as_micros().max(1);
        let sends = u32::try_from(sends).unwrap_or(u32::MAX).max(1);
        let begin = self.clock.now() + Duration::from_millis(200);
        let mut working = JoinSet::new();
        for (number, (sender, receiver)) in (0..).zip(senders.into_iter().zip(receivers)) {
            let first = begin + interval * number / pairs;
            let course = Course { begin, first, interval, sends };
            working.spawn(send(sender, course, self.clock.clone()));
            working.spawn(receive(receiver, course, self.clock.clone()));
        }
        let (mut acks, mut arrivals) = (Tally::default(), Tally::default());
        while let Some(found) = working.join_next().await {
            let (tally, micros) = match found.map_err(|_panic| Error::Panicked)? {
                Found::Acks(micros) => (&mut acks, micros),
                Found::Arrivals(micros) => (&mut arrivals, micros),
            };
            for micros in micros {
                tally.took(Duration::from_micros(micros));
                tally.stored += 1;
            }
        }
        let (ack, arrival) = (Latency::of(&acks), Latency::of(&arrivals));
        Ok(Pairs {
            conversations: conversations.len(),
            sent: u64::from(sends) * u64::from(pairs),
            acknowledged: acks.acknowledged(),
            delivered: arrivals.acknowledged(),
            ack,
            arrival,
            ratio: arrival.p99_ms / ack.p99_ms.max(f64::MIN_POSITIVE),
        })
    }
}

/// Sends when it is due, and notes each ack.
async fn send(mut line: Line, course: Course, clock: Clock) -> Found {
    let (mut acks, mut number) = (Vec::new(), 0);
    while acks.len() < usize::try_from(course.sends).unwrap_or(0) {
        let is_left = number < course.sends;
        let due = if is_left { course.due(number) } else { course.until() };
        tokio::select! {
            read = line.next() => match read {
                Ok(text) => {
                    if let Some(acked) = acked(&text).and_then(|at| u32::try_from(at).ok()) {
                        acks.push(micros(course.due(acked), clock.now()));
                    }
                }
                Err(_) => break,
            },
            () = sleep_until(due.into()) => {
                let (key, text) = (format!("bench-{number}-"), stamp(course.begin, due));
                if !is_left || line.send(&key, &text).await.is_err() {
                    break;
                }
                number += 1;
            }
        }
    }
    Found::Acks(acks)
}

async fn receive(mut line: Line, course: Course, clock: Clock) -> Found {
    let mut arrivals = Vec::new();
    while arrivals.len() < usize::try_from(course.sends).unwrap_or(0) {
        let left = course.until().saturating_duration_since(clock.now());
        let Ok(Ok(text)) = timeout(left, line.next()).await else {
            break;
        };
        if let Seen::Event { stamp: Some(sent) } = Seen::of(&text) {
            arrivals.push(micros(since(course.begin, sent), clock.now()));
        }
    }
    Found::Arrivals(arrivals)
}

fn micros(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_micros()).unwrap_or(u64::MAX)
}
