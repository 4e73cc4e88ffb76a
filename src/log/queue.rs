//! Queues: streams that are read by durable consumers, message by message, each acknowledged by whoever took it.
//! Promises that a pull ends by itself, and that what was pulled and not acknowledged comes again after [`ACK_WAIT`].
//! Does not know what the messages mean.

use std::fmt;
use std::time::Duration;

use async_nats::HeaderValue;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull};
use async_nats::jetstream::{self, AckKind};
use bytes::Bytes;
use futures_util::StreamExt;

use super::batch::Posted;
use super::{Error, Log, streams};
use crate::clock::Timestamp;
use crate::event::{Partition, Partitions};

/// How long a message may be held without a sign before it is given to somebody else. A dead node's messages wait
/// this long.
pub const ACK_WAIT: Duration = Duration::from_secs(10);

/// Most messages of one queue that are out at once, on all nodes: well above what one channel may hold, far below
/// what costs the server memory.
const OUT_MAX: i64 = 5_000;

/// How long a pull stays open. A pull that is lost with a connection is noticed by the reconnect.
const PULL_EXPIRES: Duration = Duration::from_secs(5);

/// How far a marker may lie behind the newest delivery before it is written again.
const MARKER_LAG_MAX: u64 = 1_000;

/// How much longer the client waits for the end of a pull.
const PULL_GRACE: Duration = Duration::from_secs(2);

/// One of the two streams that are queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Fresh deliveries; acknowledging costs nothing, and what is below every floor is purged.
    Deliver,
    /// Retries that have come due; a work queue.
    Retries,
}

/// A durable consumer of a part of a stream.
#[derive(Clone, Debug)]
pub struct Queue {
    log: Log,
    consumer: PullConsumer,
    stream: String,
    name: String,
}

/// Messages of one pull.
pub struct Pull {
    batch: pull::Batch,
    connects: tokio::sync::watch::Receiver<u64>,
}

/// A message that was taken out of a queue and is not settled yet.
#[derive(Debug)]
pub struct Taken {
    message: jetstream::Message,
}

impl fmt::Debug for Pull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pull").finish_non_exhaustive()
    }
}

impl Log {
    /// The queue of this name over the subjects that the filter names, made if there is none.
    ///
    /// # Errors
    /// When JetStream does not answer or refuses.
    pub async fn queue(&self, source: Source, name: &str, filter: &str) -> Result<Queue, Error> {
        let stream = self.queue_stream(source);
        let config = pull::Config {
            durable_name: Some(name.to_owned()),
            filter_subject: format!("{}.{filter}", self.namespace().as_str()),
            deliver_policy: DeliverPolicy::All,
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            max_ack_pending: OUT_MAX,
            ..pull::Config::default()
        };
        let made = self.deliveries.create_consumer_on_stream(config, stream.clone()).await;
        let consumer = made.map_err(|source| Error::Unavailable {
            doing: "making a consumer of deliveries",
            source: source.into(),
        })?;
        Ok(Queue { log: self.clone(), consumer, stream, name: name.to_owned() })
    }

    /// Stores a message that comes back into the queue of retries at a time, under the target's subject.
    ///
    /// Idempotency key: `name`, which also replaces an earlier schedule of the same subject.
    pub async fn schedule(
        &self,
        (subject, target): (&str, &str),
        at: Timestamp,
        payload: Bytes,
    ) -> Posted {
        let prefix = self.namespace().as_str();
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("Nats-Schedule", format!("@at {at}").as_str());
        headers.insert("Nats-Schedule-Target", HeaderValue::from(format!("{prefix}.{target}")));
        let subject = format!("{prefix}.{subject}");
        super::batch::commit(&self.deliveries(), (subject, payload), headers).await
    }

    /// Name of a queue's stream.
    pub fn queue_stream(&self, source: Source) -> String {
        let prefix = self.namespace().as_str();
        match source {
            Source::Deliver => format!("{prefix}_DELIVER"),
            Source::Retries => format!("{prefix}_RETRIES"),
        }
    }

    /// The subject of a channel's fresh deliveries. A message without any payload calls for the channel's backlog.
    pub fn lane_subject(&self, lane: &str, channel: &str) -> String {
        format!("{}.deliver.{lane}.{channel}", self.namespace().as_str())
    }

    /// The subject of the marker that says how far a partition is routed.
    pub fn routed_subject(&self, partition: Partition) -> String {
        format!("{}.deliver.routed.{partition}", self.namespace().as_str())
    }

