//! What keeps an installation in order: the janitor of the log, and the comparison of Postgres with the log.
//! Promises that nothing is deleted from the log before Postgres has it and its time has passed.
//! Does not project; `projection` does.

pub mod failback;
pub mod janitor;
pub mod redelivery;
pub mod verify;
pub mod watch;
