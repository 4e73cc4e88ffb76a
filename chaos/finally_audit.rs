//! What must be so at the end: every receipt is stored once and in its place, in the log and in Postgres, and was delivered.
//! Promises to compare everything, and to wait for what is still on its way no longer than it says.
//! Does not repair.

use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use forebay::cli::{apart, operator};
use forebay::clock::Clock;
use forebay::config::Config;
use forebay::event::delivery::Delivery;
use forebay::event::{ChannelId, ConversationId, MessageId};
use forebay::load::{Audit, Entry, Ledger};
use forebay::log::{Log, streams};
use forebay::operate::verify::Findings;
use forebay::receiver::Receiver;
use sqlx::Row as _;
use tokio::time::{MissedTickBehavior, interval};

use crate::stage::HOOK;

/// Longest wait until Postgres has the whole log.
const LEVEL_MAX: Duration = Duration::from_mins(1);

/// Longest wait until the receiver has everything: a failed attempt is made again after some seconds, then minutes.
const DELIVERED_MAX: Duration = Duration::from_mins(3);

/// How often is looked.
const LOOK: Duration = Duration::from_millis(250);

/// What the log holds.
#[derive(Debug)]
pub(crate) struct Stored {
    /// Every event.
    pub(crate) entries: Vec<Entry>,
    /// Where each conversation ends.
    pub(crate) heads: BTreeMap<ConversationId, u64>,
}

impl Stored {
    /// Which message each conversation has at each seq.
    pub(crate) fn places(&self) -> BTreeMap<ConversationId, BTreeMap<u64, MessageId>> {
        let mut places: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for entry in &self.entries {
            places.entry(entry.conversation).or_default().insert(entry.seq, entry.message);
        }
        places
    }
}

/// Reads the whole log.
pub(crate) async fn stored(
    config: &Config,
    conversations: &[ConversationId],
) -> anyhow::Result<Stored> {
    let log = Log::connect(config.log.clone()).await?;
    let partitions = streams::shape(&log).await?.partitions;
    let entries = apart::stored(&log, partitions, conversations).await?;
    let mut heads = BTreeMap::new();
    for entry in &entries {
        let head: &mut u64 = heads.entry(entry.conversation).or_default();
        *head = entry.seq.max(*head);
    }
    Ok(Stored { entries, heads })
}

/// Compares receipts with the log.
pub(crate) fn audit(ledger: &mut Ledger, stored: &Stored) -> Audit {
    ledger.audit(stored.entries.iter().copied())
}

/// What came of a comparison of Postgres with the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Level {
    /// Of each event of the log.
    pub(crate) findings: Findings,
    /// Rows of messages in Postgres: as many as there are events, or it has what the log never had.
    pub(crate) rows: u64,
}

/// Waits until Postgres has the whole log, and compares.
pub(crate) async fn level(config: &Config, clock: &Clock) -> anyhow::Result<Level> {
    let until = clock.now() + LEVEL_MAX;
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        let findings = operator::findings(config, &|_events| {}).await?;
        if findings.records_ahead == 0 || clock.now() > until {
            return Ok(Level { findings, rows: rows(config, clock).await? });
        }
    }
}

async fn rows(config: &Config, clock: &Clock) -> anyhow::Result<u64> {
    let deadline = clock.now() + LEVEL_MAX;
    let mut conn = config.database.connect("chaos", LEVEL_MAX, deadline).await?;
    let counted = sqlx::raw_sql("SELECT count(*) FROM messages").fetch_one(&mut conn);
    let count: i64 = counted.await.context("counting rows")?.try_get(0)?;
    Ok(count.unsigned_abs())
}

/// What came to the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivered {
    /// Messages with a receipt that never came.
    pub(crate) missing: usize,
    /// Requests beyond the first for a message.
    pub(crate) repeats: usize,
    /// Requests that were not signed with the channel's secret.
    pub(crate) unverified: usize,
    /// Requests for which the receiver had no room: nothing is proven about them.
    pub(crate) dropped: usize,
}

/// Waits until the receiver has every message with a receipt, but for those that are lost, and counts with them.
pub(crate) async fn delivered(
    receiver: &Receiver,
    channel: ChannelId,
    (ledger, stored): (&Ledger, &Stored),
    clock: &Clock,
) -> Delivered {
    let until = clock.now() + DELIVERED_MAX;
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let name = |entry: &Entry| Delivery::name(entry.message, channel).to_string();
    let wanted: HashSet<String> = ledger.entries().iter().map(name).collect();
    let lost = {
        let stored: HashSet<String> = stored.entries.iter().map(name).collect();
        wanted.difference(&stored).count()
    };
    let mut distinct = None;
    loop {
        look.tick().await;
        let is_over = clock.now() > until;
        // All of them are copied only when there is something new among them.
        let newest = Some(receiver.distinct(HOOK));
        if newest == distinct && !is_over {
            continue;
        }
        distinct = newest;
        let receipts = receiver.received(HOOK);
        let came: HashSet<&str> = receipts.iter().map(|receipt| &*receipt.id).collect();
        let missing = wanted.iter().filter(|id| !came.contains(id.as_str())).count();
        if missing <= lost || is_over {
            let (unverified, dropped) = (receiver.unverified(HOOK), receiver.dropped(HOOK));
            return Delivered {
                missing,
                repeats: receipts.len() - came.len(),
                unverified,
                dropped,
            };
        }
    }
}

/// How many came for the first time between these moments.
pub(crate) fn first_between<Id: Copy + Eq + Hash>(
    arrivals: impl Iterator<Item = (Id, Instant)>,
    (from, to): (Instant, Instant),
) -> u64 {
    let mut came = HashSet::new();
    let first = arrivals.filter(|(id, _)| came.insert(*id));
    first.filter(|(_, at)| (from..to).contains(at)).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeat_is_no_arrival() {
        let begun = Clock::system().now();
        let at = |second| begun + Duration::from_secs(second);
        let window = (at(2), at(5));
        for (arrivals, wanted) in [
            (&[("a", 2), ("b", 4)][..], 2),
            (&[("a", 1), ("a", 3)], 0),
            (&[("a", 3), ("a", 4)], 1),
            (&[("a", 5), ("b", 1)], 0),
        ] {
            let came = arrivals.iter().map(|(id, second)| (*id, at(*second)));
            assert_eq!(first_between(came, window), wanted, "{arrivals:?}");
        }
    }
}
