use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::admission::{Class, Origin, Priority, Source, Status};
use crate::clock::test_start;
use crate::event::TenantId;

use Priority::{Critical, High, Low, Medium};

pub(super) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(super) fn settings(capacity: usize) -> Settings {
    Settings {
        capacity,
        waiters_max: 640,
        target: ms(50),
        interval: ms(1000),
        window: ms(5000),

        tenant_max: usize::MAX,
        reserved: None,
    }
}

pub(super) fn origin(class: Class, tenant: u128) -> Origin {
    let tenant = Some(TenantId::from_uuid(uuid::Uuid::from_u128(tenant)));
    Origin { class, tenant, source: Source::Rest }
}

/// Tenant 1 of the class `High`.
pub(super) fn tag(priority: Priority) -> Tag {
    origin(Class::High, 1).at(priority)
}

/// A scheduler with a clock in milliseconds, and what became of everybody.
pub(super) struct Desk {
    pub(super) scheduler: Scheduler<u32>,
    pub(super) start: Instant,
    pub(super) now: Instant,
    ids: BTreeMap<u32, WaiterId>,
    pub(super) held: BTreeMap<u32, Grant>,
    pub(super) refused: BTreeMap<u32, Overload>,
    next: u32,
    /// The most wakes that one call gave.
    pub(super) wakes_max: usize,
}

impl Desk {
    pub(super) fn new(capacity: usize) -> Self {
        Self::with(settings(capacity), Caps::NONE)
    }

    pub(super) fn with(settings: Settings, caps: Caps) -> Self {
        // Far from the beginning of time, so that the clock can step back.
        let start = test_start() + Duration::from_hours(10);
        Self {
            scheduler: Scheduler::new(&settings, caps, start),
            start,
            now: start,
            ids: BTreeMap::new(),
            held: BTreeMap::new(),
            refused: BTreeMap::new(),
            next: 0,
            wakes_max: 0,
        }
    }

    pub(super) fn arrive(&mut self, tag: Tag) -> u32 {
        self.arrive_until(tag, self.now + ms(600_000))
    }

    pub(super) fn arrive_until(&mut self, tag: Tag, deadline: Instant) -> u32 {
        let (who, now, mut wakes) = (self.next, self.now, Vec::new());
        self.next += 1;
        match self.scheduler.arrive((tag, deadline), now, || who, &mut wakes) {
            Arrival::Granted(grant) => {
                self.held.insert(who, grant);
            }
            Arrival::Waits(id) => {
                self.ids.insert(who, id);
            }
            Arrival::Refused(overload) => {
                self.refused.insert(who, overload);
            }
        }
        self.hear(wakes);
        who
    }

    fn hear(&mut self, wakes: Vec<Wake<u32>>) {
        self.wakes_max = self.wakes_max.max(wakes.len());
        for Wake { waiter, outcome } in wakes {
            assert!(self.ids.remove(&waiter).is_some(), "{waiter} was answered twice");
            match outcome {
                Ok(grant) => drop(self.held.insert(waiter, grant)),
                Err(overload) => drop(self.refused.insert(waiter, overload)),
            }
        }
        self.check();
    }

    pub(super) fn change(
        &mut self,
        change: impl FnOnce(&mut Scheduler<u32>, Instant, &mut Vec<Wake<u32>>),
    ) {
        let mut wakes = Vec::new();
        change(&mut self.scheduler, self.now, &mut wakes);
        self.hear(wakes);
    }

    pub(super) fn release(&mut self, who: u32) {
        let grant = self.held.remove(&who).expect("holds a permit");
        self.change(|scheduler, now, wakes| scheduler.release(grant, now, wakes));
    }

    pub(super) fn cancel(&mut self, who: u32) {
        let id = self.ids.remove(&who).expect("waits");
        self.change(|scheduler, now, wakes| assert!(scheduler.cancel(id, now, wakes)));
    }

    pub(super) fn resize(&mut self, capacity: usize) {
        self.change(|scheduler, now, wakes| scheduler.resize(capacity, now, wakes));
    }

