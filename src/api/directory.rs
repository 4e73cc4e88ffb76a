//! The calls that change the directory: tenants and keys for the operator, channels for tenants.
//! Promises that a secret is shown by the answer that made it and by no other.
//! Does not check names, quotas and settings; the directory does.

pub(super) mod channels;
pub(super) mod tenants;

use std::sync::Arc;
use std::time::Duration;

use super::access::Doorkeeper;
use super::frame::request::Seeds;
use super::problem::{Code, Fault, Problem};
use crate::clock::Clock;
use crate::delivery::Deliveries;
use crate::directory::{self, Directory, When};
use crate::journal::Journal;
use crate::operate::redelivery::Redelivery;

/// How long a change of the directory may take.
const WRITE_DEADLINE: Duration = Duration::from_secs(2);

/// What these two families can touch.
#[derive(Clone, Debug)]
pub(super) struct Desk {
    pub(super) doorkeeper: Arc<Doorkeeper>,
    pub(super) directory: Directory,
    pub(super) journal: Journal,
    pub(super) clock: Clock,
    pub(super) seeds: Seeds,
    pub(super) deliveries: Option<Deliveries>,
    pub(super) redelivery: Redelivery,
}

impl Desk {
    fn when(&self) -> When {
        When { now: self.clock.timestamp(), deadline: self.clock.now() + WRITE_DEADLINE }
    }
}

/// What the directory did not do, as a problem.
fn directory_problem(error: directory::Error) -> Problem {
    let cause = crate::lifecycle::chain(&error);
    match error {
        directory::Error::Invalid(invalid) => {
            let fault =
                |fault: directory::Fault| Fault { pointer: fault.pointer, detail: fault.detail };
            let faults = invalid.faults.into_iter().map(fault).collect();
            Problem::new(Code::InvalidMessage, "A field breaks a rule.").with_faults(faults)
        }
        directory::Error::NotFound(noun) => {
            Problem::new(Code::NotFound, format!("There is no such {noun}."))
        }
        directory::Error::Limit { noun, max } => Problem::new(
            Code::PayloadTooLarge,
            format!("There are {max} {noun}s already, the most that there may be."),
        ),
        directory::Error::Conflict => {
            Problem::new(Code::Unavailable, "Others changed the same thing at the same time.")
        }
        directory::Error::Unavailable(_) | directory::Error::Unseen => Problem::new(
            Code::LogUnavailable,
            "The directory did not answer in time. The change may have been stored.",
        )
        .with_cause(cause),
        directory::Error::Unreadable(..) => Problem::internal(cause),
    }
}
