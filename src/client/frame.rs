//! Pure: the frames of the server, as far as a client reads them, and the reasons of closes.
//! Promises that unknown frames and fields pass without an error.
//! Does not answer them.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::event::ConversationId;

/// The text of a frame, shared with the buffer that it came in.
pub type Text = tokio_tungstenite::tungstenite::Utf8Bytes;

/// Any frame. Which fields it has follows from its name.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Frame {
    #[serde(rename = "frame")]
    pub(super) name: String,
    pub(super) seq: Option<u64>,
    pub(super) watermark: Option<u64>,
    pub(super) epoch: Option<String>,
    pub(super) oldest_seq: Option<u64>,
    pub(super) head_seq: Option<u64>,
    pub(super) limits: Option<Limits>,
    pub(super) client_id: Option<String>,
    pub(super) duplicate: bool,
    pub(super) number: u16,
    pub(super) message: Option<String>,
    pub(super) retryable: bool,
    pub(super) retry_after_ms: Option<u64>,
    pub(super) details: Option<Details>,
    pub(super) id: Option<String>,
}

impl Frame {
    pub(super) fn retry_after(&self) -> Option<Duration> {
        self.retry_after_ms.map(Duration::from_millis)
    }
}

/// Of an error.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Details {
    pub(super) from: Option<u64>,
    pub(super) to: Option<u64>,
    pub(super) head_seq: Option<u64>,
}

/// What `welcome` allows.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Limits {
    pub(super) unacked_sends: usize,
    pub(super) heartbeat_ms: u64,
    pub(super) frames_per_second: u32,
    pub(super) frame_burst: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { unacked_sends: 32, heartbeat_ms: 30_000, frames_per_second: 20, frame_burst: 40 }
    }
}

/// The reason of a close, as far as it is one of this server.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Reason {
    pub(super) reason: String,
    retry_after_ms: Option<u64>,
}

impl Reason {
    pub(super) fn read(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    pub(super) fn retry_after(&self) -> Option<Duration> {
        self.retry_after_ms.map(Duration::from_millis)
    }
}

pub(super) fn hello(id: ConversationId, watermark: Option<u64>, epoch: Option<&str>) -> Value {
    json!({
        "frame": "hello", "conversationId": id, "watermark": watermark, "epoch": epoch, "capabilities": ["gaps"],
    })
}

pub(super) fn sync(id: ConversationId, watermark: u64) -> Value {
    json!({ "frame": "sync", "conversationId": id, "watermark": watermark })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_whatever_else_they_have() {
        let text = r#"{"frame":"error","number":9002,"retryable":true,"retryAfterMs":1167,"new":[],
            "details":{"watermark":40,"from":41,"to":57,"headSeq":57,"cause":"pressure"}}"#;
        let read: Frame = serde_json::from_str(text).unwrap();
        let details = read.details.as_ref().unwrap();
        assert_eq!((details.from, details.to), (Some(41), Some(57)));
        assert_eq!(read.retry_after(), Some(Duration::from_millis(1_167)));
        assert_eq!(Reason::read("gone").retry_after(), None);
        let reason = Reason::read(r#"{"reason":"unavailable","retryAfterMs":5}"#);
        assert_eq!(
            (reason.reason.as_str(), reason.retry_after()),
            ("unavailable", Some(Duration::from_millis(5)))
        );
    }
}
