//! Several messages into one stream: an atomic batch of them, or a few one by one before the last.
//! Promises `Stored` only when all of them are, and never the last one without the others.
//! Does not retry: a guard, the stream's memory of names, or the receiver's memory of ids makes a repetition harmless.

use std::time::Duration;

use async_nats::{Client, HeaderMap, HeaderValue};
use bytes::Bytes;
use serde::Deserialize;

use super::{Error, Log};

/// Most messages of one atomic batch, as JetStream allows.
pub const BATCH_MESSAGES_MAX: usize = 1_000;

/// Most bytes of one atomic batch that is not the router's: it stands before everything else on the connection.
pub const BATCH_BYTES_MAX: usize = 2 * 1024 * 1024;

/// How long the acknowledgement of a batch is waited for.
const ACK_TIMEOUT: Duration = Duration::from_secs(5);

/// JetStream's codes for a guard that did not hold.
const WRONG_LAST_SEQUENCE: [u64; 2] = [10_071, 10_164];

/// The stream is at its bound of bytes or messages.
const NO_ROOM: [u64; 3] = [10_002, 10_023, 10_077];

/// Messages up to which [`Log::post_few`] is faster than an atomic batch: JetStream makes a directory for each batch and syncs
/// five files, 2.8 ms at a sync of 0.15 ms, where a message alone is one sync.
pub const FEW_MAX: usize = 9;

/// A message on its way into a stream.
#[derive(Clone, Debug)]
pub struct Posting {
    /// Where it goes.
    pub subject: String,
    /// The name under which [`Log::post_few`] has its stream store it once, for as long as the stream remembers names.
    pub name: Option<String>,
    /// The last sequence that its subject must have, if that is to be checked.
    pub guard: Option<u64>,
    /// What it holds.
    pub payload: Bytes,
}

/// What became of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Posted {
    /// All of it is stored; the sequence of its last message.
    Stored(u64),
    /// A guard did not hold: nothing of a batch is stored, and not the last of a few.
    Conflict,
    /// The stream has no room: nothing of a batch is stored, and not the last of a few.
    Full,
    /// Nobody knows.
    Unknown(String),
}

#[derive(Debug, Deserialize)]
struct Answer {
    #[serde(default)]
    seq: u64,
    error: Option<Refusal>,
}

#[derive(Debug, Deserialize)]
struct Refusal {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

impl Log {
    /// Stores all of these messages, of one stream, or none. At most [`BATCH_MESSAGES_MAX`], and at least one.
    ///
    /// `batch` names the batch; another one needs another name. Not cancel safe: a dropped batch may be stored.
    pub async fn post(&self, batch: &str, postings: Vec<Posting>) -> Posted {
        let count = postings.len();
        debug_assert!((1..=BATCH_MESSAGES_MAX).contains(&count), "the caller keeps the bounds");
        let client = self.deliveries();
        for (posting, number) in postings.into_iter().zip(1_usize..) {
            let headers = headers(batch, number, count, posting.guard);
            if number == count {
                return commit(&client, (posting.subject, posting.payload), headers).await;
            }
            let published = client.publish_with_headers(posting.subject, headers, posting.payload);
            if let Err(lost) = published.await {
                return Posted::Unknown(lost.to_string());
            }
        }
        Posted::Unknown("no messages".to_owned())
    }

