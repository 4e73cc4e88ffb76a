//! Pure: a storm: faults at random, as many as fit into its time.
//! Promises the same storm for the same seed, one fault at a time for each target, and calm at its end.
//! Does not break anything.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::{Act, Condition, Deed, Link};

/// From the begin of the load to the first fault.
pub(crate) const CALM_BEFORE: Duration = Duration::from_secs(4);

/// From the last heal to the end of the load.
pub(crate) const CALM_AFTER: Duration = Duration::from_secs(8);

/// Shortest and longest time between two faults: close enough that some overlap.
const BETWEEN_MS: std::ops::Range<u64> = 1_000..5_000;

/// Shortest and longest fault: shorter than it takes for clients to give up for long.
const LASTS_MS: std::ops::Range<u64> = 300..4_000;

/// How long a node takes to start.
const STARTS: Duration = Duration::from_secs(4);

/// Shortest and longest delay of answers, in milliseconds. The longest is longer than a reader's deadline, which is the point.
const DELAY_MS: std::ops::Range<u64> = 50..2_000;

/// Slowest and fastest throttled link, in bytes a second.
const BYTES: std::ops::Range<u32> = 20_000..500_000;

/// What one fault is done to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Postgres,
    Log,
    Node(usize),
    Link(Link),
    Sessions,
}

/// A storm of this length over so many nodes.
pub(crate) fn storm(seed: u64, length: Duration, nodes: usize) -> Vec<(Duration, Act)> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut targets = vec![Target::Postgres, Target::Log, Target::Sessions];
    targets.extend((0..nodes).map(Target::Node));
    targets.extend(Link::ALL.map(Target::Link));
    let mut busy: BTreeMap<Target, Duration> = BTreeMap::new();
    let (mut at, mut steps) = (CALM_BEFORE, Vec::new());
    loop {
        let lasts = Duration::from_millis(rng.random_range(LASTS_MS));
        let target = targets[rng.random_range(0..targets.len())];
        let (breaks, heals) = pair(target, &mut rng);
        if at + lasts + CALM_AFTER > length {
            return steps;
        }
        let (touched, until) = touches(target, breaks, at + lasts);
        if touched.iter().all(|target| busy.get(target).is_none_or(|until| *until < at)) {
            busy.extend(touched.into_iter().map(|target| (target, until)));
            steps.push((at, breaks));
            steps.extend(heals.map(|heals| (at + lasts, heals)));
        }
        at += Duration::from_millis(rng.random_range(BETWEEN_MS));
    }
}

/// What a fault keeps busy, and until when. Sessions are ended by a client of Postgres, which must be there; and a node
/// does not start without the log.
fn touches(target: Target, breaks: Act, healed: Duration) -> (Vec<Target>, Duration) {
    match (target, breaks) {
        (Target::Sessions, _) => (vec![Target::Sessions, Target::Postgres], healed),
        (Target::Node(_), Act::Node(_, Deed::Kill)) => {
            (vec![target, Target::Log, Target::Link(Link::Log)], healed + STARTS)
        }
        _ => (vec![target], healed),
    }
}

/// A fault and what heals it.
fn pair(target: Target, rng: &mut SmallRng) -> (Act, Option<Act>) {
    let (breaks, heals) =
        if rng.random_bool(0.5) { (Deed::Kill, Deed::Start) } else { (Deed::Pause, Deed::Resume) };
    match target {
        Target::Postgres => (Act::Postgres(breaks), Some(Act::Postgres(heals))),
        Target::Log => (Act::Log(0, breaks), Some(Act::Log(0, heals))),
        Target::Node(node) => (Act::Node(node, breaks), Some(Act::Node(node, heals))),
        Target::Sessions => (Act::EndSessions, None),
        Target::Link(link) => {
            let condition = match rng.random_range(0..4_u8) {
                0 => Condition::Cut,
                1 => Condition::BlackHole,
                2 => Condition::Throttled(rng.random_range(BYTES)),
                _ => Condition::AnswersDelayed(Duration::from_millis(rng.random_range(DELAY_MS))),
            };
            (Act::Link(link, condition), Some(Act::Link(link, Condition::Healed)))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Options, Pace, Plan};
    use super::*;

    proptest! {
        #[test]
        fn a_storm_repeats_itself_heals_and_leaves_time(seed in any::<u64>(), seconds in 20_u64..400) {
            let length = Duration::from_secs(seconds);
            let steps = storm(seed, length, 2);
            prop_assert_eq!(&steps, &storm(seed, length, 2));
            let options = Options { seed, storm: length, per_second: 1, pace: Pace::Full };
            let plan = Plan::calm(options, length).with(steps);
            prop_assert_eq!(plan.unhealed(), []);
            prop_assert!(plan.fault().1 + CALM_AFTER <= length || plan.steps.is_empty());
        }
    }

    #[test]
    fn two_seeds_are_two_storms() {
        let of = |seed| storm(seed, Duration::from_mins(5), 2);
        assert_ne!(of(1), of(2));
        assert!(of(1).len() > 60);
    }
}
