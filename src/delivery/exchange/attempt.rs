//! One attempt: a signed POST, and what came of it.
//! Promises to end within its time, to read a bounded part of the answer, and that a failure has a typed reason.
//! Does not judge what follows.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Method, Request, Response, body::Incoming};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::connect::{Connector, Fault};
use super::egress::Egress;
use super::retry::retry_after;
use super::signature::sign;
use super::verdict::Met;
use crate::clock::Timestamp;
use crate::directory::Channel;
use crate::event::{Delivery, Reason};

/// Most of an answer's body that is read and kept, in bytes.
pub const ANSWER_BYTES_MAX: usize = 16 * 1024;

/// Largest head of an answer, in bytes, and most headers.
const HEAD_BYTES_MAX: usize = 64 * 1024;
const HEADERS_MAX: usize = 100;

/// How long an idle connection to a receiver is kept, and how many of one receiver.
const IDLE_MAX: Duration = Duration::from_secs(30);
const IDLE_CONNECTIONS_MAX: usize = 32;

/// How long an attempt may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// For the whole exchange, the answer's body included.
    pub whole: Duration,
    /// For the connection: the name, and TCP.
    pub connect: Duration,
}

impl Default for Times {
    /// 15 s, of which 5 s for the connection.
    fn default() -> Self {
        Self { whole: Duration::from_secs(15), connect: Duration::from_secs(5) }
    }
}

/// Sends attempts. Cheap to clone; all clones share their connections.
#[derive(Clone, Debug)]
pub struct Sender {
    client: Client<HttpsConnector<Connector>, Full<Bytes>>,
    egress: Egress,
    times: Times,
}

/// What came of an attempt.
#[derive(Clone, Debug)]
pub struct Came {
    /// What it met.
    pub met: Met,
    /// The beginning of the answer's body.
    pub answer: Bytes,
}

impl Sender {
    /// A sender that goes where `egress` permits.
    ///
    /// # Errors
    /// When the machine has no certificates to trust.
    pub fn new(egress: Egress, times: Times) -> std::io::Result<Self> {
        let connector = Connector { egress: egress.clone(), timeout: times.connect };
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_native_roots()?
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .http1_max_buf_size(HEAD_BYTES_MAX)
            .http1_max_headers(HEADERS_MAX)
            .build(connector);
        Ok(Self { client, egress, times })
    }

    /// Whether attempts may go to this URL, as far as its text says.
    pub fn may_go_to(&self, url: &str) -> bool {
        let Ok(uri) = url.parse::<hyper::Uri>() else { return false };
        let (scheme, host) = (uri.scheme_str().unwrap_or_default(), uri.host().unwrap_or_default());
        self.egress.check(scheme, host, uri.port_u16()).is_ok()
    }

    /// Makes one attempt.
    ///
    /// Not cancel safe: the receiver may have it all the same.
    pub async fn send(&self, channel: &Channel, delivery: &Delivery, now: Timestamp) -> Came {
        let nothing = |reason| Came { met: Met::Nothing(reason), answer: Bytes::new() };
        let Some(request) = request(channel, delivery, now) else {
            return nothing(Reason::Blocked);
        };
        let exchange = async {
            let response = self.client.request(request).await.map_err(|error| blame(&error))?;
            let met = Met::Answer {
                status: response.status().as_u16(),
                retry_after: response
                    .headers()
                    .get(RETRY_AFTER)
                    .and_then(|value| retry_after(value.as_bytes(), now)),
            };
            Ok(Came { met, answer: read(response).await? })
        };
        match tokio::time::timeout(self.times.whole, exchange).await {
            Ok(Ok(came)) => came,
            Ok(Err(reason)) => nothing(reason),
            Err(_elapsed) => nothing(Reason::Timeout),
        }
    }
}

/// The request of an attempt; `None` when the channel's URL is none that can be asked for.
fn request(channel: &Channel, delivery: &Delivery, now: Timestamp) -> Option<Request<Full<Bytes>>> {
    let (id, seconds) = (delivery.id.to_string(), now.millis() / 1_000);
    let secrets = channel.secrets(now);
    let secrets: Vec<_> = secrets.iter().map(Vec::as_slice).collect();
    let signature = sign(&secrets, (&id, seconds), &delivery.body);
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(channel.settings.url.as_str())
        .header(CONTENT_TYPE, "application/json")
        .header(USER_AGENT, concat!("forebay/", env!("CARGO_PKG_VERSION")))
        .header("webhook-id", id)
        .header("webhook-timestamp", seconds)
        .header("webhook-signature", signature)
        .header("forebay-attempt", delivery.attempt)
        .header("forebay-seq", delivery.seq);
    if channel.settings.ordered && delivery.seq > 0 {
        // In order means that everything before it was settled.
        request = request.header("forebay-delivered-through", delivery.seq - 1);
    }
    for (name, value) in &channel.settings.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        request = request.header(name, HeaderValue::from_str(value).ok()?);
    }
    request.body(Full::new(delivery.body.clone())).ok()
}

/// The beginning of a body. What is longer is left unread, and its connection is closed with it.
async fn read(response: Response<Incoming>) -> Result<Bytes, Reason> {
    let mut body = response.into_body();
    let mut kept = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_broken| Reason::Broken)?;
        if let Some(data) = frame.data_ref() {
            let room = ANSWER_BYTES_MAX - kept.len();
            kept.extend_from_slice(&data[..data.len().min(room)]);
        }
        if kept.len() == ANSWER_BYTES_MAX {
            break;
        }
    }
    Ok(kept.into())
}

/// The reason that an error of the client comes down to.
fn blame(error: &hyper_util::client::legacy::Error) -> Reason {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    let mut blamed = if error.is_connect() { Reason::Tls } else { Reason::Broken };
    while let Some(present) = cause {
        if let Some(Fault(reason)) = present.downcast_ref::<Fault>() {
            return *reason;
        }
        if present.downcast_ref::<rustls::Error>().is_some() {
            return Reason::Tls;
        }
        if present.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse_too_large) {
            blamed = Reason::TooLarge;
        }
        cause = present.source();
    }
    blamed
}
