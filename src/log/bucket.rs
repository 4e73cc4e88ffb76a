//! A bucket of the log engine: named values, each with the revision that wrote it.
//! Promises a deadline on every request, a guard that two writers cannot both pass, and a watch that misses nothing.
//! Does not know what the values mean and does not create the bucket.

mod cursor;
mod watch;

use std::fmt;
use std::time::Instant;

use async_nats::connection::State;
use async_nats::header::{HeaderMap, HeaderValue, NATS_EXPECTED_LAST_SUBJECT_SEQUENCE};
use async_nats::jetstream::context::{Context, PublishError, PublishErrorKind};
use async_nats::jetstream::stream::{LastRawMessageErrorKind, Stream};
use async_nats::jetstream::{self, ErrorCode};
use bytes::Bytes;
use tokio::sync::watch as signal;
use tokio::time::timeout_at;

use super::Log;

pub use watch::{Change, Watch};

/// The header that marks a message as the end of its key, and the two values it has for that.
const OPERATION: &str = "KV-Operation";
const OPERATION_DELETE: &str = "DEL";
const OPERATION_PURGE: &str = "PURGE";

/// The header of a marker that the server itself wrote, when a value outlived its time.
const MARKER_REASON: &str = "Nats-Marker-Reason";

/// "Wrong last sequence" without a number: a replicated stream says it while another write of the key is under way.
const WRONG_LAST_SEQUENCE_IN_FLIGHT: u64 = 10_164;

/// "Message size exceeds maximum allowed".
const MESSAGE_TOO_LARGE: u64 = 10_054;

/// "Resources exceeded", "insufficient resources", and a stream's own limit that refuses new messages.
const NO_ROOM: [u64; 3] = [10_002, 10_023, 10_077];

/// What the bucket did not do, and whether that is certain.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no connection; nothing was sent.
    #[error("the log is not connected")]
    Disconnected,
    /// The answer did not come in time; a write may have been stored or may still be.
    #[error("the log did not answer before the deadline")]
    Deadline,
    /// The connection was lost and established anew while the answer was awaited, which therefore cannot come any more;
    /// a write may have been stored.
    #[error("the connection was lost before the log answered")]
    Interrupted,
    /// The server could not do it now, or its answer was lost; a write may have been stored.
    #[error("the log could not answer")]
    Unavailable(#[source] async_nats::Error),
    /// The key has a value already.
    #[error("the key has a value already")]
    Exists,
    /// The key was written by somebody else since the expected revision, or by a lost attempt of this write.
    #[error("the key has another revision than the expected one")]
    RevisionConflict,
    /// The value is larger than the bucket takes; nothing was stored.
    #[error("the value is larger than the bucket takes")]
    TooLarge,
    /// The bucket or its server is full; nothing was stored.
    #[error("the log has no room")]
    Full(#[source] async_nats::Error),
    /// There is no such bucket.
    #[error("there is no bucket {0}")]
    Missing(String),
    /// A key that the log engine does not allow.
    #[error("not a key of a bucket")]
    BadKey,
}

impl Error {
    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Disconnected
            | Self::Deadline
            | Self::Interrupted
            | Self::Unavailable(_)
            | Self::Full(_) => true,
            Self::Exists
            | Self::RevisionConflict
            | Self::TooLarge
            | Self::Missing(_)
            | Self::BadKey => false,
        }
    }
}

/// A value with the revision that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The position in the bucket's stream; a later write of any key has a higher one.
    pub revision: u64,
    /// The value.
    pub value: Bytes,
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which key.
    pub key: String,
    /// The position in the bucket's stream.
    pub revision: u64,
    /// The value it has since; `None` when it was deleted.
    pub value: Option<Bytes>,
}

/// A handle to one bucket. Cheap to clone.
#[derive(Clone)]
pub struct Bucket {
    context: Context,
    stream: String,
    prefix: String,
    connects: signal::Receiver<u64>,
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bucket").field(&self.stream).finish()
    }
}

impl Log {
    /// The bucket of tenants, keys and channels. It is not looked for here.
    pub fn directory(&self) -> Bucket {
        self.bucket("DIRECTORY")
    }

    /// The bucket of heads. It is not looked for here.
    pub fn snapshots(&self) -> Bucket {
        self.bucket("SNAPSHOTS")
    }

    /// The bucket of diverted channels and living nodes. It is not looked for here.
    pub fn breakers(&self) -> Bucket {
        self.bucket("BREAKERS")
    }

    /// The bucket of which channels a conversation names. It is not looked for here.
    pub fn links(&self) -> Bucket {
        self.bucket("LINKS")
    }

    fn bucket(&self, name: &str) -> Bucket {
        let name = format!("{}_{name}", self.namespace().as_str());
        Bucket::new(self.context().clone(), &name, self.connects())
    }
}

