//! Pure: turns the untrusted body of a request into checked drafts, or into every reason why not.
//! Promises that a checked body keeps every limit, fits a record, and can be stored by Postgres.
//! Does not look at conversations, quotas or earlier keys; the front and the journal do.
//!
//! Fields are first taken as raw JSON and then read one by one, so that one wrong type does not hide the next failure.
//! Unknown fields are ignored, and `null` is the same as no field.

mod field;
mod message;
mod rejected;

use serde::Deserialize;
use serde_json::value::RawValue;

use self::field::{Limit, Place, Raw, Reader};
use self::message::{header_key, message};
use self::rejected::Faults;
pub use self::rejected::{Code, ERRORS_MAX, FieldError, Rejected};
use crate::clock::Timestamp;
use crate::event::limits::{
    BATCH_BODY_BYTES_MAX, BATCH_MESSAGES_MAX, BODY_BYTES_MAX, CONVERSATION_CHANNELS_MAX,
    METADATA_BYTES_MAX, RECORD_BYTES_MAX, RECORD_OVERHEAD_BYTES, SEND_BODY_BYTES_MAX,
    TRACE_BYTES_MAX,
};
use crate::event::{Body, ChannelId, ConversationId, Fingerprint, MessageId, Opening, TenantId};
use crate::journal::{Draft, Intent};

const METADATA: Limit = Limit { name: "metadataBytes", max: METADATA_BYTES_MAX };
const RECORD: Limit = Limit { name: "recordBytes", max: RECORD_BYTES_MAX };

/// A limit of a whole body.
const fn body_bytes(max: usize) -> Limit {
    let name = "bodyBytes";
    Limit { name, max }
}

/// What is known of a request beside its body.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Who the caller belongs to.
    pub tenant: TenantId,
    /// Which conversation it is about.
    pub conversation: ConversationId,
    /// The user whom the caller's token is bound to. Whatever the body says, this user is the sender.
    pub user: Option<&'a str>,
    /// The header `Idempotency-Key`, quoted or bare.
    pub key: Option<&'a [u8]>,
    /// The header `traceparent`.
    pub trace: Option<&'a str>,
    /// When it came.
    pub now: Timestamp,
}

/// A body that may become an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// What the event says.
    pub body: Body,
    /// Its id, when it is derived from an idempotency key.
    pub id: Option<MessageId>,
    /// Fingerprint of type, text, data, metadata and sender, the JSON as it was sent.
    pub fingerprint: Fingerprint,
    /// How old the key is by the client's own account: `firstSentAt`, else the time in a UUIDv7.
    /// `None` without a key or a time, or when the time lies more than [`CLOCK_SKEW_MAX`](crate::event::limits::CLOCK_SKEW_MAX) ahead.
    pub key_time: Option<Timestamp>,
}

/// A checked wish to open a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// The id that the client chose.
    pub id: Option<ConversationId>,
    /// What it begins with; no channel twice.
    pub opening: Opening,
}

impl From<Body> for Checked {
    /// For bodies that no client wrote or that were checked as a whole: opened, closed, reopened.
    fn from(body: Body) -> Self {
        Self { body, id: None, fingerprint: Fingerprint::default(), key_time: None }
    }
}

impl Checked {
    /// What the journal takes. The id is made only when no key gave one.
    ///
    /// A `traceparent` that is too long is not carried along: it is the client's fault, and no reason to refuse a message.
    pub fn into_draft(
        self,
        request: &Request<'_>,
        intent: Intent,
        make_id: impl FnOnce() -> MessageId,
    ) -> Draft {
        let fitting = |trace: &&str| trace.len() <= TRACE_BYTES_MAX;
        Draft {
            tenant: request.tenant,
            conversation: request.conversation,
            id: self.id.unwrap_or_else(make_id),
            at: request.now,
            fingerprint: self.fingerprint,
            trace: request.trace.filter(fitting).map(Into::into),
            body: self.body,
            intent,
            key_time: self.key_time,
        }
    }
}

#[derive(Deserialize)]
struct BatchFields<'a> {
    #[serde(borrow)]
    messages: Raw<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OpenFields<'a> {
    #[serde(borrow)]
    id: Raw<'a>,
    #[serde(borrow)]
    channel_ids: Raw<'a>,
    #[serde(borrow)]
    metadata: Raw<'a>,
}

