//! Pure: the form of an event's type, for whoever sends one and for whoever asks for one.
//! Promises that a channel can ask for every type that a message can have.
//! Does not know which of that form are the server's own.

use super::limits::NAME_BYTES_MAX;

/// What a type is made of, as a client is told.
pub const TYPE_CHARACTERS: &str = "A-Z a-z 0-9 _ . -";

/// Whether a text has the form of a type.
pub fn is_type(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_short_and_plain() {
        for text in ["message", "order.created", "a-b", "A_1", &"t".repeat(NAME_BYTES_MAX)] {
            assert!(is_type(text), "{text}");
        }
        for text in ["", "a b", "ä", "a/b", "a\0", &"t".repeat(NAME_BYTES_MAX + 1)] {
            assert!(!is_type(text), "{text:?}");
        }
    }
}
