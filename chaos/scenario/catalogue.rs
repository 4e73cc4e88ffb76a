//! Pure: every scenario there is.
//! Promises that each says in a line what happens in it, and by its plan when.
//! Does not run them.

use std::time::Duration;

use forebay::bench::deliver::Fault;

use super::storm::storm;
use super::{
    Act, Condition, Course, Deed, Expect, Link, Links, LiveDuring, Neighbour, Options, Pace, Plan,
    Scenario, Sends, Silence,
};

/// All of them, in the order in which `all` runs them.
pub const ALL: &[Scenario] = &[
    Scenario { name: "db_pause", about: "Postgres stands still for 10 s", course: db_pause },
    Scenario { name: "db_kill", about: "Postgres is killed and comes back", course: db_kill },
];

/// What `short` runs: at most five minutes, in a debug build too.
pub const SHORT: [&str; 4] = ["db_pause", "nats_kill", "node_kill", "dead_channel"];

/// The 99th percentile while Postgres is away, against the one before (aim of the product).
const P99_FACTOR_MAX: f64 = 1.5;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

impl Options {
    fn choose(self, full: u64, short: u64) -> Duration {
        secs(if self.pace == Pace::Full { full } else { short })
    }
}

fn db_pause(options: Options) -> Course {
    let (before, pause) = (options.choose(10, 6), options.choose(10, 5));
    let plan = Plan::calm(options, before + pause + options.choose(10, 6)).with([
        (before, Act::Postgres(Deed::Pause)),
        (before + pause, Act::Postgres(Deed::Resume)),
    ]);
    Course::Steps(Plan {
        expect: Expect {
            sends: Sends::Acknowledged,
            p99_factor_max: Some(P99_FACTOR_MAX),
            live: LiveDuring::GoesOn,
            ..Expect::default()
        },
        ..plan
    })
}

fn db_kill(options: Options) -> Course {
    let plan = Plan::calm(options, secs(24))
        .with([(secs(6), Act::Postgres(Deed::Kill)), (secs(14), Act::Postgres(Deed::Start))]);
    Course::Steps(Plan {
        expect: Expect {
            sends: Sends::Acknowledged,
            live: LiveDuring::GoesOn,
            ..Expect::default()
        },
        ..plan
    })
}
