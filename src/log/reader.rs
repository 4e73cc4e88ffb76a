//! A consumer of a stream that keeps nothing on the server, read by one pull after the other.
//! Promises records in the order in which the server gives them out, and that a server that has gone quiet is told in seconds.
//! Does not look for gaps and does not come back after an error: whoever reads opens another one.

use std::pin::Pin;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::{Subscriber, jetstream};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::{Sleep, sleep};

/// Most records of a pull; between two pulls the server is asked, which takes a fraction of a millisecond.
const PULL_RECORDS_MAX: usize = 500;

/// Most bytes of a pull, as the server counts them: more than the largest message that a log's stream takes (`max_msg_size` in
/// `streams/log.json`) with its subject and reply. nats-server closes a connection that has more than 64 MB to take in
/// (`max_pending`), and a node reads each partition up to three times over one: as follower, as projector and as router.
const PULL_BYTES_MAX: usize = 1024 * 1024;

/// How long a pull stays open where nothing comes. It also says how soon a consumer that is gone is noticed.
const PULL_EXPIRES: Duration = Duration::from_secs(5);

/// How much longer the client waits for the end of a pull.
const PULL_GRACE: Duration = Duration::from_secs(2);

/// How long the server keeps a consumer that nobody pulls from, for example while Postgres is away and its projector waits.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Where a partition is read from, and the present pull.
///
/// The client library has an ordered consumer of its own, which asks for more while it still expects something. A record that
/// comes before the request for it is booked counts there as one of an earlier request; after a few of those it expects what
/// nobody was asked for, and stands still for half a minute. Here a pull ends before the next begins, and each has a
/// subscription of its own, so there are no books that could differ from the server's.
#[derive(Debug)]
pub(super) struct Reader {
    context: jetstream::Context,
    /// The subject that pulls from the consumer.
    subject: String,
    pull: Option<Pull>,
}

#[derive(Debug)]
struct Pull {
    messages: Subscriber,
    left: Left,
    /// When the server must have ended it.
    until: Pin<Box<Sleep>>,
}

/// What a pull may still bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Left {
    records: usize,
    bytes: usize,
}

/// What a pull may bring.
const WHOLE: Left = Left { records: PULL_RECORDS_MAX, bytes: PULL_BYTES_MAX };

/// What a message of the server means for a pull.
#[derive(Debug, PartialEq, Eq)]
enum Meaning {
    Record,
    /// Nothing; what follows says more.
    Nothing,
    /// It is over, because the next record does not fit in.
    Full,
    /// It is over, because its time is up.
    Over,
    /// The consumer cannot be read any more.
    Gone(String),
}

impl Reader {
    /// A consumer that begins at a position.
    ///
    /// # Errors
    /// When the server does not create it, in words.
    pub(super) async fn open(
        context: jetstream::Context,
        stream: &str,
        first: u64,
    ) -> Result<Self, String> {
        let config = pull::Config {
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: first },
            ack_policy: AckPolicy::None,
            inactive_threshold: IDLE_MAX,
            memory_storage: true,
            num_replicas: 1,
            ..pull::Config::default()
        };
        let created = context.create_consumer_on_stream(config, stream).await;
        let consumer = created.map_err(|error| error.to_string())?;
        let name = &consumer.cached_info().name;
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}");
        Ok(Self { context, subject, pull: None })
    }

    /// The next record and its position, however long it takes.
    ///
    /// Cancel safe: what was received is returned before the next await, and a pull that was being sent is sent again.
    ///
    /// # Errors
    /// When the consumer cannot be read any more, in words.
    pub(super) async fn next(&mut self) -> Result<(u64, Bytes), String> {
        loop {
            let pull = match self.pull.take() {
                Some(pull) => pull,
                None => self.ask().await?,
            };
            let pull = self.pull.insert(pull);
            let message = tokio::select! {
                biased;
                message = pull.messages.next() => message.ok_or("the end of the connection")?,
                () = pull.until.as_mut() => return Err("a pull that had no end".to_owned()),
            };
            let status = message.status.map(|status| status.as_u16());
            match meaning(status, message.description.as_deref().unwrap_or_default()) {
                Meaning::Record => {
                    match pull.left.after(message.length) {
                        Some(left) => pull.left = left,
                        None => self.pull = None,
                    }
                    return positioned(message, &self.context);
                }
                Meaning::Nothing => {}
                Meaning::Full if pull.left == WHOLE => {
                    return Err("a record that is larger than a pull".to_owned());
                }
                Meaning::Full | Meaning::Over => self.pull = None,
                Meaning::Gone(why) => return Err(why),
            }
        }
    }

    async fn ask(&self) -> Result<Pull, String> {
        let client = self.context.client();
        let inbox = client.new_inbox();
        let messages = client.subscribe(inbox.clone()).await.map_err(|error| error.to_string())?;
        let Left { records, bytes } = WHOLE;
        let expires = PULL_EXPIRES.as_nanos();
        let request = format!(r#"{{"batch":{records},"max_bytes":{bytes},"expires":{expires}}}"#);
        let until = Box::pin(sleep(PULL_EXPIRES + PULL_GRACE));
        let asked = client.publish_with_reply(self.subject.clone(), inbox, request.into()).await;
        asked.map_err(|error| error.to_string())?;
        Ok(Pull { messages, left: WHOLE, until })
    }
}