impl Bucket {
    /// `connects` counts how often the client has connected; a watch is begun anew at each.
    fn new(context: Context, name: &str, connects: signal::Receiver<u64>) -> Self {
        Self { context, stream: format!("KV_{name}"), prefix: format!("$KV.{name}."), connects }
    }

    /// The value of a key, as the stream's leader knows it; `None` when it has none.
    ///
    /// # Errors
    /// [`Error`]; never one that says a write may have been stored.
    pub async fn get(&self, key: &str, deadline: Instant) -> Result<Option<Found>, Error> {
        let last = self.last(key, deadline).await?;
        Ok(last.and_then(|entry| {
            let Entry { revision, value, .. } = entry;
            value.map(|value| Found { revision, value })
        }))
    }

    /// Writes a value, whatever the key had before. Says the revision.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn put(&self, key: &str, value: Bytes, deadline: Instant) -> Result<u64, Error> {
        self.publish(key, HeaderMap::new(), value, deadline).await
    }

    /// Writes a value if the key has none. Says the revision.
    ///
    /// # Errors
    /// [`Error::Exists`] also when an attempt whose answer was lost had stored it; compare the values to know.
    /// [`Error::RevisionConflict`] when another write of the key is under way; to be asked again.
    pub async fn create(&self, key: &str, value: Bytes, deadline: Instant) -> Result<u64, Error> {
        match self.update(key, value.clone(), 0, deadline).await {
            Err(Error::RevisionConflict) => {}
            answer => return answer,
        }
        // What is there may be the marker of a deletion; then the key is free, and the marker's revision is the guard.
        let marker = match self.last(key, deadline).await? {
            Some(Entry { value: None, revision, .. }) => revision,
            Some(_) => return Err(Error::Exists),
            // The write that was in the way is not to be seen yet.
            None => return Err(Error::RevisionConflict),
        };
        match self.update(key, value, marker, deadline).await {
            Err(Error::RevisionConflict) => Err(Error::Exists),
            answer => answer,
        }
    }

    /// Writes a value if `revision` is the one that the key has. Says the new revision.
    ///
    /// # Errors
    /// [`Error::RevisionConflict`] also when an attempt whose answer was lost had stored it; compare the values to know.
    pub async fn update(
        &self,
        key: &str,
        value: Bytes,
        revision: u64,
        deadline: Instant,
    ) -> Result<u64, Error> {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(revision));
        self.publish(key, headers, value, deadline).await
    }

    /// Deletes a key, whatever it had before; a key without a value may be deleted too. Says the revision.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn delete(&self, key: &str, deadline: Instant) -> Result<u64, Error> {
        let mut headers = HeaderMap::new();
        headers.insert(OPERATION, OPERATION_DELETE);
        self.publish(key, headers, Bytes::new(), deadline).await
    }

    /// Deletes a key if `revision` is the one that it has. Says the new revision.
    ///
    /// # Errors
    /// [`Error::RevisionConflict`] as for [`Self::update`].
    pub async fn delete_at(
        &self,
        key: &str,
        revision: u64,
        deadline: Instant,
    ) -> Result<u64, Error> {
        let mut headers = HeaderMap::new();
        headers.insert(OPERATION, OPERATION_DELETE);
        headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(revision));
        self.publish(key, headers, Bytes::new(), deadline).await
    }

    /// All values and then every change, from the beginning.
    pub fn watch(&self) -> Watch {
        Watch::new(self.clone())
    }

    /// The last entry of a key, deletions included.
    /// The revision of the newest write to any key, as the stream's leader knows it; 0 before the first.
    ///
    /// # Errors
    /// [`Error`]; never one that says a write may have been stored.
    pub async fn revision(&self, deadline: Instant) -> Result<u64, Error> {
        let newest = self.last_of(format!("{}>", self.prefix), ">", deadline).await?;
        Ok(newest.map_or(0, |entry| entry.revision))
    }

    async fn last(&self, key: &str, deadline: Instant) -> Result<Option<Entry>, Error> {
        self.last_of(self.subject(key)?, key, deadline).await
    }

    async fn last_of(
        &self,
        subject: String,
        key: &str,
        deadline: Instant,
    ) -> Result<Option<Entry>, Error> {
        let stream = self.stream().await?;
        let asked = stream.get_last_raw_message_by_subject(&subject);
        let failure = match self.answer(asked, deadline).await? {
            Ok(message) => {
                let deleted = is_deletion(Some(&message.headers));
                return Ok(Some(Entry {
                    key: key.to_owned(),
                    revision: message.sequence,
                    value: (!deleted).then_some(message.payload),
                }));
            }
            Err(failure) => failure,
        };
        match failure.kind() {
            LastRawMessageErrorKind::NoMessageFound => Ok(None),
            LastRawMessageErrorKind::InvalidSubject => Err(Error::BadKey),
            LastRawMessageErrorKind::JetStream(refusal)
                if refusal.error_code() == ErrorCode::STREAM_NOT_FOUND =>
            {
                Err(Error::Missing(self.stream.clone()))
            }
            LastRawMessageErrorKind::JetStream(_) | LastRawMessageErrorKind::Other => {
                Err(Error::Unavailable(failure.into()))
            }
        }
    }

    async fn publish(
        &self,
        key: &str,
        headers: HeaderMap,
        value: Bytes,
        deadline: Instant,
    ) -> Result<u64, Error> {
        let subject = self.subject(key)?;
        let stored = async {
            let ack = self.context.publish_with_headers(subject, headers, value).await?;
            ack.await
        };
        let ack = self.answer(stored, deadline).await?;
        ack.map(|ack| ack.sequence).map_err(refusal)
    }

    /// Waits for an answer no longer than it can come: to the deadline, or until the connection has been replaced.
    async fn answer<T>(
        &self,
        asked: impl Future<Output = T>,
        deadline: Instant,
    ) -> Result<T, Error> {
        let mut connects = self.connects.clone();
        connects.mark_unchanged();
        self.check_connected()?;
        tokio::select! {
            biased;
            answer = timeout_at(deadline.into(), asked) => answer.map_err(|_elapsed| Error::Deadline),
            () = bumped(&mut connects) => Err(Error::Interrupted),
        }
    }

    /// The handle through which the stream is asked; makes no request itself.
    async fn stream(&self) -> Result<Stream<()>, Error> {
        let handle = self.context.get_stream_no_info(&self.stream).await;
        handle.map_err(|failure| Error::Unavailable(failure.into()))
    }

    /// A command for a client without a connection would wait in its queue and be sent long after the caller has gone.
    fn check_connected(&self) -> Result<(), Error> {
        match self.context.client().connection_state() {
            State::Connected => Ok(()),
            State::Pending | State::Disconnected => Err(Error::Disconnected),
        }
    }

    fn subject(&self, key: &str) -> Result<String, Error> {
        if is_key(key) { Ok(format!("{}{key}", self.prefix)) } else { Err(Error::BadKey) }
    }
}

