//! Tests of corner cases: each is an incident of somebody's pool.
//! Capacity that comes and goes, the lowest tier, the clock, the herd.
//! What concerns tasks, such as a holder that panics or a nested acquire, is tested with the gate's skin.

use super::tests::{Desk, in_debt, ms, origin, tag, upkeep};
use super::*;
use crate::admission::Class;
use crate::admission::Priority::{Critical, High};

#[test]
fn nobody_is_enqueued_at_a_capacity_of_zero() {
    let mut desk = Desk::new(0);
    let refused = desk.arrive(tag(Critical));
    assert_eq!(desk.refused[&refused], Overload::ZeroCapacity);
    assert_eq!(desk.scheduler.waiting(), 0);
}

#[test]
fn waiters_outlast_a_capacity_of_zero_only_until_their_own_time() {
    let mut desk = Desk::new(1);
    let holder = desk.arrive(tag(High));
    let (hasty, patient) =
        (desk.arrive_until(tag(High), desk.now + ms(20)), desk.arrive(tag(High)));
    desk.resize(0);
    desk.release(holder);
    assert!(desk.waits(hasty), "the rule for an idle pool is none for an empty one");
    desk.pass(ms(20));
    assert_eq!(desk.refused[&hasty], Overload::Deadline);
    desk.resize(1);
    assert!(desk.is_held(patient), "woken when there are permits again");
}

#[test]
fn a_pool_that_shrinks_under_load_grants_nothing_until_it_is_below_its_capacity() {
    let mut desk = Desk::new(4);
    let held = [(); 4].map(|()| desk.arrive(tag(High)));
    let waiter = desk.arrive(tag(High));
    desk.resize(2);
    assert_eq!((desk.status().in_use, desk.status().capacity), (4, 2));
    desk.release(held[0]);
    desk.release(held[1]);
    assert!(desk.waits(waiter), "two are out of two");
    desk.release(held[2]);
    assert!(desk.is_held(waiter));
}

#[test]
fn a_pool_that_grows_grants_at_once() {
    let mut desk = Desk::new(1);
    desk.arrive(tag(High));
    let waiters = [(); 3].map(|()| desk.arrive(tag(High)));
    desk.resize(3);
    assert!(desk.is_held(waiters[0]) && desk.is_held(waiters[1]) && desk.waits(waiters[2]));
    assert_eq!(desk.wakes_max, 2, "no more are woken than there are permits for");
}

#[test]
fn a_new_capacity_brings_a_new_bound_of_debt() {
    let mut desk = Desk::new(40);
    for _ in 0..80 {
        desk.arrive(tag(High));
    }
    assert!((desk.debt() - 10.0).abs() < 1e-9);
    desk.resize(8);
    assert!((desk.debt() - 2.0).abs() < 1e-9);
}

#[test]
fn the_trickle_gives_the_lowest_tier_one_a_second_past_younger_waiters() {
    let mut desk = Desk::new(1);
    let mut holder = desk.arrive(tag(High));
    let mut served = 0;
    // Quickly enough that somebody above always waits.
    for _ in 0..750 {
        desk.arrive(tag(High));
        desk.arrive(tag(High));
        desk.arrive(upkeep());
        desk.pass(ms(4));
        desk.release(holder);
        holder = *desk.held.keys().next().expect("somebody always waits");
        served = desk.status().granted[3];
    }
    assert_eq!(served, 3, "in three seconds");
}

#[test]
fn the_trickle_waits_for_higher_waiters_that_are_older_than_the_long_limit() {
    let mut desk = Desk::new(1);
    let holder = desk.arrive(tag(High));
    let (high, low) = (desk.arrive(tag(High)), desk.arrive(upkeep()));
    desk.now += ms(101);
    // As if the limit had been longer when they came.
    assert!(desk.scheduler.trickle.is_due(desk.now));
    let mut wakes = Vec::new();
    desk.scheduler.seen = desk.now;
    desk.scheduler.capacity = 2;
    desk.scheduler.tree.on_resize(2);
    desk.scheduler.trickle(&mut wakes);
    assert!(wakes.is_empty());
    assert!(desk.waits(high) && desk.waits(low) && desk.is_held(holder));
    desk.scheduler.seen = desk.now.checked_sub(ms(2)).unwrap();
    desk.scheduler.trickle(&mut wakes);
    assert_eq!(wakes.len(), 1, "it overtakes one of 99 ms");
}