const TIMEOUT: u16 = 408;
const CONFLICT: u16 = 409;

/// Said when the next record does not fit into a pull.
const TOO_LARGE: &str = "Message Size Exceeds MaxBytes";

/// Said when a pull has brought all of its records. It may overtake the last ones, which are counted here.
const COMPLETED: &str = "Batch Completed";

fn meaning(status: Option<u16>, description: &str) -> Meaning {
    match (status, description) {
        (None, _) => Meaning::Record,
        (Some(CONFLICT), COMPLETED) => Meaning::Nothing,
        (Some(CONFLICT), TOO_LARGE) => Meaning::Full,
        (Some(TIMEOUT), _) => Meaning::Over,
        (Some(other), _) => Meaning::Gone(format!("status {other} {description}")),
    }
}

impl Left {
    /// What is left after a message of that length; `None` when the pull is over. The server says nothing where a message uses
    /// up the last byte.
    fn after(self, length: usize) -> Option<Self> {
        let records = self.records.saturating_sub(1);
        let bytes = self.bytes.saturating_sub(length);
        (records > 0 && bytes > 0).then_some(Self { records, bytes })
    }
}

fn positioned(
    message: async_nats::Message,
    context: &jetstream::Context,
) -> Result<(u64, Bytes), String> {
    let message = jetstream::Message { message, context: context.clone() };
    let position = message.info().map_err(|error| error.to_string())?.stream_sequence;
    Ok((position, message.message.payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_says_is_understood() {
        let gone = |text: &str| Meaning::Gone(text.to_owned());
        for (status, description, expected) in [
            (None, "", Meaning::Record),
            (Some(408), "Request Timeout", Meaning::Over),
            (Some(409), "Message Size Exceeds MaxBytes", Meaning::Full),
            (Some(409), "Batch Completed", Meaning::Nothing),
            (Some(409), "Consumer Deleted", gone("status 409 Consumer Deleted")),
            (Some(409), "Leadership Change", gone("status 409 Leadership Change")),
            (Some(503), "", gone("status 503 ")),
        ] {
            assert_eq!(meaning(status, description), expected, "{status:?} {description}");
        }
    }

    #[test]
    fn a_pull_is_over_with_its_last_record_and_with_its_last_byte() {
        let left = |records, bytes| Left { records, bytes };
        assert_eq!(left(3, 100).after(40), Some(left(2, 60)));
        assert_eq!(left(1, 100).after(40), None);
        assert_eq!(left(3, 40).after(40), None);
        assert_eq!(left(3, 40).after(41), None);
    }

    #[test]
    fn the_largest_message_of_a_log_fits_into_a_pull() {
        let definition: serde_json::Value =
            serde_json::from_str(include_str!("../../streams/log.json")).unwrap();
        let message = definition["max_msg_size"].as_u64().unwrap();
        // Subject and reply hold the namespace, at most 32 characters, and numbers.
        assert!(message + 2 * 32 + 256 <= PULL_BYTES_MAX as u64);
    }
}
