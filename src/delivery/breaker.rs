//! Pure: the entry of a channel that is set apart: the state of its breaker and who drains its backlog.
//! Promises that an open breaker closes through a probe only, and that what an older epoch says moves nothing.
//! Does not store the entry; compare-and-set on its revision makes exactly one node win a transition.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::health::Trip;
use crate::clock::Timestamp;
use crate::event::NodeId;

/// Pause before an open breaker is probed; it doubles with every probe that fails, up to the bound.
const COOLDOWN_FIRST: Duration = Duration::from_secs(30);
const COOLDOWN_MAX: Duration = Duration::from_mins(10);

/// Changes that an entry remembers.
const HISTORY_MAX: usize = 10;

/// The state of a breaker. A channel that is not set apart has none, which is closed too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum State {
    /// Deliveries pass, out of the backlog.
    Closed,
    /// None passes.
    Open {
        /// Until then.
        until: Timestamp,
    },
    /// One is tried.
    HalfOpen,
}

/// Why a channel is set apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// More came than its cap lets through.
    Busy,
    /// It takes most of its tier's time.
    Slow,
    /// Its attempts failed one after the other.
    Failures,
    /// Half of its attempts failed.
    Flapping,
    /// It refuses for good: a credential or an address is wrong.
    Permanent,
    /// Its receiver asked for a pause.
    Throttled,
    /// Its receiver is gone for good (410), and it was paused for that.
    Gone,
    /// It is paused by its owner, or was when the backlog began.
    Paused,
    /// It is in order or has a rate limit, so one node delivers to it.
    Pinned,
    /// A backlog was found that nobody drained.
    Leftover,
}

impl From<Trip> for Why {
    fn from(trip: Trip) -> Self {
        match trip {
            Trip::Failures => Self::Failures,
            Trip::Flapping => Self::Flapping,
            Trip::Permanent => Self::Permanent,
            Trip::Slow => Self::Slow,
        }
    }
}

/// One change of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// When.
    pub at: Timestamp,
    /// What it became.
    #[serde(flatten)]
    pub state: State,
    /// Why.
    pub why: Why,
}

/// How the one delivery ended that tried a half-open breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Under which epoch it went out.
    pub epoch: u64,
    /// Whether it was delivered.
    pub success: bool,
    /// For how long the receiver wants nothing.
    pub pause: Duration,
}

/// A channel that is set apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// The state of the breaker.
    #[serde(flatten)]
    pub state: State,
    /// Counts the transitions; what was begun under an older one moves nothing.
    pub epoch: u64,
    /// The node that drains the backlog.
    pub owner: NodeId,
    /// Why it came to this.
    pub why: Why,
    /// When.
    pub changed_at: Timestamp,
    /// The last pause before a probe, in seconds; 0 while there was none.
    pub cooldown_seconds: u64,
    /// Whether its tenant asked for another probe while this one is under way.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hurried: bool,
    /// The last changes, the newest last.
    pub history: Vec<Change>,
}

impl Entry {
    /// A channel that is set apart, its breaker closed.
    pub fn divert(owner: NodeId, why: Why, now: Timestamp) -> Self {
        let state = State::Closed;
        let history = vec![Change { at: now, state, why }];
        let hurried = false;
        Self { state, epoch: 1, owner, why, changed_at: now, cooldown_seconds: 0, hurried, history }
    }

    /// The breaker opens.
    #[must_use]
    pub fn trip(self, why: Why, now: Timestamp) -> Self {
        let last = Duration::from_secs(self.cooldown_seconds);
        let cooldown = match self.state {
            State::HalfOpen => (last * 2).clamp(COOLDOWN_FIRST, COOLDOWN_MAX),
            State::Closed | State::Open { .. } => COOLDOWN_FIRST,
        };
        let seconds = cooldown.as_secs();
        let open = State::Open { until: now.plus(cooldown) };
        Self { cooldown_seconds: seconds, ..self }.become_state(open, why, now)
    }

    /// The receiver asked for a pause; it is no failed probe, so the cooldown stays.
    #[must_use]
    pub fn throttle(self, pause: Duration, now: Timestamp) -> Self {
        self.become_state(State::Open { until: now.plus(pause) }, Why::Throttled, now)
    }

