//! Pure: the texts and the JSON of modes, with the table that explains them.
//! Promises that every mode has one text which reads back as the same mode, and that what is read is within bounds.
//! Does not say how a mode behaves beyond the few words of its help.

use std::str::FromStr;
use std::time::Duration;

use serde_json::{Map, Value};

use super::mode::Mode;

/// Longest pause before an answer; every sender has given up by then.
const PAUSE_MAX: Duration = Duration::from_hours(1);

/// Largest number of seconds that an answer can ask a sender to wait.
const SECONDS_MAX: u64 = 366 * 24 * 3_600;

/// Longest body of `huge`: a tebibyte, which nobody reads to its end.
const BYTES_MAX: u64 = 1 << 40;

/// Most header lines of an answer; the library that writes them takes 24 576 at most.
const HEADERS_MAX: usize = 20_000;

/// Longest text that is put into a header, in bytes.
const TEXT_BYTES_MAX: usize = 8_192;

/// A kind of mode: how it is written and what it does.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The word that its text begins with.
    pub word: &'static str,
    /// Its arguments by their names in JSON, in the order of its text.
    pub fields: &'static [&'static str],
    /// An example of its text.
    pub example: &'static str,
    /// What it does, in a few words.
    pub says: &'static str,
}

const fn kind(
    word: &'static str,
    fields: &'static [&'static str],
    example: &'static str,
    says: &'static str,
) -> Kind {
    Kind { word, fields, example, says }
}

/// Every kind, for help texts.
pub const KINDS: [Kind; 18] = [
    kind("answer", &[], "answer", "200 with an empty body"),
    kind("status", &["status"], "status:503", "that status, 200 to 599"),
    kind("slow", &["after"], "slow:9s", "200 after that time (ms or s)"),
    kind("hang", &[], "hang", "no answer, the connection stays open"),
    kind("drip", &[], "drip", "200 and a byte of body a second, for ever"),
    kind("flap", &["good", "bad"], "flap:4:1", "4 times 200, once 500, and again"),
    kind("reset", &[], "reset", "resets the connection after reading the request"),
    kind("close", &[], "close", "closes the connection without an answer"),
    kind("redirect", &["url"], "redirect:http://127.0.0.1:1/", "307 to that place"),
    kind("gone", &[], "gone", "410"),
    kind("rate", &["seconds"], "rate:7", "429 with Retry-After: 7"),
    kind("rate-date", &["seconds"], "rate-date:30", "429 with an HTTP date 30 s ahead"),
    kind("retry-after", &["text"], "retry-after:soon", "503 with Retry-After: soon"),
    kind("huge", &["bytes", "status"], "huge:1000000:500", "a body of that length; status 200"),
    kind("endless", &[], "endless", "200 and a body without an end"),
    kind("garbage", &[], "garbage", "bytes that are no HTTP"),
    kind("headers", &["lines"], "headers:500", "200 with that many header lines"),
    kind("invalid-utf8", &[], "invalid-utf8", "500 with a body that is no UTF-8"),
];

/// A text or JSON that is no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMode {
    /// No mode has that name.
    #[error("there is no mode {0:?}; there are {list}", list = words())]
    Unknown(String),
    /// Its arguments are missing, too many or out of bounds.
    #[error("{word} is written like {example}: {says}")]
    Argument {
        /// The mode's word.
        word: &'static str,
        /// How it is written.
        example: &'static str,
        /// What it does.
        says: &'static str,
    },
    /// Not of the form `{"mode": …}`.
    #[error(
        "a mode is a text like status:500, or JSON like {{\"mode\":\"status\",\"status\":500}}"
    )]
    Json,
}

impl Mode {
    /// From the body of a request: the text as on the command line, `status:500`, or JSON,
    /// `{"mode":"status","status":500}` or `{"mode":"status:500"}`.
    ///
    /// # Errors
    /// [`BadMode`]
    pub fn from_body(body: &[u8]) -> Result<Self, BadMode> {
        match std::str::from_utf8(body.trim_ascii()) {
            Ok(text) if text.starts_with(|c: char| c.is_ascii_lowercase()) => text.parse(),
            Ok(_) | Err(_) => Self::from_json(body),
        }
    }

    fn from_json(json: &[u8]) -> Result<Self, BadMode> {
        let object: Map<String, Value> = serde_json::from_slice(json).ok().ok_or(BadMode::Json)?;
        let text = object.get("mode").and_then(Value::as_str).ok_or(BadMode::Json)?;
        if object.len() == 1 {
            return text.parse();
        }
        let kind = Kind::named(text)?;
        let mut text = kind.word.to_owned();
        let given = kind.fields.iter().map_while(|field| object.get(*field));
        for value in given.clone() {
            text.push(':');
            match value {
                Value::String(value) => text.push_str(value),
                Value::Number(value) => text.push_str(&value.to_string()),
                Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
                    return Err(kind.misused());
                }
            }
        }
        if given.count() + 1 < object.len() { Err(kind.misused()) } else { text.parse() }
    }
}

impl Kind {
    fn named(word: &str) -> Result<&'static Self, BadMode> {
        let kind = KINDS.iter().find(|kind| kind.word == word);
        kind.ok_or_else(|| BadMode::Unknown(word.to_owned()))
    }

    fn misused(&self) -> BadMode {
        BadMode::Argument { word: self.word, example: self.example, says: self.says }
    }
}

impl FromStr for Mode {
    type Err = BadMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (word, argument) = match text.split_once(':') {
            Some((word, argument)) => (word, Some(argument)),
            None => (text, None),
        };
        let kind = Kind::named(word)?;
        let mode = argument.map_or_else(|| bare(word), |argument| with(word, argument));
        mode.ok_or_else(|| kind.misused())
    }
}

