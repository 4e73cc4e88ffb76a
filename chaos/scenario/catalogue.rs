//! Pure: every scenario there is.
//! Promises that each says in a line what happens in it, and by its plan when.
//! Does not run them.

use std::time::Duration;

use forebay::bench::deliver::Fault;

use super::storm::storm;
use super::{
    Act, Condition, Course, Deed, Expect, FullLog, Link, Links, LiveDuring, Neighbour, Options,
    Pace, Plan, Scenario, Sends, Silence,
};

const fn named(name: &'static str, about: &'static str, course: fn(Options) -> Course) -> Scenario {
    Scenario { name, about, course }
}

/// All of them, in the order in which `all` runs them.
pub(crate) const ALL: &[Scenario] = &[
    named("db_pause", "Postgres stands still for 30 s", db_pause),
    named("db_kill", "Postgres is killed twice and comes back", db_kill),
    named("db_terminate_backends", "Postgres ends every session, 20 times", db_terminate_backends),
    named("node_kill", "of two nodes one is killed, three times", node_kill),
    named("nats_kill", "NATS is killed three times and comes back", nats_kill),
    named("nats_pause", "NATS stands still for 6 s", nats_pause),
    named("dead_channel", "a tenant whose neighbour has a dead channel", dead_channel),
    named("webhook_burst", "a tenant whose neighbour has a burst of webhooks", webhook_burst),
    named("rolling_restart", "one node after the other is restarted in order", rolling_restart),
    named("partition", "the links to the log and to clients are cut, then swallow all", partition),
    named("db_partition", "the link to Postgres is cut, then swallows everything", db_partition),
    named("db_slow", "each answer of Postgres comes 2 s late", db_slow),
    named("db_full", "somebody takes every connection that Postgres has", db_full),
    named("nats_leader_kill", "of three servers of NATS the leader is killed", nats_leader_kill),
    named("nats_disk_full", "the log refuses to grow, until it may again", nats_disk_full),
    named("clock_jump", "a node's clock jumps an hour ahead and back", clock_jump),
    named("storm", "faults at random for as long as --seconds says", stormy),
    named("promises", "what the self-test runs: log, Postgres and listeners in turn", promises),
];

/// What `short` runs: at most five minutes, in a debug build too.
pub(crate) const SHORT: [&str; 4] = ["db_pause", "nats_kill", "node_kill", "dead_channel"];

/// What the self-test runs against broken builds.
pub(crate) const SELF_TEST: &str = "promises";

/// The 99th percentile while Postgres is away, against the one before (aim of the product).
const P99_FACTOR_MAX: f64 = 1.5;

/// From a fault of the log to the next acknowledgement (aim of the product: 10 s after the log is back).
const RESUME: Duration = secs(10);

/// Size at which a partition refuses to grow in `nats_disk_full`: the least that can be set.
const SMALL_LOG: (&str, &str) = ("FOREBAY_PARTITION_BYTES_MAX", "1048576");

/// The size it may have afterwards.
const LARGE_LOG: u64 = 1 << 30;

/// An hour: longer than the dedupe window and every deadline.
const JUMP_SECONDS: i64 = 3_600;

/// Longest time without an acknowledgement while the log is well: a send is answered within 2 s (docs/API.md).
const STALL: Duration = secs(2);

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl Options {
    fn choose(self, full: u64, short: u64) -> Duration {
        secs(if self.pace == Pace::Full { full } else { short })
    }
}

/// The log and what is told of it go on; Postgres alone is in trouble.
const UNDISTURBED: Expect = Expect {
    before: Sends::Acknowledged,
    sends: Sends::Acknowledged,
    p99_factor_max: None,
    silence: Silence::Unwatched,
    live: LiveDuring::GoesOn,
    resume_max: Some(STALL),
    full_log: FullLog::Unwatched,
};

fn without_postgres(plan: Plan) -> Course {
    Course::Steps(Plan { expect: UNDISTURBED, ..plan })
}

/// Three times the 10 s of the aim, and as long before: a machine that others use stands still for a tenth of a second now and
/// then, which is the 99th percentile of 10 s by itself.
fn db_pause(options: Options) -> Course {
    let (before, pause) = (options.choose(30, 6), options.choose(30, 5));
    let plan = Plan::calm(options, before + pause + options.choose(10, 6)).with([
        (before, Act::Postgres(Deed::Pause)),
        (before + pause, Act::Postgres(Deed::Resume)),
    ]);
    let expect = Expect { p99_factor_max: Some(P99_FACTOR_MAX), ..UNDISTURBED };
    Course::Steps(Plan { expect, ..plan })
}