/// Checks the body of a send.
///
/// # Errors
/// [`Rejected`] with every failure that was found.
pub fn send(body: &[u8], request: &Request<'_>) -> Result<Checked, Rejected> {
    let mut faults = Faults::default();
    let mut reader = root(&mut faults);
    let text = reader.utf8(body, body_bytes(SEND_BODY_BYTES_MAX));
    let fields = text.and_then(|text| reader.object("", text));
    let key = header_key(&mut reader, request.key);
    let checked = fields.and_then(|fields| message(&mut reader, &fields, key, request));
    faults.verdict(checked)
}

/// Checks the body of a batch send, whose messages fit one record together.
///
/// # Errors
/// [`Rejected`] with every failure that was found.
pub fn batch(body: &[u8], request: &Request<'_>) -> Result<Vec<Checked>, Rejected> {
    let mut faults = Faults::default();
    let mut reader = root(&mut faults);
    if request.key.is_some() {
        let detail =
            "the Idempotency-Key header cannot name several messages; give each a clientId";
        reader.fault(Code::Invalid, "", detail);
    }
    let checked = messages(&mut reader, body).map(|raws| {
        let mut checked = Vec::with_capacity(raws.len());
        for (index, raw) in raws.into_iter().enumerate() {
            if reader.faults.full() {
                break;
            }
            reader.place = Place::Message(index);
            let fields = reader.object("", raw.get());
            checked.extend(fields.and_then(|fields| message(&mut reader, &fields, None, request)));
        }
        reader.place = Place::Root;
        let bytes: usize = checked.iter().map(|c| c.body.size()).sum();
        if bytes + RECORD_OVERHEAD_BYTES > RECORD.max {
            let detail = format!("take more than the {} bytes of one record", RECORD.max);
            reader.fault(RECORD.exceeded(), "messages", detail);
        }
        checked
    });
    faults.verdict(checked)
}

/// Checks the body of the request that opens a conversation. No body is the same as an empty object.
///
/// # Errors
/// [`Rejected`] with every failure that was found.
pub fn open(body: &[u8]) -> Result<Opened, Rejected> {
    if body.is_empty() {
        return Ok(Opened::default());
    }
    let mut faults = Faults::default();
    let mut reader = root(&mut faults);
    let text = reader.utf8(body, body_bytes(BODY_BYTES_MAX));
    let fields: Option<OpenFields<'_>> = text.and_then(|text| reader.object("", text));
    let opened = fields.map(|fields| {
        let id = fields.id.and_then(|raw| reader.string("id", raw));
        let id = id.and_then(|id| {
            let id = ConversationId::parse(&id);
            id.map_err(|error| reader.fault(Code::Invalid, "id", error)).ok()
        });
        let channels = channels(&mut reader, fields.channel_ids);
        let metadata = reader.json_object("metadata", fields.metadata, METADATA);
        let opening = Opening { channels, metadata };
        Opened { id, opening }
    });
    faults.verdict(opened)
}

fn root(faults: &mut Faults) -> Reader<'_> {
    let place = Place::Root;
    Reader { place, faults }
}

/// The messages of a batch, unread.
fn messages<'a>(reader: &mut Reader<'_>, body: &'a [u8]) -> Option<Vec<&'a RawValue>> {
    let text = reader.utf8(body, body_bytes(BATCH_BODY_BYTES_MAX))?;
    let fields: BatchFields<'a> = reader.object("", text)?;
    let Some(raw) = fields.messages else {
        reader.fault(Code::Invalid, "messages", "is required");
        return None;
    };
    let messages = reader.array::<BATCH_MESSAGES_MAX>("messages", raw, "batchMessages")?;
    if messages.is_empty() {
        reader.fault(Code::Invalid, "messages", "must not be empty");
    }
    Some(messages)
}

/// The channels in their order, each once.
fn channels(reader: &mut Reader<'_>, raw: Raw<'_>) -> Vec<ChannelId> {
    let raws = raw.and_then(|raw| {
        reader.array::<CONVERSATION_CHANNELS_MAX>("channelIds", raw, "conversationChannels")
    });
    let mut channels = Vec::new();
    for (index, raw) in raws.into_iter().flatten().enumerate() {
        let field = format!("channelIds/{index}");
        let Some(text) = reader.string(&field, raw) else {
            continue;
        };
        match ChannelId::parse(&text) {
            Ok(channel) if channels.contains(&channel) => {}
            Ok(channel) => channels.push(channel),
            Err(error) => reader.fault(Code::Invalid, &field, error),
        }
    }
    channels
}

#[cfg(test)]
mod tests;
