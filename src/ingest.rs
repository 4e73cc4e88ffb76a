//! Sends: from a stranger's request to a checked draft, within the tenant's quota, to a receipt of the log.
//! Promises that nothing reaches the log that the log, Postgres or a reader could not take.
//! Does not touch Postgres, except to ask for a conversation or key that memory has forgotten.

pub mod draft;
pub mod json;
pub mod quota;

pub use draft::{Checked, Opened, Rejected, Request};
pub use quota::{Policy, Quota};
