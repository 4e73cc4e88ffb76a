//! Pure: what a tenant says of a channel, checked field by field.
//! Promises that settings that exist are within every limit, whether they came new or as a change.
//! Does not deliver anything; the settings are read by routing and delivery.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::ChannelStatus;
use super::address::{check_headers, check_url};
use crate::directory::check::{Edit, Faults, Invalid, check_name, check_range};
use crate::event::kind::{TYPE_CHARACTERS, is_type};
use crate::event::limits::NAME_BYTES_MAX;

/// Most event types that a channel can name.
pub(super) const TYPES_MAX: usize = 50;

/// Most deliveries of one channel that may be in flight on one node.
pub(super) const IN_FLIGHT_MAX: u64 = 1_000;

/// The highest rate limit, in deliveries.
pub(super) const RATE_MAX: u64 = 100_000;

/// Most attempts for one delivery.
pub(super) const ATTEMPTS_MAX: u64 = 20;

/// The longest first pause between attempts, and the longest of all pauses, in seconds.
pub(super) const RETRY_BASE_SECONDS_MAX: u64 = 3_600;
/// See [`RETRY_BASE_SECONDS_MAX`].
pub(super) const RETRY_CAP_SECONDS_MAX: u64 = 86_400;

/// Which conversations a channel hears of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// All of the tenant's.
    #[default]
    All,
    /// Those that name the channel.
    Linked,
}

/// The unit of a [`RateLimit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Per {
    /// `/s`
    Second,
    /// `/m`
    Minute,
}

/// At most so many deliveries in a unit of time; written `80/s` or `1000/m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RateLimit {
    /// How many.
    pub count: u64,
    /// In which time.
    pub per: Per,
}

impl RateLimit {
    /// From a text like `80/s` or `1000/m`.
    pub fn parse(text: &str) -> Option<Self> {
        let (count, unit) = text.split_once('/')?;
        let per = match unit {
            "s" => Per::Second,
            "m" => Per::Minute,
            _ => return None,
        };
        let plain = count.bytes().all(|b| b.is_ascii_digit());
        let count = plain.then(|| count.parse().ok()).flatten()?;
        (1..=RATE_MAX).contains(&count).then_some(Self { count, per })
    }
}

impl fmt::Display for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.per {
            Per::Second => 's',
            Per::Minute => 'm',
        };
        write!(f, "{}/{unit}", self.count)
    }
}

impl Serialize for RateLimit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RateLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("not a rate like 80/s or 1000/m"))
    }
}

/// How often and how patiently a delivery is tried; what is left out has the server's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Retry {
    /// Attempts in all, the first one included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u64>,
    /// The pause after the first attempt, in seconds; later ones are longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_seconds: Option<u64>,
    /// The longest pause, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap_seconds: Option<u64>,
}

/// What a tenant says of a new channel: untrusted until [`NewChannel::checked`].
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NewChannel {
    /// 1 to 256 bytes without control characters.
    pub name: String,
    /// Where deliveries go.
    pub url: String,
    /// The event types it hears of; `None` for all.
    pub types: Option<Vec<String>>,
    /// The conversations it hears of.
    pub conversations: Option<Scope>,
    /// Deliveries in flight at once on one node; `None` for the tier's default.
    pub max_in_flight: Option<u64>,
    /// Like `80/s` or `1000/m`; `None` for no limit.
    pub rate_limit: Option<String>,
    /// How often and how patiently it is tried.
    pub retry: Option<Retry>,
    /// Headers that every delivery carries.
    pub headers: Option<BTreeMap<String, String>>,
    /// Whether a conversation's deliveries come one after the other.
    pub ordered: Option<bool>,
}

impl fmt::Debug for NewChannel {
    /// Only the name: URLs and headers carry credentials of their own.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("NewChannel");
        shown.field("name", &self.name).finish_non_exhaustive()
    }
}

/// What a tenant changes of a channel; fields that are left out stay, `null` gives the default.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the fields are those of NewChannel")]
pub struct ChannelPatch {
    pub name: Option<String>,
    pub url: Option<String>,
    pub types: Edit<Vec<String>>,
    pub conversations: Edit<Scope>,
    pub max_in_flight: Edit<u64>,
    pub rate_limit: Edit<String>,
    pub retry: Edit<Retry>,
    pub headers: Edit<BTreeMap<String, String>>,
    pub ordered: Edit<bool>,
    pub status: Option<ChannelStatus>,
}

impl fmt::Debug for ChannelPatch {
    /// Only the name and status: URLs and headers carry credentials of their own.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ChannelPatch");
        shown.field("name", &self.name).field("status", &self.status);
        shown.finish_non_exhaustive()
    }
}

