//! Reading a partition in order, for ever, across reconnects and dead consumers.
//! Promises every position once and in order, from the one after the start; a gap is read again, a repeat is dropped.
//! Does not decode records and keeps nothing; whoever follows says where to begin.

use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream;
use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::Error;
use super::feed::Feed;

/// Pause after a feed that could not be opened, or ended, so that a dead server is not hammered. It doubles with each that ends
/// before it has brought anything, up to [`REOPEN_PAUSE_MAX`].
const REOPEN_PAUSE: Duration = Duration::from_millis(100);
const REOPEN_PAUSE_MAX: Duration = Duration::from_secs(2);

/// Every so many feeds in a row that brought nothing somebody is told.
const FAILURES_TOLD: u32 = 8;

/// Longest wait for a consumer to be created.
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);

/// Longest wait for a record that is known to be there. A server that says that it has nothing is asked again for ever; a node
/// that is asked to end has 5 s for what it reads and writes.
const KNOWN_MAX: Duration = Duration::from_secs(4);

/// A partition read in order.
#[derive(Debug)]
pub struct Follow {
    context: jetstream::Context,
    stream: String,
    /// The last position that was returned.
    after: u64,
    feed: Option<Feed>,
    /// Feeds in a row that brought nothing, or could not be opened.
    failures: u32,
    connects: watch::Receiver<u64>,
}

/// Why a feed is given up.
enum Ended {
    /// The connection was established anew: the server side of the consumer may be gone, which its silence would tell
    /// only after some seconds.
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
        Self { context, stream, after, feed: None, failures: 0, connects }
    }

    /// The last position that was returned.
    pub fn position(&self) -> u64 {
        self.after
    }

    /// The next record and its position. Waits as long as it takes, through outages too.
    ///
    /// Cancel safe: what was received is returned before the next await; a feed that was being opened is
    /// opened again. A caller that cancels it more often than a feed takes to open makes no progress.
    ///
    /// # Errors
    /// [`Error::Purged`] when the log no longer has the next position.
    pub async fn next(&mut self) -> Result<(u64, Bytes), Error> {
        loop {
            let Some(feed) = self.feed.as_mut() else {
                self.open().await;
                continue;
            };
            let ended = tokio::select! {
                biased;
                changed = self.connects.changed() => match changed {
                    Ok(()) => Ended::Reconnected,
                    Err(_closed) => Ended::Broken("the client was closed".to_owned()),
                },
                next = feed.next() => match next {
                    Ok((position, _)) if position <= self.after => continue,
                    Ok((position, bytes)) if position == self.after + 1 => {
                        (self.after, self.failures) = (position, 0);
                        return Ok((position, bytes));
                    }
                    Ok((position, _)) => Ended::Gap(position),
                    Err(broken) => Ended::Broken(broken),
                },
            };
            let is_proven = self.feed.take().is_some_and(|feed| feed.is_proven());
            if is_proven && !matches!(ended, Ended::Gap(_)) {
                self.failures = 0;
            }
            match ended {
                Ended::Reconnected => debug!("{}: reading on after a reconnect", self.stream),
                Ended::Broken(why) => self.fail(&why).await,
                Ended::Gap(position) => {
                    let (context, stream) = (self.context.clone(), self.stream.clone());
                    check_gap(&context, &stream, self.after).await?;
                    self.fail(&format!("{position}, which is not the next one")).await;
                }
            }
        }
    }

    /// As [`Self::next`], for a caller who knows that the log has a next record: when it does not come the feed is taken
    /// for dead, and opened anew.
    ///
    /// Cancel safe: as [`Self::next`].
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn next_known(&mut self) -> Result<(u64, Bytes), Error> {
        loop {
            // Apart, because opening has a longer limit of its own.
            if self.feed.is_none() {
                self.open().await;
            }
            match timeout(KNOWN_MAX, self.next()).await {
                Ok(next) => return next,
                Err(_elapsed) => {
                    if self.feed.take().is_some() {
                        info!("{}: nothing comes after {}, reading anew", self.stream, self.after);
                        // What is known may have been purged since, and nothing may follow that would show the gap.
                        let (context, stream) = (self.context.clone(), self.stream.clone());
                        check_gap(&context, &stream, self.after).await?;
                    }
                }
            }
        }
    }

    async fn open(&mut self) {
        self.connects.mark_unchanged();
        // What a client without a connection is asked waits in its queue; hundreds of consumers would be made at once when it
        // connects.
        if self.context.client().connection_state() != State::Connected {
            tokio::select! {
                Ok(()) = self.connects.changed() => {}
                () = tokio::time::sleep(REOPEN_PAUSE) => {}
            }
            return;
        }
        let opening = Feed::open(self.context.clone(), &self.stream, self.after + 1);
        match timeout(OPEN_TIMEOUT, opening).await {
            Ok(Ok(feed)) => self.feed = Some(feed),
            Ok(Err(why)) => self.fail(&why).await,
            Err(elapsed) => self.fail(&elapsed.to_string()).await,
        }
    }

    /// Waits before the next feed is opened.
    async fn fail(&mut self, why: &str) {
        let pause = reopen_pause(self.failures);
        self.failures = self.failures.saturating_add(1);
        if self.failures.is_multiple_of(FAILURES_TOLD) {
            warn!("{}: nothing can be read after {}: {why}", self.stream, self.after);
        }
        debug!("{}: reading on in {pause:?} after {why}", self.stream);
        tokio::select! {
            Ok(()) = self.connects.changed() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// How long to wait after so many feeds in a row that brought nothing.
fn reopen_pause(failures: u32) -> Duration {
    REOPEN_PAUSE.saturating_mul(1 << failures.min(8)).min(REOPEN_PAUSE_MAX)
}

/// A gap is either a message lost on the way, which is read again, or a position that is gone for good.
async fn check_gap(context: &jetstream::Context, stream: &str, after: u64) -> Result<(), Error> {
    let info = super::streams::info(context, stream, "looking into a gap").await;
    let first = info.ok().and_then(|info| info["state"]["first_seq"].as_u64());
    if let Some(first) = first.filter(|first| *first > after + 1) {
        return Err(Error::Purged { stream: stream.to_owned(), position: after + 1, first });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_while_nothing_comes() {
        let pauses: Vec<u128> = (0..7).map(|n| reopen_pause(n).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1_600, 2_000, 2_000]);
        assert_eq!(reopen_pause(u32::MAX), REOPEN_PAUSE_MAX);
    }
}
