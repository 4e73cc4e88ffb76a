use super::*;
use crate::clock::test_start;
use crate::live::backlog::{BYTES_MAX, FRAMES_MAX};
use crate::live::command::Close;
use crate::live::gap::{GAPS_MAX, Gap};
use crate::live::session::refill::WAIT_MIN;

type Sent = Vec<Command<u64>>;

/// A session whose client knows gaps or not, and what it said last.
struct Desk {
    session: Session<u64>,
    now: Instant,
    start: Instant,
}

const JOIN: Join = Join { watermark: 0, has_gaps: true, head: 0, oldest: 1, epoch_matches: true };

fn join(join: Join) -> (Desk, Sent) {
    let (now, mut out) = (test_start(), Vec::new());
    let session = Session::join(join, now, &mut out);
    (Desk { session, now, start: now }, out)
}

/// Live, with everything up to here.
fn live_at(head: u64) -> Desk {
    let (desk, out) = join(Join { watermark: head, head, ..JOIN });
    assert_eq!(out, [complete(head)]);
    desk
}

/// In a gap that was announced, from 1 to `to`; the next try is a second away.
fn gap_to(to: u64) -> Desk {
    let (mut desk, _) = join(Join { head: to, ..JOIN });
    assert_eq!(desk.fail(Cause::Pressure, 1_000), [gap(0, (1, to), to, Cause::Pressure)]);
    desk
}

impl Desk {
    fn call(&mut self, act: impl FnOnce(&mut Session<u64>, Instant, &mut Sent)) -> Sent {
        let mut out = Vec::new();
        act(&mut self.session, self.now, &mut out);
        out
    }

    fn live(&mut self, seq: u64) -> Sent {
        self.weigh(seq, 10)
    }

    fn weigh(&mut self, seq: u64, bytes: usize) -> Sent {
        self.call(|session, now, out| session.on_live(Live { seq, bytes, frame: seq }, now, out))
    }

    fn lives(&mut self, seqs: impl IntoIterator<Item = u64>) -> Sent {
        seqs.into_iter().flat_map(|seq| self.live(seq)).collect()
    }

    fn ack(&mut self, seq: u64) -> Sent {
        self.call(|session, now, out| session.on_acked(seq, now, out))
    }

    /// The page that begins after `after` and ends with `to`, of a conversation that goes on if `has_more`.
    fn page(&mut self, after: u64, to: u64, has_more: bool) -> Sent {
        let frames = (after + 1..=to).map(|seq| (seq, seq)).collect();
        let page = Page { after, frames, head: to, has_more };
        self.call(|session, now, out| session.on_page(page, now, out))
    }

    fn fail(&mut self, cause: Cause, millis: u64) -> Sent {
        let retry_after = Duration::from_millis(millis);
        self.call(|session, now, out| session.on_page_failed(cause, retry_after, now, out))
    }

    fn sync(&mut self, watermark: u64) -> Sent {
        self.call(|session, now, out| session.on_sync(watermark, now, out))
    }

    fn drain(&mut self) -> Sent {
        self.call(Session::on_drain)
    }

    /// So long after the start, which is when the session should have wished to wake.
    fn wake_at(&mut self, millis: u64) -> Sent {
        self.now = self.start + Duration::from_millis(millis);
        assert_eq!(self.session.next_wake(), Some(self.now));
        self.call(Session::on_wake)
    }

    fn state(&self) -> State {
        self.session.status().state
    }

    fn contiguous(&self) -> u64 {
        self.session.status().contiguous
    }
}

fn event(seq: u64) -> Command<u64> {
    Command::Event(seq, seq)
}

fn events(seqs: impl IntoIterator<Item = u64>) -> Sent {
    seqs.into_iter().map(event).collect()
}

fn fetch(after: u64, limit: usize) -> Command<u64> {
    Command::Fetch { after, limit }
}

fn complete(watermark: u64) -> Command<u64> {
    Command::ReplayComplete { watermark }
}