fn db_kill(options: Options) -> Course {
    without_postgres(Plan::calm(options, secs(30)).with([
        (secs(6), Act::Postgres(Deed::Kill)),
        (secs(11), Act::Postgres(Deed::Start)),
        (secs(15), Act::Postgres(Deed::Kill)),
        (secs(16), Act::Postgres(Deed::Start)),
    ]))
}

fn db_terminate_backends(options: Options) -> Course {
    let ends = (0..20_u64).map(|n| (secs(5) + millis(n * 400), Act::EndSessions));
    without_postgres(Plan::calm(options, secs(22)).with(ends))
}

/// A process goes so many times, each time for so long.
fn kills(
    times: u64,
    (first, every, away): (Duration, Duration, Duration),
    act: impl Fn(u64, Deed) -> Act,
) -> Vec<(Duration, Act)> {
    let when = |n: u64| first + every * u32::try_from(n).unwrap_or(u32::MAX);
    let pair = |n| [(when(n), act(n, Deed::Kill)), (when(n) + away, act(n, Deed::Start))];
    (0..times).flat_map(pair).collect()
}

fn node_kill(options: Options) -> Course {
    let every = options.choose(8, 6);
    let node = |n: u64, deed| Act::Node(usize::try_from(n % 2).unwrap_or(0), deed);
    let steps = kills(3, (secs(5), every, millis(1_500)), node);
    let length = secs(5) + every * 3 + secs(6);
    Course::Steps(Plan { nodes: 2, ..Plan::calm(options, length) }.with(steps))
}

fn nats_kill(options: Options) -> Course {
    let every = options.choose(7, 5);
    let steps = kills(3, (secs(5), every, millis(1_000)), |_, deed| Act::Log(0, deed));
    let plan = Plan::calm(options, secs(5) + every * 3 + secs(6)).with(steps);
    let expect = Expect { sends: Sends::Refused, resume_max: Some(RESUME), ..Expect::default() };
    Course::Steps(Plan { expect, ..plan })
}

fn nats_pause(options: Options) -> Course {
    let plan = Plan::calm(options, secs(24))
        .with([(secs(6), Act::Log(0, Deed::Pause)), (secs(12), Act::Log(0, Deed::Resume))]);
    let expect = Expect {
        sends: Sends::Refused,
        silence: Silence::Kept,
        resume_max: Some(secs(6) + RESUME),
        ..Expect::default()
    };
    Course::Steps(Plan { expect, ..plan })
}

fn dead_channel(options: Options) -> Course {
    neighbour(options, Fault::Dead)
}

fn webhook_burst(options: Options) -> Course {
    neighbour(options, Fault::Burst)
}

/// A round is so long that the second in which the neighbour sends its 10 000 messages, with both cores, is well below the
/// twentieth of it that a p95 leaves out: what is judged is the channel that cannot take them. From one half minute to the next
/// the p95 of a tenant that is alone moves by a tenth and more, so there are as many rounds as one has patience for.
fn neighbour(options: Options, fault: Fault) -> Course {
    let (rounds, length, backlog) = match options.pace {
        Pace::Full => (4, secs(30), 10_000),
        Pace::Short => (1, secs(10), 2_000),
    };
    Course::Neighbour(Neighbour { fault, rounds, length, backlog })
}

fn rolling_restart(options: Options) -> Course {
    let restart = |node, at| {
        [
            (secs(at), Act::Node(node, Deed::Stop)),
            (secs(at) + millis(200), Act::Node(node, Deed::Start)),
        ]
    };
    let steps = restart(0, 5).into_iter().chain(restart(1, 13)).chain(restart(0, 21));
    Course::Steps(Plan { nodes: 2, ..Plan::calm(options, secs(32)) }.with(steps))
}

/// Each of these links is cut and swallows everything in turn, for 4 s every 8 s.
fn parted(options: Options, links: &[Link]) -> Plan {
    let mut steps = Vec::new();
    let mut at = secs(5);
    for condition in [Condition::Cut, Condition::BlackHole] {
        for link in links {
            steps.push((at, Act::Link(*link, condition)));
            steps.push((at + secs(4), Act::Link(*link, Condition::Healed)));
            at += secs(8);
        }
    }
    Plan { links: Links::Proxied, ..Plan::calm(options, at + secs(5)) }.with(steps)
}

fn partition(options: Options) -> Course {
    Course::Steps(parted(options, &[Link::Log, Link::Clients]))
}

fn db_partition(options: Options) -> Course {
    without_postgres(parted(options, &[Link::Database]))
}

