//! What both services have alike: a claim on the root and a child that runs, is paused, killed,
//! ended or watched under it. Promises that the pid file says what runs.
//! Does not know how the child is started.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;

use super::claim::Claim;
use super::leash::{Leash, exit};
use super::{Error, Exit};

/// A claim and the child that runs under it, if one does.
#[derive(Debug)]
pub(super) struct Ward {
    claim: Claim,
    log: PathBuf,
    pid: u32,
    leash: Option<Leash>,
}

impl Ward {
    pub(super) fn new(claim: Claim, log: PathBuf) -> Self {
        Self { claim, log, pid: 0, leash: None }
    }

    /// Notes a child that has been started; it is ours once it is ready.
    pub(super) fn record(&self, leash: &Leash) -> Result<(), Error> {
        self.claim.record(leash.identity())
    }

    /// Takes over a child that is ready.
    pub(super) fn hold(&mut self, leash: Leash, service: &'static str) {
        self.pid = leash.identity().pid();
        tracing::info!(process.id = self.pid, "{service} is ready, process {}", self.pid);
        self.leash = Some(leash);
    }

    /// The process number of the child, the last one when none runs.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) async fn pause(&self) {
        if let Some(leash) = &self.leash {
            leash.identity().pause().await;
        }
    }

    pub(super) fn resume(&self) {
        if let Some(leash) = &self.leash {
            leash.identity().resume();
        }
    }

    pub(super) async fn kill(&mut self) -> Result<(), Error> {
        if let Some(leash) = self.leash.take() {
            leash.kill().await?;
            self.claim.clear();
        }
        Ok(())
    }

    /// Ends the child in order, or with SIGKILL when that takes longer than `within`.
    pub(super) async fn end(&mut self, signal: Signal, within: Duration) -> Result<(), Error> {
        if let Some(leash) = self.leash.take() {
            leash.finish(signal, within).await?;
            self.claim.clear();
        }
        Ok(())
    }

    /// Waits until the child ends by itself. At once when none runs.
    ///
    /// Cancel safe: the next call waits on.
    pub(super) async fn watch(&mut self) -> Result<Exit, Error> {
        let Some(leash) = &mut self.leash else {
            return Ok(exit(&self.log, None));
        };
        let status = leash.wait().await?;
        Ok(exit(&self.log, Some(status)))
    }
}