fn gap(watermark: u64, (from, to): (u64, u64), head: u64, cause: Cause) -> Command<u64> {
    Command::Gap { watermark, from, to, head, cause }
}

fn ahead(head: u64) -> Command<u64> {
    Command::Refuse { code: Refused::WatermarkAhead { head } }
}

fn close(millis: u64) -> Command<u64> {
    Command::Close(Close::TryLater { retry_after: Duration::from_millis(millis) })
}

// Joining.

#[test]
fn an_empty_conversation_is_complete_at_once() {
    let (desk, out) = join(JOIN);
    assert_eq!(out, [complete(0)]);
    assert_eq!((desk.state(), desk.session.next_wake()), (State::Live, None));
}

#[test]
fn a_client_that_has_everything_is_live_at_once() {
    assert_eq!(live_at(7).live(8), [event(8)]);
}

#[test]
fn a_replay_ends_with_complete_and_then_what_was_held() {
    let (mut desk, out) = join(Join { watermark: 2, head: 5, ..JOIN });
    assert_eq!((out, desk.state()), (vec![fetch(2, 3)], State::Replay));
    assert_eq!(desk.lives([6, 7]), []);
    assert_eq!(desk.session.status().held_frames, 2);
    assert_eq!(desk.page(2, 4, true), [event(3), event(4), fetch(4, 1)]);
    assert_eq!(desk.page(4, 5, true), [event(5), complete(5), event(6), event(7)]);
    assert_eq!((desk.state(), desk.contiguous()), (State::Live, 7));
}

#[test]
fn what_comes_live_and_by_replay_is_sent_once() {
    let (mut desk, _) = join(Join { head: 3, ..JOIN });
    assert_eq!(desk.lives([2, 3, 4]), []);
    assert_eq!(desk.page(0, 1, true), [event(1), event(2), event(3), complete(3), event(4)]);
    assert_eq!(desk.lives([3, 4]), []);
}

#[test]
fn a_page_may_bring_what_was_not_asked_for() {
    let (mut desk, _) = join(Join { head: 2, ..JOIN });
    assert_eq!(desk.page(0, 4, false), [events(1..=4), vec![complete(4)]].concat());
    assert_eq!(desk.lives([3, 4, 5]), [event(5)]);
}

#[test]
fn a_page_that_answers_something_else_is_no_answer() {
    let (mut desk, _) = join(Join { head: 4, ..JOIN });
    assert_eq!(desk.page(2, 4, true), []);
    assert!(desk.session.status().is_fetching);
}

#[test]
fn what_comes_behind_a_hole_in_a_page_is_ignored() {
    let (mut desk, _) = join(Join { head: 4, ..JOIN });
    let page = Page { after: 0, frames: vec![(1, 1), (3, 3), (4, 4)], head: 4, has_more: true };
    let out = desk.call(|session, now, out| session.on_page(page, now, out));
    assert_eq!(out, [event(1), fetch(1, 3)]);
}

#[test]
fn another_epoch_or_a_watermark_below_the_oldest_is_gone_and_nothing_is_sent_until_a_sync() {
    let foreign = Join { watermark: 90, head: 5, epoch_matches: false, ..JOIN };
    let old = Join { watermark: 2, head: 5, oldest: 4, ..JOIN };
    let near = Join { watermark: 3, ..foreign };
    for (given, oldest, missing) in [(foreign, 1, 6), (near, 1, 6), (old, 4, 3)] {
        let (mut desk, out) = join(given);
        assert_eq!(out, [Command::ReplayGone { watermark: given.watermark, oldest }]);
        assert_eq!((desk.state(), desk.live(6)), (State::Waiting, vec![]));
        let before = oldest - 1;
        assert_eq!(desk.sync(before), [fetch(before, missing)]);
        let done = [events(oldest..=6), vec![complete(6)]].concat();
        assert_eq!(desk.page(before, 6, false), done);
    }
}

#[test]
fn the_watermark_just_before_the_oldest_is_not_gone() {
    let (_, out) = join(Join { watermark: 3, head: 5, oldest: 4, ..JOIN });
    assert_eq!(out, [fetch(3, 2)]);
}

