//! A subscriber that receives webhooks and behaves as badly as it is told to: for tests, benchmarks and `forebay receiver`.
//! Promises that a request is in the ledger before it is answered, and that all it holds is bounded by number or by bytes.
//! Does not speak TLS or HTTP/2, and keeps nothing over its end.

mod answer;
mod connection;
mod grammar;
mod hook;
mod ledger;
mod mode;
mod yard;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::api;
use crate::clock::Clock;
use yard::Yard;

pub use grammar::{BadMode, KINDS, Kind};
pub use ledger::{BODY_BYTES_KEPT_MAX, ENTRIES_MAX, Receipt};
pub use mode::Mode;

/// How a receiver starts.
pub struct Options {
    /// The mode of every endpoint whose own was not set.
    pub mode: Mode,
    /// The secret of every endpoint whose own was not set; without one nothing is verified.
    pub secret: Option<Vec<u8>>,
    /// Most requests that are kept, over all endpoints.
    pub entries_max: usize,
    /// Where every receipt goes, with its body; what finds the queue full is counted and not told.
    pub tell: Option<mpsc::Sender<Told>>,
}

impl Default for Options {
    fn default() -> Self {
        Self { mode: Mode::Answer, secret: None, entries_max: ENTRIES_MAX, tell: None }
    }
}

impl fmt::Debug for Options {
    /// Without the secret.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Options")
            .field("mode", &self.mode)
            .field("entries_max", &self.entries_max)
            .finish_non_exhaustive()
    }
}

/// A receipt on its way to whoever watches.
#[derive(Clone, Debug)]
pub struct Told {
    /// The name of the endpoint.
    pub endpoint: Box<str>,
    /// The receipt, with its body.
    pub receipt: Receipt,
}

/// What was waited for did not come in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{endpoint} received {received} requests within {within:?}, {wanted} were awaited")]
pub struct Late {
    /// The name of the endpoint.
    pub endpoint: String,
    /// How many were awaited.
    pub wanted: usize,
    /// How many came.
    pub received: usize,
    /// How long it was waited.
    pub within: Duration,
}

/// A text that is no secret of Standard Webhooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a secret is whsec_ and base64")]
pub struct BadSecret;

/// The bytes of a secret that is written `whsec_…`.
///
/// # Errors
/// [`BadSecret`]
pub fn read_secret(text: &str) -> Result<Vec<u8>, BadSecret> {
    let bytes = text.strip_prefix("whsec_").and_then(|text| STANDARD.decode(text).ok());
    bytes.filter(|bytes| !bytes.is_empty()).ok_or(BadSecret)
}

/// A receiver that listens until it is dropped. `POST /hook/NAME` is the endpoint NAME, which comes into being
/// with its first request; `PUT /modes/NAME` sets its mode, `GET /modes/NAME` tells it.
pub struct Receiver {
    yard: Arc<Yard>,
    address: SocketAddr,
    listening: JoinSet<()>,
}

impl fmt::Debug for Receiver {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Receiver").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Receiver {
    /// Listens on an address, port 0 for a free one. To be called within a runtime, whose threads do the work.
    ///
    /// # Errors
    /// When the address is taken or not of this machine.
    pub fn start(listen: SocketAddr, clock: Clock) -> io::Result<Self> {
        Self::start_with(listen, clock, Options::default())
    }

    /// The same with other options.
    ///
    /// # Errors
    /// When the address is taken or not of this machine.
    pub fn start_with(listen: SocketAddr, clock: Clock, options: Options) -> io::Result<Self> {
        let listener = api::listen::bind(listen)?;
        let address = listener.local_addr()?;
        let yard = Arc::new(Yard::new(options, clock));
        let mut listening = JoinSet::new();
        listening.spawn(connection::accept(listener, Arc::clone(&yard)));
        Ok(Self { yard, address, listening })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of an endpoint.
    pub fn url(&self, name: &str) -> String {
        format!("http://{}/hook/{name}", self.address)
    }

    /// Sets how an endpoint behaves from the next request on. Its pattern, if it has one, begins anew.
    pub fn set_mode(&self, name: &str, mode: Mode) {
        self.yard.hook(name).set_mode(mode);
    }

    /// From now on an endpoint answers 401 to what is not signed with this secret.
    pub fn set_secret(&self, name: &str, secret: Vec<u8>) {
        self.yard.hook(name).set_secret(secret.into());
    }

    /// Whether bodies are kept from now on, up to [`BODY_BYTES_KEPT_MAX`].
    pub fn keep_bodies(&self, keep: bool) {
        self.yard.room.keep_bodies.store(keep, Ordering::Relaxed);
    }

    /// The requests of an endpoint that were kept, in the order in which they were read to their end.
    pub fn received(&self, name: &str) -> Vec<Receipt> {
        self.yard.hook(name).read(|ledger| ledger.receipts.clone())
    }

    /// How many requests an endpoint received, with those that did not verify.
    pub fn count(&self, name: &str) -> usize {
        self.yard.hook(name).read(|ledger| ledger.count)
    }

    /// How many different `webhook-id`s there are among the requests that were kept.
    pub fn distinct(&self, name: &str) -> usize {
        self.yard.hook(name).read(|ledger| ledger.ids.len())
    }

    /// How many requests of an endpoint did not verify.
    pub fn unverified(&self, name: &str) -> usize {
        self.yard.hook(name).read(|ledger| ledger.unverified)
    }

    /// How many requests of an endpoint were counted only, because there was no room to keep them.
    pub fn dropped(&self, name: &str) -> usize {
        self.yard.hook(name).read(|ledger| ledger.dropped)
    }

    /// The highest number of requests that an endpoint had open at once.
    pub fn in_flight_max(&self, name: &str) -> usize {
        self.yard.hook(name).open_max()
    }

    /// How many receipts could not be told, because the queue was full.
    pub fn untold(&self) -> usize {
        self.yard.untold.load(Ordering::Relaxed)
    }

    /// Forgets every request and begins to count anew. Modes and secrets stay.
    pub fn clear(&self) {
        self.yard.clear();
    }

    /// Waits until an endpoint has received that many requests.
    ///
    /// Cancel safe: it only looks.
    ///
    /// # Errors
    /// [`Late`] when it has not in time.
    pub async fn wait_for(&self, name: &str, wanted: usize, within: Duration) -> Result<(), Late> {
        let hook = self.yard.hook(name);
        let enough = async {
            loop {
                let mut arrived = pin!(hook.arrived.notified());
                arrived.as_mut().enable();
                if hook.read(|ledger| ledger.count) >= wanted {
                    return;
                }
                arrived.await;
            }
        };
        timeout(within, enough).await.map_err(|_elapsed| {
            let received = hook.read(|ledger| ledger.count);
            Late { endpoint: name.to_owned(), wanted, received, within }
        })
    }

    /// Ends every connection and frees the address. Dropping does so as well, at some later moment.
    pub async fn stop(mut self) {
        self.listening.shutdown().await;
    }
}

#[cfg(test)]
mod tests;
