//! Which of two databases is used, and the operator's wish to return to the first.
//! Promises an answer at once: the pools prepare and switch by themselves.
//! Does not decide to leave a database; the detector of the store does.

use crate::store::Interactive;

/// Which database is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Active {
    /// The one where requests belong.
    Primary,
    /// The other one.
    Failback,
}

impl Active {
    /// The word in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Failback => "failback",
        }
    }
}

/// The operator's hand on the choice of the database. Both pools always choose together. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Failback(Interactive);

impl Failback {
    /// The hand on these pools, by way of one of them.
    pub fn new(pool: Interactive) -> Self {
        Self(pool)
    }

    /// Which database is used now.
    pub fn active(&self) -> Active {
        if self.0.status().uses_failback { Active::Failback } else { Active::Primary }
    }

    /// Whether there is another database at all.
    pub fn has_other(&self) -> bool {
        self.0.has_failback()
    }

    /// Lets the pools return to the primary as soon as they have connections to it, if they are not there.
    ///
    /// Idempotent: a wish that is being carried out is not repeated.
    pub fn return_to_primary(&self) {
        self.0.return_to_primary();
    }
}