// A watermark above the head.

#[test]
fn a_watermark_above_the_head_is_refused_with_the_head_once_no_live_frame_reaches_it() {
    let (mut desk, out) = join(Join { watermark: 9, head: 5, ..JOIN });
    assert_eq!((out, desk.state()), (vec![], State::Attach));
    assert_eq!(desk.live(6), []);
    assert_eq!(desk.wake_at(2_000), [ahead(6)]);
    assert_eq!((desk.lives([7, 8, 9, 10]), desk.state()), (vec![], State::Waiting));
    assert_eq!(desk.sync(8), [fetch(8, 2)]);
}

#[test]
fn a_node_that_is_a_moment_behind_the_client_catches_up() {
    let (mut desk, _) = join(Join { watermark: 7, head: 5, ..JOIN });
    assert_eq!(desk.live(6), []);
    assert_eq!(desk.live(7), [complete(7)]);
    assert_eq!(desk.live(8), [event(8)]);
}

#[test]
fn a_sync_above_the_head_is_refused_and_changes_nothing() {
    let mut desk = live_at(5);
    for watermark in [6, u64::MAX] {
        assert_eq!(desk.sync(watermark), [ahead(5)]);
    }
    assert_eq!(desk.live(6), [event(6)]);
}

// Replay that cannot be completed.

#[test]
fn a_failed_replay_is_a_gap_announced_before_the_first_live_frame_beyond() {
    let (mut desk, _) = join(Join { watermark: 2, head: 5, ..JOIN });
    desk.lives([6, 7]);
    for cause in [Cause::Pressure, Cause::ProjectionLag, Cause::Timeout] {
        let (mut desk, _) = join(Join { watermark: 2, head: 5, ..JOIN });
        desk.lives([6, 7]);
        assert_eq!(desk.fail(cause, 500), [gap(2, (3, 5), 7, cause), event(6), event(7)]);
        assert_eq!((desk.state(), desk.contiguous()), (State::Gap, 2));
        assert_eq!(desk.live(8), [event(8)]);
        assert_eq!(desk.contiguous(), 2, "the watermark stays");
    }
}

#[test]
fn a_failed_replay_closes_a_client_that_does_not_know_gaps_and_nothing_follows() {
    let (mut desk, _) = join(Join { has_gaps: false, watermark: 2, head: 5, ..JOIN });
    desk.live(6);
    assert_eq!(desk.fail(Cause::Pressure, 700), [close(700)]);
    assert_eq!([desk.live(7), desk.sync(2), desk.ack(9), desk.drain()].concat(), []);
    assert_eq!((desk.state(), desk.session.status().held_frames), (State::Closed, 0));
}

#[test]
fn a_page_that_does_not_come_in_two_seconds_is_a_timeout_and_is_used_when_it_comes() {
    let (mut desk, _) = join(Join { head: 3, ..JOIN });
    assert_eq!(desk.wake_at(2_000), [gap(0, (1, 3), 3, Cause::Timeout)]);
    assert_eq!(desk.session.next_wake(), None, "the page is still on its way");
    assert_eq!(desk.live(4), [event(4)]);
    assert_eq!(desk.page(0, 2, true), [event(1), event(2), fetch(2, 1)], "and goes on at once");
    assert_eq!(desk.page(2, 3, true), [event(3), complete(4)]);
    assert_eq!(desk.state(), State::Live);
}

#[test]
fn a_frame_is_held_for_two_seconds_even_if_pages_come() {
    let (mut desk, _) = join(Join { head: 100, ..JOIN });
    desk.live(101);
    desk.now = desk.start + Duration::from_millis(1_500);
    assert_eq!(desk.page(0, 50, true).last(), Some(&fetch(50, 50)));
    let told = gap(50, (51, 100), 101, Cause::Timeout);
    assert_eq!(desk.wake_at(2_000), [told, event(101)]);
}

