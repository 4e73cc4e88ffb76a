//! A consumer of a stream that keeps nothing on the server, and pulls from it, one after the other.
//! Promises records in the order in which the server gives them out, and an error within seconds where the server is silent
//! or a record was lost on the way. Does not look for gaps and does not come back after an error.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::{HeaderMap, Subscriber, jetstream};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::timeout;

use super::connection::SUBSCRIPTION_CAPACITY;

/// Most records of a pull; between two pulls the server is asked, which takes a fraction of a millisecond.
pub const PULL_RECORDS_MAX: usize = 500;

/// Most bytes of a pull, as the server counts them: more than the largest message that a log's stream takes (`max_msg_size` in
/// `streams/log.json`) with its subject and reply. nats-server closes a connection that has more than 64 MB to take in
/// (`max_pending`), and a node reads a partition up to three times over one: as follower, as projector and as router, so with
/// up to 20 partitions it may be behind in all of them and slow to read.
pub const PULL_BYTES_MAX: usize = 1024 * 1024;

/// How long a pull stays open. At its end the server says how much it has not sent, so this is also how long a record that was
/// lost between two servers can stay unnoticed.
const PULL_EXPIRES: Duration = Duration::from_secs(5);

/// How often the server says that it is there while nothing comes. It takes at most half of [`PULL_EXPIRES`].
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Longest silence of a server that is there: two heartbeats may be late.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// How long the server keeps a consumer that nobody pulls from, for example while Postgres is away and its projector waits.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Nothing of a pull that its caller is slow to take may be dropped by the client library: its records, and a heartbeat a
/// second until it ends.
const _: () = assert!(
    PULL_RECORDS_MAX as u64 + PULL_EXPIRES.as_secs() + 1 < SUBSCRIPTION_CAPACITY as u64,
    "a pull fits into its subscription"
);

/// Where a partition is read from, and the present pull.
///
/// The client library has an ordered consumer of its own, which asks for more while it still expects something, and can come
/// to expect what nobody was asked for; it stands still for half a minute then (page 0003 of `docs/decisions/`). Here a pull
/// ends before the next begins, and each has a subscription of its own.
#[derive(Debug)]
pub(super) struct Feed {
    context: jetstream::Context,
    /// The subject that pulls from the consumer.
    subject: String,
    /// What a pull may bring.
    whole: Left,
    pull: Option<Pull>,
    is_proven: bool,
}

#[derive(Debug)]
struct Pull {
    messages: Subscriber,
    left: Left,
}

/// What a pull may still bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Left {
    records: usize,
    bytes: usize,
}

/// What a message of the server means for a pull.
#[derive(Debug, PartialEq, Eq)]
enum Meaning {
    Record,
    /// The server is there.
    Alive,
    /// The pull is over, because the next record does not fit in or its time is up; so many records were not sent, if it says.
    Over {
        is_full: bool,
        unsent: Option<usize>,
    },
    /// The consumer cannot be read any more.
    Gone(String),
}

impl Feed {
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
        let info = consumer.cached_info();
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{}", info.name);
        let whole = Left { records: records_max(info.config.max_batch), bytes: PULL_BYTES_MAX };
        Ok(Self { context, subject, whole, pull: None, is_proven: false })
    }

    /// The next record and its position, however long it takes.
    ///
    /// Cancel safe: what was received is returned before the next await, and a pull that was being sent is sent again. A caller
    /// that cancels it more often than every [`SILENCE_MAX`] is not told of a silence.
    ///
    /// # Errors
    /// When the consumer cannot be read any more or a record was lost, in words.
    pub(super) async fn next(&mut self) -> Result<(u64, Bytes), String> {
        loop {
            let pull = match self.pull.take() {
                Some(pull) => pull,
                None => self.ask().await?,
            };
            let pull = self.pull.insert(pull);
            let message = timeout(SILENCE_MAX, pull.messages.next()).await;
            let message = message.map_err(|elapsed| format!("silence: {elapsed}"))?;
            let message = message.ok_or("the end of the connection")?;
            match meaning(&message) {
                Meaning::Record => {
                    match pull.left.after(message.length) {
                        Some(left) => pull.left = left,
                        None => self.pull = None,
                    }
                    return positioned(message, &self.context);
                }
                Meaning::Alive => self.is_proven = true,
                Meaning::Over { is_full, unsent } => {
                    check_end(is_full, unsent, (pull.left, self.whole))?;
                    (self.pull, self.is_proven) = (None, true);
                }
                Meaning::Gone(why) => return Err(why),
            }
        }
    }

    /// Whether the server has answered it in order without a record: one that ends now is not another failure in a row.
    pub(super) fn is_proven(&self) -> bool {
        self.is_proven
    }

    async fn ask(&self) -> Result<Pull, String> {
        let client = self.context.client();
        let inbox = client.new_inbox();
        let messages = client.subscribe(inbox.clone()).await.map_err(|error| error.to_string())?;
        let Left { records, bytes } = self.whole;
        let (expires, heartbeat) = (PULL_EXPIRES.as_nanos(), HEARTBEAT.as_nanos());
        let request = format!(
            r#"{{"batch":{records},"max_bytes":{bytes},"expires":{expires},"idle_heartbeat":{heartbeat}}}"#
        );
        let asked = client.publish_with_reply(self.subject.clone(), inbox, request.into()).await;
        asked.map_err(|error| error.to_string())?;
        Ok(Pull { messages, left: self.whole })
    }
}

