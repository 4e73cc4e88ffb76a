//! The doors, over HTTP, with everything behind them.

mod access;
mod conversations;
mod messages;
mod outside;
mod pressure;
mod refusals;
mod slow;
