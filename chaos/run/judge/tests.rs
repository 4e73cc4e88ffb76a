//! Each check is seen to hold on a sound run and to fail on one that is spoiled in one place.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay::load::Tally;

use super::*;
use crate::anytime_checks::{Memory, Seen};
use crate::driver_listeners::SentBySocket;
use crate::driver_sends::Sent;
use crate::run::report::Verdict;
use crate::run::{Driven, During, Heard, Kept};
use crate::scenario::{Act, Deed, Expect, FullLog, LiveDuring, Options, Pace, Sends, Silence};

pub(super) const OPTIONS: Options =
    Options { seed: 7, storm: Duration::from_mins(1), per_second: 200, pace: Pace::Full };

const SECOND: Duration = Duration::from_secs(1);

fn plan(expect: Expect) -> Plan {
    let plan = Plan { expect, ..Plan::calm(OPTIONS, SECOND * 30) };
    plan.with([
        (SECOND * 10, Act::Postgres(Deed::Pause)),
        (SECOND * 15, Act::Postgres(Deed::Resume)),
        (SECOND * 17, Act::Postgres(Deed::Pause)),
        (SECOND * 20, Act::Postgres(Deed::Resume)),
    ])
}

fn strict() -> Plan {
    plan(Expect {
        sends: Sends::Acknowledged,
        live: LiveDuring::GoesOn,
        resume_max: Some(SECOND * 2),
        ..Expect::default()
    })
}

fn tally(acknowledged: u64) -> Tally {
    let mut tally = Tally::default();
    tally.stored = acknowledged;
    tally.took(Duration::from_millis(3));
    tally
}

fn sound() -> Found {
    let read = || BTreeMap::from([("200".to_owned(), 40)]);
    let findings = forebay::operate::verify::Findings { events: 6_000, ..Default::default() };
    let audit = Audit { acknowledged: 5_900, ..Audit::default() };
    Found {
        sent: Sent { phases: [tally(1_600), tally(2_190), tally(2_000)], ..Sent::default() },
        by_socket: SentBySocket::default(),
        seen: Seen {
            reads: [read(), BTreeMap::new(), read()],
            memory: BTreeMap::from([(
                "node 0".to_owned(),
                Memory { first: 40 << 20, most: 70 << 20 },
            )]),
            silence: Duration::from_millis(300),
            rises: vec![SECOND * 9, SECOND * 16],
            ..Seen::default()
        },
        ready: Some(SECOND),
        heard: Heard { silence: Duration::from_millis(900), ..Heard::default() },
        stored: Kept {
            audit,
            level: Level { findings, rows: 6_000 },
            delivered: Delivered { repeats: 2, ..Delivered::default() },
        },
        during: During { length: SECOND * 11, live: 2_300, hooks: 2_250 },
        driven: Driven {
            readied: vec![Readied { after: SECOND, is_ready: true }],
            ..Driven::default()
        },
        undrained: Vec::new(),
    }
}

fn violated(plan: &Plan, spoil: impl FnOnce(&mut Found)) -> Vec<&'static str> {
    let (mut found, mut report) = (sound(), Report::new("db_pause", OPTIONS));
    spoil(&mut found);
    judge(plan, &found, &mut report);
    let violated = report.checks.iter().filter(|check| check.verdict == Verdict::Violated);
    violated.map(|check| check.name).collect()
}

type Spoil = fn(&mut Found);

#[test]
fn a_sound_run_violates_nothing() {
    assert_eq!(violated(&strict(), |_| {}), Vec::<&str>::new());
    assert_eq!(violated(&plan(Expect::default()), |_| {}), Vec::<&str>::new());
}

#[test]
fn each_check_of_sends_sees_what_it_is_for() {
    let cases: [(&str, Spoil); 8] = [
        ("sends before the fault are answered so", |found| found.sent.phases[0].refuse("broken")),
        ("every send is answered 2xx", |found| found.sent.phases[1].refuse("503")),
        ("every send is answered 2xx", |found| found.sent.phases[2].refuse("broken")),
        ("sends have an answer at the end", |found| found.sent.unfinished = 1),
        ("sends by socket are stored", |found| found.by_socket.refused.push("no".to_owned())),
        ("the load goes on during the fault", |found| found.sent.phases[1].stored = 1_900),
        ("sends resume in time", |found| found.seen.silence = Duration::from_millis(2_001)),
        ("each conversation resumes in time", |found| {
            found.heard.silence = Duration::from_millis(2_101);
        }),
    ];
    for (name, spoil) in cases {
        assert_eq!(violated(&strict(), spoil), [name]);
    }
}

#[test]
fn a_load_of_which_nothing_comes_is_not_passed_over() {
    let names = violated(&strict(), |found| {
        found.sent.phases[1] = Tally::default();
        found.during = During { length: SECOND * 11, live: 0, hooks: 0 };
    });
    let wanted = [
        "the load goes on during the fault",
        "live frames go on during the fault",
        "webhooks go on during the fault",
    ];
    assert_eq!(names, wanted);
    let nothing_after: Spoil = |found| found.sent.phases[2] = Tally::default();
    assert_eq!(violated(&plan(Expect::default()), nothing_after), ["sends resume"]);
}

#[test]
fn what_goes_on_during_a_fault_is_measured_by_what_was_acknowledged() {
    let cases: [(&str, Spoil); 2] = [
        ("live frames go on during the fault", |found| found.during.live = 1_900),
        ("webhooks go on during the fault", |found| found.during.hooks = 1_900),
    ];
    for (name, spoil) in cases {
        assert_eq!(violated(&strict(), spoil), [name]);
    }
}

