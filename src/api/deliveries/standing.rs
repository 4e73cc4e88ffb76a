//! Pure: where a channel's deliveries are and why, as its tenant sees it.
//! Promises one word for the state that says what happens to the next delivery.
//! Does not count; it is told.

use serde::Serialize;
use utoipa::ToSchema;

use crate::api::frame::request::{rfc3339, rfc3339_option};
use crate::clock::Timestamp;
use crate::delivery::Sight;
use crate::delivery::breaker::{Entry, State, Why};
use crate::directory::{Channel, ChannelStatus};

/// Where a channel's deliveries are.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ChannelDelivery)]
pub(in crate::api) struct Standing {
    /// `closed`: deliveries go out as they come. `demoted`: they go out of the channel's backlog, after others' fresh
    /// ones. `open`: they wait for the next probe. `half_open`: one is tried. `paused`: they wait for a resume.
    state: &'static str,
    /// Why, when it is not `closed`: `busy`, `slow`, `failures`, `flapping`, `permanent`, `throttled`, `gone`, `pinned` …
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// Fresh deliveries that are queued, about: at most so many.
    #[serde(skip_serializing_if = "Option::is_none")]
    backlog: Option<u64>,
    /// Deliveries in the channel's backlog that go out.
    #[serde(skip_serializing_if = "Option::is_none")]
    demoted: Option<u64>,
    /// Deliveries in the channel's backlog that wait for a probe or a resume.
    #[serde(skip_serializing_if = "Option::is_none")]
    parked: Option<u64>,
    /// Deliveries that wait for their next attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    retrying: Option<u64>,
    /// Attempts under way on the node that answers.
    in_flight: usize,
    /// Attempts that failed one after the other, as far as the node that answers has seen.
    consecutive_failures: u32,
    /// When the state last changed.
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    changed_at: Option<Timestamp>,
    /// When the breaker is probed next.
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    next_probe_at: Option<Timestamp>,
    /// The last changes, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    history: Vec<Turn>,
}

/// One change of a breaker.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = BreakerChange)]
pub(in crate::api) struct Turn {
    #[serde(serialize_with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// `closed`, `open` or `half_open`.
    state: &'static str,
    /// Why.
    reason: &'static str,
}

impl Standing {
    /// From what a node sees and what is counted: fresh, in the backlog, waiting for their next attempt.
    pub(in crate::api) fn of(
        channel: &Channel,
        sight: Option<&Sight>,
        sizes: Option<(u64, u64, u64)>,
    ) -> Self {
        let entry = sight.and_then(|sight| sight.entry.clone());
        let state = state(channel, entry.as_deref());
        let waits = matches!(state, "open" | "half_open" | "paused");
        let (backlog, parked, retrying) = sizes
            .map_or((None, None, None), |(fresh, parked, retrying)| {
                (Some(fresh), Some(parked), Some(retrying))
            });
        let part = |is: bool| parked.map(|count| if is { count } else { 0 });
        Self {
            state,
            reason: entry.as_ref().map(|entry| why(entry.why)),
            backlog,
            demoted: part(!waits),
            parked: part(waits),
            retrying,
            in_flight: sight.map_or(0, |sight| sight.in_flight),
            consecutive_failures: sight.map_or(0, |sight| sight.consecutive_failures),
            changed_at: entry.as_ref().map(|entry| entry.changed_at),
            next_probe_at: entry.as_ref().and_then(|entry| entry.next_probe_at()),
            history: entry.map(|entry| turns(&entry)).unwrap_or_default(),
        }
    }
}

fn state(channel: &Channel, entry: Option<&Entry>) -> &'static str {
    match entry.map(|entry| entry.state) {
        _ if channel.status == ChannelStatus::Paused => "paused",
        None => "closed",
        // A channel in order or with a rate limit always goes through its backlog; that is no demotion.
        Some(State::Closed) if channel.is_pinned() => "closed",
        Some(State::Closed) => "demoted",
        Some(State::Open { .. }) => "open",
        Some(State::HalfOpen) => "half_open",
    }
}

fn turns(entry: &Entry) -> Vec<Turn> {
    let turn = |change: &crate::delivery::breaker::Change| Turn {
        at: change.at,
        state: match change.state {
            State::Closed => "closed",
            State::Open { .. } => "open",
            State::HalfOpen => "half_open",
        },
        reason: why(change.why),
    };
    entry.history.iter().map(turn).collect()
}

const fn why(why: Why) -> &'static str {
    match why {
        Why::Busy => "busy",
        Why::Slow => "slow",
        Why::Failures => "failures",
        Why::Flapping => "flapping",
        Why::Permanent => "permanent",
        Why::Throttled => "throttled",
        Why::Gone => "gone",
        Why::Paused => "paused",
        Why::Pinned => "pinned",
        Why::Leftover => "leftover",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::directory::{ChannelSecret, NewChannel};
    use crate::event::{ChannelId, NodeId, TenantId};

    fn channel(fields: &serde_json::Value, status: ChannelStatus) -> Channel {
        let mut body = json!({"name": "n", "url": "https://example.com/"});
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        let settings = serde_json::from_value::<NewChannel>(body).unwrap().checked().unwrap();
        let (tenant, id) = (TenantId::derive([1; 16]), ChannelId::derive([1; 16]));
        let secret = ChannelSecret::from_random([1; 32]);
        let mut channel = Channel::new(tenant, id, settings, secret, Timestamp::default());
        channel.status = status;
        channel
    }

    #[test]
    fn the_state_says_what_happens_to_the_next_delivery() {
        let busy = Entry::divert(NodeId::derive([1; 16]), Why::Busy, Timestamp::default());
        let open = busy.clone().trip(Why::Failures, Timestamp::default());
        let later = Timestamp::default().plus(Duration::from_mins(1));
        let half = open.clone().probe(later).unwrap();
        let (plain, ordered) = (json!({}), json!({"ordered": true}));
        for (fields, status, entry, expected) in [
            (&plain, ChannelStatus::Active, None, "closed"),
            (&plain, ChannelStatus::Active, Some(&busy), "demoted"),
            (&ordered, ChannelStatus::Active, Some(&busy), "closed"),
            (&plain, ChannelStatus::Active, Some(&open), "open"),
            (&plain, ChannelStatus::Active, Some(&half), "half_open"),
            (&plain, ChannelStatus::Paused, Some(&open), "paused"),
            (&plain, ChannelStatus::Paused, None, "paused"),
        ] {
            assert_eq!(state(&channel(fields, status), entry), expected);
        }
    }

    #[test]
    fn a_backlog_counts_as_demoted_or_parked_by_what_happens_to_it() {
        let channel = channel(&json!({}), ChannelStatus::Paused);
        let parked = Standing::of(&channel, None, Some((1, 7, 2)));
        assert_eq!((parked.demoted, parked.parked, parked.retrying), (Some(0), Some(7), Some(2)));
        let unknown = Standing::of(&channel, None, None);
        assert_eq!((unknown.backlog, unknown.parked), (None, None));
    }
}
