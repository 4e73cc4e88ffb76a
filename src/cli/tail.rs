//! `forebay tail`: a conversation as it happens, on standard output.
//! Promises one frame a line, each event once however often the connection breaks, and that states go to standard error.
//! Does not send.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use super::{Failed, say};
use crate::client::keep::{InFile, Keep};
use crate::client::{self, Server, Settings, Start, State, Stopped, Told};
use crate::clock::Clock;
use crate::event::ConversationId;
use crate::{config, lifecycle};

/// Names the credential where it cannot be seen by others of the machine.
const TOKEN: &str = "FOREBAY_TOKEN";

/// Arguments of `forebay tail`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Where the server is, http://host:port
    #[arg(long, default_value = "http://127.0.0.1:8080")]
    url: String,
    /// An API key or a user's token; better in the environment as `FOREBAY_TOKEN`
    #[arg(long)]
    token: Option<String>,
    /// The conversation, cnv_…
    #[arg(long)]
    conversation: String,
    /// Begin behind this seq, 0 for everything; without it with what comes from now on. What the watermark file holds
    /// goes before it
    #[arg(long, value_name = "SEQ")]
    after: Option<u64>,
    /// Go on where the last run with this file ended, whatever --after says
    #[arg(long, value_name = "FILE")]
    watermark_file: Option<PathBuf>,
}

impl Arguments {
    fn settings(self) -> anyhow::Result<Settings> {
        let token = self.token.or_else(|| config::environment(TOKEN));
        let keep = self.watermark_file.map(|file| -> Box<dyn Keep> { Box::new(InFile(file)) });
        Ok(Settings {
            server: Server::parse(&self.url)
                .map_err(|why| Failed::Argument { name: "--url", why: why.to_string() })?,
            token: token.with_context(|| format!("give --token, or {TOKEN} in the environment"))?,
            conversation: ConversationId::parse(&self.conversation)
                .with_context(|| format!("{} is no conversation", self.conversation))?,
            start: self.after.map_or(Start::Head, Start::After),
            keep,
        })
    }
}

/// Prints events until a signal, or until the server says that there is nothing to be had.
pub(crate) async fn run(arguments: Arguments, clock: Clock) -> anyhow::Result<()> {
    super::quiet_log_lines("error")?;
    let settings = arguments.settings()?;
    let server = settings.server.clone();
    let (_handle, mut events) =
        client::open(settings, clock, super::seed()).context("reading the watermark file")?;
    let mut signal = std::pin::pin!(lifecycle::signal());
    loop {
        let told = tokio::select! {
            biased;
            signal = &mut signal => {
                signal.context("listening for signals")?;
                return events.keep().context("writing the watermark file");
            }
            told = events.next() => told.context("writing the watermark file")?,
        };
        match told {
            None => return Ok(()),
            Some(Told::Event { frame, .. }) => {
                if writeln!(std::io::stdout(), "{frame}").is_err() {
                    // A reader that has seen enough closes the pipe. This event was not seen.
                    return Ok(());
                }
            }
            Some(Told::Rewound { watermark, head }) => say(&format!(
                "{watermark} is beyond the conversation's end; going on behind {head}"
            )),
            Some(Told::Reset) => say("this is another log: forget what came before"),
            Some(Told::State(State::Stopped(why))) => {
                let why = match why {
                    Stopped::NotFound | Stopped::Forbidden => {
                        Failed::Conflict(why.to_string()).into()
                    }
                    Stopped::Unauthorized => anyhow::Error::from(why),
                };
                return Err(why.context(server.to_string()));
            }
            Some(Told::State(state)) => say(&line_of(&state)),
        }
    }
}

fn line_of(state: &State) -> String {
    match state {
        State::Connecting => "connecting".to_owned(),
        State::CatchingUp => "catching up".to_owned(),
        State::Live { watermark } => format!("live, everything up to {watermark} is there"),
        State::Missing(gap) => format!("{} to {} are missing and come later", gap.from, gap.to),
        State::Waiting { wait, why } => {
            format!("{why}; connecting again in {:.1} s", wait.as_secs_f64())
        }
        State::Stopped(why) => why.to_string(),
    }
}
