//! Pure: a plan's own logic: how it is put together, what it leaves broken, and where everything is whole again.
//! Promises that a fault that nothing heals is found before anything runs.
//! Does not say which plans there are; the catalogue does.

use std::time::Duration;

use super::{Act, Condition, Deed, Expect, Link, Links, Options, Plan, Step};

/// The least memory of the log that can be set: reads and replays that go back some seconds need Postgres.
const SHORT_TAIL: (&str, &str) = ("FOREBAY_TAIL_BYTES_MAX", "65536");

impl Plan {
    /// One node on one Postgres and one NATS without a fault.
    pub(crate) fn calm(options: Options, length: Duration) -> Self {
        Self {
            nodes: 1,
            log_servers: 1,
            links: Links::Direct,
            settings: vec![SHORT_TAIL],
            per_second: options.per_second,
            steps: Vec::new(),
            length,
            expect: Expect::default(),
        }
    }

    /// The same with these steps, in order.
    #[must_use]
    pub(crate) fn with(mut self, steps: impl IntoIterator<Item = (Duration, Act)>) -> Self {
        self.steps.extend(steps.into_iter().map(|(at, act)| Step { at, act }));
        self.steps.sort_by_key(|step| step.at);
        self
    }

    /// The same with a setting of the nodes.
    #[must_use]
    pub(crate) fn set(mut self, setting: (&'static str, &'static str)) -> Self {
        self.settings.push(setting);
        self
    }

    /// From the first step to the last, which heals.
    pub(crate) fn fault(&self) -> (Duration, Duration) {
        let first = self.steps.first().map_or(self.length, |step| step.at);
        let last = self.steps.last().map_or(self.length, |step| step.at);
        (first, last)
    }

    /// What is still broken at the end.
    pub(crate) fn unhealed(&self) -> Vec<Act> {
        self.followed().0
    }

    /// The steps that heal the last of what was broken: everything is whole after each of them.
    pub(crate) fn whole_after(&self) -> Vec<usize> {
        self.followed().1
    }

    /// What is broken at the end, and the steps that left nothing broken.
    fn followed(&self) -> (Vec<Act>, Vec<usize>) {
        let (mut broken, mut whole): (Vec<Act>, _) = (Vec::new(), Vec::new());
        for (number, Step { act, .. }) in self.steps.iter().enumerate() {
            match act.heals() {
                Healing::Breaks => broken.push(*act),
                Healing::Heals(heals) => {
                    broken.retain(|earlier| !heals(*act, *earlier));
                    if broken.is_empty() {
                        whole.push(number);
                    }
                }
                Healing::Neither => {}
            }
        }
        (broken, whole)
    }

    /// Whether it breaks more than Postgres: then a node may be away, or may not know where a conversation ends.
    pub(crate) fn touches_nodes_or_log(&self) -> bool {
        self.steps.iter().any(|step| match step.act {
            Act::Log(..)
            | Act::KillLogLeader
            | Act::StartLogLeader
            | Act::Node(..)
            | Act::LimitLog(..)
            | Act::Link(Link::Log | Link::Clients, _) => true,
            Act::Postgres(_)
            | Act::EndSessions
            | Act::TakeConnections
            | Act::FreeConnections
            | Act::Link(Link::Database, _)
            | Act::Clock(..) => false,
        })
    }
}

/// What an act is to those before it.
enum Healing {
    Breaks,
    Heals(fn(Act, Act) -> bool),
    Neither,
}

impl Act {
    fn heals(self) -> Healing {
        match self {
            Self::Postgres(deed) | Self::Log(_, deed) | Self::Node(_, deed) => match deed {
                Deed::Pause | Deed::Kill | Deed::Stop => Healing::Breaks,
                Deed::Resume | Deed::Start => Healing::Heals(Self::is_of_same),
            },
            Self::StartLogLeader => Healing::Heals(|_, earlier| earlier == Self::KillLogLeader),
            Self::FreeConnections => Healing::Heals(|_, earlier| earlier == Self::TakeConnections),
            Self::Link(_, Condition::Healed) => Healing::Heals(Self::is_of_same),
            Self::KillLogLeader | Self::TakeConnections | Self::Link(..) => Healing::Breaks,
            Self::EndSessions | Self::LimitLog(..) | Self::Clock(..) => Healing::Neither,
        }
    }

    fn is_of_same(self, other: Self) -> bool {
        match (self, other) {
            (Self::Postgres(_), Self::Postgres(_)) => true,
            (Self::Log(a, _), Self::Log(b, _)) | (Self::Node(a, _), Self::Node(b, _)) => a == b,
            (Self::Link(a, _), Self::Link(b, _)) => a == b,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Pace;
    use super::*;

    const OPTIONS: Options =
        Options { seed: 7, storm: Duration::from_mins(5), per_second: 100, pace: Pace::Full };

    #[test]
    fn what_is_broken_and_not_healed_is_found() {
        let second = Duration::from_secs;
        let plan = Plan::calm(OPTIONS, second(9));
        let plan = plan.with([
            (second(1), Act::Node(0, Deed::Kill)),
            (second(2), Act::Postgres(Deed::Pause)),
            (second(3), Act::Node(0, Deed::Start)),
        ]);
        assert_eq!(plan.unhealed(), [Act::Postgres(Deed::Pause)]);
    }

    #[test]
    fn everything_is_whole_after_the_step_that_heals_the_last_fault() {
        let second = Duration::from_secs;
        let plan = Plan::calm(OPTIONS, second(9)).with([
            (second(1), Act::Node(0, Deed::Kill)),
            (second(2), Act::Postgres(Deed::Pause)),
            (second(3), Act::Node(0, Deed::Start)),
            (second(4), Act::EndSessions),
            (second(5), Act::Postgres(Deed::Resume)),
            (second(6), Act::Node(0, Deed::Kill)),
            (second(7), Act::Node(0, Deed::Start)),
        ]);
        assert_eq!(plan.whole_after(), [4, 6]);
    }

    #[test]
    fn trouble_of_postgres_touches_neither_nodes_nor_the_log() {
        let plan = |act| Plan::calm(OPTIONS, Duration::from_secs(9)).with([(Duration::ZERO, act)]);
        let cut = |link| Act::Link(link, Condition::Cut);
        for act in [Act::Postgres(Deed::Kill), Act::TakeConnections, cut(Link::Database)] {
            assert!(!plan(act).touches_nodes_or_log(), "{act}");
        }
        for act in
            [Act::Node(0, Deed::Pause), Act::KillLogLeader, cut(Link::Log), cut(Link::Clients)]
        {
            assert!(plan(act).touches_nodes_or_log(), "{act}");
        }
    }
}
