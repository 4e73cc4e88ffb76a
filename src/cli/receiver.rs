//! `forebay receiver`: webhooks as they come in, one line each, answered as well or as badly as wished.
//! Promises that a line tells what the sender was answered, and that nothing of a request can steer the terminal.
//! Does not keep requests; what comes faster than it can be printed is answered and counted.

use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::{print, say};
use crate::clock::Clock;
use crate::lifecycle;
use crate::receiver::{BadSecret, KINDS, Mode, Options, Receiver, Told, read_secret};

/// Most lines that wait for the terminal.
const LINES_MAX: usize = 10_000;

/// How often it is told that lines were left out.
const LEFT_OUT_EVERY: Duration = Duration::from_secs(1);

/// Longest type that is printed; a body can name any.
const TYPE_CHARS_MAX: usize = 128;

/// How a mode is changed while it runs.
const EXAMPLE: &str = "\
Every NAME of /hook/NAME is an endpoint with a mode of its own, which can be changed at any time:
  curl -X PUT http://127.0.0.1:9999/modes/orders -d '{\"mode\":\"status\",\"status\":500}'
  curl -X PUT http://127.0.0.1:9999/modes/orders -d '{\"mode\":\"flap:4:1\"}'";

/// Arguments of `forebay receiver`.
#[derive(Args, Debug)]
#[command(after_long_help = modes())]
pub(crate) struct Arguments {
    /// Where to take requests; port 0 for a free one
    #[arg(long, default_value = "127.0.0.1:9999")]
    listen: SocketAddr,
    /// How to answer; `--help` lists the modes
    #[arg(long, default_value = "answer")]
    mode: Mode,
    /// Answer 401 to what is not signed with this secret, `whsec_…`
    #[arg(long, value_parser = secret)]
    secret: Option<Secret>,
    /// Print lines of JSON
    #[arg(long)]
    json: bool,
}

/// A secret that no debug output shows.
#[derive(Clone)]
struct Secret(Vec<u8>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Secret(…)")
    }
}

fn secret(text: &str) -> Result<Secret, BadSecret> {
    read_secret(text).map(Secret)
}

/// The end of the help text.
fn modes() -> String {
    let width = KINDS.iter().map(|kind| kind.example.len()).max().unwrap_or(0);
    let lines = KINDS.map(|kind| format!("  {:width$}  {}\n", kind.example, kind.says));
    format!("Modes:\n{}\n{EXAMPLE}", lines.concat())
}

/// A delivery as it is printed.
#[derive(Serialize)]
struct Line<'a> {
    at: String,
    endpoint: &'a str,
    id: &'a str,
    attempt: Option<u32>,
    r#type: Option<String>,
    seq: Option<u64>,
    verified: Option<bool>,
    status: Option<u16>,
}

/// The one field of a body that is printed.
#[derive(Deserialize)]
struct Typed {
    r#type: String,
}

/// Receives until a signal.
pub(crate) async fn run(arguments: Arguments, clock: Clock) -> anyhow::Result<()> {
    super::quiet_log_lines("warn")?;
    let (tell, mut told) = mpsc::channel(LINES_MAX);
    let options = Options {
        mode: arguments.mode,
        secret: arguments.secret.map(|secret| secret.0),
        entries_max: 0,
        tell: Some(tell),
    };
    let receiver = Receiver::start_with(arguments.listen, clock, options)
        .with_context(|| format!("listening on {}", arguments.listen))?;
    let url = receiver.url("NAME");
    print(&if arguments.json {
        serde_json::json!({ "url": url }).to_string()
    } else {
        format!("receiving at {url}")
    });
    let mut signal = std::pin::pin!(lifecycle::signal());
    let mut every = interval(LEFT_OUT_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut left_out = 0;
    loop {
        tokio::select! {
            biased;
            signal = &mut signal => return signal.context("listening for signals"),
            _ = every.tick() => {
                let more = receiver.untold();
                if more > left_out {
                    say(&format!("{} more were answered and not printed", more - left_out));
                    left_out = more;
                }
            }
            Some(told) = told.recv() => {
                let line = Line::of(&told);
                let text = if arguments.json { serde_json::to_string(&line)? } else { line.text() };
                if writeln!(std::io::stdout(), "{text}").is_err() {
                    // A reader that has seen enough closes the pipe.
                    return Ok(());
                }
            }
        }
    }
}

impl<'a> Line<'a> {
    fn of(told: &'a Told) -> Self {
        let Told { endpoint, receipt } = told;
        let typed = receipt.body.as_ref().and_then(|body| serde_json::from_slice(body).ok());
        Self {
            at: receipt.arrived.to_string(),
            endpoint,
            id: &receipt.id,
            attempt: receipt.attempt,
            r#type: typed.map(|Typed { r#type }| r#type.chars().take(TYPE_CHARS_MAX).collect()),
            seq: receipt.seq,
            verified: receipt.verified,
            status: receipt.status,
        }
    }

    fn text(&self) -> String {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let id = if self.id.is_empty() { "-" } else { self.id };
        // Ids and names are visible ASCII by their form, types are not.
        let r#type = self.r#type.as_ref().map(|text| text.escape_debug().to_string());
        let verified = match self.verified {
            Some(true) => "verified",
            Some(false) => "NOT verified",
            None => "unchecked",
        };
        let status = self.status.map(|status| status.to_string());
        format!(
            "{}  {}  {id}  attempt {}  {}  seq {}  {verified}  {}",
            self.at,
            self.endpoint,
            or_dash(self.attempt.map(|attempt| attempt.to_string())),
            or_dash(r#type),
            or_dash(self.seq.map(|seq| seq.to_string())),
            status.as_deref().unwrap_or("no answer"),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use crate::clock::{Timestamp, test_start};
    use crate::receiver::Receipt;

    fn told(id: &str, body: &'static str) -> Told {
        let receipt = Receipt {
            id: Arc::from(id),
            timestamp: "1".into(),
            signature: "".into(),
            attempt: Some(2),
            seq: Some(7),
            verified: Some(false),
            status: Some(401),
            at: test_start(),
            arrived: Timestamp::default(),
            body: Some(Bytes::from_static(body.as_bytes())),
        };
        Told { endpoint: "orders".into(), receipt }
    }

    #[test]
    fn a_line_tells_the_delivery_and_cannot_steer_the_terminal() {
        let evil = told("msg_1", "{\"type\":\"message\\u001b[2Jcreated\"}");
        assert_eq!(
            Line::of(&evil).text(),
            "1970-01-01T00:00:00.000000Z  orders  msg_1  attempt 2  message\\u{1b}[2Jcreated  seq 7  \
             NOT verified  401"
        );
        let json = serde_json::to_value(Line::of(&told("", "no json"))).unwrap();
        assert_eq!((&json["type"], &json["seq"]), (&serde_json::Value::Null, &7.into()));
    }

    #[test]
    fn the_help_text_explains_every_mode() {
        let text = modes();
        assert!(KINDS.iter().all(|kind| text.contains(kind.example) && text.contains(kind.says)));
    }
}
