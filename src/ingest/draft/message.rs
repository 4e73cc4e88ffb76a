//! Pure: the rules of one message of an untrusted body: its fields, its sender and its idempotency key.
//! Promises that a bound user is always the sender, and that a key has one value wherever it stands.
//! Does not know whether the message comes alone or in a batch.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::field::{Limit, Raw, Reader};
use super::rejected::Code;
use super::{Checked, METADATA, Request};
use crate::clock::{BadTimestamp, Timestamp};
use crate::event::key::message_id;
use crate::event::kind::{TYPE_CHARACTERS, is_type};
use crate::event::limits::{CLOCK_SKEW_MAX, DATA_BYTES_MAX, TEXT_BYTES_MAX};
use crate::event::{Body, ClientId, Fingerprint, Json, Message, Sender};

/// The type of a message that names none.
const KIND_DEFAULT: &str = "message";

/// Types that begin so are the server's own.
const KIND_RESERVED: &str = "conversation.";

/// The type that readers are shown for a seq without content; Postgres keeps no message of that type.
const KIND_TOMBSTONE: &str = "tombstone";

const TEXT: Limit = Limit { name: "textBytes", max: TEXT_BYTES_MAX };
const DATA: Limit = Limit { name: "dataBytes", max: DATA_BYTES_MAX };

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SendFields<'a> {
    #[serde(borrow, rename = "type")]
    kind: Raw<'a>,
    #[serde(borrow)]
    text: Raw<'a>,
    #[serde(borrow)]
    data: Raw<'a>,
    #[serde(borrow)]
    sender: Raw<'a>,
    #[serde(borrow)]
    metadata: Raw<'a>,
    #[serde(borrow)]
    client_id: Raw<'a>,
    #[serde(borrow)]
    first_sent_at: Raw<'a>,
}

#[derive(Deserialize)]
struct SenderFields<'a> {
    #[serde(borrow)]
    id: Raw<'a>,
    #[serde(borrow)]
    role: Raw<'a>,
    #[serde(borrow)]
    name: Raw<'a>,
}

/// One message; `None` when something was wrong with it.
pub(super) fn message(
    reader: &mut Reader<'_>,
    fields: &SendFields<'_>,
    header_key: Option<ClientId>,
    request: &Request<'_>,
) -> Option<Checked> {
    let found_before = reader.faults.found();
    let kind = kind(reader, fields.kind);
    let text = reader.text("text", fields.text, TEXT);
    let data = reader.json("data", fields.data, DATA);
    if fields.text.is_none() && fields.data.is_none() {
        reader.fault(Code::Invalid, "", "must have text or data");
    }
    let sender = match request.user {
        Some(user) => user_sender(reader, user),
        None => fields.sender.and_then(|raw| sender(reader, raw)),
    };
    let metadata = reader.json_object("metadata", fields.metadata, METADATA);
    let client_id = client_id(reader, fields.client_id, header_key);
    let first_sent_at = first_sent_at(reader, fields.first_sent_at);
    if reader.faults.found() > found_before {
        return None;
    }
    let plausible = |at: &Timestamp| *at <= request.now.plus(CLOCK_SKEW_MAX);
    let key_time = client_id.as_ref().and_then(|key| {
        let first_sent_at = first_sent_at.filter(plausible);
        first_sent_at.or_else(|| key.own_time().filter(plausible))
    });
    let sender_id = sender.as_ref().map(|s| &*s.id);
    let id = client_id
        .as_ref()
        .map(|key| message_id(request.tenant, request.conversation, sender_id, key));
    let message = Message { kind: kind?, client_id, sender, text, data, metadata };
    Some(Checked {
        id,
        fingerprint: fingerprint(&message),
        key_time,
        body: Body::Message(Box::new(message)),
    })
}

fn fingerprint(message: &Message) -> Fingerprint {
    let sender = message.sender.as_ref();
    Fingerprint::of(&[
        Some(&message.kind),
        message.text.as_deref(),
        message.data.as_ref().map(Json::as_str),
        message.metadata.as_ref().map(Json::as_str),
        sender.map(|s| &*s.id),
        sender.and_then(|s| s.role.as_deref()),
        sender.and_then(|s| s.name.as_deref()),
    ])
}

fn kind(reader: &mut Reader<'_>, raw: Raw<'_>) -> Option<Box<str>> {
    if raw.is_none() {
        return Some(KIND_DEFAULT.into());
    }
    let kind = reader.name("type", raw)?;
    if !is_type(&kind) {
        let detail = format!("must be 1 or more characters of {TYPE_CHARACTERS}");
        reader.fault(Code::Invalid, "type", detail);
        return None;
    }
    if kind.starts_with(KIND_RESERVED) {
        let detail =
            format!("must not begin with {KIND_RESERVED}, which the server's own events do");
        reader.fault(Code::Invalid, "type", detail);
        return None;
    }
    if &*kind == KIND_TOMBSTONE {
        let detail =
            format!("must not be {KIND_TOMBSTONE}, which stands for a seq without content");
        reader.fault(Code::Invalid, "type", detail);
        return None;
    }
    Some(kind)
}

/// The user of the token. A role or a name that the body claims is ignored: the token vouches for neither.
fn user_sender(reader: &mut Reader<'_>, user: &str) -> Option<Sender> {
    let id = reader.plain_name("sender/id", user)?;
    named_sender(reader, id, None, None)
}

fn sender(reader: &mut Reader<'_>, raw: &RawValue) -> Option<Sender> {
    let fields: SenderFields<'_> = reader.object("sender", raw.get())?;
    let role = reader.name("sender/role", fields.role);
    let name = reader.name("sender/name", fields.name);
    if fields.id.is_none() {
        reader.fault(Code::Invalid, "sender/id", "is required");
    }
    let id = reader.name("sender/id", fields.id)?;
    named_sender(reader, id, role, name)
}

fn named_sender(
    reader: &mut Reader<'_>,
    id: Box<str>,
    role: Option<Box<str>>,
    name: Option<Box<str>>,
) -> Option<Sender> {
    if id.is_empty() {
        reader.fault(Code::Invalid, "sender/id", "must not be empty");
        return None;
    }
    Some(Sender { id, role, name })
}

/// The idempotency key of the header: a structured-field string (RFC 9651) without its quotes, or a bare text.
pub(super) fn header_key(reader: &mut Reader<'_>, header: Option<&[u8]>) -> Option<ClientId> {
    let header = header?;
    let quoted = header.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    let text = std::str::from_utf8(quoted.unwrap_or(header)).unwrap_or("");
    let key = ClientId::parse(text);
    key.map_err(|error| {
        reader.fault(Code::Invalid, "", format!("the Idempotency-Key header {error}"));
    })
    .ok()
}

fn client_id(reader: &mut Reader<'_>, raw: Raw<'_>, header: Option<ClientId>) -> Option<ClientId> {
    let Some(raw) = raw else {
        return header;
    };
    let text = reader.string("clientId", raw)?;
    let parsed = ClientId::parse(&text);
    let own = parsed.map_err(|error| reader.fault(Code::Invalid, "clientId", error)).ok()?;
    if header.is_some_and(|header| header != own) {
        let detail = "differs from the Idempotency-Key header";
        reader.fault(Code::Invalid, "clientId", detail);
    }
    Some(own)
}

fn first_sent_at(reader: &mut Reader<'_>, raw: Raw<'_>) -> Option<Timestamp> {
    let text = reader.string("firstSentAt", raw?)?;
    let parsed = text.parse();
    parsed
        .map_err(|error: BadTimestamp| {
            reader.fault(Code::Invalid, "firstSentAt", error);
        })
        .ok()
}
