//! What a permit costs: `cargo bench --bench gate`.
//! Promises to fail when an uncontended permit takes more than 300 ns, or ten times what tokio's semaphore takes in the
//! same run.
//! Does not measure fairness or goodput; the simulations do.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stdout,
    missing_docs,
    clippy::allow_attributes,
    reason = "a benchmark may do what tests may"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion};
use forebay::admission::scheduler::{Arrival, Caps, Scheduler};
use forebay::admission::{Class, Gate, Origin, Priority, Settings, Source, Tag};
use forebay::clock::Clock;
use forebay::event::TenantId;
use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::sync::Semaphore;

const BUDGET: Duration = Duration::from_nanos(300);
const TIMES_MAX: f64 = 10.0;

fn settings(capacity: usize) -> Settings {
    Settings {
        capacity,
        waiters_max: 100_000,
        target: Duration::from_millis(50),
        interval: Duration::from_secs(1),
        window: Duration::from_secs(5),

        tenant_max: usize::MAX,
        reserved: None,
    }
}

fn tag(tenant: usize) -> Tag {
    let tenant = Some(TenantId::from_uuid(uuid::Uuid::from_u128(tenant as u128)));
    Origin { class: Class::High, tenant, source: Source::Rest }.at(Priority::High)
}

fn far() -> Instant {
    Clock::system().now() + Duration::from_hours(1)
}

/// Acquires of many tenants in turn, by root, class, tenant and source.
fn round(gate: &Gate, tags: &[Tag], deadline: Instant) -> impl FnMut() {
    let mut at = 0;
    move || {
        at = (at + 1) % tags.len();
        let permit = gate.acquire(tags[at], deadline).now_or_never();
        drop(black_box(permit.unwrap().unwrap()));
    }
}

fn uncontended(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("gate_uncontended");
    let semaphore = Semaphore::new(10);
    group.bench_function("tokio_semaphore", |bench| {
        bench.iter(|| drop(black_box(semaphore.acquire().now_or_never().unwrap().unwrap())));
    });
    for leaves in [1, 10, 1000] {
        let gate = Gate::new(settings(10), Clock::system());
        let tags: Vec<Tag> = (0..leaves).map(tag).collect();
        let mut acquire = round(&gate, &tags, far());
        group.bench_function(BenchmarkId::new("leaves", leaves), |bench| bench.iter(&mut acquire));
    }
    group.finish();
}

fn contended(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let gate = Gate::new(settings(1), Clock::system());
    let work = |gate: Gate, tenant: usize| async move {
        for _ in 0..1000 {
            let permit = gate.acquire(tag(tenant), far()).await;
            tokio::task::yield_now().await;
            drop(black_box(permit));
        }
    };
    criterion.bench_function("gate_contended/2_tasks_1_permit_1000_each", |bench| {
        bench.iter(|| {
            let tasks = (0..2).map(|tenant| runtime.spawn(work(gate.clone(), tenant)));
            runtime.block_on(join_all(tasks))
        });
    });
}

fn cancel(criterion: &mut Criterion) {
    let gate = Gate::new(settings(1), Clock::system());
    let deadline = far();
    let _held = gate.acquire(tag(0), deadline).now_or_never().unwrap().unwrap();
    criterion.bench_function("gate_cancel", |bench| {
        bench.iter(|| assert!(gate.acquire(tag(1), deadline).now_or_never().is_none()));
    });
}

/// One permit goes round among so many tenants that always wait: a release, a choice, a grant and an arrival.
fn pick(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pick");
    for tenants in [4, 64, 1024] {
        let (start, deadline) = (Clock::system().now(), far());
        let mut scheduler = Scheduler::new(&settings(1), Caps::NONE, start);
        let mut wakes = Vec::new();
        let mut held = None;
        for tenant in 0..=tenants {
            let wish = (tag(tenant), deadline);
            match scheduler.arrive(wish, start, || tenant, &mut wakes) {
                Arrival::Granted(grant) => held = Some((grant, tenant)),
                Arrival::Waits(_) | Arrival::Refused(_) => {}
            }
        }
        group.bench_function(BenchmarkId::from_parameter(tenants), |bench| {
            bench.iter(|| {
                let (grant, tenant) = held.take().unwrap();
                scheduler.release(grant, start, &mut wakes);
                let next = wakes.pop().unwrap();
                held = Some((next.outcome.unwrap(), next.waiter));
                let wish = (tag(tenant), deadline);
                drop(black_box(scheduler.arrive(wish, start, || tenant, &mut wakes)));
            });
        });
    }
    group.finish();
}

/// The best of several rounds: what the code takes when nothing else takes the processor.
fn best(mut once: impl FnMut()) -> f64 {
    const TIMES: u32 = 20_000;
    let clock = Clock::system();
    let rounds = (0..50).map(|_| {
        let began = clock.now();
        (0..TIMES).for_each(|_| once());
        clock.now().saturating_duration_since(began).as_secs_f64() / f64::from(TIMES)
    });
    rounds.fold(f64::INFINITY, f64::min) * 1e9
}

/// Fails the run when a permit costs too much.
fn hold_the_budget() {
    let semaphore = Semaphore::new(10);
    let plain = best(|| drop(black_box(semaphore.acquire().now_or_never().unwrap().unwrap())));
    for leaves in [10, 1000] {
        let gate = Gate::new(settings(10), Clock::system());
        let tags: Vec<Tag> = (0..leaves).map(tag).collect();
        let ours = best(round(&gate, &tags, far()));
        let times = ours / plain;
        println!("{leaves} leaves: {ours:.0} ns a permit, {times:.1} times tokio's {plain:.0} ns");
        assert!(ours <= BUDGET.as_secs_f64() * 1e9, "{ours} ns");
        assert!(times <= TIMES_MAX, "{times} times the semaphore");
    }
}

fn main() {
    hold_the_budget();
    let mut criterion = Criterion::default().configure_from_args();
    uncontended(&mut criterion);
    contended(&mut criterion);
    cancel(&mut criterion);
    pick(&mut criterion);
    criterion.final_summary();
}
