//! Pure: how a receiver answers, written as a text.
//! Promises that every mode survives its text.
//! Does not answer.

use std::fmt;
use std::time::Duration;

/// How requests are answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// `answer`: 200 at once.
    #[default]
    Answer,
    /// `status:N`: this status at once.
    Status(u16),
    /// `hang`: never.
    Hang,
    /// `drip`: 200, then a byte of the body every second, for ever.
    Drip,
    /// `slow:9s`, `slow:250ms`: 200 after this time.
    Slow(Duration),
    /// `flap:4:1`: so many good ones, then so many 500.
    Flap(u32, u32),
    /// `reset`: the connection is reset after the request was read.
    Reset,
    /// `close`: the connection is closed without an answer.
    Close,
    /// `redirect:URL`: 302 to there.
    Redirect(String),
    /// `rate:N`: 429 with this `Retry-After` in seconds.
    Rate(u64),
    /// `rate-date:N`: 429 with a date that lies so many seconds ahead.
    RateDate(u64),
    /// `retry-after:TEXT`: 503 with this text as its `Retry-After`.
    RetryAfter(String),
    /// `huge:BYTES`: 200 with a body of this length.
    Huge(u64),
    /// `endless`: 200 with a body that never ends.
    Endless,
    /// `garbage`: bytes that are no HTTP.
    Garbage,
    /// `headers:N`: 200 with so many headers.
    Headers(u32),
    /// `invalid-utf8`: 500 with a body that is no text.
    InvalidUtf8,
}

/// What the modes are, for the help of the command.
pub const HELP: &str = "answer, status:503, hang, drip, slow:9s, flap:4:1, reset, close, redirect:URL, rate:7, rate-date:30, \
                        retry-after:TEXT, huge:BYTES, endless, garbage, headers:N, invalid-utf8";

impl Mode {
    /// From its text.
    pub fn parse(text: &str) -> Option<Self> {
        let (word, rest) = text.split_once(':').unwrap_or((text, ""));
        Some(match (word, rest) {
            ("answer", "") => Self::Answer,
            ("gone", "") => Self::Status(410),
            ("status", code) => {
                Self::Status(code.parse().ok().filter(|code| (200..=599).contains(code))?)
            }
            ("hang", "") => Self::Hang,
            ("drip", "") => Self::Drip,
            ("slow", time) => Self::Slow(duration(time)?),
            ("flap", shares) => {
                let (good, bad) = shares.split_once(':')?;
                Self::Flap(good.parse().ok()?, bad.parse().ok()?)
            }
            ("reset", "") => Self::Reset,
            ("close", "") => Self::Close,
            ("redirect", url) if !url.is_empty() => Self::Redirect(url.to_owned()),
            ("rate", seconds) => Self::Rate(seconds.parse().ok()?),
            ("rate-date", seconds) => Self::RateDate(seconds.parse().ok()?),
            ("retry-after", text) => Self::RetryAfter(text.to_owned()),
            ("huge", bytes) => Self::Huge(bytes.parse().ok()?),
            ("endless", "") => Self::Endless,
            ("garbage", "") => Self::Garbage,
            ("headers", count) => Self::Headers(count.parse().ok()?),
            ("invalid-utf8", "") => Self::InvalidUtf8,
            _ => return None,
        })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answer => f.write_str("answer"),
            Self::Status(code) => write!(f, "status:{code}"),
            Self::Hang => f.write_str("hang"),
            Self::Drip => f.write_str("drip"),
            Self::Slow(time) => write!(f, "slow:{}ms", time.as_millis()),
            Self::Flap(good, bad) => write!(f, "flap:{good}:{bad}"),
            Self::Reset => f.write_str("reset"),
            Self::Close => f.write_str("close"),
            Self::Redirect(url) => write!(f, "redirect:{url}"),
            Self::Rate(seconds) => write!(f, "rate:{seconds}"),
            Self::RateDate(seconds) => write!(f, "rate-date:{seconds}"),
            Self::RetryAfter(text) => write!(f, "retry-after:{text}"),
            Self::Huge(bytes) => write!(f, "huge:{bytes}"),
            Self::Endless => f.write_str("endless"),
            Self::Garbage => f.write_str("garbage"),
            Self::Headers(count) => write!(f, "headers:{count}"),
            Self::InvalidUtf8 => f.write_str("invalid-utf8"),
        }
    }
}

fn duration(text: &str) -> Option<Duration> {
    if let Some(millis) = text.strip_suffix("ms") {
        return millis.parse().ok().map(Duration::from_millis);
    }
    text.strip_suffix('s')?.parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_survives_its_text() {
        for text in [
            "answer",
            "status:503",
            "hang",
            "drip",
            "slow:9000ms",
            "flap:4:1",
            "reset",
            "close",
            "redirect:http://x/y",
            "rate:7",
            "rate-date:30",
            "retry-after:1e30",
            "retry-after:",
            "huge:1000000000",
            "endless",
            "garbage",
            "headers:200",
            "invalid-utf8",
        ] {
            assert_eq!(Mode::parse(text).map(|mode| mode.to_string()).as_deref(), Some(text));
        }
        assert_eq!(Mode::parse("slow:9s"), Some(Mode::Slow(Duration::from_secs(9))));
        assert_eq!(Mode::parse("gone"), Some(Mode::Status(410)));
        for bad in ["", "x", "status:", "status:99", "slow:9", "flap:4", "redirect:", "huge:-1"] {
            assert_eq!(Mode::parse(bad), None, "{bad}");
        }
    }
}
