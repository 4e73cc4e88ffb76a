//! Pure: HTTP/1.1 as the load generator needs it: a send as bytes made once, an answer taken apart in place.
//! Promises that a request costs two copies, and that an answer is complete, refused, or wants more bytes.
//! Does not know chunked bodies or anything else that the measured servers do not use.

use std::ops::Range;
use std::time::Duration;

use serde::Deserialize;

use crate::event::ConversationId;

/// Whether sends carry an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Each send its own.
    Given,
    /// None.
    Omitted,
}

/// What makes a send's key its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyOf {
    /// The run of the load generator.
    pub run: u32,
    /// The connection within the run.
    pub worker: u16,
    /// The send within the connection.
    pub number: u32,
}

/// What does not change from one send of a connection to the next.
#[derive(Clone, Copy, Debug)]
pub struct Template<'a> {
    /// The `Host` header.
    pub host: &'a str,
    /// The tenant's key.
    pub api_key: &'a str,
    /// Bytes of each body, at least [`BODY_BYTES_MIN`].
    pub body_bytes: usize,
    /// Whether there are keys.
    pub keys: Keys,
}

/// `{"text":""}`: a body cannot be smaller.
pub const BODY_BYTES_MIN: usize = 11;

/// Digits of a key: run, worker and number in hexadecimal, and two dashes.
const KEY_CHARS: usize = 8 + 4 + 8 + 2;

/// A send as bytes, in which only the conversation and the key change from one to the next.
#[derive(Clone, Debug)]
pub struct SendRequest {
    bytes: Vec<u8>,
    conversation_at: usize,
    key_at: Option<usize>,
}

impl SendRequest {
    /// A send to nowhere yet.
    pub fn new(template: Template<'_>) -> Self {
        let mut bytes = b"POST /v1/conversations/".to_vec();
        let conversation_at = bytes.len();
        let nowhere = conversation_text(ConversationId::from_uuid(uuid::Uuid::nil()));
        bytes.extend_from_slice(&nowhere);
        let (host, api_key) = (template.host, template.api_key);
        let rest = format!(
            "/messages HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {api_key}\r\n\
             Content-Type: application/json\r\n"
        );
        bytes.extend_from_slice(rest.as_bytes());
        let key_at = (template.keys == Keys::Given).then(|| {
            bytes.extend_from_slice(b"Idempotency-Key: ");
            let at = bytes.len();
            bytes.extend_from_slice(&[b'0'; KEY_CHARS]);
            bytes.extend_from_slice(b"\r\n");
            at
        });
        let text = "x".repeat(template.body_bytes.saturating_sub(BODY_BYTES_MIN));
        let length = text.len() + BODY_BYTES_MIN;
        let end = format!("Content-Length: {length}\r\n\r\n{{\"text\":\"{text}\"}}");
        bytes.extend_from_slice(end.as_bytes());
        Self { bytes, conversation_at, key_at }
    }

    /// The bytes of the send to this conversation under this key.
    pub fn addressed(&mut self, conversation: &ConversationText, key: KeyOf) -> &[u8] {
        let at = self.conversation_at;
        self.bytes[at..at + conversation.len()].copy_from_slice(conversation);
        if let Some(at) = self.key_at {
            write_key(&mut self.bytes[at..at + KEY_CHARS], key);
        }
        &self.bytes
    }
}

/// A conversation id as it is written in a path.
pub type ConversationText = [u8; 36];

/// Writes the id once, so that no send has to.
pub fn conversation_text(id: ConversationId) -> ConversationText {
    let mut text = *b"cnv_00000000000000000000000000000000";
    write_hex(&mut text[4..20], (id.uuid().as_u128() >> 64) as u64);
    write_hex(&mut text[20..], low_half(id.uuid().as_u128()));
    text
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
const fn low_half(bits: u128) -> u64 {
    bits as u64
}

fn write_key(place: &mut [u8], key: KeyOf) {
    write_hex(&mut place[..8], u64::from(key.run));
    place[8] = b'-';
    write_hex(&mut place[9..13], u64::from(key.worker));
    place[13] = b'-';
    write_hex(&mut place[14..], u64::from(key.number));
}

fn write_hex(place: &mut [u8], value: u64) {
    let mut rest = value;
    for digit in place.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(rest & 15) as usize];
        rest >>= 4;
    }
}

