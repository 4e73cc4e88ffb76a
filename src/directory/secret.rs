//! Pure: the secrets that have to be kept in the clear, because they sign or verify.
//! Promises that no debug output shows them.
//! Does not draw randomness; 32 random bytes are an argument.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::entry::{self, Unreadable};
use crate::clock::Timestamp;

/// What the text of a channel's secret begins with (Standard Webhooks).
const CHANNEL_SECRET_PREFIX: &str = "whsec_";

/// The secret that signs a channel's deliveries: `whsec_` and the base64 of 32 bytes.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChannelSecret(String);

impl ChannelSecret {
    /// The secret that 32 random bytes make.
    pub fn from_random(bytes: [u8; 32]) -> Self {
        Self(format!("{CHANNEL_SECRET_PREFIX}{}", STANDARD.encode(bytes)))
    }

    /// The secret as its owner knows it, to be shown once.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The bytes to sign with; empty when the stored text is no secret, with which nothing verifies.
    pub fn bytes(&self) -> Vec<u8> {
        let text = self.0.strip_prefix(CHANNEL_SECRET_PREFIX);
        text.and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default()
    }
}

impl fmt::Debug for ChannelSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChannelSecret(…)")
    }
}

/// The key with which all nodes sign and verify end users' tokens.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenSecret(Vec<u8>);

/// How it is kept.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredTokenSecret {
    secret: String,
    created_at: Timestamp,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl TokenSecret {
    /// The fewest bytes that sign safely with HMAC-SHA256 (RFC 7518, section 3.2).
    pub const BYTES_MIN: usize = 32;

    /// From 32 random bytes.
    pub fn from_random(bytes: [u8; 32]) -> Self {
        Self(bytes.to_vec())
    }

    /// From configuration; `None` when it is too short to sign with.
    pub fn from_config(bytes: &[u8]) -> Option<Self> {
        (bytes.len() >= Self::BYTES_MIN).then(|| Self(bytes.to_vec()))
    }

    /// The bytes to sign with.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn encode(&self, created_at: Timestamp) -> Vec<u8> {
        entry::encode(&StoredTokenSecret {
            secret: STANDARD.encode(&self.0),
            created_at,
            rest: Map::new(),
        })
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        let stored: StoredTokenSecret = entry::decode(bytes)?;
        let secret = STANDARD.decode(stored.secret).ok();
        secret.and_then(|bytes| Self::from_config(&bytes)).ok_or(Unreadable::Content("secret"))
    }
}

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSecret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_secret_gives_its_bytes_back_and_hides_itself() {
        let secret = ChannelSecret::from_random([5; 32]);
        assert_eq!(secret.expose(), "whsec_BQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQU=");
        assert_eq!(secret.bytes(), [5; 32]);
        assert_eq!(format!("{secret:?}"), "ChannelSecret(…)");
        assert!(ChannelSecret("nonsense".to_owned()).bytes().is_empty());
    }

    #[test]
    fn a_token_secret_survives_its_entry_and_is_never_short() {
        let secret = TokenSecret::from_random([6; 32]);
        let entry = secret.encode(Timestamp::default());
        assert_eq!(TokenSecret::decode(&entry).unwrap(), secret);
        assert_eq!(format!("{secret:?}"), "TokenSecret(…)");
        assert_eq!(TokenSecret::from_config(&[1; 31]), None);
        let short = r#"{"v":1,"secret":"AAAA","createdAt":0}"#;
        assert!(TokenSecret::decode(short.as_bytes()).is_err());
    }
}