#[test]
fn the_bounds_of_what_is_held_are_pressure() {
    let head = 3;
    let (mut desk, _) = join(Join { head, ..JOIN });
    let last = head + FRAMES_MAX as u64;
    assert_eq!(desk.lives(head + 1..=last), []);
    let out = desk.live(last + 1);
    assert_eq!(out[0], gap(0, (1, 3), last + 1, Cause::Pressure));
    assert_eq!(out[1..], events(head + 1..=last + 1));

    let (mut desk, _) = join(Join { head, has_gaps: false, ..JOIN });
    assert_eq!(desk.weigh(4, BYTES_MAX), []);
    assert_eq!(desk.weigh(5, 1), [close(1_000)]);
}

#[test]
fn a_frame_too_heavy_to_hold_opens_a_gap_at_once() {
    let mut desk = live_at(5);
    let told = gap(5, (6, 7), 8, Cause::Pressure);
    assert_eq!(desk.weigh(8, BYTES_MAX + 1), [told, event(8)]);
    assert_eq!(desk.state(), State::Gap);
}

#[test]
fn a_page_without_anything_or_without_more_is_lag() {
    let (mut desk, _) = join(Join { head: 5, ..JOIN });
    assert_eq!(desk.page(0, 0, true), [gap(0, (1, 5), 5, Cause::ProjectionLag)]);
    let (mut desk, _) = join(Join { head: 5, ..JOIN });
    let told = gap(2, (3, 5), 5, Cause::ProjectionLag);
    assert_eq!(desk.page(0, 2, false), [event(1), event(2), told]);
}

#[test]
fn a_replay_is_bounded_and_goes_on_by_sync() {
    let most = REPLAY_FRAMES_MAX as u64;
    let head = most + 500;
    let (mut desk, mut out) = join(Join { head, ..JOIN });
    let mut sent = 0;
    while let Some(&Command::Fetch { after, limit }) = out.last() {
        // The first page is a short one.
        let limit = if after == 0 { PAGE_FRAMES - 50 } else { limit };
        out = desk.page(after, after + limit as u64, true);
        sent += out.iter().filter(|command| matches!(command, Command::Event(..))).count();
        if sent == REPLAY_FRAMES_MAX - 50 {
            desk.live(head + 1);
        }
    }
    assert_eq!(out.last(), Some(&Command::ReplayTruncated { watermark: most, head: head + 1 }));
    assert_eq!((sent, desk.state()), (REPLAY_FRAMES_MAX, State::Waiting));
    assert_eq!((desk.session.status().held_frames, desk.session.next_wake()), (0, None));
    let mut out = desk.sync(most);
    while let Some(&Command::Fetch { after, limit }) = out.last() {
        out = desk.page(after, after + limit as u64, true);
    }
    assert_eq!(out.last(), Some(&complete(head + 1)), "what was held belongs to it");
}

// A hole in what comes live.

#[test]
fn a_hole_in_live_frames_is_filled_without_a_word() {
    let mut desk = live_at(5);
    assert_eq!((desk.live(8), desk.state()), (vec![fetch(5, 2)], State::Fill));
    assert_eq!(desk.live(9), []);
    assert_eq!(desk.page(5, 7, true), events(6..=9));
    assert_eq!(desk.state(), State::Live);
}

#[test]
fn what_never_came_live_is_read_without_a_word_once_it_is_known() {
    let mut desk = live_at(5);
    assert_eq!(desk.call(|session, now, out| session.on_head(5, now, out)), []);
    assert_eq!(desk.call(|session, now, out| session.on_head(7, now, out)), [fetch(5, 2)]);
    assert_eq!(desk.page(5, 7, false), events(6..=7));
    assert_eq!((desk.state(), desk.live(8)), (State::Live, vec![event(8)]));
}

#[test]
fn a_hole_may_close_by_what_comes_live_and_two_are_filled_one_after_the_other() {
    let mut desk = live_at(5);
    assert_eq!(desk.lives([7, 10]), [fetch(5, 1)]);
    assert_eq!(desk.live(6), [event(6), event(7)], "the page is still on its way");
    assert_eq!(desk.page(5, 6, true), [fetch(7, 2)]);
    assert_eq!(desk.page(7, 9, true), events(8..=10));
    assert_eq!(desk.state(), State::Live);
}

