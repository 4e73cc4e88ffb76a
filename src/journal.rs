//! What a node knows of the log and how it appends to it: per partition one writer and the tail.
//! Promises receipts only after the record's durable acknowledgement, and a gap-free `seq` whatever other nodes do.
//! Does not touch Postgres; what it has forgotten, its callers look up and hand in as a [`Seed`].

pub mod heads;
pub mod sequencer;

pub use heads::{Head, Seed, Status};
pub use sequencer::{Draft, Intent, Receipt, Verdict};
