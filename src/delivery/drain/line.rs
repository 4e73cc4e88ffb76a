//! Pure: what a drain has read of its backlog and not settled, and which of it goes next.
//! Promises that of an ordered channel only the head of a conversation is under way, and that nothing is purged that is not settled.
//! Does not read the backlog; who drains it does.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::clock::Timestamp;
use crate::event::{ConversationId, Delivery};

/// Most deliveries of an ordered channel that wait behind the heads of their conversations. At the bound nothing more is
/// read until one of them is settled.
const BEHIND_MAX: usize = 1_000;

/// A delivery and its sequence in the stream of backlogs.
pub(super) type Placed = (u64, Delivery);

/// What may go next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// This one.
    Go(Placed),
    /// Unknown before more was read.
    Read,
    /// Nothing, until something that is under way is settled.
    Nothing,
}

/// What was read of a backlog.
#[derive(Debug)]
pub(super) struct Line {
    /// Where the next page begins.
    cursor: u64,
    page: VecDeque<Placed>,
    /// What is not settled, by sequence.
    open: BTreeMap<u64, Delivery>,
    /// What waits for the head of its conversation, in order (ordered channels). An entry, also an empty one, says that
    /// the head is under way.
    behind: BTreeMap<ConversationId, VecDeque<Placed>>,
    /// How many these are.
    waiting: usize,
    /// What is tried again at a time.
    again: BTreeMap<(Timestamp, u64), Delivery>,
}

impl Line {
    /// Nothing was read.
    pub(super) const fn new() -> Self {
        Self {
            cursor: 1,
            page: VecDeque::new(),
            open: BTreeMap::new(),
            behind: BTreeMap::new(),
            waiting: 0,
            again: BTreeMap::new(),
        }
    }

    /// Where to read on.
    pub(super) const fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Whether everything that was read has gone.
    pub(super) fn is_read(&self) -> bool {
        self.page.is_empty()
    }

    /// Whether something is not settled.
    pub(super) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Any delivery of it.
    pub(super) fn sample(&self) -> Option<&Delivery> {
        self.page.front().map(|(_, delivery)| delivery).or_else(|| self.open.values().next())
    }

    /// Takes in what was read; `None` is a message that is no delivery.
    pub(super) fn take_in(&mut self, sequence: u64, delivery: Option<Delivery>) {
        self.cursor = sequence + 1;
        self.page.extend(delivery.map(|delivery| (sequence, delivery)));
    }

    /// The next that may go: what is due again, or the next of the backlog whose conversation is free.
    pub(super) fn next(&mut self, ordered: bool, now: Timestamp) -> Next {
        if let Some(entry) = self.again.first_entry()
            && entry.key().0 <= now
        {
            let ((_, sequence), delivery) = entry.remove_entry();
            return Next::Go((sequence, delivery));
        }
        while self.waiting < BEHIND_MAX {
            let Some((sequence, delivery)) = self.page.pop_front() else { return Next::Read };
            if !ordered {
                return Next::Go((sequence, delivery));
            }
            let Some(line) = self.behind.get_mut(&delivery.conversation) else {
                self.behind.insert(delivery.conversation, VecDeque::new());
                return Next::Go((sequence, delivery));
            };
            self.open.insert(sequence, delivery.clone());
            line.push_back((sequence, delivery));
            self.waiting += 1;
        }
        Next::Nothing
    }

    /// A delivery is under way.
    pub(super) fn went(&mut self, (sequence, delivery): Placed) {
        self.open.insert(sequence, delivery);
    }

    /// A delivery did not go, or is to be tried again at a time.
    pub(super) fn put_back(&mut self, (sequence, delivery): Placed, at: Timestamp) {
        self.open.insert(sequence, delivery.clone());
        self.again.insert((at, sequence), delivery);
    }

    /// A delivery that is not settled.
    pub(super) fn get(&self, sequence: u64) -> Option<&Delivery> {
        self.open.get(&sequence)
    }

    /// Whether others of its conversation wait for it, or would.
    pub(super) fn is_head(&self, delivery: &Delivery) -> bool {
        self.behind.contains_key(&delivery.conversation)
    }

    /// A delivery is done with; the next of its conversation may go.
    pub(super) fn settle(&mut self, sequence: u64, delivery: &Delivery) {
        self.open.remove(&sequence);
        let Some(line) = self.behind.get_mut(&delivery.conversation) else { return };
        match line.pop_front() {
            Some((next, delivery)) => {
                self.waiting -= 1;
                self.again.insert((Timestamp::default(), next), delivery);
            }
            None => drop(self.behind.remove(&delivery.conversation)),
        }
    }

    /// How long until something is to be tried again.
    pub(super) fn until_again(&self, now: Timestamp) -> Option<Duration> {
        self.again.first_key_value().map(|((at, _), _)| at.since(now))
    }