/// The settings of a channel, checked.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// The name that the tenant gave it.
    pub name: String,
    /// Where deliveries go.
    pub url: String,
    /// The event types it hears of; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub types: Option<Vec<String>>,
    /// The conversations it hears of.
    #[serde(default)]
    pub conversations: Scope,
    /// Deliveries in flight at once on one node; `None` for the tier's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<u64>,
    /// How many deliveries in which time; `None` for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
    /// How often and how patiently it is tried; `None` for the server's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// Headers that every delivery carries.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Whether a conversation's deliveries come one after the other.
    #[serde(default)]
    pub ordered: bool,
}

impl fmt::Debug for Settings {
    /// Without URL and headers, which carry credentials of their own.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Settings");
        shown.field("name", &self.name).field("types", &self.types);
        shown.field("conversations", &self.conversations);
        shown.finish_non_exhaustive()
    }
}

impl NewChannel {
    /// The settings, or everything that is wrong with them.
    ///
    /// # Errors
    /// [`Invalid`] with every fault.
    pub fn checked(self) -> Result<Settings, Invalid> {
        let mut faults = Faults::default();
        faults.note_if("/name", check_name(&self.name));
        faults.note_if("/url", check_url(&self.url));
        check_types(self.types.as_deref(), &mut faults);
        if let Some(cap) = self.max_in_flight {
            faults.note_if("/maxInFlight", check_range(cap, 1, IN_FLIGHT_MAX));
        }
        let rate_limit = self.rate_limit.as_deref().map(RateLimit::parse);
        if rate_limit == Some(None) {
            let form = format!("must be like 80/s or 1000/m, from 1 to {RATE_MAX}");
            faults.note("/rateLimit", form);
        }
        check_retry(self.retry.unwrap_or_default(), &mut faults);
        let headers = self.headers.unwrap_or_default();
        check_headers(&headers, &mut faults);
        faults.or(Settings {
            name: self.name,
            url: self.url,
            types: self.types,
            conversations: self.conversations.unwrap_or_default(),
            max_in_flight: self.max_in_flight,
            rate_limit: rate_limit.flatten(),
            retry: self.retry,
            headers,
            ordered: self.ordered.unwrap_or_default(),
        })
    }
}

impl Settings {
    /// These settings after a change.
    ///
    /// # Errors
    /// [`Invalid`] with everything that is wrong with them then.
    pub fn patched(self, patch: ChannelPatch) -> Result<Self, Invalid> {
        let rate_limit = self.rate_limit.map(|rate| rate.to_string());
        NewChannel {
            name: patch.name.unwrap_or(self.name),
            url: patch.url.unwrap_or(self.url),
            types: patch.types.onto(self.types),
            conversations: patch.conversations.onto(Some(self.conversations)),
            max_in_flight: patch.max_in_flight.onto(self.max_in_flight),
            rate_limit: patch.rate_limit.onto(rate_limit),
            retry: patch.retry.onto(self.retry),
            headers: patch.headers.onto(Some(self.headers)),
            ordered: patch.ordered.onto(Some(self.ordered)),
        }
        .checked()
    }
}

fn check_types(types: Option<&[String]>, faults: &mut Faults) {
    let Some(types) = types else { return };
    if types.is_empty() || types.len() > TYPES_MAX {
        let count =
            format!("must have 1 to {TYPES_MAX} entries; leave it out to hear of all types");
        return faults.note("/types", count);
    }
    for (index, kind) in types.iter().enumerate() {
        if !is_type(kind) {
            let form = format!("must be 1 to {NAME_BYTES_MAX} characters of {TYPE_CHARACTERS}");
            faults.note(format!("/types/{index}"), form);
        }
    }
}

