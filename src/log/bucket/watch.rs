//! The watch of a bucket: all its values, a sign that they were all, then every change.
//! Promises to go on by itself after a lost connection or server, at once after the client has connected again.
//! Does not keep values; a reader that is told to start afresh builds its knowledge anew.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::consumer::pull::{Ordered, OrderedConfig, OrderedError};
use async_nats::jetstream::consumer::{DeliverPolicy, ReplayPolicy};
use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::message::Message;
use futures_util::StreamExt;
use tokio::sync::watch as signal;
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::cursor::{Cursor, Sight, Start};
use super::{Bucket, Entry, Error, bumped, is_deletion};

/// How long one attempt to attach may take: three round trips, each of which a healthy server answers in milliseconds.
const ATTACH_MAX: Duration = Duration::from_secs(2);

/// After so many failed attempts in a row on a live connection the watch reports the failure.
const ATTACH_TRIES_MAX: u32 = 10;

/// The first pause between attempts to attach; it doubles up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(50);

/// The longest pause between attempts to attach.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A watch that hears nothing for so long asks whether it missed something.
///
/// The server's side of a watch can die without the connection (its node of a cluster goes down). The client notices by
/// missing heartbeats after 10 to 20 s, which is too long for a revoked key.
const QUIET_MAX: Duration = Duration::from_millis(700);

/// What a watch tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// What follows up to the next [`Change::Level`] is the whole bucket; what was told before is void once it comes.
    Afresh,
    /// One key changed. Revisions rise from one [`Change::Afresh`] to the next.
    Entry(Entry),
    /// Everything that the bucket held when the watch attached was told, up to this revision.
    Level {
        /// The last revision that was told.
        revision: u64,
    },
    /// The server cannot be heard; changes may be missing until the next [`Change::Level`].
    Behind,
}

/// A reader of one bucket; see [`Bucket::watch`].
pub struct Watch {
    bucket: Bucket,
    connects: signal::Receiver<u64>,
    cursor: Cursor,
    feed: Option<Ordered>,
    /// At most the entry just received and the sign that follows it.
    told: VecDeque<Change>,
    failures: u32,
    /// How often in a row an attachment was given up for its silence.
    silences: u32,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("bucket", &self.bucket)
            .field("cursor", &self.cursor)
            .field("attached", &self.feed.is_some())
            .finish_non_exhaustive()
    }
}

/// What a watch that is attached waits for.
#[expect(clippy::large_enum_variant, reason = "it lives for one statement and is never stored")]
enum Arrival {
    Connected,
    Message(Option<Result<Message, OrderedError>>),
    Quiet,
}

impl Watch {
    pub(super) fn new(bucket: Bucket) -> Self {
        Self {
            connects: bucket.connects.clone(),
            bucket,
            cursor: Cursor::default(),
            feed: None,
            told: VecDeque::new(),
            failures: 0,
            silences: 0,
        }
    }

    /// The next change. Waits through lost connections.
    ///
    /// Cancel safe: what was received is kept in the watch, and an attachment that is cut short is begun anew.
    ///
    /// # Errors
    /// [`Error::Missing`] when there is no such bucket; another error when the server can be reached but not watched
    /// for several attempts. The watch may be asked again.
    pub async fn next(&mut self) -> Result<Change, Error> {
        loop {
            if let Some(change) = self.told.pop_front() {
                return Ok(change);
            }
            let Some(feed) = &mut self.feed else {
                self.attach().await?;
                continue;
            };
            // A slow server gets more time with every attempt, or no attempt would ever succeed.
            let patience = QUIET_MAX.saturating_mul(1 << self.silences.min(5));
            let arrival = tokio::select! {
                biased;
                () = bumped(&mut self.connects) => Arrival::Connected,
                message = feed.next() => Arrival::Message(message),
                () = sleep(patience) => Arrival::Quiet,
            };
            self.on_arrival(arrival).await;
        }
    }

