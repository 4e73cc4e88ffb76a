//! A tenant's calls about its channels: their configuration.
//! Promises that a secret is shown by the answer that made it and by no other.
//! Does not deliver, and does not check settings; the directory does.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use hyper::StatusCode;
use hyper::http::request::Parts;
use serde::Serialize;
use tracing::debug;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Desk, directory_problem};
use crate::api::deliveries::standing::Standing;
use crate::api::frame::request::{At, json, located, parse, rfc3339, rfc3339_option};
use crate::api::frame::{BodyLimit, read_body};
use crate::api::problem::{Code, Fault, Problem};
use crate::clock::Timestamp;
use crate::directory::{
    Channel, ChannelPatch, ChannelSecret, ChannelStatus, NewChannel, Settings, Tenant,
};
use crate::event::limits::BODY_BYTES_MAX;
use crate::event::{ChannelId, id};
use crate::journal::Tail;
use crate::lifecycle::chain;

/// The settings of a channel. In a change, what is left out stays and `null` gives the default.
#[derive(Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ChannelSettings)]
#[expect(dead_code, reason = "only described; the directory reads it")]
pub(in crate::api) struct SettingsBody {
    /// 1 to 256 bytes without control characters.
    #[schema(example = "orders", max_length = 256)]
    name: String,
    /// Where deliveries go.
    #[schema(example = "https://example.com/hook")]
    url: String,
    /// The event types it hears of; all when left out.
    types: Option<Vec<String>>,
    /// Of which conversations it hears: `all`, or `linked` for those that name it.
    #[schema(default = "all")]
    conversations: Option<String>,
    /// Deliveries in flight at once.
    #[schema(minimum = 1, maximum = 1_000)]
    max_in_flight: Option<u64>,
    /// Like `80/s` or `1000/m`; no limit when left out.
    #[schema(pattern = "^[0-9]+/[sm]$")]
    rate_limit: Option<String>,
    /// How often and how patiently a delivery is tried.
    retry: Option<RetryBody>,
    /// Headers that every delivery carries.
    headers: Option<BTreeMap<String, String>>,
    /// Whether a conversation's deliveries come one after the other.
    ordered: Option<bool>,
}

/// How often and how patiently a delivery is tried.
#[derive(Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Retry)]
#[expect(dead_code, reason = "only described; the directory reads it")]
pub(in crate::api) struct RetryBody {
    /// Attempts in all, the first one included.
    #[schema(minimum = 1, maximum = 20)]
    max_attempts: Option<u64>,
    /// The pause after the first attempt, in seconds.
    #[schema(minimum = 1, maximum = 3_600)]
    base_seconds: Option<u64>,
    /// The longest pause, in seconds.
    #[schema(minimum = 1, maximum = 86_400)]
    cap_seconds: Option<u64>,
}

/// A channel.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Channel)]
pub(in crate::api) struct ChannelBody {
    #[schema(value_type = String, example = "ch_0190000000007000800000000000000a")]
    id: ChannelId,
    /// `active` or `paused`.
    status: &'static str,
    #[serde(flatten)]
    #[schema(value_type = SettingsBody)]
    settings: Settings,
    #[serde(serialize_with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[serde(serialize_with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    /// When the secret was last rotated.
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    rotated_at: Option<Timestamp>,
    /// The secret that signs deliveries, in the answer that made it only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "whsec_…")]
    secret: Option<String>,
    /// Where its deliveries are, in the answer about one channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery: Option<Standing>,
}

impl ChannelBody {
    fn of(channel: &Channel, secret: Option<&ChannelSecret>) -> Self {
        Self {
            id: channel.id,
            status: channel.status.as_str(),
            settings: channel.settings.clone(),
            created_at: channel.created_at,
            updated_at: channel.updated_at,
            rotated_at: channel.rotated_at,
            secret: secret.map(|secret| secret.expose().to_owned()),
            delivery: None,
        }
    }
}

/// A tenant's channels.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Channels)]
pub(in crate::api) struct ChannelsBody {
    /// The oldest first; a tenant has at most 1 000.
    channels: Vec<ChannelBody>,
}

