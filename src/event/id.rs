//! Pure: ids, each a type of its own, written as a prefix and 32 hexadecimal digits.
//! Promises that an id that was parsed has its right prefix, and that ids made later sort later.
//! Does not draw randomness or read time; both are arguments.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

use rand::Rng;
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize, Serializer};
use uuid::Uuid;

use crate::clock::Timestamp;

/// What an id names; gives the prefix it is written with.
pub trait Kind {
    /// The prefix with its underscore, for example `msg_`.
    const PREFIX: &'static str;
}

/// A UUID that names one kind of thing.
///
/// As text (JSON, logs) it is the prefix and 32 hexadecimal digits, in the log 16 bytes.
pub struct Id<K> {
    uuid: Uuid,
    kind: PhantomData<fn() -> K>,
}

/// Names a tenant.
pub type TenantId = Id<kind::Tenant>;
/// Names an API key of a tenant.
pub type KeyId = Id<kind::Key>;
/// Names a channel, a tenant's webhook subscription.
pub type ChannelId = Id<kind::Channel>;
/// Names a conversation.
pub type ConversationId = Id<kind::Conversation>;
/// Names an event that has content; derived from the idempotency key where there is one.
pub type MessageId = Id<kind::Message>;
/// Names one message for one channel; derived from the two, and the `webhook-id` of every attempt.
pub type DeliveryId = Id<kind::Delivery>;
/// Names one record of the log.
pub type RecordId = Id<kind::Record>;
/// Names a running server process; made anew at every start.
pub type NodeId = Id<kind::Node>;
/// Names one request, in logs and problem answers.
pub type RequestId = Id<kind::Request>;

/// The kinds of things that have ids.
pub mod kind {
    use super::Kind;

    /// See [`super::TenantId`].
    #[derive(Debug)]
    pub enum Tenant {}
    /// See [`super::KeyId`].
    #[derive(Debug)]
    pub enum Key {}
    /// See [`super::ChannelId`].
    #[derive(Debug)]
    pub enum Channel {}
    /// See [`super::ConversationId`].
    #[derive(Debug)]
    pub enum Conversation {}
    /// See [`super::MessageId`].
    #[derive(Debug)]
    pub enum Message {}
    /// See [`super::DeliveryId`].
    #[derive(Debug)]
    pub enum Delivery {}
    /// See [`super::RecordId`].
    #[derive(Debug)]
    pub enum Record {}
    /// See [`super::NodeId`].
    #[derive(Debug)]
    pub enum Node {}
    /// See [`super::RequestId`].
    #[derive(Debug)]
    pub enum Request {}

    impl Kind for Tenant {
        const PREFIX: &'static str = "ten_";
    }
    impl Kind for Key {
        const PREFIX: &'static str = "key_";
    }
    impl Kind for Channel {
        const PREFIX: &'static str = "ch_";
    }
    impl Kind for Conversation {
        const PREFIX: &'static str = "cnv_";
    }
    impl Kind for Message {
        const PREFIX: &'static str = "msg_";
    }
    impl Kind for Delivery {
        const PREFIX: &'static str = "dlv_";
    }
    impl Kind for Record {
        const PREFIX: &'static str = "rec_";
    }
    impl Kind for Node {
        const PREFIX: &'static str = "node_";
    }
    impl Kind for Request {
        const PREFIX: &'static str = "req_";
    }
}

/// A text that is not an id of the kind that was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an id of the form {prefix}<32 hexadecimal digits>")]
pub struct BadId {
    /// The prefix that was expected.
    pub prefix: &'static str,
}

impl<K: Kind> Id<K> {
    /// A new id (UUIDv7): ids of later milliseconds sort later.
    pub fn generate(now: Timestamp, rng: &mut impl Rng) -> Self {
        let mut random = [0; 10];
        rng.fill_bytes(&mut random);
        Self::from_uuid(
            uuid::Builder::from_unix_timestamp_millis(now.millis(), &random).into_uuid(),
        )
    }

    /// An id made of 16 bytes of a hash (UUIDv8): the same bytes give the same id.
    pub fn derive(hash: [u8; 16]) -> Self {
        Self::from_uuid(uuid::Builder::from_custom_bytes(hash).into_uuid())
    }

