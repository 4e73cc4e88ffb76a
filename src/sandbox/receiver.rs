//! A receiver of webhooks with faults to choose from: for the tests, the benches and `forebay receiver`.
//! Promises that what it took is in its ledger, up to the ledger's bound, and that every endpoint has its own fault.
//! Does not store anything beyond its own life.

mod answer;
mod mode;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;

use crate::clock::{Clock, Timestamp};
use crate::delivery::signature::{Signed, verify};
use answer::{Answer, Ended, answer};

pub use mode::{HELP, Mode};

/// Most receipts of one endpoint that are kept; what is beyond is counted.
pub const LEDGER_MAX: usize = 500_000;

/// Largest request body that is taken, in bytes.
const BODY_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Receipts that a slow watcher may lag behind.
const WATCH_MAX: usize = 1_024;

/// One request that came.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// `webhook-id`.
    pub id: String,
    /// `forebay-attempt`.
    pub attempt: u32,
    /// `forebay-seq`.
    pub seq: u64,
    /// Whether the signature verified; `None` without a secret.
    pub verified: Option<bool>,
    /// When it came, for measuring.
    pub at: Instant,
    /// The body, if bodies are kept.
    pub body: Option<Bytes>,
    /// `webhook-timestamp` and `webhook-signature`, if bodies are kept.
    pub signed: Option<(String, String)>,
}

/// One endpoint of a receiver.
#[derive(Debug, Default)]
struct Endpoint {
    mode: Mode,
    secret: Option<Vec<u8>>,
    keeps_bodies: bool,
    number: u64,
    receipts: Vec<Receipt>,
    open: usize,
    open_max: usize,
}

/// A receiver that runs until it is dropped.
#[derive(Debug)]
pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    _serving: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    endpoints: Mutex<HashMap<String, Endpoint>>,
    count: watch::Sender<u64>,
    told: broadcast::Sender<(String, Receipt)>,
}

impl Receiver {
    /// Listens there; port 0 for any.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn start(address: SocketAddr, clock: Clock) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let (endpoints, count) = (Mutex::default(), watch::Sender::new(0));
        let told = broadcast::Sender::new(WATCH_MAX);
        let shared = Arc::new(Shared { clock, endpoints, count, told });
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, _serving: serving })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of an endpoint; any name will do.
    pub fn url(&self, name: &str) -> String {
        format!("http://{}/hook/{name}", self.address)
    }

    /// From now on this endpoint answers like that.
    pub fn set_mode(&self, name: &str, mode: Mode) {
        self.shared.endpoint(name, |endpoint| endpoint.mode = mode);
    }

    /// From now on this endpoint refuses what this secret has not signed.
    pub fn set_secret(&self, name: &str, secret: Vec<u8>) {
        self.shared.endpoint(name, |endpoint| endpoint.secret = Some(secret));
    }

    /// From now on this endpoint keeps bodies and signatures.
    pub fn keep_bodies(&self, name: &str) {
        self.shared.endpoint(name, |endpoint| endpoint.keeps_bodies = true);
    }

    /// What came to an endpoint, in order.
    pub fn received(&self, name: &str) -> Vec<Receipt> {
        self.shared.endpoint(name, |endpoint| endpoint.receipts.clone())
    }

    /// How many requests came to an endpoint.
    pub fn count(&self, name: &str) -> u64 {
        self.shared.endpoint(name, |endpoint| endpoint.number)
    }

    /// How many different deliveries came to an endpoint.
    pub fn distinct(&self, name: &str) -> usize {
        self.shared.endpoint(name, |endpoint| {
            endpoint
                .receipts
                .iter()
                .map(|receipt| receipt.id.as_str())
                .collect::<HashSet<_>>()
                .len()
        })
    }

    /// Most requests that an endpoint had open at once.
    pub fn open_max(&self, name: &str) -> usize {
        self.shared.endpoint(name, |endpoint| endpoint.open_max)
    }

    /// Waits until `done` holds, looked at with every request that comes; false when it did not in time.
    pub async fn wait(&self, within: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let mut count = self.shared.count.subscribe();
        let waiting = async {
            while !done(self) {
                drop(tokio::time::timeout(Duration::from_millis(50), count.changed()).await);
            }
        };
        tokio::time::timeout(within, waiting).await.is_ok()
    }

    /// Every request as it comes, with the name of its endpoint.
    pub fn watch(&self) -> broadcast::Receiver<(String, Receipt)> {
        self.shared.told.subscribe()
    }
}