    /// The pause is over: one delivery may try.
    pub fn probe(self, now: Timestamp) -> Option<Self> {
        let due = matches!(self.state, State::Open { until } if until <= now);
        let why = self.why;
        due.then(|| self.become_state(State::HalfOpen, why, now))
    }

    /// What the one delivery met that tried.
    pub fn probed(self, probe: Probe, now: Timestamp) -> Option<Self> {
        if self.epoch != probe.epoch || self.state != State::HalfOpen {
            return None;
        }
        let why = self.why;
        if probe.success {
            return Some(self.become_state(State::Closed, why, now));
        }
        if self.hurried {
            // It was begun before its tenant knew better, so it says nothing of the receiver as it is now.
            return Some(self.become_state(State::Open { until: now.plus(probe.pause) }, why, now));
        }
        let mut tripped = self.trip(why, now);
        let asked = now.plus(probe.pause);
        if let State::Open { until } = &mut tripped.state {
            *until = asked.max(*until);
        }
        Some(tripped)
    }

    /// Another node drains the backlog from now on; a probe that the former one had begun is forgotten.
    #[must_use]
    pub fn take_over(self, owner: NodeId, now: Timestamp) -> Self {
        let (state, why) = (self.state, self.why);
        let state = if state == State::HalfOpen { State::Open { until: now } } else { state };
        Self { owner, ..self }.become_state(state, why, now)
    }

    /// When a probe is due, if the breaker is open.
    pub fn next_probe_at(&self) -> Option<Timestamp> {
        match self.state {
            State::Open { until } => Some(until),
            State::Closed | State::HalfOpen => None,
        }
    }

    /// Its tenant asked for it: the pause is over, or another probe follows at once if the one that is under way fails.
    pub fn hurry(self, now: Timestamp) -> Option<Self> {
        let why = self.why;
        match self.state {
            State::Open { until } if until > now => {
                Some(self.become_state(State::Open { until: now }, why, now))
            }
            // No transition: what the probe meets still counts.
            State::HalfOpen if !self.hurried => Some(Self { hurried: true, ..self }),
            State::Open { .. } | State::HalfOpen | State::Closed => None,
        }
    }

    /// There is a better reason for what it is.
    #[must_use]
    pub fn blame(self, why: Why, now: Timestamp) -> Self {
        let state = self.state;
        self.become_state(state, why, now)
    }

    fn become_state(mut self, state: State, why: Why, now: Timestamp) -> Self {
        let epoch = self.epoch + 1;
        self.hurried = false;
        if (state, why) == (self.state, self.why) {
            return Self { epoch, ..self };
        }
        // Two steps of one moment are one change.
        if self.history.last().is_some_and(|last| last.at == now) {
            self.history.pop();
        } else if self.history.len() >= HISTORY_MAX {
            self.history.remove(0);
        }
        self.history.push(Change { at: now, state, why });
        Self { state, why, changed_at: now, epoch, ..self }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::default().plus(Duration::from_secs(seconds))
    }

    fn node(number: u8) -> NodeId {
        NodeId::derive([number; 16])
    }

    #[test]
    fn a_breaker_opens_is_probed_and_closes_or_opens_for_twice_as_long() {
        let entry = Entry::divert(node(1), Why::Busy, at(0)).trip(Why::Failures, at(1));
        assert_eq!((entry.state, entry.epoch), (State::Open { until: at(31) }, 2));
        assert_eq!(entry.clone().probe(at(30)), None);
        let half = entry.probe(at(31)).unwrap();
        let probe = |epoch, success, pause| {
            let probe = Probe { epoch, success, pause: Duration::from_secs(pause) };
            half.clone().probed(probe, at(32))
        };
        assert_eq!(probe(half.epoch - 1, true, 0), None, "an older epoch");
        let closed = probe(half.epoch, true, 0).unwrap();
        assert_eq!(closed.state, State::Closed);
        let again = probe(half.epoch, false, 0).unwrap();
        assert_eq!(again.state, State::Open { until: at(92) });
        let asked = probe(half.epoch, false, 600).unwrap();
        assert_eq!(asked.state, State::Open { until: at(632) }, "what it asks for counts too");
        let taken = half.take_over(node(2), at(40));
        assert_eq!((taken.state, taken.owner), (State::Open { until: at(40) }, node(2)));
    }

