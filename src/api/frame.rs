//! What every request passes on its way in and every answer on its way out.
//! Promises that each answer names its request, that problems and panics are answered as problems, and that all are counted.
//! Does not authenticate and does not know what the routes do.

pub mod request;
mod shortage;

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use hyper::header::{
    ALLOW, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
};
use hyper::{Method, StatusCode};
use rand::TryRng;
use tower::Service as _;
use tracing::{debug, error};

pub use self::shortage::Shortage;
use super::messages::Sends;
use super::problem::{Code, Problem};
use crate::clock::Clock;
use crate::event::limits::TRACE_BYTES_MAX;
use crate::event::{ConversationId, RequestId};
use crate::metrics::{Api, Route, Source};

/// Names a request in answers and logs; a caller may choose it.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// W3C Trace Context.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Longest request id that a caller may choose, in bytes.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// How long a body may take to arrive. The largest, 2 MiB, needs 1.7 Mbit/s.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Random numbers for what need not be secret: request ids and the jitter of waits. Clones draw from the same source.
///
/// `SplitMix64` over an atomic counter (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014):
/// requests draw at once without waiting for each other.
#[derive(Clone, Debug)]
pub struct Dice(Arc<AtomicU64>);

impl Dice {
    /// Draws that follow from this seed.
    pub fn seeded(seed: u64) -> Self {
        Self(Arc::new(AtomicU64::new(seed)))
    }