    /// Stores these messages, of one stream, and then the last, once all before it are stored. At most [`FEW_MAX`].
    ///
    /// Idempotency key: the name of each. Anything but `Stored` may have stored some of those before the last. Not cancel
    /// safe: nor does a drop say how many.
    pub async fn post_few(&self, mut postings: Vec<Posting>) -> Posted {
        debug_assert!((1..=FEW_MAX).contains(&postings.len()), "the caller keeps the bounds");
        let client = self.deliveries();
        let store = |posting: Posting| {
            let (client, headers) = (client.clone(), named(&posting));
            async move { commit(&client, (posting.subject, posting.payload), headers).await }
        };
        let Some(last) = postings.pop() else { return Posted::Unknown("no messages".to_owned()) };
        let before = futures_util::future::join_all(postings.into_iter().map(store)).await;
        let failed = before.into_iter().find(|posted| !matches!(posted, Posted::Stored(_)));
        match failed {
            Some(failed) => failed,
            None => store(last).await,
        }
    }
}

/// The headers of a message that is no part of a batch.
fn named(posting: &Posting) -> HeaderMap {
    let mut headers = headers("", 1, 1, posting.guard);
    if let Some(name) = &posting.name {
        headers.insert("Nats-Msg-Id", name.as_str());
    }
    headers
}

/// The headers of one message of a batch; a lone message is no batch.
fn headers(batch: &str, number: usize, count: usize, guard: Option<u64>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if count > 1 {
        headers.insert("Nats-Batch-Id", batch);
        headers.insert("Nats-Batch-Sequence", HeaderValue::from(number as u64));
    }
    if count > 1 && number == count {
        headers.insert("Nats-Batch-Commit", "1");
    }
    if let Some(guard) = guard {
        headers.insert("Nats-Expected-Last-Subject-Sequence", HeaderValue::from(guard));
    }
    headers
}

/// Publishes one message and waits for what becomes of it.
pub(super) async fn commit(
    client: &Client,
    (subject, payload): (String, Bytes),
    headers: HeaderMap,
) -> Posted {
    let request =
        async_nats::Request::new().headers(headers).payload(payload).timeout(Some(ACK_TIMEOUT));
    match client.send_request(subject, request).await {
        Ok(message) if message.status.is_some() => {
            Posted::Unknown(format!("status {:?}", message.status))
        }
        Ok(message) => judge(&message.payload),
        Err(error) => Posted::Unknown(error.to_string()),
    }
}

/// What an answer says; anything that is not exactly understood is `Unknown`.
fn judge(payload: &[u8]) -> Posted {
    match serde_json::from_slice::<Answer>(payload) {
        Ok(Answer { error: Some(refusal), .. }) => match refusal.err_code {
            code if WRONG_LAST_SEQUENCE.contains(&code) => Posted::Conflict,
            code if NO_ROOM.contains(&code) => Posted::Full,
            code => Posted::Unknown(format!("{} ({code})", refusal.description)),
        },
        Ok(Answer { seq, error: None }) if seq > 0 => Posted::Stored(seq),
        Ok(_) | Err(_) => Posted::Unknown("an answer that is no acknowledgement".to_owned()),
    }
}

impl Log {
    /// The last message of a subject, as the leader of its stream has it: its sequence and what it holds.
    ///
    /// # Errors
    /// When JetStream does not answer.
    pub async fn last(&self, stream: &str, subject: &str) -> Result<Option<(u64, Bytes)>, Error> {
        let doing = "reading the last message of a subject";
        let body = serde_json::json!({ "last_by_subj": subject });
        let api = format!("STREAM.MSG.GET.{stream}");
        match super::streams::request(&self.deliveries, api, &body, doing).await {
            Ok(answer) => {
                let unreadable = || Error::Unavailable { doing, source: "no message in it".into() };
                let sequence = answer["message"]["seq"].as_u64().ok_or_else(unreadable)?;
                let data = answer["message"]["data"].as_str().unwrap_or_default();
                let decoded =
                    base64::Engine::decode(&base64::engine::general_purpose::STANDARD, data);
                Ok(Some((sequence, decoded.map_err(|_bad| unreadable())?.into())))
            }
            Err(Error::Refused { code: NO_MESSAGE_FOUND, .. }) => Ok(None),
            Err(other) => Err(other),
        }
    }
}

/// There is no message of that subject.
const NO_MESSAGE_FOUND: u64 = 10_037;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_what_became_of_the_batch() {
        let error = |code: u64| {
            format!(r#"{{"error":{{"code":400,"err_code":{code},"description":"d"}}}}"#)
        };
        for (payload, expected) in [
            (r#"{"stream":"S","seq":7,"batch":"b","count":7}"#.to_owned(), Posted::Stored(7)),
            (error(10_071), Posted::Conflict),
            (error(10_164), Posted::Conflict),
            (error(10_077), Posted::Full),
            (error(10_176), Posted::Unknown("d (10176)".to_owned())),
        ] {
            assert_eq!(judge(payload.as_bytes()), expected, "{payload}");
        }
        for strange in ["", "{}", r#"{"stream":"S","seq":0}"#] {
            assert!(matches!(judge(strange.as_bytes()), Posted::Unknown(_)), "{strange}");
        }
    }

    #[test]
    fn a_lone_message_is_no_batch_and_the_last_one_commits() {
        let has = |map: &HeaderMap, name: &str| map.get(name).is_some();
        let lone = headers("b", 1, 1, Some(4));
        assert!(!has(&lone, "Nats-Batch-Id") && has(&lone, "Nats-Expected-Last-Subject-Sequence"));
        let (first, last) = (headers("b", 1, 2, None), headers("b", 2, 2, None));
        assert!(has(&first, "Nats-Batch-Id") && !has(&first, "Nats-Batch-Commit"));
        assert!(has(&last, "Nats-Batch-Commit"));
    }
}
