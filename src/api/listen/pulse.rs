//! Where a connection stands: reading a head, serving requests or idle.
//! Promises that a head that does not arrive is noticed, and that an idle connection is not taken for one.
//! Does not close anything; the connection does.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::HEAD_TIMEOUT;
use crate::clock::Clock;

/// Where a connection stands: reading a head, serving requests or idle.
///
/// hyper's own timer of heads runs between requests too, so that a short one would close idle connections under
/// clients that keep them for later. This one runs only from a head's first byte to its request.
#[derive(Debug)]
pub(super) struct Pulse {
    clock: Clock,
    began: Instant,
    /// Milliseconds after `began` at which a head began to arrive, plus one; 0 while none does.
    head_since: AtomicU64,
    /// Requests that are being answered.
    serving: AtomicU32,
    /// HTTP/2 has pings and limits of its own.
    is_http2: AtomicBool,
}

/// One request that is being answered.
pub(super) struct Serving(Arc<Pulse>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.serving.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pulse {
    /// A connection that has just begun: its first head is awaited.
    pub(super) fn beginning(clock: Clock) -> Self {
        Self {
            began: clock.now(),
            clock,
            head_since: AtomicU64::new(1),
            serving: AtomicU32::new(0),
            is_http2: AtomicBool::new(false),
        }
    }

    pub(super) fn serve(pulse: &Arc<Self>) -> Serving {
        pulse.serving.fetch_add(1, Ordering::Relaxed);
        pulse.head_since.store(0, Ordering::Relaxed);
        Serving(Arc::clone(pulse))
    }

    pub(super) fn note_read(&self, bytes: &[u8]) {
        if bytes.is_empty() || self.serving.load(Ordering::Relaxed) > 0 {
            return;
        }
        // The whole preface (RFC 9113, 3.4): less of it must not lift the bound on heads.
        if bytes.starts_with(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") {
            self.is_http2.store(true, Ordering::Relaxed);
        }
        if self.head_since.load(Ordering::Relaxed) == 0 {
            self.head_since.store(self.elapsed_ms() + 1, Ordering::Relaxed);
        }
    }

    pub(super) fn is_stalled(&self) -> bool {
        let since = self.head_since.load(Ordering::Relaxed);
        let waited = self.elapsed_ms().saturating_sub(since.saturating_sub(1));
        since != 0
            && !self.is_http2.load(Ordering::Relaxed)
            && u128::from(waited) >= HEAD_TIMEOUT.as_millis()
    }

    fn elapsed_ms(&self) -> u64 {
        let elapsed = self.clock.now().saturating_duration_since(self.began);
        u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    }
}

/// A stream that tells the pulse what it reads.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) stream: TcpStream,
    pub(super) pulse: Arc<Pulse>,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.pulse.note_read(&buffer.filled()[before..]);
        polled
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
