//! From the queues to the subscribers: signed requests, retries, and channels that are out of order kept apart.
//! Promises at least one attempt of every delivery, always under the same id, and that one channel's trouble stays its own.
//! Does not read Postgres and does not write it; outcomes go into the log.

pub mod breaker;
pub mod egress;
pub mod health;
pub mod ramp;
pub mod retry;
pub mod signature;
pub mod slots;
pub mod verdict;
