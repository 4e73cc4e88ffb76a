//! The way of a permit that nobody waits for touches no heap.

use std::time::Duration;

use allocation_counter::measure;
use forebay::admission::{Class, Gate, Priority, Source};
use forebay::clock::{Clock, test_start};
use futures_util::FutureExt;

use crate::pool::{high, interactive, origin};

#[test]
fn a_permit_that_nobody_waits_for_allocates_nothing() {
    let gate = Gate::new(interactive(10), Clock::system());
    let deadline = test_start() + Duration::from_mins(1);
    let sources = [Source::Rest, Source::Socket, Source::Sse];
    let take = |tenant: u128| {
        let mut origin = origin(Class::High, tenant % 100);
        origin.source = sources[usize::try_from(tenant % 3).unwrap()];
        gate.acquire(origin.at(Priority::High), deadline).now_or_never().unwrap().unwrap()
    };
    // Every leaf is made once.
    for tenant in 0..300 {
        drop(take(tenant));
    }
    let counted = measure(|| {
        for tenant in 0..3000 {
            let (first, second) = (take(tenant), take(tenant + 1));
            drop(first);
            drop(second);
        }
    });
    assert_eq!(counted.count_total, 0);
    let _held: Vec<_> = (0..10).map(take).collect();
    let waits = || gate.acquire(high(1), deadline).now_or_never().is_none();
    assert!(measure(|| assert!(waits())).count_total > 0, "to wait does: the counter counts");
}
