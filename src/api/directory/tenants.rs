//! The operator's calls about tenants and their keys.
//! Promises that a key is shown by the answer that made it and by no other.
//! Does not check names and quotas; the directory does.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use hyper::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Desk, directory_problem};
use crate::api::frame::request::{At, Within, json, located, number, parse, query, rfc3339};
use crate::api::frame::{BodyLimit, read_body};
use crate::api::problem::{Code, Problem};
use crate::clock::Timestamp;
use crate::directory::{SendQuota, Tenant};
use crate::event::limits::BODY_BYTES_MAX;
use crate::event::{KeyId, TenantId, id};

/// Most tenants of one page, and how many it has when nothing else is asked for.
const PAGE_TENANTS_MAX: u64 = 500;
const PAGE_TENANTS_DEFAULT: u64 = 100;

/// A new tenant.
#[derive(Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = NewTenant)]
#[expect(dead_code, reason = "only described; the directory reads it")]
pub(in crate::api) struct NewTenantBody {
    /// 1 to 256 bytes without control characters.
    #[schema(example = "acme", max_length = 256, min_length = 1)]
    name: String,
    /// How it ranks where tenants compete; `standard` when left out.
    #[schema(value_type = Option<String>, pattern = "^(high|standard|bulk)$")]
    tier: Option<String>,
    /// Its own send quota on each node; the configured one when left out.
    send_quota: Option<QuotaBody>,
}

/// A send quota.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SendQuota)]
pub(in crate::api) struct QuotaBody {
    /// Sustained messages a second.
    #[schema(minimum = 1, maximum = 1_000_000)]
    per_second: u64,
    /// Messages that may come at once after a rest.
    #[schema(minimum = 1, maximum = 1_000_000)]
    burst: u64,
}

impl From<SendQuota> for QuotaBody {
    fn from(quota: SendQuota) -> Self {
        Self { per_second: quota.per_second, burst: quota.burst }
    }
}

/// What changes of a tenant; what is left out stays.
#[derive(Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TenantPatch)]
#[expect(dead_code, reason = "only described; the directory reads it")]
pub(in crate::api) struct TenantPatchBody {
    /// Another name.
    name: Option<String>,
    /// Another rank: `high`, `standard` or `bulk`.
    tier: Option<String>,
    /// `suspended` takes access away from all of its keys and tokens, `active` gives it back.
    status: Option<String>,
    /// Another send quota; `null` for the configured one.
    send_quota: Option<QuotaBody>,
}

/// A tenant.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Tenant)]
pub(in crate::api) struct TenantBody {
    #[schema(value_type = String, example = "ten_0190000000007000800000000000000a")]
    id: TenantId,
    name: String,
    /// `high`, `standard` or `bulk`.
    tier: &'static str,
    /// `active` or `suspended`.
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    send_quota: Option<QuotaBody>,
    #[serde(serialize_with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// The first API key, in the answer that made the tenant only.
    #[serde(skip_serializing_if = "Option::is_none")]
    api_key: Option<String>,
}

impl TenantBody {
    fn of(tenant: &Tenant, api_key: Option<String>) -> Self {
        Self {
            id: tenant.id,
            name: tenant.name.clone(),
            tier: tenant.tier.as_str(),
            status: tenant.status.as_str(),
            send_quota: tenant.send_quota.map(QuotaBody::from),
            created_at: tenant.created_at,
            api_key,
        }
    }
}

/// A page of tenants.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Tenants)]
pub(in crate::api) struct TenantsBody {
    /// The oldest first.
    tenants: Vec<TenantBody>,
    /// Whether there are more after the last one.
    has_more: bool,
}

/// An API key.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Key)]
pub(in crate::api) struct KeyBody {
    #[schema(value_type = String, example = "key_0190000000007000800000000000000a")]
    id: KeyId,
    #[serde(serialize_with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// The key itself, in the answer that made it only.
    #[serde(skip_serializing_if = "Option::is_none")]
    api_key: Option<String>,
}

/// A tenant's keys.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Keys)]
pub(in crate::api) struct KeysBody {
    /// The oldest first.
    keys: Vec<KeyBody>,
}

pub(in crate::api) fn routes() -> OpenApiRouter<Arc<Desk>> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(get, update))
        .routes(routes!(list_keys, create_key))
        .routes(routes!(revoke_key))
}

impl Desk {
    fn known(&self, tenant: TenantId) -> Result<Arc<Tenant>, Problem> {
        let tenant = self.directory.tenant(tenant);
        tenant.ok_or_else(|| Problem::not_found("There is no such tenant."))
    }
}

/// Makes a tenant and its first API key.
#[utoipa::path(post, path = "/v1/tenants", tag = "tenants", security(("operator" = [])), request_body = NewTenantBody,
    responses((status = 201, description = "The tenant with its first key, which is shown once", body = TenantBody)))]
async fn create(State(desk): State<Arc<Desk>>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    desk.doorkeeper.operator(&parts.headers, desk.clock.timestamp())?;
    let new = parse(&read_body(&parts.headers, body, BodyLimit(BODY_BYTES_MAX)).await?)?;
    let mut rng = desk.seeds.fork();
    let made = desk.directory.create_tenant(new, desk.when(), &mut rng);
    let (tenant, key) = made.await.map_err(directory_problem)?;
    let body = TenantBody::of(&tenant, Some(key.expose().to_owned()));
    let response = json(StatusCode::CREATED, &body)?;
    Ok(located(response, &format!("/v1/tenants/{}", tenant.id)))
}

