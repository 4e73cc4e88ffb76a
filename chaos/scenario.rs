//! Pure: what a scenario is: a load, a plan that says which fault comes when, and what must hold.
//! Promises that a plan is a function of scenario, seed and options, and that it heals everything that it breaks.
//! Does not break anything; `faults` does.

pub(crate) mod catalogue;
mod plan;
pub(crate) mod storm;

use std::time::Duration;

use forebay::bench::deliver::Fault;
use serde::Serialize;

/// A scenario by name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    /// What it is called on the command line.
    pub(crate) name: &'static str,
    /// What happens in it, in a line.
    pub(crate) about: &'static str,
    /// Makes its course.
    pub(crate) course: fn(Options) -> Course,
}

/// What a run may change about a scenario.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Decides everything that is left to chance.
    pub(crate) seed: u64,
    /// How long a storm lasts.
    pub(crate) storm: Duration,
    /// Sends a second, all nodes together.
    pub(crate) per_second: u32,
    /// How much time each scenario takes.
    pub(crate) pace: Pace,
}

/// How much time a scenario takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Pace {
    /// Long enough for its figures to mean something.
    Full,
    /// As short as it can be.
    Short,
}

/// What a scenario does.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Course {
    /// Faults by plan, under load.
    Steps(Plan),
    /// A healthy tenant beside a neighbour in trouble, as `forebay bench deliver` measures it.
    Neighbour(Neighbour),
    /// Faults by plan on nodes whose clocks can be moved, where that can be done.
    Clock(Plan),
}

/// A healthy tenant beside a neighbour in trouble.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Neighbour {
    /// What is wrong with the neighbour.
    pub(crate) fault: Fault,
    /// How often both are measured.
    pub(crate) rounds: u16,
    /// How long each time.
    pub(crate) length: Duration,
    /// What the neighbour has waiting.
    pub(crate) backlog: usize,
}

/// Faults by plan, under load.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    /// Servers of Forebay.
    pub(crate) nodes: usize,
    /// Servers of NATS; three of them are a cluster, with three replicas of each stream.
    pub(crate) log_servers: usize,
    /// How they reach each other.
    pub(crate) links: Links,
    /// Settings of the nodes that differ from the defaults.
    pub(crate) settings: Vec<(&'static str, &'static str)>,
    /// Sends a second, all nodes together.
    pub(crate) per_second: u32,
    /// What happens when.
    pub(crate) steps: Vec<Step>,
    /// How long the load lasts.
    pub(crate) length: Duration,
    /// What must hold beside what always must.
    pub(crate) expect: Expect,
}

/// How nodes, services and clients reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    /// Without anything between, so that latencies are their own.
    Direct,
    /// Through a proxy each.
    Proxied,
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// When, from the begin of the load.
    pub(crate) at: Duration,
    /// What.
    pub(crate) act: Act,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// To Postgres.
    Postgres(Deed),
    /// To a server of NATS.
    Log(usize, Deed),
    /// SIGKILL to the server of NATS that leads partition 0.
    KillLogLeader,
    /// The server that was killed last as a leader comes back.
    StartLogLeader,
    /// To a node.
    Node(usize, Deed),
    /// Postgres ends every session.
    EndSessions,
    /// Somebody takes every connection that Postgres has.
    TakeConnections,
    /// And gives them back.
    FreeConnections,
    /// To what lies between two of them.
    Link(Link, Condition),
    /// A node is started anew with another limit of a partition's bytes.
    LimitLog(usize, u64),
    /// The clock of a node goes forward or back by so many seconds.
    Clock(usize, i64),
}

/// What can be done to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// SIGSTOP.
    Pause,
    /// SIGCONT.
    Resume,
    /// SIGKILL.
    Kill,
    /// SIGTERM, and to wait for its end.
    Stop,
    /// It is started again.
    Start,
}

/// What lies between two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Link {
    /// Between the nodes and Postgres.
    Database,
    /// Between the nodes and NATS.
    Log,
    /// Between the clients and the nodes.
    Clients,
}

impl Link {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Database, Self::Log, Self::Clients];
}

/// How a link behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// As if there was nothing.
    Healed,
    /// Every connection is closed, and a new one as soon as it is taken.
    Cut,
    /// Connections stay open, and nothing passes.
    BlackHole,
    /// What the far end answers is held for so long.
    AnswersDelayed(Duration),
    /// So many bytes a second pass, each way, on each connection.
    Throttled(u32),
}