    #[test]
    fn a_pause_that_was_asked_for_does_not_grow_the_cooldown() {
        let entry =
            Entry::divert(node(1), Why::Busy, at(0)).throttle(Duration::from_secs(7), at(1));
        assert_eq!((entry.state, entry.cooldown_seconds), (State::Open { until: at(8) }, 0));
        assert_eq!(entry.probe(at(8)).map(|entry| entry.state), Some(State::HalfOpen));
    }

    #[test]
    fn who_is_asked_to_hurry_is_probed_at_once_and_only_once() {
        let entry = Entry::divert(node(1), Why::Busy, at(0)).trip(Why::Failures, at(1));
        let hurried = entry.hurry(at(5)).unwrap();
        assert_eq!((hurried.next_probe_at(), hurried.why), (Some(at(5)), Why::Failures));
        assert_eq!(hurried.clone().hurry(at(6)), None);
        let half = hurried.probe(at(6)).unwrap();
        assert_eq!(half.state, State::HalfOpen);
        let again = half.clone().hurry(at(7)).unwrap();
        assert_eq!((again.state, again.epoch), (State::HalfOpen, half.epoch));
        assert_eq!(again.clone().hurry(at(7)), None);
        let ended = |entry: &Entry, success| {
            let probe = Probe { epoch: entry.epoch, success, pause: Duration::ZERO };
            entry.clone().probed(probe, at(8)).unwrap()
        };
        assert_eq!(ended(&half, false).state, State::Open { until: at(68) });
        assert_eq!(ended(&again, false).state, State::Open { until: at(8) }, "another one follows");
        assert_eq!(ended(&again, true).state, State::Closed);
        let next = ended(&again, false).probe(at(8)).unwrap();
        assert_eq!(ended(&next, false).state, State::Open { until: at(68) }, "once");
        assert_eq!(Entry::divert(node(1), Why::Busy, at(0)).hurry(at(1)), None);
    }

    #[test]
    fn what_happens_in_one_moment_is_one_change() {
        let entry = Entry::divert(node(1), Why::Busy, at(0)).trip(Why::Failures, at(0));
        let told: Vec<_> = entry.history.iter().map(|change| change.why).collect();
        assert_eq!(told, [Why::Failures]);
    }

    #[test]
    fn an_entry_is_kept_as_json_with_the_fields_words() {
        let entry = Entry::divert(node(1), Why::Busy, at(0)).trip(Why::Failures, at(1));
        let json = serde_json::to_value(&entry).unwrap();
        assert_eq!((&json["state"], &json["why"]), (&"open".into(), &"failures".into()));
        assert_eq!(serde_json::from_value::<Entry>(json).unwrap(), entry);
    }

    proptest! {
        #[test]
        fn open_closes_through_half_open_only_and_pauses_keep_their_bounds(
            steps in prop::collection::vec((0_u8..7, 0_u64..900, any::<bool>()), 1..60),
        ) {
            let mut entry = Entry::divert(node(1), Why::Busy, at(0));
            let mut now = at(0);
            for (step, wait, success) in steps {
                now = now.plus(Duration::from_secs(wait));
                let before = entry.clone();
                let next = match step {
                    0 => Some(entry.clone().trip(Why::Failures, now)),
                    1 => Some(entry.clone().throttle(Duration::from_secs(wait + 1), now)),
                    2 => entry.clone().probe(now),
                    3 => {
                        let pause = Duration::from_secs(wait);
                        entry.clone().probed(Probe { epoch: entry.epoch, success, pause }, now)
                    }
                    4 => entry.clone().hurry(now),
                    5 => Some(entry.clone().blame(Why::Gone, now)),
                    _ => Some(entry.clone().take_over(node(2), now)),
                };
                let Some(next) = next else { continue };
                let was_open = matches!(before.state, State::Open { .. });
                prop_assert!(!(was_open && next.state == State::Closed));
                let moves = !next.hurried || before.hurried;
                prop_assert_eq!(next.epoch, before.epoch + u64::from(moves));
                prop_assert!(next.cooldown_seconds == 0 || (30..=600).contains(&next.cooldown_seconds));
                prop_assert!(next.history.len() <= HISTORY_MAX);
                entry = next;
            }
        }
    }
}
