//! The answers of everything that went wrong: RFC 9457 problems, and the table of their codes.
//! Promises that a client sees a code of the table, a status that fits it and a sentence that was written for it.
//! Does not decide what is a problem, and never shows a cause: the frame logs it beside the request's id.

pub mod table;

use std::borrow::Cow;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Path;
use axum::response::{Html, IntoResponse, Response};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, StatusCode};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use table::{Code, TABLE};

/// What is wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Fault {
    /// JSON pointer (RFC 6901) to the field.
    pub pointer: String,
    /// The rule that it breaks.
    pub detail: String,
}

/// Something that went wrong, on its way to the client.
#[derive(Clone, Debug)]
pub struct Problem(Box<Content>);

#[derive(Clone, Debug)]
struct Content {
    code: Code,
    detail: Cow<'static, str>,
    faults: Vec<Fault>,
    /// Watermark and head of the conversation, for replays.
    progress: Option<(u64, Option<u64>)>,
    /// Shortest wait before a retry, where it is known better than by the configured base.
    wait: Option<Duration>,
    headers: HeaderMap,
    cause: Option<String>,
}

impl Problem {
    /// A problem with a sentence for the client.
    pub fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Content {
            code,
            detail: detail.into(),
            faults: Vec::new(),
            progress: None,
            wait: None,
            headers: HeaderMap::new(),
            cause: None,
        }))
    }

    /// A bug: the client learns that it is one, the log learns the cause.
    pub fn internal(cause: impl Into<String>) -> Self {
        let mut problem = Self::new(
            Code::Internal,
            "The server made a mistake. It is logged under this requestId.",
        );
        problem.0.cause = Some(cause.into());
        problem
    }

    /// There is no such thing, or it is another tenant's.
    pub fn not_found(what: &'static str) -> Self {
        Self::new(Code::NotFound, what)
    }

    /// The same with the fields that are wrong.
    #[must_use]
    pub fn with_faults(mut self, faults: Vec<Fault>) -> Self {
        self.0.faults = faults;
        self
    }

    /// The same with what a reader has (everything up to `watermark`) and the conversation's head, if known.
    #[must_use]
    pub fn with_progress(mut self, watermark: u64, head_seq: Option<u64>) -> Self {
        self.0.progress = Some((watermark, head_seq));
        self
    }

    /// The same with the time that must pass at least before a retry.
    #[must_use]
    pub fn with_wait(mut self, wait: Duration) -> Self {
        self.0.wait = Some(wait);
        self
    }

    /// The same with a header.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.headers.append(name, value);
        self
    }

    /// The same with a cause for the log.
    #[must_use]
    pub fn with_cause(mut self, cause: impl Into<String>) -> Self {
        self.0.cause = Some(cause.into());
        self
    }

    /// Which code it has.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// The cause that is to be logged and not shown.
    pub fn cause(&self) -> Option<&str> {
        self.0.cause.as_deref()
    }

    /// The finished answer. `draw` is a random number from which the wait is taken.
    pub fn render(self, request_id: &str, retry_base: Duration, draw: u64) -> Response {
        let content = *self.0;
        let row = content.code.row();
        let wait = row.retryable.then(|| jittered(content.wait.unwrap_or(retry_base), draw));
        let body = ProblemBody {
            r#type: format!("/problems/{}", row.name),
            title: row.title,
            status: row.status,
            detail: content.detail,
            code: row.name,
            retryable: row.retryable,
            retry_after_ms: wait.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
            errors: content.faults,
            request_id: request_id.to_owned(),
            watermark: content.progress.map(|(watermark, _)| watermark),
            head_seq: content.progress.and_then(|(_, head)| head),
        };
        // Serialising cannot fail: the body has only strings, numbers and a list of such.
        let text = serde_json::to_vec(&body).unwrap_or_default();
        let mut response = Response::new(Body::from(text));
        *response.status_mut() =
            StatusCode::from_u16(row.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.extend(content.headers);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(wait) = wait {
            let seconds = wait.as_millis().div_ceil(1_000).max(1);
            if let Ok(value) = HeaderValue::from_str(&seconds.to_string()) {
                headers.insert(RETRY_AFTER, value);
            }
        }
        response
    }
}

