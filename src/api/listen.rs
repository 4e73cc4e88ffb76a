//! The accept loop: connections of clients, each a supervised task of its own.
//! Promises a bound on connections, an end to slow heads and idle connections, and a drain that finishes what was begun.
//! Does not look into requests; the frame answers them.
//!
//! It is not `axum::serve`, because that sets no timer, so that a head may take for ever.

pub(super) mod onward;
mod pulse;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use metrics::Gauge;
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{debug, info, warn};

use pulse::{Pulse, Watched};

use self::onward::Onward;
use super::frame::Frame;
use crate::lifecycle::{Kind, Roster, Seat, Stop, Supervisor};
use crate::readiness::Board;

/// How long a head may take from its first byte, and how long a new connection may stay silent.
/// It is looked at twice within that time, so that the end comes after 5 to 7.5 seconds.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection may stay idle between requests: longer than the 60 s after which load balancers usually
/// drop idle connections themselves, so that they never send a request into a connection that is being closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// How long sent bytes may stay unacknowledged, also by a reader that has stopped reading: longer than a network that
/// is being mended, in milliseconds (tcp(7), `TCP_USER_TIMEOUT`).
const WRITE_TIMEOUT_MS: u32 = 60_000;

/// How often the other end of an HTTP/2 connection is asked whether it is still there.
const PING_EVERY: Duration = Duration::from_secs(30);

/// Most requests at once on one HTTP/2 connection.
const STREAMS_MAX: u32 = 250;

/// Most headers of a request, and most bytes of its head.
const HEADERS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 32 * 1024;

/// Connections that wait in the kernel to be accepted: those of a few thousand clients that come back together. Linux
/// cuts it at `net.core.somaxconn`, which is this.
const BACKLOG: u32 = 4_096;

/// Pause after the machine refused a connection for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How a door listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most open connections; beyond it new ones wait in the kernel's queue until one ends.
    pub connections_max: usize,
    /// How long the door stays open after the server has said that it is not ready, for load balancers to notice.
    pub drain_delay: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self { connections_max: 10_000, drain_delay: Duration::ZERO }
    }
}

/// The door has run before; its listener is gone.
#[derive(Debug, thiserror::Error)]
#[error("the door has been closed and cannot be opened again")]
pub struct Closed;

/// A bound listener with everything that its connections need.
#[derive(Debug)]
pub struct Door {
    listener: Mutex<Option<TcpListener>>,
    frame: Arc<Frame>,
    supervisor: Supervisor,
    board: Board,
    config: Config,
}

/// Binds an address.
///
/// # Errors
/// When the address is taken or not of this machine.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A server that starts again may take its address while old connections are being forgotten.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

impl Door {
    /// A door on this listener. Connections become tasks of `supervisor`; draining is written on `board`.
    pub fn new(
        listener: TcpListener,
        frame: Frame,
        supervisor: Supervisor,
        board: Board,
        config: Config,
    ) -> Self {
        Self {
            listener: Mutex::new(Some(listener)),
            frame: Arc::new(frame),
            supervisor,
            board,
            config,
        }
    }

