//! Forebay: an event-sourced messaging backbone. A durable log stands in front of Postgres.
//!
//! The rooms in reading order; `docs/ARCHITECTURE.md` is the map. Imports point down only.

#![forbid(unsafe_code)]

// Floor 0: words.
pub mod clock;
pub mod event;

// Floor 1: machinery.
pub mod lifecycle;

// Floor 3: knowledge.
pub mod journal;

// Floor 6: wiring.
pub mod bench;
pub mod load;
