//! Connections of the receiver: accepted, read by hyper, and taken back from it when a mode ends them abruptly.
//! Promises that no more of them are open than a bound, and that a body beyond its bound is refused.
//! Does not keep anything of a request; the hooks do.

use std::error::Error as _;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tracing::warn;

use super::Told;
use super::answer::{self, Abrupt, Flow, plain};
use super::hook::{Decision, UNVERIFIED};
use super::ledger::Receipt;
use super::mode::Mode;
use super::yard::Yard;

/// Most connections at once; more wait in the listener's backlog.
const CONNECTIONS_MAX: usize = 16_384;

/// Longest body that is read; a webhook is far shorter.
const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Longest name of an endpoint, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// What a failed accept is given to pass: mostly the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Failed accepts in a row after which the listener is taken for broken.
const ACCEPT_FAILURES_MAX: u32 = 200;

const GARBAGE: &[u8] = b"\x16\x03\x01\x00no http\r\n\r\n\x00\xff";

/// Takes connections until the listener is broken; all end with this future.
pub(super) async fn accept(listener: TcpListener, yard: Arc<Yard>) {
    let mut connections = JoinSet::new();
    let mut failures = 0;
    while failures < ACCEPT_FAILURES_MAX {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, _peer)) => {
                    failures = 0;
                    connections.spawn(converse(stream, Arc::clone(&yard)));
                }
                Err(error) => {
                    failures += 1;
                    warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_ended) = connections.join_next() => {}
        }
    }
}

async fn converse(stream: TcpStream, yard: Arc<Yard>) {
    // Without it a small answer would wait for the sender's delayed ack; an error shows as latency only.
    drop(stream.set_nodelay(true));
    // Boxed, because hyper gives the stream back only if the future can be moved.
    let service = service_fn(move |request| {
        Box::pin(answer_to(Arc::clone(&yard), request)) as Pin<Box<dyn Future<Output = _> + Send>>
    });
    let mut connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let ended = poll_fn(|context| connection.poll_without_shutdown(context)).await;
    let abrupt = ended.err().and_then(|error| error.source()?.downcast_ref::<Abrupt>().copied());
    let mut stream = connection.into_parts().io.into_inner();
    // The sender may be gone; then there is nobody to be surprised.
    match abrupt {
        Some(Abrupt::Reset) => drop(stream.set_zero_linger()),
        Some(Abrupt::Garbage) => drop(stream.write_all(GARBAGE).await),
        Some(Abrupt::Close) | None => {}
    }
}

async fn answer_to(yard: Arc<Yard>, request: Request<Incoming>) -> Result<Response<Flow>, Abrupt> {
    let path = request.uri().path();
    let (family, name) = path.get(1..).and_then(|path| path.split_once('/')).unwrap_or_default();
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Ok(plain(StatusCode::NOT_FOUND, "there are /hook/NAME and /modes/NAME\n"));
    }
    let name: Box<str> = name.into();
    match (family, request.method()) {
        ("hook", &Method::POST) => receive(&yard, name, request).await,
        ("modes", &Method::PUT) => put_mode(&yard, &name, request).await,
        ("modes", &Method::GET) => {
            let mode = yard.known(&name).map_or_else(|| Arc::clone(&yard.mode), |hook| hook.mode());
            Ok(plain(StatusCode::OK, json_of(&mode)))
        }
        ("hook" | "modes", _) => Ok(plain(StatusCode::METHOD_NOT_ALLOWED, "")),
        _ => Ok(plain(StatusCode::NOT_FOUND, "there are /hook/NAME and /modes/NAME\n")),
    }
}

async fn receive(
    yard: &Yard,
    name: Box<str>,
    request: Request<Incoming>,
) -> Result<Response<Flow>, Abrupt> {
    let now = (yard.clock.now(), yard.clock.timestamp());
    let Some(hook) = yard.hook_if_room(&name) else {
        return Ok(full());
    };
    let open = hook.enter();
    let (head, body) = request.into_parts();
    let body = match read(body).await {
        Ok(body) => body,
        Err(unread) => return unread.answer(),
    };
    let mut receipt = Receipt::new(&head.headers, body, now);
    hook.verify(&mut receipt, now.1);
    let decision = hook.receive(receipt, &yard.room, |receipt| {
        let Some(tell) = &yard.tell else {
            return;
        };
        if tell.try_send(Told { endpoint: name, receipt: receipt.clone() }).is_err() {
            yard.untold.fetch_add(1, Ordering::Relaxed);
        }
    });
    match decision {
        Decision::Act(mode, status) => answer::act(&mode, status, (open, now.1)).await,
        Decision::Refuse => {
            let status = StatusCode::from_u16(UNVERIFIED).unwrap_or(StatusCode::UNAUTHORIZED);
            Ok(plain(status, "the signature does not verify\n"))
        }
    }
}

async fn put_mode(
    yard: &Yard,
    name: &str,
    request: Request<Incoming>,
) -> Result<Response<Flow>, Abrupt> {
    let body = match read(request.into_body()).await {
        Ok(body) => body,
        Err(unread) => return unread.answer(),
    };
    Ok(match (Mode::from_body(&body), yard.hook_if_room(name)) {
        (Ok(mode), Some(hook)) => {
            let json = json_of(&mode);
            hook.set_mode(mode);
            plain(StatusCode::OK, json)
        }
        (Err(bad), _) => plain(StatusCode::UNPROCESSABLE_ENTITY, format!("{bad}\n")),
        (Ok(_), None) => full(),
    })
}

/// Why a body was not read to its end.
enum Unread {
    /// It is longer than [`BODY_BYTES_MAX`].
    TooLarge,
    /// The sender broke off.
    Gone,
}

impl Unread {
    fn answer(self) -> Result<Response<Flow>, Abrupt> {
        match self {
            Self::TooLarge => Ok(plain(StatusCode::PAYLOAD_TOO_LARGE, "")),
            Self::Gone => Err(Abrupt::Close),
        }
    }
}

async fn read(body: Incoming) -> Result<Bytes, Unread> {
    // One that says how long it is need not be sent.
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(Unread::TooLarge);
    }
    match Limited::new(body, BODY_BYTES_MAX).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Unread::TooLarge),
        Err(_gone) => Err(Unread::Gone),
    }
}

fn full() -> Response<Flow> {
    plain(StatusCode::SERVICE_UNAVAILABLE, "there are too many endpoints\n")
}

fn json_of(mode: &Mode) -> String {
    format!("{}\n", serde_json::json!({ "mode": mode.to_string() }))
}
