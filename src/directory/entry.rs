//! Pure: the keys of the directory's bucket and the envelope of its values.
//! Promises that a value keeps the fields that it does not know, and that a version it does not know is refused.
//! Does not know the fields; the entities do.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::key::KeyHash;
use crate::event::{ChannelId, TenantId};

/// The version of the values that are written. New optional fields do not change it; everything else does.
const VERSION: u16 = 1;

/// What an entry of the bucket is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// `tenant.<32 hex>`
    Tenant(TenantId),
    /// `key.<64 hex>`
    Key(KeyHash),
    /// `channel.<32 hex>.<32 hex>`
    Channel(TenantId, ChannelId),
    /// `secret.token`
    TokenSecret,
}

impl Subject {
    /// From a key of the bucket; `None` when it is of a kind that this version does not know.
    pub(super) fn parse(key: &str) -> Option<Self> {
        let (kind, name) = key.split_once('.')?;
        match kind {
            "tenant" => parse_uuid(name).map(|uuid| Self::Tenant(TenantId::from_uuid(uuid))),
            "key" => KeyHash::parse(name).map(Self::Key),
            "channel" => {
                let (tenant, channel) = name.split_once('.')?;
                let tenant = TenantId::from_uuid(parse_uuid(tenant)?);
                let channel = ChannelId::from_uuid(parse_uuid(channel)?);
                Some(Self::Channel(tenant, channel))
            }
            "secret" if name == "token" => Some(Self::TokenSecret),
            _ => None,
        }
    }
}

impl fmt::Display for Subject {
    /// As a key of the bucket.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tenant(tenant) => write!(f, "tenant.{}", tenant.uuid().simple()),
            Self::Key(hash) => write!(f, "key.{hash}"),
            Self::Channel(tenant, channel) => {
                let (tenant, channel) = (tenant.uuid(), channel.uuid());
                write!(f, "channel.{}.{}", tenant.simple(), channel.simple())
            }
            Self::TokenSecret => f.write_str("secret.token"),
        }
    }
}

/// Why a value of the bucket cannot be used. Nothing of the value itself is told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It is not JSON of the expected form.
    #[error("not of the expected form (line {line}, column {column})")]
    Form {
        /// Line of the value, from 1.
        line: usize,
        /// Column of the line, from 1.
        column: usize,
    },
    /// A later version wrote it.
    #[error("written in version {0}, which this server does not know")]
    Version(u16),
    /// A field has a content that cannot be.
    #[error("the field {0} has an impossible content")]
    Content(&'static str),
}

#[derive(Serialize, Deserialize)]
struct Envelope<T> {
    v: u16,
    #[serde(flatten)]
    body: T,
}

/// The bytes of a value.
pub(super) fn encode(body: &impl Serialize) -> Vec<u8> {
    let envelope = Envelope { v: VERSION, body };
    serde_json::to_vec(&envelope)
        .expect("entities have string keys and no values that JSON cannot write")
}

/// The value of some bytes, if this version can read it.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Unreadable> {
    #[derive(Deserialize)]
    struct Version {
        v: u16,
    }
    let form = |failure: serde_json::Error| Unreadable::Form {
        line: failure.line(),
        column: failure.column(),
    };
    let Version { v } = serde_json::from_slice(bytes).map_err(form)?;
    if v != VERSION {
        return Err(Unreadable::Version(v));
    }
    let envelope: Envelope<T> = serde_json::from_slice(bytes).map_err(form)?;
    Ok(envelope.body)
}

fn parse_uuid(hex: &str) -> Option<Uuid> {
    let plain = hex.len() == 32 && !hex.bytes().any(|b| b.is_ascii_uppercase());
    plain.then(|| hex.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};

    use super::*;

    const HEX: &str = "0190000000007000800000000000000a";

    #[test]
    fn a_subject_survives_its_key() {
        let hash = "ab".repeat(32);
        let keys = [
            format!("tenant.{HEX}"),
            format!("key.{hash}"),
            format!("channel.{HEX}.{HEX}"),
            "secret.token".to_owned(),
        ];
        for key in keys {
            assert_eq!(Subject::parse(&key).unwrap().to_string(), key);
        }
    }

    #[test]
    fn keys_of_another_kind_are_not_ours() {
        for key in [
            "",
            "tenant",
            "tenant.",
            "tenant.x",
            &format!("tenant.{}", HEX.to_uppercase()),
            &format!("key.{HEX}"),
            &format!("channel.{HEX}"),
            &format!("channel.{HEX}.{HEX}.x"),
            "secret.other",
            "lease.1",
        ] {
            assert_eq!(Subject::parse(key), None, "{key}");
        }
    }

    #[test]
    fn a_value_keeps_fields_that_it_does_not_know() {
        #[derive(Debug, Serialize, Deserialize)]
        struct Body {
            name: String,
            #[serde(flatten)]
            rest: Map<String, Value>,
        }
        let written = r#"{"v":1,"name":"a","colour":{"r":1},"list":[1,null]}"#;
        let body: Body = decode(written.as_bytes()).unwrap();
        let again: Value = serde_json::from_slice(&encode(&body)).unwrap();
        assert_eq!(again, serde_json::from_str::<Value>(written).unwrap());
        assert_eq!(decode::<Body>(br#"{"v":2,"title":"a"}"#).unwrap_err(), Unreadable::Version(2));
        assert!(decode::<Body>(b"not JSON").is_err());
        assert!(decode::<Body>(br#"{"v":1}"#).is_err());
    }
}