    /// Lets time pass, with every wake on the way.
    pub(super) fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        let mut wakes = 0;
        while let Some(at) = self.scheduler.next_wake().filter(|&at| at <= until) {
            self.now = self.now.max(at);
            self.change(Scheduler::tick);
            wakes += 1;
            assert!(wakes < 100_000, "wakes come for ever");
        }
        self.now = until;
    }

    pub(super) fn status(&mut self) -> Status {
        self.scheduler.status(self.now)
    }

    pub(super) fn debt(&mut self) -> f64 {
        self.status().debt[LOWEST]
    }

    fn check(&mut self) {
        let status = self.status();
        assert_eq!(status.in_use, self.held.len());
        // Whoever has arrived but is not in the books yet is being answered.
        let counted: usize = status.classes.iter().map(|class| class.waiting).sum();
        assert_eq!(counted, status.waiting);
        let tiers: usize = (0..TIERS).map(|tier| self.scheduler.waiters.in_tier(tier)).sum();
        assert_eq!(tiers, status.waiting);
        assert_eq!(status.waiting, self.ids.len());
        let in_use: usize = status.classes.iter().map(|class| class.in_use).sum();
        assert_eq!(in_use, status.in_use);
        assert!(self.scheduler.next_wake().is_none_or(|at| at > self.scheduler.seen));
    }

    pub(super) fn is_held(&self, who: u32) -> bool {
        self.held.contains_key(&who)
    }

    pub(super) fn waits(&self, who: u32) -> bool {
        self.ids.contains_key(&who)
    }
}

/// A background task of the service itself.
pub(super) fn upkeep() -> Tag {
    Origin::system(Source::Projector).at(Low)
}

/// A pool whose lower tiers are in debt as far as can be, with nobody in it.
pub(super) fn in_debt(capacity: usize) -> Desk {
    let mut desk = Desk::new(capacity);
    let held: Vec<u32> = (0..capacity).map(|_| desk.arrive(tag(High))).collect();
    let waiters: Vec<u32> = (0..capacity).map(|_| desk.arrive(tag(High))).collect();
    for who in held.into_iter().chain(waiters) {
        desk.release(who);
    }
    // The trickle is used up.
    desk.scheduler.trickle.on_grant(desk.now);
    assert!(desk.debt() >= 1.0);
    desk
}

#[test]
fn no_more_permits_are_out_than_there_are_and_the_next_in_line_gets_the_first() {
    let mut desk = Desk::new(2);
    let [first, second, third, fourth] = [(); 4].map(|()| desk.arrive(tag(High)));
    assert!(desk.is_held(first) && desk.is_held(second));
    assert!(desk.waits(third) && desk.waits(fourth));
    desk.release(second);
    assert!(desk.is_held(third) && desk.waits(fourth));
}

#[test]
fn a_higher_priority_is_served_before_a_lower_one_that_came_first() {
    let mut desk = Desk::new(1);
    let holder = desk.arrive(tag(High));
    let order = [Medium, High, Critical].map(|priority| desk.arrive(tag(priority)));
    desk.release(holder);
    assert!(desk.is_held(order[2]));
    desk.release(order[2]);
    assert!(desk.is_held(order[1]));
    desk.release(order[1]);
    assert!(desk.is_held(order[0]));
}

#[test]
fn a_free_permit_is_given_even_after_the_deadline() {
    let mut desk = Desk::new(1);
    let late = desk.arrive_until(tag(High), desk.start);
    assert!(desk.is_held(late));
    let too_late = desk.arrive_until(tag(High), desk.start);
    assert_eq!(desk.refused[&too_late], Overload::Deadline);
}

#[test]
fn a_deadline_ends_the_wait_and_says_so() {
    let mut desk = Desk::new(1);
    let _holder = desk.arrive(tag(High));
    let waiter = desk.arrive_until(tag(High), desk.now + ms(30));
    desk.pass(ms(29));
    assert!(desk.waits(waiter));
    desk.pass(ms(1));
    assert_eq!(desk.refused[&waiter], Overload::Deadline);
}

#[test]
fn the_queue_of_one_leaf_and_all_queues_together_are_bounded() {
    let mut desk = Desk::with(Settings { waiters_max: 20, ..settings(1) }, Caps::NONE);
    let _holder = desk.arrive(tag(High));
    for _ in 0..QUEUE_MIN {
        desk.arrive(tag(High));
    }
    let full = desk.arrive(tag(High));
    assert_eq!(desk.refused[&full], Overload::QueueFull);
    for tenant in 2..6 {
        let other = desk.arrive(origin(Class::High, tenant).at(High));
        assert!(desk.waits(other), "another leaf has room");
    }
    let over = desk.arrive(origin(Class::Bulk, 7).at(High));
    assert_eq!(desk.refused[&over], Overload::QueueFull, "the gate has none");
}

