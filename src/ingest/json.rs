//! Pure: checks the JSON and the text of strangers before they may become content of an event.
//! Promises that what passes is valid JSON within the limits, and that Postgres can store it as `jsonb` or `text`.
//! Does not build a tree, convert a number or change a byte: the text is kept as it was sent.
//!
//! Two liberties of JSON are kept: an object may repeat a key (`jsonb` keeps the last value, the log keeps the
//! text), and a number may be finer or larger than an IEEE double (`jsonb` stores it as `numeric`). `-0` passes;
//! `jsonb` makes it 0.

use crate::event::Json;
use crate::event::limits::{JSON_DEPTH_MAX, JSON_EXPONENT_MAX, JSON_NUMBER_CHARS_MAX};

/// Why a text cannot be content. Positions are bytes from the start of the checked text, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// It is longer than its limit.
    #[error("is longer than {max} bytes")]
    TooLong {
        /// The limit, in bytes.
        max: usize,
    },
    /// It is not JSON (RFC 8259).
    #[error("is not valid JSON at byte {at}")]
    Malformed {
        /// The first byte that does not fit, or the length of a text that ends too early.
        at: usize,
    },
    /// Arrays and objects are nested too deeply.
    #[error("is nested deeper than {JSON_DEPTH_MAX} levels at byte {at}")]
    TooDeep {
        /// The bracket that goes too far.
        at: usize,
    },
    /// A string or key holds U+0000, which Postgres stores in no text.
    #[error("holds U+0000 at byte {at}")]
    NullCharacter {
        /// The character or its escape.
        at: usize,
    },
    /// A string or key holds an escaped half of a surrogate pair, which is no Unicode character.
    #[error("holds half of a surrogate pair at byte {at}")]
    LoneSurrogate {
        /// Its escape.
        at: usize,
    },
    /// A number has more characters or a larger exponent than is stored.
    #[error(
        "has a number beyond {JSON_NUMBER_CHARS_MAX} characters or an exponent of {JSON_EXPONENT_MAX} at byte {at}"
    )]
    Number {
        /// Its first character.
        at: usize,
    },
    /// Its exponents add up to more digits than its length limit has bytes.
    ///
    /// `jsonb` writes a number out: 126 KB of `1e400,` come back as 8.4 MB.
    #[error("has numbers that take more than {max} digits when they are written out")]
    Expansion {
        /// The limit, in digits.
        max: usize,
    },
}

/// Checks a JSON text and keeps it as it is.
///
/// Linear in time, without recursion; only the result is allocated.
///
/// # Errors
/// The first [`Reason`] why it cannot be stored.
pub fn check(raw: &str, bytes_max: usize) -> Result<Json, Reason> {
    if raw.len() > bytes_max {
        return Err(Reason::TooLong { max: bytes_max });
    }
    let mut scanner = Scanner::new(raw.as_bytes());
    scanner.document()?;
    if scanner.exponents > bytes_max {
        return Err(Reason::Expansion { max: bytes_max });
    }
    Ok(Json::from_checked(raw))
}

/// Checks a plain text.
///
/// # Errors
/// [`Reason::TooLong`] or [`Reason::NullCharacter`].
pub fn text(text: &str, bytes_max: usize) -> Result<(), Reason> {
    if text.len() > bytes_max {
        return Err(Reason::TooLong { max: bytes_max });
    }
    text.find('\0').map_or(Ok(()), |at| Err(Reason::NullCharacter { at }))
}

/// Walks over a JSON text once. The input is UTF-8, so bytes from 0x80 only occur inside of strings.
struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Invariant: at most [`JSON_DEPTH_MAX`].
    depth: usize,
    /// One bit a level, the innermost lowest: set for an object. Wide enough, as asserted below.
    objects: u64,
    /// Sum of the absolute exponents so far: by how many digits the text grows when numbers are written out.
    exponents: usize,
}

const _: () = assert!(JSON_DEPTH_MAX <= 64, "one bit a level");

/// What follows in the text once a piece of it was read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Value,
    AfterValue,
}

