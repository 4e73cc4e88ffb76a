//! A storm: clients that are thrown out together and come back at the same moment, each a few events behind.
//! Promises that a client which did not get everything counts as failed, and no attempt is repeated.
//! Does not spread the clients, as real ones do: this is the worst case.

use std::time::Duration;

use tokio::task::JoinSet;

use super::line::{Place, acked};
use super::{Latency, Stage, Storm};
use crate::bench::Error;
use crate::bench::send::asked;
use crate::event::ConversationId;
use crate::load::Tally;
use crate::load::tally::millis;

/// Messages of a conversation before the storm; with the event that opened it, its head is one more.
const MESSAGES: u64 = 10;

/// Events that a client has missed.
const MISSED: u64 = 5;

/// How long the server has to see that they are gone.
const AWAY: Duration = Duration::from_secs(1);

impl Stage<'_> {
    pub(super) async fn storm(&self) -> Result<Storm, Error> {
        let place = Place::of(self.target).await?;
        let conversations = self.conversations(self.options.conversations).await?;
        self.fill(&place, &conversations).await?;
        let wanted: Vec<_> =
            conversations.iter().copied().cycle().take(self.options.storm).collect();
        let lines = place.join_all(&wanted).await?;
        drop(lines);
        tokio::time::sleep(AWAY).await;
        let before = self.acquired().await?;
        let began = self.clock.now();
        let mut coming = JoinSet::new();
        for conversation in wanted {
            let (place, clock) = (place.clone(), self.clock.clone());
            coming.spawn(async move {
                let joined = place.join(conversation, Some(1 + MESSAGES - MISSED)).await;
                let took = clock.now().saturating_duration_since(began);
                // The line stays open until all are there.
                joined.map(|(line, events)| (line, events, took))
            });
        }
        let (mut tally, mut failed, mut lines) = (Tally::default(), 0, Vec::new());
        while let Some(came) = coming.join_next().await {
            match came.map_err(|_panic| Error::Panicked)? {
                Ok((line, MISSED, took)) => {
                    tally.took(took);
                    lines.push(line);
                }
                Ok(_) | Err(_) => failed += 1,
            }
        }
        let took = self.clock.now().saturating_duration_since(began);
        let after = self.acquired().await?;
        Ok(Storm {
            clients: self.options.storm,
            complete: lines.len(),
            failed,
            missed_each: MISSED,
            took_ms: millis(took),
            latency: Latency::of(&tally),
            acquires: before.zip(after).map(|(before, after)| after.saturating_sub(before)),
        })
    }

    /// Sends the messages that are missed later, as recent as can be.
    async fn fill(&self, place: &Place, conversations: &[ConversationId]) -> Result<(), Error> {
        for mut line in place.join_all(conversations).await? {
            for number in 0..MESSAGES {
                line.send(&format!("bench-{number}-"), "missed").await?;
            }
            let mut acks = 0;
            while acks < MESSAGES {
                acks += u64::from(acked(&line.next().await?).is_some());
            }
        }
        Ok(())
    }

    async fn acquired(&self) -> Result<Option<u64>, Error> {
        match self.acquires {
            Some(acquires) => Ok(Some(asked("reading metrics", acquires(())).await?)),
            None => Ok(None),
        }
    }
}