#[test]
fn a_waiter_at_a_cap_of_his_own_does_not_stop_lower_tiers() {
    let mut caps = Caps::NONE;
    caps.classes[Class::High.index()] = 1;
    let mut desk = Desk::with(settings(4), caps);
    let holder = desk.arrive(tag(High));
    let capped = desk.arrive(tag(High));
    assert!(desk.is_held(holder) && desk.waits(capped));
    let lower = desk.arrive_until(origin(Class::Bulk, 1).at(Medium), desk.start);
    assert!(desk.is_held(lower), "granted in the same call, though late");
    let peer = desk.arrive(origin(Class::Bulk, 1).at(High));
    assert!(desk.is_held(peer));
    assert!(desk.debt() < 1e-9, "nor is it their debt");
    desk.release(holder);
    assert!(desk.is_held(capped));
}

#[test]
fn reserved_permits_go_to_their_class_whatever_the_tier() {
    let reserved = Some((Class::System, 1));
    let mut desk = Desk::with(Settings { reserved, ..settings(3) }, Caps::NONE);
    desk.arrive(tag(High));
    desk.arrive(tag(High));
    let third = desk.arrive(tag(High));
    assert!(desk.waits(third), "the last one is kept");
    let upkeep = desk.arrive(Origin::system(Source::Projector).at(Low));
    assert!(desk.is_held(upkeep));
    assert!(desk.waits(third));
}

#[test]
fn the_class_that_is_behind_gets_every_permit_that_comes_back() {
    let mut desk = Desk::new(6);
    let hogs: Vec<u32> = (0..6).map(|_| desk.arrive(origin(Class::High, 1).at(High))).collect();
    for _ in 0..10 {
        desk.arrive(origin(Class::High, 1).at(High));
    }
    let late: Vec<u32> = (0..4).map(|_| desk.arrive(origin(Class::High, 2).at(High))).collect();
    for hog in &hogs[..3] {
        desk.release(*hog);
    }
    assert!(late[..3].iter().all(|&who| desk.is_held(who)), "three of six");
    assert!(desk.waits(late[3]));
}

#[test]
fn only_an_entitled_waiter_charges_debt_to_lower_tiers() {
    let mut desk = Desk::new(40);
    for _ in 0..40 {
        desk.arrive(origin(Class::High, 1).at(High));
    }
    desk.arrive(origin(Class::High, 2).at(High));
    assert!((desk.debt() - 1.0).abs() < 1e-9, "has nothing, and must wait");
    desk.arrive(origin(Class::High, 1).at(High));
    assert!((desk.debt() - 1.0).abs() < 1e-9, "the hog's own trouble");
    desk.arrive(origin(Class::High, 2).at(High));
    assert!((desk.debt() - 2.0).abs() < 1e-9);
}

#[test]
fn a_waiter_at_a_cap_of_his_own_charges_nothing_even_when_the_pool_is_full() {
    let mut caps = Caps::NONE;
    caps.classes[Class::High.index()] = 1;
    let mut desk = Desk::with(settings(2), caps);
    desk.arrive(tag(High));
    desk.arrive(origin(Class::Bulk, 1).at(High));
    let capped = desk.arrive(tag(High));
    assert!(desk.waits(capped) && desk.debt() < 1e-9);
    desk.arrive(origin(Class::Standard, 1).at(High));
    assert!((desk.debt() - 1.0).abs() < 1e-9, "this one is kept waiting by others");
}

#[test]
fn who_need_not_wait_takes_a_little_off_the_debt_to_him() {
    let mut desk = Desk::new(8);
    let held: Vec<u32> = (0..8).map(|_| desk.arrive(tag(High))).collect();
    let waiter = desk.arrive(tag(High));
    for who in held.into_iter().chain([waiter]) {
        desk.release(who);
    }
    assert!((desk.debt() - 1.0).abs() < 1e-9);
    desk.arrive(tag(High));
    assert!((desk.debt() - 0.9).abs() < 1e-9);
    desk.arrive(tag(Low));
    assert!((desk.debt() - 0.9).abs() < 1e-9, "the debtor forgives nothing");
}