    /// The next number.
    pub fn draw(&self) -> u64 {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let z = self.0.fetch_add(GOLDEN, Ordering::Relaxed).wrapping_add(GOLDEN);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl TryRng for Dice {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((self.draw() >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.draw())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for chunk in bytes.chunks_mut(8) {
            let drawn = self.draw().to_le_bytes();
            chunk.copy_from_slice(&drawn[..chunk.len()]);
        }
        Ok(())
    }
}

/// Marks an answer that is what it is, whatever its status: a probe's 503 is no problem document.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deliberate;

/// The router with everything around it.
#[derive(Clone, Debug)]
pub struct Frame {
    /// All routes.
    pub router: Router,
    /// The call that nearly all traffic is: it is also in the router, whose way there would be a tenth of its cost.
    pub(super) sends: Option<Arc<Sends>>,
    /// Where time comes from.
    pub clock: Clock,
    /// Request ids and jitter.
    pub dice: Dice,
    /// Where requests are counted.
    pub metrics: Api,
    /// Where answers are counted that were given up for Postgres.
    pub shortage: Shortage,
    /// Base of the waits that retryable answers name.
    pub retry_base: Duration,
}

impl Frame {
    /// Answers one request. Never fails and never panics.
    pub async fn answer(&self, request: Request) -> Response {
        let started = self.clock.now();
        let route = route_of(request.method(), request.uri().path());
        let id = self.request_id(request.headers());
        let trace = request.headers().get(TRACEPARENT).filter(|value| is_trace(value)).cloned();
        let work = AssertUnwindSafe(self.route(request)).catch_unwind();
        let answered = match work.await {
            Ok(Ok(response)) => response,
            Err(panic) => {
                self.metrics.panics.increment(1);
                let text = panic_text(&*panic);
                let mut response = Response::new(Body::empty());
                *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
                response.extensions_mut().insert(Problem::internal(text));
                response
            }
        };
        let mut response = self.finish(answered, (&id, route));
        let headers = response.headers_mut();
        headers.insert(REQUEST_ID, id);
        if let Some(trace) = trace {
            headers.insert(TRACEPARENT, trace);
        }
        let took = self.clock.now().saturating_duration_since(started);
        self.metrics.requests(route, response.status().as_u16()).increment(1);
        self.metrics.duration(route).record(took);
        response
    }

    async fn route(&self, request: Request) -> Result<Response, Infallible> {
        match (&self.sends, conversation_of_send(&request)) {
            (Some(sends), Some(conversation)) => {
                Ok(sends.one(conversation, request).await.into_response())
            }
            _ => self.router.clone().call(request).await,
        }
    }

    /// Renders the problem that a response carries, or the one that its bare status stands for.
    fn finish(&self, mut response: Response, (id, route): (&HeaderValue, Route)) -> Response {
        let carried = response.extensions_mut().remove::<Problem>();
        let deliberate = response.extensions().get::<Deliberate>().is_some();
        let problem = match carried {
            Some(problem) => problem,
            None => match bare(response.status()).filter(|_| !deliberate) {
                Some(problem) => problem,
                None => return response,
            },
        };
        let id = id.to_str().unwrap_or_default();
        match (problem.code(), problem.cause()) {
            (Code::Internal, cause) => {
                let cause = cause.unwrap_or("unknown");
                error!(request.id = %id, error = %cause, "request {id} failed: {cause}");
            }
            (code @ (Code::DatabaseUnavailable | Code::ReplayUnavailable), cause) => {
                let cause = cause.unwrap_or_else(|| code.row().title);
                self.shortage.note(source_of(route), cause, self.clock.now());
                let code = code.row().name;
                debug!(request.id = %id, error = %cause, "request {id} was answered {code}: {cause}");
            }
            (code, Some(cause)) => {
                let code = code.row().name;
                debug!(request.id = %id, error = %cause, "request {id} was answered {code}: {cause}");
            }
            (_, None) => {}
        }
        let mut rendered = problem.render(id, self.retry_base, self.dice.draw());
        if let Some(allow) = response.headers_mut().remove(ALLOW) {
            rendered.headers_mut().insert(ALLOW, allow);
        }
        rendered
    }

    /// The caller's own id for the request if it is harmless, else a new one.
    fn request_id(&self, headers: &HeaderMap) -> HeaderValue {
        if let Some(chosen) = headers.get(REQUEST_ID).filter(|id| is_request_id(id.as_bytes())) {
            return chosen.clone();
        }
        let id = RequestId::generate(self.clock.timestamp(), &mut self.dice.clone()).to_string();
        HeaderValue::try_from(id).unwrap_or_else(|_invalid| HeaderValue::from_static("req"))
    }
}

/// The conversation of `POST /v1/conversations/{id}/messages`; `None` for every other call and for ids that are none.
fn conversation_of_send(request: &Request) -> Option<ConversationId> {
    let rest = request.uri().path().strip_prefix("/v1/conversations/")?;
    let id = rest.strip_suffix("/messages").filter(|_| request.method() == Method::POST)?;
    ConversationId::parse(id).ok()
}

/// The problem that a status without one stands for; `None` when the status is no failure.
fn bare(status: StatusCode) -> Option<Problem> {
    if !status.is_client_error() && !status.is_server_error() {
        return None;
    }
    Some(match status.as_u16() {
        404 => Problem::not_found("There is no such path. /docs lists those that there are."),
        405 => Problem::new(Code::MethodNotAllowed, "The path does not have this method."),
        413 => Problem::new(Code::PayloadTooLarge, "The request is too large."),
        415 => Problem::new(Code::UnsupportedMediaType, "Send JSON."),
        400..500 => Problem::new(Code::BadRequest, "The request cannot be read."),
        _ => Problem::internal(format!("a bare status {status}")),
    })
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&'static str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("without a message"))
}

/// Whether a caller's request id can stand in headers and log lines.
fn is_request_id(id: &[u8]) -> bool {
    let allowed = |b: &u8| b.is_ascii_alphanumeric() || b"._:~-+/=@".contains(b);
    (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()) && id.iter().all(allowed)
}

/// Whether a value is a `traceparent` (W3C Trace Context, 3.2.2) that is short enough to be carried along.
fn is_trace(value: &HeaderValue) -> bool {
    let bytes = value.as_bytes();
    let hex = |range: std::ops::Range<usize>| {
        bytes[range].iter().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(b))
    };
    let is_null = |range: std::ops::Range<usize>| bytes[range].iter().all(|b| *b == b'0');
    if !(55..=TRACE_BYTES_MAX).contains(&bytes.len()) {
        return false;
    }
    let dashes = [2, 35, 52].iter().all(|at| bytes[*at] == b'-');
    let known = &bytes[..2] == b"00" && bytes.len() == 55;
    let later =
        &bytes[..2] != b"00" && &bytes[..2] != b"ff" && (bytes.len() == 55 || bytes[55] == b'-');
    let fields = hex(0..2) && hex(3..35) && hex(36..52) && hex(53..55);
    dashes && fields && (known || later) && !is_null(3..35) && !is_null(36..52)
}

/// The request's `traceparent`, if it is valid.
pub(super) fn trace(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(TRACEPARENT).filter(|value| is_trace(value))?;
    value.to_str().ok()
}

/// Which row of the metrics a request counts for. Paths that no route has count as their nearest family.
pub(super) fn route_of(method: &Method, path: &str) -> Route {
    let mut parts = path.split('/').skip(1);
    let head = [parts.next(), parts.next(), parts.next(), parts.next()];
    match head.map(Option::unwrap_or_default) {
        ["v1", "conversations", "", _] => Route::Open,
        ["v1", "conversations", _, ""] => Route::Conversation,
        ["v1", "conversations", _, "messages"] if method == Method::POST => Route::Send,
        ["v1", "conversations", _, "messages"] => Route::Page,
        ["v1", "conversations", _, "messages:batch"] => Route::SendBatch,
        ["v1", "conversations", _, "close" | "reopen"] => Route::Change,
        ["v1", "conversations", _, "events"] | ["v1", "socket", ..] => Route::Live,
        ["v1", "tokens", ..] => Route::Tokens,
        ["v1", "channels" | "deliveries" | "messages", ..] => Route::Channels,
        ["v1", "tenants" | "operator", ..] => Route::Operator,
        ["livez" | "readyz" | "metrics", ..] => Route::Probe,
        ["docs" | "openapi.json" | "problems" | "demo" | "forebay.js" | "asyncapi.yaml", ..] => {
            Route::Docs
        }
        _ => Route::Other,
    }
}

/// By which door a route leads in.
fn source_of(route: Route) -> Source {
    if route == Route::Operator { Source::Operator } else { Source::Rest }
}

/// A limit of a body's size, as it is named to clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyLimit(pub usize);

impl BodyLimit {
    fn exceeded(self) -> Problem {
        let detail = format!("The body exceeds the limit bodyBytes = {}.", self.0);
        Problem::new(Code::PayloadTooLarge, detail)
            .with_header(CONNECTION, HeaderValue::from_static("close"))
    }

