//! How the directory asks its bucket and writes to it: one entry, guarded by its revision, tried again while that can help.
//! Promises that a write whose answer was lost is recognised, and that a write that returns is in this node's memory.
//! Does not know what the entries say.

use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::time::{sleep, timeout_at};

use super::entry::Subject;
use super::{Directory, Error, Noun};
use crate::event::{ChannelId, TenantId};
use crate::log::bucket::{self, Found};

/// How often a change is made anew because somebody else changed the same entry in between. Every failure is somebody's
/// success, so even a crowd gets through; this bounds a caller's work.
const REVISIONS_MAX: u32 = 16;

/// The pause before a request is repeated that the bucket could not answer.
const PAUSE: Duration = Duration::from_millis(50);

impl Directory {
    /// Writes an entry that must not exist yet.
    ///
    /// Idempotent by its value, which contains what nobody else has drawn: a value that is there already is its own.
    pub(super) async fn create_entry(
        &self,
        subject: Subject,
        value: Vec<u8>,
        deadline: Instant,
    ) -> Result<(), Error> {
        let (key, value) = (subject.to_string(), Bytes::from(value));
        loop {
            let outcome = match self.bucket.create(&key, value.clone(), deadline).await {
                Err(bucket::Error::Exists) => match self.bucket.get(&key, deadline).await {
                    Ok(Some(found)) if found.value == value => Ok(found.revision),
                    Ok(_) => return Err(Error::Conflict),
                    Err(failure) => Err(failure),
                },
                outcome => outcome,
            };
            match outcome {
                Ok(revision) => return self.seen(revision, deadline).await,
                Err(failure) => pause_after(failure).await?,
            }
        }
    }

    /// Changes an entry that exists. `change` is asked again if somebody else changed the entry in between.
    ///
    /// Idempotent by its value as long as nobody writes in between; then the change is made on top of theirs.
    pub(super) async fn revise<T>(
        &self,
        (noun, subject): (Noun, Subject),
        deadline: Instant,
        mut change: impl FnMut(&[u8]) -> Result<(T, Vec<u8>), Error>,
    ) -> Result<T, Error> {
        let key = subject.to_string();
        let mut sent: Option<(T, Bytes)> = None;
        let mut revisions = 0;
        loop {
            let found = match self.bucket.get(&key, deadline).await {
                Ok(Some(found)) => found,
                Ok(None) => return Err(Error::NotFound(noun)),
                Err(failure) => {
                    pause_after(failure).await?;
                    continue;
                }
            };
            let Found { revision, value } = found;
            if let Some((outcome, own)) = sent.take_if(|(_, own)| *own == value) {
                drop(own);
                self.seen(revision, deadline).await?;
                return Ok(outcome);
            }
            if revisions == REVISIONS_MAX {
                return Err(Error::Conflict);
            }
            revisions += 1;
            let (outcome, bytes) = change(&value)?;
            let own = Bytes::from(bytes);
            let update = self.bucket.update(&key, own.clone(), revision, deadline);
            match update.await {
                Ok(revision) => {
                    self.seen(revision, deadline).await?;
                    return Ok(outcome);
                }
                Err(bucket::Error::RevisionConflict) => {}
                Err(failure) => pause_after(failure).await?,
            }
            sent = Some((outcome, own));
        }
    }

    /// Deletes an entry; deleting it again is no fault.
    pub(super) async fn delete_entry(
        &self,
        subject: Subject,
        deadline: Instant,
    ) -> Result<(), Error> {
        let key = subject.to_string();
        loop {
            match self.bucket.delete(&key, deadline).await {
                Ok(revision) => return self.seen(revision, deadline).await,
                Err(failure) => pause_after(failure).await?,
            }
        }
    }

    /// The value of an entry, asked of the bucket.
    pub(super) async fn read_entry(
        &self,
        subject: Subject,
        deadline: Instant,
    ) -> Result<Option<Found>, Error> {
        loop {
            match self.bucket.get(&subject.to_string(), deadline).await {
                Ok(found) => return Ok(found),
                Err(failure) => pause_after(failure).await?,
            }
        }
    }

    /// Waits until this node's memory has everything that the bucket's leader has now.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the bucket does not answer, [`Error::Unseen`] when the memory does not get there in time.
    pub async fn catch_up(&self, deadline: Instant) -> Result<(), Error> {
        let newest = self.bucket.revision(deadline).await.map_err(Error::Unavailable)?;
        self.seen(newest, deadline).await
    }

    /// Whether a channel that this node does not know is gone. The memory may be behind, and what it cannot read counts as
    /// absent there; the bucket's leader knows.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the bucket does not answer.
    pub async fn is_gone(
        &self,
        tenant: TenantId,
        channel: ChannelId,
        deadline: Instant,
    ) -> Result<bool, Error> {
        let found = self.read_entry(Subject::Channel(tenant, channel), deadline).await?;
        Ok(found.is_none())
    }

    /// Waits until this node's memory has a revision.
    async fn seen(&self, revision: u64, deadline: Instant) -> Result<(), Error> {
        let mut sight = self.shared.sight.subscribe();
        let reached = sight.wait_for(|sight| sight.ready && sight.revision >= revision);
        match timeout_at(deadline.into(), reached).await {
            Ok(Ok(_sight)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Error::Unseen),
        }
    }
}

/// Waits before a request is repeated, if repeating can help.
///
/// Without a connection it cannot: the caller is told at once. The deadline is the requests' own; they end by it.
async fn pause_after(failure: bucket::Error) -> Result<(), Error> {
    if matches!(
        failure,
        bucket::Error::Unavailable(_)
            | bucket::Error::Interrupted
            | bucket::Error::RevisionConflict
    ) {
        sleep(PAUSE).await;
        Ok(())
    } else {
        Err(Error::Unavailable(failure))
    }
}
