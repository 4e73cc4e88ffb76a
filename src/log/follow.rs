//! Reading a partition in order, for ever, across reconnects and dead consumers.
//! Promises every position once and in order, from the one after the start; a gap is read again, a repeat is dropped.
//! Does not decode records and keeps nothing; whoever follows says where to begin.

use std::time::Duration;

use async_nats::jetstream;
use bytes::Bytes;
use tokio::sync::watch;
use tracing::{debug, info};

use super::Error;
use super::reader::Reader;

/// Pause after a reader that could not be opened, or broke, so that a dead server is not hammered.
const REOPEN_PAUSE: Duration = Duration::from_millis(100);

/// Longest wait for a consumer to be created.
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);

/// Longest wait for a record that is known to be there. A server that says that it has nothing is asked again for ever; a node
/// that is asked to end has 5 s for what it reads and writes.
const KNOWN_MAX: Duration = Duration::from_secs(2);

/// A partition read in order.
#[derive(Debug)]
pub struct Follow {
    context: jetstream::Context,
    stream: String,
    /// The last position that was returned.
    after: u64,
    reader: Option<Reader>,
    connects: watch::Receiver<u64>,
}

/// Why a reader is given up.
enum Ended {
    /// The connection was established anew: the server side of the consumer may be gone, which the client library
    /// would notice only after 15 to 20 seconds.
    Reconnected,
    /// It cannot be read any more.
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
        Self { context, stream, after, reader: None, connects }
    }

    /// The last position that was returned.
    pub fn position(&self) -> u64 {
        self.after
    }

    /// The next record and its position. Waits as long as it takes, through outages too.
    ///
    /// Cancel safe: what was received is returned before the next await; a reader that was being opened is
    /// opened again. A caller that cancels it more often than a reader takes to open makes no progress.
    ///
    /// # Errors
    /// [`Error::Purged`] when the log no longer has the next position.
    pub async fn next(&mut self) -> Result<(u64, Bytes), Error> {
        loop {
            let Some(reader) = self.reader.as_mut() else {
                self.open().await;
                continue;
            };
            let ended = tokio::select! {
                biased;
                changed = self.connects.changed() => match changed {
                    Ok(()) => Ended::Reconnected,
                    Err(_closed) => Ended::Broken("the client was closed".to_owned()),
                },
                next = reader.next() => match next {
                    Ok((position, _)) if position <= self.after => continue,
                    Ok((position, bytes)) if position == self.after + 1 => {
                        self.after = position;
                        return Ok((position, bytes));
                    }
                    Ok((position, _)) => Ended::Gap(position),
                    Err(broken) => Ended::Broken(broken),
                },
            };
            self.reader = None;
            match ended {
                Ended::Reconnected => debug!("{}: reading on after a reconnect", self.stream),
                Ended::Broken(why) => {
                    debug!("{}: reading on after {why}", self.stream);
                    tokio::time::sleep(REOPEN_PAUSE).await;
                }
                Ended::Gap(position) => {
                    let (context, stream) = (self.context.clone(), self.stream.clone());
                    check_gap(&context, &stream, (self.after, position)).await?;
                }
            }
        }
    }

    /// As [`Self::next`], for a caller who knows that the log has a next record: when it does not come the reader is taken
    /// for dead, and opened anew.
    ///
    /// Cancel safe: as [`Self::next`].
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn next_known(&mut self) -> Result<(u64, Bytes), Error> {
        loop {
            // Apart, because opening has a longer limit of its own.
            if self.reader.is_none() {
                self.open().await;
            }
            match tokio::time::timeout(KNOWN_MAX, self.next()).await {
                Ok(next) => return next,
                Err(_elapsed) => {
                    info!("{}: nothing comes after {}, reading anew", self.stream, self.after);
                    self.reader = None;
                }
            }
        }
    }

    async fn open(&mut self) {
        self.connects.mark_unchanged();
        let opening = Reader::open(self.context.clone(), &self.stream, self.after + 1);
        match tokio::time::timeout(OPEN_TIMEOUT, opening).await {
            Ok(Ok(reader)) => self.reader = Some(reader),
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
