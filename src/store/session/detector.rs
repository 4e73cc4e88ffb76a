//! Pure: whether requests should go to the other database, and when they should come back.
//! Promises that only failures that last turn it, that it never turns back and forth fast, and that it turns only when
//! connections of the other database are ready. Does not connect, probe or count anything but what it is told.
//!
//! It leaves the primary when in [`BAD_TO_TRIP`] windows in a row enough requests failed. It returns when an operator
//! says so, or when the primary has answered every probe for [`PROBES_OK_FOR`] and was no standby in any of them: a
//! failback that fails too is no reason to return to a primary of which nobody knows that it works.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Length of a window.
pub(in crate::store) const WINDOW: Duration = Duration::from_secs(1);

/// Windows that are remembered, the one that is still open included.
pub(in crate::store) const WINDOWS: usize = 10;

/// Windows in a row, the last complete ones, that must be bad. A restart of Postgres takes less.
pub(in crate::store) const BAD_TO_TRIP: usize = 5;

/// A window with fewer requests says nothing.
pub(in crate::store) const REQUESTS_MIN: u64 = 20;

/// How long it stays after it turned, at first. Doubled whenever it turns again soon.
pub(in crate::store) const COOL_DOWN: Duration = Duration::from_mins(1);

/// The longest cool-down.
pub(in crate::store) const COOL_DOWN_MAX: Duration = Duration::from_mins(15);

/// A turn so soon after a cool-down has ended is a flap.
pub(in crate::store) const FLAP_WITHIN: Duration = Duration::from_mins(5);

/// How long the primary must have answered every probe before requests return to it.
pub(in crate::store) const PROBES_OK_FOR: Duration = Duration::from_mins(5);

/// How often the primary is to be probed while requests go elsewhere.
pub(in crate::store) const PROBE_EVERY: Duration = Duration::from_secs(5);

/// Silence between two probes that says as little as a failed one.
pub(in crate::store) const PROBE_GAP_MAX: Duration = Duration::from_secs(30);

/// How long nothing is prepared after a preparation has failed.
pub(in crate::store) const PREPARE_PAUSE: Duration = Duration::from_secs(5);

/// One of the two databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Endpoint {
    /// Where requests belong.
    Primary,
    /// Where they go while the primary fails.
    Failback,
}

/// What became of a request on a connection of the active endpoint. What the gate refuses, and what Postgres answers
/// to a statement of its own accord, is not told or is `Ok`: the machinery works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Outcome {
    /// Postgres answered.
    Ok,
    /// It did not, or not as one that serves (`store::Error::is_infrastructure`).
    InfrastructureError,
}

/// What a probe of the primary found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Probe {
    /// It answers and takes writes.
    Serves,
    /// It answers and is in recovery.
    Standby,
    /// It does not answer.
    Fails,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(in crate::store) enum Decision {
    /// Nothing.
    Stay,
    /// Probe the primary and tell [`Detector::on_probe`].
    Probe,
    /// Open connections to the endpoint, then tell [`Detector::on_prepared`] or [`Detector::on_prepare_failed`].
    Prepare {
        /// Where to.
        to: Endpoint,
    },
    /// Send requests to the endpoint from here on.
    Switch {
        /// Where to.
        to: Endpoint,
    },
}

/// What the detector shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Status {
    /// Where requests go.
    pub(in crate::store) active: Endpoint,
    /// Where connections are being opened to.
    pub preparing: Option<Endpoint>,
    /// Requests in the windows that are remembered.
    pub requests: u64,
    /// How many of them failed.
    pub errors: u64,
    /// When it may turn by itself again; `None` when it never turned.
    pub cool_until: Option<Instant>,
    /// Since when the primary has answered every probe.
    pub probes_ok_since: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Window {
    ok: u64,
    errors: u64,
}

impl Window {
    fn is_bad(self) -> bool {
        let requests = self.ok + self.errors;
        requests >= REQUESTS_MIN && self.errors * 2 >= requests
    }
}

#[derive(Clone, Copy, Debug)]
struct CoolDown {
    length: Duration,
    until: Instant,
}

