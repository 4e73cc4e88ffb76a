//! The pages that explain the doors: the OpenAPI document and a page that renders it.
//! Promises that both are of the running server, need nothing from outside, and name every problem a call can answer.
//! Does not describe single calls; those describe themselves where they are written.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{Redirect, Response};
use axum::routing::get;
use hyper::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue};
use utoipa::openapi::path::{Operation, ParameterIn, PathItem};
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    Components, ContentBuilder, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder, Ref, RefOr,
    tag::TagBuilder,
};
use utoipa::{PartialSchema as _, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::problem::{Code, ProblemBody};

/// Renders the document in a browser; style and script are within it.
const PAGE: &str = include_str!("docs.html");

/// The page loads nothing from elsewhere, and nothing may be made to.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                           connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A chat over the socket, and the module with which it talks.
const DEMO: &str = include_str!("demo.html");
const MODULE: &str = include_str!("forebay.js");

/// The demo page loads the module of this server and talks to this server.
const DEMO_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'self' 'unsafe-inline'; \
                           connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The socket's protocol for machines.
const PROTOCOL: &str = include_str!("../../docs/asyncapi.yaml");

/// The families of calls, in the order in which a newcomer meets them.
const TAGS: [(&str, &str); 8] = [
    ("messages", "Send and read. A send that was answered with 2xx is stored durably."),
    (
        "live",
        "Conversations as they happen: sockets and server-sent events. `/asyncapi.yaml` has the frames.",
    ),
    ("conversations", "An ordered sequence of events: its `seq` is 1, 2, 3 … without holes."),
    ("tokens", "Short-lived credentials for end users."),
    ("channels", "Webhook subscriptions of a tenant: their configuration."),
    ("tenants", "For the operator: tenants and their API keys."),
    ("operation", "Probes, metrics and the status of the server."),
    ("docs", "These pages."),
];

/// Who may call, as security schemes. All are bearer credentials and told apart by their shape.
const SCHEMES: [(&str, &str); 3] = [
    ("operator", "The operator's token, `FOREBAY_ADMIN_TOKEN`."),
    ("tenant", "A tenant's API key, `fbk_…`."),
    (
        "user",
        "An end user's token, from `POST /v1/tokens`; it may be bound to one conversation and one user.",
    ),
];

/// The document's head.
pub(super) fn begin() -> OpenApi {
    let license = LicenseBuilder::new()
        .name("MIT OR Apache-2.0")
        .identifier(Some("MIT OR Apache-2.0"))
        .build();
    let info = InfoBuilder::new()
        .title("Forebay")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "A messaging backbone: a durable log stands in front of Postgres. JSON is camelCase, times are RFC 3339 in UTC, \
             unknown request fields are ignored, unknown enum values are refused. Failures are problem documents (RFC 9457); \
             those that can be retried carry `Retry-After` and `retryAfterMs`. Every answer carries `X-Request-Id`.",
        ))
        .license(Some(license))
        .build();
    let tag = |(name, text): &(&str, &str)| {
        TagBuilder::new().name(*name).description(Some(*text)).build()
    };
    let tags = TAGS.iter().map(tag);
    OpenApiBuilder::new().info(info).tags(Some(tags)).build()
}

/// The two pages.
pub(super) fn routes() -> OpenApiRouter<Arc<Document>> {
    OpenApiRouter::new()
        .route("/", get(home))
        .routes(routes!(document))
        .routes(routes!(page))
        .routes(routes!(demo))
        .routes(routes!(module))
        .routes(routes!(protocol))
}

/// The document as it is sent.
#[derive(Debug)]
pub(super) struct Document(Bytes);

impl Document {
    /// Of a finished document.
    pub(super) fn of(openapi: &OpenApi) -> Self {
        Self(openapi.to_json().unwrap_or_default().into())
    }
}

/// What a browser opens first: the docs are the only page for people.
async fn home() -> Redirect {
    Redirect::temporary("/docs")
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", tag = "docs",
    responses((status = 200, description = "The OpenAPI 3.1 document", content_type = "application/json", body = Object)))]
async fn document(State(document): State<Arc<Document>>) -> Response {
    answer(document.0.clone(), "application/json")
}

/// A page that shows this document.
#[utoipa::path(get, path = "/docs", tag = "docs",
    responses((status = 200, description = "The page", content_type = "text/html", body = String)))]
async fn page() -> Response {
    let mut response = answer(PAGE, "text/html; charset=utf-8");
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_POLICY));
    response
}

/// A small chat that shows what a live client sees: its state, gaps, the watermark.
#[utoipa::path(get, path = "/demo", tag = "docs",
    responses((status = 200, description = "The page", content_type = "text/html", body = String)))]
async fn demo() -> Response {
    let mut response = answer(DEMO, "text/html; charset=utf-8");
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(DEMO_POLICY));
    response
}

