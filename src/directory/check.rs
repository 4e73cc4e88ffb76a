//! Pure: what is wrong with a value that somebody sent, field by field.
//! Promises to name every fault up to a bound, each with the JSON pointer of its field.
//! Does not decide how a fault is answered; doors do.

use serde::{Deserialize, Deserializer};

use crate::event::limits::NAME_BYTES_MAX;

/// More faults than this in one value are not listed: whoever sends so many does not read them.
const FAULTS_MAX: usize = 20;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// JSON pointer (RFC 6901) of the field.
    pub pointer: String,
    /// What it must be, as a text for the sender.
    pub detail: String,
}

/// Everything that is wrong with one value; never empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} field(s) are not acceptable", faults.len())]
pub struct Invalid {
    /// What is wrong, in the order of the fields.
    pub faults: Vec<Fault>,
}

/// Gathers faults while a value is checked.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    /// Notes that the field at `pointer` is wrong.
    pub(super) fn note(&mut self, pointer: impl Into<String>, detail: impl Into<String>) {
        if self.0.len() < FAULTS_MAX {
            self.0.push(Fault { pointer: pointer.into(), detail: detail.into() });
        }
    }

    /// Notes the fault of a part, if it has one.
    pub(super) fn note_if(&mut self, pointer: impl Into<String>, fault: Result<(), String>) {
        if let Err(detail) = fault {
            self.note(pointer, detail);
        }
    }

    /// Ends the check: the value, or what is wrong with it.
    pub(super) fn or<T>(self, value: T) -> Result<T, Invalid> {
        if self.0.is_empty() { Ok(value) } else { Err(Invalid { faults: self.0 }) }
    }
}

/// The rule for the names that people give to tenants and channels.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(format!("must have 1 to {NAME_BYTES_MAX} bytes"));
    }
    if name.chars().any(char::is_control) {
        return Err("must not contain control characters".to_owned());
    }
    if name.trim().is_empty() {
        return Err("must not be blank".to_owned());
    }
    Ok(())
}

/// The rule for a number within bounds.
pub(super) fn check_range(number: u64, min: u64, max: u64) -> Result<(), String> {
    if (min..=max).contains(&number) {
        Ok(())
    } else {
        Err(format!("must be a number from {min} to {max}"))
    }
}

/// What a change asks for one field: a field that is left out is kept, `null` clears it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Edit<T> {
    /// The field stays as it is.
    #[default]
    Keep,
    /// The field gets its default.
    Clear,
    /// The field gets this value.
    Set(T),
}

impl<T> Edit<T> {
    /// The field after the change.
    pub fn onto(self, present: Option<T>) -> Option<T> {
        match self {
            Self::Keep => present,
            Self::Clear => None,
            Self::Set(value) => Some(value),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Edit<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(deserializer)?.map_or(Self::Clear, Self::Set))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_visible() {
        for name in ["a", "Ünïcode GmbH 🚰", " padded ", &"n".repeat(256)] {
            assert_eq!(check_name(name), Ok(()), "{name:?}");
        }
        for name in ["", " ", "\u{3000}", "a\0b", "a\nb", "a\u{85}", "\u{7f}", &"n".repeat(257)] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn faults_are_gathered_up_to_the_bound() {
        let mut faults = Faults::default();
        for n in 0..FAULTS_MAX + 5 {
            faults.note(format!("/{n}"), "no");
        }
        assert_eq!(faults.or(()).unwrap_err().faults.len(), FAULTS_MAX);
        assert_eq!(Faults::default().or(7), Ok(7));
    }

    #[test]
    fn an_edit_tells_absent_from_null() {
        #[derive(Deserialize)]
        struct Patch {
            #[serde(default)]
            field: Edit<u8>,
        }
        let cases = [("{}", Some(1)), (r#"{"field":null}"#, None), (r#"{"field":2}"#, Some(2))];
        for (json, after) in cases {
            let patch: Patch = serde_json::from_str(json).unwrap();
            assert_eq!(patch.field.onto(Some(1)), after, "{json}");
        }
    }
}