fn db_slow(options: Options) -> Course {
    let slow = Condition::AnswersDelayed(secs(2));
    let plan = Plan { links: Links::Proxied, ..Plan::calm(options, secs(30)) };
    without_postgres(plan.with([
        (secs(6), Act::Link(Link::Database, slow)),
        (secs(18), Act::Link(Link::Database, Condition::Healed)),
    ]))
}

fn db_full(options: Options) -> Course {
    without_postgres(
        Plan::calm(options, secs(26))
            .with([(secs(6), Act::TakeConnections), (secs(16), Act::FreeConnections)]),
    )
}

fn nats_leader_kill(options: Options) -> Course {
    let plan = Plan { log_servers: 3, ..Plan::calm(options, secs(48)) };
    let plan = plan.with([(secs(8), Act::KillLogLeader), (secs(30), Act::StartLogLeader)]);
    let expect = Expect { sends: Sends::Refused, resume_max: Some(RESUME), ..Expect::default() };
    Course::Steps(Plan { expect, ..plan })
}

fn nats_disk_full(options: Options) -> Course {
    let plan = Plan { per_second: options.per_second * 4, ..Plan::calm(options, secs(40)) };
    let plan = plan.set(SMALL_LOG);
    let plan = plan.with([(secs(24), Act::LimitLog(0, LARGE_LOG))]);
    // The node that makes the streams larger is started anew, and connections break.
    let expect = Expect { before: Sends::Refused, full_log: FullLog::Refuses, ..Expect::default() };
    Course::Steps(Plan { expect, ..plan })
}

fn clock_jump(options: Options) -> Course {
    // Who tells the time wrongly serves all the same.
    let plan = Plan { nodes: 2, expect: UNDISTURBED, ..Plan::calm(options, secs(26)) };
    Course::Clock(plan.with([
        (secs(6), Act::Clock(0, JUMP_SECONDS)),
        (secs(12), Act::Clock(0, 0)),
        (secs(16), Act::Clock(1, -JUMP_SECONDS)),
        (secs(20), Act::Clock(1, 0)),
    ]))
}

fn stormy(options: Options) -> Course {
    let plan = Plan { nodes: 2, links: Links::Proxied, ..Plan::calm(options, options.storm) };
    Course::Steps(plan.with(storm(options.seed, options.storm, 2)))
}

/// The log and the node that writes to it go at once, as in a power cut; then Postgres ends sessions, often enough to hit
/// a projector between any two of its statements.
fn promises(options: Options) -> Course {
    let cut = [
        (secs(5), Act::Log(0, Deed::Pause)),
        (secs(7), Act::Node(0, Deed::Kill)),
        (secs(7) + millis(100), Act::Log(0, Deed::Kill)),
        (secs(7) + millis(200), Act::Log(0, Deed::Start)),
        (secs(7) + millis(300), Act::Node(0, Deed::Start)),
    ];
    let ends = (0..60_u64).map(|n| (secs(11) + millis(n * 150), Act::EndSessions));
    let plan = Plan::calm(options, secs(26)).with(cut.into_iter().chain(ends));
    let expect = Expect { silence: Silence::Kept, ..Expect::default() };
    Course::Steps(Plan { expect, ..plan })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_by_another_name_is_in_the_catalogue() {
        let is_there = |name: &str| ALL.iter().any(|scenario| scenario.name == name);
        assert!(SHORT.into_iter().all(is_there) && is_there(SELF_TEST));
    }

    #[test]
    fn trouble_of_postgres_alone_leaves_sends_acknowledged() {
        let options = Options { seed: 1, storm: secs(60), per_second: 100, pace: Pace::Full };
        for scenario in ALL.iter().filter(|scenario| scenario.name.starts_with("db_")) {
            let Course::Steps(plan) = (scenario.course)(options) else { continue };
            assert_eq!(plan.expect.sends, Sends::Acknowledged, "{}", scenario.name);
            assert_eq!(plan.expect.resume_max, Some(STALL), "{}", scenario.name);
            assert!(!plan.touches_nodes_or_log(), "{}", scenario.name);
        }
    }

    #[test]
    fn each_kill_is_followed_by_its_start() {
        let steps = kills(2, (secs(5), secs(7), secs(1)), |_, deed| Act::Log(0, deed));
        let of = |at, deed| (secs(at), Act::Log(0, deed));
        let wanted =
            [of(5, Deed::Kill), of(6, Deed::Start), of(12, Deed::Kill), of(13, Deed::Start)];
        assert_eq!(steps, wanted);
    }
}
