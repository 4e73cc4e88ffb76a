//! The words of the log: what an event is, how it is identified and how it is written.
//! Promises that a value of these types is within the limits and can be stored by Postgres.
//! Does no I/O; the log room moves the bytes, the journal gives the events their `seq`.

pub mod delivery;
pub mod id;
pub mod key;
pub mod kind;
pub mod limits;
pub mod outcome;
pub mod partition;
pub mod record;
pub mod webhook;

pub use delivery::Delivery;
pub use id::{
    ChannelId, ConversationId, DeliveryId, KeyId, MessageId, NodeId, RecordId, RequestId, TenantId,
};
pub use key::{ClientId, Fingerprint};
pub use outcome::{Fate, Outcome, Reason};
pub use partition::{Partition, Partitions};
pub use record::{Body, Event, Json, Message, Opening, Record, Sender};
