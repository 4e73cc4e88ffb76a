//! The door of sockets: the handshake, and what a connection has to hand.
//! Promises that a connection which cannot be a socket is told so in HTTP, before anything else.
//! Does not talk; `talk` does.

mod desk;
mod early;
pub(super) mod events;
mod frame;
mod incoming;
mod join;
mod joined;
mod place;
mod send;
mod talk;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{
    AUTHORIZATION, CONNECTION, HeaderMap, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tracing::debug;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::frame::Protocol;
use self::talk::Talk;
use super::access::{Doorkeeper, Speaker};
use super::frame::Dice;
use super::frame::request::query;
use super::listen::onward::Onward;
use super::problem::{Code, Problem};
use crate::clock::Clock;
use crate::history::History;
use crate::ingest::Ingest;
use crate::live::hub::Hub;

/// Bytes that are read at once: most frames of clients are smaller. The library's own default, 128 KiB, is what an idle
/// connection would cost.
const READ_BYTES: usize = 2 * 1024;

/// Bytes that are gathered before they are written.
const WRITE_BYTES: usize = 4 * 1024;

/// Most bytes that wait inside of the library for the socket: one more than the largest message of the log.
const WRITE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Beyond this a frame is not read at all (API: close 1009).
const FRAME_BYTES_HARD: usize = 1024 * 1024;

/// What every connection has to hand.
pub(super) struct Sockets {
    pub(super) doorkeeper: Arc<Doorkeeper>,
    pub(super) ingest: Ingest,
    pub(super) history: History,
    pub(super) hub: Hub,
    pub(super) epoch: String,
    pub(super) clock: Clock,
    pub(super) dice: Dice,
    /// Base of the waits that retryable answers name.
    pub(super) retry_base: Duration,
    /// Connections whose first join could not be decided yet.
    pub(super) waiting: AtomicUsize,
}

impl fmt::Debug for Sockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sockets").finish_non_exhaustive()
    }
}

/// Somebody's credential, kept to be looked at again when access was taken away.
#[derive(Clone)]
pub(super) struct Credential {
    bearer: HeaderMap,
    pub(super) speaker: Speaker,
}

impl Credential {
    /// Who it is now.
    pub(super) fn check(sockets: &Sockets, bearer: HeaderMap) -> Result<Self, Problem> {
        let speaker = sockets.doorkeeper.anybody(&bearer, sockets.clock.timestamp())?;
        Ok(Self { bearer, speaker })
    }

    /// From a token or key as it stands in a query or a frame.
    pub(super) fn of_text(sockets: &Sockets, text: &str) -> Result<Self, Problem> {
        let mut bearer = HeaderMap::new();
        if let Ok(value) = HeaderValue::from_str(&format!("Bearer {text}")) {
            bearer.insert(AUTHORIZATION, value);
        }
        Self::check(sockets, bearer)
    }

    /// Whether it is still good.
    pub(super) fn is_good(&self, sockets: &Sockets) -> bool {
        sockets.doorkeeper.anybody(&self.bearer, sockets.clock.timestamp()).is_ok()
    }
}

pub(super) fn routes() -> OpenApiRouter<Arc<Sockets>> {
    OpenApiRouter::new().routes(routes!(socket))
}

/// Conversations as they happen, over a WebSocket.
///
/// The subprotocols are `forebay.v1+json` and `forebay.v1+msgpack`; without one it is the former. The credential is in
/// `Authorization`, in `?token=`, or in the first frame. `docs/PROTOCOL.md` has the frames.
#[utoipa::path(get, path = "/v1/socket", tag = "live", security(("tenant" = []), ("user" = []), ()),
    params(("token" = Option<String>, Query, description = "A token or key, for clients that cannot set headers")),
    responses((status = 101, description = "From here on it is a WebSocket")))]
async fn socket(
    State(sockets): State<Arc<Sockets>>,
    mut request: Request,
) -> Result<Response, Problem> {
    let key = websocket_key(request.headers())?;
    let protocol = protocol(request.headers())?;
    let upgrade = hyper::upgrade::on(&mut request);
    let (parts, _body) = request.into_parts();
    let token = query(&parts)?.into_iter().find(|(name, _)| name == "token");
    let credential = if parts.headers.contains_key(AUTHORIZATION) {
        let value = parts.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
        // A copy, because the value is a part of the buffer into which the whole head was read, and would keep it.
        let value = HeaderValue::from_bytes(value).unwrap_or_else(|_| HeaderValue::from_static(""));
        Some(Credential::check(&sockets, HeaderMap::from_iter([(AUTHORIZATION, value)]))?)
    } else {
        token.map(|(_, token)| Credential::of_text(&sockets, &token)).transpose()?
    };
    let onward = Onward::new(move |seat| {
        Box::pin(async move {
            match upgrade.await {
                Ok(upgraded) => {
                    let io = TokioIo::new(upgraded);
                    let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config()));
                    let talk = Talk::new(sockets, socket.await, protocol, credential);
                    // On the heap once, and not in every future on the way.
                    Box::new(talk).run(seat).await;
                }
                Err(error) => debug!(%error, "a connection did not become a socket"),
            }
        })
    });
    Ok(switching(&key, protocol, onward))
}

fn config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(READ_BYTES)
        .write_buffer_size(WRITE_BYTES)
        .max_write_buffer_size(WRITE_BYTES_MAX)
        .max_message_size(Some(FRAME_BYTES_HARD))
        .max_frame_size(Some(FRAME_BYTES_HARD))
}

fn switching(key: &HeaderValue, protocol: Option<Protocol>, onward: Onward) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(accept) = HeaderValue::try_from(derive_accept_key(key.as_bytes())) {
        headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
    if let Some(protocol) = protocol {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol.name()));
    }
    response.extensions_mut().insert(onward);
    response
}

/// The key of the handshake (RFC 6455, 4.2.1).
fn websocket_key(headers: &HeaderMap) -> Result<HeaderValue, Problem> {
    let has = |name, word: &str| {
        let values =
            headers.get_all(name).iter().filter_map(|value: &HeaderValue| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(word))
    };
    let is_handshake = has(CONNECTION, "upgrade")
        && has(UPGRADE, "websocket")
        && headers.get(SEC_WEBSOCKET_VERSION).is_some_and(|version| version == "13");
    let key = headers.get(SEC_WEBSOCKET_KEY).filter(|_| is_handshake);
    key.cloned().ok_or_else(|| {
        let detail = "Open this path as a WebSocket, version 13, over HTTP/1.1.";
        Problem::new(Code::BadRequest, detail)
            .with_header(UPGRADE, HeaderValue::from_static("websocket"))
    })
}

/// The first subprotocol of the client that is known here; `None` when it names none.
fn protocol(headers: &HeaderMap) -> Result<Option<Protocol>, Problem> {
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    let wanted: Vec<&str> = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .collect();
    let known = |name: &&str| Protocol::ALL.into_iter().find(|protocol| protocol.name() == *name);
    match wanted.iter().find_map(known) {
        Some(protocol) => Ok(Some(protocol)),
        None if wanted.is_empty() => Ok(None),
        None => Err(Problem::new(
            Code::BadRequest,
            "The subprotocol must be forebay.v1+json or forebay.v1+msgpack.",
        )),
    }
}