    /// The size that the request announces, checked against the limit; the limit itself when it announces none.
    pub(super) fn announced(self, body: &Body) -> Result<usize, Problem> {
        let hint = body.size_hint();
        if hint.lower() > self.0 as u64 {
            return Err(self.exceeded());
        }
        Ok(hint.upper().and_then(|size| usize::try_from(size).ok()).unwrap_or(self.0))
    }
}

/// Reads a body of JSON, as far as the limit and the time allow. A body of one piece is not copied.
pub(super) async fn read_body(
    headers: &HeaderMap,
    body: Body,
    limit: BodyLimit,
) -> Result<Bytes, Problem> {
    check_media_type(headers)?;
    limit.announced(&body)?;
    read_within(body, limit, BODY_TIMEOUT).await
}

async fn read_within(mut body: Body, limit: BodyLimit, time: Duration) -> Result<Bytes, Problem> {
    let reading = async {
        let mut first = Bytes::new();
        let mut rest = Vec::new();
        while let Some(frame) = body.frame().await {
            let broken = |error: axum::Error| {
                Problem::new(Code::BadRequest, "The body broke off.").with_cause(error.to_string())
            };
            let Ok(data) = frame.map_err(broken)?.into_data() else {
                continue;
            };
            if first.len() + rest.len() + data.len() > limit.0 {
                return Err(limit.exceeded());
            }
            if first.is_empty() {
                first = data;
            } else {
                rest.extend_from_slice(&data);
            }
        }
        Ok(if rest.is_empty() { first } else { [&*first, &*rest].concat().into() })
    };
    tokio::time::timeout(time, reading).await.unwrap_or_else(|_elapsed| {
        let detail = format!("The body did not arrive within {} s.", time.as_secs());
        Err(Problem::new(Code::RequestTimeout, detail)
            .with_header(CONNECTION, HeaderValue::from_static("close")))
    })
}

/// JSON in UTF-8, uncompressed; a request that does not say what it sends is believed to send that.
fn check_media_type(headers: &HeaderMap) -> Result<(), Problem> {
    let refused = |detail: &'static str| Err(Problem::new(Code::UnsupportedMediaType, detail));
    if headers.get(CONTENT_ENCODING).is_some_and(|value| value != "identity") {
        return refused("A compressed body is not accepted.");
    }
    let Some(value) = headers.get(CONTENT_TYPE) else {
        return Ok(());
    };
    // The usual spelling, without further ado.
    if value == "application/json" {
        return Ok(());
    }
    let Ok(text) = value.to_str() else {
        return refused("Content-Type must be application/json.");
    };
    let mut parts = text.split(';').map(str::trim);
    if !parts.next().unwrap_or_default().eq_ignore_ascii_case("application/json") {
        return refused("Content-Type must be application/json.");
    }
    let foreign = |part: &str| {
        part.split_once('=').is_some_and(|(name, charset)| {
            name.eq_ignore_ascii_case("charset")
                && !charset.trim_matches('"').eq_ignore_ascii_case("utf-8")
        })
    };
    if parts.any(foreign) { refused("The charset must be utf-8.") } else { Ok(()) }
}

#[cfg(test)]
mod tests;
