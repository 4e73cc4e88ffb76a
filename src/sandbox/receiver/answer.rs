//! The answers of a receiver, good and bad ones.
//! Promises that each mode does on the wire what it says.
//! Does not keep what came.

use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{HeaderValue, LOCATION, RETRY_AFTER};
use hyper::{Response, StatusCode};
use tokio::time::{Interval, interval};

use super::mode::Mode;
use crate::clock::Timestamp;

/// Bytes of one part of a long body.
const PART: usize = 64 * 1024;

/// The body of an answer.
#[derive(Debug)]
pub(super) enum Answer {
    /// This.
    Whole(Full<Bytes>),
    /// So many bytes more; `None` for ever.
    Long(Option<u64>),
    /// One byte at every tick, for ever.
    Drip(Box<Interval>),
}

/// The connection ends here without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the receiver ends the connection")]
pub(super) struct Ended;

impl Body for Answer {
    type Data = Bytes;
    type Error = Ended;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Ended>>> {
        match &mut *self {
            Self::Whole(body) => Pin::new(body)
                .poll_frame(cx)
                .map(|frame| frame.map(|frame| frame.map_err(|e| match e {}))),
            Self::Long(Some(0)) => Poll::Ready(None),
            Self::Long(left) => {
                let most =
                    left.map_or(PART, |left| usize::try_from(left).unwrap_or(PART).min(PART));
                *left = left.map(|left| left - most as u64);
                Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![b'x'; most])))))
            }
            Self::Drip(ticks) => {
                ticks.poll_tick(cx).map(|_| Some(Ok(Frame::data(Bytes::from_static(b".")))))
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Long(Some(left)) => SizeHint::with_exact(*left),
            Self::Long(None) | Self::Drip(_) => SizeHint::default(),
        }
    }
}

/// Answers one request; `number` counts those of its endpoint, from 0. `socket` is the connection's own.
pub(super) async fn answer(
    mode: &Mode,
    number: u64,
    now: Timestamp,
    socket: &OwnedFd,
) -> Result<Response<Answer>, Ended> {
    match mode {
        Mode::Answer => Ok(with(StatusCode::OK, Bytes::new())),
        Mode::Status(code) => {
            let status = StatusCode::from_u16(*code).unwrap_or(StatusCode::OK);
            Ok(with(status, Bytes::from(format!("status {code}"))))
        }
        Mode::Hang => std::future::pending().await,
        Mode::Slow(time) => {
            tokio::time::sleep(*time).await;
            Ok(with(StatusCode::OK, Bytes::new()))
        }
        Mode::Flap(good, bad) => {
            let place = number % u64::from((good + bad).max(1));
            let status = if place < u64::from(*good) { 200 } else { 500 };
            Ok(with(StatusCode::from_u16(status).unwrap_or_default(), Bytes::new()))
        }
        Mode::Reset | Mode::Close | Mode::Garbage => Err(end(mode, socket)),
        Mode::Drip => Ok(Response::new(Answer::Drip(Box::new(interval(Duration::from_secs(1)))))),
        Mode::Huge(bytes) => Ok(Response::new(Answer::Long(Some(*bytes)))),
        Mode::Endless => Ok(Response::new(Answer::Long(None))),
        Mode::InvalidUtf8 => {
            Ok(with(StatusCode::INTERNAL_SERVER_ERROR, Bytes::from_static(b"\xff\xfe\0\x80")))
        }
        Mode::Redirect(_)
        | Mode::Rate(_)
        | Mode::RateDate(_)
        | Mode::RetryAfter(_)
        | Mode::Headers(_) => Ok(with_headers(mode, now)),
    }
}

fn with(status: StatusCode, body: Bytes) -> Response<Answer> {
    let mut response = Response::new(Answer::Whole(Full::new(body)));
    *response.status_mut() = status;
    response
}

fn with_headers(mode: &Mode, now: Timestamp) -> Response<Answer> {
    let value = |text: &str| HeaderValue::from_bytes(text.as_bytes()).ok();
    let (status, name, text) = match mode {
        Mode::Redirect(url) => (StatusCode::FOUND, LOCATION, value(url)),
        Mode::Rate(seconds) => {
            (StatusCode::TOO_MANY_REQUESTS, RETRY_AFTER, value(&seconds.to_string()))
        }
        Mode::RateDate(seconds) => {
            let at = now.plus(Duration::from_secs(*seconds));
            (StatusCode::TOO_MANY_REQUESTS, RETRY_AFTER, value(&http_date(at)))
        }
        Mode::RetryAfter(text) => (StatusCode::SERVICE_UNAVAILABLE, RETRY_AFTER, value(text)),
        _ => (StatusCode::OK, RETRY_AFTER, None),
    };
    let mut response = with(status, Bytes::new());
    if let Some(text) = text {
        response.headers_mut().insert(name, text);
    }
    if let Mode::Headers(count) = mode {
        for number in 0..*count {
            let name = hyper::header::HeaderName::try_from(format!("x-{number}"));
            if let (Ok(name), Some(value)) = (name, value(&"v".repeat(100))) {
                response.headers_mut().append(name, value);
            }
        }
    }
    response
}

fn http_date(at: Timestamp) -> String {
    let form = time::macros::format_description!(
        "[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT"
    );
    at.to_offset().format(form).unwrap_or_default()
}

/// Does to the socket itself what the mode says; the library then closes it.
fn end(mode: &Mode, socket: &OwnedFd) -> Ended {
    match mode {
        Mode::Garbage => {
            rustix::io::write(socket, b"\x00\x01 this is no HTTP \xff\r\n\r\n").unwrap_or(0);
        }
        Mode::Reset => {
            // Where it cannot be set, the connection is closed all the same.
            rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO)).unwrap_or(());
        }
        _ => {}
    }
    Ended
}
