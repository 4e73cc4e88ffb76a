//! Folding a partition when a node starts: where to begin, and reading up to the end.
//! Promises that the fold knows every key of the dedupe window, as far as the bound on keys allows, and every head
//! that Postgres may not have.
//! Does not ask Postgres; a checkpoint comes in with the [`Recall`].

use std::collections::HashMap;

use super::Error;
use super::fold::{Bounds, Fit, Fold, Start};
use super::follower::{self, Arrival};
use super::heads::{Head, Heads};
use crate::clock::{Clock, Timestamp};
use crate::event::{ConversationId, Partition};
use crate::log::{Follow, Log};

/// How many records a snapshot may be older than the checkpoint and still be worth beginning from.
const SNAPSHOT_LAG_MAX: u64 = 20_000;

/// What a node can begin with instead of the whole log.
#[derive(Debug, Default)]
pub struct Recall {
    /// The partition's checkpoint, if Postgres answered.
    pub checkpoint: Option<u64>,
    /// Heads that a node saved earlier.
    pub snapshot: Option<Saved>,
}

/// Heads that a node saved.
#[derive(Debug)]
pub struct Saved {
    /// The position up to which they are folded.
    pub position: u64,
    /// A conversation that is not among them has its last event at or below this position.
    pub floor: u64,
    /// The heads.
    pub heads: HashMap<ConversationId, Head>,
}

/// Folds a partition up to its end, and gives the follower that reads on from there.
pub(super) async fn fold(
    log: &Log,
    partition: Partition,
    bounds: Bounds,
    recall: Recall,
    clock: &Clock,
) -> Result<(Fold, Follow), Error> {
    let extent = log.bounds(partition).await?;
    if let Some(position) = recall.checkpoint.filter(|position| *position > extent.last) {
        return Err(Error::WentBack { partition, last: extent.last, position });
    }
    let before_first = extent.first.max(1) - 1;
    let now = clock.timestamp();
    let heads_from = heads_from(&recall, before_first, extent.last);
    let window = now.minus(bounds.keys.window);
    let keys_from = position_before(log, partition, (before_first, extent.last), window).await?;
    let newest = u64::try_from(bounds.keys.keys_max).unwrap_or(u64::MAX);
    let keys_from = keys_from.max(extent.last.saturating_sub(newest));
    let position = heads_from.min(keys_from).max(before_first);
    let since =
        if position < extent.last { log.get(partition, position + 1).await?.time } else { now };
    let heads = match recall.snapshot {
        Some(saved) if saved.position == heads_from => {
            Heads::from_snapshot(saved.heads, saved.floor)
        }
        Some(_) | None => Heads::starting_after(position),
    };
    let mut fold = Fold::new(Start { position, since, heads }, bounds);
    fold.note_checkpoint(recall.checkpoint.unwrap_or(0));
    let mut follow = log.follow(partition, position);
    while fold.position() < extent.last {
        let (position, bytes) = follow.next_known().await?;
        let arrival = follower::arrival(partition, position, &bytes)?;
        let fit = match arrival {
            Arrival::Record(folded) => fold.apply(&folded, now),
            Arrival::Unreadable(position) => fold.skip(position),
            Arrival::Own { .. } => Fit::Known,
        };
        debug_assert_eq!(fit, Fit::Folded, "a follower brings every position once and in order");
    }
    Ok((fold, follow))
}

/// After which position heads must be folded: what is saved, else what Postgres has, else from the beginning.
fn heads_from(recall: &Recall, before_first: u64, last: u64) -> u64 {
    let usable = |position: &u64| (before_first..=last).contains(position);
    let checkpoint = recall.checkpoint.filter(usable);
    let saved = recall.snapshot.as_ref().map(|saved| saved.position).filter(usable);
    match (saved, checkpoint) {
        (Some(saved), Some(checkpoint)) if saved + SNAPSHOT_LAG_MAX < checkpoint => checkpoint,
        (Some(saved), _) => saved,
        (None, Some(checkpoint)) => checkpoint,
        (None, None) => before_first,
    }
}

/// The last position that was stored before a time, by halving the log.
async fn position_before(
    log: &Log,
    partition: Partition,
    (mut before, last): (u64, u64),
    time: Timestamp,
) -> Result<u64, Error> {
    let mut after = last + 1;
    while after - before > 1 {
        let middle = before + (after - before) / 2;
        match log.get(partition, middle).await {
            Ok(stored) if stored.time >= time => after = middle,
            // A position that is gone was purged meanwhile, so it lies before the window too.
            Ok(_) | Err(crate::log::Error::Missing { .. }) => before = middle,
            Err(other) => return Err(other.into()),
        }
    }
    Ok(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(position: u64) -> Saved {
        Saved { position, floor: 0, heads: HashMap::new() }
    }

    #[test]
    fn a_fold_begins_where_it_need_not_ask_anybody() {
        let from = |checkpoint, saved_at: Option<u64>| {
            heads_from(&Recall { checkpoint, snapshot: saved_at.map(saved) }, 100, 50_000)
        };
        assert_eq!(from(None, None), 100);
        assert_eq!(from(Some(7_000), None), 7_000);
        assert_eq!(from(Some(7_000), Some(5_000)), 5_000);
        assert_eq!(from(None, Some(5_000)), 5_000);
        assert_eq!(from(Some(40_000), Some(5_000)), 40_000, "the snapshot is too old");
        assert_eq!(from(Some(60_000), Some(99)), 100, "neither fits this log");
    }
}
