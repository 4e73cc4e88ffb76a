//! Pure: the ways in which an endpoint of the receiver behaves.
//! Promises that the status of an answer depends on the mode and on how many requests it has seen, on nothing else.
//! Does not answer anything; the texts that it writes are read by `grammar`.

use std::fmt;
use std::time::Duration;

/// How an endpoint behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// 200 with an empty body.
    Answer,
    /// This status, 200 to 599, with an empty body.
    Status(u16),
    /// No answer, and the connection stays open.
    Hang,
    /// 200, and one byte of body a second for ever.
    Drip,
    /// 200 after this time.
    Slow(Duration),
    /// So many times 200, then so many times 500, and again.
    Flap {
        /// How many are answered 200.
        good: u32,
        /// How many are answered 500 after that.
        bad: u32,
    },
    /// The connection is reset once the request has been read.
    Reset,
    /// The connection is closed in order once the request has been read.
    Close,
    /// 307 to this place: who follows it repeats the request there.
    Redirect(String),
    /// 410.
    Gone,
    /// 429 with `Retry-After` in seconds.
    Rate(u64),
    /// 429 with `Retry-After` as an HTTP date so many seconds ahead.
    RateDate(u64),
    /// 503 with this text as `Retry-After`.
    RetryAfter(String),
    /// This status with a body of this length.
    Huge {
        /// Bytes of the body.
        bytes: u64,
        /// The status.
        status: u16,
    },
    /// 200 and a chunked body that is sent as fast as it is read and does not end.
    Endless,
    /// Bytes that are no HTTP, then the end of the connection.
    Garbage,
    /// 200 with this many header lines.
    Headers(usize),
    /// 500 with a body that is no UTF-8.
    InvalidUtf8,
}

impl Mode {
    /// The status of the answer to the request with this number, from 0 since the mode was set; `None` without an answer.
    pub fn status(&self, number: u64) -> Option<u16> {
        match self {
            Self::Answer | Self::Drip | Self::Slow(_) | Self::Endless | Self::Headers(_) => {
                Some(200)
            }
            Self::Status(status) | Self::Huge { status, .. } => Some(*status),
            Self::Flap { good, bad } => {
                let (good, bad) = (u64::from(*good), u64::from(*bad));
                let place = number.checked_rem(good + bad).unwrap_or(0);
                Some(if place < good { 200 } else { 500 })
            }
            Self::Redirect(_) => Some(307),
            Self::Gone => Some(410),
            Self::Rate(_) | Self::RateDate(_) => Some(429),
            Self::RetryAfter(_) => Some(503),
            Self::InvalidUtf8 => Some(500),
            Self::Hang | Self::Reset | Self::Close | Self::Garbage => None,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answer => out.write_str("answer"),
            Self::Status(status) => write!(out, "status:{status}"),
            Self::Hang => out.write_str("hang"),
            Self::Drip => out.write_str("drip"),
            Self::Slow(pause) if pause.subsec_millis() == 0 => {
                write!(out, "slow:{}s", pause.as_secs())
            }
            Self::Slow(pause) => write!(out, "slow:{}ms", pause.as_millis()),
            Self::Flap { good, bad } => write!(out, "flap:{good}:{bad}"),
            Self::Reset => out.write_str("reset"),
            Self::Close => out.write_str("close"),
            Self::Redirect(url) => write!(out, "redirect:{url}"),
            Self::Gone => out.write_str("gone"),
            Self::Rate(seconds) => write!(out, "rate:{seconds}"),
            Self::RateDate(seconds) => write!(out, "rate-date:{seconds}"),
            Self::RetryAfter(text) => write!(out, "retry-after:{text}"),
            Self::Huge { bytes, status: 200 } => write!(out, "huge:{bytes}"),
            Self::Huge { bytes, status } => write!(out, "huge:{bytes}:{status}"),
            Self::Endless => out.write_str("endless"),
            Self::Garbage => out.write_str("garbage"),
            Self::Headers(lines) => write!(out, "headers:{lines}"),
            Self::InvalidUtf8 => out.write_str("invalid-utf8"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flap_repeats_its_pattern() {
        let flap = Mode::Flap { good: 4, bad: 1 };
        let statuses: Vec<u16> = (0..10).filter_map(|number| flap.status(number)).collect();
        assert_eq!(statuses, [200, 200, 200, 200, 500, 200, 200, 200, 200, 500]);
        assert_eq!(Mode::Flap { good: 0, bad: 0 }.status(7), Some(500));
    }
}
