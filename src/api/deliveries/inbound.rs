//! Webhooks that come in: a signed request becomes a message, once for each `webhook-id`.
//! Promises that only who knows the channel's secret is heard, and that nothing is looked at before the signature.
//! Does not deliver.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use hyper::{HeaderMap, StatusCode};
use serde::Deserialize;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::admission::Source;
use crate::api::frame::request::{At, json, parse};
use crate::api::frame::{BodyLimit, read_body};
use crate::api::messages::body::ReceiptBody;
use crate::api::messages::refusal::{busy, ingest_problem, rejected, verdict_problem};
use crate::api::problem::{Code, Problem};
use crate::clock::Clock;
use crate::delivery::signature::{Signed, verify};
use crate::directory::{Channel, ChannelStatus, Directory, TenantStatus};
use crate::event::limits::SEND_BODY_BYTES_MAX;
use crate::event::{ConversationId, id};
use crate::ingest::{self, Ingest, draft};
use crate::journal::{Intent, Verdict};

/// Longest wait for the log.
const SEND_DEADLINE: Duration = Duration::from_secs(5);

/// What webhooks that come in can touch.
#[derive(Debug)]
pub(in crate::api) struct Inbox {
    pub(in crate::api) directory: Directory,
    pub(in crate::api) ingest: Ingest,
    pub(in crate::api) clock: Clock,
}

/// Where a message is to go.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Addressed {
    conversation_id: String,
}

pub(in crate::api) fn routes() -> OpenApiRouter<Arc<Inbox>> {
    OpenApiRouter::new().routes(routes!(receive))
}

/// Takes a signed webhook in as a message. The body is that of a message with `conversationId` beside; `webhook-id` is
/// the idempotency key.
#[utoipa::path(post, path = "/v1/channels/{id}/inbound", tag = "channels", security(("webhook" = [])),
    params(("id" = String, Path, description = "The channel whose secret signs"),
           ("webhook-id" = String, Header, description = "Names the message; the same id stores once"),
           ("webhook-timestamp" = String, Header, description = "Seconds since 1970, at most five minutes from now"),
           ("webhook-signature" = String, Header, description = "Standard Webhooks: v1, and the base64 of the HMAC-SHA256")),
    responses((status = 202, description = "It is stored durably", body = ReceiptBody)))]
async fn receive(
    State(inbox): State<Arc<Inbox>>,
    At(id): At<id::kind::Channel>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    // Whether there is such a channel is told only to who knows its secret.
    let channel = inbox.directory.channel_of_anybody(id).ok_or_else(unsigned)?;
    let tenant = inbox.directory.tenant(channel.tenant).ok_or_else(unsigned)?;
    if tenant.status != TenantStatus::Active {
        return Err(unsigned());
    }
    let body = read_body(&parts.headers, body, BodyLimit(SEND_BODY_BYTES_MAX)).await?;
    let now = inbox.clock.timestamp();
    let webhook_id = check(&channel, &parts.headers, &body, now)?;
    if channel.status == ChannelStatus::Paused {
        return Err(Problem::new(Code::ChannelInactive, "The channel is paused."));
    }
    let addressed: Addressed = parse(&body)?;
    let conversation = ConversationId::parse(&addressed.conversation_id).map_err(|_bad| {
        Problem::new(Code::BadRequest, "conversationId must be cnv_ and 32 hexadecimal digits.")
    })?;
    let place = inbox.ingest.admit(conversation, body.len()).map_err(busy)?;
    let asked = ingest::Request {
        tenant: tenant.id,
        conversation,
        user: None,
        key: Some(webhook_id.as_bytes()),
        trace: None,
        now,
    };
    let checked = draft::send(&body, &asked).map_err(rejected)?;
    let draft = checked.into_draft(&asked, Intent::Send, || inbox.ingest.make_id(now));
    let deadline = inbox.clock.now() + SEND_DEADLINE;
    let origin = tenant.origin(Source::Inbound);
    let verdicts = inbox.ingest.append(place, vec![draft], origin, deadline).await;
    let verdict = verdicts.map_err(|error| ingest_problem(&error))?.into_iter().next();
    match verdict.ok_or_else(|| Problem::internal("a webhook without a verdict"))? {
        Verdict::Stored(receipt) => json(StatusCode::ACCEPTED, &ReceiptBody::of(receipt, false)),
        Verdict::Duplicate(receipt) => json(StatusCode::ACCEPTED, &ReceiptBody::of(receipt, true)),
        refused @ (Verdict::KeyConflict | Verdict::Closed | Verdict::NotFound) => {
            Err(verdict_problem(refused))
        }
    }
}

/// Checks the signature and says the id.
fn check(
    channel: &Channel,
    headers: &HeaderMap,
    body: &[u8],
    now: crate::clock::Timestamp,
) -> Result<String, Problem> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
    let id = text("webhook-id");
    let signed =
        Signed { id, timestamp: text("webhook-timestamp"), signature: text("webhook-signature") };
    let secrets = channel.secrets(now);
    let secrets: Vec<_> = secrets.iter().map(Vec::as_slice).collect();
    verify(&secrets, signed, body, now).map_err(|why| {
        Problem::new(Code::Unauthorized, format!("The signature does not verify: {why}."))
    })?;
    Ok(id.to_owned())
}

fn unsigned() -> Problem {
    Problem::new(Code::Unauthorized, "The signature does not verify: no signature matches.")
}
