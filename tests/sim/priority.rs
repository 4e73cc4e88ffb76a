//! Urgent work beside work that nobody waits for.

use std::time::Duration;

use forebay::admission::{Class, Origin, Priority, Source};

use crate::pool::{Load, gate, high, interactive, origin};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn urgent_work_succeeds_beside_slow_work_and_the_pool_stays_busy() {
    let upkeep = Origin::system(Source::Projector).at(Priority::Low);
    let loads = [
        Load { tag: high(1), rate: 1000.0, held: ms(2), patience: ms(100) },
        Load { tag: upkeep, rate: 40.0, held: ms(500), patience: ms(60_000) },
    ];
    let outcomes = gate(&interactive(10), &loads, 60);
    let used = (outcomes[0].permits + outcomes[1].permits) / 10.0;
    println!(
        "urgent 2 ms x 1000/s beside slow 500 ms x 40/s, C=10: urgent success {:.1} %, permits in \
         use {:.1} %, slow {:.1}/s",
        outcomes[0].success() * 100.0,
        used * 100.0,
        outcomes[1].good as f64 / 60.0,
    );
    assert!(outcomes[0].success() >= 0.95, "{}", outcomes[0].success());
    assert!(used >= 0.90, "{used}");
    assert!(outcomes[1].good > 0);
}

#[test]
fn the_lowest_tier_moves_whatever_the_higher_ones_ask_for() {
    for times in [0.8, 1.0, 3.0] {
        let urgent = |priority: Priority| Load {
            tag: origin(Class::High, 1).at(priority),
            rate: 1000.0 * times / 2.0,
            held: ms(10),
            patience: ms(500),
        };
        let low = origin(Class::Bulk, 2).at(Priority::Low);
        let loads = [
            urgent(Priority::Critical),
            urgent(Priority::High),
            Load { tag: low, rate: 200.0, held: ms(10), patience: ms(500) },
        ];
        let outcomes = gate(&interactive(10), &loads, 30);
        let served = outcomes[2].good as f64 / 30.0;
        let used = outcomes.iter().map(|outcome| outcome.permits).sum::<f64>() / 10.0;
        println!("urgent at {times}x: lowest tier {served:.1}/s, permits in use {used:.2}");
        assert!(served >= 0.9, "at {times}x: {served} a second");
    }
}
