//! Pure: the values that labels of metrics can have.
//! Promises that each enum lists all of its values with their label, each at the place of its own number.
//! Does not know what is counted by them.

/// Why a send was refused before anything was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The content breaks a rule or a limit.
    Invalid,
    /// The tenant's send quota is used up.
    Quota,
    /// The append queue is full, or what waits in it is too old.
    QueueFull,
    /// The log did not acknowledge in time.
    Log,
    /// The conversation or key is only in Postgres, and Postgres cannot be asked.
    Database,
    /// The conversation is closed.
    Closed,
    /// There is no such conversation.
    NotFound,
    /// The same key was used with another payload.
    KeyConflict,
    /// The server drains or starts.
    Unavailable,
    /// A bug.
    Internal,
}

impl Refusal {
    /// All of them with their label, each at the place of its own number.
    pub const ALL: [(Self, &'static str); 10] = [
        (Self::Invalid, "invalid"),
        (Self::Quota, "quota"),
        (Self::QueueFull, "queue_full"),
        (Self::Log, "log"),
        (Self::Database, "database"),
        (Self::Closed, "closed"),
        (Self::NotFound, "not_found"),
        (Self::KeyConflict, "key_conflict"),
        (Self::Unavailable, "unavailable"),
        (Self::Internal, "internal"),
    ];
}

/// The calls that requests are counted by; a family of calls that nobody watches apart shares one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// One message is sent.
    Send,
    /// A batch of messages is sent.
    SendBatch,
    /// A page of history is read.
    Page,
    /// A conversation is opened.
    Open,
    /// A conversation is looked at.
    Conversation,
    /// A conversation is closed or reopened.
    Change,
    /// A token is issued or refreshed.
    Tokens,
    /// Channels are configured.
    Channels,
    /// Tenants and keys are configured, the status is read.
    Operator,
    /// Probes and metrics.
    Probe,
    /// Sockets and streams of events are opened.
    Live,
    /// Documentation pages.
    Docs,
    /// No such route.
    Other,
}

impl Route {
    /// All of them with their label, each at the place of its own number.
    pub const ALL: [(Self, &'static str); 13] = [
        (Self::Send, "send"),
        (Self::SendBatch, "send_batch"),
        (Self::Page, "page"),
        (Self::Open, "open"),
        (Self::Conversation, "conversation"),
        (Self::Change, "change"),
        (Self::Tokens, "tokens"),
        (Self::Channels, "channels"),
        (Self::Operator, "operator"),
        (Self::Probe, "probe"),
        (Self::Live, "live"),
        (Self::Docs, "docs"),
        (Self::Other, "other"),
    ];
}

/// Where a wish for Postgres came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A call of REST.
    Rest,
    /// A WebSocket.
    Socket,
    /// A stream of server-sent events.
    Sse,
    /// A webhook that came in.
    Inbound,
    /// An operator's call or command.
    Operator,
    /// The projection of the log.
    Projector,
}

impl Source {
    /// All of them with their label, each at the place of its own number.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Rest, "rest"),
        (Self::Socket, "socket"),
        (Self::Sse, "sse"),
        (Self::Inbound, "inbound"),
        (Self::Operator, "operator"),
        (Self::Projector, "projector"),
    ];
}

/// Priorities of acquirers, the first served first.
pub const PRIORITIES: [&str; 4] = ["critical", "high", "medium", "low"];

/// Branches at the top of the tree of shares.
pub const CLASSES: [&str; 4] = ["system", "high", "standard", "bulk"];

/// Why the gate gave no permit.
pub const REASONS: [&str; 6] =
    ["queue", "queue_full", "deadline", "zero_capacity", "nested", "closed"];

/// What a connection is doing: nothing, a lease's work, coming up, going down.
pub const STATES: [&str; 4] = ["idle", "used", "creating", "retiring"];

/// What became of cancelling an abandoned statement: Postgres was told, or could not be told in time.
pub const CANCELS: [&str; 2] = ["sent", "failed"];

/// The database that a pool turned to.
pub const ENDPOINTS: [&str; 2] = ["primary", "failback"];