fn bare(word: &str) -> Option<Mode> {
    Some(match word {
        "answer" => Mode::Answer,
        "hang" => Mode::Hang,
        "drip" => Mode::Drip,
        "reset" => Mode::Reset,
        "close" => Mode::Close,
        "gone" => Mode::Gone,
        "endless" => Mode::Endless,
        "garbage" => Mode::Garbage,
        "invalid-utf8" => Mode::InvalidUtf8,
        _ => return None,
    })
}

fn with(word: &str, argument: &str) -> Option<Mode> {
    let seconds = || number(argument).filter(|seconds| *seconds <= SECONDS_MAX);
    Some(match word {
        "status" => Mode::Status(status(argument)?),
        "slow" => Mode::Slow(pause(argument)?),
        "flap" => {
            let (good, bad) = argument.split_once(':')?;
            let (good, bad) = (number(good)?, number(bad)?);
            if good == 0 && bad == 0 {
                return None;
            }
            Mode::Flap { good: u32::try_from(good).ok()?, bad: u32::try_from(bad).ok()? }
        }
        "redirect" => Mode::Redirect(header_text(argument).filter(|url| !url.is_empty())?),
        "rate" => Mode::Rate(seconds()?),
        "rate-date" => Mode::RateDate(seconds()?),
        "retry-after" => Mode::RetryAfter(header_text(argument)?),
        "huge" => {
            let (bytes, answered) = argument.split_once(':').unwrap_or((argument, "200"));
            let bytes = number(bytes).filter(|bytes| *bytes <= BYTES_MAX)?;
            Mode::Huge { bytes, status: status(answered)? }
        }
        "headers" => {
            let lines = number(argument).and_then(|lines| usize::try_from(lines).ok());
            Mode::Headers(lines.filter(|lines| *lines <= HEADERS_MAX)?)
        }
        _ => return None,
    })
}

/// Digits only: the parsers of the library take a sign as well.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn status(text: &str) -> Option<u16> {
    let status = number(text).and_then(|status| u16::try_from(status).ok());
    status.filter(|status| (200..=599).contains(status))
}

fn pause(text: &str) -> Option<Duration> {
    let pause = match text.strip_suffix("ms") {
        Some(millis) => number(millis).map(Duration::from_millis),
        None => text.strip_suffix('s').and_then(number).map(Duration::from_secs),
    };
    pause.filter(|pause| *pause <= PAUSE_MAX)
}

fn header_text(text: &str) -> Option<String> {
    let plain = text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    (plain && text.len() <= TEXT_BYTES_MAX).then(|| text.to_owned())
}

fn words() -> String {
    KINDS.map(|kind| kind.word).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_text_that_reads_back_as_the_same_mode() {
        for kind in KINDS {
            let mode: Mode = kind.example.parse().unwrap();
            assert_eq!(mode.to_string(), kind.example);
            assert_eq!(kind.fields.is_empty(), bare(kind.word).is_some(), "{}", kind.word);
        }
    }

    #[test]
    fn texts_mean_what_they_say() {
        for (text, mode) in [
            ("slow:250ms", Mode::Slow(Duration::from_millis(250))),
            ("flap:0:1", Mode::Flap { good: 0, bad: 1 }),
            ("huge:5", Mode::Huge { bytes: 5, status: 200 }),
            ("retry-after:", Mode::RetryAfter(String::new())),
            ("retry-after:a: b", Mode::RetryAfter("a: b".to_owned())),
            ("redirect:http://a:1/b?c", Mode::Redirect("http://a:1/b?c".to_owned())),
        ] {
            assert_eq!(text.parse(), Ok(mode.clone()));
            assert_eq!(mode.to_string(), text);
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_refused_with_an_example() {
        for text in [
            "status",
            "status:",
            "status:199",
            "status:600",
            "status:+500",
            "answer:1",
            "slow:9",
            "slow:2000000s",
            "flap:0:0",
            "flap:1",
            "flap:1:2:3",
            "rate:-1",
            "redirect:",
            "redirect:http://ü/",
            "retry-after:a\r\nb: c",
            "headers:20001",
            "huge:1:2",
            "hang:",
        ] {
            let word = text.split(':').next().unwrap();
            let refused = text.parse::<Mode>().unwrap_err();
            assert!(matches!(refused, BadMode::Argument { word: of, .. } if of == word), "{text}");
        }
        let unknown = "statsu:1".parse::<Mode>().unwrap_err();
        assert!(unknown.to_string().starts_with("there is no mode \"statsu\"; there are answer, "));
    }

    #[test]
    fn json_names_the_arguments_or_has_the_text() {
        for (json, text) in [
            (r#"{"mode":"status","status":500}"#, "status:500"),
            (r#"{"mode":"status:500"}"#, "status:500"),
            (r#"{"mode":"flap","bad":1,"good":4}"#, "flap:4:1"),
            (r#"{"mode":"slow","after":"9s"}"#, "slow:9s"),
            (r#"{"mode":"huge","bytes":7}"#, "huge:7"),
            (r#"{"mode":"huge","bytes":7,"status":503}"#, "huge:7:503"),
            (r#"{"mode":"hang"}"#, "hang"),
        ] {
            assert_eq!(Mode::from_json(json.as_bytes()).unwrap().to_string(), text);
        }
        for json in [
            "",
            "[]",
            r#""hang""#,
            r#"{"mode":1}"#,
            r#"{"mode":"hang","status":1}"#,
            r#"{"mode":"huge","status":500}"#,
            r#"{"mode":"status","status":null}"#,
            r#"{"mode":"rate","seconds":1.5}"#,
        ] {
            assert!(Mode::from_json(json.as_bytes()).is_err(), "{json}");
        }
    }
}
