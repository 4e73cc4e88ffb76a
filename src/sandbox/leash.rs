//! A child process that cannot outlive us, in a process group of its own, its output in a file.
//! Promises that it ends when this process ends, SIGKILL included, and that `kill` ends all of it,
//! paused or not. Does not restart it.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

use super::account::Account;
use super::claim::gone;
use super::place::last_lines;
use super::process::Identity;
use super::{Error, Exit};

/// The guard that holds the other end of the child's leash; the file says how.
const SCRIPT: &str = include_str!("leash.sh");
/// How long the kernel may take to end a killed process that is inside a write.
const KILL_DEADLINE: Duration = Duration::from_secs(10);

/// What to run, and as whom.
#[derive(Debug)]
pub(super) struct Errand {
    /// Which service it is, for messages.
    pub(super) service: &'static str,
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<OsString>,
    /// The file that its output is appended to.
    pub(super) log: PathBuf,
    /// Whom to become; nobody else when `None`.
    pub(super) account: Option<Account>,
    /// The signal that asks for a quick but clean end.
    pub(super) polite: Polite,
}

/// A signal that asks for an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Polite {
    /// Postgres: end every session and leave, recover at the next start.
    Quit,
    /// Everybody else.
    Term,
}

impl Polite {
    /// The name as `kill` of the shell takes it.
    fn name(self) -> &'static str {
        match self {
            Self::Quit => "QUIT",
            Self::Term => "TERM",
        }
    }
}

/// A running child.
#[derive(Debug)]
pub(super) struct Leash {
    service: &'static str,
    child: Child,
    identity: Identity,
    log: PathBuf,
    /// Nothing is ever written to it; the guard waits for its end.
    _lifeline: Option<ChildStdin>,
}

impl Leash {
    /// Starts the errand. Its environment is empty but for PATH: variables such as PGDATA or
    /// PGOPTIONS of the caller's shell are meant for another server.
    pub(super) fn start(errand: &Errand) -> Result<Self, Error> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&errand.log)
            .map_err(Error::io("open", &errand.log))?;
        let again = log.try_clone().map_err(Error::io("open", &errand.log))?;
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", SCRIPT, "leash", errand.polite.name()])
            .arg(&errand.program)
            .args(&errand.arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into()))
            .env("LANG", "C.UTF-8")
            .env("TZ", "UTC")
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(log)
            .stderr(again)
            // Away from the terminal's group, or Ctrl-C would reach the child before us.
            .process_group(0);
        if let Some(account) = errand.account {
            // The standard library drops the supplementary groups of root along with it.
            command.uid(account.user).gid(account.group);
        }
        let mut child = command.spawn().map_err(Error::io("run", &errand.program))?;
        let lifeline = child.stdin.take();
        let identity = child.id().and_then(Identity::of).ok_or_else(|| {
            Error::io("find the process of", &errand.program)(std::io::ErrorKind::NotFound.into())
        })?;
        let log = errand.log.clone();
        Ok(Self { service: errand.service, child, identity, log, _lifeline: lifeline })
    }

    pub(super) fn identity(&self) -> Identity {
        self.identity
    }

    /// Waits for the child's end.
    ///
    /// Cancel safe: nothing is lost, the next call waits on.
    pub(super) async fn wait(&mut self) -> Result<ExitStatus, Error> {
        self.child.wait().await.map_err(Error::io("wait for the process of", &self.log))
    }

    /// An error when the child has ended already.
    pub(super) fn expect_running(&mut self) -> Result<(), Error> {
        let ended =
            self.child.try_wait().map_err(Error::io("wait for the process of", &self.log))?;
        match ended {
            None => Ok(()),
            Some(status) => {
                let exit = exit(&self.log, Some(status));
                Err(Error::Died { service: self.service, exit })
            }
        }
    }

    /// Asks the child to end, paused or not, and kills it when it has not after `within`.
    pub(super) async fn finish(mut self, signal: Signal, within: Duration) -> Result<(), Error> {
        self.identity.resume();
        self.identity.signal(signal);
        match timeout(within, self.wait()).await {
            Ok(ended) => ended.map(|_status| ()),
            Err(_elapsed) => {
                tracing::warn!(
                    process.id = self.identity.pid(),
                    "{} did not end within {} s and is killed",
                    self.service,
                    within.as_secs()
                );
                self.kill().await
            }
        }
    }

    /// Ends the child and its children with SIGKILL and waits until they are gone.
    pub(super) async fn kill(mut self) -> Result<(), Error> {
        // Standing first, it cannot fork a child that the list of victims misses.
        self.identity.pause().await;
        let victims = self.identity.kill_tree();
        let reaped = timeout(KILL_DEADLINE, self.wait()).await;
        match reaped {
            Ok(status) => status.map(|_status| ())?,
            Err(_elapsed) => tracing::warn!("{} does not die", self.service),
        }
        gone(&victims, KILL_DEADLINE, self.service, &self.log).await
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        if self.identity.is_alive() {
            self.identity.kill_tree();
        }
    }
}

/// The account of an end, with the end of the log.
pub(super) fn exit(log: &Path, status: Option<ExitStatus>) -> Exit {
    Exit { status, log: log.to_owned(), last_lines: last_lines(log) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    use rustix::process::Signal;

    use super::{Errand, Leash, Polite};
    use crate::sandbox::Error;

    fn shell(root: &Path, script: &str) -> Errand {
        Errand {
            service: "shell",
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into(), "a b".into()],
            log: root.join("a log.txt"),
            account: None,
            polite: Polite::Term,
        }
    }

    #[tokio::test]
    async fn the_exit_status_and_the_output_are_the_childs_own() {
        let root = tempfile::tempdir().unwrap();
        let errand = shell(root.path(), "echo \"$0: $$\"; exit 7");
        let mut leash = Leash::start(&errand).unwrap();
        let pid = leash.identity().pid();
        assert_eq!(leash.wait().await.unwrap().code(), Some(7));
        assert_eq!(fs::read_to_string(&errand.log).unwrap(), format!("a b: {pid}\n"));
        let Err(Error::Died { exit, .. }) = leash.expect_running() else { panic!("it ended") };
        assert!(exit.to_string().contains("exit status: 7"));
    }

    #[tokio::test]
    async fn a_paused_child_is_killed_with_its_children() {
        let root = tempfile::tempdir().unwrap();
        let leash = Leash::start(&shell(root.path(), "sleep 600 & sleep 600")).unwrap();
        let identity = leash.identity();
        let both = async {
            while identity.children().len() < 2 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), both).await.unwrap();
        let children = identity.children();
        identity.pause().await;
        leash.kill().await.unwrap();
        assert!(!identity.is_alive());
        assert!(!children.iter().any(|child| child.is_alive()));
    }

    #[tokio::test]
    async fn a_child_that_ignores_the_request_is_killed_at_the_deadline() {
        let root = tempfile::tempdir().unwrap();
        let errand = shell(root.path(), "trap '' TERM; echo ready; while :; do sleep 1; done");
        let leash = Leash::start(&errand).unwrap();
        let identity = leash.identity();
        let ready = async {
            while fs::read_to_string(&errand.log).unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), ready).await.unwrap();
        leash.finish(Signal::TERM, Duration::from_millis(50)).await.unwrap();
        assert!(!identity.is_alive());
    }
}