/// A row of answered probes.
#[derive(Clone, Copy, Debug)]
struct Streak {
    since: Instant,
    last: Instant,
}

/// The detector of one pair of databases.
#[derive(Clone, Debug)]
pub(in crate::store) struct Detector {
    active: Endpoint,
    preparing: Option<Endpoint>,
    /// Nothing is prepared by itself before this.
    pause_until: Option<Instant>,
    cool_down: Option<CoolDown>,
    /// Invariant: 1 to [`WINDOWS`] of them, the last one open.
    windows: VecDeque<Window>,
    /// When the open window began.
    opened_at: Instant,
    probes: Option<Streak>,
    probe_at: Option<Instant>,
}

impl Detector {
    /// Requests go to the primary.
    pub(in crate::store) fn new(now: Instant) -> Self {
        Self {
            active: Endpoint::Primary,
            preparing: None,
            pause_until: None,
            cool_down: None,
            windows: VecDeque::from([Window::default()]),
            opened_at: now,
            probes: None,
            probe_at: None,
        }
    }

    /// A request of the active endpoint ended.
    pub(in crate::store) fn on_outcome(&mut self, outcome: Outcome, now: Instant) -> Decision {
        self.roll(now);
        if let Some(open) = self.windows.back_mut() {
            match outcome {
                Outcome::Ok => open.ok += 1,
                Outcome::InfrastructureError => open.errors += 1,
            }
        }
        let leaves = self.active == Endpoint::Primary && self.is_tripped() && self.may_turn(now);
        if leaves { self.prepare(Endpoint::Failback) } else { Decision::Stay }
    }

    /// The primary was probed.
    pub(in crate::store) fn on_probe(&mut self, probe: Probe, now: Instant) -> Decision {
        if self.active == Endpoint::Primary {
            return Decision::Stay;
        }
        self.probe_at = Some(now + PROBE_EVERY);
        let went_on = |streak: &Streak| {
            now.checked_duration_since(streak.last).is_some_and(|gap| gap <= PROBE_GAP_MAX)
        };
        self.probes = match probe {
            Probe::Serves => {
                let since = self.probes.filter(went_on).map_or(now, |streak| streak.since);
                Some(Streak { since, last: now })
            }
            Probe::Standby | Probe::Fails => None,
        };
        let served_for = |streak: Streak| now.saturating_duration_since(streak.since);
        let is_back = self.probes.is_some_and(|streak| served_for(streak) >= PROBES_OK_FOR);
        if is_back && self.may_turn(now) { self.prepare(Endpoint::Primary) } else { Decision::Stay }
    }

    /// The server started, and the primary was not there. Nobody has been served by it yet, so nothing is waited for.
    pub(in crate::store) fn on_absence(&mut self) -> Decision {
        if self.active == Endpoint::Failback || self.preparing.is_some() {
            return Decision::Stay;
        }
        self.prepare(Endpoint::Failback)
    }

    /// An operator wants requests to return to the primary. That waits for no cool-down: a person answers for it.
    pub(in crate::store) fn on_request(&mut self) -> Decision {
        if self.active == Endpoint::Primary || self.preparing.is_some() {
            return Decision::Stay;
        }
        self.prepare(Endpoint::Primary)
    }

    /// Connections to the endpoint that was to be prepared are open.
    pub(in crate::store) fn on_prepared(&mut self, now: Instant) -> Decision {
        let Some(to) = self.preparing.take() else {
            return Decision::Stay;
        };
        let is_flap = |last: &CoolDown| now < last.until + FLAP_WITHIN;
        let length = match self.cool_down.filter(is_flap) {
            Some(last) => (last.length * 2).min(COOL_DOWN_MAX),
            None => COOL_DOWN,
        };
        self.cool_down = Some(CoolDown { length, until: now + length });
        self.active = to;
        // What was counted was the other one's.
        self.windows = VecDeque::from([Window::default()]);
        self.opened_at = now;
        self.probes = None;
        self.probe_at = (to == Endpoint::Failback).then(|| now + PROBE_EVERY);
        Decision::Switch { to }
    }

