//! Pure: how many messages a tenant may send on this node: a rate with a burst, by GCRA (ITU-T I.371).
//! Promises that a tenant never gets more than burst + rate x time, and that memory follows the tenants at work.
//! Does not know of other nodes: the quota of an installation is that of one node times the nodes.
//!
//! The `governor` crate counts the same way, but asks a clock of its own at every check instead of taking `now`, and tells
//! neither what is left after a refusal nor how long until all is back, which the `RateLimit` headers need.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use crate::event::TenantId;

/// Below this many tenants nothing is swept.
const SWEEP_FLOOR: usize = 1_024;

/// The send quota of every tenant.
#[derive(Debug)]
pub struct Quota {
    policy: Option<Policy>,
    /// Per tenant, when all of its burst is back (the theoretical arrival time of GCRA). No entry: it is.
    full_at: HashMap<TenantId, Instant>,
    /// At this many entries those whose burst is back are forgotten.
    sweep_at: usize,
}

/// A rate with a burst. Shown as the value of the header `RateLimit-Policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    burst: u32,
    /// How long it takes until one more message may be sent. Invariant: not zero.
    interval: Duration,
}

/// Whether a send may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Decision {
    /// There is no quota.
    Unlimited,
    /// It may, and was counted.
    Allowed(Left),
    /// Not yet; nothing was counted.
    Refused {
        /// What there is, too little for this send.
        left: Left,
        /// When the same send would be allowed. Not zero.
        retry_after: Duration,
    },
    /// Never: it has more messages than the burst. Nothing was counted.
    BeyondBurst {
        /// The most messages that one send may have.
        burst: u32,
    },
}

/// What a tenant has left. Shown as the value of the header `RateLimit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// How many messages it may send at once.
    pub remaining: u32,
    /// How long until it has all of its burst.
    pub full_in: Duration,
}

impl Policy {
    /// From messages a second and the most at once; `None`, no quota, when the rate is 0. A burst of 0 counts as 1.
    pub fn new(per_second: u32, burst: u32) -> Option<Self> {
        let nanos = 1_000_000_000_u32.checked_div(per_second)?;
        Some(Self { burst: burst.max(1), interval: Duration::from_nanos(u64::from(nanos.max(1))) })
    }

    /// How long an empty burst takes to come back.
    fn window(self) -> Duration {
        self.interval * self.burst
    }

    /// What there is when all is back at `full_at`.
    fn left(self, full_at: Instant, now: Instant) -> Left {
        let full_in = full_at.saturating_duration_since(now);
        let free = self.window().saturating_sub(full_in);
        let remaining = free.as_nanos() / self.interval.as_nanos();
        Left { remaining: u32::try_from(remaining).unwrap_or(self.burst), full_in }
    }
}

impl Quota {
    /// The same quota for every tenant, or none.
    pub fn new(policy: Option<Policy>) -> Self {
        Self { policy, full_at: HashMap::new(), sweep_at: SWEEP_FLOOR }
    }

    /// What is in force, for the header.
    pub fn policy(&self) -> Option<Policy> {
        self.policy
    }

    /// Counts a send of so many messages, if they all may go.
    pub fn on_send(&mut self, tenant: TenantId, messages: u32, now: Instant) -> Decision {
        self.on_send_under(self.policy, tenant, messages, now)
    }

    /// The same for a tenant with a policy of its own.
    pub fn on_send_under(
        &mut self,
        policy: Option<Policy>,
        tenant: TenantId,
        messages: u32,
        now: Instant,
    ) -> Decision {
        let Some(policy) = policy else {
            return Decision::Unlimited;
        };
        if messages > policy.burst {
            return Decision::BeyondBurst { burst: policy.burst };
        }
        let full_at = self.full_at.get(&tenant).copied().unwrap_or(now).max(now);
        let next = full_at + policy.interval * messages;
        let wait = next.duration_since(now).saturating_sub(policy.window());
        if !wait.is_zero() {
            return Decision::Refused { left: policy.left(full_at, now), retry_after: wait };
        }
        self.full_at.insert(tenant, next);
        self.sweep(now);
        Decision::Allowed(policy.left(next, now))
    }

    /// How many tenants are in memory: at most [`SWEEP_FLOOR`] or twice those that were at work at the last sweep.
    pub fn tenants(&self) -> usize {
        self.full_at.len()
    }

    /// Forgets who has all of its burst, whenever the entries have doubled: constant time a send on the average.
    fn sweep(&mut self, now: Instant) {
        if self.full_at.len() >= self.sweep_at {
            self.full_at.retain(|_, full_at| *full_at > now);
            self.sweep_at = (self.full_at.len() * 2).max(SWEEP_FLOOR);
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"sends\";q={};w={}", self.burst, whole_seconds(self.window()))
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"sends\";r={};t={}", self.remaining, whole_seconds(self.full_in))
    }
}

/// Rounded up: who waits for that long has waited long enough.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests;
