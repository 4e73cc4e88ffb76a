use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;

use super::*;
use crate::admission::{Origin, Priority, Source};

const CLASS: Tag = Origin::system(Source::Projector).at(Priority::High);

fn gate(capacity: usize, waiters_max: usize) -> Gate {
    let (target, interval) = (Duration::from_millis(50), Duration::from_secs(1));
    let window = Duration::from_secs(5);
    let settings = Settings {
        capacity,
        waiters_max,
        target,
        interval,
        window,
        tenant_max: usize::MAX,
        reserved: None,
    };
    Gate::new(settings, Clock::system())
}

fn far() -> Instant {
    Clock::system().now() + Duration::from_mins(10)
}

/// A waiter that was polled once and is in the queue.
fn waiter(gate: &Gate) -> impl Future<Output = Result<Permit, Overload>> + Unpin {
    let mut waits = Box::pin(gate.acquire(CLASS, far()));
    assert!(waits.as_mut().now_or_never().is_none());
    waits
}

/// The tests run in tasks of their own for each permit, as the rule wants it.
async fn apart<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    #[expect(clippy::disallowed_methods, reason = "a task of its own is what is tested")]
    let task = tokio::spawn(work);
    task.await.unwrap()
}

#[test]
fn permits_are_given_at_once_and_come_back() {
    let gate = gate(2, 4);
    let [first, _second] =
        [(); 2].map(|()| gate.acquire(CLASS, far()).now_or_never().unwrap().unwrap());
    let third = waiter(&gate);
    assert_eq!((gate.status().in_use, gate.status().waiting), (2, 1));
    drop(first);
    let _third = third.now_or_never().unwrap().unwrap();
    assert_eq!((gate.status().in_use, gate.status().waiting), (2, 0));
}

#[test]
fn those_who_came_first_are_served_first() {
    let gate = gate(1, 8);
    let held = gate.acquire(CLASS, far()).now_or_never().unwrap().unwrap();
    let (first, mut second) = (waiter(&gate), waiter(&gate));
    drop(held);
    assert!((&mut second).now_or_never().is_none());
    let _first = first.now_or_never().unwrap().unwrap();
    assert!(second.now_or_never().is_none());
}

#[tokio::test]
async fn a_full_queue_refuses_at_once_and_a_deadline_ends_the_wait() {
    let gate = gate(1, 1);
    let held = gate.acquire(CLASS, far()).now_or_never().unwrap().unwrap();
    let waits = waiter(&gate);
    let refused = gate.acquire(CLASS, far()).now_or_never().unwrap();
    assert_eq!(refused.unwrap_err(), Overload::QueueFull);
    drop(waits);
    let soon = gate.0.clock.now() + Duration::from_millis(20);
    let late = apart({
        let gate = gate.clone();
        async move {
            tokio::select! {
                late = gate.acquire(CLASS, soon) => late.map(drop),
                () = gate.keep() => unreachable!("the gate is open"),
            }
        }
    });
    assert_eq!(late.await.unwrap_err(), Overload::Deadline);
    assert!(gate.0.clock.now() >= soon);
    assert_eq!(gate.status().waiting, 0);
    drop(held);
}

#[tokio::test]
async fn the_timer_refuses_who_stands_in_a_queue_for_too_long() {
    let gate = gate(1, 8);
    let _held = gate.acquire(CLASS, far()).now_or_never().unwrap().unwrap();
    let waits = waiter(&gate);
    let refused = tokio::select! {
        refused = waits => refused,
        () = gate.keep() => unreachable!("the gate is open"),
    };
    assert_eq!(refused.unwrap_err(), Overload::Queue);
}

#[test]
fn a_permit_on_its_way_to_a_dropped_waiter_goes_to_the_next() {
    let gate = gate(1, 8);
    let held = gate.acquire(CLASS, far()).now_or_never().unwrap().unwrap();
    let (first, second, third) = (waiter(&gate), waiter(&gate), waiter(&gate));
    drop(first);
    drop(held);
    // The second is granted but was not polled.
    assert_eq!(gate.status().in_use, 1);
    drop(second);
    assert!(third.now_or_never().unwrap().is_ok());
    assert_eq!((gate.status().in_use, gate.status().waiting), (0, 0));
}

#[tokio::test]
async fn closing_answers_everybody_and_ends_the_timer() {
    let gate = gate(1, 8);
    let held = gate.acquire(CLASS, far()).now_or_never().unwrap().unwrap();
    let (waits, mut keeps) = (waiter(&gate), Box::pin(gate.keep()));
    assert!(keeps.as_mut().now_or_never().is_none());
    gate.close();
    assert_eq!(waits.now_or_never().unwrap().unwrap_err(), Overload::Closed);
    let late = gate.acquire(CLASS, far()).now_or_never().unwrap();
    assert_eq!(late.unwrap_err(), Overload::Closed);
    keeps.await;
    assert_eq!((gate.is_closed(), gate.status().in_use), (true, 1));
    drop(held);
    assert_eq!(gate.status().in_use, 0);
}