    /// Accepts connections until the stop, then closes the listener and lets every connection finish its requests.
    ///
    /// # Errors
    /// [`Closed`] when it ran before.
    pub async fn run(&self, stop: Stop) -> Result<(), Closed> {
        let taken = self.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        let listener = taken.ok_or(Closed)?;
        let slots = Arc::new(Semaphore::new(self.config.connections_max));
        let closing = Roster::default();
        let stopping = async {
            stop.requested().await;
            self.board.drain(self.frame.clock.now());
            tokio::time::sleep(self.config.drain_delay).await;
        };
        tokio::pin!(stopping);
        loop {
            let accepted = tokio::select! {
                () = &mut stopping => break,
                accepted = accept(&listener, &slots) => accepted,
            };
            match accepted {
                Ok((stream, slot)) => self.serve(stream, slot, closing.join()),
                Err(error) if is_of_the_connection(&error) => {
                    debug!(%error, "a connection broke before it began");
                }
                Err(error) => {
                    warn!(%error, "no connection can be accepted: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(listener);
        closing.dismiss();
        info!("the door is closed, open requests are being finished");
        Ok(())
    }

    fn serve(&self, stream: TcpStream, slot: OwnedSemaphorePermit, closing: Seat) {
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "a connection keeps the delay of small packets");
        }
        if let Err(error) = set_tcp_user_timeout(&stream, WRITE_TIMEOUT_MS) {
            debug!(%error, "a connection waits for its reader as long as the kernel does");
        }
        let pulse = Arc::new(Pulse::beginning(self.frame.clock.clone()));
        let connection = Connection {
            stream: Watched { stream, pulse: Arc::clone(&pulse) },
            frame: Arc::clone(&self.frame),
            pulse,
            executor: Streams(self.supervisor.clone()),
            open: Open::counted(self.frame.metrics.open_connections.clone()),
        };
        // On the heap as it is: each layer of the supervisor would keep room for it twice.
        let served = Box::pin(async move {
            connection.run(closing).await;
            drop(slot);
        });
        self.supervisor.spawn(Kind::Door, served);
    }
}

/// Cancel safe: a slot that was taken is given back, and accepting takes a connection only when it is ready.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _peer) = listener.accept().await?;
    Ok((stream, slot))
}

/// Whether an error of accepting is of the one connection and not of the machine (accept(2)).
fn is_of_the_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}

/// Counts itself as open while it lives.
#[derive(Debug)]
struct Open(Gauge);

impl Open {
    fn counted(gauge: Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// What a connection goes on with, once a request has turned it into something else.
type Next = Arc<Mutex<Option<Onward>>>;

struct Connection {
    stream: Watched,
    frame: Arc<Frame>,
    pulse: Arc<Pulse>,
    executor: Streams,
    open: Open,
}

impl Connection {
    async fn run(self, mut closing: Seat) {
        let Self { stream, frame, pulse, executor, open } = self;
        let onward = Next::default();
        // Apart on the heap, so that a socket does not keep the room that HTTP needed.
        let http = Http { stream, frame, pulse, executor };
        let closed = Box::pin(http.serve(&mut closing, Arc::clone(&onward))).await;
        let onward = onward.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(work) = onward.filter(|_| !closed).and_then(|onward| onward.take()) {
            work(closing).await;
        }
        drop(open);
    }
}

/// A connection while it speaks HTTP.
struct Http {
    stream: Watched,
    frame: Arc<Frame>,
    pulse: Arc<Pulse>,
    executor: Streams,
}

impl Http {
    /// Serves requests until the end, or until one turns the connection into something else. Says whether the door
    /// has closed meanwhile.
    async fn serve(self, closing: &mut Seat, onward: Next) -> bool {
        let Self { stream, frame, pulse, executor } = self;
        let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
            let (frame, serving) = (Arc::clone(&frame), Pulse::serve(&pulse));
            let onward = Arc::clone(&onward);
            async move {
                let mut response = frame.answer(request.map(axum::body::Body::new)).await;
                drop(serving);
                if let Some(next) = response.extensions_mut().remove::<Onward>() {
                    *onward.lock().unwrap_or_else(PoisonError::into_inner) = Some(next);
                }
                Ok::<_, Infallible>(response)
            }
        });
        let builder = protocols(executor);
        let served = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        tokio::pin!(served);
        let mut watch = tokio::time::interval(HEAD_TIMEOUT / 2);
        let mut closed = false;
        loop {
            tokio::select! {
                biased;
                ended = served.as_mut() => {
                    if let Err(error) = ended {
                        debug!(%error, "a connection ended with an error: {error}");
                    }
                    return closed;
                }
                () = closing.dismissed(), if !closed => {
                    closed = true;
                    served.as_mut().graceful_shutdown();
                }
                _ = watch.tick() => if pulse.is_stalled() {
                    debug!("a head did not arrive within {HEAD_TIMEOUT:?}");
                    return closed;
                }
            }
        }
    }
}

/// HTTP/1.1 and HTTP/2 with their limits.
fn protocols(executor: Streams) -> auto::Builder<Streams> {
    let mut builder = auto::Builder::new(executor);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .pipeline_flush(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_EVERY)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(32 * 1024);
    builder
}

/// Runs the streams of HTTP/2 connections as supervised tasks.
#[derive(Clone, Debug)]
struct Streams(Supervisor);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, stream: F) {
        self.0.spawn(Kind::Door, stream);
    }
}