    /// Purges what every one of these queues has settled, but no partition's last marker. A marker that lags far behind
    /// the newest deliveries is written again as it is. `before` is what the last call answered, the stream's last sequence
    /// then: by now whoever answers for a queue has seen everything up to there, so an empty queue is settled that far.
    ///
    /// # Errors
    /// When JetStream does not answer or refuses.
    pub async fn compact(
        &self,
        queues: &[Queue],
        partitions: Partitions,
        before: u64,
    ) -> Result<u64, Error> {
        let stream = self.queue_stream(Source::Deliver);
        let doing = "purging settled deliveries";
        let state = streams::info(&self.deliveries, &stream, doing).await?;
        let number = |key: &str| state["state"][key].as_u64().unwrap_or(0);
        let (first, last) = (number("first_seq"), number("last_seq"));
        let mut below = last + 1;
        for partition in partitions.all() {
            let subject = self.routed_subject(partition);
            let Some((sequence, payload)) = self.last(&stream, &subject).await? else { continue };
            if sequence + MARKER_LAG_MAX < last {
                let posting =
                    super::batch::Posting { subject, name: None, guard: Some(sequence), payload };
                // Whoever routes at this moment writes a newer one, and this one is refused.
                drop(self.post("", vec![posting]).await);
            }
            below = below.min(sequence);
        }
        for queue in queues {
            below = below.min(queue.floor(before.min(last)).await? + 1);
        }
        if below <= first {
            return Ok(last);
        }
        let body = serde_json::json!({ "seq": below });
        let subject = format!("STREAM.PURGE.{stream}");
        streams::request(&self.deliveries, subject, &body, doing).await.map(|_purged| last)
    }
}

impl Log {
    /// How many fresh deliveries wait or are under way in a lane.
    pub(super) async fn waiting_in(&self, lane: &str) -> Result<u64, Error> {
        let stream = self.queue_stream(Source::Deliver);
        let state = consumer_state(&self.deliveries, &stream, lane).await?;
        Ok(state.pending + state.out)
    }
}

impl Queue {
    /// Asks for so many messages; the pull ends when they came or after five seconds.
    ///
    /// # Errors
    /// When the request cannot be sent.
    pub async fn pull(&self, count: usize) -> Result<Pull, Error> {
        let mut connects = self.log.delivery_connects.clone();
        connects.mark_unchanged();
        let batch = self.consumer.batch().max_messages(count).expires(PULL_EXPIRES);
        let batch = batch.messages().await.map_err(|source| Error::Unavailable {
            doing: "pulling deliveries",
            source: source.into(),
        })?;
        Ok(Pull { batch, connects })
    }

    /// The last sequence of the stream up to which everything of this queue is settled; `last` is the stream's last
    /// sequence, asked before.
    async fn floor(&self, last: u64) -> Result<u64, Error> {
        let state = consumer_state(&self.log.deliveries, &self.stream, &self.name).await?;
        // An empty queue's floor stays where its own last message was.
        Ok(if state.pending + state.out == 0 { last } else { state.floor })
    }
}

/// Where a queue stands.
struct State {
    /// Messages that nobody has taken.
    pending: u64,
    /// Messages that were taken and are not settled.
    out: u64,
    /// The stream's sequence up to which all of its messages are settled.
    floor: u64,
}

async fn consumer_state(
    deliveries: &jetstream::Context,
    stream: &str,
    name: &str,
) -> Result<State, Error> {
    let subject = format!("CONSUMER.INFO.{stream}.{name}");
    let nothing = serde_json::Value::Object(serde_json::Map::new());
    let info = streams::request(deliveries, subject, &nothing, "reading a queue's state").await?;
    let number = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
    Ok(State {
        pending: number(&info["num_pending"]),
        out: number(&info["num_ack_pending"]),
        floor: number(&info["ack_floor"]["stream_seq"]),
    })
}

impl Pull {
    /// The next message; `None` at the end of the pull, however it ended.
    ///
    /// Cancel safe: a message is not lost before it is returned, and what is lost comes again.
    pub async fn next(&mut self) -> Option<Taken> {
        let next = tokio::time::timeout(PULL_EXPIRES + PULL_GRACE, self.batch.next());
        tokio::select! {
            // What has come is taken before a reconnect ends the pull; it would come again only after a while.
            biased;
            next = next => match next {
                Ok(Some(Ok(message))) => Some(Taken { message }),
                Ok(Some(Err(_)) | None) | Err(_) => None,
            },
            _ = self.connects.changed() => None,
        }
    }
}

impl Taken {
    /// What it holds.
    pub fn payload(&self) -> &Bytes {
        &self.message.payload
    }

    /// Its subject.
    pub fn subject(&self) -> &str {
        &self.message.subject
    }

    /// Says that it is settled. A lost acknowledgement brings the message again.
    pub async fn settle(&self) {
        drop(self.message.ack().await);
    }

    /// Says that it is still being worked on.
    pub async fn hold(&self) {
        drop(self.message.ack_with(AckKind::Progress).await);
    }
}
