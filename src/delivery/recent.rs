//! Pure: deliveries that were settled a while ago, so that one that comes again is not attempted again.
//! Promises bounded memory: at the bound the older half is forgotten, and what comes again then is attempted again.
//! Does not read the log; whoever does hands in what it found.

use std::collections::HashMap;

use crate::event::{DeliveryId, Fate, Outcome};

/// Most deliveries of one half; about 40 bytes each.
const HALF_MAX: usize = 50_000;

/// The last attempts of deliveries that were settled.
#[derive(Debug, Default)]
pub struct Recent {
    newer: HashMap<DeliveryId, u32>,
    older: HashMap<DeliveryId, u32>,
}

impl Recent {
    /// Takes an outcome in. What is tried again is not settled.
    pub fn note(&mut self, outcome: &Outcome) {
        if matches!(outcome.fate, Fate::Retry(_)) {
            return;
        }
        if self.newer.len() >= HALF_MAX {
            self.older = std::mem::take(&mut self.newer);
        }
        let last = self.newer.entry(outcome.delivery).or_default();
        *last = outcome.attempt.max(*last);
    }

    /// Whether a delivery was settled by this attempt or a later one.
    pub fn is_settled(&self, delivery: DeliveryId, attempt: u32) -> bool {
        let settled = |half: &HashMap<DeliveryId, u32>| {
            half.get(&delivery).is_some_and(|last| *last >= attempt)
        };
        settled(&self.newer) || settled(&self.older)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::event::{ChannelId, ConversationId, MessageId, TenantId};

    fn outcome(number: u32, attempt: u32, fate: Fate) -> Outcome {
        Outcome {
            tenant: TenantId::derive([1; 16]),
            conversation: ConversationId::derive([1; 16]),
            delivery: id(number),
            channel: ChannelId::derive([1; 16]),
            message: MessageId::derive([1; 16]),
            seq: 1,
            attempt,
            began_at: Timestamp::default(),
            took_ms: 1,
            status: None,
            reason: None,
            fate,
            answer: None,
        }
    }

    fn id(number: u32) -> DeliveryId {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        DeliveryId::derive(bytes)
    }

    #[test]
    fn what_was_settled_is_known_up_to_its_attempt() {
        let mut recent = Recent::default();
        recent.note(&outcome(1, 3, Fate::Delivered));
        recent.note(&outcome(2, 1, Fate::Retry(Timestamp::default())));
        let known = [(1, 1), (1, 3), (1, 4), (2, 1)].map(|(n, a)| recent.is_settled(id(n), a));
        assert_eq!(known, [true, true, false, false], "delivered again by hand is a later attempt");
    }

    #[test]
    fn at_the_bound_the_older_half_goes() {
        let mut recent = Recent::default();
        let most = u32::try_from(HALF_MAX).unwrap();
        (0..most * 3).for_each(|n| recent.note(&outcome(n, 1, Fate::Failed)));
        assert!(recent.is_settled(id(most * 3 - 1), 1) && recent.is_settled(id(most), 1));
        assert!(!recent.is_settled(id(0), 1));
        assert!(recent.newer.len() + recent.older.len() <= 2 * HALF_MAX);
    }
}
