//! Pure: events as columns, the form in which a batch of them goes to Postgres, and rows as events again.
//! Promises that an event that was written comes back as it was, but for the spelling of its JSON.
//! Does not check limits; what is in the log was checked at the door.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::event::{
    Body, ClientId, ConversationId, Event, Fingerprint, Json, Message, MessageId, Opening, Sender,
    TenantId,
};
use crate::store::Error;
use crate::store::checkpoints::write_position;

/// What `kind` says of a seq without content.
pub(in crate::store) const TOMBSTONE: &str = "tombstone";
const OPENED: &str = "conversation.opened";
const CLOSED: &str = "conversation.closed";
const REOPENED: &str = "conversation.reopened";

/// The log's own words: a client's type that is one of them could not be told from them in a row.
pub fn is_reserved_kind(kind: &str) -> bool {
    matches!(kind, TOMBSTONE | OPENED | CLOSED | REOPENED)
}

/// What `data` holds for an opening; messages have their own.
#[derive(Serialize, Deserialize)]
struct OpeningData {
    channels: Vec<Uuid>,
}

/// A batch of events, a list a column, all of one length.
#[derive(Debug, Default)]
pub(in crate::store) struct Columns<'e> {
    pub conversation: Vec<Uuid>,
    pub seq: Vec<i64>,
    pub position: Vec<i64>,
    pub fingerprint: Vec<i64>,
    pub at: Vec<OffsetDateTime>,
    pub size: Vec<i32>,
    pub tenant: Vec<Uuid>,
    pub id: Vec<Uuid>,
    pub kind: Vec<&'e str>,
    pub client_id: Vec<Option<&'e str>>,
    pub sender_id: Vec<Option<&'e str>>,
    pub sender_role: Vec<Option<&'e str>>,
    pub sender_name: Vec<Option<&'e str>>,
    pub text: Vec<Option<&'e str>>,
    pub data: Vec<Option<Cow<'e, str>>>,
    pub metadata: Vec<Option<&'e str>>,
    pub trace: Vec<Option<&'e str>>,
}

impl<'e> Columns<'e> {
    /// # Errors
    /// [`Error::Unstorable`] for a number beyond a column or a message with a reserved kind.
    pub(in crate::store) fn of(events: &[(u64, &'e Event)]) -> Result<Self, Error> {
        let mut columns = Self::default();
        for (position, event) in events {
            columns.push(*position, event)?;
        }
        Ok(columns)
    }

    fn push(&mut self, position: u64, event: &'e Event) -> Result<(), Error> {
        let unstorable = |column| Error::Unstorable { column };
        let seq = i64::try_from(event.seq).map_err(|_beyond| unstorable("seq"))?;
        let size = i32::try_from(event.body.size()).map_err(|_beyond| unstorable("size"))?;
        self.position.push(write_position(position)?);
        self.seq.push(seq);
        self.size.push(size);
        self.conversation.push(event.conversation.uuid());
        self.tenant.push(event.tenant.uuid());
        self.id.push(event.id.uuid());
        self.fingerprint.push(event.fingerprint.bits().cast_signed());
        self.at.push(event.at.to_offset());
        self.kind.push(event.kind());
        self.client_id.push(event.client_id().map(ClientId::as_str));
        self.trace.push(event.trace.as_deref());
        self.push_body(&event.body)
    }

    fn push_body(&mut self, body: &'e Body) -> Result<(), Error> {
        let (mut sender, mut text, mut data, mut metadata) = (None, None, None, None);
        match body {
            Body::Message(message) => {
                if is_reserved_kind(&message.kind) {
                    return Err(Error::Unstorable { column: "kind" });
                }
                sender = message.sender.as_ref();
                text = message.text.as_deref();
                data = message.data.as_ref().map(|d| Cow::Borrowed(d.as_str()));
                metadata = message.metadata.as_ref().map(Json::as_str);
            }
            Body::Opened(opening) => {
                metadata = opening.metadata.as_ref().map(Json::as_str);
                data = opening_data(opening)?.map(Cow::Owned);
            }
            Body::Closed | Body::Reopened => {}
        }
        self.sender_id.push(sender.map(|s| &*s.id));
        self.sender_role.push(sender.and_then(|s| s.role.as_deref()));
        self.sender_name.push(sender.and_then(|s| s.name.as_deref()));
        self.text.push(text);
        self.data.push(data);
        self.metadata.push(metadata);
        Ok(())
    }
}

fn opening_data(opening: &Opening) -> Result<Option<String>, Error> {
    if opening.channels.is_empty() {
        return Ok(None);
    }
    let channels = opening.channels.iter().map(|c| c.uuid()).collect();
    serde_json::to_string(&OpeningData { channels })
        .map(Some)
        .map_err(|_never| Error::Unstorable { column: "data" })
}

/// The columns of a message that make its event.
#[derive(Debug)]
pub(in crate::store) struct Row {
    pub conversation_id: Uuid,
    pub seq: i64,
    pub position: i64,
    pub fingerprint: i64,
    pub at: OffsetDateTime,
    pub tenant_id: Uuid,
    pub id: Option<Uuid>,
    pub duplicate_of: Option<Uuid>,
    pub kind: String,
    pub client_id: Option<String>,
    pub sender_id: Option<String>,
    pub sender_role: Option<String>,
    pub sender_name: Option<String>,
    pub text: Option<String>,
    pub data: Option<String>,
    pub metadata: Option<String>,
    pub trace: Option<String>,
}

/// One seq of a conversation as Postgres has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Stream sequence of the record that it came in.
    pub position: u64,
    /// Its place in the conversation.
    pub seq: u64,
    /// When the server accepted it.
    pub at: Timestamp,
    /// What is there.
    pub content: Content,
}

/// What a seq holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// An event.
    Event(Box<Event>),
    /// Nothing: the repeat of a message that has another seq, or an event that Postgres refused.
    Tombstone {
        /// Whose repeat it is; `None` for an event in quarantine.
        duplicate_of: Option<MessageId>,
    },
}