    /// Connections to the endpoint that was to be prepared could not be opened; requests stay where they are.
    pub(in crate::store) fn on_prepare_failed(&mut self, now: Instant) {
        if self.preparing.take() == Some(Endpoint::Primary) {
            self.probes = None;
        }
        self.pause_until = Some(now + PREPARE_PAUSE);
    }

    /// When [`Detector::on_wake`] has something to say.
    pub(in crate::store) fn next_wake(&self) -> Option<Instant> {
        self.probe_at.filter(|_| self.preparing.is_none())
    }

    /// The time has come, or not.
    pub(in crate::store) fn on_wake(&mut self, now: Instant) -> Decision {
        if self.next_wake().is_none_or(|at| now < at) {
            return Decision::Stay;
        }
        self.probe_at = Some(now + PROBE_EVERY);
        Decision::Probe
    }

    /// What it knows.
    pub(in crate::store) fn status(&self) -> Status {
        let errors = self.windows.iter().map(|window| window.errors).sum();
        Status {
            active: self.active,
            preparing: self.preparing,
            requests: self.windows.iter().map(|window| window.ok).sum::<u64>() + errors,
            errors,
            cool_until: self.cool_down.map(|cool_down| cool_down.until),
            probes_ok_since: self.probes.map(|streak| streak.since),
        }
    }

    fn prepare(&mut self, to: Endpoint) -> Decision {
        self.preparing = Some(to);
        Decision::Prepare { to }
    }

