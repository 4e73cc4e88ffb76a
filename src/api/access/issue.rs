//! The calls that issue and refresh tokens.
//! Promises that a token lives for 24 hours at most, and that a refreshed one is bound to the same.
//! Does not revoke: a token ends by itself, or with its tenant.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Doorkeeper;
use super::tokens::{Grant, TTL_DEFAULT, TTL_MAX, Tokens};
use crate::api::frame::request::{json, parse, rfc3339};
use crate::api::frame::{BodyLimit, Dice, read_body};
use crate::api::problem::{Code, Fault, Problem};
use crate::clock::{Clock, Timestamp};
use crate::event::limits::{BODY_BYTES_MAX, NAME_BYTES_MAX};
use crate::event::{ConversationId, RequestId};

/// What this family can touch.
#[derive(Debug)]
pub(in crate::api) struct Issuer {
    pub(in crate::api) doorkeeper: Arc<Doorkeeper>,
    pub(in crate::api) tokens: Arc<Tokens>,
    pub(in crate::api) clock: Clock,
    pub(in crate::api) dice: Dice,
}

/// What a token is to be bound to.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
#[schema(as = NewToken)]
pub(in crate::api) struct NewTokenBody {
    /// The only conversation that it may touch; any of the tenant's when left out.
    #[schema(example = "cnv_0190000000007000800000000000000a")]
    conversation_id: Option<String>,
    /// The user as whom it speaks, at most 256 bytes; messages then have this sender.
    #[schema(example = "ann", max_length = 256)]
    user_id: Option<String>,
    /// How long it lives: an hour when left out.
    #[schema(minimum = 1, maximum = 86_400)]
    ttl_seconds: Option<u64>,
}

/// A token.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Token)]
pub(in crate::api) struct TokenBody {
    /// To be sent as `Authorization: Bearer`.
    token: String,
    #[serde(serialize_with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    expires_at: Timestamp,
}

pub(in crate::api) fn routes() -> OpenApiRouter<Arc<Issuer>> {
    OpenApiRouter::new().routes(routes!(create)).routes(routes!(refresh))
}

impl Issuer {
    fn answer(&self, grant: &Grant, now: Timestamp) -> Result<Response, Problem> {
        let id = RequestId::generate(now, &mut self.dice.clone());
        let token = self.tokens.issue(grant, now, id);
        let token = token.map_err(|error| Problem::internal(crate::lifecycle::chain(&error)))?;
        let expires_at = grant.expires_at;
        json(StatusCode::CREATED, &TokenBody { token, expires_at })
    }
}

/// Issues a token for an end user.
#[utoipa::path(post, path = "/v1/tokens", tag = "tokens", security(("tenant" = [])), request_body = NewTokenBody,
    responses((status = 201, description = "The token", body = TokenBody)))]
async fn create(State(issuer): State<Arc<Issuer>>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let now = issuer.clock.timestamp();
    let tenant = issuer.doorkeeper.tenant(&parts.headers, now)?;
    let bytes = read_body(&parts.headers, body, BodyLimit(BODY_BYTES_MAX)).await?;
    let wish = if bytes.is_empty() { NewTokenBody::default() } else { parse(&bytes)? };
    let checked = check(wish)?;
    let grant = Grant {
        conversation: checked.conversation,
        user: checked.user,
        ..Grant::starting(now, tenant.id, checked.ttl)
    };
    issuer.answer(&grant, now)
}

/// Gives a token that is still valid another life of the same length.
#[utoipa::path(post, path = "/v1/tokens/refresh", tag = "tokens", security(("user" = [])),
    responses((status = 201, description = "A token bound to the same", body = TokenBody)))]
async fn refresh(State(issuer): State<Arc<Issuer>>, request: Request) -> Result<Response, Problem> {
    let now = issuer.clock.timestamp();
    let (tenant, old) = issuer.doorkeeper.user(request.headers(), now)?;
    let grant = Grant {
        conversation: old.conversation,
        user: old.user,
        ..Grant::starting(now, tenant.id, old.ttl)
    };
    issuer.answer(&grant, now)
}

struct Checked {
    conversation: Option<ConversationId>,
    user: Option<Box<str>>,
    ttl: Duration,
}

fn check(wish: NewTokenBody) -> Result<Checked, Problem> {
    let mut faults = Vec::new();
    let mut fault = |pointer: &str, detail: String| {
        faults.push(Fault { pointer: pointer.to_owned(), detail });
    };
    let conversation = wish.conversation_id.and_then(|text| {
        let id = ConversationId::parse(&text);
        id.map_err(|error| fault("/conversationId", error.to_string())).ok()
    });
    if let Some(user) = &wish.user_id {
        let fits = (1..=NAME_BYTES_MAX).contains(&user.len());
        if !fits || user.chars().any(char::is_control) {
            fault(
                "/userId",
                format!("must have 1 to {NAME_BYTES_MAX} bytes without control characters"),
            );
        }
    }
    let ttl = wish.ttl_seconds.map_or(TTL_DEFAULT, Duration::from_secs);
    if ttl.is_zero() || ttl > TTL_MAX {
        fault("/ttlSeconds", format!("must be a number from 1 to {}", TTL_MAX.as_secs()));
    }
    if faults.is_empty() {
        let user = wish.user_id.map(Into::into);
        Ok(Checked { conversation, user, ttl })
    } else {
        Err(Problem::new(Code::InvalidMessage, "A field breaks a rule.").with_faults(faults))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(json: &str) -> NewTokenBody {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_wish_without_bounds_is_an_hour_of_everything() {
        let checked = check(wish("{}")).unwrap();
        assert_eq!((checked.conversation, checked.user), (None, None));
        assert_eq!(checked.ttl, TTL_DEFAULT);
    }

    #[test]
    fn wishes_beyond_the_rules_are_refused() {
        for text in [
            r#"{"ttlSeconds":0}"#,
            r#"{"ttlSeconds":86401}"#,
            r#"{"userId":""}"#,
            r#"{"userId":"a\u0000b"}"#,
            r#"{"conversationId":"msg_0190000000007000800000000000000a"}"#,
        ] {
            let problem = check(wish(text)).err().unwrap();
            assert_eq!(problem.code(), Code::InvalidMessage, "{text}");
        }
        assert!(check(wish(r#"{"ttlSeconds":86400,"userId":"ann"}"#)).is_ok());
    }
}