impl TryFrom<Row> for Entry {
    type Error = Error;

    fn try_from(row: Row) -> Result<Self, Error> {
        let number = |value, column| u64::try_from(value).map_err(|_negative| odd(column));
        let (position, seq) = (number(row.position, "position")?, number(row.seq, "seq")?);
        let at = read_at(row.at)?;
        let content = if row.kind == TOMBSTONE {
            Content::Tombstone { duplicate_of: row.duplicate_of.map(MessageId::from_uuid) }
        } else {
            Content::Event(Box::new(event(row, seq, at)?))
        };
        Ok(Self { position, seq, at, content })
    }
}

fn event(row: Row, seq: u64, at: Timestamp) -> Result<Event, Error> {
    let id = row.id.ok_or_else(|| odd("id"))?;
    Ok(Event {
        tenant: TenantId::from_uuid(row.tenant_id),
        conversation: ConversationId::from_uuid(row.conversation_id),
        seq,
        id: MessageId::from_uuid(id),
        at,
        fingerprint: Fingerprint::from_bits(row.fingerprint.cast_unsigned()),
        trace: row.trace.as_deref().map(Into::into),
        body: body(row)?,
    })
}

fn body(row: Row) -> Result<Body, Error> {
    match row.kind.as_str() {
        OPENED => {
            let channels = match row.data {
                None => Vec::new(),
                Some(data) => {
                    serde_json::from_str::<OpeningData>(&data)
                        .map_err(|_other| odd("data"))?
                        .channels
                }
            };
            Ok(Body::Opened(Box::new(Opening {
                channels: channels.into_iter().map(crate::event::ChannelId::from_uuid).collect(),
                metadata: row.metadata.map(Json::from_checked),
            })))
        }
        CLOSED => Ok(Body::Closed),
        REOPENED => Ok(Body::Reopened),
        _ => Ok(Body::Message(Box::new(message(row)?))),
    }
}

fn message(row: Row) -> Result<Message, Error> {
    let client_id = match row.client_id.as_deref().map(ClientId::parse) {
        None => None,
        Some(parsed) => Some(parsed.map_err(|_other| odd("client_id"))?),
    };
    let (role, name) = (row.sender_role, row.sender_name);
    let sender = row.sender_id.map(|id| Sender {
        id: id.into(),
        role: role.map(Into::into),
        name: name.map(Into::into),
    });
    Ok(Message {
        kind: row.kind.into(),
        client_id,
        sender,
        text: row.text.map(Into::into),
        data: row.data.map(Json::from_checked),
        metadata: row.metadata.map(Json::from_checked),
    })
}

