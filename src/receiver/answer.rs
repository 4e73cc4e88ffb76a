//! The answer of each mode: a response with a body that flows, or a connection that ends without one.
//! Promises that a request counts as open until its answer has been handed to the connection, or the connection is gone.
//! Does not choose the status and does not touch the connection.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{HeaderName, HeaderValue, LOCATION, RETRY_AFTER};
use hyper::{HeaderMap, Response, StatusCode};
use time::macros::format_description;
use tokio::time::{Interval, interval};

use super::hook::Open;
use super::mode::Mode;
use crate::clock::Timestamp;

/// A piece of a long body.
static PIECE: [u8; 64 * 1024] = [b'x'; 64 * 1024];

/// The pause between two bytes of `drip`.
const DRIP_EVERY: Duration = Duration::from_secs(1);

/// What is no UTF-8: a byte of no sequence, and a sequence that ends too early.
const INVALID_UTF8: &[u8] = b"not \xff text \xe2\x82";

/// The header that `headers` repeats.
const LINE: HeaderName = HeaderName::from_static("forebay-line");

/// Why a connection ends without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Abrupt {
    /// By a reset.
    #[error("to be reset")]
    Reset,
    /// In order.
    #[error("to be closed")]
    Close,
    /// After bytes that are no HTTP.
    #[error("to be given garbage")]
    Garbage,
}

/// A body, which holds its request open.
pub(super) struct Flow {
    source: Source,
    _open: Option<Open>,
}

enum Source {
    Whole(Option<Bytes>),
    Long(u64),
    Endless,
    Drip(Interval),
}

/// A short answer that belongs to no mode.
pub(super) fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Flow> {
    let text = Some(text.into()).filter(|text| !text.is_empty());
    let mut response = Response::new(Flow { source: Source::Whole(text), _open: None });
    *response.status_mut() = status;
    response
}

/// Does what the mode says, in its time.
///
/// # Errors
/// [`Abrupt`] when the connection is to end instead.
pub(super) async fn act(
    mode: &Mode,
    status: Option<u16>,
    (open, now): (Open, Timestamp),
) -> Result<Response<Flow>, Abrupt> {
    let source = match mode {
        Mode::Reset => return Err(Abrupt::Reset),
        Mode::Close => return Err(Abrupt::Close),
        Mode::Garbage => return Err(Abrupt::Garbage),
        Mode::Hang => std::future::pending().await,
        Mode::Slow(pause) => {
            tokio::time::sleep(*pause).await;
            Source::Whole(None)
        }
        Mode::Drip => Source::Drip(interval(DRIP_EVERY)),
        Mode::Huge { bytes, .. } => Source::Long(*bytes),
        Mode::Endless => Source::Endless,
        Mode::InvalidUtf8 => Source::Whole(Some(Bytes::from_static(INVALID_UTF8))),
        Mode::Answer
        | Mode::Status(_)
        | Mode::Flap { .. }
        | Mode::Redirect(_)
        | Mode::Gone
        | Mode::Rate(_)
        | Mode::RateDate(_)
        | Mode::RetryAfter(_)
        | Mode::Headers(_) => Source::Whole(None),
    };
    let status = status.and_then(|status| StatusCode::from_u16(status).ok());
    let mut response = Response::new(Flow { source, _open: Some(open) });
    *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    add_headers(response.headers_mut(), mode, now);
    Ok(response)
}

/// What a mode says in headers. Values are valid in modes that were read; others are left out.
fn add_headers(headers: &mut HeaderMap, mode: &Mode, now: Timestamp) {
    let (name, text) = match mode {
        Mode::Redirect(url) => (LOCATION, url.clone()),
        Mode::Rate(seconds) => (RETRY_AFTER, seconds.to_string()),
        Mode::RateDate(seconds) => {
            (RETRY_AFTER, http_date(now.plus(Duration::from_secs(*seconds))))
        }
        Mode::RetryAfter(text) => (RETRY_AFTER, text.clone()),
        Mode::Headers(lines) => {
            for line in 0..*lines {
                // Beyond what the map can hold there is nothing to be added.
                if headers.try_append(LINE, HeaderValue::from(line)).is_err() {
                    break;
                }
            }
            return;
        }
        Mode::Answer
        | Mode::Status(_)
        | Mode::Hang
        | Mode::Drip
        | Mode::Slow(_)
        | Mode::Flap { .. }
        | Mode::Reset
        | Mode::Close
        | Mode::Gone
        | Mode::Huge { .. }
        | Mode::Endless
        | Mode::Garbage
        | Mode::InvalidUtf8 => return,
    };
    if let Ok(value) = HeaderValue::from_str(&text) {
        headers.insert(name, value);
    }
}

/// A time as RFC 9110 writes it.
fn http_date(at: Timestamp) -> String {
    let form = format_description!(
        "[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT"
    );
    at.to_offset().format(form).unwrap_or_default()
}

impl Source {
    fn next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        Poll::Ready(match self {
            Self::Whole(bytes) => bytes.take(),
            Self::Long(0) => None,
            Self::Long(left) => {
                let length = usize::try_from(*left).unwrap_or(usize::MAX).min(PIECE.len());
                *left -= length as u64;
                Some(Bytes::from_static(&PIECE[..length]))
            }
            Self::Endless => Some(Bytes::from_static(&PIECE)),
            Self::Drip(every) => {
                ready!(every.poll_tick(context));
                Some(Bytes::from_static(b"."))
            }
        })
    }
}

impl Body for Flow {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.get_mut().source.next(context);
        next.map(|next| next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.source, Source::Whole(None) | Source::Long(0))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Source::Long(left) => SizeHint::with_exact(*left),
            Source::Endless | Source::Drip(_) => SizeHint::default(),
        }
    }
}
