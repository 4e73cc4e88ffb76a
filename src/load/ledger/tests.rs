use proptest::prelude::*;

use super::*;

fn entry(conversation: u8, seq: u64) -> Entry {
    let mut name = [conversation; 16];
    name[..8].copy_from_slice(&seq.to_be_bytes());
    Entry {
        message: MessageId::derive(name),
        conversation: ConversationId::derive([conversation; 16]),
        seq,
    }
}

/// Conversations with these many events, each from seq 1.
fn log(lengths: &[u64]) -> Vec<Entry> {
    let of = |(c, length): (usize, &u64)| {
        let conversation = u8::try_from(c).unwrap();
        (1..=*length).map(move |seq| entry(conversation, seq)).collect::<Vec<_>>()
    };
    lengths.iter().enumerate().flat_map(of).collect()
}

fn ledger(entries: &[Entry]) -> Ledger {
    let mut ledger = Ledger::default();
    for entry in entries {
        ledger.acknowledge(*entry);
    }
    ledger
}

#[test]
fn an_entry_is_forty_bytes() {
    assert_eq!(size_of::<Entry>(), 40);
}

#[test]
fn receipts_beyond_the_bound_are_counted_as_left_out() {
    let all = log(&[5]);
    let mut small = Ledger::bounded(3);
    small.absorb(ledger(&all));
    assert_eq!(small.len(), 3);
    let audit = small.audit(all);
    assert!(audit.is_clean());
    assert_eq!((audit.acknowledged, audit.left_out), (3, 2));
}

#[test]
fn an_empty_ledger_and_an_empty_store_agree() {
    assert_eq!(Ledger::default().audit([]), Audit::default());
}

#[test]
fn a_last_event_that_is_missing_is_lost_without_a_gap() {
    let all = log(&[3]);
    let audit = ledger(&all).audit(all[..2].iter().copied());
    assert_eq!((audit.lost, audit.gaps), (1, 0));
}

#[test]
fn two_receipts_for_one_message_cannot_both_be_right() {
    let all = log(&[3]);
    let mut receipts = ledger(&all);
    receipts.acknowledge(Entry { seq: 9, ..all[1] });
    let audit = receipts.audit(all);
    assert_eq!((audit.acknowledged, audit.misplaced, audit.lost), (3, 1, 0));
}

#[test]
fn a_second_message_at_a_seq_clashes() {
    let mut all = log(&[3]);
    all.push(Entry { message: MessageId::derive([200; 16]), ..all[1] });
    let audit = ledger(&all).audit(all.clone());
    assert_eq!((audit.clashes, audit.gaps, audit.duplicated), (1, 0, 0));
}

prop_compose! {
    fn a_log()(lengths in prop::collection::vec(1_u64..12, 1..6)) -> Vec<Entry> {
        log(&lengths)
    }
}

proptest! {
    #[test]
    fn receipts_of_what_is_stored_are_clean_in_any_order(
        (all, shuffled, acknowledged) in a_log().prop_flat_map(|all| {
            let count = all.len();
            (Just(all.clone()), Just(all).prop_shuffle(), 0..=count)
        })
    ) {
        let mut receipts = ledger(&shuffled[..acknowledged]);
        receipts.absorb(ledger(&shuffled[..acknowledged / 2]));
        let audit = receipts.audit(all.clone());
        prop_assert!(audit.is_clean(), "{audit:?}");
        prop_assert_eq!(audit.acknowledged, acknowledged as u64);
        prop_assert_eq!(audit.unacknowledged, (all.len() - acknowledged) as u64);
    }

    #[test]
    fn each_fault_is_counted_as_what_it_is(all in a_log(), pick in any::<prop::sample::Index>(), fault in 0..3) {
        let place = pick.index(all.len());
        let victim = all[place];
        let is_last = !all.iter().any(|e| e.conversation == victim.conversation && e.seq > victim.seq);
        let mut stored = all.clone();
        let mut expected = Audit { acknowledged: all.len() as u64, ..Audit::default() };
        match fault {
            0 => {
                stored.remove(place);
                (expected.lost, expected.gaps) = (1, u64::from(!is_last));
            }
            1 => {
                stored.push(victim);
                expected.duplicated = 1;
            }
            _ => {
                stored[place].seq = 1_000;
                expected.misplaced = 1;
                let last = all.iter().filter(|e| e.conversation == victim.conversation).map(|e| e.seq).max();
                expected.gaps = 1_000 - last.unwrap();
            }
        }
        expected.stored = stored.len() as u64;
        prop_assert_eq!(ledger(&all).audit(stored), expected);
    }
}
