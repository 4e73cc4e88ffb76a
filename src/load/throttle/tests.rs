use proptest::prelude::*;

use super::*;
use crate::clock::test_start;

const TOP: Priority = Priority::Critical;
const SEND: Priority = Priority::High;
const LOWEST: Priority = Priority::Low;

fn throttle() -> (Throttle, Instant) {
    let start = test_start();
    (Throttle::new(0, start), start)
}

/// So many calls, of which so many were accepted; none is held back.
fn call(throttle: &mut Throttle, priority: Priority, (calls, accepted): (u32, u32), now: Instant) {
    for nth in 0..calls {
        assert_eq!(throttle.on_call(priority, 1.0, now), Decision::Send);
        if nth < accepted {
            throttle.on_end(priority, Ending::Accepted, now);
        }
    }
}

/// Draws that cover `[0, 1)` evenly, whatever stretch of them is taken: multiples of the golden ratio.
fn even_draws() -> impl Iterator<Item = f64> {
    (1_u32..).map(|n| (f64::from(n) * 0.618_033_988_749_895).fract())
}

#[test]
fn the_probability_is_the_formulas() {
    for ((calls, accepted), expected) in [
        ((0, 0), 0.0),
        ((60, 0), 60.0 / 120.0),
        ((600, 0), 600.0 / 660.0),
        ((600, 100), 400.0 / 660.0),
        ((600, 299), 2.0 / 660.0),
        ((600, 300), 0.0),
        ((600, 600), 0.0),
    ] {
        let (mut throttle, now) = throttle();
        call(&mut throttle, SEND, (calls, accepted), now);
        let found = throttle.status(SEND, now);
        assert!((found - expected).abs() < 1e-9, "{calls} calls, {accepted} accepted: {found}");
    }
}

#[test]
fn what_is_not_accepted_above_counts_below_and_never_the_other_way_round() {
    let (mut throttle, now) = throttle();
    call(&mut throttle, TOP, (100, 40), now);
    call(&mut throttle, SEND, (50, 50), now);
    call(&mut throttle, LOWEST, (30, 10), now);
    let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found}");
    close(throttle.status(TOP, now), (100.0 - 80.0) / 160.0);
    close(throttle.status(SEND, now), (50.0 + 60.0 - 100.0) / 170.0);
    close(throttle.status(LOWEST, now), (30.0 + 60.0 - 20.0) / 150.0);
}

#[test]
fn a_draw_below_the_probability_holds_a_call_back_and_it_counts_as_a_call() {
    let (mut throttle, now) = throttle();
    call(&mut throttle, SEND, (60, 0), now);
    assert_eq!(throttle.on_call(SEND, 0.49, now), Decision::HoldBack);
    assert!((throttle.status(SEND, now) - 61.0 / 121.0).abs() < 1e-9);
    assert_eq!(throttle.on_call(SEND, 0.51, now), Decision::Send);
}

#[test]
fn a_server_that_accepts_nothing_is_probed_once_a_second_and_always() {
    let (mut throttle, start) = throttle();
    let mut draws = even_draws();
    // 100 calls a second for three minutes, of which the last two are past the start.
    let mut sent = [0_u32; 3];
    for nth in 0..18_000_u32 {
        let now = start + Duration::from_millis(10) * nth;
        if throttle.on_call(SEND, draws.next().unwrap(), now) == Decision::Send {
            sent[usize::try_from(nth / 6_000).unwrap()] += 1;
            throttle.on_end(SEND, Ending::Overloaded, now);
        }
    }
    // The window is up to a tenth shorter than a minute, so that a minute has room for a few more.
    for minute in &sent[1..] {
        assert!((50..=66).contains(minute), "{sent:?}");
    }
}

/// What is let through doubles every 20 s then, from one call a second: from 1 to 100 a second in about three minutes.
#[test]
fn a_server_that_accepts_again_gets_everything_again() {
    let (mut throttle, start) = throttle();
    call(&mut throttle, SEND, (6_000, 0), start);
    let (mut draws, mut sent) = (even_draws(), 0);
    for nth in 0..24_000_u32 {
        let now = start + Duration::from_millis(10) * nth;
        if throttle.on_call(SEND, draws.next().unwrap(), now) == Decision::Send {
            throttle.on_end(SEND, Ending::Accepted, now);
            sent += u32::from(nth >= 23_000);
        }
    }
    assert_eq!(sent, 1_000);
}

