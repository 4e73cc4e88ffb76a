//! Pure: reads one field of an untrusted body at a time, and notes what is wrong with it where it stands.
//! Promises that a value that was given out is of its type and within its limit.
//! Does not stop at a failure: it gives out nothing and the next field is read.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::rejected::{Code, Faults};
use crate::event::Json;
use crate::event::limits::NAME_BYTES_MAX;
use crate::ingest::json::{self, Reason};

/// A field as it stands in the body: JSON that is known to be well formed, and nothing more. `null` is no field.
pub(super) type Raw<'a> = Option<&'a RawValue>;

/// A limit with the name that the answer gives it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub(super) name: &'static str,
    pub(super) max: usize,
}

impl Limit {
    pub(super) fn exceeded(self) -> Code {
        Code::TooLarge { limit: self.name, max: self.max }
    }
}

/// Which object of the body the fields belong to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// The body itself.
    Root,
    /// The message of that index in a batch.
    Message(usize),
}

impl Place {
    fn pointer(self, field: &str) -> String {
        let slash = if field.is_empty() { "" } else { "/" };
        match self {
            Self::Root => format!("{slash}{field}"),
            Self::Message(index) => format!("/messages/{index}{slash}{field}"),
        }
    }
}

/// Reads the fields of one object.
#[derive(Debug)]
pub(super) struct Reader<'f> {
    pub(super) place: Place,
    pub(super) faults: &'f mut Faults,
}

impl Reader<'_> {
    /// Notes a failure of a field; the empty name stands for the object itself.
    pub(super) fn fault(&mut self, code: Code, field: &str, detail: impl fmt::Display) {
        let pointer = self.place.pointer(field);
        self.faults.add(code, pointer, detail.to_string());
    }

    /// The body as text, if it has no more than so many bytes and they are UTF-8.
    pub(super) fn utf8<'a>(&mut self, body: &'a [u8], limit: Limit) -> Option<&'a str> {
        if body.len() > limit.max {
            let detail = Reason::TooLong { max: limit.max };
            self.fault(limit.exceeded(), "", detail);
            return None;
        }
        let text = std::str::from_utf8(body);
        text.map_err(|error| {
            let detail = format!("is not UTF-8 at byte {}", error.valid_up_to());
            self.fault(Code::BadRequest, "", detail);
        })
        .ok()
    }

    /// An object with known fields; others are ignored.
    ///
    /// The bracket is looked at first, because the derived code would also take an array for the fields in their order.
    pub(super) fn object<'a, T: Deserialize<'a>>(
        &mut self,
        field: &str,
        text: &'a str,
    ) -> Option<T> {
        let start = text.trim_start_matches([' ', '\t', '\n', '\r']);
        if !start.starts_with('{') {
            self.fault(Code::BadRequest, field, "must be a JSON object");
            return None;
        }
        let object = serde_json::from_str(text);
        object
            .map_err(|error| self.fault(Code::BadRequest, field, format!("is malformed: {error}")))
            .ok()
    }

    /// An array, of which no more than the limit is kept.
    pub(super) fn array<'a, const MAX: usize>(
        &mut self,
        field: &str,
        raw: &'a RawValue,
        limit: &'static str,
    ) -> Option<Vec<&'a RawValue>> {
        let Ok(Firsts { kept, more }) = serde_json::from_str::<Firsts<'_, MAX>>(raw.get()) else {
            self.fault(Code::BadRequest, field, "must be an array");
            return None;
        };
        if more > 0 {
            let name = limit;
            let detail = format!("has {} entries, {MAX} are the most", MAX + more);
            self.fault(Limit { name, max: MAX }.exceeded(), field, detail);
            return None;
        }
        Some(kept)
    }

    /// A string, borrowed from the body unless it has escapes.
    pub(super) fn string<'a>(&mut self, field: &str, raw: &'a RawValue) -> Option<Cow<'a, str>> {
        let quoted = raw.get();
        let Some(inner) = quoted.strip_prefix('"').and_then(|s| s.strip_suffix('"')) else {
            self.fault(Code::BadRequest, field, "must be a string");
            return None;
        };
        if !inner.contains('\\') {
            return Some(Cow::Borrowed(inner));
        }
        // The body was read with its escapes looked at one by one; what is left to fail is a pair of them.
        let unescaped = serde_json::from_str(quoted);
        unescaped
            .map(Cow::Owned)
            .map_err(|_error: serde_json::Error| {
                self.fault(Code::Invalid, field, "holds half of a surrogate pair");
            })
            .ok()
    }

    /// A string that Postgres can store, within a limit that has a name.
    pub(super) fn text(&mut self, field: &str, raw: Raw<'_>, limit: Limit) -> Option<Box<str>> {
        let text = self.string(field, raw?)?;
        let checked = json::text(&text, limit.max);
        checked.map_err(|reason| self.refuse(field, reason, limit)).ok()?;
        Some(text.into())
    }

    /// A name: short, and storable.
    pub(super) fn name(&mut self, field: &str, raw: Raw<'_>) -> Option<Box<str>> {
        let text = self.string(field, raw?)?;
        self.plain_name(field, &text)
    }

    /// The same for a text that stands in no JSON.
    pub(super) fn plain_name(&mut self, field: &str, text: &str) -> Option<Box<str>> {
        let checked = json::text(text, NAME_BYTES_MAX);
        checked.map_err(|reason| self.fault(Code::Invalid, field, reason)).ok()?;
        Some(text.into())
    }

    /// Any JSON value that Postgres can store.
    pub(super) fn json(&mut self, field: &str, raw: Raw<'_>, limit: Limit) -> Option<Json> {
        let checked = json::check(raw?.get(), limit.max);
        checked.map_err(|reason| self.refuse(field, reason, limit)).ok()
    }

    /// The same, when it must be an object.
    pub(super) fn json_object(&mut self, field: &str, raw: Raw<'_>, limit: Limit) -> Option<Json> {
        if raw.is_some_and(|raw| !raw.get().starts_with('{')) {
            self.fault(Code::BadRequest, field, "must be a JSON object");
            return None;
        }
        self.json(field, raw, limit)
    }

    fn refuse(&mut self, field: &str, reason: Reason, limit: Limit) {
        let code = match reason {
            Reason::TooLong { .. } => limit.exceeded(),
            Reason::Malformed { .. } => Code::BadRequest,
            Reason::TooDeep { .. }
            | Reason::NullCharacter { .. }
            | Reason::LoneSurrogate { .. }
            | Reason::Number { .. }
            | Reason::Expansion { .. } => Code::Invalid,
        };
        self.fault(code, field, reason);
    }
}

/// The first entries of an array and how many there are beyond, so that memory has a bound before the limit is checked.
struct Firsts<'a, const MAX: usize> {
    kept: Vec<&'a RawValue>,
    more: usize,
}

impl<'de: 'a, 'a, const MAX: usize> Deserialize<'de> for Firsts<'a, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Entries)
    }
}

struct Entries<const MAX: usize>;

impl<'de, const MAX: usize> Visitor<'de> for Entries<MAX> {
    type Value = Firsts<'de, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut firsts = Firsts { kept: Vec::new(), more: 0 };
        while let Some(entry) = entries.next_element()? {
            if firsts.kept.len() < MAX {
                firsts.kept.push(entry);
            } else {
                firsts.more += 1;
            }
        }
        Ok(firsts)
    }
}
