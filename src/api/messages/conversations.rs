//! A tenant's calls about conversations: open, look, close, reopen.
//! Promises that opening an id that exists answers what exists, and that closing what is closed changes nothing.
//! Does not read or send messages.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use hyper::StatusCode;
use hyper::http::request::Parts;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::admission::Source;
use crate::api::access::Doorkeeper;
use crate::api::frame::request::{At, json, located, raw, rfc3339_option};
use crate::api::frame::{BodyLimit, read_body, trace};
use crate::api::messages::SEND_DEADLINE;
use crate::api::messages::refusal::{
    busy, history_problem, ingest_problem, rejected, verdict_problem,
};
use crate::api::problem::{Code, Fault, Problem};
use crate::clock::{Clock, Timestamp};
use crate::directory::Tenant;
use crate::event::limits::BODY_BYTES_MAX;
use crate::event::{Body, ChannelId, ConversationId, TenantId, id};
use crate::history::{History, Reader, View};
use crate::ingest::{self, Checked, Ingest, draft};
use crate::journal::{Intent, Receipt, Status, Verdict};

/// What this family can touch.
#[derive(Debug)]
pub(in crate::api) struct Conversations {
    pub(in crate::api) doorkeeper: Arc<Doorkeeper>,
    pub(in crate::api) ingest: Ingest,
    pub(in crate::api) history: History,
    pub(in crate::api) clock: Clock,
}

/// A conversation to open.
#[derive(Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = NewConversation)]
#[expect(dead_code, reason = "only described; ingest reads it")]
pub(in crate::api) struct NewConversationBody {
    /// An id of the caller's own; made by the server when left out.
    #[schema(example = "cnv_0190000000007000800000000000000a", pattern = "^cnv_[0-9a-f]{32}$")]
    id: Option<String>,
    /// Channels that are linked to it.
    #[schema(max_items = 100)]
    channel_ids: Option<Vec<String>>,
    /// Notes about it, at most 16 KiB.
    metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

/// A conversation.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Conversation)]
pub(in crate::api) struct ConversationBody {
    #[schema(value_type = String, example = "cnv_0190000000007000800000000000000a")]
    id: ConversationId,
    /// `open` or `closed`.
    status: &'static str,
    /// Its last seq.
    head_seq: u64,
    /// When it was opened; left out when only the database knows and cannot be asked.
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    created_at: Option<Timestamp>,
    /// The notes that it was opened with, where they are at hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    metadata: Option<Box<RawValue>>,
    /// The channels that are linked to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    channel_ids: Vec<ChannelId>,
}

pub(in crate::api) fn routes() -> OpenApiRouter<Arc<Conversations>> {
    OpenApiRouter::new()
        .routes(routes!(open))
        .routes(routes!(get))
        .routes(routes!(close))
        .routes(routes!(reopen))
}

/// How a conversation is to change.
#[derive(Clone, Copy, Debug)]
enum Change {
    Close,
    Reopen,
}

impl Conversations {
    fn tenant(&self, parts: &Parts) -> Result<Arc<Tenant>, Problem> {
        self.doorkeeper.tenant(&parts.headers, self.clock.timestamp())
    }

    /// The conversation as it is after something was stored in it, however much of it is known.
    async fn after(
        &self,
        tenant: &Tenant,
        id: ConversationId,
        stored: (StatusCode, &Receipt, Status),
    ) -> Result<Response, Problem> {
        let (code, receipt, status) = stored;
        match self.history.conversation(Reader::of(tenant, Source::Rest), id).await {
            Ok(Some(view)) => json(code, &shown(id, view)),
            // It is stored; that the rest cannot be looked up is no reason to say otherwise.
            Ok(None) | Err(_) => json(
                code,
                &ConversationBody {
                    id,
                    status: word(status),
                    head_seq: receipt.watermark,
                    created_at: None,
                    metadata: None,
                    channel_ids: Vec::new(),
                },
            ),
        }
    }

    async fn change(
        &self,
        id: ConversationId,
        change: Change,
        request: Request,
    ) -> Result<Response, Problem> {
        let (parts, _body) = request.into_parts();
        let tenant = self.tenant(&parts)?;
        let (body, intent, status) = match change {
            Change::Close => (Body::Closed, Intent::Close, Status::Closed),
            Change::Reopen => (Body::Reopened, Intent::Reopen, Status::Open),
        };
        let asked = self.asked(&parts, tenant.id, id);
        match self.append(&tenant, (body, intent), &asked).await? {
            Verdict::Stored(receipt) | Verdict::Duplicate(receipt) => {
                self.after(&tenant, id, (StatusCode::OK, &receipt, status)).await
            }
            refused @ (Verdict::KeyConflict | Verdict::Closed | Verdict::NotFound) => {
                Err(verdict_problem(refused))
            }
        }
    }

