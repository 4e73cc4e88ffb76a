//! Live: conversations as they happen, on sockets and streams.
//! Promises that a connection gets n+1 only after n, or was told of the gap before.
//! Does not write frames or ask Postgres: the doors do, as a session tells them.
//!
//! Server: [`session`] decides, over [`backlog`] (frames that are held), [`reach`] (what was sent), [`gap`] (what is
//! missing) and its refill (when to try again); [`command`] has the words it shares with the doors. Client: [`reader`].

pub mod backlog;
pub mod command;
pub mod frame;
pub mod gap;
pub mod hub;
pub mod inbox;
pub mod reach;
pub mod reader;
pub mod session;
pub mod whisper;

pub use command::{Cause, Close, Command, Join, Live, Page, Refused, State, Status};
pub use session::Session;

#[cfg(test)]
mod tests;
