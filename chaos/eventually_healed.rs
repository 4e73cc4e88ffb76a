//! What must come about once everything is healed: readiness, and whoever listens has everything.
//! Promises to wait no longer than it says, and to say how long it took.
//! Does not look at what is stored.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use forebay::clock::Clock;
use forebay::event::ConversationId;
use tokio::time::{MissedTickBehavior, interval};

use crate::driver_listeners::{Listening, lock};
use crate::stage::node::is_ready;

/// From the last heal until every node is ready.
pub(crate) const READY_MAX: Duration = Duration::from_secs(10);

/// From the end of the load until every listener has everything: clients that were refused come back within 30 s.
pub(crate) const COMPLETE_MAX: Duration = Duration::from_secs(90);

/// For all traffic, and for what needs Postgres.
const PROBES: [&str; 2] = ["readyz", "readyz/reads"];

/// How often it is asked.
const LOOK: Duration = Duration::from_millis(50);

/// Waits until every node is ready; `None` when they are not long after they should be.
pub(crate) async fn ready(nodes: &[SocketAddr], since: Instant, clock: &Clock) -> Option<Duration> {
    // What comes late is told as late.
    let readied = readied(nodes, (since, since + READY_MAX * 3), clock).await;
    readied.is_ready.then_some(readied.after)
}

/// How long it was looked for readiness, and whether it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Readied {
    /// From the heal.
    pub(crate) after: Duration,
    /// Whether every node was ready then.
    pub(crate) is_ready: bool,
}

impl Readied {
    /// Whether it is proven that it took too long. Where the next fault came before, nothing is.
    pub(crate) fn is_late(self) -> bool {
        self.after > READY_MAX
    }
}

/// Looks from one moment until every node is ready, but not beyond the other.
pub(crate) async fn readied(
    nodes: &[SocketAddr],
    (since, until): (Instant, Instant),
    clock: &Clock,
) -> Readied {
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut all = true;
        for node in nodes {
            for probe in PROBES {
                all = all && is_ready(*node, probe).await;
            }
        }
        let now = clock.now();
        if all || now > until {
            // A probe that was asked in time may have its answer after the next fault.
            let after = now.min(until).saturating_duration_since(since);
            return Readied { after, is_ready: all };
        }
        look.tick().await;
    }
}

/// Waits until every listener has everything up to its conversation's head; tells what is missing.
pub(crate) async fn complete(
    listening: &Listening,
    heads: &BTreeMap<ConversationId, u64>,
    clock: &Clock,
) -> Vec<String> {
    let until = clock.now() + COMPLETE_MAX;
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut missing = Vec::new();
        for (conversation, notes) in &listening.notes {
            let head = heads.get(conversation).copied().unwrap_or(0);
            let noted = lock(notes);
            let first = (1..=head).find(|seq| !noted.seen.contains_key(seq));
            if let Some(first) = first {
                let (by, count) = (noted.by, noted.seen.len());
                missing.push(format!("{conversation} by {by}: {count} of {head}, without {first}"));
            }
        }
        if missing.is_empty() || clock.now() > until {
            return missing;
        }
        look.tick().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_is_late_beyond_its_bound_and_not_where_the_next_fault_came_first() {
        let late = |after, is_ready| Readied { after, is_ready }.is_late();
        let past = READY_MAX + Duration::from_millis(1);
        for (after, is_ready, wanted) in [
            (READY_MAX, true, false),
            (past, true, true),
            (past, false, true),
            (Duration::from_secs(3), false, false),
        ] {
            assert_eq!(late(after, is_ready), wanted, "{after:?} {is_ready}");
        }
    }
}