impl Shared {
    fn endpoint<T>(&self, name: &str, with: impl FnOnce(&mut Endpoint) -> T) -> T {
        let mut endpoints: MutexGuard<'_, _> =
            self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        match endpoints.get_mut(name) {
            Some(endpoint) => with(endpoint),
            None => with(endpoints.entry(name.to_owned()).or_default()),
        }
    }

    async fn handle(
        &self,
        request: Request<Incoming>,
        socket: &OwnedFd,
    ) -> Result<Response<Answer>, Ended> {
        let (parts, body) = request.into_parts();
        let name = parts.uri.path().rsplit('/').next().unwrap_or_default().to_owned();
        let open = Open::of(self, &name);
        let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(|_cut| Ended)?;
        let (mode, number, verified) = self.take(&name, &parts.headers, body.to_bytes());
        if verified == Some(false) {
            let mut refused = Response::new(Answer::Whole(Bytes::new().into()));
            *refused.status_mut() = StatusCode::UNAUTHORIZED;
            return Ok(refused);
        }
        let answered = answer(&mode, number, self.clock.timestamp(), socket).await;
        drop(open);
        answered
    }

    /// Takes a request into the ledger and says how it is to be answered.
    fn take(&self, name: &str, headers: &HeaderMap, body: Bytes) -> (Mode, u64, Option<bool>) {
        let text =
            |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
        let now = self.clock.timestamp();
        let (mode, number, receipt) = self.endpoint(name, |endpoint| {
            let verified =
                endpoint.secret.as_ref().map(|secret| is_signed(secret, headers, &body, now));
            let kept = endpoint.keeps_bodies;
            let receipt = Receipt {
                id: text("webhook-id").to_owned(),
                attempt: text("forebay-attempt").parse().unwrap_or(0),
                seq: text("forebay-seq").parse().unwrap_or(0),
                verified,
                at: self.clock.now(),
                body: kept.then(|| body.clone()),
                signed: kept.then(|| {
                    (text("webhook-timestamp").to_owned(), text("webhook-signature").to_owned())
                }),
            };
            if endpoint.receipts.len() < LEDGER_MAX {
                endpoint.receipts.push(receipt.clone());
            }
            endpoint.number += 1;
            (endpoint.mode.clone(), endpoint.number - 1, receipt)
        });
        let verified = receipt.verified;
        if self.told.receiver_count() > 0 {
            drop(self.told.send((name.to_owned(), receipt)));
        }
        self.count.send_modify(|count| *count += 1);
        (mode, number, verified)
    }
}

/// Counts a request as open until it is dropped.
struct Open<'a> {
    shared: &'a Shared,
    name: &'a str,
}

impl<'a> Open<'a> {
    fn of(shared: &'a Shared, name: &'a str) -> Self {
        shared.endpoint(name, |endpoint| {
            endpoint.open += 1;
            endpoint.open_max = endpoint.open_max.max(endpoint.open);
        });
        Self { shared, name }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.shared.endpoint(self.name, |endpoint| endpoint.open = endpoint.open.saturating_sub(1));
    }
}

fn is_signed(secret: &[u8], headers: &HeaderMap, body: &[u8], now: Timestamp) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
    let signed = Signed {
        id: text("webhook-id"),
        timestamp: text("webhook-timestamp"),
        signature: text("webhook-signature"),
    };
    verify(&[secret], signed, body, now).is_ok()
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            connections.spawn(talk(stream, Arc::clone(&shared)));
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn talk(stream: TcpStream, shared: Arc<Shared>) {
    drop(stream.set_nodelay(true));
    let Ok(socket) = stream.as_fd().try_clone_to_owned() else { return };
    let socket = Arc::new(socket);
    let service = service_fn(move |request| {
        let (shared, socket) = (Arc::clone(&shared), Arc::clone(&socket));
        async move { shared.handle(request, &socket).await }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .max_headers(200)
        .serve_connection(TokioIo::new(stream), service);
    drop(serving.await);
}