pub(in crate::api) fn routes() -> OpenApiRouter<Arc<Desk>> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(get, update, delete))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(rotate_secret))
}

impl Desk {
    fn tenant(&self, parts: &Parts) -> Result<Arc<Tenant>, Problem> {
        self.doorkeeper.tenant(&parts.headers, self.clock.timestamp())
    }

    /// Refuses what no delivery could go to. What is no URL at all the directory tells better.
    fn check_url(&self, url: Option<&str>) -> Result<(), Problem> {
        let (Some(url), Some(deliveries)) = (url, &self.deliveries) else { return Ok(()) };
        let scheme = url.parse::<hyper::Uri>().ok().and_then(|uri| uri.scheme().cloned());
        let is_web = scheme.is_some_and(|scheme| ["http", "https"].contains(&scheme.as_str()));
        if deliveries.may_go_to(url) || !is_web {
            return Ok(());
        }
        let detail =
            "must lead to a public address; FOREBAY_EGRESS_ALLOW lists others that may be used";
        let fault = Fault { pointer: "/url".to_owned(), detail: detail.to_owned() };
        Err(Problem::new(Code::InvalidMessage, "A field breaks a rule.").with_faults(vec![fault]))
    }

    async fn set_status(
        &self,
        parts: &Parts,
        id: ChannelId,
        status: ChannelStatus,
    ) -> Result<Response, Problem> {
        let patch = ChannelPatch { status: Some(status), ..ChannelPatch::default() };
        let tenant = self.tenant(parts)?;
        let updated = self.directory.update_channel(tenant.id, id, patch, self.when());
        let channel = updated.await.map_err(directory_problem)?;
        json(StatusCode::OK, &ChannelBody::of(&channel, None))
    }
}

/// Makes a channel.
#[utoipa::path(post, path = "/v1/channels", tag = "channels", security(("tenant" = [])), request_body = SettingsBody,
    responses((status = 201, description = "The channel with its secret, which is shown once", body = ChannelBody)))]
async fn create(State(desk): State<Arc<Desk>>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let tenant = desk.tenant(&parts)?;
    let new: NewChannel =
        parse(&read_body(&parts.headers, body, BodyLimit(BODY_BYTES_MAX)).await?)?;
    desk.check_url(Some(&new.url))?;
    let mut rng = desk.seeds.fork();
    let ends = desk.journal.tails().iter().map(Tail::position).collect();
    let made = desk.directory.create_channel(tenant.id, (new, ends), desk.when(), &mut rng);
    let (channel, secret) = made.await.map_err(directory_problem)?;
    let response = json(StatusCode::CREATED, &ChannelBody::of(&channel, Some(&secret)))?;
    Ok(located(response, &format!("/v1/channels/{}", channel.id)))
}

/// Lists the tenant's channels.
#[utoipa::path(get, path = "/v1/channels", tag = "channels", security(("tenant" = [])),
    responses((status = 200, description = "All channels", body = ChannelsBody)))]
async fn list(State(desk): State<Arc<Desk>>, request: Request) -> Result<Response, Problem> {
    let (parts, _body) = request.into_parts();
    let tenant = desk.tenant(&parts)?;
    let all = desk.directory.channels(tenant.id);
    let channels = all.iter().map(|channel| ChannelBody::of(channel, None)).collect();
    json(StatusCode::OK, &ChannelsBody { channels })
}

/// Shows a channel.
#[utoipa::path(get, path = "/v1/channels/{id}", tag = "channels", security(("tenant" = [])),
    params(("id" = String, Path, description = "The channel")),
    responses((status = 200, description = "The channel", body = ChannelBody)))]
