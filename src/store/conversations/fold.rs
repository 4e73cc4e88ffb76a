//! Pure: what a batch of events does to the heads of its conversations.
//! Promises one head a conversation, that of its highest seq, in an order that every batch shares.
//! Does not know the heads that are stored; those only grow, so it need not.

use std::collections::BTreeMap;

use super::{Head, Status};
use crate::clock::Timestamp;
use crate::event::{Body, ConversationId, Event, Opening};

/// A conversation's head after a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadRow<'e> {
    /// The conversation.
    pub conversation: ConversationId,
    /// Its head. Where the opening is not in the batch, `opened_at` counts only if the row is not there yet.
    pub head: Head,
    /// When it was closed, if its last event closed it.
    pub closed_at: Option<Timestamp>,
    /// Its opening, if that is in the batch.
    pub opening: Option<&'e Opening>,
}

/// Folds events, given with the positions of their records, into heads ordered by conversation.
pub fn fold<'e>(events: &[(u64, &'e Event)]) -> Vec<HeadRow<'e>> {
    let mut heads: BTreeMap<ConversationId, HeadRow<'e>> = BTreeMap::new();
    for (position, event) in events {
        let row = heads.entry(event.conversation).or_insert_with(|| HeadRow::first(event));
        if event.seq >= row.head.seq {
            row.extend(*position, event);
        }
    }
    heads.into_values().collect()
}

impl<'e> HeadRow<'e> {
    fn first(event: &'e Event) -> Self {
        Self {
            conversation: event.conversation,
            head: Head {
                tenant: event.tenant,
                seq: event.seq,
                status: Status::Open,
                opened_at: event.at,
                position: 0,
            },
            closed_at: None,
            opening: None,
        }
    }

    /// Only an open conversation takes events, so the last event alone says whether it is open.
    fn extend(&mut self, position: u64, event: &'e Event) {
        self.head.seq = event.seq;
        self.head.position = position;
        self.head.status = Status::Open;
        self.closed_at = None;
        match &event.body {
            Body::Opened(opening) => self.opening = Some(opening),
            Body::Closed => {
                self.head.status = Status::Closed;
                self.closed_at = Some(event.at);
            }
            Body::Message(_) | Body::Reopened => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Fingerprint, MessageId, TenantId};

    fn event(conversation: u8, seq: u64, body: Body) -> Event {
        Event {
            tenant: TenantId::derive([1; 16]),
            conversation: ConversationId::derive([conversation; 16]),
            seq,
            id: MessageId::derive([seq.to_be_bytes()[7]; 16]),
            at: Timestamp::from_micros(1_000 + i64::try_from(seq).unwrap()).unwrap(),
            fingerprint: Fingerprint::default(),
            trace: None,
            body,
        }
    }

    #[test]
    fn the_last_event_says_what_a_conversation_is() {
        let events = [
            event(2, 1, Body::Opened(Box::default())),
            event(1, 7, Body::Message(Box::default())),
            event(2, 2, Body::Message(Box::default())),
            event(2, 3, Body::Closed),
            event(1, 8, Body::Reopened),
        ];
        let given: Vec<_> = (10..).zip(&events).collect();
        let heads = fold(&given);
        assert_eq!(heads.len(), 2);
        let (one, two) = (&heads[0], &heads[1]);
        assert_eq!((one.head.seq, one.head.position), (8, 14));
        assert_eq!((one.head.status, one.closed_at, one.opening), (Status::Open, None, None));
        assert_eq!(one.head.opened_at.micros(), 1_007);
        assert_eq!((two.head.seq, two.head.position), (3, 13));
        assert_eq!(two.head.status, Status::Closed);
        assert_eq!(two.closed_at.map(Timestamp::micros), Some(1_003));
        assert_eq!(two.head.opened_at.micros(), 1_001);
        assert!(two.opening.is_some());
    }

    #[test]
    fn a_repeat_of_older_events_changes_no_head() {
        let events = [
            event(1, 5, Body::Closed),
            event(1, 4, Body::Message(Box::default())),
            event(1, 5, Body::Closed),
        ];
        let given: Vec<_> = (1..).zip(&events).collect();
        let head = &fold(&given)[0];
        assert_eq!((head.head.seq, head.head.status), (5, Status::Closed));
        assert!(fold(&[]).is_empty());
    }
}