#[test]
fn a_hole_that_cannot_be_filled_is_a_gap_or_a_close() {
    let mut desk = live_at(5);
    desk.lives([8, 10]);
    let (first, second) =
        (gap(5, (6, 7), 10, Cause::Pressure), gap(5, (9, 9), 10, Cause::Pressure));
    assert_eq!(desk.fail(Cause::Pressure, 400), [first, event(8), second, event(10)]);
    assert_eq!(desk.session.status().gaps, 2);
    assert_eq!(desk.wake_at(400), [fetch(5, 2)]);
    assert_eq!(desk.page(5, 7, true), [event(6), event(7), fetch(8, 1)]);
    assert_eq!(desk.page(8, 9, true), [event(9), complete(10)]);
    let (mut desk, _) = join(Join { has_gaps: false, ..JOIN });
    desk.live(2);
    assert_eq!(desk.wake_at(2_000), [close(1_000)]);
}

// In a gap.

#[test]
fn a_page_without_anything_is_lag_in_a_gap_too_and_is_waited_out() {
    let mut desk = gap_to(3);
    desk.wake_at(1_000);
    assert_eq!(desk.page(0, 0, true), []);
    assert_eq!(desk.wake_at(2_000), [fetch(0, 3)]);
}

#[test]
fn a_gap_is_refilled_after_the_wait_without_the_client() {
    let mut desk = gap_to(3);
    assert_eq!(desk.live(4), [event(4)]);
    assert_eq!(desk.wake_at(1_000), [fetch(0, 3)]);
    assert_eq!(desk.fail(Cause::Timeout, 3_000), [], "it was announced already");
    assert_eq!(desk.wake_at(4_000), [fetch(0, 3)]);
    assert_eq!(desk.page(0, 2, true), [event(1), event(2), fetch(2, 1)]);
    assert_eq!(desk.live(5), [event(5)]);
    assert_eq!(desk.page(2, 3, true), [event(3), complete(5)]);
    assert_eq!((desk.state(), desk.contiguous()), (State::Live, 5));
}

#[test]
fn tries_keep_a_rate() {
    let mut desk = gap_to(100);
    let mut out = desk.wake_at(1_000);
    let mut after = 0;
    while out.last().is_some_and(|last| matches!(last, Command::Fetch { .. })) {
        out = desk.page(after, after + 1, true);
        after += 1;
    }
    assert_eq!((after, out), (8, vec![event(8)]));
    assert_eq!(desk.wake_at(1_250), [fetch(8, 92)]);
}

#[test]
fn an_answer_that_says_at_once_is_waited_out_a_little() {
    let mut desk = gap_to(3);
    desk.wake_at(1_000);
    desk.fail(Cause::Pressure, 0);
    assert_eq!(desk.session.next_wake(), Some(desk.now + WAIT_MIN));
}

#[test]
fn two_gaps_are_refilled_oldest_first_and_complete_comes_once() {
    let mut desk = gap_to(3);
    assert_eq!(desk.lives([4, 6]), [event(4), gap(0, (5, 5), 6, Cause::Pressure), event(6)]);
    assert_eq!(desk.wake_at(1_000), [fetch(0, 3)]);
    assert_eq!(desk.page(0, 3, true), [events(1..=3), vec![fetch(4, 1)]].concat());
    assert_eq!(desk.session.status().gap, Some(Gap { from: 5, to: 5 }));
    assert_eq!(desk.page(4, 5, true), [event(5), complete(6)]);
}

