//! Tests against real services, and the tests of the house itself.
//! One binary: one Postgres and one nats-server serve all of its worlds.
//! Pure tests are beside the code.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::print_stdout,
    missing_docs,
    unreachable_pub,
    clippy::allow_attributes,
    reason = "helpers of tests may do what tests may"
)]

mod api;
mod bucket;
mod cli;
mod delivery;
mod directory;
mod history;
mod ingest;
mod journal;
mod live;
mod operate;
mod projection;
mod sandbox;
mod store;
mod tidy;
mod world;
