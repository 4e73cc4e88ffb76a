//! Pure: a delivery as it lies in a queue, that is one event for one channel, with the body that is sent.
//! Promises that every attempt of a delivery has the same id and the same body, byte for byte.
//! Does not decide where it goes; the router makes it and the delivery room attempts it.

use bytes::Bytes;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use super::id::{ChannelId, ConversationId, DeliveryId, MessageId, TenantId};

/// One event for one channel.
///
/// The field names are short: there may be millions of them on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// Names it; derived from event and channel, so a delivery that is made twice has one name.
    #[serde(rename = "d")]
    pub id: DeliveryId,
    /// Whose channel it is.
    #[serde(rename = "t")]
    pub tenant: TenantId,
    /// The channel.
    #[serde(rename = "h")]
    pub channel: ChannelId,
    /// The conversation of the event.
    #[serde(rename = "c")]
    pub conversation: ConversationId,
    /// The event.
    #[serde(rename = "m")]
    pub message: MessageId,
    /// Its place in the conversation; 0 for a test, which has no conversation.
    #[serde(rename = "q")]
    pub seq: u64,
    /// The attempt that comes next, 1 for the first.
    #[serde(rename = "n")]
    pub attempt: u32,
    /// Attempts before it was delivered again by hand: its schedule begins anew after them.
    #[serde(rename = "o", default)]
    pub before: u32,
    /// What is sent: JSON.
    #[serde(rename = "b")]
    pub body: Bytes,
}

/// Bytes that are no delivery.
#[derive(Debug, thiserror::Error)]
#[error("the bytes are not a delivery")]
pub struct BadDelivery(#[source] rmp_serde::decode::Error);

impl Delivery {
    /// The name of an event's delivery to a channel.
    pub fn name(message: MessageId, channel: ChannelId) -> DeliveryId {
        let mut input = [0; 32];
        input[..16].copy_from_slice(message.uuid().as_bytes());
        input[16..].copy_from_slice(channel.uuid().as_bytes());
        let mut hash = [0; 16];
        hash.copy_from_slice(&digest(&SHA256, &input).as_ref()[..16]);
        DeliveryId::derive(hash)
    }

    /// The bytes that go into a queue.
    pub fn encode(&self) -> Bytes {
        rmp_serde::to_vec_named(self).expect("ids, numbers and bytes can be encoded").into()
    }

    /// A delivery from the bytes of a queue.
    ///
    /// # Errors
    /// [`BadDelivery`] when they are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadDelivery> {
        rmp_serde::from_slice(bytes).map_err(BadDelivery)
    }
}

/// How far a partition is routed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// All records up to this position are routed.
    #[serde(rename = "p")]
    pub position: u64,
    /// What is routed of the record after it, if not all of it.
    #[serde(rename = "w", default, skip_serializing_if = "Option::is_none")]
    pub within: Option<Within>,
}

/// How far a record is routed: everything up to and including this event for this channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Within {
    /// Number of the event in its record.
    #[serde(rename = "e")]
    pub event: u32,
    /// The channel; those of an event come in the order of their ids.
    #[serde(rename = "h")]
    pub channel: ChannelId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_survives_its_bytes_and_is_named_by_event_and_channel() {
        let (message, channel) = (MessageId::derive([1; 16]), ChannelId::derive([2; 16]));
        let id = Delivery::name(message, channel);
        assert_eq!(id, Delivery::name(message, channel));
        assert_ne!(id, Delivery::name(MessageId::derive([3; 16]), channel));
        assert_ne!(id, Delivery::name(message, ChannelId::derive([1; 16])));
        let delivery = Delivery {
            id,
            tenant: TenantId::derive([4; 16]),
            channel,
            conversation: ConversationId::derive([5; 16]),
            message,
            seq: 7,
            attempt: 2,
            before: 1,
            body: Bytes::from_static(b"{}"),
        };
        assert_eq!(Delivery::decode(&delivery.encode()).unwrap(), delivery);
        assert!(Delivery::decode(b"\x81").is_err());
    }
}