impl<'a> Scanner<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, depth: 0, objects: 0, exponents: 0 }
    }

    fn document(&mut self) -> Result<(), Reason> {
        let mut next = Next::Value;
        loop {
            self.space();
            next = match next {
                Next::Value => self.value()?,
                Next::AfterValue if self.depth > 0 => self.after_value()?,
                Next::AfterValue if self.at == self.bytes.len() => return Ok(()),
                Next::AfterValue => return self.malformed(),
            };
        }
    }

    /// Reads a scalar, or the opening of an array or object up to its first value.
    fn value(&mut self) -> Result<Next, Reason> {
        match self.peek() {
            Some(b'"') => self.string()?,
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(b't') => self.word(b"true")?,
            Some(b'f') => self.word(b"false")?,
            Some(b'n') => self.word(b"null")?,
            Some(b'[') => {
                self.open(0)?;
                if self.peek() != Some(b']') {
                    return Ok(Next::Value);
                }
                self.close();
            }
            Some(b'{') => {
                self.open(1)?;
                if self.peek() != Some(b'}') {
                    self.key()?;
                    return Ok(Next::Value);
                }
                self.close();
            }
            _ => return self.malformed(),
        }
        Ok(Next::AfterValue)
    }

    /// Inside of an array or object: reads a comma with the key that follows it, or the closing bracket.
    fn after_value(&mut self) -> Result<Next, Reason> {
        let in_object = self.objects & 1 == 1;
        match (self.peek(), in_object) {
            (Some(b','), false) => {
                self.at += 1;
                Ok(Next::Value)
            }
            (Some(b','), true) => {
                self.at += 1;
                self.space();
                self.key()?;
                Ok(Next::Value)
            }
            (Some(b'}'), true) | (Some(b']'), false) => {
                self.close();
                Ok(Next::AfterValue)
            }
            _ => self.malformed(),
        }
    }

    fn open(&mut self, object: u64) -> Result<(), Reason> {
        if self.depth == JSON_DEPTH_MAX {
            return Err(Reason::TooDeep { at: self.at });
        }
        self.at += 1;
        self.depth += 1;
        self.objects = self.objects << 1 | object;
        self.space();
        Ok(())
    }

    fn close(&mut self) {
        self.at += 1;
        self.depth -= 1;
        self.objects >>= 1;
    }

    fn key(&mut self) -> Result<(), Reason> {
        if self.peek() != Some(b'"') {
            return self.malformed();
        }
        self.string()?;
        self.space();
        self.byte(b':')
    }

    /// From the opening quote over the closing one.
    fn string(&mut self) -> Result<(), Reason> {
        self.at += 1;
        loop {
            let rest = &self.bytes[self.at..];
            let plain = |b: u8| b >= 0x20 && b != b'"' && b != b'\\';
            self.at += rest.iter().position(|b| !plain(*b)).unwrap_or(rest.len());
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.escape()?,
                _ => return self.malformed(),
            }
        }
    }

    fn escape(&mut self) -> Result<(), Reason> {
        let start = self.at;
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 1;
                return Ok(());
            }
            Some(b'u') => self.at += 1,
            _ => return self.malformed(),
        }
        match self.hex4()? {
            0 => Err(Reason::NullCharacter { at: start }),
            0xd800..0xdc00 => {
                if !self.bytes[self.at..].starts_with(b"\\u") {
                    return Err(Reason::LoneSurrogate { at: start });
                }
                self.at += 2;
                match self.hex4()? {
                    0xdc00..0xe000 => Ok(()),
                    _ => Err(Reason::LoneSurrogate { at: start }),
                }
            }
            0xdc00..0xe000 => Err(Reason::LoneSurrogate { at: start }),
            _ => Ok(()),
        }
    }

    fn hex4(&mut self) -> Result<u32, Reason> {
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|b| char::from(b).to_digit(16));
            let Some(digit) = digit else {
                return self.malformed();
            };
            unit = unit << 4 | digit;
            self.at += 1;
        }
        Ok(unit)
    }

    fn number(&mut self) -> Result<(), Reason> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        let mut exponent = &self.bytes[..0];
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            let first = self.at;
            self.digits()?;
            exponent = &self.bytes[first..self.at];
        }
        let exponent = magnitude(exponent);
        if self.at - start > JSON_NUMBER_CHARS_MAX || exponent > JSON_EXPONENT_MAX {
            return Err(Reason::Number { at: start });
        }
        self.exponents += exponent as usize;
        Ok(())
    }

    /// One digit or more.
    fn digits(&mut self) -> Result<(), Reason> {
        let first = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at == first {
            return self.malformed();
        }
        Ok(())
    }

    fn word(&mut self, word: &[u8]) -> Result<(), Reason> {
        word.iter().try_for_each(|expected| self.byte(*expected))
    }

    fn byte(&mut self, expected: u8) -> Result<(), Reason> {
        if self.peek() != Some(expected) {
            return self.malformed();
        }
        self.at += 1;
        Ok(())
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn malformed<T>(&self) -> Result<T, Reason> {
        Err(Reason::Malformed { at: self.at })
    }
}

/// The value of decimal digits, with everything beyond the range as its end.
fn magnitude(digits: &[u8]) -> u32 {
    digits.iter().fold(0_u32, |value, digit| {
        value.saturating_mul(10).saturating_add(u32::from(digit - b'0'))
    })
}

#[cfg(test)]
mod tests;
