//! Pure: a channel, a tenant's webhook subscription, and how it is kept.
//! Promises that its secrets leave it only by name and that a change keeps what it does not know.
//! Does not check what tenants say; [`settings`] does.

mod address;
mod settings;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::check::Invalid;
use super::entry::{self, Unreadable};
use super::secret::ChannelSecret;
use crate::clock::Timestamp;
use crate::event::{ChannelId, TenantId};

/// How long the former secret counts after a rotation: until every subscriber has the new one.
const ROTATION_OVERLAP: Duration = Duration::from_hours(24);

pub use settings::{ChannelPatch, NewChannel, Per, RateLimit, Retry, Scope, Settings};

/// Whether a channel's deliveries are attempted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChannelStatus {
    /// They are.
    #[default]
    Active,
    /// They wait.
    Paused,
}

impl ChannelStatus {
    /// The word in JSON and SQL.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Paused => "paused",
        }
    }
}

/// A channel as the directory knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Its id.
    pub id: ChannelId,
    /// Whose it is.
    pub tenant: TenantId,
    /// What the tenant says of it.
    pub settings: Settings,
    /// Whether its deliveries are attempted.
    pub status: ChannelStatus,
    /// The secret that signs its deliveries.
    pub secret: ChannelSecret,
    /// The secret before the last rotation; deliveries are signed with both for a while after [`Self::rotated_at`].
    pub previous_secret: Option<ChannelSecret>,
    /// When the secret was last rotated.
    pub rotated_at: Option<Timestamp>,
    /// When it was made.
    pub created_at: Timestamp,
    /// Where each partition of the log ended when it was made, as the node knew that made it: what is behind that is its
    /// business whatever the clocks of nodes say. Empty when an older version made it.
    pub heard_from: Vec<u64>,
    /// When it was last changed.
    pub updated_at: Timestamp,
    /// Fields that a later version wrote.
    rest: Map<String, Value>,
}

