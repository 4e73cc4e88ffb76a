//! Rebuild.