/// Uniform in [base, 2·base], so that callers who were refused together do not return together.
fn jittered(base: Duration, draw: u64) -> Duration {
    let span = u64::try_from(base.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
    base.saturating_add(Duration::from_millis(draw % span))
}

impl IntoResponse for Problem {
    /// An empty answer that carries the problem; the frame, which knows the request's id, renders it.
    fn into_response(self) -> Response {
        let mut response = StatusCode::INTERNAL_SERVER_ERROR.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// An answer to something that went wrong (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Problem)]
pub(super) struct ProblemBody {
    /// Path of the page that explains the code.
    #[schema(example = "/problems/not_found")]
    r#type: String,
    /// A few words.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// What went wrong this time.
    #[schema(value_type = String)]
    detail: Cow<'static, str>,
    /// The code, stable over versions.
    #[schema(example = "not_found")]
    code: &'static str,
    /// Whether the same request can succeed later.
    retryable: bool,
    /// How long to wait before a retry, in milliseconds; jittered.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    /// Which fields are wrong, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<Fault>,
    /// Names the request in the server's log.
    request_id: String,
    /// For replays: everything up to this seq was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    watermark: Option<u64>,
    /// For replays: the last seq of the conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    head_seq: Option<u64>,
}

pub(super) fn routes() -> OpenApiRouter {
    OpenApiRouter::new().routes(routes!(explain))
}

/// The page that a problem's `type` points to.
#[utoipa::path(get, path = "/problems/{code}", tag = "docs", params(("code" = String, Path, description = "A problem's code")),
    responses((status = 200, description = "A page about the code", content_type = "text/html", body = String)))]
async fn explain(Path(name): Path<String>) -> Result<Html<String>, Problem> {
    let row = TABLE.iter().find(|row| row.name == name);
    let row = row.ok_or_else(|| Problem::not_found("There is no such problem code."))?;
    let (code, status, title, meaning) = (row.name, row.status, row.title, row.meaning);
    let retry = if row.retryable {
        "It can be tried again: wait as long as <code>Retry-After</code> or <code>retryAfterMs</code> say."
    } else {
        "Trying the same again does not help."
    };
    Ok(Html(format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{code}</title>\
         <style>:root{{color-scheme:light dark}}body{{font:1rem/1.5 system-ui;max-width:40rem;margin:3rem auto;padding:0 1rem}}</style>\
         <h1>{title}</h1><p><code>{code}</code>, HTTP {status}</p><p>{meaning}</p><p>{retry}</p><p><a href=\"/docs\">All calls</a></p></html>"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn body(response: Response) -> serde_json::Value {
        let bytes = axum::body::to_bytes(response.into_body(), 65_536).await.unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    #[tokio::test]
    async fn a_retryable_problem_says_when_in_both_ways() {
        let base = Duration::from_secs(1);
        let problem = Problem::new(Code::ReplayUnavailable, "Later.").with_progress(4, Some(9));
        let response = problem.render("req_1", base, 250);
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[RETRY_AFTER], "2");
        assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
        let json = body(response).await;
        insta::assert_json_snapshot!(json, @r#"
        {
          "code": "replay_unavailable",
          "detail": "Later.",
          "headSeq": 9,
          "requestId": "req_1",
          "retryAfterMs": 1250,
          "retryable": true,
          "status": 503,
          "title": "History cannot be read now",
          "type": "/problems/replay_unavailable",
          "watermark": 4
        }
        "#);
    }

    #[tokio::test]
    async fn a_final_problem_names_no_wait_and_no_cause() {
        let fault = Fault { pointer: "/text".to_owned(), detail: "is too long".to_owned() };
        let problem = Problem::new(Code::InvalidMessage, "A field breaks a rule.")
            .with_faults(vec![fault])
            .with_cause("secret detail");
        let response = problem.render("req_1", Duration::from_secs(1), 7);
        assert!(!response.headers().contains_key(RETRY_AFTER));
        let json = body(response).await;
        assert_eq!(json["errors"][0]["pointer"], "/text");
        assert_eq!(json.get("retryAfterMs"), None);
        assert!(!json.to_string().contains("secret"), "{json}");
    }

    #[test]
    fn waits_lie_between_the_base_and_its_double() {
        let base = Duration::from_millis(100);
        for draw in 0..1_000 {
            let wait = jittered(base, draw);
            assert!(wait >= base && wait <= base * 2, "{wait:?}");
        }
        assert_eq!(jittered(base, 100), base * 2);
        assert_eq!(jittered(Duration::ZERO, u64::MAX), Duration::ZERO);
    }
}
