//! Publishing one record under a guard, and reading what the server's answer really says.
//! Promises `Stored` only for an acknowledgement that names the stream and the very position the guard allows.
//! Does not retry and does not judge; the sequencer decides what an outcome means.

use std::time::Duration;

use async_nats::{HeaderMap, HeaderValue};
use bytes::Bytes;
use serde::Deserialize;

use super::Log;
use crate::event::{Partition, RecordId};

/// How long an acknowledgement is waited for before the outcome counts as unknown.
pub const ACK_TIMEOUT: Duration = Duration::from_secs(2);

/// JetStream's codes for a guard that did not hold. The first names the last sequence, the second does not.
const WRONG_LAST_SEQUENCE: u64 = 10071;
const WRONG_LAST_SEQUENCE_IN_FLIGHT: u64 = 10164;
/// The first copy of this record is proposed and not yet applied (several replicas).
const DUPLICATE_IN_PROCESS: u64 = 10158;
/// The stream's inbound queue is full.
const TOO_MANY_REQUESTS: u64 = 10167;

/// A record on its way into the log.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Names the record; kept when it is published again.
    pub id: RecordId,
    /// The guard: the record is stored only if this is the partition's last position.
    pub expected: u64,
    /// The encoded record.
    pub bytes: Bytes,
}

/// What the server's answer says about a published record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is durable at this position.
    Stored {
        /// The guard's position plus one.
        position: u64,
    },
    /// The guard did not hold: the partition's last position is `last`. An earlier copy of the record may be among them.
    Conflict {
        /// The partition's last position.
        last: u64,
    },
    /// The server has this record at that position already, or is about to.
    Repeated {
        /// Where it is.
        position: u64,
    },
    /// Nobody knows: no answer, a lost connection, an election. The same record is to be published again.
    Unknown {
        /// What was seen, for the log line.
        reason: String,
    },
    /// The server refused before the guard was passed or because it has no room; it will not store this copy.
    Refused {
        /// JetStream's own code and words.
        reason: String,
    },
}

/// An acknowledgement or an error, as JetStream writes it.
#[derive(Debug, Deserialize)]
struct Answer {
    stream: Option<String>,
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    duplicate: bool,
    error: Option<Refusal>,
}

#[derive(Debug, Deserialize)]
struct Refusal {
    #[serde(default)]
    code: u64,
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

impl Log {
    /// Publishes a record and waits for what becomes of it, for at most [`ACK_TIMEOUT`].
    ///
    /// Not cancel safe: a dropped publish may still be stored. The guard makes that harmless as long as the same
    /// record is published again before anything else is staged.
    pub async fn append(&self, partition: Partition, record: Outgoing) -> Outcome {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Expected-Last-Sequence", HeaderValue::from(record.expected));
        headers.insert("Nats-Msg-Id", record.id.uuid().simple().to_string().as_str());
        let request = async_nats::Request::new()
            .headers(headers)
            .payload(record.bytes)
            .timeout(Some(ACK_TIMEOUT));
        match self.writes.send_request(self.subject(partition), request).await {
            Ok(message) if message.status.is_some() => {
                Outcome::Unknown { reason: format!("status {:?}", message.status) }
            }
            Ok(message) => judge(&message.payload, &self.stream(partition), record.expected),
            Err(error) => Outcome::Unknown { reason: error.to_string() },
        }
    }
}

/// What an answer says; anything that is not exactly understood is `Unknown`.
fn judge(payload: &[u8], stream: &str, expected: u64) -> Outcome {
    let Ok(answer) = serde_json::from_slice::<Answer>(payload) else {
        return Outcome::Unknown { reason: "an answer that is not an acknowledgement".to_owned() };
    };
    if let Some(refusal) = answer.error {
        return judge_refusal(&refusal);
    }
    if answer.stream.as_deref() != Some(stream) {
        return Outcome::Unknown { reason: format!("acknowledged by {:?}", answer.stream) };
    }
    match (answer.duplicate, answer.seq) {
        (true, position) => Outcome::Repeated { position },
        (false, position) if position == expected + 1 => Outcome::Stored { position },
        (false, position) => Outcome::Unknown {
            reason: format!("acknowledged at {position} against a guard of {expected}"),
        },
    }
}

fn judge_refusal(refusal: &Refusal) -> Outcome {
    let reason = format!("{} ({})", refusal.description, refusal.err_code);
    match refusal.err_code {
        WRONG_LAST_SEQUENCE => match last_number(&refusal.description) {
            Some(last) => Outcome::Conflict { last },
            None => Outcome::Unknown { reason },
        },
        WRONG_LAST_SEQUENCE_IN_FLIGHT | DUPLICATE_IN_PROCESS | TOO_MANY_REQUESTS => {
            Outcome::Unknown { reason }
        }
        // No leader, still starting, overloaded: nothing is known.
        _ if refusal.code == 503 || refusal.err_code == 0 => Outcome::Unknown { reason },
        _ => Outcome::Refused { reason },
    }
}

/// The last number of a text: the phrase with the sequence may be repeated within it.
fn last_number(text: &str) -> Option<u64> {
    text.rsplit(|c: char| !c.is_ascii_digit()).find(|run| !run.is_empty())?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_believed_no_further_than_it_reaches() {
        let unknown = |reason: &str| Outcome::Unknown { reason: reason.to_owned() };
        let error = |code: u32, err_code: u32, description: &str| {
            format!(
                r#"{{"error":{{"code":{code},"err_code":{err_code},"description":"{description}"}}}}"#
            )
        };
        let wrong = "wrong last sequence: 41";
        let cases = [
            (r#"{"stream":"S","seq":8}"#.to_owned(), Outcome::Stored { position: 8 }),
            (
                r#"{"stream":"S","seq":3,"duplicate":true}"#.to_owned(),
                Outcome::Repeated { position: 3 },
            ),
            (
                r#"{"stream":"S","seq":9}"#.to_owned(),
                unknown("acknowledged at 9 against a guard of 7"),
            ),
            (r#"{"stream":"T","seq":8}"#.to_owned(), unknown("acknowledged by Some(\"T\")")),
            (r"{}".to_owned(), unknown("acknowledged by None")),
            ("+OK".to_owned(), unknown("an answer that is not an acknowledgement")),
            (error(400, 10071, wrong), Outcome::Conflict { last: 41 }),
            (error(400, 10071, &format!("{wrong}: {wrong}")), Outcome::Conflict { last: 41 }),
            (error(400, 10164, "wrong last sequence"), unknown("wrong last sequence (10164)")),
            (error(409, 10158, "in process"), unknown("in process (10158)")),
            (error(429, 10167, "too many requests"), unknown("too many requests (10167)")),
            (error(503, 10008, "no leader"), unknown("no leader (10008)")),
            (
                error(503, 10077, "maximum bytes exceeded"),
                unknown("maximum bytes exceeded (10077)"),
            ),
            (
                error(400, 10077, "maximum bytes exceeded"),
                Outcome::Refused { reason: "maximum bytes exceeded (10077)".to_owned() },
            ),
        ];
        for (payload, expected) in cases {
            assert_eq!(judge(payload.as_bytes(), "S", 7), expected, "{payload}");
        }
    }

    #[test]
    fn a_conflict_without_a_number_is_unknown() {
        let payload =
            br#"{"error":{"code":400,"err_code":10071,"description":"wrong last sequence"}}"#;
        assert!(matches!(judge(payload, "S", 7), Outcome::Unknown { .. }));
    }
}
