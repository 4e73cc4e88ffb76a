//! The loop that keeps the directory in memory level with its bucket.
//! Promises that a reader sees whole states only: a bucket that is read anew replaces the memory at once, when complete.
//! Does not write to the bucket.

use std::sync::Arc;

use tracing::{error, info, warn};

use super::memory::{Effect, Memory};
use super::{Error, Shared};
use crate::lifecycle::Stop;
use crate::log::bucket::{Bucket, Change, Entry, Watch};

/// What can follow the directory's bucket; every clone can do so from the beginning.
#[derive(Clone, Debug)]
pub struct Follower {
    bucket: Bucket,
    shared: Arc<Shared>,
}

/// One time of following: a watch and, while it reads the bucket from the beginning, the memory that it builds.
#[derive(Debug)]
pub struct Session {
    watch: Watch,
    shared: Arc<Shared>,
    draft: Option<Memory>,
}

impl Follower {
    pub(super) fn new(bucket: Bucket, shared: Arc<Shared>) -> Self {
        Self { bucket, shared }
    }

    /// Follows the bucket until the stop is requested.
    ///
    /// # Errors
    /// When the bucket does not exist or cannot be watched although the log is connected. What is in memory stays and
    /// goes on being answered.
    pub async fn run(self, stop: Stop) -> Result<(), Error> {
        let mut session = self.begin();
        loop {
            tokio::select! {
                biased;
                () = stop.requested() => return Ok(()),
                stepped = session.step() => stepped?,
            }
        }
    }

    /// A session that is driven by its [`Session::step`].
    pub fn begin(&self) -> Session {
        Session { watch: self.bucket.watch(), shared: Arc::clone(&self.shared), draft: None }
    }
}

impl Session {
    /// Waits for one change and takes it in.
    ///
    /// Cancel safe: the wait is, and a change is taken in without waiting.
    ///
    /// # Errors
    /// As for [`Follower::run`].
    pub async fn step(&mut self) -> Result<(), Error> {
        let change = self.watch.next().await.map_err(Error::Unavailable)?;
        self.take_in(change);
        Ok(())
    }

    fn take_in(&mut self, change: Change) {
        match change {
            Change::Afresh => self.draft = Some(Memory::default()),
            Change::Entry(entry) => self.take_entry(&entry),
            Change::Level { revision } => {
                if let Some(memory) = self.draft.take() {
                    let counts = memory.counts();
                    self.shared.replace(memory, revision);
                    info!("directory loaded up to revision {revision}: {counts:?}");
                }
                self.shared.set_level(true);
            }
            Change::Behind => {
                self.shared.set_level(false);
                warn!("directory cannot hear of changes; it answers from what it knows");
            }
        }
    }

    fn take_entry(&mut self, entry: &Entry) {
        let apply = |memory: &mut Memory| memory.apply(&entry.key, entry.value.as_deref());
        let outcome = match &mut self.draft {
            Some(memory) => apply(memory),
            None => self.shared.change(entry.revision, |memory| {
                let outcome = apply(memory);
                // What became unreadable may have been access.
                let effect = outcome.as_ref().copied().unwrap_or(Effect::Revoked);
                (effect, outcome)
            }),
        };
        if let Err(cause) = outcome {
            let key = &entry.key;
            error!(directory.key = %key, error = %cause, "entry {key} cannot be read and counts as absent");
        }
    }
}