#[test]
fn the_trickle_ignores_debt_but_not_the_capacity() {
    let mut desk = in_debt(4);
    let held = [(); 3].map(|()| desk.arrive(tag(High)));
    let low = desk.arrive(upkeep());
    assert!(desk.waits(low), "debt");
    desk.pass(ms(50));
    assert_eq!(desk.scheduler.free(), 1);
    let fourth = desk.arrive(tag(High));
    desk.scheduler.trickle = Trickle::new(desk.now);
    desk.pass(ms(10));
    assert!(desk.is_held(fourth) && desk.waits(low), "capacity");
    desk.release(held[0]);
    assert!(desk.is_held(low));
}

#[test]
fn the_timer_is_set_to_the_trickle() {
    let mut desk = in_debt(4);
    for _ in 0..3 {
        desk.arrive(tag(High));
    }
    desk.scheduler.trickle.on_grant(desk.now.checked_sub(ms(950)).unwrap());
    let low = desk.arrive(upkeep());
    assert!(desk.waits(low));
    assert_eq!(desk.scheduler.next_wake(), Some(desk.now + ms(50)));
    desk.pass(ms(50));
    assert!(desk.is_held(low));
}

#[test]
fn a_clock_that_steps_back_neither_panics_nor_stops_anything() {
    let mut desk = Desk::new(2);
    let holder = desk.arrive(tag(High));
    desk.arrive(tag(High));
    let waiter = desk.arrive_until(tag(High), desk.now + ms(50));
    desk.now -= Duration::from_hours(1);
    let early = desk.arrive_until(origin(Class::High, 2).at(High), desk.now + ms(10));
    desk.change(Scheduler::tick);
    assert!(desk.waits(waiter) && desk.waits(early));
    desk.pass(ms(10));
    assert_eq!(desk.refused[&early], Overload::Deadline);
    desk.release(holder);
    assert!(desk.is_held(waiter));
    assert!(desk.status().wait <= ms(10));
}

#[test]
fn a_clock_that_jumps_an_hour_ahead_refuses_the_whole_queue_in_one_go() {
    let mut desk = Desk::new(1);
    let holder = desk.arrive(tag(High));
    let waiters = [(); 9].map(|()| desk.arrive(tag(High)));
    desk.now += Duration::from_hours(1);
    desk.change(Scheduler::tick);
    assert_eq!(desk.wakes_max, 9);
    assert!(waiters.iter().all(|who| desk.refused[who] == Overload::Queue));
    desk.release(holder);
    assert!({
        let next = desk.arrive(tag(High));
        desk.is_held(next)
    });
}

#[test]
fn no_more_are_woken_than_there_are_permits_for() {
    let mut desk = Desk::new(3);
    let held = [(); 3].map(|()| desk.arrive(tag(High)));
    for _ in 0..16 {
        desk.arrive(tag(High));
    }
    for who in held {
        desk.release(who);
    }
    assert_eq!(desk.wakes_max, 1);
}

#[test]
fn a_higher_tier_that_must_wait_keeps_lower_ones_from_the_next_free_permits() {
    let mut desk = Desk::new(8);
    let slow: Vec<u32> = (0..8).map(|_| desk.arrive(upkeep())).collect();
    let urgent = [(); 2].map(|()| desk.arrive(tag(High)));
    let more = desk.arrive(upkeep());
    desk.scheduler.trickle.on_grant(desk.now);
    for who in &slow[..3] {
        desk.release(*who);
    }
    assert!(urgent.iter().all(|&who| desk.is_held(who)));
    assert!(desk.waits(more), "one is free, and is left so for the next urgent one");
    let next = desk.arrive(tag(High));
    assert!(desk.is_held(next));
}