    /// Closes windows until the open one is that of `now`. A clock that goes backwards goes on filling the open one.
    fn roll(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.opened_at);
        let count = passed.as_secs() / WINDOW.as_secs();
        for _ in 0..count.min(WINDOWS as u64) {
            if self.windows.len() == WINDOWS {
                self.windows.pop_front();
            }
            self.windows.push_back(Window::default());
        }
        self.opened_at += WINDOW * u32::try_from(count).unwrap_or(u32::MAX);
    }

    /// Whether the last complete windows are all bad. The open one is left out: its first requests are not all of it.
    fn is_tripped(&self) -> bool {
        let complete = self.windows.iter().rev().skip(1).take(BAD_TO_TRIP);
        complete.filter(|window| window.is_bad()).count() == BAD_TO_TRIP
    }

    fn may_turn(&self, now: Instant) -> bool {
        let is_over = |until: Option<Instant>| until.is_none_or(|until| now >= until);
        let cool_until = self.cool_down.map(|cool_down| cool_down.until);
        self.preparing.is_none() && is_over(cool_until) && is_over(self.pause_until)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;
    use crate::clock::test_start;

    const TO_FAILBACK: Decision = Decision::Prepare { to: Endpoint::Failback };
    const TO_PRIMARY: Decision = Decision::Prepare { to: Endpoint::Primary };

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// A window's worth of outcomes, errors first, spread over the second that begins at `from`. The decision that was not
    /// to stay, if there was one.
    fn feed(detector: &mut Detector, (ok, errors): (u64, u64), from: Instant) -> Decision {
        let count = ok + errors;
        let mut decided = Decision::Stay;
        for n in 0..count {
            let outcome = if n < errors { Outcome::InfrastructureError } else { Outcome::Ok };
            let at = from + Duration::from_micros(999_999 * n / count);
            let decision = detector.on_outcome(outcome, at);
            if decision != Decision::Stay {
                decided = decision;
            }
        }
        decided
    }

    /// The decision of the first outcome after these windows.
    fn after(windows: &[(u64, u64)]) -> Decision {
        let start = test_start();
        let mut detector = Detector::new(start);
        for (second, window) in (0..).zip(windows) {
            let early = feed(&mut detector, *window, start + seconds(second));
            assert_eq!(early, Decision::Stay, "in window {second} of {windows:?}");
        }
        detector.on_outcome(Outcome::Ok, start + seconds(windows.len() as u64))
    }

    /// A detector that has just turned to the failback, and when it did.
    fn turned(start: Instant) -> (Detector, Instant) {
        let mut detector = Detector::new(start);
        let at = fail_until_prepared(&mut detector, start);
        assert_eq!(detector.on_prepared(at), Decision::Switch { to: Endpoint::Failback });
        (detector, at)
    }

    /// Lets everything fail from then on, until it prepares, and says when that was.
    fn fail_until_prepared(detector: &mut Detector, from: Instant) -> Instant {
        for second in 0..3_600 {
            let at = from + seconds(second);
            if feed(detector, (0, 100), at) == TO_FAILBACK {
                return at + seconds(1);
            }
        }
        panic!("it never turned");
    }

    /// Probes that find the primary in order, until it prepares, and when that was.
    fn serve_until_prepared(detector: &mut Detector, from: Instant) -> Instant {
        for n in 0..1_000 {
            let at = from + PROBE_EVERY * n;
            if detector.on_probe(Probe::Serves, at) == TO_PRIMARY {
                return at;
            }
        }
        panic!("it never returned");
    }

    #[test]
    fn it_trips_after_five_bad_windows_in_a_row_and_exactly_at_the_thresholds() {
        let bad = (10, 10);
        for (windows, decision) in [
            (vec![bad; 5], TO_FAILBACK),
            (vec![(0, 20); 5], TO_FAILBACK),
            (vec![bad; 4], Decision::Stay),
            // One request too few, one error too few.
            (vec![bad, bad, (9, 10), bad, bad], Decision::Stay),
            (vec![bad, bad, (11, 10), bad, bad], Decision::Stay),
            (vec![(1_000, 999); 9], Decision::Stay),
            // A window that was in order, or in which nothing happened, begins the row anew.
            (vec![bad, bad, bad, bad, (20, 0), bad], Decision::Stay),
            (vec![bad, bad, bad, bad, (0, 0), bad], Decision::Stay),
            (vec![bad, (20, 0), bad, bad, bad, bad, bad], TO_FAILBACK),
            (vec![(500, 0); 30], Decision::Stay),
        ] {
            assert_eq!(after(&windows), decision, "{windows:?}");
        }
    }

    #[test]
    fn it_is_prepared_once_and_turns_when_that_is_done() {
        let start = test_start();
        let mut detector = Detector::new(start);
        assert_eq!(detector.on_prepared(start), Decision::Stay, "nobody asked for it");
        let at = fail_until_prepared(&mut detector, start);
        assert_eq!(detector.status().preparing, Some(Endpoint::Failback));
        assert_eq!(feed(&mut detector, (0, 100), at), Decision::Stay, "it is under way");
        assert_eq!(detector.on_prepared(at), Decision::Switch { to: Endpoint::Failback });
        let status = detector.status();
        assert_eq!((status.active, status.preparing), (Endpoint::Failback, None));
        assert_eq!((status.requests, status.errors), (0, 0), "those were the other one's");
        assert_eq!(status.cool_until, Some(at + COOL_DOWN));
    }

    #[test]
    fn a_preparation_that_failed_is_tried_again_after_a_pause() {
        let start = test_start();
        let mut detector = Detector::new(start);
        let at = fail_until_prepared(&mut detector, start);
        detector.on_prepare_failed(at);
        assert_eq!(detector.status().active, Endpoint::Primary);
        let again = fail_until_prepared(&mut detector, at);
        // It is heard of at the end of a window.
        let pause = again - at;
        assert!(pause >= PREPARE_PAUSE && pause <= PREPARE_PAUSE + WINDOW, "{pause:?}");
    }

    #[test]
    fn a_failback_that_fails_too_is_not_left_by_itself() {
        let (mut detector, at) = turned(test_start());
        for second in 0..1_000 {
            assert_eq!(feed(&mut detector, (0, 50), at + seconds(second)), Decision::Stay);
        }
        assert_eq!(detector.on_request(), TO_PRIMARY);
    }

    #[test]
    fn five_minutes_of_probes_lead_back_and_a_standby_does_not() {
        for (probe, leads_back) in
            [(Probe::Serves, true), (Probe::Standby, false), (Probe::Fails, false)]
        {
            let (mut detector, at) = turned(test_start());
            let mut decisions = Vec::new();
            for n in 1..=120 {
                decisions.push(detector.on_probe(probe, at + PROBE_EVERY * n));
            }
            assert_eq!(decisions.contains(&TO_PRIMARY), leads_back, "{probe:?}");
            // The first probe is number 1; five minutes later comes number 61.
            let first = decisions.iter().position(|decision| *decision == TO_PRIMARY);
            assert_eq!(first, leads_back.then_some(60));
        }
    }

    #[test]
    fn one_failed_probe_or_a_silence_begins_the_five_minutes_anew() {
        for is_silence in [false, true] {
            let (mut detector, at) = turned(test_start());
            let mut probed = at;
            while probed < at + PROBES_OK_FOR {
                assert_eq!(detector.on_probe(Probe::Serves, probed), Decision::Stay);
                probed += PROBE_EVERY;
            }
            if is_silence {
                probed += PROBE_GAP_MAX + seconds(1);
            } else {
                assert_eq!(detector.on_probe(Probe::Fails, probed), Decision::Stay);
                probed += PROBE_EVERY;
            }
            let back = serve_until_prepared(&mut detector, probed);
            assert_eq!(back - probed, PROBES_OK_FOR, "silence: {is_silence}");
        }
    }

    #[test]
    fn it_asks_for_probes_only_while_requests_are_elsewhere() {
        let start = test_start();
        let mut detector = Detector::new(start);
        assert_eq!(detector.next_wake(), None);
        assert_eq!(detector.on_wake(start + seconds(60)), Decision::Stay);
        assert_eq!(detector.on_probe(Probe::Serves, start), Decision::Stay);
        let (mut detector, at) = turned(start);
        assert_eq!(detector.next_wake(), Some(at + PROBE_EVERY));
        assert_eq!(detector.on_wake(at), Decision::Stay, "too early");
        let due = at + PROBE_EVERY;
        assert_eq!(detector.on_wake(due), Decision::Probe);
        assert_eq!(
            detector.next_wake(),
            Some(due + PROBE_EVERY),
            "also when nobody answers for it"
        );
        assert_eq!(detector.on_request(), TO_PRIMARY);
        assert_eq!(detector.next_wake(), None, "it returns");
        assert_eq!(detector.on_prepared(due), Decision::Switch { to: Endpoint::Primary });
        assert_eq!(detector.next_wake(), None);
    }

    #[test]
    fn an_operator_waits_for_no_cool_down_but_starts_one() {
        let (mut detector, at) = turned(test_start());
        let soon = at + seconds(1);
        assert_eq!(detector.on_request(), TO_PRIMARY);
        assert_eq!(detector.on_request(), Decision::Stay, "it is under way");
        assert_eq!(detector.on_prepared(soon), Decision::Switch { to: Endpoint::Primary });
        assert_eq!(detector.on_request(), Decision::Stay, "it is there");
        assert_eq!(detector.status().cool_until, Some(soon + COOL_DOWN * 2));
        let left = fail_until_prepared(&mut detector, soon);
        assert!(left >= soon + COOL_DOWN * 2, "{:?}", left - soon);
    }

    #[test]
    fn each_flap_doubles_the_cool_down_up_to_its_maximum_and_calm_forgets_them() {
        let (mut detector, mut at) = turned(test_start());
        let mut lengths = Vec::new();
        let mut note = |detector: &Detector, at: Instant| {
            lengths.push((detector.status().cool_until.unwrap() - at).as_secs());
        };
        note(&detector, at);
        for _ in 0..3 {
            at = serve_until_prepared(&mut detector, at);
            assert_eq!(detector.on_prepared(at), Decision::Switch { to: Endpoint::Primary });
            note(&detector, at);
            at = fail_until_prepared(&mut detector, at);
            assert_eq!(detector.on_prepared(at), Decision::Switch { to: Endpoint::Failback });
            note(&detector, at);
        }
        let calm = detector.status().cool_until.unwrap() + FLAP_WITHIN;
        at = serve_until_prepared(&mut detector, calm);
        assert_eq!(detector.on_prepared(at), Decision::Switch { to: Endpoint::Primary });
        note(&detector, at);
        assert_eq!(lengths, [60, 120, 240, 480, 900, 900, 900, 60]);
    }

    #[test]
    fn a_clock_that_jumps_neither_trips_it_nor_loses_its_balance() {
        let start = test_start();
        let hour = Duration::from_hours(1);
        let mut detector = Detector::new(start + hour);
        for second in 0..4 {
            let early = feed(&mut detector, (0, 50), start + hour + seconds(second));
            assert_eq!(early, Decision::Stay);
        }
        // Backwards: all of it is in the window that was open.
        for second in 0..60 {
            assert_eq!(feed(&mut detector, (0, 50), start + seconds(second)), Decision::Stay);
        }
        // Far forwards: what was before says nothing any more.
        let later = start + hour * 50;
        assert_eq!(detector.on_outcome(Outcome::InfrastructureError, later), Decision::Stay);
        assert_eq!(detector.status().requests, 1);
        assert!(fail_until_prepared(&mut detector, later) > later + seconds(4));
        assert_eq!(detector.on_prepared(start), Decision::Switch { to: Endpoint::Failback });
        assert_eq!(detector.on_probe(Probe::Serves, later), Decision::Stay);
        assert_eq!(detector.on_probe(Probe::Serves, start), Decision::Stay, "an hour of no probes");
        assert_eq!(detector.status().probes_ok_since, Some(start));
    }

    /// Something that goes on for a while; an operator's request is not among it.
    #[derive(Clone, Copy, Debug)]
    enum Spell {
        /// Every second, so many requests succeed and fail.
        Outcomes(u64, u64),
        /// Every five seconds, the primary is probed.
        Probes(Probe),
        /// Nothing happens for so many seconds.
        Silence(u64),
    }

    /// What happens, how often, and whether connections can be prepared meanwhile.
    fn spell() -> impl Strategy<Value = (Spell, u32, bool)> {
        let what = prop_oneof![
            4 => Just(Spell::Outcomes(0, 20)),
            1 => (0..30_u64, 0..30_u64).prop_map(|(ok, errors)| Spell::Outcomes(ok, errors)),
            4 => Just(Spell::Probes(Probe::Serves)),
            1 => prop_oneof![Just(Probe::Standby), Just(Probe::Fails)].prop_map(Spell::Probes),
            1 => (0..2_000_u64).prop_map(Spell::Silence),
        ];
        (what, 1..100_u32, prop::bool::weighted(0.9))
    }

    proptest! {
        #[test]
        fn it_never_turns_within_the_cool_down_nor_unprepared(
            spells in prop::collection::vec(spell(), 1..30),
        ) {
            let mut now = test_start();
            let mut detector = Detector::new(now);
            for (spell, count, can_prepare) in spells {
                for _ in 0..count {
                    let (decision, step) = match spell {
                        Spell::Outcomes(ok, errors) => (feed(&mut detector, (ok, errors), now), WINDOW),
                        Spell::Probes(probe) => (detector.on_probe(probe, now), PROBE_EVERY),
                        Spell::Silence(length) => (detector.on_wake(now), seconds(length) / count),
                    };
                    now += step;
                    let Decision::Prepare { to } = decision else {
                        prop_assert!(matches!(decision, Decision::Stay | Decision::Probe));
                        continue;
                    };
                    let before = detector.status();
                    prop_assert_ne!(to, before.active);
                    if !can_prepare {
                        detector.on_prepare_failed(now);
                        prop_assert_eq!(detector.status().active, before.active);
                        continue;
                    }
                    prop_assert!(before.cool_until.is_none_or(|until| now >= until), "too early");
                    prop_assert_eq!(detector.on_prepared(now), Decision::Switch { to });
                    prop_assert_eq!(detector.on_prepared(now), Decision::Stay, "it was prepared once");
                    let length = detector.status().cool_until.unwrap() - now;
                    prop_assert!(length >= COOL_DOWN && length <= COOL_DOWN_MAX);
                }
            }
        }
    }
}