/// The browser's client as a module without dependencies.
#[utoipa::path(get, path = "/forebay.js", tag = "docs",
    responses((status = 200, description = "The module", content_type = "text/javascript", body = String)))]
async fn module() -> Response {
    answer(MODULE, "text/javascript; charset=utf-8")
}

/// The frames of the socket, as an `AsyncAPI` document.
#[utoipa::path(get, path = "/asyncapi.yaml", tag = "docs",
    responses((status = 200, description = "The document", content_type = "application/yaml", body = String)))]
async fn protocol() -> Response {
    answer(PROTOCOL, "application/yaml")
}

fn answer(body: impl Into<Body>, media_type: &'static str) -> Response {
    let mut response = Response::new(body.into());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// Adds what all calls have in common: who may call, and the problems that they can answer.
pub(super) fn complete(openapi: &mut OpenApi) {
    let components = openapi.components.get_or_insert_with(Components::new);
    for (name, text) in SCHEMES {
        let scheme =
            HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(text)).build();
        components.add_security_scheme(name, SecurityScheme::Http(scheme));
    }
    let signature = "A Standard Webhooks signature with the channel's secret.";
    let signature = ApiKeyValue::with_description("webhook-signature", signature);
    let scheme = SecurityScheme::ApiKey(ApiKey::Header(signature));
    components.add_security_scheme("webhook", scheme);
    let mut schemas = vec![(ProblemBody::name().into_owned(), ProblemBody::schema())];
    ProblemBody::schemas(&mut schemas);
    components.schemas.extend(schemas);
    for (path, item) in &mut openapi.paths.paths {
        for (method, operation) in operations(item) {
            // The functions' names are unique within their family only.
            let family = operation.tags.iter().flatten().next().cloned().unwrap_or_default();
            let name = operation.operation_id.take().unwrap_or_default();
            operation.operation_id = Some(format!("{family}.{name}"));
            if path.starts_with("/v1/") {
                add_problems(operation, &problems_of(path, method, operation));
            }
        }
    }
}

/// The operations that our calls use.
fn operations(item: &mut PathItem) -> impl Iterator<Item = (&'static str, &mut Operation)> {
    let slots = [
        ("get", &mut item.get),
        ("post", &mut item.post),
        ("patch", &mut item.patch),
        ("delete", &mut item.delete),
    ];
    slots.into_iter().filter_map(|(method, slot)| Some((method, slot.as_mut()?)))
}

/// Which problems a call can answer, by what it takes and whether it writes.
fn problems_of(path: &str, method: &str, operation: &Operation) -> Vec<Code> {
    let mut codes = vec![Code::Unauthorized, Code::Forbidden, Code::Internal];
    let has = |place: ParameterIn| {
        let parameters = operation.parameters.iter().flatten();
        parameters.filter(|parameter| matches!(parameter, RefOr::T(parameter) if parameter.parameter_in == place)).count() > 0
    };
    if has(ParameterIn::Path) {
        codes.push(Code::NotFound);
    }
    if has(ParameterIn::Query) {
        codes.push(Code::BadRequest);
    }
    if operation.request_body.is_some() {
        codes.extend([Code::BadRequest, Code::RequestTimeout, Code::PayloadTooLarge]);
        codes.extend([Code::UnsupportedMediaType, Code::InvalidMessage]);
    }
    let is_of_messages = path.contains("/messages");
    match method {
        "get" if is_of_messages => {
            codes.extend([Code::ReplayUnavailable, Code::DatabaseUnavailable]);
        }
        "get" if path.starts_with("/v1/conversations") => codes.push(Code::DatabaseUnavailable),
        "get" => {}
        _ if path.starts_with("/v1/tokens") => {}
        _ => codes.extend([Code::LogUnavailable, Code::Unavailable]),
    }
    if method == "post" && path.starts_with("/v1/conversations") {
        codes.push(Code::DatabaseUnavailable);
    }
    if method == "post" && is_of_messages {
        codes.extend([Code::ConversationClosed, Code::IdempotencyConflict, Code::RateLimited]);
    }
    codes
}

/// One response a status, with the codes that it can have.
fn add_problems(operation: &mut Operation, codes: &[Code]) {
    let mut by_status: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
    for row in codes.iter().map(|code| code.row()) {
        by_status.entry(row.status).or_default().push(row.name);
    }
    for (status, names) in by_status {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let schema = Ref::from_schema_name(ProblemBody::name());
        let content = ContentBuilder::new().schema(Some(schema)).build();
        let response = ResponseBuilder::new()
            .description(names.join(", "))
            .content("application/problem+json", content)
            .build();
        operation.responses.responses.insert(status.to_string(), response.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_takes_nothing_from_elsewhere() {
        for foreign in ["http://", "https://", "src=", "@import", " url("] {
            assert!(!PAGE.contains(foreign), "{foreign}");
        }
        assert!(PAGE.lines().count() <= 250);
    }
}
