//! Reading a partition in order, for ever, across reconnects and dead consumers.
//! Promises every position once and in order, from the one after the start; a gap is read again, a repeat is dropped.
//! Does not decode records and keeps nothing; whoever follows says where to begin.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::watch;
use tracing::{debug, info};

use super::Error;

/// Pause after a session that could not be opened, so that a dead server is not hammered.
const REOPEN_PAUSE: Duration = Duration::from_millis(100);

/// Records that are asked for at once. nats-server closes a connection that has more than 64 MB to take in (`max_pending`), and
/// a node reads all of its partitions, twice where its projector is behind, over one: 4 × 2 × 16 records of 512 KiB are
/// 64 MiB. With the library's 500 a node that starts on a long log of large records was cut off again and again.
const BATCH_RECORDS: i64 = 16;

/// Longest wait for a consumer to be created.
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);

/// Longest wait of an open session for a record that is known to be there. The client library waits for 30 s, or for ever while
/// the server says that it is there and has nothing; a node that is asked to end has 5 s for what it reads and writes.
const KNOWN_MAX: Duration = Duration::from_secs(2);

/// A partition read in order.
#[derive(Debug)]
pub struct Follow {
    context: jetstream::Context,
    stream: String,
    /// The last position that was returned.
    after: u64,
    session: Option<Session>,
    connects: watch::Receiver<u64>,
}

struct Session {
    /// Never locked: whoever has the session has it alone. The wrapper only makes it shareable in the eyes of the
    /// compiler, which the library's own type is not.
    messages: Mutex<pull::Ordered>,
}

impl Session {
    async fn next(&mut self) -> Option<Result<jetstream::Message, pull::OrderedError>> {
        self.messages.get_mut().unwrap_or_else(PoisonError::into_inner).next().await
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session")
    }
}

/// Why a session ended.
enum Ended {
    /// The connection was established anew: the server side of the consumer may be gone, which the client library
    /// would notice only after 15 to 20 seconds.
    Reconnected,
    /// The client library gave up on it.
    Broken(String),
    /// A position came that is not the next one.
    Gap(u64),
}

impl Follow {
    pub(super) fn new(
        context: jetstream::Context,
        stream: String,
        after: u64,
        connects: watch::Receiver<u64>,
    ) -> Self {
        Self { context, stream, after, session: None, connects }
    }

    /// The last position that was returned.
    pub fn position(&self) -> u64 {
        self.after
    }

    /// The next record and its position. Waits as long as it takes, through outages too.
    ///
    /// Cancel safe: what was received is returned before the next await; a session that was being opened is
    /// opened again. A caller that cancels it more often than a session takes to open makes no progress.
    ///
    /// # Errors
    /// [`Error::Purged`] when the log no longer has the next position.
    pub async fn next(&mut self) -> Result<(u64, Bytes), Error> {
        loop {
            let Some(session) = self.session.as_mut() else {
                self.open().await;
                continue;
            };
            let ended = tokio::select! {
                biased;
                changed = self.connects.changed() => match changed {
                    Ok(()) => Ended::Reconnected,
                    Err(_closed) => Ended::Broken("the client was closed".to_owned()),
                },
                next = session.next() => match read(next) {
                    Ok((position, _)) if position <= self.after => continue,
                    Ok((position, bytes)) if position == self.after + 1 => {
                        self.after = position;
                        return Ok((position, bytes));
                    }
                    Ok((position, _)) => Ended::Gap(position),
                    Err(broken) => Ended::Broken(broken),
                },
            };
            let mut gap = None;
            match ended {
                Ended::Reconnected => debug!("{}: reading on after a reconnect", self.stream),
                Ended::Broken(why) => debug!("{}: reading on after {why}", self.stream),
                Ended::Gap(position) => gap = Some(position),
            }
            self.session = None;
            if let Some(position) = gap {
                let (context, stream) = (self.context.clone(), self.stream.clone());
                check_gap(&context, &stream, (self.after, position)).await?;
            }
        }
    }

    /// As [`Self::next`], for a caller who knows that the log has a next record: when it does not come the session is taken
    /// for dead, and opened anew.
    ///
    /// Cancel safe: as [`Self::next`].
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn next_known(&mut self) -> Result<(u64, Bytes), Error> {
        loop {
            // Apart, because opening has a longer limit of its own.
            if self.session.is_none() {
                self.open().await;
            }
            match tokio::time::timeout(KNOWN_MAX, self.next()).await {
                Ok(next) => return next,
                Err(_elapsed) => {
                    info!("{}: nothing comes after {}, reading anew", self.stream, self.after);
                    self.session = None;
                }
            }
        }
    }

    async fn open(&mut self) {
        self.connects.mark_unchanged();
        let config = pull::OrderedConfig {
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: self.after + 1 },
            max_batch: BATCH_RECORDS,
            ..pull::OrderedConfig::default()
        };
        let opening = async {
            let consumer = self.context.create_consumer_on_stream(config, &self.stream).await;
            let consumer = consumer.map_err(|error| error.to_string())?;
            consumer.messages().await.map_err(|error| error.to_string())
        };
        match tokio::time::timeout(OPEN_TIMEOUT, opening).await {
            Ok(Ok(messages)) => self.session = Some(Session { messages: Mutex::new(messages) }),
            Ok(Err(why)) => {
                debug!("{}: no consumer yet: {why}", self.stream);
                tokio::time::sleep(REOPEN_PAUSE).await;
            }
            Err(_elapsed) => debug!("{}: no consumer yet: no answer", self.stream),
        }
    }
}

/// A gap is either a message lost on the way, which is read again, or a position that is gone for good.
async fn check_gap(
    context: &jetstream::Context,
    stream: &str,
    (after, seen): (u64, u64),
) -> Result<(), Error> {
    let info = super::streams::info(context, stream, "looking into a gap").await;
    let first = info.ok().and_then(|info| info["state"]["first_seq"].as_u64());
    if let Some(first) = first.filter(|first| *first > after + 1) {
        return Err(Error::Purged { stream: stream.to_owned(), position: after + 1, first });
    }
    debug!("{stream}: {seen} came after {after}, reading again");
    Ok(())
}

fn read(
    next: Option<Result<jetstream::Message, pull::OrderedError>>,
) -> Result<(u64, Bytes), String> {
    let message = next.ok_or_else(|| "its end".to_owned())?.map_err(|error| error.to_string())?;
    let position = message.info().map_err(|error| error.to_string())?.stream_sequence;
    Ok((position, message.message.payload))
}
