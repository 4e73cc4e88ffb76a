//! `forebay sandbox -- COMMAND`: a command beside a private Postgres and nats-server.
//! Promises that both are gone when the command has ended, and passes its exit code on.
//! Does not start Forebay.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use tokio::process::Command;

use super::{Failed, say};
use crate::sandbox::{Durability, Install, Nats, Options, Postgres, provide};

/// The database that the command finds in `DATABASE_URL`.
const DATABASE: &str = "forebay";

/// Arguments of `forebay sandbox`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Where programs and data are kept; a directory of its own for the data unless given
    #[arg(long, default_value = ".forebay")]
    data_dir: PathBuf,
    /// Print the commands that would install what is missing, and fail
    #[arg(long)]
    no_install: bool,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Runs the command.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let install = if arguments.no_install { Install::PrintOnly } else { Install::Allow };
    let mut options = Options { root: arguments.data_dir, install, durability: Durability::Fast };
    let binaries = provide(&options, &mut |line: &str| say(line)).await?;
    let root = Scratch::new()?;
    options.root.clone_from(&root.path);
    let postgres = Postgres::start(&binaries, &options).await?;
    let nats = Nats::start(&binaries, &options).await?;
    postgres.create_database(DATABASE).await?;
    let (program, rest) = arguments.command.split_first().context("a command is required")?;
    let status = Command::new(program)
        .args(rest)
        .env("DATABASE_URL", postgres.url(DATABASE))
        .env("NATS_URL", nats.url())
        .kill_on_drop(true)
        .status()
        .await;
    postgres.stop().await?;
    nats.stop().await?;
    let status = status.with_context(|| format!("running {}", program.display()))?;
    if status.success() { Ok(()) } else { Err(Failed::Command(status).into()) }
}

/// A directory that is removed when this is dropped.
#[derive(Debug)]
pub struct Scratch {
    /// Where it is.
    pub path: PathBuf,
}

impl Scratch {
    /// A fresh one below the system's directory for temporary files.
    pub(crate) fn new() -> anyhow::Result<Self> {
        Self::within(&std::env::temp_dir())
    }

    /// A fresh one below this directory.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn within(parent: &Path) -> anyhow::Result<Self> {
        let path = parent.join(format!("forebay-{:016x}", super::seed()));
        std::fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Self { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is left to whoever cleans the directory of temporary files.
        drop(std::fs::remove_dir_all(&self.path));
    }
}
