//! Private Postgres and nats-server for `forebay dev`, the tests and the chaos runs, and a `PgBouncer` for those who ask.
//! Promises that all are found or installed, die with this process, and survive its restarts.
//! Does not supervise: a caller that wants a dead child back awaits `watch` and calls `restart`.

mod account;
mod claim;
mod leash;
mod nats;
mod pgbouncer;
mod place;
mod postgres;
mod process;
mod provision;
mod ward;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

pub use nats::Nats;
pub use pgbouncer::{PgBouncer, Pooling};
pub use postgres::Postgres;
pub use provision::{provide, provide_pgbouncer};

/// Where the services live and what may be done for them.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory of everything: binaries, data, logs, locks. Usually `.forebay`.
    pub root: PathBuf,
    /// What may be done about a missing program.
    pub install: Install,
    /// How much Postgres pays for a power cut.
    pub durability: Durability,
}

/// What may be done about a missing program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Install {
    /// Install it through the package manager.
    Allow,
    /// Fail with [`Error::Missing`], which lists the commands.
    PrintOnly,
}

/// How much Postgres pays for a power cut. nats-server always syncs every write: the guarantees
/// under test rest on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// As in production.
    Full,
    /// Without fsync. A killed process still loses nothing that was committed, a power cut may
    /// lose all: right for tests only.
    Fast,
}

/// The programs that the services are started from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    /// The directory that holds `postgres`, `initdb` and `psql`.
    pub postgres_bin: PathBuf,
    /// The program `nats-server`.
    pub nats_server: PathBuf,
}

/// How a service ended.
#[derive(Debug, Clone)]
pub struct Exit {
    /// The status, or `None` when the service was killed or stopped by its owner.
    pub status: Option<ExitStatus>,
    /// The log file.
    pub log: PathBuf,
    /// The last lines of the log.
    pub last_lines: String,
}

impl fmt::Display for Exit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => write!(out, "{status}")?,
            None => write!(out, "stopped on request")?,
        }
        write!(out, "; log: {}", self.log.display())?;
        if self.last_lines.is_empty() {
            return Ok(());
        }
        write!(out, "\n{}", self.last_lines)
    }
}

/// Why a service could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Programs are missing and installing was not allowed.
    #[error("{}", missing(.found, .commands))]
    Missing {
        /// What was looked for and found wanting, one sentence each.
        found: Vec<String>,
        /// The commands that would install it, in order.
        commands: Vec<String>,
    },
    /// A program that installing needs is not there.
    #[error("cannot install {wanted}: {program} is not on PATH; install {wanted} by other means")]
    NoInstaller {
        /// What was to be installed.
        wanted: &'static str,
        /// The program that is missing.
        program: &'static str,
    },
    /// An installing command failed.
    #[error("`{command}` failed ({status}); log: {}\n{last_lines}", log.display())]
    Install {
        /// The command as printed.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// Where its output is.
        log: PathBuf,
        /// The end of its output.
        last_lines: String,
    },
    /// Every command succeeded and the programs are still not there.
    #[error("the installation succeeded, and yet: {}", reasons.join("; "))]
    StillMissing {
        /// What was looked for and found wanting, one sentence each.
        reasons: Vec<String>,
    },
    /// Another process uses the same root.
    #[error("{} of {} is in use by {}", service, root.display(), owner(*.pid))]
    InUse {
        /// The root directory.
        root: PathBuf,
        /// Which part of it is taken.
        service: &'static str,
        /// The process that holds it, when it said so.
        pid: Option<u32>,
    },
    /// The port that clients know is taken by a stranger.
    #[error("port {port} of 127.0.0.1, which nats-server used before, is taken by another process")]
    PortTaken {
        /// The port.
        port: u16,
    },
    /// The service ended while it was being started.
    #[error("{service} ended while starting: {exit}")]
    Died {
        /// Which service.
        service: &'static str,
        /// How it ended.
        exit: Exit,
    },
    /// The service did not get ready or did not end in time.
    #[error("{service} did not {what} within {} s; log: {}", within.as_secs(), log.display())]
    Slow {
        /// Which service.
        service: &'static str,
        /// What was awaited.
        what: &'static str,
        /// How long.
        within: Duration,
        /// The log file.
        log: PathBuf,
    },
    /// A directory in a shared place belongs to somebody else.
    #[error("{} is not a private directory of the user that runs Postgres", path.display())]
    NotPrivate {
        /// The directory.
        path: PathBuf,
    },
    /// A name that is no plain database name.
    #[error("{name:?} is not a database name: [a-z_][a-z0-9_]*, at most 63 bytes")]
    DatabaseName {
        /// The name.
        name: String,
    },
    /// Postgres refused to create a database.
    #[error("cannot create database {name}: {message}")]
    CreateDatabase {
        /// The database.
        name: String,
        /// What psql said.
        message: String,
    },
    /// Postgres refused to end sessions.
    #[error("cannot end the sessions of Postgres: {message}")]
    EndSessions {
        /// What psql said.
        message: String,
    },
    /// A file or process operation failed.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// The operation, as a verb.
        doing: &'static str,
        /// What it was done to.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl Error {
    /// Turns an I/O error into ours: `.map_err(Error::io("create", &path))`.
    fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.to_owned(), source }
    }
}

fn missing(found: &[String], commands: &[String]) -> String {
    format!("{}; install with:\n  {}", found.join("; "), commands.join("\n  "))
}

fn owner(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}
