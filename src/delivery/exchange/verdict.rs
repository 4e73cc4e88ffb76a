//! Pure: what follows an attempt: for the delivery, for the health of its channel, and for the channel itself.
//! Promises that only a 2xx is a success and that every failure has a reason.
//! Does not record anything.

use std::time::Duration;

use super::retry::Policy;
use crate::clock::Timestamp;
use crate::event::{Fate, Reason};

/// How long a channel waits after a 429 that does not say.
const RATE_LIMITED_PAUSE: Duration = Duration::from_secs(5);

/// What an attempt met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// An answer.
    Answer {
        /// Its status.
        status: u16,
        /// What its `Retry-After` asks for.
        retry_after: Option<Duration>,
    },
    /// None.
    Nothing(Reason),
}

/// What an attempt says of its channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// It works.
    Success,
    /// It may work later.
    Transient,
    /// It will not work until somebody changes something.
    Permanent,
}

/// What the receiver wants of the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// No more deliveries.
    Pause,
    /// None for so long.
    Throttle(Duration),
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Verdict {
    /// For the delivery.
    pub fate: Fate,
    /// Why it failed, if it did.
    pub reason: Option<Reason>,
    /// For the health of its channel.
    pub sign: Sign,
    /// For the channel.
    pub wish: Option<Wish>,
}

/// Judges one attempt; `attempt` is its number, 1 for the first.
pub fn judge(met: Met, attempt: u32, policy: &Policy, now: Timestamp, jitter: f64) -> Verdict {
    let (sign, reason) = sign(met);
    let wish = wish(met);
    let asked = match wish {
        Some(Wish::Throttle(pause)) => pause,
        Some(Wish::Pause) | None => Duration::ZERO,
    };
    let fate = match (sign, policy.pause_after(attempt, jitter)) {
        (Sign::Success, _) => Fate::Delivered,
        (_, Some(pause)) => Fate::Retry(now.plus(pause.max(asked))),
        (_, None) => Fate::Failed,
    };
    Verdict { fate, reason, sign, wish }
}

fn sign(met: Met) -> (Sign, Option<Reason>) {
    match met {
        Met::Answer { status: 200..=299, .. } => (Sign::Success, None),
        Met::Answer { status: 300..=399, .. } => (Sign::Permanent, Some(Reason::Redirect)),
        Met::Answer { status: 410, .. } => (Sign::Permanent, Some(Reason::Gone)),
        Met::Answer { status: 429, .. } => (Sign::Transient, Some(Reason::RateLimited)),
        Met::Answer { status: 408 | 425, .. } => (Sign::Transient, Some(Reason::Status)),
        Met::Answer { status: 400..=499, .. } => (Sign::Permanent, Some(Reason::Status)),
        Met::Answer { .. } => (Sign::Transient, Some(Reason::Status)),
        // An address that is not allowed is a matter of configuration, not of the receiver's health.
        Met::Nothing(Reason::Blocked) => (Sign::Permanent, Some(Reason::Blocked)),
        Met::Nothing(reason) => (Sign::Transient, Some(reason)),
    }
}

fn wish(met: Met) -> Option<Wish> {
    match met {
        Met::Answer { status: 410, .. } => Some(Wish::Pause),
        Met::Answer { status: 429, retry_after } => {
            Some(Wish::Throttle(retry_after.unwrap_or(RATE_LIMITED_PAUSE)))
        }
        Met::Answer { status: 502..=504, retry_after: Some(asked) } => Some(Wish::Throttle(asked)),
        Met::Answer { .. } | Met::Nothing(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, seconds: Option<u64>) -> Met {
        Met::Answer { status, retry_after: seconds.map(Duration::from_secs) }
    }

    #[test]
    fn every_answer_has_its_sign_reason_and_wish() {
        let throttle = |seconds| Some(Wish::Throttle(Duration::from_secs(seconds)));
        for (met, sign, reason, wish) in [
            (answer(200, None), Sign::Success, None, None),
            (answer(204, Some(9)), Sign::Success, None, None),
            (answer(101, None), Sign::Transient, Some(Reason::Status), None),
            (answer(302, None), Sign::Permanent, Some(Reason::Redirect), None),
            (answer(400, None), Sign::Permanent, Some(Reason::Status), None),
            (answer(401, Some(9)), Sign::Permanent, Some(Reason::Status), None),
            (answer(408, None), Sign::Transient, Some(Reason::Status), None),
            (answer(410, None), Sign::Permanent, Some(Reason::Gone), Some(Wish::Pause)),
            (answer(425, None), Sign::Transient, Some(Reason::Status), None),
            (answer(429, None), Sign::Transient, Some(Reason::RateLimited), throttle(5)),
            (answer(429, Some(9)), Sign::Transient, Some(Reason::RateLimited), throttle(9)),
            (answer(500, Some(9)), Sign::Transient, Some(Reason::Status), None),
            (answer(503, Some(9)), Sign::Transient, Some(Reason::Status), throttle(9)),
            (answer(503, None), Sign::Transient, Some(Reason::Status), None),
            (Met::Nothing(Reason::Timeout), Sign::Transient, Some(Reason::Timeout), None),
            (Met::Nothing(Reason::Blocked), Sign::Permanent, Some(Reason::Blocked), None),
        ] {
            let verdict = judge(met, 1, &Policy::default(), Timestamp::default(), 0.5);
            assert_eq!(
                (verdict.sign, verdict.reason, verdict.wish),
                (sign, reason, wish),
                "{met:?}"
            );
        }
    }

    #[test]
    fn a_failure_is_tried_again_until_the_policy_ends_and_never_before_it_is_asked_for() {
        let now = Timestamp::default();
        let at = |seconds| Fate::Retry(now.plus(Duration::from_secs(seconds)));
        let policy = Policy { attempts_max: 2, ..Policy::default() };
        let fate = |met, attempt| judge(met, attempt, &policy, now, 0.5).fate;
        assert_eq!(fate(answer(500, None), 1), at(5));
        assert_eq!(fate(answer(503, Some(60)), 1), at(60));
        assert_eq!(fate(answer(500, None), 2), Fate::Failed);
        assert_eq!(fate(answer(200, None), 2), Fate::Delivered);
        assert_eq!(fate(answer(410, None), 1), at(5), "the channel is paused, so it waits");
    }
}