fn check_retry(retry: Retry, faults: &mut Faults) {
    if let Some(attempts) = retry.max_attempts {
        let range = check_range(attempts, 1, ATTEMPTS_MAX);
        faults.note_if("/retry/maxAttempts", range);
    }
    let base = retry.base_seconds.unwrap_or(1);
    let range = check_range(base, 1, RETRY_BASE_SECONDS_MAX);
    faults.note_if("/retry/baseSeconds", range);
    if let Some(cap) = retry.cap_seconds {
        let range = check_range(cap, base.max(1), RETRY_CAP_SECONDS_MAX);
        faults.note_if("/retry/capSeconds", range);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn checked(fields: &Value) -> Result<Settings, Invalid> {
        parsed(fields).checked()
    }

    fn parsed(fields: &Value) -> NewChannel {
        let mut body = json!({"name": "orders", "url": "https://example.com/hook"});
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        serde_json::from_value(body).unwrap()
    }

    fn pointers(invalid: Invalid) -> Vec<String> {
        invalid.faults.into_iter().map(|fault| fault.pointer).collect()
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let settings = checked(&json!({"unknown": 1})).unwrap();
        assert_eq!(settings.conversations, Scope::All);
        assert!(!settings.ordered && settings.headers.is_empty());
        assert_eq!((settings.types, settings.max_in_flight), (None, None));
        assert_eq!((settings.rate_limit, settings.retry), (None, None));
    }

    #[test]
    fn values_at_their_bounds_pass() {
        let longest = "t".repeat(NAME_BYTES_MAX);
        for fields in [
            json!({"types": ["message", "order.created", "A_1", "a-b", longest]}),
            json!({"types": vec!["t"; TYPES_MAX]}),
            json!({"conversations": "linked", "ordered": true}),
            json!({"maxInFlight": 1}),
            json!({"maxInFlight": 1000}),
            json!({"rateLimit": "1/s"}),
            json!({"rateLimit": "100000/m"}),
            json!({"retry": {}}),
            json!({"retry": {"maxAttempts": 20, "baseSeconds": 3600, "capSeconds": 86400}}),
            json!({"retry": {"maxAttempts": 1, "baseSeconds": 1, "capSeconds": 1}}),
            json!({"headers": {"Authorization": "Bearer x"}}),
            json!({"types": null, "headers": null, "rateLimit": null}),
        ] {
            assert!(checked(&fields).is_ok(), "{fields}");
        }
    }

    #[test]
    fn every_field_is_checked_and_named() {
        let longer = "t".repeat(NAME_BYTES_MAX + 1);
        for (fields, pointer) in [
            (json!({"name": ""}), "/name"),
            (json!({"name": "a\u{0}"}), "/name"),
            (json!({"url": ""}), "/url"),
            (json!({"url": "https://u:p@example.com/"}), "/url"),
            (json!({"types": []}), "/types"),
            (json!({"types": vec!["t"; TYPES_MAX + 1]}), "/types"),
            (json!({"types": ["ok", "a b"]}), "/types/1"),
            (json!({"types": [""]}), "/types/0"),
            (json!({"types": [longer]}), "/types/0"),
            (json!({"maxInFlight": 0}), "/maxInFlight"),
            (json!({"maxInFlight": 1001}), "/maxInFlight"),
            (json!({"rateLimit": "0/s"}), "/rateLimit"),
            (json!({"rateLimit": "100001/s"}), "/rateLimit"),
            (json!({"rateLimit": "5/h"}), "/rateLimit"),
            (json!({"rateLimit": "+5/s"}), "/rateLimit"),
            (json!({"rateLimit": "/s"}), "/rateLimit"),
            (json!({"rateLimit": "5"}), "/rateLimit"),
            (json!({"retry": {"maxAttempts": 0}}), "/retry/maxAttempts"),
            (json!({"retry": {"maxAttempts": 21}}), "/retry/maxAttempts"),
            (json!({"retry": {"baseSeconds": 0}}), "/retry/baseSeconds"),
            (json!({"retry": {"baseSeconds": 9, "capSeconds": 8}}), "/retry/capSeconds"),
            (json!({"retry": {"capSeconds": 86401}}), "/retry/capSeconds"),
            (json!({"headers": {"Host": "x"}}), "/headers/Host"),
        ] {
            assert_eq!(pointers(checked(&fields).unwrap_err()), [pointer], "{fields}");
        }
    }

    #[test]
    fn faults_of_several_fields_are_told_together() {
        let fields = json!({"name": "", "url": "x", "maxInFlight": 0});
        let faults = pointers(checked(&fields).unwrap_err());
        assert_eq!(faults, ["/name", "/url", "/maxInFlight"]);
    }

    #[test]
    fn wrong_types_and_unknown_words_do_not_parse() {
        for body in [
            r#"{"name": 1}"#,
            r#"{"conversations": "some"}"#,
            r#"{"maxInFlight": -1}"#,
            r#"{"maxInFlight": 1.5}"#,
            r#"{"ordered": "yes"}"#,
            r#"{"headers": {"a": 1}}"#,
        ] {
            assert!(serde_json::from_str::<NewChannel>(body).is_err(), "{body}");
        }
        assert!(serde_json::from_str::<ChannelPatch>(r#"{"status": "deleted"}"#).is_err());
    }

    #[test]
    fn a_change_keeps_clears_and_sets() {
        let fields =
            json!({"rateLimit": "80/s", "types": ["a"], "ordered": true, "maxInFlight": 5});
        let settings = checked(&fields).unwrap();
        let patch = json!({"types": null, "ordered": null, "maxInFlight": 6, "name": "other"});
        let patch: ChannelPatch = serde_json::from_value(patch).unwrap();
        let patched = settings.clone().patched(patch).unwrap();
        assert_eq!((&*patched.name, &patched.url), ("other", &settings.url));
        assert_eq!((patched.types.clone(), patched.ordered), (None, false));
        assert_eq!((patched.max_in_flight, patched.rate_limit), (Some(6), settings.rate_limit));

        let bad: ChannelPatch = serde_json::from_value(json!({"url": "ftp://x"})).unwrap();
        assert_eq!(pointers(patched.patched(bad).unwrap_err()), ["/url"]);
    }

    #[test]
    fn debug_output_shows_no_url_and_no_header() {
        let fields =
            json!({"url": "https://example.com/token-1", "headers": {"Authorization": "token-2"}});
        let settings = checked(&fields).unwrap();
        assert!(!format!("{settings:?}").contains("token-"));
    }
}
