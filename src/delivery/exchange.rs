//! One exchange with a receiver: where it may go, how it is signed, what comes of it and what follows.
//! Promises a typed reason for every failure, in bounded time and memory.
//! Does not know queues, slots or breakers.

pub mod attempt;
mod connect;
pub mod egress;
pub mod retry;
pub mod signature;
pub mod verdict;
