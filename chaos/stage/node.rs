//! A node: `forebay serve` in a process of its own, which is killed, paused, stopped and started again at one address.
//! Promises that it ends with this process, and that what it writes is kept for whoever looks for a cause.
//! Does not decide when.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use forebay::cli::operator;
use forebay::clock::Clock;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Longest wait until a node is ready.
const READY_MAX: Duration = Duration::from_mins(1);

/// How often it is asked whether it is.
const LOOK: Duration = Duration::from_millis(50);

/// Longest wait for a probe's answer.
const PROBE_MAX: Duration = Duration::from_secs(2);

/// Longest drain; the server's own limit is shorter.
const STOP_MAX: Duration = Duration::from_secs(45);

/// Names the file that says how far the clock of a node is off, to libfaketime.
pub(crate) const CLOCK_FILE: &str = "FAKETIME_TIMESTAMP_FILE";

/// A node.
#[derive(Debug)]
pub(crate) struct Node {
    /// Where it takes requests, in all of its lives.
    pub(crate) address: SocketAddr,
    program: PathBuf,
    settings: Vec<(String, String)>,
    log: PathBuf,
    child: Option<Child>,
}

impl Node {
    /// A node that does not run yet.
    pub(crate) fn new(
        program: &Path,
        address: SocketAddr,
        settings: Vec<(String, String)>,
        log: PathBuf,
    ) -> Self {
        Self { address, program: program.to_owned(), settings, log, child: None }
    }

    /// `http://host:port`.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its process, if it runs.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// Changes a setting of its next life.
    pub(crate) fn set(&mut self, name: &str, value: String) {
        self.settings.retain(|(set, _)| set != name);
        self.settings.push((name.to_owned(), value));
    }

    /// Moves its clock so many seconds forward or back.
    ///
    /// # Errors
    /// When it runs without the library that can.
    pub(crate) fn set_clock(&self, seconds: i64) -> anyhow::Result<()> {
        let (_, file) = self
            .settings
            .iter()
            .find(|(name, _)| name == CLOCK_FILE)
            .context("a node whose clock cannot be moved")?;
        Ok(std::fs::write(file, format!("{seconds:+}"))?)
    }

    /// Starts it, and does not wait until it is ready.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(&self.program);
        command
            .args(["serve", "--until-stdin-closes"])
            .env("FOREBAY_LISTEN", self.address.to_string())
            .envs(self.settings.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true);
        let child = command.spawn();
        self.child = Some(child.with_context(|| format!("running {}", self.program.display()))?);
        Ok(())
    }

    /// Waits until it is ready.
    ///
    /// # Errors
    /// When it ends instead, or takes too long.
    pub(crate) async fn ready(&mut self, clock: &Clock) -> anyhow::Result<()> {
        let deadline = clock.now() + READY_MAX;
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !is_ready(self.address, "readyz").await {
            look.tick().await;
            if let Some(status) = self.child.as_mut().and_then(|c| c.try_wait().ok()).flatten() {
                anyhow::bail!("a node ended with {status}; see {}", self.log.display());
            }
            if clock.now() > deadline {
                anyhow::bail!("a node is not ready after {} s", READY_MAX.as_secs());
            }
        }
        Ok(())
    }

    /// Makes the streams what its settings say, as an operator does.
    ///
    /// # Errors
    /// When the command fails.
    pub(crate) async fn apply_streams(&self) -> anyhow::Result<()> {
        let mut command = Command::new(&self.program);
        command.args(["streams", "apply"]).stdin(Stdio::null()).kill_on_drop(true);
        command.envs(self.settings.iter().map(|(name, value)| (name, value)));
        let output = timeout(READY_MAX, command.output()).await??;
        let said = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "forebay streams apply: {said}");
        Ok(())
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = self.pid().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        // One that has ended by itself is found by whoever looks after the nodes.
        if let Some(Err(error)) = pid.map(|pid| kill_process(pid, signal)) {
            tracing::debug!(%error, "a signal did not arrive");
        }
    }

    /// Ends it with SIGKILL, paused or not.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill().await?;
        }
        Ok(())
    }

    /// Ends it with SIGTERM and waits until it has drained.
    ///
    /// # Errors
    /// When it takes too long or says that it failed.
    pub(crate) async fn stop(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::TERM);
        let Some(mut child) = self.child.take() else { return Ok(()) };
        // Its end would be a second wish to end, which does not let it drain.
        let lifeline = child.stdin.take();
        let ended = timeout(STOP_MAX, child.wait()).await;
        drop(lifeline);
        match ended {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(ended) => anyhow::bail!("a node that was asked to end ended with {:?}", ended?),
            Err(_elapsed) => anyhow::bail!("a node did not end in {} s", STOP_MAX.as_secs()),
        }
    }
}

/// Whether a node says at this probe that it is ready.
pub(crate) async fn is_ready(address: SocketAddr, probe: &str) -> bool {
    let url = format!("http://{address}/{probe}");
    let asked = timeout(PROBE_MAX, operator::probe(&url)).await;
    asked.is_ok_and(|answer| answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")))
}
