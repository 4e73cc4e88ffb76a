//! Pure: the idempotency key of a send and the fingerprint of its payload.
//! Promises that the same key always gives the same message id, and that other payloads give other fingerprints.
//! Does not remember keys; the journal does for a while, Postgres for good.

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

use super::id::{ConversationId, MessageId, TenantId, uuid_time};
use super::limits::CLIENT_ID_CHARS_MAX;
use crate::clock::Timestamp;

/// The sender's own name for one send: 1 to 128 characters of `A-Z a-z 0-9 . _ : ~ -`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClientId(Box<str>);

/// A text that cannot be a client id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be 1 to 128 characters of A-Z a-z 0-9 . _ : ~ -")]
pub struct BadClientId;

impl ClientId {
    /// From a text that a client sent.
    ///
    /// # Errors
    /// [`BadClientId`] when it is empty, too long or has another character.
    pub fn parse(text: &str) -> Result<Self, BadClientId> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._:~-".contains(&b);
        let fits = (1..=CLIENT_ID_CHARS_MAX).contains(&text.len());
        if fits && text.bytes().all(allowed) { Ok(Self(text.into())) } else { Err(BadClientId) }
    }

    /// The text as it was sent.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// When the client made this id, if it is a UUIDv7 in any of its usual spellings.
    pub fn own_time(&self) -> Option<Timestamp> {
        uuid::Uuid::parse_str(&self.0).ok().and_then(uuid_time)
    }
}

/// The message id that a send with this key has, now and at every repeat.
///
/// The key is (tenant, conversation, sender, client id). Every part is length-prefixed before it is hashed
/// (SHA-256, cut to the 122 bits of a `UUIDv8`), so that no two keys share their bytes.
pub fn message_id(
    tenant: TenantId,
    conversation: ConversationId,
    sender: Option<&str>,
    client_id: &ClientId,
) -> MessageId {
    let mut hash = Context::new(&SHA256);
    hash.update(tenant.uuid().as_bytes());
    hash.update(conversation.uuid().as_bytes());
    update_part(&mut hash, sender);
    update_part(&mut hash, Some(client_id.as_str()));
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.finish().as_ref()[..16]);
    MessageId::derive(bytes)
}

/// What a payload was, in 8 bytes: enough to tell a repeat from a second message under the same key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// The fingerprint of a payload given as its parts, absent ones included, in a fixed order.
    pub fn of(parts: &[Option<&str>]) -> Self {
        let mut hash = Context::new(&SHA256);
        for part in parts {
            update_part(&mut hash, *part);
        }
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&hash.finish().as_ref()[..8]);
        Self(u64::from_be_bytes(bytes))
    }

    /// From the bits that Postgres gave back.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The bare value, for Postgres.
    pub const fn bits(self) -> u64 {
        self.0
    }
}

fn update_part(hash: &mut Context, part: Option<&str>) {
    match part {
        None => hash.update(&[0]),
        Some(text) => {
            hash.update(&[1]);
            hash.update(&(text.len() as u64).to_be_bytes());
            hash.update(text.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tenant(n: u8) -> TenantId {
        TenantId::derive([n; 16])
    }

    fn id(sender: Option<&str>, client_id: &str) -> MessageId {
        let conversation = ConversationId::derive([9; 16]);
        message_id(tenant(1), conversation, sender, &ClientId::parse(client_id).unwrap())
    }

    #[test]
    fn every_part_of_the_key_counts() {
        let base = id(Some("ann"), "a-1");
        assert_eq!(base, id(Some("ann"), "a-1"));
        assert_ne!(base, id(Some("bob"), "a-1"));
        assert_ne!(base, id(Some("ann"), "a-2"));
        assert_ne!(id(None, "a-1"), id(Some(""), "a-1"));
        let client_id = ClientId::parse("a-1").unwrap();
        let conversation = ConversationId::derive([9; 16]);
        assert_ne!(base, message_id(tenant(2), conversation, Some("ann"), &client_id));
        let other = ConversationId::derive([8; 16]);
        assert_ne!(base, message_id(tenant(1), other, Some("ann"), &client_id));
    }

    #[test]
    fn client_ids_outside_of_the_alphabet_are_refused() {
        for good in ["a", "A.z_0:~-", &"x".repeat(128)] {
            assert!(ClientId::parse(good).is_ok(), "{good}");
        }
        for bad in ["", " ", "a b", "ä", "a\0", "a/b", &"x".repeat(129)] {
            assert_eq!(ClientId::parse(bad), Err(BadClientId), "{bad}");
        }
    }

    #[test]
    fn a_uuid_of_version_7_tells_when_it_was_made() {
        let made = |text| ClientId::parse(text).unwrap().own_time().map(Timestamp::micros);
        assert_eq!(made("019abcde-f000-7000-8000-000000000000"), Some(0x019a_bcde_f000 * 1_000));
        assert_eq!(made("019abcdef00070008000000000000000"), Some(0x019a_bcde_f000 * 1_000));
        assert_eq!(made("9b2e4a7e-1111-4222-8333-444455556666"), None);
        assert_eq!(made("order-7"), None);
    }

    proptest! {
        #[test]
        fn moving_a_boundary_between_parts_changes_the_fingerprint(text in "[a-c]{1,12}", cut in 0_usize..12) {
            let cut = cut % (text.len() + 1);
            let split = Fingerprint::of(&[Some(&text[..cut]), Some(&text[cut..])]);
            prop_assert_ne!(split, Fingerprint::of(&[Some(&text), None]));
            prop_assert_ne!(split, Fingerprint::of(&[Some(&text)]));
        }
    }
}