    /// The sequence below which everything is settled.
    pub(super) fn settled_below(&self) -> u64 {
        let unread = self.page.front().map_or(self.cursor, |(sequence, _)| *sequence);
        self.open.keys().next().copied().unwrap_or(unread).min(unread)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::{ChannelId, DeliveryId, MessageId, TenantId};

    fn delivery(number: u64, conversation: u8) -> Delivery {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        Delivery {
            id: DeliveryId::derive(bytes),
            tenant: TenantId::derive([1; 16]),
            channel: ChannelId::derive([2; 16]),
            conversation: ConversationId::derive([conversation; 16]),
            message: MessageId::derive(bytes),
            seq: number,
            attempt: 1,
            before: 0,
            body: bytes::Bytes::new(),
        }
    }

    fn go(line: &mut Line, ordered: bool, now: Timestamp) -> Option<u64> {
        match line.next(ordered, now) {
            Next::Go(placed) => {
                let sequence = placed.0;
                line.went(placed);
                Some(sequence)
            }
            Next::Read | Next::Nothing => None,
        }
    }

    #[test]
    fn of_a_conversation_in_order_one_is_under_way_and_a_retry_holds_the_others() {
        let (mut line, now) = (Line::new(), Timestamp::default());
        for (sequence, conversation) in [(1, 1), (2, 1), (3, 2), (4, 1)] {
            line.take_in(sequence, Some(delivery(sequence, conversation)));
        }
        assert_eq!((go(&mut line, true, now), go(&mut line, true, now)), (Some(1), Some(3)));
        assert_eq!(go(&mut line, true, now), None);
        let later = now.plus(Duration::from_secs(5));
        let head = line.get(1).cloned().unwrap();
        line.put_back((1, head), later);
        assert_eq!(go(&mut line, true, now), None, "not before its time");
        assert_eq!(line.until_again(now), Some(Duration::from_secs(5)));
        line.settle(3, &delivery(3, 2));
        assert_eq!(line.settled_below(), 1);
        assert_eq!(go(&mut line, true, later), Some(1));
        line.settle(1, &delivery(1, 1));
        assert_eq!((line.settled_below(), go(&mut line, true, now)), (2, Some(2)));
    }

    #[test]
    fn what_is_no_delivery_is_passed_over() {
        let mut line = Line::new();
        line.take_in(7, None);
        assert_eq!((line.cursor(), line.settled_below(), line.is_open()), (8, 8, false));
    }

    #[test]
    fn no_more_wait_behind_their_heads_than_the_bound() {
        let mut line = Line::new();
        let many = u64::try_from(BEHIND_MAX).unwrap() + 50;
        for sequence in 1..=many {
            line.take_in(sequence, Some(delivery(sequence, 1)));
        }
        let now = Timestamp::default();
        assert_eq!(go(&mut line, true, now), Some(1));
        assert_eq!(line.next(true, now), Next::Nothing);
        assert_eq!(line.waiting, BEHIND_MAX);
        line.settle(1, &delivery(1, 1));
        assert_eq!(go(&mut line, true, now), Some(2), "the next of the conversation");
        assert_eq!(line.next(true, now), Next::Nothing);
        assert_eq!(line.waiting, BEHIND_MAX);
    }

    proptest! {
        #[test]
        fn everything_goes_and_conversations_in_order_stay_so(
            conversations in prop::collection::vec(0_u8..4, 1..60),
            choices in prop::collection::vec((any::<usize>(), any::<bool>()), 1..400),
            ordered in any::<bool>(),
        ) {
            let (mut line, now) = (Line::new(), Timestamp::default());
            let count = conversations.len();
            for (sequence, conversation) in (1..).zip(&conversations) {
                line.take_in(sequence, Some(delivery(sequence, *conversation)));
            }
            let (mut under_way, mut settled) = (Vec::<u64>::new(), Vec::new());
            let always = std::iter::repeat((0, true));
            for (choice, settle) in choices.into_iter().chain(always.take(count * 3)) {
                while let Some(sequence) = go(&mut line, ordered, now) {
                    let own = line.get(sequence).cloned().unwrap().conversation;
                    let same = |other: &&u64| line.get(**other).is_some_and(|d| d.conversation == own);
                    prop_assert!(!ordered || under_way.iter().find(same).is_none());
                    under_way.push(sequence);
                }
                if under_way.is_empty() {
                    break;
                }
                let sequence = under_way.remove(choice % under_way.len());
                let one = line.get(sequence).cloned().unwrap();
                if settle {
                    line.settle(sequence, &one);
                    settled.push((one.conversation, sequence));
                } else {
                    line.put_back((sequence, one), now);
                }
                let open = (1..=u64::try_from(count).unwrap()).find(|n| settled.iter().all(|s| s.1 != *n));
                prop_assert!(open.is_none_or(|open| line.settled_below() <= open));
            }
            prop_assert_eq!(settled.len(), count);
            if ordered {
                for pair in settled.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
                    prop_assert!(pair[0].1 < pair[1].1);
                }
            }
        }
    }
}
