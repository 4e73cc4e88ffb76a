//! What the calls about deliveries take and answer.
//! Promises names as `API.md` has them.
//! Does not fill them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::frame::request::{rfc3339, rfc3339_option};
use crate::clock::Timestamp;
use crate::event::{ChannelId, ConversationId, DeliveryId, MessageId, RequestId};

/// A delivery that was attempted.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Delivery)]
pub(super) struct DeliveryBody {
    /// Also the `webhook-id` of every attempt.
    #[schema(value_type = String, example = "dlv_0190000000008000800000000000000a")]
    pub(super) id: DeliveryId,
    #[schema(value_type = String)]
    pub(super) channel_id: ChannelId,
    /// Left out for a test.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) conversation_id: Option<ConversationId>,
    #[schema(value_type = String)]
    pub(super) message_id: MessageId,
    pub(super) seq: u64,
    /// `delivered`, `retrying` or `failed`.
    pub(super) state: String,
    /// Why it is where it is: what its last attempt met, or what its channel waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    /// The status of the last answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<u16>,
    pub(super) attempts: u32,
    #[serde(serialize_with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub(super) first_attempt_at: Timestamp,
    #[serde(serialize_with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub(super) last_attempt_at: Timestamp,
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(super) next_attempt_at: Option<Timestamp>,
    /// The state of its channel, when that holds it back: `open`, `half_open` or `paused`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) channel_state: Option<&'static str>,
    /// Each attempt, in the answer about one delivery.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) history: Option<Vec<AttemptBody>>,
}

/// One attempt.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Attempt)]
pub(super) struct AttemptBody {
    pub(super) attempt: u32,
    #[serde(serialize_with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub(super) began_at: Timestamp,
    pub(super) took_ms: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<u16>,
    /// `dns`, `refused`, `tls`, `timeout_connect`, `timeout`, `broken`, `too_large`, `redirect`, `blocked`, `gone`,
    /// `rate_limited` or `status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    /// The beginning of the answer's body, of failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) answer: Option<String>,
}

/// Some deliveries.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Deliveries)]
pub(super) struct DeliveriesBody {
    pub(super) deliveries: Vec<DeliveryBody>,
    /// The `after` of the next page, if there may be one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(super) next: Option<DeliveryId>,
}

/// Which deliveries are to be made again.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
#[schema(as = Redeliver)]
pub(super) struct RedeliverBody {
    /// Whose last attempt began at or after this.
    pub(super) from: Option<String>,
    /// Whose last attempt began before this.
    pub(super) to: Option<String>,
    /// `failed` or `all`.
    #[schema(default = "failed")]
    pub(super) status: Option<String>,
    /// Only count.
    pub(super) dry_run: bool,
}

/// A job that makes deliveries again, or what it would do.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = RedeliveryJob)]
pub(super) struct JobBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(super) job_id: Option<RequestId>,
    /// `running`, `done`, `failed`, or `dry_run`.
    pub(super) state: &'static str,
    /// Deliveries that were queued again.
    pub(super) queued: u64,
    /// Deliveries whose event is not there any more.
    pub(super) missing: u64,
    /// Deliveries that would be made again (dry run).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) count: Option<u64>,
}

/// A test that was queued.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TestDelivery)]
pub(super) struct TestBody {
    #[schema(value_type = String)]
    pub(super) delivery_id: DeliveryId,
}
