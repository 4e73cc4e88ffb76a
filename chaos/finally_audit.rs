//! What must be so at the end: every receipt is stored once and in its place, in the log and in Postgres, and was delivered.
//! Promises to compare everything, and to wait for what is still on its way no longer than it says.
//! Does not repair.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use forebay::cli::{apart, operator};
use forebay::clock::Clock;
use forebay::config::Config;
use forebay::event::delivery::Delivery;
use forebay::event::{ChannelId, ConversationId};
use forebay::load::{Audit, Entry, Ledger};
use forebay::log::{Log, streams};
use forebay::operate::verify::Findings;
use forebay::receiver::Receiver;
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

/// Waits until Postgres has the whole log, and compares.
pub(crate) async fn verify(config: &Config, clock: &Clock) -> anyhow::Result<Findings> {
    let until = clock.now() + LEVEL_MAX;
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        let findings = operator::findings(config, &|_events| {}).await?;
        if findings.records_ahead == 0 || clock.now() > until {
            return Ok(findings);
        }
    }
}

/// What came to the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivered {
    /// Messages with a receipt that never came.
    pub(crate) missing: usize,
    /// Requests beyond the first for a message.
    pub(crate) repeats: usize,
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
    loop {
        let receipts = receiver.received(HOOK);
        let came: HashSet<&str> = receipts.iter().map(|receipt| &*receipt.id).collect();
        let missing = wanted.iter().filter(|id| !came.contains(id.as_str())).count();
        if missing <= lost || clock.now() > until {
            return Delivered { missing, repeats: receipts.len() - came.len() };
        }
        look.tick().await;
    }
}