pub(super) fn read_at(at: OffsetDateTime) -> Result<Timestamp, Error> {
    Timestamp::from_offset(at).ok_or_else(|| odd("at"))
}

fn odd(column: &'static str) -> Error {
    Error::Inconsistent { table: "messages", column }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(body: Body) -> Event {
        Event {
            tenant: TenantId::derive([1; 16]),
            conversation: ConversationId::derive([2; 16]),
            seq: 3,
            id: MessageId::derive([4; 16]),
            at: Timestamp::from_micros(1_764_000_000_123_456).unwrap(),
            fingerprint: Fingerprint::from_bits(u64::MAX - 5),
            trace: Some("00-trace".into()),
            body,
        }
    }

    /// What Postgres would give back for the first row of these columns.
    fn row(columns: &Columns<'_>) -> Row {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Row {
            conversation_id: columns.conversation[0],
            seq: columns.seq[0],
            position: columns.position[0],
            fingerprint: columns.fingerprint[0],
            at: columns.at[0],
            tenant_id: columns.tenant[0],
            id: Some(columns.id[0]),
            duplicate_of: None,
            kind: columns.kind[0].to_owned(),
            client_id: owned(columns.client_id[0]),
            sender_id: owned(columns.sender_id[0]),
            sender_role: owned(columns.sender_role[0]),
            sender_name: owned(columns.sender_name[0]),
            text: owned(columns.text[0]),
            data: owned(columns.data[0].as_deref()),
            metadata: owned(columns.metadata[0]),
            trace: owned(columns.trace[0]),
        }
    }

    #[test]
    fn every_kind_of_event_survives_its_row() {
        let message = Message {
            kind: "note".into(),
            client_id: Some(ClientId::parse("a-1").unwrap()),
            sender: Some(Sender { id: "ann".into(), role: Some("agent".into()), name: None }),
            text: Some("hello".into()),
            data: Some(Json::from_checked("{\"a\":1}")),
            metadata: Some(Json::from_checked("{}")),
        };
        let opening = Opening {
            channels: vec![crate::event::ChannelId::derive([7; 16])],
            metadata: Some(Json::from_checked("{\"b\":2}")),
        };
        for body in [
            Body::Message(Box::new(message)),
            Body::Message(Box::new(Message { kind: "message".into(), ..Message::default() })),
            Body::Opened(Box::new(opening)),
            Body::Opened(Box::default()),
            Body::Closed,
            Body::Reopened,
        ] {
            let event = event(body);
            let columns = Columns::of(&[(9, &event)]).unwrap();
            let entry = Entry::try_from(row(&columns)).unwrap();
            assert_eq!((entry.position, entry.seq), (9, 3));
            assert_eq!(entry.content, Content::Event(Box::new(event)));
        }
    }

    #[test]
    fn what_could_not_be_read_back_is_not_written() {
        for kind in ["tombstone", "conversation.closed"] {
            let forged =
                event(Body::Message(Box::new(Message { kind: kind.into(), ..Message::default() })));
            let refused = Columns::of(&[(1, &forged)]).unwrap_err();
            assert!(matches!(refused, Error::Unstorable { column: "kind" }), "{refused}");
        }
        let mut far = event(Body::Closed);
        far.seq = u64::MAX;
        assert!(Columns::of(&[(1, &far)]).is_err());
        far.seq = 1;
        assert!(Columns::of(&[(u64::MAX, &far)]).is_err());
    }

    #[test]
    fn a_row_that_no_version_writes_is_inconsistent() {
        let closed = event(Body::Closed);
        let written = || row(&Columns::of(&[(1, &closed)]).unwrap());
        let mut nameless = written();
        nameless.id = None;
        assert!(Entry::try_from(nameless).is_err());
        let mut negative = written();
        negative.seq = -1;
        assert!(Entry::try_from(negative).is_err());
        let mut buried = written();
        buried.kind = TOMBSTONE.to_owned();
        let entry = Entry::try_from(buried).unwrap();
        assert_eq!(entry.content, Content::Tombstone { duplicate_of: None });
    }
}