    /// From a text that somebody else wrote.
    ///
    /// # Errors
    /// [`BadId`] when the prefix is another one or the rest is not 32 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, BadId> {
        let bad = BadId { prefix: K::PREFIX };
        let digits = text.strip_prefix(K::PREFIX).ok_or_else(|| bad.clone())?;
        let plain = digits.len() == 32 && !digits.bytes().any(|b| b.is_ascii_uppercase());
        if !plain {
            return Err(bad);
        }
        digits.parse().map(Self::from_uuid).map_err(|_source: uuid::Error| bad)
    }

    /// From a value that Postgres or the log gave back.
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self { uuid, kind: PhantomData }
    }

    /// The bare value, for Postgres and for the log.
    pub const fn uuid(self) -> Uuid {
        self.uuid
    }

    /// The time that a UUIDv7 carries; `None` for ids that were derived.
    pub fn time(self) -> Option<Timestamp> {
        uuid_time(self.uuid)
    }
}

/// The time in a UUIDv7, to the millisecond.
pub fn uuid_time(uuid: Uuid) -> Option<Timestamp> {
    if uuid.get_version_num() != 7 {
        return None;
    }
    let (seconds, nanos) = uuid.get_timestamp()?.to_unix();
    let micros = i64::try_from(seconds).ok()?.checked_mul(1_000_000)?;
    Timestamp::from_micros(micros.checked_add(i64::from(nanos / 1_000))?)
}

impl<K> Clone for Id<K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K> Copy for Id<K> {}
impl<K> PartialEq for Id<K> {
    fn eq(&self, other: &Self) -> bool {
        self.uuid == other.uuid
    }
}
impl<K> Eq for Id<K> {}
impl<K> PartialOrd for Id<K> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<K> Ord for Id<K> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.uuid.cmp(&other.uuid)
    }
}
impl<K> Hash for Id<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.uuid.hash(state);
    }
}
impl<K: Kind> fmt::Display for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", K::PREFIX, self.uuid.simple())
    }
}
impl<K: Kind> fmt::Debug for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<K: Kind> Serialize for Id<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            serializer.serialize_bytes(self.uuid.as_bytes())
        }
    }
}

impl<'de, K: Kind> Deserialize<'de> for Id<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
            Self::parse(&text).map_err(D::Error::custom)
        } else {
            Uuid::deserialize(deserializer).map(Self::from_uuid)
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    #[test]
    fn an_id_survives_its_text_and_its_bytes() {
        let mut rng = SmallRng::seed_from_u64(1);
        let id =
            MessageId::generate(Timestamp::from_micros(1_764_000_000_000_000).unwrap(), &mut rng);
        assert_eq!(MessageId::parse(&id.to_string()), Ok(id));
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(serde_json::from_str::<MessageId>(&json).unwrap(), id);
        let packed = rmp_serde::to_vec(&id).unwrap();
        assert_eq!(packed.len(), 18);
        assert_eq!(rmp_serde::from_slice::<MessageId>(&packed).unwrap(), id);
    }

    #[test]
    fn ids_of_another_kind_or_shape_are_refused() {
        let digits = "0190000000007000800000000000000a";
        assert!(ConversationId::parse(&format!("cnv_{digits}")).is_ok());
        for text in [
            format!("msg_{digits}"),
            digits.to_owned(),
            format!("cnv_{}", digits.to_uppercase()),
            format!("cnv_{digits}0"),
            "cnv_01900000-0000-7000-8000-00000000000a".to_owned(),
            "cnv_".to_owned(),
        ] {
            assert!(ConversationId::parse(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn later_ids_sort_later_and_tell_their_time() {
        let mut rng = SmallRng::seed_from_u64(2);
        let early = Timestamp::from_micros(1_764_000_000_000_000).unwrap();
        let late = early.plus(std::time::Duration::from_millis(1));
        let (a, b) = (TenantId::generate(early, &mut rng), TenantId::generate(late, &mut rng));
        assert!(a < b);
        assert_eq!((a.time(), b.time()), (Some(early), Some(late)));
        assert_eq!(MessageId::derive([7; 16]).time(), None);
    }
}
