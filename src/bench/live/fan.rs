//! One conversation to many connections: at a pace, for latencies, and all at once, for deliveries a second.
//! Promises that an event that does not arrive is counted as missing and does not stop the measurement.
//! Does not count the senders' own connections.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};

use super::line::{Line, Place, Seen};
use super::{FanOut, Latency, Stage, since, stamp};
use crate::bench::Error;
use crate::clock::Clock;
use crate::event::ConversationId;
use crate::load::Tally;
use crate::load::tally::rate;

/// Messages of one sender in a second, and at once: below what a connection may send (20, 40).
const PACE_OF_A_SENDER: u32 = 15;
const BURST_OF_A_SENDER: usize = 30;

/// Messages that are sent at once: each connection holds 1 000 frames that are to be written.
const BURST: usize = 90;

/// How long after the last send arrivals are waited for.
const GRACE: Duration = Duration::from_secs(15);

/// When messages are sent.
#[derive(Clone, Copy)]
enum Pace {
    PerSecond(u32),
    AtOnce,
}

/// What one receiver saw.
struct Arrivals {
    micros: Vec<u64>,
    last: Instant,
}

impl Stage<'_> {
    pub(super) async fn fan_out(&self) -> Result<Vec<FanOut>, Error> {
        let paced = Pace::PerSecond(self.options.messages_per_second.max(1));
        Ok(vec![
            self.fan(paced, self.options.messages).await?,
            self.fan(Pace::AtOnce, BURST).await?,
        ])
    }

    async fn fan(&self, pace: Pace, messages: usize) -> Result<FanOut, Error> {
        let place = Place::of(self.target).await?;
        let conversation: ConversationId = self.conversations(1).await?[0];
        let senders = match pace {
            Pace::PerSecond(rate) => usize::try_from(rate.div_ceil(PACE_OF_A_SENDER)).unwrap_or(1),
            Pace::AtOnce => messages.div_ceil(BURST_OF_A_SENDER),
        };
        let mut senders = place.join_all(&vec![conversation; senders]).await?;
        let lines = place.join_all(&vec![conversation; self.options.receivers]).await?;
        let begin = self.clock.now() + Duration::from_millis(200);
        let due = |number: usize| match pace {
            Pace::PerSecond(rate) => {
                begin + Duration::from_secs(1) * u32::try_from(number).unwrap_or(0) / rate
            }
            Pace::AtOnce => begin,
        };
        let until = due(messages) + GRACE;
        let mut receiving = JoinSet::new();
        for line in lines {
            receiving.spawn(receive(line, messages, (begin, until), self.clock.clone()));
        }
        let count = senders.len();
        for number in 0..messages {
            sleep_until(due(number).into()).await;
            let (key, text) = (format!("bench-{number}-"), stamp(begin, due(number)));
            senders[number % count].send(&key, &text).await?;
        }
        let (mut tally, mut delivered, mut last) = (Tally::default(), 0, begin);
        while let Some(arrivals) = receiving.join_next().await {
            let arrivals = arrivals.map_err(|_panic| Error::Panicked)?;
            delivered += u64::try_from(arrivals.micros.len()).unwrap_or(0);
            last = last.max(arrivals.last);
            for micros in arrivals.micros {
                tally.took(Duration::from_micros(micros));
            }
        }
        let wanted = u64::try_from(self.options.receivers * messages).unwrap_or(u64::MAX);
        Ok(FanOut {
            messages_per_second: match pace {
                Pace::PerSecond(rate) => Some(rate),
                Pace::AtOnce => None,
            },
            messages,
            receivers: self.options.receivers,
            delivered,
            missing: wanted.saturating_sub(delivered),
            deliveries_per_second: rate(delivered, last.saturating_duration_since(begin)),
            latency: Latency::of(&tally),
        })
    }
}

/// Reads until so many messages have come or the time is over.
async fn receive(
    mut line: Line,
    messages: usize,
    (begin, until): (Instant, Instant),
    clock: Clock,
) -> Arrivals {
    let mut arrivals = Arrivals { micros: Vec::with_capacity(messages), last: begin };
    while arrivals.micros.len() < messages {
        let left = until.saturating_duration_since(clock.now());
        let Ok(Ok(text)) = timeout(left, line.next()).await else {
            break;
        };
        if let Seen::Event { stamp: Some(sent) } = Seen::of(&text) {
            arrivals.last = clock.now();
            let took = arrivals.last.saturating_duration_since(since(begin, sent));
            arrivals.micros.push(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        }
    }
    arrivals
}
