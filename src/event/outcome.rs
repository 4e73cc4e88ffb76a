//! Pure: what became of one attempt of a delivery, as the log keeps it.
//! Promises that a reason is one of a fixed set, written the same in the log, in SQL, on sockets and in metrics.
//! Does not decide what follows; the delivery room's verdict does.

use serde::{Deserialize, Serialize};

use super::id::{ChannelId, ConversationId, DeliveryId, MessageId, TenantId};
use super::limits::OUTCOME_OVERHEAD_BYTES;
use crate::clock::Timestamp;

/// What became of one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Whose channel it is.
    #[serde(rename = "t")]
    pub tenant: TenantId,
    /// The conversation of the event; gives the partition that keeps the outcome.
    #[serde(rename = "c")]
    pub conversation: ConversationId,
    /// The delivery.
    #[serde(rename = "d")]
    pub delivery: DeliveryId,
    /// The channel.
    #[serde(rename = "h")]
    pub channel: ChannelId,
    /// The event that is delivered.
    #[serde(rename = "m")]
    pub message: MessageId,
    /// Its place in the conversation; 0 for a test delivery, which has no conversation.
    #[serde(rename = "q")]
    pub seq: u64,
    /// 1 for the first attempt.
    #[serde(rename = "n")]
    pub attempt: u32,
    /// When the attempt began.
    #[serde(rename = "a")]
    pub began_at: Timestamp,
    /// How long it took, in milliseconds.
    #[serde(rename = "l")]
    pub took_ms: u32,
    /// The status of the answer, if one came.
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why it failed; `None` when it did not.
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// What follows.
    #[serde(rename = "f")]
    pub fate: Fate,
    /// The beginning of the answer's body, made storable; kept of failures.
    #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Box<str>>,
}

/// What follows an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fate {
    /// The receiver has it.
    #[serde(rename = "d")]
    Delivered,
    /// It is tried again at this time, or later if the channel waits.
    #[serde(rename = "r")]
    Retry(Timestamp),
    /// No attempt is left; it can be delivered again by hand.
    #[serde(rename = "x")]
    Failed,
}

impl Outcome {
    /// An upper bound of what it takes in a record, in bytes.
    pub fn size(&self) -> usize {
        self.answer.as_ref().map_or(0, |answer| answer.len()) + OUTCOME_OVERHEAD_BYTES
    }
}

impl Fate {
    /// The state of a delivery after it, in JSON and SQL.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Retry(_) => "retrying",
            Self::Failed => "failed",
        }
    }
}

/// Why an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The name has no address, or nobody answered for it.
    Dns,
    /// The connection was refused, or there is no way there.
    Refused,
    /// No TLS session: a certificate that is not trusted, for another name, or no common version.
    Tls,
    /// No connection within the time for one.
    TimeoutConnect,
    /// No whole answer within the time for the exchange.
    Timeout,
    /// The connection broke, or what came was no HTTP.
    Broken,
    /// The head of the answer is larger than is read.
    TooLarge,
    /// A 3xx answer; no redirect is followed.
    Redirect,
    /// The address is not one that deliveries may go to.
    Blocked,
    /// 410: the receiver wants no more. The channel is paused.
    Gone,
    /// 429: the receiver wants fewer.
    RateLimited,
    /// Another status that is not 2xx.
    Status,
}

impl Reason {
    /// Every reason, in the order of an exchange.
    pub const ALL: [Self; 12] = [
        Self::Dns,
        Self::Refused,
        Self::Tls,
        Self::TimeoutConnect,
        Self::Timeout,
        Self::Broken,
        Self::TooLarge,
        Self::Redirect,
        Self::Blocked,
        Self::Gone,
        Self::RateLimited,
        Self::Status,
    ];

    /// The word in JSON, SQL and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::Refused => "refused",
            Self::Tls => "tls",
            Self::TimeoutConnect => "timeout_connect",
            Self::Timeout => "timeout",
            Self::Broken => "broken",
            Self::TooLarge => "too_large",
            Self::Redirect => "redirect",
            Self::Blocked => "blocked",
            Self::Gone => "gone",
            Self::RateLimited => "rate_limited",
            Self::Status => "status",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_written_alike_everywhere() {
        for reason in Reason::ALL {
            let json = serde_json::to_value(reason).unwrap();
            assert_eq!(json, reason.as_str());
        }
    }
}