    fn asked<'a>(
        &self,
        parts: &'a Parts,
        tenant: TenantId,
        conversation: ConversationId,
    ) -> ingest::Request<'a> {
        ingest::Request {
            tenant,
            conversation,
            user: None,
            key: None,
            trace: trace(&parts.headers),
            now: self.clock.timestamp(),
        }
    }

    async fn append(
        &self,
        tenant: &Tenant,
        (body, intent): (Body, Intent),
        asked: &ingest::Request<'_>,
    ) -> Result<Verdict, Problem> {
        let place = self.ingest.admit(asked.conversation, body.size()).map_err(busy)?;
        let make_id = || self.ingest.make_id(asked.now);
        let draft = Checked::from(body).into_draft(asked, intent, make_id);
        let deadline = self.clock.now() + SEND_DEADLINE;
        let origin = tenant.origin(Source::Rest);
        let verdicts = self.ingest.append(place, vec![draft], origin, deadline).await;
        let verdict = verdicts.map_err(|error| ingest_problem(&error))?.into_iter().next();
        verdict.ok_or_else(|| Problem::internal("a change without a verdict"))
    }

    /// Refuses channels that the tenant does not have.
    fn check_channels(&self, tenant: TenantId, channels: &[ChannelId]) -> Result<(), Problem> {
        let directory = &self.doorkeeper.directory;
        let unknown = channels.iter().filter(|id| directory.channel(tenant, **id).is_none());
        let faults: Vec<Fault> = unknown
            .take(draft::ERRORS_MAX)
            .map(|id| Fault {
                pointer: "/channelIds".to_owned(),
                detail: format!("{id} is no channel of this tenant"),
            })
            .collect();
        if faults.is_empty() {
            return Ok(());
        }
        Err(Problem::new(Code::InvalidMessage, "A field breaks a rule.").with_faults(faults))
    }
}

fn shown(id: ConversationId, view: View) -> ConversationBody {
    ConversationBody {
        id,
        status: word(view.status),
        head_seq: view.head_seq,
        created_at: Some(view.created_at),
        metadata: raw(view.metadata.as_ref()).map(ToOwned::to_owned),
        channel_ids: view.channels,
    }
}

fn word(status: Status) -> &'static str {
    match status {
        Status::Open => "open",
        Status::Closed => "closed",
    }
}

/// Opens a conversation, or answers the one that has this id.
#[utoipa::path(post, path = "/v1/conversations", tag = "conversations", security(("tenant" = [])), request_body = NewConversationBody,
    responses((status = 201, description = "It is open and durable", body = ConversationBody),
              (status = 200, description = "It existed before", body = ConversationBody)))]
async fn open(
    State(conversations): State<Arc<Conversations>>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let tenant = conversations.tenant(&parts)?;
    let bytes = read_body(&parts.headers, body, BodyLimit(BODY_BYTES_MAX)).await?;
    let opened = draft::open(&bytes).map_err(rejected)?;
    conversations.check_channels(tenant.id, &opened.opening.channels)?;
    let (id, intent) = if let Some(id) = opened.id {
        (id, Intent::OpenNamed)
    } else {
        let now = conversations.clock.timestamp();
        (conversations.ingest.make_conversation(now), Intent::OpenNew)
    };
    let asked = conversations.asked(&parts, tenant.id, id);
    let body = Body::Opened(Box::new(opened.opening));
    match conversations.append(&tenant, (body, intent), &asked).await? {
        Verdict::Stored(receipt) => {
            let created = ConversationBody {
                id,
                status: word(Status::Open),
                head_seq: receipt.watermark,
                created_at: Some(receipt.at),
                metadata: None,
                channel_ids: Vec::new(),
            };
            let response = json(StatusCode::CREATED, &created)?;
            Ok(located(response, &format!("/v1/conversations/{id}")))
        }
        Verdict::Duplicate(receipt) => {
            let stored = (StatusCode::OK, &receipt, Status::Open);
            conversations.after(&tenant, id, stored).await
        }
        refused @ (Verdict::KeyConflict | Verdict::Closed | Verdict::NotFound) => {
            Err(verdict_problem(refused))
        }
    }
}

/// Shows a conversation.
#[utoipa::path(get, path = "/v1/conversations/{id}", tag = "conversations", security(("tenant" = [])),
    params(("id" = String, Path, description = "The conversation")),
    responses((status = 200, description = "The conversation", body = ConversationBody)))]
async fn get(
    State(conversations): State<Arc<Conversations>>,
    At(id): At<id::kind::Conversation>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, _body) = request.into_parts();
    let tenant = conversations.tenant(&parts)?;
    let reader = Reader::of(&tenant, Source::Rest);
    let view = conversations.history.conversation(reader, id).await;
    let view = view.map_err(|error| history_problem(&error))?;
    let view = view.ok_or_else(|| Problem::not_found("There is no such conversation."))?;
    json(StatusCode::OK, &shown(id, view))
}

/// Closes a conversation: it takes no messages until it is reopened.
#[utoipa::path(post, path = "/v1/conversations/{id}/close", tag = "conversations", security(("tenant" = [])),
    params(("id" = String, Path, description = "The conversation")),
    responses((status = 200, description = "It is closed", body = ConversationBody)))]
async fn close(
    State(conversations): State<Arc<Conversations>>,
    At(id): At<id::kind::Conversation>,
    request: Request,
) -> Result<Response, Problem> {
    conversations.change(id, Change::Close, request).await
}

/// Reopens a closed conversation.
#[utoipa::path(post, path = "/v1/conversations/{id}/reopen", tag = "conversations", security(("tenant" = [])),
    params(("id" = String, Path, description = "The conversation")),
    responses((status = 200, description = "It is open", body = ConversationBody)))]
async fn reopen(
    State(conversations): State<Arc<Conversations>>,
    At(id): At<id::kind::Conversation>,
    request: Request,
) -> Result<Response, Problem> {
    conversations.change(id, Change::Reopen, request).await
}
