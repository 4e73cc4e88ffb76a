//! Forebay: an event-sourced messaging backbone. A durable log stands in front of Postgres.
//!
//! The rooms in reading order; `docs/ARCHITECTURE.md` is the map. Imports point down only.

#![forbid(unsafe_code)]

#[cfg(all(feature = "broken", not(debug_assertions)))]
compile_error!(
    "the feature `broken` is for the self-test of the chaos run and must not be in a release build"
);

// Floor 0: words.
pub mod clock;
pub mod event;
pub mod metrics;

// Floor 1: machinery.
pub mod admission;
pub mod lifecycle;
pub mod readiness;

// Floor 2: places.
pub mod log;
pub mod store;

// Floor 3: knowledge.
pub mod directory;
pub mod journal;

// Floor 4: flows.
pub mod delivery;
pub mod history;
pub mod ingest;
pub mod live;
pub mod operate;
pub mod projection;
pub mod routing;

// Floor 5: doors.
pub mod api;

// Floor 6: wiring.
pub mod bench;
pub mod cli;
pub mod client;
pub mod config;
pub mod load;
pub mod receiver;
pub mod sandbox;
pub mod telemetry;
