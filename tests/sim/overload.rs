//! More comes in than can be served: what is served must be of use to somebody.

use std::time::Duration;

use forebay::admission::Settings;

use crate::pool::{Load, Outcome, background, fifo, gate, high, interactive};

const SECONDS: u64 = 30;

/// Requests at so many times what the pool can do.
fn times(load: f64, capacity: usize, (held, patience): (u64, u64)) -> [Load; 1] {
    let held = Duration::from_millis(held);
    let rate = load * capacity as f64 / held.as_secs_f64();
    [Load { tag: high(1), rate, held, patience: Duration::from_millis(patience) }]
}

/// Answers in time, in parts of what the pool can do.
fn goodput(outcome: &Outcome, load: &Load, capacity: usize, seconds: u64) -> f64 {
    let possible = capacity as f64 / load.held.as_secs_f64() * seconds as f64;
    outcome.good as f64 / possible
}

fn measure(settings: &Settings, load: f64, kind: (u64, u64), seconds: u64) -> (f64, Outcome) {
    let loads = times(load, settings.capacity, kind);
    let outcome = gate(settings, &loads, seconds).remove(0);
    let goodput = goodput(&outcome, &loads[0], settings.capacity, seconds);
    let (p50, p99) = (outcome.percentile(0.5) * 1e3, outcome.percentile(0.99) * 1e3);
    let (capacity, held) = (settings.capacity, kind.0);
    println!(
        "gate {load}x, C={capacity}, S={held} ms: goodput {:.1} %, permits in use {:.1} %, \
         latency p50 {p50:.0} ms, p99 {p99:.0} ms",
        goodput * 100.0,
        outcome.permits / capacity as f64 * 100.0,
    );
    (goodput, outcome)
}

#[test]
fn at_three_times_the_load_the_gate_works_for_those_who_still_wait_and_a_plain_queue_for_nobody() {
    let (good, outcome) = measure(&interactive(10), 3.0, (10, 500), SECONDS);
    assert!(good >= 0.95, "{good}");
    // 2 long + 5 S.
    assert!(outcome.percentile(0.99) <= 0.250, "{}", outcome.percentile(0.99));
    let loads = times(3.0, 10, (10, 500));
    let plain = goodput(&fifo(10, &loads, SECONDS)[0], &loads[0], 10, SECONDS);
    println!("plain queue 3x: goodput {:.1} %", plain * 100.0);
    assert!(plain <= 0.10, "the test cannot fail: {plain}");
}

#[test]
fn just_below_and_just_above_the_capacity_the_gate_costs_little() {
    let (below, _) = measure(&interactive(10), 0.9, (10, 500), SECONDS);
    assert!(below >= 0.87, "{below}");
    let (above, _) = measure(&interactive(10), 1.1, (10, 500), SECONDS);
    assert!(above >= 0.93, "{above}");
}

#[test]
fn a_slow_pool_is_kept_busy_because_its_limits_follow_its_turnover() {
    let (good, _) = measure(&background(5), 1.2, (1000, 5000), 600);
    assert!(good >= 0.88, "{good}");
    let (good, _) = measure(&background(5), 3.0, (1000, 5000), 600);
    assert!(good >= 0.95, "{good}");
}
