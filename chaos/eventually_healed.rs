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
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut all = true;
        for node in nodes {
            for probe in PROBES {
                all &= is_ready(*node, probe).await;
            }
        }
        let took = clock.now().saturating_duration_since(since);
        if all {
            return Some(took);
        }
        // What comes late is told as late.
        if took > READY_MAX * 3 {
            return None;
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
            let first = (1..=head).find(|seq| !noted.seen.contains(seq));
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