async fn get(
    State(desk): State<Arc<Desk>>,
    At(id): At<id::kind::Channel>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, _body) = request.into_parts();
    let tenant = desk.tenant(&parts)?;
    let channel = desk.directory.channel(tenant.id, id);
    let channel = channel.ok_or_else(|| Problem::not_found("There is no such channel."))?;
    let sight = desk.deliveries.as_ref().map(|deliveries| deliveries.look(id));
    // An answer without counts is better than none while the log is away.
    let sizes = desk.redelivery.sizes(&tenant, id).await.ok();
    let delivery = Some(Standing::of(&channel, sight.as_ref(), sizes));
    json(StatusCode::OK, &ChannelBody { delivery, ..ChannelBody::of(&channel, None) })
}

/// Changes a channel.
#[utoipa::path(patch, path = "/v1/channels/{id}", tag = "channels", security(("tenant" = [])), request_body = SettingsBody,
    params(("id" = String, Path, description = "The channel")),
    responses((status = 200, description = "The channel as it is then", body = ChannelBody)))]
async fn update(
    State(desk): State<Arc<Desk>>,
    At(id): At<id::kind::Channel>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let tenant = desk.tenant(&parts)?;
    let patch: ChannelPatch =
        parse(&read_body(&parts.headers, body, BodyLimit(BODY_BYTES_MAX)).await?)?;
    desk.check_url(patch.url.as_deref())?;
    let updated = desk.directory.update_channel(tenant.id, id, patch, desk.when());
    let channel = updated.await.map_err(directory_problem)?;
    json(StatusCode::OK, &ChannelBody::of(&channel, None))
}

/// Deletes a channel.
#[utoipa::path(delete, path = "/v1/channels/{id}", tag = "channels", security(("tenant" = [])),
    params(("id" = String, Path, description = "The channel")),
    responses((status = 204, description = "The channel is gone")))]
async fn delete(
    State(desk): State<Arc<Desk>>,
    At(id): At<id::kind::Channel>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, _body) = request.into_parts();
    let tenant = desk.tenant(&parts)?;
    let deleted = desk.directory.delete_channel(tenant.id, id, desk.when().deadline);
    deleted.await.map_err(directory_problem)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Lets a channel's deliveries wait.
#[utoipa::path(post, path = "/v1/channels/{id}/pause", tag = "channels", security(("tenant" = [])),
    params(("id" = String, Path, description = "The channel")),
    responses((status = 200, description = "The channel, paused", body = ChannelBody)))]
async fn pause(
    State(desk): State<Arc<Desk>>,
    At(id): At<id::kind::Channel>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, _body) = request.into_parts();
    desk.set_status(&parts, id, ChannelStatus::Paused).await
}

/// Lets a channel's deliveries go on. A breaker that is open tries one at once.
#[utoipa::path(post, path = "/v1/channels/{id}/resume", tag = "channels", security(("tenant" = [])),
    params(("id" = String, Path, description = "The channel")),
    responses((status = 200, description = "The channel, active", body = ChannelBody)))]
async fn resume(
    State(desk): State<Arc<Desk>>,
    At(id): At<id::kind::Channel>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, _body) = request.into_parts();
    let response = desk.set_status(&parts, id, ChannelStatus::Active).await?;
    if let Some(deliveries) = &desk.deliveries
        && let Err(error) = deliveries.hurry(id).await
    {
        debug!(error = %chain(&error), "channel {id} is probed when its pause is over");
    }
    Ok(response)
}

/// Gives a channel another secret.
#[utoipa::path(post, path = "/v1/channels/{id}/rotate-secret", tag = "channels", security(("tenant" = [])),
    params(("id" = String, Path, description = "The channel")),
    responses((status = 200, description = "The channel with its new secret, which is shown once", body = ChannelBody)))]
async fn rotate_secret(
    State(desk): State<Arc<Desk>>,
    At(id): At<id::kind::Channel>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, _body) = request.into_parts();
    let tenant = desk.tenant(&parts)?;
    let mut rng = desk.seeds.fork();
    let rotated = desk.directory.rotate_secret(tenant.id, id, desk.when(), &mut rng);
    let (channel, secret) = rotated.await.map_err(directory_problem)?;
    json(StatusCode::OK, &ChannelBody::of(&channel, Some(&secret)))
}
