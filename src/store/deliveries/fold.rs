//! Pure: what a batch of outcomes says of its deliveries.
//! Promises one row a delivery, the same in whatever order the outcomes come, in an order that every batch shares.
//! Does not know the rows that are stored; the statement that writes these joins both by the same rule.

use std::collections::BTreeMap;

use crate::clock::Timestamp;
use crate::event::{DeliveryId, Fate, Outcome};

/// A delivery after a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Folded<'o> {
    /// The outcome that counts.
    pub(super) counts: &'o Outcome,
    /// The position of its first outcome.
    pub(super) first_position: u64,
    /// The position of its last outcome.
    pub(super) position: u64,
    /// When its first attempt began.
    pub(super) first_attempt_at: Timestamp,
    /// The highest number of an attempt.
    pub(super) attempts: u32,
}

/// Folds outcomes, given with the positions of their records: a statement may touch a row once only.
pub(super) fn fold<'o>(outcomes: &[(u64, &'o Outcome)]) -> BTreeMap<DeliveryId, Folded<'o>> {
    let mut rows: BTreeMap<DeliveryId, Folded<'o>> = BTreeMap::new();
    for &(position, outcome) in outcomes {
        let row = rows.entry(outcome.delivery).or_insert_with(|| Folded::first(position, outcome));
        row.extend(position, outcome);
    }
    rows
}

impl<'o> Folded<'o> {
    fn first(position: u64, outcome: &'o Outcome) -> Self {
        Self {
            counts: outcome,
            first_position: position,
            position,
            first_attempt_at: outcome.began_at,
            attempts: outcome.attempt,
        }
    }

    fn extend(&mut self, position: u64, outcome: &'o Outcome) {
        self.first_position = self.first_position.min(position);
        self.position = self.position.max(position);
        self.first_attempt_at = self.first_attempt_at.min(outcome.began_at);
        self.attempts = self.attempts.max(outcome.attempt);
        if outranks(outcome, self.counts) {
            self.counts = outcome;
        }
    }
}

/// Whether an outcome counts before another of the same delivery. A crash may repeat an attempt under its number, and a
/// success stays one whatever the repeat says; so the first success counts. Without one, the highest attempt does, and
/// of its repeats the latest.
fn outranks(new: &Outcome, old: &Outcome) -> bool {
    let delivered = |outcome: &Outcome| outcome.fate == Fate::Delivered;
    match (delivered(new), delivered(old)) {
        (true, false) => true,
        (false, true) => false,
        (true, true) => new.began_at < old.began_at,
        (false, false) => (new.attempt, new.began_at) > (old.attempt, old.began_at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{ChannelId, ConversationId, MessageId, Reason, TenantId};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_micros(second * 1_000_000).unwrap()
    }

    fn outcome(delivery: u8, attempt: u32, second: i64, fate: Fate) -> Outcome {
        Outcome {
            tenant: TenantId::derive([1; 16]),
            conversation: ConversationId::derive([2; 16]),
            delivery: DeliveryId::derive([delivery; 16]),
            channel: ChannelId::derive([3; 16]),
            message: MessageId::derive([4; 16]),
            seq: 1,
            attempt,
            began_at: at(second),
            took_ms: 1,
            status: None,
            reason: (fate != Fate::Delivered).then_some(Reason::Refused),
            fate,
            answer: None,
        }
    }

    fn retry() -> Fate {
        Fate::Retry(at(1_000))
    }

    #[test]
    fn the_last_attempt_counts_and_the_first_one_is_remembered() {
        let outcomes = [
            outcome(1, 1, 10, retry()),
            outcome(1, 2, 20, retry()),
            outcome(1, 3, 30, Fate::Failed),
        ];
        let batch: Vec<_> = (5..).zip(&outcomes).collect();
        let backwards: Vec<_> = batch.iter().copied().rev().collect();
        for batch in [batch, backwards] {
            let expected = Folded {
                counts: &outcomes[2],
                first_position: 5,
                position: 7,
                first_attempt_at: at(10),
                attempts: 3,
            };
            assert_eq!(fold(&batch).into_values().collect::<Vec<_>>(), [expected]);
        }
    }

    #[test]
    fn the_first_success_counts_whatever_is_repeated() {
        let success = outcome(1, 1, 20, Fate::Delivered);
        let rivals = [
            outcome(1, 1, 10, retry()),
            outcome(1, 1, 30, Fate::Failed),
            outcome(1, 2, 40, Fate::Delivered),
        ];
        for rival in &rivals {
            for batch in [[(1, &success), (2, rival)], [(1, rival), (2, &success)]] {
                assert_eq!(fold(&batch)[&success.delivery].counts, &success);
            }
        }
    }

    #[test]
    fn of_an_attempt_that_was_repeated_the_latest_counts() {
        let (early, late) = (outcome(1, 2, 20, Fate::Failed), outcome(1, 2, 21, retry()));
        for batch in [[(1, &early), (2, &late)], [(1, &late), (2, &early)]] {
            assert_eq!(fold(&batch)[&late.delivery].counts, &late);
        }
    }

    #[test]
    fn each_delivery_is_a_row_of_its_own() {
        let outcomes = [outcome(2, 1, 10, retry()), outcome(1, 1, 11, Fate::Delivered)];
        let batch: Vec<_> = (1..).zip(&outcomes).collect();
        let rows = fold(&batch);
        assert!(rows.keys().is_sorted() && rows.len() == 2);
    }
}