/// How it is kept.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    #[serde(flatten)]
    settings: Settings,
    status: ChannelStatus,
    secret: ChannelSecret,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    previous_secret: Option<ChannelSecret>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rotated_at: Option<Timestamp>,
    created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    heard_from: Vec<u64>,
    updated_at: Timestamp,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl Channel {
    /// A new channel.
    pub fn new(
        tenant: TenantId,
        id: ChannelId,
        settings: Settings,
        secret: ChannelSecret,
        now: Timestamp,
    ) -> Self {
        Self {
            id,
            tenant,
            settings,
            status: ChannelStatus::Active,
            secret,
            previous_secret: None,
            rotated_at: None,
            created_at: now,
            heard_from: Vec::new(),
            updated_at: now,
            rest: Map::new(),
        }
    }

    /// Whether one node alone delivers to it, from its backlog: what is in order or counted cannot be shared out.
    pub fn is_pinned(&self) -> bool {
        self.settings.ordered || self.settings.rate_limit.is_some()
    }

    /// The secrets that count at this time, the newest first: for a day after a rotation the former one does as well.
    pub fn secrets(&self, now: Timestamp) -> Vec<Vec<u8>> {
        let rotated = self.rotated_at.filter(|rotated| now.since(*rotated) < ROTATION_OVERLAP);
        let former = rotated.and(self.previous_secret.as_ref());
        std::iter::once(&self.secret).chain(former).map(ChannelSecret::bytes).collect()
    }

    /// This channel after a change.
    ///
    /// # Errors
    /// What is wrong with it then.
    pub fn patched(self, patch: ChannelPatch, now: Timestamp) -> Result<Self, Invalid> {
        Ok(Self {
            status: patch.status.unwrap_or(self.status),
            settings: self.settings.patched(patch)?,
            updated_at: now,
            ..self
        })
    }

    /// This channel with another secret; the present one becomes the previous one.
    #[must_use]
    pub fn rotated(self, secret: ChannelSecret, now: Timestamp) -> Self {
        Self {
            previous_secret: Some(self.secret),
            secret,
            rotated_at: Some(now),
            updated_at: now,
            ..self
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        entry::encode(&Stored {
            settings: self.settings.clone(),
            status: self.status,
            secret: self.secret.clone(),
            previous_secret: self.previous_secret.clone(),
            rotated_at: self.rotated_at,
            created_at: self.created_at,
            heard_from: self.heard_from.clone(),
            updated_at: self.updated_at,
            rest: self.rest.clone(),
        })
    }

    pub(super) fn decode(
        tenant: TenantId,
        id: ChannelId,
        bytes: &[u8],
    ) -> Result<Self, Unreadable> {
        let stored: Stored = entry::decode(bytes)?;
        Ok(Self {
            id,
            tenant,
            settings: stored.settings,
            status: stored.status,
            secret: stored.secret,
            previous_secret: stored.previous_secret,
            rotated_at: stored.rotated_at,
            created_at: stored.created_at,
            heard_from: stored.heard_from,
            updated_at: stored.updated_at,
            rest: stored.rest,
        })
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn channel() -> Channel {
        let new =
            r#"{"name":"a","url":"https://example.com","rateLimit":"5/s","headers":{"x":"y"}}"#;
        let settings = serde_json::from_str::<NewChannel>(new).unwrap();
        let (tenant, id) = (TenantId::from_uuid(Uuid::nil()), ChannelId::from_uuid(Uuid::max()));
        let secret = ChannelSecret::from_random([1; 32]);
        Channel::new(tenant, id, settings.checked().unwrap(), secret, at(1))
    }

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros).unwrap()
    }

    #[test]
    fn the_former_secret_counts_for_a_day_after_a_rotation() {
        let secret = |byte| ChannelSecret::from_random([byte; 32]);
        let new: NewChannel =
            serde_json::from_str(r#"{"name":"a","url":"https://a.example/"}"#).unwrap();
        let (tenant, id) = (TenantId::derive([1; 16]), ChannelId::derive([2; 16]));
        let made = Timestamp::default();
        let channel = Channel::new(tenant, id, new.checked().unwrap(), secret(1), made);
        assert_eq!(channel.secrets(made), [secret(1).bytes()]);
        let rotated = made.plus(Duration::from_mins(1));
        let channel = channel.rotated(secret(2), rotated);
        let just = rotated.plus(ROTATION_OVERLAP).minus(Duration::from_secs(1));
        assert_eq!(channel.secrets(just), [secret(2).bytes(), secret(1).bytes()]);
        assert_eq!(channel.secrets(rotated.plus(ROTATION_OVERLAP)), [secret(2).bytes()]);
    }

    #[test]
    fn a_channel_survives_its_entry() {
        let rotated = channel().rotated(ChannelSecret::from_random([2; 32]), at(2));
        for channel in [channel(), rotated] {
            let again = Channel::decode(channel.tenant, channel.id, &channel.encode()).unwrap();
            assert_eq!(again, channel);
        }
    }

    #[test]
    fn a_change_keeps_fields_of_a_later_version() {
        let mut written: Value = serde_json::from_slice(&channel().encode()).unwrap();
        assert_eq!(written["rateLimit"], "5/s");
        written["colour"] = "blue".into();
        let bytes = serde_json::to_vec(&written).unwrap();
        let read = Channel::decode(channel().tenant, channel().id, &bytes).unwrap();
        let patch: ChannelPatch = serde_json::from_str(r#"{"status":"paused"}"#).unwrap();
        let patched = read.patched(patch, at(9)).unwrap();
        assert_eq!((patched.status, patched.updated_at), (ChannelStatus::Paused, at(9)));
        let again: Value = serde_json::from_slice(&patched.encode()).unwrap();
        assert_eq!((&again["colour"], &again["name"]), (&"blue".into(), &"a".into()));
    }

    #[test]
    fn debug_output_shows_no_secret() {
        let rotated = channel().rotated(ChannelSecret::from_random([2; 32]), at(2));
        let shown = format!("{rotated:?}");
        assert!(!shown.contains("whsec_") && !shown.contains("example.com"), "{shown}");
    }
}