    async fn on_arrival(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Message(Some(Ok(message))) => self.on_message(&message),
            Arrival::Message(Some(Err(failure))) => {
                debug!(error = %failure, "the watch of {} is begun anew", self.bucket.stream);
                self.detach();
            }
            Arrival::Connected | Arrival::Message(None) => self.detach(),
            Arrival::Quiet => match timeout(ATTACH_MAX, self.bucket.sight()).await {
                Ok(Ok(sight)) if !self.cursor.is_behind(sight.last) => self.silences = 0,
                Ok(_) | Err(_) => {
                    self.silences += 1;
                    self.detach();
                }
            },
        }
    }

    fn on_message(&mut self, message: &Message) {
        let Some(key) = message.subject.strip_prefix(self.bucket.prefix.as_str()) else {
            return;
        };
        let Ok(info) = message.info() else {
            return self.detach();
        };
        self.silences = 0;
        let (revision, pending) = (info.stream_sequence, info.pending);
        if self.cursor.on_revision(revision) {
            let deleted = is_deletion(message.headers.as_ref());
            self.told.push_back(Change::Entry(Entry {
                key: key.to_owned(),
                revision,
                value: (!deleted).then(|| message.payload.clone()),
            }));
        }
        if self.cursor.on_delivered(pending) {
            self.tell_level();
        }
    }

    fn detach(&mut self) {
        self.feed = None;
        if self.cursor.on_lost() {
            self.told.push_back(Change::Behind);
        }
    }

    fn tell_level(&mut self) {
        let revision = self.cursor.last();
        self.told.push_back(Change::Level { revision });
    }

    /// One attempt to attach, with its pause when it fails.
    async fn attach(&mut self) -> Result<(), Error> {
        self.connects.borrow_and_update();
        let failure = match timeout(ATTACH_MAX, self.open()).await {
            Ok(Ok(())) => {
                self.failures = 0;
                return Ok(());
            }
            Ok(Err(Error::Missing(name))) => return Err(Error::Missing(name)),
            Ok(Err(failure)) => failure,
            Err(_elapsed) => Error::Deadline,
        };
        if matches!(failure, Error::Disconnected) {
            self.failures = 0;
        } else {
            self.failures += 1;
        }
        if self.failures >= ATTACH_TRIES_MAX {
            self.failures = 0;
            return Err(failure);
        }
        let pause = PAUSE_FIRST.saturating_mul(1 << self.failures.min(8)).min(PAUSE_MAX);
        tokio::select! {
            () = bumped(&mut self.connects) => {}
            () = sleep(pause) => {}
        }
        Ok(())
    }

    async fn open(&mut self) -> Result<(), Error> {
        let stream = self.bucket.stream().await?;
        let sight = self.bucket.sight().await?;
        let start = self.cursor.start(sight);
        let deliver_policy = match start {
            Start::Afresh => DeliverPolicy::All,
            Start::From(revision) => DeliverPolicy::ByStartSequence { start_sequence: revision },
        };
        let consumer = stream.create_consumer(OrderedConfig {
            description: Some("forebay: watch of a bucket".to_owned()),
            replay_policy: ReplayPolicy::Instant,
            deliver_policy,
            ..OrderedConfig::default()
        });
        let consumer = consumer.await.map_err(|failure| Error::Unavailable(failure.into()))?;
        let pending = consumer.cached_info().num_pending;
        let feed =
            consumer.messages().await.map_err(|failure| Error::Unavailable(failure.into()))?;
        self.feed = Some(feed);
        self.cursor.on_attached(sight, start);
        if start == Start::Afresh {
            self.told.push_back(Change::Afresh);
        }
        if pending == 0 && self.cursor.on_nothing_pending() {
            self.tell_level();
        }
        Ok(())
    }
}

impl Bucket {
    /// What the server says of the bucket's stream.
    async fn sight(&self) -> Result<Sight, Error> {
        self.check_connected()?;
        let stream = self.context.get_stream(&self.stream).await;
        let stream = stream.map_err(|failure| match failure.kind() {
            GetStreamErrorKind::JetStream(refusal)
                if refusal.error_code() == ErrorCode::STREAM_NOT_FOUND =>
            {
                Error::Missing(self.stream.clone())
            }
            GetStreamErrorKind::JetStream(_)
            | GetStreamErrorKind::Request
            | GetStreamErrorKind::EmptyName
            | GetStreamErrorKind::InvalidStreamName => Error::Unavailable(failure.into()),
        })?;
        let info = stream.cached_info();
        Ok(Sight {
            created: info.created.unix_timestamp_nanos(),
            first: info.state.first_sequence,
            last: info.state.last_sequence,
        })
    }
}
