//! Filling a second schema from the log and swapping it in.
