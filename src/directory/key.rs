//! Pure: API keys, how they are written and what is kept of them.
//! Promises that a key is kept only as its SHA-256 and that no debug output shows it.
//! Does not draw randomness and does not know which keys are valid; [`super::memory`] does.

use std::fmt;

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::entry::{self, Unreadable};
use crate::clock::Timestamp;
use crate::event::{KeyId, TenantId};

/// What every API key begins with.
const API_KEY_PREFIX: &str = "fbk_";

/// Characters after the prefix: the fewest of base 62 that hold 32 bytes (62^43 > 2^256).
const DIGITS: usize = 43;

/// Bytes of a whole API key.
const API_KEY_BYTES: usize = API_KEY_PREFIX.len() + DIGITS;

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// A tenant's API key in the clear. It exists from its creation until it was answered, and is never stored.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    /// The key that 32 random bytes make.
    pub fn from_random(bytes: [u8; 32]) -> Self {
        Self(format!("{API_KEY_PREFIX}{}", encode(bytes)))
    }

    /// From a text that somebody presented; `None` when no key is written so.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(API_KEY_PREFIX)?;
        decode(digits).map(|_bytes| Self(text.to_owned()))
    }

    /// The key itself, to be shown once.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// What is kept of it.
    pub fn hash(&self) -> KeyHash {
        KeyHash::of(&self.0)
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

/// The SHA-256 of an API key, by which it is looked up.
///
/// A plain hash is enough, as the key has 256 random bits: there is nothing to guess, so nothing to slow down.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// The hash of a text that has the shape of an API key; `None`, without hashing, when it has not.
    pub fn of_presented(text: &str) -> Option<Self> {
        let shaped = text.len() == API_KEY_BYTES && text.starts_with(API_KEY_PREFIX);
        shaped.then(|| Self::of(text))
    }

    /// From 64 lower-case hexadecimal digits.
    pub fn parse(hex: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if hex.len() != 64 {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
            *byte = hex_digit(pair[0])? << 4 | hex_digit(pair[1])?;
        }
        Some(Self(bytes))
    }

    fn of(text: &str) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
        Self(bytes)
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyHash {
    /// Enough digits to tell two apart in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyHash({:02x}{:02x}…)", self.0[0], self.0[1])
    }
}

/// What the directory knows of an API key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Key {
    /// Whose key it is.
    pub tenant: TenantId,
    /// Its name, by which it is revoked.
    #[serde(rename = "keyId")]
    pub id: KeyId,
    /// When it was made.
    pub created_at: Timestamp,
    /// Fields that a later version wrote.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl Key {
    /// A new key of a tenant.
    pub fn new(tenant: TenantId, id: KeyId, created_at: Timestamp) -> Self {
        Self { tenant, id, created_at, rest: Map::new() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        entry::encode(self)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        entry::decode(bytes)
    }
}

/// 32 bytes as one big number in base 62, most significant digit first, always 43 digits.
fn encode(bytes: [u8; 32]) -> String {
    let mut number = bytes;
    let mut digits = [b'0'; DIGITS];
    for digit in digits.iter_mut().rev() {
        let mut remainder = 0_u16;
        for byte in &mut number {
            let dividend = remainder << 8 | u16::from(*byte);
            // The remainder is below 62, so the quotient is below 256.
            *byte = u8::try_from(dividend / 62).unwrap_or(u8::MAX);
            remainder = dividend % 62;
        }
        *digit = ALPHABET[usize::from(remainder)];
    }
    digits.iter().map(|digit| char::from(*digit)).collect()
}

/// The inverse of [`encode`]; `None` for another alphabet, another length or a number beyond 32 bytes.
fn decode(text: &str) -> Option<[u8; 32]> {
    if text.len() != DIGITS {
        return None;
    }
    let mut number = [0_u8; 32];
    for character in text.bytes() {
        let digit = ALPHABET.iter().position(|known| *known == character)?;
        let mut carry = u16::try_from(digit).ok()?;
        for byte in number.iter_mut().rev() {
            let product = u16::from(*byte) * 62 + carry;
            let [high, low] = product.to_be_bytes();
            *byte = low;
            carry = u16::from(high);
        }
        if carry > 0 {
            return None;
        }
    }
    Some(number)
}

fn hex_digit(character: u8) -> Option<u8> {
    match character {
        b'0'..=b'9' => Some(character - b'0'),
        b'a'..=b'f' => Some(character - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_smallest_and_the_largest_key_have_the_same_length() {
        let smallest = ApiKey::from_random([0; 32]);
        assert_eq!(smallest.expose(), format!("fbk_{}", "0".repeat(43)));
        let largest = ApiKey::from_random([0xff; 32]);
        assert_eq!(largest.expose().len(), API_KEY_BYTES);
        assert_eq!(decode(&largest.expose()[4..]), Some([0xff; 32]));
        let mut one = [0; 32];
        one[31] = 63;
        assert!(ApiKey::from_random(one).expose().ends_with("0011"));
    }

    #[test]
    fn what_is_not_a_key_is_refused() {
        let good = ApiKey::from_random([7; 32]);
        assert_eq!(ApiKey::parse(good.expose()), Some(good.clone()));
        let text = good.expose();
        let long = format!("{text}0");
        let beyond = format!("fbk_{}", "z".repeat(43));
        let other = text.replace("fbk_", "fbx_");
        for text in
            ["", "fbk_", &text[..46], &long, &other, &beyond, &text.replace(&text[4..5], "-")]
        {
            assert_eq!(ApiKey::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_hash_is_the_sha_256_of_the_whole_text() {
        // printf fbk_000…0 (43 zeros) | sha256sum
        let hash = ApiKey::from_random([0; 32]).hash();
        assert_eq!(KeyHash::parse(&hash.to_string()), Some(hash));
        assert_eq!(hash.to_string(), ZEROS);
        assert_eq!(KeyHash::parse(&ZEROS.to_uppercase()), None);
        assert_eq!(KeyHash::parse(&ZEROS[1..]), None);
        assert_eq!(KeyHash::of_presented("fbk_short"), None);
    }

    const ZEROS: &str = "4b61e6a4c4a07ff2d2c41bfd3342fde645b3082d3d5c76205e461ffe19e7da7a";

    #[test]
    fn debug_output_shows_no_key() {
        let key = ApiKey::from_random([9; 32]);
        assert_eq!(format!("{key:?}"), "ApiKey(…)");
    }

    proptest! {
        #[test]
        fn a_key_survives_its_text(bytes: [u8; 32]) {
            prop_assert_eq!(decode(&encode(bytes)), Some(bytes));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "(fbk_)?[0-9A-Za-zé-]{0,50}") {
            if let Some(key) = ApiKey::parse(&text) {
                prop_assert_eq!(key.expose(), text);
            }
        }
    }
}
