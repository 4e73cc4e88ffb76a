//! Simulations: pure cores under load, with a virtual clock and seeded chance. No services, no runtime.
//! Every figure is printed (`cargo test --test sim -- --nocapture`) and every bound asserted.
//! Arrivals come at random times that do not depend on the answers: callers who wait for an answer hide a collapse.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    missing_docs,
    unreachable_pub,
    clippy::allow_attributes,
    reason = "helpers of tests may do what tests may; figures are for reading"
)]

mod pool;

mod overload;

mod priority;

mod shares;

mod allocations;
