//! The command line: one file a command.
//! Promises the documented exit codes, data on standard output and everything else on standard error.
//! Does not decide anything that a flow could decide.

pub mod apart;
mod bench;
mod demo;
mod dev;
pub mod operator;
mod receiver;
pub mod sandbox;
pub mod serve;
mod settings;
mod tail;

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::{Config, Problems};
use crate::lifecycle::chain;
use crate::telemetry;

/// What a command ends with. `docs/RUNBOOK.md` lists them.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    /// 3: the server that was asked is not ready.
    #[error("not ready: {0}")]
    NotReady(String),
    /// 4: what was asked for is not there, or in conflict with what is.
    #[error("{0}")]
    Conflict(String),
    /// 5: a check found a problem, which has been printed.
    #[error("{0}")]
    Found(String),
    /// 130: a signal came before the end.
    #[error("interrupted")]
    Interrupted,
    /// As a command ended that was run for somebody.
    #[error("the command ended with {0}")]
    Command(std::process::ExitStatus),
    /// 64: an argument is of the right form and cannot be used.
    #[error("{name}: {why}")]
    Argument {
        /// Which.
        name: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// 64: the configuration cannot be used.
    #[error(transparent)]
    Configuration(#[from] Problems),
}

const EXIT_FAILURE: u8 = 1;
const EXIT_NOT_READY: u8 = 3;
const EXIT_CONFLICT: u8 = 4;
const EXIT_FOUND: u8 = 5;
const EXIT_CONFIGURATION: u8 = 64;
const EXIT_INTERRUPTED: u8 = 130;

impl Failed {
    fn code(&self) -> u8 {
        match self {
            Self::NotReady(_) => EXIT_NOT_READY,
            Self::Conflict(_) => EXIT_CONFLICT,
            Self::Found(_) => EXIT_FOUND,
            Self::Interrupted => EXIT_INTERRUPTED,
            Self::Command(status) => {
                status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(EXIT_FAILURE)
            }
            Self::Argument { .. } | Self::Configuration(_) => EXIT_CONFIGURATION,
        }
    }
}

/// A durable log in front of Postgres: messages are acknowledged from the log, whatever Postgres does.
///
/// Begin with `forebay dev`.
#[derive(Parser, Debug)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Start everything on this machine: Postgres, nats-server, Forebay and a demo tenant
    Dev(dev::Arguments),
    /// The guided tour: send, stop Postgres, see that sends go on, resume, verify
    Demo(demo::Arguments),
    /// Run a server against the Postgres and NATS of the configuration
    Serve(ServeArguments),
    /// Bring the schema up to date
    Migrate(settings::Flags),
    /// Compare the streams with their definitions, or make them match
    #[command(subcommand)]
    Streams(operator::Streams),
    /// Project the log anew into fresh tables and swap them in
    Rebuild(settings::Flags),
    /// Compare Postgres with the log; exit code 5 on a difference
    Verify(settings::Flags),
    /// Print the events of a conversation as they happen, until interrupted
    Tail(tail::Arguments),
    /// Receive webhooks, print them, and answer them well or badly, until interrupted
    Receiver(receiver::Arguments),
    /// Measure sends, load, appends, the pool, live connections, reads, projection, starts, growth or webhooks, beside references
    #[command(subcommand)]
    Bench(bench::Command),
    /// Print every setting with its value, unit, default and reason; exit code 64 when they are no configuration
    Config(settings::ConfigArguments),
    /// Ask a running server whether it is ready; exit code 3 when it is not
    Healthcheck(operator::HealthArguments),
    /// Run a command beside a private Postgres and nats-server, with their addresses in its environment
    Sandbox(sandbox::Arguments),
}

#[derive(Args, Debug)]
struct ServeArguments {
    #[command(flatten)]
    flags: settings::Flags,
    /// End when standard input closes: for a parent that must not leave a server behind
    #[arg(long, hide = true)]
    until_stdin_closes: bool,
}

/// Runs the command that this process was started with.
pub fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let result = match runtime {
        Ok(runtime) => {
            let result = runtime.block_on(run(cli.command));
            // What still blocks a thread, such as a read of standard input, is not waited for.
            runtime.shutdown_background();
            result
        }
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("forebay: {}", chain(&*error)));
            let code = error.downcast_ref::<Failed>().map_or(EXIT_FAILURE, Failed::code);
            ExitCode::from(code)
        }
    }
}

async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Dev(arguments) => Box::pin(dev::run(arguments)).await,
        Command::Demo(arguments) => Box::pin(demo::run(arguments)).await,
        Command::Serve(arguments) => serve_until_asked(arguments).await,
        Command::Migrate(flags) => {
            operator::migrate(&flags.config_without(&[operator::ADMIN_TOKEN])?).await
        }
        Command::Streams(command) => operator::streams(command).await,
        Command::Rebuild(flags) => {
            operator::rebuild(&flags.config_without(&[operator::ADMIN_TOKEN])?).await
        }
        Command::Verify(flags) => {
            operator::verify(&flags.config_without(&[operator::ADMIN_TOKEN])?).await
        }
        Command::Tail(arguments) => {
            Box::pin(tail::run(arguments, crate::clock::Clock::system())).await
        }
        Command::Receiver(arguments) => {
            receiver::run(arguments, crate::clock::Clock::system()).await
        }
        Command::Bench(command) => unless_interrupted(Box::pin(bench::run(command))).await,
        Command::Config(arguments) => settings::print(&arguments),
        Command::Healthcheck(arguments) => operator::healthcheck(&arguments).await,
        Command::Sandbox(arguments) => sandbox::run(arguments).await,
    }
}

/// What is dropped by an interruption kills its services and removes their data.
async fn unless_interrupted<F>(work: F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    tokio::select! {
        done = work => done,
        _ = crate::lifecycle::signal() => Err(Failed::Interrupted.into()),
    }
}

async fn serve_until_asked(arguments: ServeArguments) -> anyhow::Result<()> {
    let config = arguments.flags.config()?;
    #[cfg(feature = "broken")]
    crate::config::broken::choose()?;
    log_lines(&config)?;
    for name in crate::config::unknown_names() {
        tracing::warn!(setting = name, "{name} is no setting; `forebay config` lists them");
    }
    let clock = crate::clock::Clock::system();
    let until = arguments.until_stdin_closes;
    Ok(serve::run(config, clock, seed(), until).await?)
}

/// Sets up log lines as the configuration says.
fn log_lines(config: &Config) -> anyhow::Result<()> {
    let format =
        if config.logging.is_json { telemetry::Format::Json } else { telemetry::Format::Compact };
    Ok(telemetry::install(&config.logging.filter, format)?)
}

/// Sets up log lines for a command that talks to a person: from this level on, unless `RUST_LOG` says otherwise.
fn quiet_log_lines(level: &str) -> anyhow::Result<()> {
    let filter = crate::config::environment("RUST_LOG").unwrap_or_else(|| level.to_owned());
    Ok(telemetry::install(&filter, telemetry::Format::Compact)?)
}

/// The one place where randomness comes from.
#[expect(clippy::disallowed_methods, reason = "everything else is seeded from here")]
fn seed() -> u64 {
    rand::RngExt::random(&mut rand::rng())
}

/// A line for the person at the terminal.
fn say(line: &str) {
    // A closed standard error is no reason to fail.
    drop(writeln!(std::io::stderr(), "{line}"));
}

/// A line of data.
fn print(line: &str) {
    // A reader that has seen enough closes the pipe; that is no failure.
    drop(writeln!(std::io::stdout(), "{line}"));
}