/// A complete answer within a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// Where in the buffer the body lies.
    pub body: Range<usize>,
    /// Whether the server closes the connection after it.
    pub closes: bool,
}

/// Bytes that are no answer of the kind that the measured servers give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAnswer {
    /// No status line of HTTP/1.1.
    #[error("not an HTTP/1.1 status line")]
    StatusLine,
    /// The head has no end, or the body is larger than any answer to a send.
    #[error("the answer is larger than {ANSWER_BYTES_MAX} bytes")]
    TooLarge,
    /// Without a length the end of the body cannot be told.
    #[error("no valid content-length")]
    Length,
    /// More bytes came than one answer has, though one request was sent.
    #[error("bytes after the end of the answer")]
    Surplus,
}

/// Largest answer that is read, in bytes; a problem answer with many pointers stays below it.
pub const ANSWER_BYTES_MAX: usize = 256 * 1024;

/// Takes apart what has been read since the request; `None` while the answer is incomplete.
///
/// # Errors
/// [`BadAnswer`] when more bytes cannot make it an answer.
pub fn parse(buffer: &[u8]) -> Result<Option<Answer>, BadAnswer> {
    let Some(head_bytes) = head_length(buffer) else {
        let too_large = buffer.len() > ANSWER_BYTES_MAX;
        return if too_large { Err(BadAnswer::TooLarge) } else { Ok(None) };
    };
    let mut lines = buffer[..head_bytes].split(|b| *b == b'\n');
    let status = status_of(lines.next().unwrap_or_default()).ok_or(BadAnswer::StatusLine)?;
    let (mut length, mut closes) = (None, false);
    for line in lines {
        if let Some(value) = header(line, b"content-length:") {
            length = Some(number(value).ok_or(BadAnswer::Length)?);
        } else if let Some(value) = header(line, b"connection:") {
            closes = value.eq_ignore_ascii_case(b"close");
        }
    }
    let length = length.ok_or(BadAnswer::Length)?;
    if length > ANSWER_BYTES_MAX {
        return Err(BadAnswer::TooLarge);
    }
    let end = head_bytes + length;
    match buffer.len() {
        have if have < end => Ok(None),
        have if have > end => Err(BadAnswer::Surplus),
        _ => Ok(Some(Answer { status, body: head_bytes..end, closes })),
    }
}

/// How long a refused caller is asked to wait: `retryAfterMs` of the problem document, else the header `Retry-After` in
/// seconds. Looked for in refusals only, so that an acknowledged send does not pay for it.
pub fn retry_after(head: &[u8], body: &[u8]) -> Option<Duration> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Problem {
        retry_after_ms: u64,
    }
    if let Ok(problem) = serde_json::from_slice::<Problem>(body) {
        return Some(Duration::from_millis(problem.retry_after_ms));
    }
    let seconds = head.split(|b| *b == b'\n').find_map(|line| header(line, b"retry-after:"))?;
    number(seconds).and_then(|n| u64::try_from(n).ok()).map(Duration::from_secs)
}

/// Length of the head with its empty line.
fn head_length(buffer: &[u8]) -> Option<usize> {
    buffer.windows(4).position(|w| w == b"\r\n\r\n").map(|at| at + 4)
}

fn status_of(line: &[u8]) -> Option<u16> {
    let digits = line.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    number(digits).and_then(|status| u16::try_from(status).ok())
}

fn header<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (start, value) = line.split_at_checked(name.len())?;
    start.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
}

