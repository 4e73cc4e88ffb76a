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
