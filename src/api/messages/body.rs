//! What the calls about messages take and answer, as JSON.
//! Promises that an answer borrows the content of events, which may be large, instead of copying it.
//! Does not check what it takes: the bodies of sends are only described here, ingest reads them.

#![expect(
    single_use_lifetimes,
    reason = "the derives of serde and utoipa name lifetimes that they use once"
)]

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::api::frame::request::{raw, rfc3339, rfc3339_option};
use crate::clock::Timestamp;
use crate::event::{Body, ClientId, Event, MessageId, Sender};
use crate::history::{Item, Page};
use crate::journal::Receipt;

/// A message to send. It must have text or data.
#[derive(Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = NewMessage)]
#[expect(dead_code, reason = "only described; ingest reads it")]
pub(in crate::api) struct NewMessageBody {
    /// The sender's own type; `message` when left out. Types that begin with `conversation.` are the server's.
    #[schema(example = "message", max_length = 256)]
    r#type: Option<String>,
    /// Plain text, at most 64 KiB of UTF-8, without U+0000.
    #[schema(example = "hello", max_length = 65_536)]
    text: Option<String>,
    /// Structured content: any JSON, at most 128 KiB and 32 levels deep.
    data: Option<serde_json::Value>,
    /// Who sends it; a token's user takes its place.
    sender: Option<SenderBody<'static>>,
    /// Notes about it: an object of at most 16 KiB and 32 levels.
    metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// The idempotency key, when it is not in the header: 1 to 128 characters of `A-Z a-z 0-9 . _ : ~ -`.
    #[schema(pattern = "^[A-Za-z0-9._:~-]{1,128}$")]
    client_id: Option<String>,
    /// When the client first tried to send it; tells the age of the key, if that is no UUIDv7.
    #[schema(value_type = Option<String>, format = DateTime)]
    first_sent_at: Option<String>,
}

/// Messages of one conversation to send together.
#[derive(Debug, ToSchema)]
#[schema(as = NewBatch)]
#[expect(dead_code, reason = "only described; ingest reads it")]
pub(in crate::api) struct NewBatchBody {
    /// 1 to 500 messages; they are committed next to each other and in this order.
    #[schema(min_items = 1, max_items = 500)]
    messages: Vec<NewMessageBody>,
}

/// Who sent a message.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Sender)]
pub(in crate::api) struct SenderBody<'a> {
    /// The tenant's own name for the user, at most 256 bytes.
    #[schema(example = "ann")]
    id: &'a str,
    /// For example `agent` or `customer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'a str>,
    /// A name to show.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
}

/// Where and when a message was stored.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Receipt)]
pub(in crate::api) struct ReceiptBody {
    #[schema(value_type = String, example = "msg_0190000000007000800000000000000a")]
    id: MessageId,
    /// Its place in the conversation: 1, 2, 3 … without holes.
    seq: u64,
    /// The conversation's last seq at that time: everything up to it is durable.
    watermark: u64,
    #[serde(serialize_with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// Whether the same key was stored before; then the rest is of the first time.
    duplicate: bool,
}

/// The receipts of a batch.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Receipts)]
pub(in crate::api) struct ReceiptsBody {
    /// One a message, in their order.
    pub(in crate::api) receipts: Vec<BatchEntry>,
}

/// What became of one message of a batch.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(in crate::api) enum BatchEntry {
    /// It is stored.
    Stored(ReceiptBody),
    /// Its key was used with another payload; it is not stored, the others are.
    Refused {
        /// `idempotency_conflict`.
        code: &'static str,
        /// In words.
        detail: &'static str,
    },
}

/// An event of a conversation.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Event)]
pub(in crate::api) struct EventBody<'a> {
    seq: u64,
    /// Its id; of a `tombstone` the id of the message that it repeats, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    id: Option<MessageId>,
    /// The sender's own type, `conversation.opened`, `.closed`, `.reopened`, or `tombstone`: a seq without content.
    r#type: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    sender: Option<SenderBody<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    data: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    metadata: Option<&'a RawValue>,
    /// When the server accepted it; a `tombstone` has none.
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_id: Option<&'a str>,
}

/// A page of a conversation.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Page)]
pub(in crate::api) struct PageBody<'a> {
    messages: Vec<EventBody<'a>>,
    /// The reader has everything up to this seq; what to ask `after` next.
    watermark: u64,
    /// The conversation's last seq.
    head_seq: u64,
    /// The last seq that the database has, as far as is known.
    projected_seq: Option<u64>,
    /// Whether there is more after this page.
    has_more: bool,
    /// Whether the page is all that was asked for; `false` when pressure cut it short.
    complete: bool,
}

impl ReceiptBody {
    pub(in crate::api) fn of(receipt: Receipt, duplicate: bool) -> Self {
        Self {
            id: receipt.id,
            seq: receipt.seq,
            watermark: receipt.watermark,
            at: receipt.at,
            duplicate,
        }
    }
}

impl<'a> PageBody<'a> {
    pub(in crate::api) fn of(page: &'a Page) -> Self {
        Self {
            messages: page.items.iter().map(EventBody::of).collect(),
            watermark: page.watermark,
            head_seq: page.head_seq,
            projected_seq: page.projected_seq,
            has_more: page.has_more,
            complete: page.complete,
        }
    }
}

impl<'a> EventBody<'a> {
    fn of(item: &'a Item) -> Self {
        match item {
            Item::Recent(entry) => Self::of_event(entry.event()),
            Item::Stored(event) => Self::of_event(event),
            Item::Tombstone { seq, duplicate_of } => {
                Self { seq: *seq, id: *duplicate_of, ..Self::empty("tombstone") }
            }
        }
    }

    pub(in crate::api) fn of_event(event: &'a Event) -> Self {
        let common = Self {
            seq: event.seq,
            id: Some(event.id),
            at: Some(event.at),
            ..Self::empty(event.kind())
        };
        match &event.body {
            Body::Message(message) => Self {
                sender: message.sender.as_ref().map(SenderBody::of),
                text: message.text.as_deref(),
                data: raw(message.data.as_ref()),
                metadata: raw(message.metadata.as_ref()),
                client_id: message.client_id.as_ref().map(ClientId::as_str),
                ..common
            },
            Body::Opened(opening) => Self { metadata: raw(opening.metadata.as_ref()), ..common },
            Body::Closed | Body::Reopened => common,
        }
    }

    fn empty(kind: &'a str) -> Self {
        Self {
            seq: 0,
            id: None,
            r#type: kind,
            sender: None,
            text: None,
            data: None,
            metadata: None,
            at: None,
            client_id: None,
        }
    }
}

impl<'a> SenderBody<'a> {
    fn of(sender: &'a Sender) -> Self {
        Self { id: &sender.id, role: sender.role.as_deref(), name: sender.name.as_deref() }
    }
}