fn number(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ANSWER: &[u8] = b"HTTP/1.1 201 Created\r\nContent-Length: 7\r\ndate: x\r\n\r\n{\"a\":1}";

    #[test]
    fn a_send_is_what_a_server_expects() {
        let conversation = ConversationId::derive([0x5c; 16]);
        let mut request = SendRequest::new(Template {
            host: "h:1",
            api_key: "fbk_k",
            body_bytes: 13,
            keys: Keys::Given,
        });
        let key = KeyOf { run: 0xabcd, worker: 18, number: 255 };
        let bytes = request.addressed(&conversation_text(conversation), key);
        let expected = format!(
            "POST /v1/conversations/{conversation}/messages HTTP/1.1\r\nHost: h:1\r\n\
             Authorization: Bearer fbk_k\r\nContent-Type: application/json\r\n\
             Idempotency-Key: 0000abcd-0012-000000ff\r\nContent-Length: 13\r\n\r\n{{\"text\":\"xx\"}}"
        );
        assert_eq!(std::str::from_utf8(bytes).unwrap(), expected);
    }

    #[test]
    fn a_send_without_a_key_has_no_such_header() {
        let mut request = SendRequest::new(Template {
            host: "h",
            api_key: "k",
            body_bytes: 0,
            keys: Keys::Omitted,
        });
        let key = KeyOf { run: 0, worker: 0, number: 0 };
        let conversation = conversation_text(ConversationId::derive([1; 16]));
        let text = String::from_utf8(request.addressed(&conversation, key).to_vec()).unwrap();
        assert!(!text.contains("Idempotency"));
        assert!(text.ends_with("Content-Length: 11\r\n\r\n{\"text\":\"\"}"));
    }

    #[test]
    fn an_answer_that_closes_says_so() {
        let text =
            b"HTTP/1.1 503 Service Unavailable\r\nconnection: Close\r\ncontent-length: 0\r\n\r\n";
        let answer = parse(text).unwrap().unwrap();
        assert_eq!((answer.status, answer.closes, answer.body.len()), (503, true, 0));
    }

    #[test]
    fn a_refusal_says_how_long_to_wait_in_its_body_or_in_its_head() {
        let head = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\n\r\n";
        let asked = |head, body| retry_after(head, body).map(|wait| wait.as_millis());
        assert_eq!(asked(&head[..], br#"{"status":503,"retryAfterMs":1250}"#), Some(1_250));
        assert_eq!(asked(head, br#"{"status":503}"#), Some(2_000));
        assert_eq!(asked(head, b"<html>"), Some(2_000));
        assert_eq!(asked(b"HTTP/1.1 503 x\r\n\r\n", b""), None);
        assert_eq!(asked(b"HTTP/1.1 503 x\r\nretry-after: soon\r\n\r\n", b""), None);
    }

    #[test]
    fn what_cannot_become_an_answer_is_refused() {
        for (text, reason) in [
            (&b"HTTP/1.0 200 OK\r\n\r\n"[..], BadAnswer::StatusLine),
            (b"HTTP/1.1 200 OK\r\n\r\n", BadAnswer::Length),
            (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", BadAnswer::Length),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 9999999\r\n\r\n", BadAnswer::TooLarge),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab", BadAnswer::Surplus),
        ] {
            assert_eq!(parse(text), Err(reason));
        }
        assert_eq!(parse(&vec![b'x'; ANSWER_BYTES_MAX + 1]), Err(BadAnswer::TooLarge));
    }

    proptest! {
        #[test]
        fn an_answer_is_complete_only_with_its_last_byte(cut in 0..ANSWER.len()) {
            prop_assert_eq!(parse(&ANSWER[..cut]), Ok(None));
            let answer = parse(ANSWER).unwrap().unwrap();
            prop_assert_eq!((answer.status, answer.closes), (201, false));
            prop_assert_eq!(&ANSWER[answer.body], b"{\"a\":1}");
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut text = b"HTTP/1.1 200\r\ncontent-length: ".to_vec();
            text.extend_from_slice(&bytes);
            drop(parse(&bytes));
            drop(parse(&text));
        }

        #[test]
        fn ids_are_written_as_they_display(bytes in any::<[u8; 16]>()) {
            let id = ConversationId::derive(bytes);
            let text = id.to_string();
            prop_assert_eq!(conversation_text(id), text.as_bytes());
        }
    }
}
