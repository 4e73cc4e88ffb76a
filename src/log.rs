//! The log's place: every line that talks to JetStream, apart from benchmarks that measure it bare.
//! Promises that an outcome says no more than the server said, and that a follower neither skips nor repeats a position.
//! Does not know what records mean; it moves bytes and positions.

pub mod append;
pub mod backlog;
pub mod batch;
pub mod bucket;
mod connection;
pub mod feed;
pub mod follow;
pub mod queue;
pub mod streams;
mod whisper;

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream;
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::watch;
use tracing::warn;

use crate::event::{Partition, Partitions};

use connection::connect;

pub use append::{Outcome, Outgoing};
pub use follow::Follow;

/// Longest wait for the answer to a request about streams and single records.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// The status of an answer that says that there is no such position.
const NO_MESSAGE: u16 = 404;

/// What can go wrong between this process and JetStream.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server cannot be reached.
    #[error("connecting to NATS at {url}")]
    Connect {
        /// Where it was looked for, without credentials.
        url: String,
        /// What the client library says.
        #[source]
        source: async_nats::ConnectError,
    },
    /// The address cannot be parsed.
    #[error("the NATS address {url} is not one")]
    Address {
        /// The text.
        url: String,
    },
    /// No answer, or none in time.
    #[error("{doing}: no answer from JetStream")]
    Unavailable {
        /// What was being done.
        doing: &'static str,
        /// What the client library says.
        #[source]
        source: async_nats::Error,
    },
    /// JetStream refused.
    #[error("{doing}: JetStream refused with {code}: {description}")]
    Refused {
        /// What was being done.
        doing: &'static str,
        /// JetStream's own error code.
        code: u64,
        /// JetStream's own words.
        description: String,
    },
    /// The server is older than the features that Forebay needs.
    #[error("nats-server {found} is too old: Forebay needs {} or newer", MIN_SERVER)]
    TooOld {
        /// The version that answered.
        found: String,
    },
    /// The streams do not fit this configuration.
    #[error(transparent)]
    Streams(#[from] streams::Mismatch),
    /// A follower's next position was purged before it was read.
    #[error("{stream}: position {position} is gone, the log begins at {first}")]
    Purged {
        /// The stream.
        stream: String,
        /// The position that was wanted.
        position: u64,
        /// The first one that is there.
        first: u64,
    },
    /// A position that should be there is not.
    #[error("record {position} of partition {partition} is not in the log")]
    Missing {
        /// Which partition.
        partition: Partition,
        /// Which position.
        position: u64,
    },
}

/// The oldest nats-server that is accepted: 2.14 has what the streams use.
pub const MIN_SERVER: &str = "2.14";

impl Error {
    /// Whether trying again later can help.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::Unavailable { .. })
    }
}

/// Where the log is and what its parts are called.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `nats://` address, several separated by commas.
    pub url: String,
    /// Prefix of every stream and subject: lets several installations share a server.
    pub namespace: Namespace,
    /// How many partitions to create; `None` takes what is there, or four when nothing is.
    pub partitions: Option<Partitions>,
    /// Replicas of every stream.
    pub replicas: u8,
    /// Size at which a partition's stream refuses to grow, in bytes.
    pub partition_bytes_max: i64,
}

