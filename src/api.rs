//! The doors.
//! a
//! b

pub mod frame;
pub mod listen;
pub mod problem;
pub mod tokens;
