use super::*;
use crate::admission::share::{Leaves, Tree};
use crate::admission::{Class, Origin, Source};
use crate::clock::test_start;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// One queue with the limits of 5 and 100 ms.
struct Line {
    queue: Queue,
    waiters: Waiters<u32>,
    limits: Limits,
    leaf: LeafId,
    start: Instant,
}

impl Line {
    fn new() -> Self {
        let start = test_start();
        let mut tree = Tree::new(1, [usize::MAX; 4], None);
        let origin = Origin { class: Class::High, tenant: None, source: Source::Rest };
        let leaf = Leaves::new(usize::MAX).of(origin, start, &mut tree);
        let limits = Limits::new(ms(50), ms(1000), start);
        Self { queue: Queue::new(start), waiters: Waiters::new(), limits, leaf, start }
    }

    fn enter(&mut self, payload: u32, at: u64) -> WaiterId {
        self.enter_until(payload, at, 60_000)
    }

    fn enter_until(&mut self, payload: u32, at: u64, deadline: u64) -> WaiterId {
        let deadline = self.start + ms(deadline);
        let newcomer = Newcomer { payload, tier: 1, leaf: self.leaf, deadline };
        self.waiters.enter(&mut self.queue, newcomer, self.start + ms(at), &self.limits)
    }

    fn leave(&mut self, id: WaiterId, at: u64) -> Option<u32> {
        let now = self.start + ms(at);
        self.waiters.leave(&mut self.queue, id, now, ms(100)).map(|waiter| waiter.payload)
    }

    fn next(&mut self, at: u64) -> Option<u32> {
        let now = self.start + ms(at);
        let id = self.waiters.next(&mut self.queue, now, ms(100))?;
        self.waiters.get(id).map(|waiter| waiter.payload)
    }

    fn due(&self, id: WaiterId) -> (Duration, Overload) {
        let waiter = self.waiters.get(id).unwrap();
        (waiter.due.saturating_duration_since(self.start), waiter.reason)
    }
}

#[test]
fn the_oldest_is_served_first_until_the_queue_stands_then_the_newest() {
    let mut line = Line::new();
    let first = line.enter(1, 10);
    line.enter(2, 20);
    assert_eq!(line.next(110), Some(1), "not empty for 100 ms, but not for longer");
    assert_eq!(line.next(111), Some(2), "it stands");
    line.enter(3, 120);
    assert_eq!(line.next(120), Some(3));
    assert_eq!(line.leave(first, 130), Some(1));
    assert_eq!(line.next(130), Some(3), "it stands until it is empty");
}

#[test]
fn an_empty_queue_begins_anew() {
    let mut line = Line::new();
    let first = line.enter(1, 10);
    assert_eq!(line.next(500), Some(1));
    line.leave(first, 500);
    assert_eq!(line.next(500), None);
    line.enter(2, 2000);
    line.enter(3, 2001);
    assert_eq!(line.next(2050), Some(2), "the time in which it was empty does not count");
}

#[test]
fn a_due_time_is_when_the_queue_stands_or_the_short_limit_is_over() {
    let mut line = Line::new();
    let (early, late) = (line.enter(1, 10), line.enter(2, 200));
    assert_eq!(line.due(early), (ms(110), Overload::Queue));
    assert_eq!(line.due(late), (ms(205), Overload::Queue));
    let (soon, far) = (line.enter_until(3, 210, 212), line.enter_until(4, 210, 9000));
    assert_eq!(line.due(soon), (ms(212), Overload::Deadline));
    assert_eq!(line.due(far), (ms(215), Overload::Queue));
    assert_eq!(line.waiters.next_due(), Some(line.start + ms(110)));
    assert_eq!(line.waiters.overdue(line.start + ms(109)), None);
    assert_eq!(line.waiters.overdue(line.start + ms(110)), Some(early));
}

#[test]
fn whoever_cancelled_is_gone_from_the_queue_at_once() {
    // Q4: a queue of nothing but cancelled waiters is empty, and does not come to stand.
    let mut line = Line::new();
    let ids: Vec<_> = (0..5).map(|n| line.enter(n, 0)).collect();
    assert_eq!(line.leave(ids[2], 1), Some(2));
    assert_eq!(line.leave(ids[0], 1), Some(0));
    assert_eq!(line.next(1), Some(1));
    assert_eq!(line.leave(ids[4], 1), Some(4));
    assert_eq!(line.leave(ids[4], 1), None, "twice");
    assert_eq!((line.queue.len(), line.waiters.len(), line.waiters.in_tier(1)), (2, 2, 2));
    line.leave(ids[1], 50);
    line.leave(ids[3], 50);
    assert_eq!((line.queue.len(), line.waiters.len(), line.waiters.oldest(1)), (0, 0, None));
    line.enter(6, 200);
    line.enter(7, 201);
    assert_eq!(line.next(202), Some(6), "it was empty meanwhile");
}

#[test]
fn an_id_does_not_name_whoever_has_the_place_next() {
    let mut line = Line::new();
    let gone = line.enter(1, 0);
    line.leave(gone, 1);
    let next = line.enter(2, 2);
    assert_ne!(gone, next);
    assert_eq!(line.leave(gone, 3), None);
    assert_eq!(line.leave(next, 3), Some(2));
}
