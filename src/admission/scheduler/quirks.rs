//! Tests of the quirks of Figma's `backpressure`, whose shape the gate has: Q1 to Q8 are not to be copied.
//! Each is named after what must hold here instead.
//! The quirks of its throttle and its bucket are tested with ours.

use super::tests::{Desk, in_debt, ms, settings, tag, upkeep};
use super::*;
use crate::admission::Priority::{Critical, High, Low, Medium};

#[test]
fn q1_a_newcomer_does_not_overtake_the_waiters_of_its_own_tier() {
    let mut desk = in_debt(4);
    let holder = desk.arrive(tag(High));
    for _ in 0..2 {
        desk.arrive(tag(High));
    }
    // One permit is free, and debt keeps this one from it.
    let kept_back = desk.arrive(tag(Medium));
    assert!(desk.waits(kept_back));
    desk.pass(ms(9));
    desk.scheduler.debt = Debt::new(4, desk.now);
    let newcomer = desk.arrive(tag(Medium));
    assert!(desk.is_held(kept_back) && desk.waits(newcomer));
    desk.release(holder);
    assert!(desk.is_held(newcomer));
}

#[test]
fn q2_a_waiter_in_a_standing_queue_is_refused_after_the_short_limit_though_nothing_moves() {
    let mut desk = Desk::new(1);
    desk.arrive(tag(High));
    desk.arrive(tag(High));
    desk.pass(ms(99));
    // The queue has not been empty for 99 ms: whoever comes has until it is 5 ms old, and not until a tick of 100 ms.
    let last = desk.arrive(tag(High));
    desk.pass(ms(4));
    assert_eq!((desk.waits(last), desk.scheduler.waiting()), (true, 1), "the first one is gone");
    assert_eq!(desk.scheduler.next_wake(), Some(desk.now + ms(1)));
    desk.pass(ms(1));
    assert_eq!(desk.refused[&last], Overload::Queue);
}

#[test]
fn q2_the_timer_is_set_to_when_fading_debt_admits_the_head() {
    let mut desk = Desk::new(80);
    for _ in 0..78 {
        desk.arrive(tag(High));
    }
    desk.scheduler.debt.charge(0);
    desk.scheduler.debt.charge(0);
    for _ in 0..9 {
        desk.scheduler.debt.forgive(0);
    }
    // Two are free, 2.1 are needed, and 20 fade in ten seconds.
    let low = desk.arrive(tag(Medium));
    desk.pass(ms(49));
    assert!(desk.waits(low));
    let at = desk.scheduler.next_wake().expect("debt fades");
    assert!(at < desk.now + ms(2), "before anybody's time is up");
    desk.pass(ms(2));
    assert!(desk.is_held(low));
}

#[test]
fn q3_debt_alone_keeps_nobody_from_an_idle_pool() {
    for capacity in [1, 2, 4, 10] {
        let mut desk = in_debt(capacity);
        let low = desk.arrive(upkeep());
        assert!(desk.is_held(low), "capacity {capacity}");
    }
}

#[test]
fn q3_whoever_debt_kept_back_is_served_when_the_last_permit_comes_back() {
    let mut desk = in_debt(2);
    let holder = desk.arrive(tag(High));
    let low = desk.arrive(upkeep());
    assert!(desk.waits(low));
    desk.release(holder);
    assert!(desk.is_held(low));
}

#[test]
fn q4_cancelled_waiters_block_nobody_and_do_not_make_a_queue_stand() {
    let mut desk = Desk::new(1);
    let holder = desk.arrive(tag(High));
    let first = desk.arrive(tag(High));
    desk.pass(ms(60));
    desk.cancel(first);
    let second = desk.arrive(tag(High));
    let third = desk.arrive(tag(High));
    desk.pass(ms(60));
    assert!(desk.waits(second), "120 ms, but the queue was empty at 60");
    desk.release(holder);
    assert!(desk.is_held(second) && desk.waits(third), "the oldest first: it does not stand");
}

#[test]
fn q4_when_the_head_is_cancelled_those_behind_it_are_looked_at_again() {
    let mut desk = in_debt(4);
    desk.arrive(tag(High));
    desk.scheduler.debt.charge(0);
    for _ in 0..2 {
        desk.arrive(tag(Critical));
    }
    // One is free. High may not have it, in debt to Critical; Low neither, behind High.
    let (high, low) = (desk.arrive(tag(High)), desk.arrive(upkeep()));
    assert!(desk.waits(high) && desk.waits(low));
    desk.scheduler.debt = Debt::new(4, desk.now);
    desk.cancel(high);
    assert!(desk.is_held(low));
}

#[test]
fn q5_closing_answers_everybody_who_waits_and_everybody_who_comes() {
    let mut desk = Desk::new(2);
    let holders = [desk.arrive(tag(High)), desk.arrive(upkeep())];
    let waiters = [High, Low, Critical].map(|priority| desk.arrive(tag(priority)));
    desk.change(Scheduler::close);
    let late = desk.arrive(tag(Critical));
    for who in waiters.into_iter().chain([late]) {
        assert_eq!(desk.refused[&who], Overload::Closed);
    }
    assert_eq!(desk.scheduler.next_wake(), None);
    for holder in holders {
        desk.release(holder);
    }
    assert_eq!(desk.scheduler.in_use(), 0, "holders may finish");
}

#[test]
fn q6_every_reason_is_told_apart_and_counted() {
    let mut desk = Desk::with(Settings { waiters_max: 1, ..settings(1) }, Caps::NONE);
    let holder = desk.arrive(tag(High));
    desk.arrive(tag(High));
    desk.arrive(tag(Low));
    desk.pass(ms(200));
    desk.arrive_until(tag(Medium), desk.now + ms(1));
    desk.pass(ms(1));
    desk.resize(0);
    desk.arrive(tag(Critical));
    desk.scheduler.refuse(Overload::Nested, tag(High));
    desk.change(Scheduler::close);
    desk.arrive(tag(High));
    desk.release(holder);
    let status = desk.status();
    let counted = [
        (Overload::Queue, High),
        (Overload::QueueFull, Low),
        (Overload::Deadline, Medium),
        (Overload::ZeroCapacity, Critical),
        (Overload::Nested, High),
        (Overload::Closed, High),
    ];
    for (reason, priority) in counted {
        assert_eq!(status.refused(reason, priority), 1, "{reason}");
    }
    assert_eq!(status.refusals.iter().flatten().sum::<u64>(), 6);
}

#[test]
fn q7_debt_stays_below_the_capacity_so_lower_tiers_are_never_shut_out() {
    let mut desk = Desk::new(10);
    for _ in 0..10 {
        desk.arrive(tag(Critical));
    }
    for _ in 0..40 {
        desk.arrive(tag(Critical));
    }
    assert!((desk.debt() - 2.5).abs() < 1e-9);
    desk.pass(ms(200));
    let held: Vec<u32> = desk.held.keys().copied().take(4).collect();
    for who in held {
        desk.release(who);
    }
    assert!(
        {
            let low = desk.arrive(upkeep());
            desk.is_held(low)
        },
        "six are in use, four free"
    );
}

#[test]
fn q8_a_grant_whose_owner_is_gone_is_released_like_any_other() {
    let mut desk = Desk::new(1);
    let holder = desk.arrive(tag(High));
    let [gone, next] = [(); 2].map(|()| desk.arrive(tag(High)));
    desk.release(holder);
    // Its task was dropped at this moment: to cancel is too late, and says so; its permit is dropped.
    assert!(desk.is_held(gone));
    desk.release(gone);
    assert!(desk.is_held(next));
}
