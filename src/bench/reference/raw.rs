//! Raw guarded records: the ceiling of any writer that commits to the log in records.
//! Promises what Forebay promises of durability: an answer follows the ack of a record that was published under
//! `Nats-Expected-Last-Sequence`, one in flight a partition.
//! Does not give seqs, know keys, share a partition with another writer or survive a conflict.

use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, stream};
use bytes::{Bytes, BytesMut};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::bench::Error;
use crate::event::ConversationId;
use crate::event::limits::{RECORD_BYTES_MAX, RECORD_EVENTS_MAX};

/// Events that can wait for a partition's writer; callers wait beyond that.
const QUEUE: usize = 4_096;

/// What an event takes in a record beside its content: the ids, seq, time and names of Forebay's own records.
const EVENT_OVERHEAD: [u8; 100] = [0; 100];

/// The log of one benchmark, with its own streams.
#[derive(Debug)]
pub struct RawLog {
    jetstream: jetstream::Context,
    streams: Vec<String>,
    queues: Vec<mpsc::Sender<Waiting>>,
    /// Ends the writers when the log is dropped.
    _writers: JoinSet<()>,
}

/// An event and whoever waits for its record's ack.
#[derive(Debug)]
struct Waiting {
    body: Bytes,
    stored: oneshot::Sender<bool>,
}

impl RawLog {
    /// Makes the streams and starts a writer for each.
    ///
    /// # Errors
    /// When NATS is not reached or refuses.
    pub async fn start(nats_url: &str, name: &str, partitions: usize) -> Result<Self, Error> {
        let client = async_nats::connect(nats_url).await.map_err(Error::Nats)?;
        let jetstream = jetstream::new(client);
        let (mut streams, mut queues, mut writers) = (Vec::new(), Vec::new(), JoinSet::new());
        for partition in 0..partitions.max(1) {
            let stream = format!("{name}_RAW_{partition}");
            let subject = format!("{name}.raw.{partition}");
            make_stream(&jetstream, &stream, &subject).await?;
            let (queue, inbox) = mpsc::channel(QUEUE);
            writers.spawn(write(jetstream.clone(), subject, inbox));
            streams.push(stream);
            queues.push(queue);
        }
        Ok(Self { jetstream, streams, queues, _writers: writers })
    }

    /// Waits until the event's record is acknowledged; says whether it was.
    pub async fn append(&self, conversation: ConversationId, body: Bytes) -> bool {
        let (stored, answer) = oneshot::channel();
        let hash = conversation.uuid().as_u128() % self.queues.len() as u128;
        let queue = &self.queues[usize::try_from(hash).unwrap_or(0)];
        queue.send(Waiting { body, stored }).await.is_ok() && answer.await.unwrap_or(false)
    }

    /// Empties the streams, so that the disk does not fill; the guards go on from where they are.
    ///
    /// # Errors
    /// When NATS refuses.
    pub async fn empty(&self) -> Result<(), Error> {
        for stream in &self.streams {
            let stream = self.jetstream.get_stream_no_info(stream).await;
            let purged = stream.map_err(Error::FindStream)?.purge().await;
            purged.map(drop).map_err(Error::EmptyStream)?;
        }
        Ok(())
    }

    /// Deletes the streams.
    ///
    /// # Errors
    /// When NATS refuses.
    pub async fn remove(&self) -> Result<(), Error> {
        for stream in &self.streams {
            let deleted = self.jetstream.delete_stream(stream).await;
            deleted.map(drop).map_err(Error::DeleteStream)?;
        }
        Ok(())
    }
}

async fn make_stream(
    jetstream: &jetstream::Context,
    stream: &str,
    subject: &str,
) -> Result<(), Error> {
    // What a crashed benchmark left would make the first guard fail.
    drop(jetstream.delete_stream(stream).await);
    let config = stream::Config {
        name: stream.to_owned(),
        subjects: vec![subject.to_owned()],
        storage: stream::StorageType::File,
        discard: stream::DiscardPolicy::New,
        ..stream::Config::default()
    };
    let made = jetstream.create_stream(config).await;
    made.map(drop).map_err(Error::MakeStream)
}

async fn write(jetstream: jetstream::Context, subject: String, mut inbox: mpsc::Receiver<Waiting>) {
    let mut last_sequence = 0;
    let mut waiting = Vec::with_capacity(RECORD_EVENTS_MAX);
    let mut record = BytesMut::new();
    while inbox.recv_many(&mut waiting, RECORD_EVENTS_MAX).await > 0 {
        while !waiting.is_empty() {
            let events = fill(&mut record, &waiting);
            let message = PublishMessage::build()
                .payload(record.split().freeze())
                .expected_last_sequence(last_sequence);
            let stored = match publish(&jetstream, &subject, message).await {
                Ok(sequence) => {
                    last_sequence = sequence;
                    true
                }
                Err(error) => {
                    tracing::warn!(%error, "a raw record was refused: {error}");
                    false
                }
            };
            for event in waiting.drain(..events) {
                // Whoever has gone needs no answer.
                let _gone = event.stored.send(stored);
            }
        }
    }
}

/// Fills a record with the first of those that wait; says how many, at least one.
fn fill(record: &mut BytesMut, waiting: &[Waiting]) -> usize {
    let mut events = 0;
    for event in waiting {
        let bytes = event.body.len() + EVENT_OVERHEAD.len();
        if events > 0 && record.len() + bytes > RECORD_BYTES_MAX {
            break;
        }
        record.extend_from_slice(&EVENT_OVERHEAD);
        record.extend_from_slice(&event.body);
        events += 1;
    }
    events
}

async fn publish(
    jetstream: &jetstream::Context,
    subject: &str,
    message: PublishMessage,
) -> Result<u64, jetstream::context::PublishError> {
    let ack = jetstream.send_publish(subject.to_owned(), message).await?;
    ack.await.map(|ack| ack.sequence)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(bytes: usize) -> Waiting {
        Waiting { body: vec![1; bytes].into(), stored: oneshot::channel().0 }
    }

    #[test]
    fn a_record_takes_what_fits_and_at_least_one() {
        let mut record = BytesMut::new();
        let three = [waiting(1_000), waiting(RECORD_BYTES_MAX - 1_500), waiting(1_000)];
        assert_eq!(fill(&mut record, &three), 2);
        record.clear();
        assert_eq!(fill(&mut record, &[waiting(2 * RECORD_BYTES_MAX)]), 1);
    }
}