/// One thing that happens.
#[derive(Clone, Debug)]
enum Step {
    Arrive { priority: usize, class: usize, tenant: u128, patience: u64 },
    Release(usize),
    Cancel(usize),
    Resize(usize),
    Tick,
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..TIERS, 0..CLASSES, 0..3u128, 0..400u64).prop_map(
            |(priority, class, tenant, patience)| Step::Arrive { priority, class, tenant, patience }
        ),
        8 => any::<usize>().prop_map(Step::Release),
        2 => any::<usize>().prop_map(Step::Cancel),
        1 => (0..9usize).prop_map(Step::Resize),
        3 => Just(Step::Tick),
        1 => prop_oneof![30 => Just(Step::Tick), 1 => Just(Step::Close)],
    ]
}

fn take(step: &Step, desk: &mut Desk) {
    match *step {
        Step::Arrive { priority, class, tenant, patience } => {
            let tag = origin(Class::ALL[class], tenant).at(Priority::ALL[priority]);
            desk.arrive_until(tag, desk.now + ms(patience));
        }
        Step::Release(n) if !desk.held.is_empty() => {
            let who = *desk.held.keys().nth(n % desk.held.len()).unwrap();
            desk.release(who);
        }
        Step::Cancel(n) if !desk.ids.is_empty() => {
            let who = *desk.ids.keys().nth(n % desk.ids.len()).unwrap();
            desk.cancel(who);
        }
        Step::Resize(capacity) => desk.resize(capacity),
        Step::Close => desk.change(Scheduler::close),
        Step::Tick | Step::Release(_) | Step::Cancel(_) => desk.change(Scheduler::tick),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// `check` runs after every step: counts match a recount, nobody is answered twice.
    #[test]
    fn every_arrival_is_answered_once_and_on_time_and_no_permit_is_lost(
        capacity in 0..6usize,
        reserved in prop::option::of(1..3usize),
        cap in prop_oneof![Just(usize::MAX), 1..3usize],
        steps in prop::collection::vec((step(), prop_oneof![
            6 => 0..20_000i64, 1 => 20_000..2_000_000i64, 1 => -5_000..0i64
        ]), 1..250),
    ) {
        let reserved = reserved.map(|kept| (Class::System, kept));
        let caps = Caps { tenant: cap, ..Caps::NONE };
        let mut desk = Desk::with(Settings { reserved, waiters_max: 40, ..settings(capacity) }, caps);
        let mut cancelled = 0;
        for (step, micros) in steps {
            let by = Duration::from_micros(micros.unsigned_abs());
            desk.now = if micros < 0 { desk.now.checked_sub(by).unwrap() } else { desk.now + by };
            let before = desk.scheduler.in_use();
            let waited = desk.ids.len();
            take(&step, &mut desk);
            if matches!(step, Step::Cancel(_)) && waited > 0 {
                cancelled += 1;
            }
            let (in_use, capacity) = (desk.scheduler.in_use(), desk.scheduler.capacity());
            prop_assert!(in_use <= capacity.max(before), "{in_use} of {capacity}");
            let due = desk.scheduler.waiters.next_due();
            prop_assert!(due.is_none_or(|due| due > desk.now), "somebody waits beyond his time");
            let mut more = Vec::new();
            desk.scheduler.tick(desk.now, &mut more);
            prop_assert!(more.is_empty(), "something that could be given was not");
            prop_assert!(desk.scheduler.waiting() <= 40);
            let answered = desk.held.len() + desk.refused.len() + desk.ids.len() + cancelled;
            prop_assert!(answered <= desk.next as usize);
        }
        let free = desk.scheduler.free();
        desk.pass(Duration::from_hours(1));
        prop_assert_eq!(desk.scheduler.waiting(), 0, "with {} free", free);
        while let Some((&who, _)) = desk.held.first_key_value() {
            desk.release(who);
        }
        let idle = desk.scheduler.in_use() == 0 && desk.scheduler.tree.is_idle(Tree::class(Class::High));
        prop_assert!(idle);
        prop_assert_eq!(desk.scheduler.next_wake(), None);
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn while_permits_turn_over_the_lowest_tier_gets_one_each_second(
        capacity in 1..6usize, held_ms in 4..40u64,
    ) {
        let mut desk = Desk::new(capacity);
        for _ in 0..(5000 / held_ms) {
            for _ in 0..=2 * capacity {
                desk.arrive(tag(High));
            }
            desk.arrive(origin(Class::System, 0).at(Low));
            desk.pass(ms(held_ms));
            let held: Vec<u32> = desk.held.keys().copied().collect();
            for who in held {
                desk.release(who);
            }
        }
        let served = desk.status().granted[LOWEST];
        prop_assert!(served >= 4, "{served} in five seconds");
    }
}