/// Lists tenants, the oldest first.
#[utoipa::path(get, path = "/v1/tenants", tag = "tenants", security(("operator" = [])),
    params(("after" = Option<String>, Query, description = "The id of the last tenant that is known already"),
           ("limit" = Option<u64>, Query, description = "1 to 500, 100 when left out")),
    responses((status = 200, description = "A page of tenants", body = TenantsBody)))]
async fn list(State(desk): State<Arc<Desk>>, request: Request) -> Result<Response, Problem> {
    let (parts, _body) = request.into_parts();
    desk.doorkeeper.operator(&parts.headers, desk.clock.timestamp())?;
    let (mut after, mut limit) = (None, PAGE_TENANTS_DEFAULT);
    for (name, value) in query(&parts)? {
        match name.as_str() {
            "limit" => limit = number("limit", &value, 1..=PAGE_TENANTS_MAX)?,
            "after" => {
                let id = TenantId::parse(&value);
                after = Some(id.map_err(|error| {
                    Problem::new(Code::BadRequest, format!("The parameter after is {error}."))
                })?);
            }
            _ => {}
        }
    }
    let all = desk.directory.tenants();
    let mut rest = all.iter().filter(|tenant| after.is_none_or(|after| tenant.id > after));
    let page = rest.by_ref().take(usize::try_from(limit).unwrap_or(usize::MAX));
    let page = page.map(|tenant| TenantBody::of(tenant, None)).collect();
    let has_more = rest.next().is_some();
    json(StatusCode::OK, &TenantsBody { tenants: page, has_more })
}

/// Shows a tenant.
#[utoipa::path(get, path = "/v1/tenants/{id}", tag = "tenants", security(("operator" = [])),
    params(("id" = String, Path, description = "The tenant")),
    responses((status = 200, description = "The tenant", body = TenantBody)))]
async fn get(
    State(desk): State<Arc<Desk>>,
    At(id): At<id::kind::Tenant>,
    request: Request,
) -> Result<Response, Problem> {
    desk.doorkeeper.operator(request.headers(), desk.clock.timestamp())?;
    let tenant = desk.known(id)?;
    json(StatusCode::OK, &TenantBody::of(&tenant, None))
}

/// Changes a tenant, suspends it or gives it access again.
#[utoipa::path(patch, path = "/v1/tenants/{id}", tag = "tenants", security(("operator" = [])), request_body = TenantPatchBody,
    params(("id" = String, Path, description = "The tenant")),
    responses((status = 200, description = "The tenant as it is then", body = TenantBody)))]
async fn update(
    State(desk): State<Arc<Desk>>,
    At(id): At<id::kind::Tenant>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    desk.doorkeeper.operator(&parts.headers, desk.clock.timestamp())?;
    let patch = parse(&read_body(&parts.headers, body, BodyLimit(BODY_BYTES_MAX)).await?)?;
    let updated = desk.directory.update_tenant(id, patch, desk.when().deadline);
    let tenant = updated.await.map_err(directory_problem)?;
    json(StatusCode::OK, &TenantBody::of(&tenant, None))
}

/// Lists a tenant's API keys, without the keys themselves.
#[utoipa::path(get, path = "/v1/tenants/{id}/keys", tag = "tenants", security(("operator" = [])),
    params(("id" = String, Path, description = "The tenant")),
    responses((status = 200, description = "The keys, the oldest first", body = KeysBody)))]
async fn list_keys(
    State(desk): State<Arc<Desk>>,
    At(id): At<id::kind::Tenant>,
    request: Request,
) -> Result<Response, Problem> {
    desk.doorkeeper.operator(request.headers(), desk.clock.timestamp())?;
    desk.known(id)?;
    let keys = desk.directory.keys(id).into_iter().map(|key| KeyBody {
        id: key.id,
        created_at: key.created_at,
        api_key: None,
    });
    json(StatusCode::OK, &KeysBody { keys: keys.collect() })
}

/// Makes another API key of a tenant.
#[utoipa::path(post, path = "/v1/tenants/{id}/keys", tag = "tenants", security(("operator" = [])),
    params(("id" = String, Path, description = "The tenant")),
    responses((status = 201, description = "The key, which is shown once", body = KeyBody)))]
async fn create_key(
    State(desk): State<Arc<Desk>>,
    At(id): At<id::kind::Tenant>,
    request: Request,
) -> Result<Response, Problem> {
    desk.doorkeeper.operator(request.headers(), desk.clock.timestamp())?;
    let mut rng = desk.seeds.fork();
    let made = desk.directory.create_key(id, desk.when(), &mut rng);
    let (key, api_key) = made.await.map_err(directory_problem)?;
    let body = KeyBody {
        id: key.id,
        created_at: key.created_at,
        api_key: Some(api_key.expose().to_owned()),
    };
    let response = json(StatusCode::CREATED, &body)?;
    Ok(located(response, &format!("/v1/tenants/{id}/keys/{}", key.id)))
}

/// Revokes an API key, on every node within a second.
#[utoipa::path(delete, path = "/v1/tenants/{id}/keys/{keyId}", tag = "tenants", security(("operator" = [])),
    params(("id" = String, Path, description = "The tenant"), ("keyId" = String, Path, description = "The key")),
    responses((status = 204, description = "The key is revoked")))]
async fn revoke_key(
    State(desk): State<Arc<Desk>>,
    Within(tenant, key): Within<id::kind::Tenant, id::kind::Key>,
    request: Request,
) -> Result<Response, Problem> {
    desk.doorkeeper.operator(request.headers(), desk.clock.timestamp())?;
    let revoked = desk.directory.revoke_key(tenant, key, desk.when().deadline);
    revoked.await.map_err(directory_problem)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