/// A prefix of streams and subjects: 1 to 32 characters of `a-z 0-9 -`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// `None` when the text is empty, too long or has another character.
    pub fn parse(text: &str) -> Option<Self> {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let fits = (1..=32).contains(&text.len()) && text.bytes().all(allowed);
        fits.then(|| Self(text.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Three connections to JetStream and the shape of the log behind them.
#[derive(Clone, Debug)]
pub struct Log {
    /// Carries publishes, so that a large read never stands before one.
    writes: async_nats::Client,
    /// Carries everything else.
    reads: jetstream::Context,
    /// Carries deliveries: their batches are large and must not stand before a send.
    deliveries: jetstream::Context,
    settings: Arc<Settings>,
    /// Counts how often the reading connection was established.
    connects: watch::Receiver<u64>,
    write_connects: watch::Receiver<u64>,
    delivery_connects: watch::Receiver<u64>,
}

impl Log {
    /// Connects. Does not look at the streams; [`streams::apply`] does.
    ///
    /// # Errors
    /// When the address is none, nobody answers there, or the server is too old.
    pub async fn connect(settings: Settings) -> Result<Self, Error> {
        let (writes, write_connects) = connect(&settings, "writes").await?;
        let (reads, connects) = connect(&settings, "reads").await?;
        let (deliveries, delivery_connects) = connect(&settings, "deliveries").await?;
        let version = writes.server_info().version;
        if !streams::is_recent(&version) {
            return Err(Error::TooOld { found: version });
        }
        let context = |client| {
            let builder = jetstream::context::ContextBuilder::new().timeout(REQUEST_TIMEOUT);
            builder.concurrency_limit(None).build(client)
        };
        let (reads, deliveries) = (context(reads), context(deliveries));
        let settings = Arc::new(settings);
        Ok(Self {
            writes,
            reads,
            deliveries,
            settings,
            connects,
            write_connects,
            delivery_connects,
        })
    }

    /// The prefix of everything of this installation.
    pub fn namespace(&self) -> &Namespace {
        &self.settings.namespace
    }

    /// Name of a partition's stream.
    pub fn stream(&self, partition: Partition) -> String {
        format!("{}_LOG_{partition}", self.settings.namespace.as_str())
    }

    /// The one subject of a partition's stream.
    pub fn subject(&self, partition: Partition) -> String {
        format!("{}.log.{partition}", self.settings.namespace.as_str())
    }

    /// Counts how often the connection was established; a change means that server-side consumers may be gone.
    pub fn connects(&self) -> watch::Receiver<u64> {
        self.connects.clone()
    }

    /// The same for the connection that publishes: a record in doubt is worth publishing again at once.
    pub fn write_connects(&self) -> watch::Receiver<u64> {
        self.write_connects.clone()
    }

    /// Whether the publishing connection is up, as far as the client library knows.
    pub fn is_connected(&self) -> bool {
        self.writes.connection_state() == async_nats::connection::State::Connected
    }

    /// First and last position of a partition, and the bytes it takes on disk.
    ///
    /// # Errors
    /// When JetStream does not answer or has no such stream.
    pub async fn bounds(&self, partition: Partition) -> Result<Bounds, Error> {
        let doing = "reading a stream's state";
        let info = streams::info(&self.reads, &self.stream(partition), doing).await?;
        let number = |key: &str| info["state"][key].as_u64().unwrap_or(0);
        Ok(Bounds { first: number("first_seq"), last: number("last_seq"), bytes: number("bytes") })
    }

    /// One record and the time at which the server stored it.
    ///
    /// # Errors
    /// [`Error::Missing`] when the log has no such position (any more).
    pub async fn get(&self, partition: Partition, position: u64) -> Result<Stored, Error> {
        let subject = format!("DIRECT.GET.{}", self.stream(partition));
        let request = async_nats::Request::new()
            .payload(format!("{{\"seq\":{position}}}").into())
            .timeout(Some(REQUEST_TIMEOUT));
        let answer = self.reads.client().send_request(format!("$JS.API.{subject}"), request).await;
        let message = answer.map_err(|source| Error::Unavailable {
            doing: "reading one record",
            source: source.into(),
        })?;
        let header = |name: &str| message.headers.as_ref().and_then(|h| h.get(name));
        if message.status.is_some_and(|status| status.as_u16() == NO_MESSAGE) {
            return Err(Error::Missing { partition, position });
        }
        let found = header("Nats-Sequence").and_then(|seq| seq.as_str().parse::<u64>().ok());
        let time = header("Nats-Time-Stamp").and_then(|time| time.as_str().parse().ok());
        match (found, time) {
            (Some(found), Some(time)) if found == position => {
                Ok(Stored { bytes: message.payload, time })
            }
            _ => Err(Error::Unavailable {
                doing: "reading one record",
                source: format!("an answer that is no record: {:?}", message.status).into(),
            }),
        }
    }

    /// Deletes every record below `position`. Used by the janitor alone.
    ///
    /// # Errors
    /// When JetStream does not answer or refuses.
    pub async fn purge_below(&self, partition: Partition, position: u64) -> Result<(), Error> {
        let subject = format!("STREAM.PURGE.{}", self.stream(partition));
        let body = serde_json::json!({ "seq": position });
        streams::request(&self.reads, subject, &body, "purging a stream").await.map(drop)
    }

    /// Reads a partition from the position after `after`, on and on.
    pub fn follow(&self, partition: Partition, after: u64) -> Follow {
        Follow::new(self.reads.clone(), self.stream(partition), after, self.connects())
    }

    /// Tells the other nodes that this one keeps losing its turns in a partition. Nothing depends on its arrival.
    pub async fn announce(&self, partition: Partition, node: Bytes) {
        let subject = self.turn_subject(partition);
        if let Err(lost) = self.writes.publish(subject, node).await {
            warn!(error = %lost, "an announcement was not sent");
        }
    }

    /// What other nodes announce, this node's own announcements included.
    ///
    /// # Errors
    /// When the subscription cannot be sent.
    pub async fn announcements(&self, partition: Partition) -> Result<Announcements, Error> {
        let subject = self.turn_subject(partition);
        let subscribed = self.reads.client().subscribe(subject).await;
        let inner = subscribed.map_err(|source| Error::Unavailable {
            doing: "subscribing to announcements",
            source: source.into(),
        })?;
        Ok(Announcements { inner })
    }

    /// The JetStream context of the reading connection, for the other files of this room.
    pub(crate) fn context(&self) -> &jetstream::Context {
        &self.reads
    }

    /// The client of the connection that carries deliveries, likewise.
    pub(crate) fn deliveries(&self) -> async_nats::Client {
        self.deliveries.client()
    }

    /// Settings, for the other files of this room.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    fn turn_subject(&self, partition: Partition) -> String {
        format!("{}.turn.{partition}", self.settings.namespace.as_str())
    }
}

/// First and last position of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The oldest position that is still there; `last + 1` when none is.
    pub first: u64,
    /// The newest position; 0 in a log that never held a record.
    pub last: u64,
    /// What the stream takes on disk, in bytes.
    pub bytes: u64,
}

/// One record as the log has it.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The record's bytes.
    pub bytes: Bytes,
    /// When the server stored it.
    pub time: crate::clock::Timestamp,
}

/// Announcements of nodes that keep losing their turns.
#[derive(Debug)]
pub struct Announcements {
    inner: async_nats::Subscriber,
}

impl Announcements {
    /// The next announcement; `None` when the connection was closed for good.
    ///
    /// Cancel safe: a message stays in the subscription until it is returned.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.inner.next().await.map(|message| message.payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_short_and_plain() {
        for good in ["forebay", "t-1", &"a".repeat(32)] {
            assert!(Namespace::parse(good).is_some(), "{good}");
        }
        for bad in ["", "A", "a.b", "a_b", "a b", "*", &"a".repeat(33)] {
            assert!(Namespace::parse(bad).is_none(), "{bad}");
        }
    }
}