#[test]
fn at_the_bound_of_gaps_live_frames_are_withheld_and_replayed_when_the_gaps_are_closed() {
    let mut desk = gap_to(1);
    let last = 2 * GAPS_MAX as u64 + 3;
    for seq in (3..last).step_by(2) {
        assert_eq!(desk.live(seq)[1..], [event(seq)]);
    }
    assert_eq!(desk.session.status().gaps, GAPS_MAX);
    assert_eq!(desk.lives([last, last + 1]), []);
    let mut out = desk.wake_at(1_000);
    let mut sent = Vec::new();
    while desk.state() != State::Live {
        out = if let Some(&Command::Fetch { after, limit }) = out.last() {
            desk.page(after, after + limit as u64, true)
        } else {
            desk.now = desk.session.next_wake().unwrap();
            desk.call(Session::on_wake)
        };
        sent.extend(out.iter().filter(|command| matches!(command, Command::Event(..))).cloned());
    }
    let missing = [1].into_iter().chain((2..last).step_by(2)).chain([last, last + 1]);
    assert_eq!(sent, events(missing));
    assert_eq!(out.last(), Some(&complete(last + 1)));
}

// Sync.

#[test]
fn a_sync_of_what_was_sent_is_complete_at_once() {
    assert_eq!(live_at(5).sync(5), [complete(5)]);
}

#[test]
fn a_sync_from_further_back_replays_and_holds() {
    let mut desk = live_at(5);
    assert_eq!((desk.sync(3), desk.state()), (vec![fetch(3, 2)], State::Sync));
    assert_eq!(desk.live(6), []);
    assert_eq!(desk.page(3, 5, true), [event(4), event(5), complete(5), event(6)]);
}

#[test]
fn a_second_sync_is_coalesced_unless_it_goes_further_back() {
    let mut desk = live_at(9);
    assert_eq!(desk.sync(5), [fetch(5, 4)]);
    assert_eq!([desk.sync(5), desk.sync(5)].concat(), []);
    assert_eq!(desk.page(5, 8, true), [events(6..=8), vec![fetch(8, 1)]].concat());
    assert_eq!(desk.sync(6), [], "what it asks for is on its way already");
    assert_eq!(desk.page(8, 9, true), [event(9), complete(9)]);
    desk.sync(5);
    assert_eq!([desk.sync(3), desk.sync(2), desk.sync(4)].concat(), []);
    assert_eq!(desk.page(5, 9, true), [events(6..=9), vec![fetch(2, 7)]].concat());
    assert_eq!(desk.page(2, 9, true), [events(3..=9), vec![complete(9)]].concat());
}

#[test]
fn a_sync_while_a_hole_is_filled_is_answered() {
    let mut desk = live_at(5);
    desk.live(7);
    assert_eq!(desk.sync(5), []);
    assert_eq!(desk.page(5, 6, true), [event(6), complete(6), event(7)]);
}

#[test]
fn a_sync_in_a_gap_is_tried_at_once_and_its_failure_is_answered_once() {
    let mut desk = gap_to(3);
    assert_eq!(desk.sync(0), [fetch(0, 3)]);
    let told = gap(0, (1, 3), 3, Cause::ProjectionLag);
    assert_eq!(desk.fail(Cause::ProjectionLag, 1_000), [told]);
    desk.wake_at(1_000);
    assert_eq!(desk.fail(Cause::Pressure, 1_000), []);
}

#[test]
fn a_client_that_got_the_gap_elsewhere_is_taken_at_its_word() {
    let mut desk = gap_to(3);
    desk.live(4);
    assert_eq!(desk.sync(2), [fetch(2, 1)]);
    assert_eq!(desk.sync(4), [complete(4)]);
    assert_eq!(desk.page(2, 3, true), []);
    assert_eq!(desk.live(5), [event(5)]);
}

#[test]
fn a_sync_below_a_gap_widens_it() {
    let (mut desk, _) = join(Join { watermark: 4, head: 6, ..JOIN });
    desk.fail(Cause::Pressure, 1_000);
    assert_eq!(desk.sync(2), [fetch(2, 4)]);
    assert_eq!(desk.page(2, 6, true), [events(3..=6), vec![complete(6)]].concat());
}

