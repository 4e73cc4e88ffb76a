//! What a node knows of the log and how it appends to it: per partition one writer and the tail.
//! Promises receipts only after the record's durable acknowledgement, and a gap-free `seq` whatever other nodes do.
//! Does not touch Postgres; what it has forgotten, its callers look up and hand in as a [`Seed`].

pub mod draft;
pub mod fold;
pub mod heads;
pub mod keys;
pub mod ring;
pub mod sequencer;
mod staging;
pub mod turns;

pub use draft::{Draft, Intent, Receipt, Unanswered, Verdict};
pub use heads::{Head, Seed, Status, Stored};