/// Records of a pull from a server that may have a limit of its own; 0 or less is none.
fn records_max(limit: i64) -> usize {
    usize::try_from(limit)
        .ok()
        .filter(|limit| *limit > 0)
        .map_or(PULL_RECORDS_MAX, |limit| limit.min(PULL_RECORDS_MAX))
}

const HEARTBEAT_STATUS: u16 = 100;
const TIMEOUT: u16 = 408;
const CONFLICT: u16 = 409;

/// Said when the next record does not fit into a pull.
const TOO_LARGE: &str = "Message Size Exceeds MaxBytes";

/// How many records of a pull the server has not sent at its end.
const PENDING: &str = "Nats-Pending-Messages";

fn meaning(message: &async_nats::Message) -> Meaning {
    let status = message.status.map(|status| status.as_u16());
    let description = message.description.as_deref().unwrap_or_default();
    match (status, description) {
        (None, _) => Meaning::Record,
        (Some(HEARTBEAT_STATUS), _) => Meaning::Alive,
        (Some(TIMEOUT), _) => {
            Meaning::Over { is_full: false, unsent: unsent(message.headers.as_ref()) }
        }
        (Some(CONFLICT), TOO_LARGE) => {
            Meaning::Over { is_full: true, unsent: unsent(message.headers.as_ref()) }
        }
        // `Batch Completed` is among them: it follows the last record of a pull, after which nobody listens.
        (Some(other), _) => Meaning::Gone(format!("status {other} {description}")),
    }
}

fn unsent(headers: Option<&HeaderMap>) -> Option<usize> {
    headers?.get(PENDING)?.as_str().parse().ok()
}

/// Whether a pull that the server ended has brought all that was sent for it, and can be followed by another.
fn check_end(
    is_full: bool,
    unsent: Option<usize>,
    (left, whole): (Left, Left),
) -> Result<(), String> {
    match unsent {
        Some(unsent) if unsent < left.records => {
            Err(format!("the loss of {} records on the way", left.records - unsent))
        }
        Some(_) | None if is_full && left == whole => {
            Err("a record that is larger than a pull".to_owned())
        }
        Some(_) | None => Ok(()),
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
    use async_nats::StatusCode;

    use super::*;

    fn message(
        status: Option<u16>,
        description: &str,
        unsent: Option<&str>,
    ) -> async_nats::Message {
        let mut headers = HeaderMap::new();
        if let Some(unsent) = unsent {
            headers.insert(PENDING, unsent);
        }
        async_nats::Message {
            subject: "inbox".into(),
            reply: None,
            payload: Bytes::new(),
            headers: Some(headers),
            status: status.map(|status| StatusCode::from_u16(status).unwrap()),
            description: (!description.is_empty()).then(|| description.to_owned()),
            length: 0,
        }
    }

    #[test]
    fn what_the_server_says_is_understood() {
        let over = |is_full, unsent| Meaning::Over { is_full, unsent };
        let gone = |text: &str| Meaning::Gone(text.to_owned());
        for (status, description, unsent, expected) in [
            (None, "", None, Meaning::Record),
            (Some(100), "Idle Heartbeat", None, Meaning::Alive),
            (Some(408), "Request Timeout", Some("7"), over(false, Some(7))),
            (Some(408), "Request Timeout", None, over(false, None)),
            (Some(409), "Message Size Exceeds MaxBytes", Some("1"), over(true, Some(1))),
            (Some(409), "Consumer Deleted", None, gone("status 409 Consumer Deleted")),
            (Some(409), "Leadership Change", Some("3"), gone("status 409 Leadership Change")),
            (Some(409), "Batch Completed", None, gone("status 409 Batch Completed")),
            (Some(503), "", None, gone("status 503 ")),
        ] {
            assert_eq!(meaning(&message(status, description, unsent)), expected, "{description}");
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
    fn an_end_tells_of_lost_records_and_of_one_that_is_too_large() {
        let left = |records| Left { records, bytes: 10 * records };
        for (is_full, unsent, now, told) in [
            (false, Some(5), left(5), None),
            (false, Some(2), left(2), None),
            (true, Some(2), left(2), None),
            (false, None, left(2), None),
            (false, Some(1), left(2), Some("the loss of 1 records on the way")),
            (true, Some(0), left(5), Some("the loss of 5 records on the way")),
            (true, Some(5), left(5), Some("a record that is larger than a pull")),
        ] {
            let end = check_end(is_full, unsent, (now, left(5)));
            assert_eq!(end.err().as_deref(), told, "{is_full} {unsent:?} {now:?}");
        }
    }

    #[test]
    fn a_limit_of_the_server_is_kept() {
        for (limit, records) in [(0, 500), (-1, 500), (256, 256), (1_000, 500)] {
            assert_eq!(records_max(limit), records);
        }
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
