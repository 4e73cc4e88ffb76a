//! Pure: what a webhook says of an event: `{type, timestamp, data}` (Standard Webhooks).
//! Promises JSON that is made once per event and is the same for every channel and attempt.
//! Does not sign it; a signature is of one attempt.

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{Body, ChannelId, ClientId, ConversationId, Event, Json, MessageId};
use crate::clock::Timestamp;

#[derive(Serialize)]
struct Envelope<'a> {
    r#type: &'a str,
    timestamp: Timestamp3339,
    data: Data<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "they are the names of the contract")]
struct Data<'a> {
    id: MessageId,
    conversation_id: ConversationId,
    seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sender: Option<Sender<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    channel_ids: &'a [ChannelId],
}

#[derive(Serialize)]
struct Sender<'a> {
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
}

/// A time as RFC 3339, where its own form in JSON is a number for the log.
struct Timestamp3339(Timestamp);

impl Serialize for Timestamp3339 {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// The body of every delivery of this event.
pub fn body(event: &Event) -> Bytes {
    let mut data = Data {
        id: event.id,
        conversation_id: event.conversation,
        seq: event.seq,
        client_id: event.client_id().map(ClientId::as_str),
        sender: None,
        text: None,
        data: None,
        metadata: None,
        channel_ids: &[],
    };
    match &event.body {
        Body::Message(message) => {
            data.sender = message.sender.as_ref().map(|sender| Sender {
                id: &sender.id,
                role: sender.role.as_deref(),
                name: sender.name.as_deref(),
            });
            data.text = message.text.as_deref();
            data.data = message.data.as_ref().and_then(raw);
            data.metadata = message.metadata.as_ref().and_then(raw);
        }
        Body::Opened(opening) => {
            data.metadata = opening.metadata.as_ref().and_then(raw);
            data.channel_ids = &opening.channels;
        }
        Body::Closed | Body::Reopened => {}
    }
    let timestamp = Timestamp3339(event.at);
    let envelope = Envelope { r#type: event.kind(), timestamp, data };
    serde_json::to_vec(&envelope).expect("texts and checked JSON can be written").into()
}

/// JSON as it was sent: numbers keep their digits.
fn raw(json: &Json) -> Option<&RawValue> {
    serde_json::from_str(json.as_str()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Fingerprint, Message, Opening, TenantId};

    fn event(body: Body) -> Event {
        Event {
            tenant: TenantId::derive([1; 16]),
            conversation: ConversationId::derive([2; 16]),
            seq: 7,
            id: MessageId::derive([3; 16]),
            at: Timestamp::from_micros(1_700_000_000_000_001).unwrap(),
            fingerprint: Fingerprint::default(),
            trace: None,
            body,
        }
    }

    fn text(body: Body) -> String {
        String::from_utf8(super::body(&event(body)).to_vec()).unwrap()
    }

    #[test]
    fn a_message_is_told_whole_and_its_numbers_keep_their_digits() {
        let message = Message {
            kind: "order.created".into(),
            client_id: ClientId::parse("k-1").ok(),
            sender: None,
            text: Some("hi".into()),
            data: Some(Json::from_checked("{\"n\":1.50}")),
            metadata: None,
        };
        assert_eq!(
            text(Body::Message(Box::new(message))),
            "{\"type\":\"order.created\",\"timestamp\":\"2023-11-14T22:13:20.000001Z\",\"data\":{\
             \"id\":\"msg_03030303030383038303030303030303\",\
             \"conversationId\":\"cnv_02020202020282028202020202020202\",\"seq\":7,\
             \"clientId\":\"k-1\",\"text\":\"hi\",\"data\":{\"n\":1.50}}}"
        );
    }

    #[test]
    fn a_change_of_a_conversation_is_told_by_its_type() {
        let told: serde_json::Value = serde_json::from_str(&text(Body::Closed)).unwrap();
        assert_eq!(told["type"], "conversation.closed");
        let opening = Opening { channels: vec![ChannelId::derive([9; 16])], metadata: None };
        let opened = text(Body::Opened(Box::new(opening)));
        assert!(opened.contains("\"channelIds\":[\"ch_0909"), "{opened}");
    }
}
