//! The gate: who may use one of a counted number of things, and who waits for how long.
//! Promises that at most `capacity` permits are out, that the queue is bounded, and that nobody waits past a deadline.
//! Does not know what a permit is for; the store asks for one before it hands out a connection.
//!
//! Three rules decide, in this order. The priority picks the tier, and debt keeps room for the higher ones. Within a
//! tier the tree of shares picks the leaf that has least of what it is due. Within a leaf's queue the oldest is served
//! first while the queue turns over, and the newest first once it stands, because then the oldest are lost anyway.

pub mod bucket;
mod debt;
mod gate;
mod limits;
mod queue;
pub mod scheduler;
mod share;
mod status;
mod window;

use std::time::Duration;

pub use self::gate::{Gate, Permit};
pub use self::queue::WaiterId;
pub use self::status::{ClassStatus, Status};
use crate::event::TenantId;

/// How much it matters that an acquirer is served soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// The health of the service itself.
    Critical,
    /// Somebody waits for one answer: a lookup on the way of a send, a page of history.
    High,
    /// Somebody waits for a long answer: a replay of several pages, an export.
    Medium,
    /// Nobody waits: projection of the past, verification, backfill.
    Low,
}

/// How many priorities there are.
pub const TIERS: usize = 4;

impl Priority {
    /// All of them, the most urgent first.
    pub const ALL: [Self; TIERS] = [Self::Critical, Self::High, Self::Medium, Self::Low];

    /// The place in [`Priority::ALL`].
    pub const fn tier(self) -> usize {
        self as usize
    }
}

/// The branch of the tree of shares at the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// The service's own work: projection, upkeep.
    System,
    /// Tenants of the tier `high`.
    High,
    /// Tenants of the tier `standard`.
    Standard,
    /// Tenants of the tier `bulk`.
    Bulk,
}

/// How many classes there are.
pub const CLASSES: usize = 4;

impl Class {
    /// All of them, in the order in which everything shows them.
    pub const ALL: [Self; CLASSES] = [Self::System, Self::High, Self::Standard, Self::Bulk];

    /// What a class is due against the others when all of them want more than there is. One class down is half of it;
    /// the service's own work counts as much as the best tenants, because without it nobody's history moves.
    pub const fn weight(self) -> u32 {
        match self {
            Self::System | Self::High => 4,
            Self::Standard => 2,
            Self::Bulk => 1,
        }
    }

    /// The place in [`Class::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Through which door a wish came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// A call of REST.
    Rest,
    /// A WebSocket.
    Socket,
    /// A stream of server-sent events.
    Sse,
    /// A webhook that came in.
    Inbound,
    /// An operator's command.
    Operator,
    /// The projection of the log.
    Projector,
}

/// For whom a permit is: a path down the tree of shares, class, tenant, source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The branch at the top.
    pub class: Class,
    /// Whose request it is; `None` for the service's own work.
    pub tenant: Option<TenantId>,
    /// Where it came in.
    pub source: Source,
}

impl Origin {
    /// The service's own work.
    pub const fn system(source: Source) -> Self {
        Self { class: Class::System, tenant: None, source }
    }

    /// A wish of this origin.
    pub const fn at(self, priority: Priority) -> Tag {
        Tag { priority, origin: self }
    }
}

/// What every acquirer is tagged with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// How much it matters that it is served soon.
    pub priority: Priority,
    /// For whom it is.
    pub origin: Origin,
}

/// Why no permit was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Overload {
    /// It waited for longer than the queue is let stand.
    #[error("the queue stands")]
    Queue,
    /// As many wait as may wait; refused at once.
    #[error("the queue is full")]
    QueueFull,
    /// None became free before the deadline.
    #[error("no permit became free before the deadline")]
    Deadline,
    /// There is nothing behind the gate now; refused at once.
    #[error("there is no permit to be had now")]
    ZeroCapacity,
    /// The task has a permit of this gate already; waiting for another could wait for itself.
    #[error("the task holds a permit of the same gate already")]
    Nested,
    /// The server stops.
    #[error("the gate is closed")]
    Closed,
}

/// How many reasons of [`Overload`] there are.
pub const REASONS: usize = 6;

impl Overload {
    /// All of them.
    pub const ALL: [Self; REASONS] = [
        Self::Queue,
        Self::QueueFull,
        Self::Deadline,
        Self::ZeroCapacity,
        Self::Nested,
        Self::Closed,
    ];

    /// The place in [`Overload::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// What a gate is made of.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How many permits there are at first; [`Gate::resize`] changes it.
    pub capacity: usize,
    /// How many may wait; whoever comes later is refused at once.
    pub waiters_max: usize,
    /// Upper bound of the short limit: how long one waits in a queue that stands.
    pub target: Duration,
    /// Upper bound of the long limit: for how long a queue may go without being empty before it counts as standing.
    pub interval: Duration,
    /// Over how long the mean wait is taken.
    pub window: Duration,
    /// The most permits that one tenant may have at a time; [`usize::MAX`] for no bound but the capacity.
    pub tenant_max: usize,
    /// Permits that only one class may have. At most a fifth of the capacity makes sense: they stand idle for others.
    pub reserved: Option<(Class, usize)>,
}