#[test]
fn a_slice_leaves_the_window_after_a_minute() {
    let (mut throttle, start) = throttle();
    call(&mut throttle, SEND, (60, 0), start);
    let at = |seconds| start + Duration::from_secs(seconds);
    call(&mut throttle, SEND, (30, 0), at(7));
    assert!((throttle.status(SEND, at(59)) - 90.0 / 150.0).abs() < 1e-9);
    assert!((throttle.status(SEND, at(60)) - 30.0 / 90.0).abs() < 1e-9);
    assert!((throttle.status(SEND, at(65)) - 30.0 / 90.0).abs() < 1e-9);
    assert!(throttle.status(SEND, at(66)) < 1e-9);
}

#[test]
fn a_clock_that_jumps_forward_forgets_and_one_that_jumps_back_does_not() {
    let (mut throttle, start) = throttle();
    let late = start + Duration::from_hours(1);
    call(&mut throttle, SEND, (60, 0), late);
    let back = throttle.on_call(SEND, 0.0, start);
    assert_eq!(back, Decision::HoldBack);
    assert!((throttle.status(SEND, start) - 61.0 / 121.0).abs() < 1e-9);
    assert!((throttle.status(SEND, late) - 61.0 / 121.0).abs() < 1e-9);
    assert!(throttle.status(SEND, late + Duration::from_hours(24 * 365)) < 1e-9);
}

#[test]
fn an_answer_counts_as_accepted_for_every_reason_but_overload() {
    for status in [200, 201, 400, 401, 404, 409, 413, 422, 429, 500] {
        assert_eq!(Ending::of_status(status), Ending::Accepted, "{status}");
    }
    for status in [502, 503, 504] {
        assert_eq!(Ending::of_status(status), Ending::Overloaded, "{status}");
    }
    let (mut throttle, now) = throttle();
    for _ in 0..1_000 {
        assert_eq!(throttle.on_call(SEND, 0.0, now), Decision::Send);
        throttle.on_end(SEND, Ending::of_status(422), now);
    }
}

#[test]
fn a_server_that_hangs_is_seen_before_a_call_has_ended() {
    let (mut throttle, now) = throttle();
    let mut draws = even_draws();
    let mut send = || throttle.on_call(SEND, draws.next().unwrap(), now) == Decision::Send;
    let sent = (0..6_000).filter(|_| send()).count();
    // The integral of m / (r + m) from 0 to 6 000.
    assert!((240..=310).contains(&sent), "{sent}");
}

#[test]
fn as_many_calls_as_the_slack_may_be_under_way_before_the_first_answer() {
    let start = test_start();
    let mut throttle = Throttle::new(64, start);
    call(&mut throttle, SEND, (64, 0), start);
    assert!(throttle.status(SEND, start) < 1e-9);
    call(&mut throttle, SEND, (64, 0), start);
    assert!((throttle.status(SEND, start) - 64.0 / 188.0).abs() < 1e-9);
}

proptest! {
    #[test]
    fn nothing_is_held_back_while_everything_is_accepted(
        steps in prop::collection::vec((0_u64..20_000, 0_usize..4), 1..500),
    ) {
        let (mut throttle, start) = throttle();
        let (mut now, priorities) = (start, [TOP, SEND, Priority::Medium, LOWEST]);
        for (millis, priority) in steps {
            now += Duration::from_millis(millis);
            prop_assert_eq!(throttle.on_call(priorities[priority], 0.0, now), Decision::Send);
            throttle.on_end(priorities[priority], Ending::Accepted, now);
        }
    }

    #[test]
    fn a_probability_is_one_and_below_one_whatever_happens(
        steps in prop::collection::vec((0_i64..40_000, -20_000_i64..20_000, 0_usize..4, any::<bool>()), 1..300),
    ) {
        let (mut throttle, start) = throttle();
        let priorities = [TOP, SEND, Priority::Medium, LOWEST];
        let origin = start + Duration::from_hours(1);
        for (forward, jump, priority, accepted) in steps {
            let millis = u64::try_from((forward + jump).max(0)).unwrap();
            let now = origin + Duration::from_millis(millis);
            let priority = priorities[priority];
            let ending = if accepted { Ending::Accepted } else { Ending::Overloaded };
            if throttle.on_call(priority, 0.999, now) == Decision::Send {
                throttle.on_end(priority, ending, now);
            }
            let found = throttle.status(priority, now);
            prop_assert!((0.0..1.0).contains(&found), "{}", found);
        }
    }
}