/// What the key-value layer of the log engine allows: letters, digits and `- _ = . /`, no dot at either end.
fn is_key(key: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_=./".contains(&b);
    let dotted = key.starts_with('.') || key.ends_with('.') || key.contains("..");
    !key.is_empty() && !dotted && key.bytes().all(allowed)
}

fn is_deletion(headers: Option<&HeaderMap>) -> bool {
    let Some(headers) = headers else { return false };
    let ended = |value: &HeaderValue| [OPERATION_DELETE, OPERATION_PURGE].contains(&value.as_str());
    headers.get(OPERATION).is_some_and(ended) || headers.get(MARKER_REASON).is_some()
}

/// The client names only one code for a conflict; the others arrive as "other" with the server's answer inside.
fn refusal(failure: PublishError) -> Error {
    let code = std::error::Error::source(&failure)
        .and_then(|source| source.downcast_ref::<jetstream::Error>())
        .map(|refusal| refusal.error_code().0);
    match (failure.kind(), code) {
        (PublishErrorKind::WrongLastSequence, _) | (_, Some(WRONG_LAST_SEQUENCE_IN_FLIGHT)) => {
            Error::RevisionConflict
        }
        (PublishErrorKind::MaxPayloadExceeded, _) | (_, Some(MESSAGE_TOO_LARGE)) => Error::TooLarge,
        (_, Some(code)) if NO_ROOM.contains(&code) => Error::Full(failure.into()),
        _ => Error::Unavailable(failure.into()),
    }
}

/// Waits for the next connect; for ever when nobody counts them any more.
async fn bumped(connects: &mut signal::Receiver<u64>) {
    if connects.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_what_the_engine_allows() {
        for key in ["a", "tenant.0af", "a/b=c_d-e.f"] {
            assert!(is_key(key), "{key}");
        }
        for key in ["", ".", "a.", ".a", "a..b", "a b", "a*", "a.>", "ä", "a\0"] {
            assert!(!is_key(key), "{key}");
        }
    }

    #[test]
    fn deletions_are_told_by_their_headers() {
        let with = |name: &str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value);
            headers
        };
        assert!(!is_deletion(None));
        assert!(!is_deletion(Some(&with(OPERATION, "PUT"))));
        assert!(is_deletion(Some(&with(OPERATION, "DEL"))));
        assert!(is_deletion(Some(&with(OPERATION, "PURGE"))));
        assert!(is_deletion(Some(&with(MARKER_REASON, "MaxAge"))));
    }
}
