//! Tells whoever waits what a long run is doing: a moving line on a terminal, plain lines elsewhere.
//! Promises that what is said as a line stays readable in both, and that standard output is left to results.
//! Does not log; logs are for operators, this is for the person who started the command.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How often the moving line moves.
const TICK: Duration = Duration::from_millis(120);

/// Speaks on standard error.
#[derive(Debug)]
pub struct Narrator {
    /// Only on a terminal.
    bar: Option<ProgressBar>,
}

impl Narrator {
    /// A narrator for this process' standard error.
    pub fn on_stderr() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(TICK);
            bar
        });
        Self { bar }
    }

    /// Says something that stays.
    pub fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            // Nobody can be told that standard error is closed.
            None => drop(writeln!(std::io::stderr(), "{text}")),
        }
    }

    /// Says what is going on just now; shown on a terminal only, where the next word replaces it.
    pub fn moment(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.to_owned());
        }
    }

    /// Takes the moving line away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
