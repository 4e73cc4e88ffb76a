use proptest::prelude::*;

use super::*;

type Done = Vec<Action<u64>>;

fn on(reader: &mut Reader, incoming: Incoming<u64>) -> Done {
    let mut out = Vec::new();
    reader.on(incoming, &mut out);
    out
}

fn event(reader: &mut Reader, seq: u64) -> Done {
    on(reader, Incoming::Event(seq, seq))
}

fn gap(reader: &mut Reader, from: u64, to: u64) {
    assert_eq!(on(reader, Incoming::Gap(Gap { from, to })), []);
}

#[test]
fn events_in_turn_are_delivered_once_and_kept() {
    let mut reader = Reader::resume(4);
    assert_eq!([4, 5, 5].map(|seq| event(&mut reader, seq).len()), [0, 1, 0]);
    assert_eq!(reader.watermark(), 5);
}

#[test]
fn an_event_beyond_a_silent_hole_is_asked_for_once_and_not_delivered() {
    let mut reader = Reader::resume(4);
    assert_eq!(event(&mut reader, 6), [Action::Sync { watermark: 4 }]);
    assert_eq!(event(&mut reader, 7), []);
    assert_eq!(event(&mut reader, 5), [Action::Deliver(5, 5)]);
    assert_eq!(reader.watermark(), 5);
}

#[test]
fn events_beyond_a_told_gap_are_delivered_and_the_watermark_stays() {
    let mut reader = Reader::resume(4);
    gap(&mut reader, 5, 6);
    assert_eq!(event(&mut reader, 7), [Action::Deliver(7, 7)]);
    assert_eq!(reader.watermark(), 4);
    assert_eq!(event(&mut reader, 5), [Action::Deliver(5, 5)]);
    assert_eq!(event(&mut reader, 6), [Action::Deliver(6, 6)]);
    assert_eq!(reader.watermark(), 7);
    let complete = Incoming::ReplayComplete { watermark: 7 };
    assert_eq!(on(&mut reader, complete), [Action::Complete { watermark: 7 }]);
}

#[test]
fn a_replay_that_says_complete_but_was_not_is_asked_for_again() {
    let mut reader = Reader::resume(4);
    let complete = Incoming::ReplayComplete { watermark: 6 };
    assert_eq!(on(&mut reader, complete.clone()), [Action::Sync { watermark: 4 }]);
    assert_eq!(on(&mut reader, complete), [Action::Sync { watermark: 4 }]);
}

#[test]
fn an_own_send_counts_where_it_lies() {
    let mut reader = Reader::resume(4);
    assert_eq!(on(&mut reader, Incoming::Ack(6)), []);
    assert_eq!(reader.watermark(), 4);
    assert_eq!(event(&mut reader, 5), [Action::Deliver(5, 5)]);
    assert_eq!((reader.watermark(), event(&mut reader, 6)), (6, vec![]));
}

#[test]
fn a_new_connection_forgets_what_was_told_and_keeps_what_was_had() {
    let mut reader = Reader::resume(4);
    gap(&mut reader, 5, 6);
    event(&mut reader, 7);
    assert_eq!(on(&mut reader, Incoming::Connected), []);
    assert_eq!(event(&mut reader, 7), []);
    assert_eq!(event(&mut reader, 8), [Action::Sync { watermark: 4 }]);
}

#[test]
fn a_truncated_replay_goes_on() {
    let mut reader = Reader::resume(4);
    for _ in 0..2 {
        assert_eq!(on(&mut reader, Incoming::ReplayTruncated), [Action::Sync { watermark: 4 }]);
    }
}

#[test]
fn what_is_gone_is_passed_over_and_another_log_is_begun_anew() {
    let mut reader = Reader::resume(4);
    gap(&mut reader, 5, 9);
    event(&mut reader, 10);
    let gone = |log| Incoming::ReplayGone { oldest: 10, log };
    let mut same = reader.clone();
    assert_eq!(on(&mut same, gone(Log::Same)), [Action::Sync { watermark: 10 }]);
    let anew = [Action::Reset, Action::Sync { watermark: 9 }];
    assert_eq!(on(&mut reader, gone(Log::Another)), anew);
    assert_eq!(event(&mut reader, 10), [Action::Deliver(10, 10)]);
}

#[test]
fn a_node_that_ends_before_the_watermark_is_left() {
    assert_eq!(on(&mut Reader::resume(4), Incoming::WatermarkAhead), [Action::Reconnect]);
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut reader = Reader::resume(0);
    let most = 2 * PIECES_MAX as u64;
    for from in (1..=2 * most).step_by(2) {
        gap(&mut reader, from, from);
        let done = event(&mut reader, from + 1);
        assert_eq!(done.contains(&Action::Deliver(from + 1, from + 1)), from < most);
    }
    assert_eq!((reader.had.len(), reader.told.len()), (PIECES_MAX, PIECES_MAX));
}

proptest! {
    /// Whatever a server sends: each once, and the watermark never passes a hole.
    #[test]
    fn a_reader_does_not_depend_on_a_good_server(
        begin in 0_u64..10,
        frames in prop::collection::vec((0_u8..6, 0_u64..40, 0_u64..10), 0..200),
    ) {
        let mut reader = Reader::resume(begin);
        let mut has: std::collections::BTreeSet<u64> = (1..=begin).collect();
        for (kind, seq, more) in frames {
            let done = match kind {
                0 => { gap(&mut reader, seq, seq + more); vec![] }
                1 => on(&mut reader, Incoming::ReplayComplete { watermark: seq }),
                2 => on(&mut reader, Incoming::Connected),
                3 => { has.insert(seq); on(&mut reader, Incoming::Ack(seq)) }
                _ => event(&mut reader, seq),
            };
            for action in done {
                match action {
                    Action::Deliver(seq, _) => prop_assert!(has.insert(seq), "{seq} comes twice"),
                    Action::Complete { watermark } => prop_assert!(watermark <= reader.watermark()),
                    Action::Sync { watermark } => prop_assert_eq!(watermark, reader.watermark()),
                    Action::Reset | Action::Reconnect => prop_assert!(false),
                }
            }
            prop_assert!((1..=reader.watermark()).all(|seq| has.contains(&seq)));
        }
    }
}