#[test]
fn a_sync_below_the_oldest_is_gone_and_live_goes_on() {
    let (mut desk, _) = join(Join { watermark: 9, head: 9, oldest: 5, ..JOIN });
    assert_eq!(desk.sync(2), [Command::ReplayGone { watermark: 2, oldest: 5 }]);
    assert_eq!(desk.live(10), [event(10)]);
}

#[test]
fn a_sync_that_goes_further_back_is_not_forgotten_when_the_replay_fails() {
    let mut desk = live_at(9);
    desk.sync(5);
    desk.sync(2);
    desk.fail(Cause::Pressure, 1_000);
    assert_eq!(desk.contiguous(), 2);
    assert_eq!(desk.wake_at(1_000), [fetch(2, 7)]);
}

#[test]
fn a_failed_sync_is_a_gap() {
    let mut desk = live_at(5);
    desk.sync(3);
    desk.live(6);
    let told = gap(3, (4, 5), 6, Cause::Timeout);
    assert_eq!(desk.fail(Cause::Timeout, 1_000), [told, event(6)]);
}

// Own sends.

#[test]
fn an_own_send_counts_by_its_ack_in_both_orders() {
    let mut desk = live_at(5);
    assert_eq!([desk.ack(6), desk.live(6)].concat(), []);
    assert_eq!(desk.contiguous(), 6);
    assert_eq!([desk.live(7), desk.ack(7)].concat(), [event(7)]);
    assert_eq!(desk.live(8), [event(8)]);
}

#[test]
fn an_ack_that_is_early_is_no_hole() {
    let mut desk = live_at(5);
    assert_eq!((desk.ack(7), desk.state()), (vec![], State::Live));
    assert_eq!(desk.live(6), [event(6)]);
    assert_eq!(desk.contiguous(), 7);
    assert_eq!(desk.lives([7, 8]), [event(8)]);
}

#[test]
fn an_own_send_that_is_held_or_in_a_gap_is_not_sent() {
    let (mut desk, _) = join(Join { head: 2, ..JOIN });
    desk.lives([3, 4]);
    desk.ack(3);
    assert_eq!(desk.page(0, 2, true), [event(1), event(2), complete(2), event(4)]);
    let mut desk = gap_to(3);
    desk.ack(2);
    assert_eq!(desk.wake_at(1_000), [fetch(0, 3)]);
    assert_eq!(desk.page(0, 3, true), [event(1), event(3), complete(3)]);
}

#[test]
fn an_ack_may_close_a_gap() {
    let mut desk = gap_to(1);
    assert_eq!(desk.ack(1), [complete(1)]);
}

// On the way out.

#[test]
fn a_draining_session_sends_what_is_there_and_begins_nothing() {
    let mut desk = live_at(5);
    assert_eq!(desk.drain(), []);
    assert_eq!(desk.live(6), [event(6)]);
    desk.ack(7);
    assert_eq!(desk.lives([8, 10, 11]), [event(8)]);
    assert_eq!(desk.sync(3), [Command::Refuse { code: Refused::Draining }]);
    assert_eq!((desk.contiguous(), desk.session.next_wake()), (8, None));

    let (mut desk, _) = join(Join { head: 3, ..JOIN });
    desk.live(4);
    assert_eq!(desk.drain(), []);
    assert_eq!(desk.page(0, 2, true), [event(1), event(2)]);
    assert_eq!(desk.lives([3, 4, 5]), []);

    let mut desk = gap_to(3);
    desk.drain();
    assert_eq!(desk.live(4), [event(4)]);
    assert_eq!(desk.contiguous(), 0);
}

#[test]
fn a_replay_that_ends_while_draining_is_complete() {
    let (mut desk, _) = join(Join { head: 3, ..JOIN });
    desk.drain();
    assert_eq!(desk.page(0, 3, true), [events(1..=3), vec![complete(3)]].concat());
}

#[test]
fn a_client_that_waits_gets_nothing_while_draining() {
    let (mut desk, _) = join(Join { watermark: 9, head: 5, ..JOIN });
    assert_eq!(desk.drain(), []);
    assert_eq!(desk.lives(6..=12), []);
    assert_eq!(desk.state(), State::Drain);
}