#[test]
fn an_acknowledgement_without_the_log_and_a_full_log_that_takes_all_are_seen() {
    let plan_kept = plan(Expect { silence: Silence::Kept, ..Expect::default() });
    assert_eq!(violated(&plan_kept, |_| {}), Vec::<&str>::new());
    let early: Spoil = |found| found.seen.rises.push(SECOND * 12);
    assert_eq!(violated(&plan_kept, early), ["nothing is acknowledged without the log"]);
    let expect = Expect { before: Sends::Refused, full_log: FullLog::Refuses, ..Expect::default() };
    assert_eq!(violated(&plan(expect), |_| {}), ["a full log refuses sends"]);
    let full: Spoil = |found| found.sent.phases[0].refuse("503");
    assert_eq!(violated(&plan(expect), full), Vec::<&str>::new());
}

#[test]
fn each_check_of_what_was_seen_sees_what_it_is_for() {
    const READ: &str = "reads are answered with a page, or 503 with a watermark in time";
    const PAGES: &str = "pages are read before and after the fault";
    const MEMORY: &str = "memory of a node stays bounded";
    let cases: [(&str, Spoil); 8] = [
        (READ, |found| found.seen.misread.push("a hole".to_owned())),
        (PAGES, |found| found.seen.reads[0].clear()),
        (PAGES, |found| found.seen.reads[2].clear()),
        ("nobody ends by itself", |found| found.seen.died.push("node 0".to_owned())),
        (MEMORY, |found| found.seen.memory.clear()),
        (MEMORY, |found| {
            found.seen.memory.insert("node 0".to_owned(), Memory::default());
        }),
        (MEMORY, |found| {
            let memory = Memory { first: 40 << 20, most: (41 << 20) + seen::GROWTH_MAX };
            found.seen.memory.insert("node 0".to_owned(), memory);
        }),
        (MEMORY, |found| {
            let memory = Memory { first: 1, most: 1 };
            found.seen.memory.insert("node 1".to_owned(), memory);
        }),
    ];
    for (name, spoil) in cases {
        assert_eq!(violated(&strict(), spoil), [name]);
    }
}

#[test]
fn each_check_after_the_heal_sees_what_it_is_for() {
    const READY: &str = "every node is ready once healed";
    const BETWEEN: &str = "every node is ready between faults";
    let cases: [(&str, Spoil); 8] = [
        (READY, |found| found.ready = None),
        (READY, |found| found.ready = Some(READY_MAX + SECOND)),
        (BETWEEN, |found| {
            found.driven.readied.push(Readied { after: READY_MAX + SECOND, is_ready: true });
        }),
        (BETWEEN, |found| {
            found.driven.readied.push(Readied { after: READY_MAX + SECOND, is_ready: false });
        }),
        ("each conversation goes on after the heal", |found| found.heard.mute.push(String::new())),
        ("listeners have everything", |found| found.heard.incomplete.push(String::new())),
        (ORDER, |found| found.heard.faults.push(String::new())),
        ("listeners have what is stored", |found| found.heard.differing.push(String::new())),
    ];
    for (name, spoil) in cases {
        assert_eq!(violated(&strict(), spoil), [name]);
    }
}

#[test]
fn each_check_of_what_is_stored_sees_what_it_is_for() {
    const DELIVERED: &str = "the receiver has each receipt's message";
    let cases: [(&str, Spoil); 12] = [
        (AUDIT, |found| found.stored.audit.lost = 1),
        (AUDIT, |found| found.stored.audit.acknowledged = 0),
        (AUDIT, |found| found.stored.audit.left_out = 1),
        (LEVEL, |found| found.stored.level.findings.differences.push(String::new())),
        (LEVEL, |found| found.stored.level.findings.records_ahead = 1),
        (LEVEL, |found| found.stored.level.rows += 1),
        (LEVEL, |found| found.stored.level = Level::default()),
        (DELIVERED, |found| found.stored.delivered.missing = 1),
        (DELIVERED, |found| found.stored.delivered.dropped = 1),
        ("webhooks are signed with the secret", |found| found.stored.delivered.unverified = 1),
        ("the plan was performed", |found| found.driven.failed.push(String::new())),
        ("nodes end in order when asked", |found| found.undrained.push(String::new())),
    ];
    for (name, spoil) in cases {
        assert_eq!(violated(&strict(), spoil), [name]);
    }
}

#[test]
fn a_500_is_never_an_answer_and_a_503_or_a_break_only_where_it_may_be() {
    let names = |sends: Sends, how: &str| {
        violated(&plan(Expect { sends, ..Expect::default() }), |found| {
            found.sent.phases[1].refuse(how);
        })
    };
    for (sends, how, wanted) in [
        (Sends::Broken, "500", 1),
        (Sends::Broken, "404", 1),
        (Sends::Broken, "unreadable", 1),
        (Sends::Broken, "broken", 0),
        (Sends::Refused, "broken", 1),
        (Sends::Refused, "503", 0),
        (Sends::Acknowledged, "503", 1),
        (Sends::Acknowledged, "429", 1),
    ] {
        assert_eq!(names(sends, how).len(), wanted, "{sends:?} {how}");
    }
}

#[test]
fn a_few_texts_stand_for_many() {
    let texts: Vec<String> = (0..5).map(|n| n.to_string()).collect();
    assert_eq!(told(&texts, "none"), "0; 1; 2; and 2 more");
    assert_eq!(told(&[], "none"), "none");
}