/// What must hold beside what always must.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Expect {
    /// What sends are answered before the first fault.
    pub(crate) before: Sends,
    /// What they are answered from there on.
    pub(crate) sends: Sends,
    /// The 99th percentile of sends while the fault lasts, against the one before.
    pub(crate) p99_factor_max: Option<f64>,
    /// What is acknowledged while the log is away.
    pub(crate) silence: Silence,
    /// Whether live frames and webhooks go on while the fault lasts.
    pub(crate) live: LiveDuring,
    /// Longest time without an acknowledgement, the fault included, and without an event of any conversation.
    pub(crate) resume_max: Option<Duration>,
    /// What a log that may not grow does.
    pub(crate) full_log: FullLog,
}

/// What a log that may not grow does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FullLog {
    /// It is not full.
    Unwatched,
    /// Sends are refused with 503 before the fault's end, or the scenario did not reach what it is for.
    Refuses,
}

/// What sends are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sends {
    /// All of them with 2xx.
    Acknowledged,
    /// Some with 429 or 503.
    Refused,
    /// Some not at all: connections break.
    Broken,
}

/// What is acknowledged while the log is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// It is not looked at.
    Unwatched,
    /// Nothing, between the first fault and the next step.
    Kept,
}

/// Whether live frames and webhooks go on while the fault lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LiveDuring {
    /// It is not looked at.
    Unwatched,
    /// They do.
    GoesOn,
}

impl Default for Expect {
    fn default() -> Self {
        Self {
            before: Sends::Acknowledged,
            sends: Sends::Broken,
            p99_factor_max: None,
            silence: Silence::Unwatched,
            live: LiveDuring::Unwatched,
            resume_max: None,
            full_log: FullLog::Unwatched,
        }
    }
}

impl std::fmt::Display for Act {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Postgres(deed) => write!(f, "Postgres: {deed:?}"),
            Self::Log(server, deed) => write!(f, "NATS {server}: {deed:?}"),
            Self::Node(node, deed) => write!(f, "node {node}: {deed:?}"),
            Self::Link(link, condition) => write!(f, "link {link:?}: {condition:?}"),
            Self::KillLogLeader
            | Self::StartLogLeader
            | Self::EndSessions
            | Self::TakeConnections
            | Self::FreeConnections
            | Self::LimitLog(..)
            | Self::Clock(..) => write!(f, "{self:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: Options =
        Options { seed: 7, storm: Duration::from_mins(5), per_second: 100, pace: Pace::Full };

    fn plan(course: Course) -> Option<Plan> {
        match course {
            Course::Steps(plan) | Course::Clock(plan) => Some(plan),
            Course::Neighbour(_) => None,
        }
    }

    #[test]
    fn every_plan_heals_what_it_breaks_and_ends_after_its_last_step() {
        for pace in [Pace::Full, Pace::Short] {
            for scenario in catalogue::ALL {
                let Some(plan) = plan((scenario.course)(Options { pace, ..OPTIONS })) else {
                    continue;
                };
                assert_eq!(plan.unhealed(), [], "{}", scenario.name);
                assert!(plan.fault().1 < plan.length, "{}", scenario.name);
                assert!(plan.steps.is_sorted_by_key(|step| step.at), "{}", scenario.name);
            }
        }
    }

    #[test]
    fn every_step_concerns_a_process_or_link_that_there_is() {
        for scenario in catalogue::ALL {
            let Some(plan) = plan((scenario.course)(OPTIONS)) else { continue };
            for step in &plan.steps {
                let fits = match step.act {
                    Act::Node(node, _) | Act::LimitLog(node, _) | Act::Clock(node, _) => {
                        node < plan.nodes
                    }
                    Act::Log(server, _) => server < plan.log_servers,
                    Act::Link(..) => plan.links == Links::Proxied,
                    Act::KillLogLeader | Act::StartLogLeader => plan.log_servers == 3,
                    Act::Postgres(_)
                    | Act::EndSessions
                    | Act::TakeConnections
                    | Act::FreeConnections => true,
                };
                assert!(fits, "{}: {}", scenario.name, step.act);
            }
        }
    }

    #[test]
    fn a_plan_is_a_function_of_its_seed() {
        for scenario in catalogue::ALL {
            assert_eq!((scenario.course)(OPTIONS), (scenario.course)(OPTIONS), "{}", scenario.name);
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = catalogue::ALL.iter().map(|scenario| scenario.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), catalogue::ALL.len());
    }
}
