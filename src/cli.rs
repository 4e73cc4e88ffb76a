//! The command line: one file a command.
//! Promises the documented exit codes and that only this room prints.
//! Does not decide anything that a flow could decide.

pub mod serve;
