//! Pure: why a body was refused: one code for the answer, and every failure with its place.
//! Promises at least one failure and at most [`ERRORS_MAX`], each with a JSON pointer into the body.
//! Does not know HTTP; the door turns a code into a status.

/// Most failures that are collected of one body. Who has more of them mends these first.
pub const ERRORS_MAX: usize = 20;

/// A body that was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body was refused for {} reasons, {code:?} the first", errors.len())]
pub struct Rejected {
    /// The gravest of the failures: `BadRequest` before `TooLarge` before `Invalid`.
    pub code: Code,
    /// The failures in the order in which they were found.
    pub errors: Vec<FieldError>,
}

/// What kind of failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Not UTF-8, not JSON, or a value of the wrong type.
    BadRequest,
    /// Beyond a limit that has a name.
    TooLarge {
        /// The name of the limit, with its unit.
        limit: &'static str,
        /// Its value.
        max: usize,
    },
    /// Well formed, but against a rule.
    Invalid,
}

/// One failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// JSON pointer (RFC 6901) into the body; empty for the body itself and its headers.
    pub pointer: String,
    /// What is wrong with the value there, for a human.
    pub detail: String,
}

impl Code {
    fn gravity(self) -> u8 {
        match self {
            Self::BadRequest => 2,
            Self::TooLarge { .. } => 1,
            Self::Invalid => 0,
        }
    }
}

/// Collects failures.
#[derive(Debug, Default)]
pub(super) struct Faults {
    worst: Option<Code>,
    found: usize,
    errors: Vec<FieldError>,
}

impl Faults {
    pub(super) fn add(&mut self, code: Code, pointer: String, detail: String) {
        if self.worst.is_none_or(|worst| code.gravity() > worst.gravity()) {
            self.worst = Some(code);
        }
        self.found += 1;
        if !self.full() {
            self.errors.push(FieldError { pointer, detail });
        }
    }

    /// How many were found, also beyond those that are kept; to see whether a step added some.
    pub(super) fn found(&self) -> usize {
        self.found
    }

    /// Whether looking for more is in vain.
    pub(super) fn full(&self) -> bool {
        self.errors.len() >= ERRORS_MAX
    }

    /// The value, if nothing was wrong on the way to it.
    pub(super) fn verdict<T>(self, value: Option<T>) -> Result<T, Rejected> {
        match (value, self.worst) {
            (Some(value), None) => Ok(value),
            (_, worst) => {
                Err(Rejected { code: worst.unwrap_or(Code::Invalid), errors: self.errors })
            }
        }
    }
}