#[tokio::test]
async fn the_end_is_waited_for_but_not_for_ever() {
    let gate = gate(2, 8);
    assert!(gate.wait_idle(gate.0.clock.now()).await, "nobody came");
    let held = gate.acquire(CLASS, far()).await.unwrap();
    assert!(!gate.wait_idle(gate.0.clock.now() + Duration::from_millis(5)).await);
    let mut idle = Box::pin(gate.wait_idle(far()));
    assert!(idle.as_mut().now_or_never().is_none());
    drop(held);
    assert!(idle.await);
    assert_eq!(gate.0.state().idlers, 0);
}

#[test]
fn a_gate_without_permits_refuses_and_a_new_capacity_is_given_out() {
    let gate = gate(0, 8);
    let refused = gate.acquire(CLASS, far()).now_or_never().unwrap();
    assert_eq!(refused.unwrap_err(), Overload::ZeroCapacity);
    gate.resize(1);
    let held = gate.acquire(CLASS, far()).now_or_never().unwrap().unwrap();
    let waits = waiter(&gate);
    gate.resize(2);
    assert_eq!(gate.capacity(), 2);
    let _also = waits.now_or_never().unwrap().unwrap();
    drop(held);
}

#[tokio::test]
async fn a_task_that_holds_a_permit_is_refused_a_second_one() {
    let gate = gate(4, 8);
    let inner = gate.clone();
    let moved = apart(async move {
        let held = inner.acquire(CLASS, far()).await.unwrap();
        let nested = inner.acquire(CLASS, far()).await;
        assert_eq!(nested.unwrap_err(), Overload::Nested);
        drop(held);
        inner.acquire(CLASS, far()).await.unwrap()
    })
    .await;
    assert_eq!(gate.status().refused(Overload::Nested, Priority::High), 1);
    let other = gate.clone();
    apart(async move { drop(other.acquire(CLASS, far()).await.unwrap()) }).await;
    drop(moved);
    assert!(gate.0.state().holders.is_empty(), "a permit that was moved counts where it came from");
}

#[tokio::test]
async fn a_waiter_that_was_granted_counts_as_a_holder() {
    let gate = gate(1, 8);
    let held = gate.acquire(CLASS, far()).await.unwrap();
    let inner = gate.clone();
    let task = apart(async move {
        let _first = inner.acquire(CLASS, far()).await.unwrap();
        inner.acquire(CLASS, far()).await.map(drop)
    });
    let free = async {
        while gate.status().waiting == 0 {
            task::yield_now().await;
        }
        drop(held);
    };
    let (nested, ()) = tokio::join!(task, free);
    assert_eq!(nested.unwrap_err(), Overload::Nested);
    assert!(gate.0.state().holders.is_empty());
}

#[tokio::test]
async fn a_holder_that_panics_gives_its_permit_back() {
    let gate = gate(1, 8);
    let inner = gate.clone();
    #[expect(clippy::disallowed_methods, reason = "a task that panics must be one of its own")]
    let task = tokio::spawn(async move {
        let _held = inner.acquire(CLASS, far()).await.unwrap();
        panic!("the holder fails, as this test wants");
    });
    assert!(task.await.unwrap_err().is_panic());
    assert_eq!(gate.status().in_use, 0);
    assert!(gate.0.state().holders.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_storm_of_aborts_loses_no_permit_and_leaves_nobody_waiting() {
    let gate = gate(3, 10_000);
    let storm = |seed: usize| {
        let gate = gate.clone();
        async move {
            for round in 0..4000_usize {
                let mut acquire = Box::pin(gate.acquire(CLASS, far()));
                // Polled once, twice or to the end, then dropped, whatever it has come to.
                for _ in 0..(round * 7 + seed) % 3 {
                    if acquire.as_mut().now_or_never().is_some() {
                        break;
                    }
                    task::yield_now().await;
                }
                if (round + seed).is_multiple_of(3) {
                    drop(acquire.await);
                }
            }
        }
    };
    let storms = join_all((0..8).map(|seed| apart(storm(seed))));
    tokio::select! {
        _ = storms => {}
        () = gate.keep() => unreachable!("the gate is open"),
    }
    let status = gate.status();
    assert_eq!((status.in_use, status.waiting), (0, 0));
    assert!(gate.0.state().holders.is_empty());
}
