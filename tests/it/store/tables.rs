//! Writing and reading back: exactly once, whatever is repeated, and what cannot be written.
