//! Postgres: the guarded pools and, a file per table, every statement that this program sends.
//! Promises that each wait has a deadline, and that each failure has one class, by which callers decide.
//! Does not decide what to write or when to try again; the flows do.

pub mod checkpoints;
pub mod conversations;
pub mod deliveries;
pub mod directory;
pub mod messages;
pub mod pool;
pub mod rebuild;
pub mod schema;
pub mod session;
pub mod verify;

use sqlx::migrate::MigrateError;

use crate::admission::Overload;

pub use deliveries::attempts;
pub use messages::{page, quarantine, seeds};
pub use pool::{Background, Interactive, Lease, Limits, Means, Settings, open};
pub use session::{Schema, Target, Topology, savepoint};
pub use sqlx::PgConnection;

/// What went wrong between this program and Postgres.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The gate gave no permit for a connection.
    #[error("no permit for a connection of the {pool} pool")]
    Refused {
        /// Which pool.
        pool: &'static str,
        /// Why.
        #[source]
        source: Overload,
    },
    /// The server only reads, and this pool writes.
    #[error("the server is a standby, which takes no writes")]
    Standby,
    /// The operation needs a session of its own, and a pooler of transactions has none to give.
    #[error("{doing} needs a direct connection to Postgres, past the pooler")]
    NeedsSession {
        /// What was to be done.
        doing: &'static str,
    },
    /// No connection could be made.
    #[error("cannot connect to Postgres")]
    Connect(#[source] sqlx::Error),
    /// The deadline passed first. Whether the statement took effect is not known.
    #[error("the deadline passed while trying to {doing}")]
    Deadline {
        /// What was being done.
        doing: &'static str,
    },
    /// An earlier failure closed the lease's connection.
    #[error("the lease has lost its connection")]
    Lost,
    /// Postgres refused a statement, or the connection broke under it.
    #[error("cannot {doing}")]
    Statement {
        /// What was being done.
        doing: &'static str,
        /// What Postgres or the driver said.
        #[source]
        source: sqlx::Error,
    },
    /// The migrations could not be applied or read.
    #[error("cannot migrate the schema")]
    Migrate(#[source] MigrateError),
    /// A row says what no row of this program says.
    #[error("{table}.{column} has a value that cannot be")]
    Inconsistent {
        /// Which table.
        table: &'static str,
        /// Which column.
        column: &'static str,
    },
    /// A number beyond what a column can hold, or a client's type that is one of the log's own words.
    #[error("{column} has a value that Postgres cannot keep apart or hold")]
    Unstorable {
        /// Which column.
        column: &'static str,
    },
    /// The database's URL cannot be used.
    #[error("the database URL is not usable")]
    Url(#[source] sqlx::Error),
    /// A name that is not 1 to 63 characters of `a-z 0-9 _`.
    #[error("{name:?} cannot name a schema")]
    SchemaName {
        /// The name.
        name: String,
    },
}

/// What a failure means for whoever asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Too much is asked of Postgres or of the pool; later it may work.
    Pressure,
    /// It took too long.
    Timeout,
    /// Postgres cannot be reached, stops, starts or takes no writes.
    Unavailable,
    /// Postgres cannot store this input, however often it is tried.
    Data,
    /// What is stored contradicts itself.
    Inconsistent,
    /// A mistake in this program or its installation.
    Bug,
}

impl Error {
    /// What it means.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Refused { source, .. } => kind_of_refusal(*source),
            Self::Deadline { .. } => Kind::Timeout,
            Self::Standby | Self::Lost => Kind::Unavailable,
            // Whatever keeps a connection from being made may pass, but for an answer that says otherwise.
            Self::Connect(source) if source.as_database_error().is_none() => Kind::Unavailable,
            Self::Connect(source)
            | Self::Statement { source, .. }
            | Self::Migrate(
                MigrateError::Execute(source) | MigrateError::ExecuteMigration(source, _),
            ) => kind_of(source),
            Self::Inconsistent { .. } => Kind::Inconsistent,
            Self::Unstorable { .. } => Kind::Data,
            Self::Migrate(_)
            | Self::Url(_)
            | Self::SchemaName { .. }
            | Self::NeedsSession { .. } => Kind::Bug,
        }
    }

    /// Whether the same call can succeed later without anybody changing anything.
    pub fn is_retryable(&self) -> bool {
        match self.kind() {
            Kind::Pressure | Kind::Timeout | Kind::Unavailable => true,
            Kind::Data | Kind::Inconsistent | Kind::Bug => false,
        }
    }

    /// Whether it says that the database's machinery fails, which a connection to another node may mend.
    ///
    /// Ours are not: refusals of the gate, statements that Postgres refuses or that were cancelled. 25006 is, because
    /// only what writes can see it: a primary that was demoted still answers every read.
    pub fn is_infrastructure(&self) -> bool {
        match self {
            Self::Standby | Self::Deadline { .. } => true,
            Self::Connect(source) => sqlstate(source).is_none_or(|code| is_of_machinery(&code)),
            Self::Statement { source, .. } => match sqlstate(source) {
                Some(code) => is_of_machinery(&code),
                None => matches!(source, sqlx::Error::Io(_)),
            },
            // The failure that lost the connection was told before.
            Self::Lost
            | Self::Refused { .. }
            | Self::Migrate(_)
            | Self::Inconsistent { .. }
            | Self::Unstorable { .. }
            | Self::Url(_)
            | Self::SchemaName { .. }
            | Self::NeedsSession { .. } => false,
        }
    }

    /// The five characters by which Postgres names an error, if it was Postgres that refused.
    pub fn sqlstate(&self) -> Option<String> {
        if let Self::Statement { source, .. } | Self::Connect(source) = self {
            sqlstate(source)
        } else {
            None
        }
    }

    /// Whether the connection under this failure is still in order: Postgres answered and goes on listening.
    fn spares_connection(&self) -> bool {
        if let Self::Statement { source, .. } = self {
            // A mistake in a statement is no reason to make a connection anew; one in what was prepared before is.
            sqlstate(source).is_some_and(|code| {
                let is_of_prepared = code.starts_with("26") || code == "42P05";
                !is_of_prepared && kind_of_sqlstate(&code) != Kind::Unavailable
            })
        } else {
            matches!(self, Self::Inconsistent { .. } | Self::Unstorable { .. })
        }
    }
}

/// For `map_err`: keeps what was being done beside what the driver said.
fn while_doing(doing: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |source| Error::Statement { doing, source }
}

/// What the gate's refusals mean.
fn kind_of_refusal(overload: Overload) -> Kind {
    match overload {
        Overload::Queue | Overload::QueueFull | Overload::Deadline | Overload::ZeroCapacity => {
            Kind::Pressure
        }
        // The server stops; another node may answer.
        Overload::Closed => Kind::Unavailable,
        // Whoever holds a connection wants another one: trying again would find the same.
        Overload::Nested => Kind::Bug,
    }
}

fn kind_of(error: &sqlx::Error) -> Kind {
    use sqlx::Error::{Io, Protocol, Tls};
    match sqlstate(error) {
        Some(code) => kind_of_sqlstate(&code),
        None if matches!(error, Io(_) | Tls(_) | Protocol(_)) => Kind::Unavailable,
        None => Kind::Bug,
    }
}

fn sqlstate(error: &sqlx::Error) -> Option<String> {
    let code = error.as_database_error()?.code()?;
    Some(code.into_owned())
}

/// The one classification of what Postgres answers (PostgreSQL manual, appendix A).
fn kind_of_sqlstate(code: &str) -> Kind {
    match code {
        // Canceled by statement_timeout or by hand; lock_timeout; idle in transaction, or in it, too long.
        "57014" | "55P03" | "25P03" | "25P04" => Kind::Timeout,
        // Too many connections; serialization failure and deadlock; no memory or disk.
        "53300" | "40001" | "40P01" => Kind::Pressure,
        // Read-only: a standby, or a primary that was demoted. A connection to the new one will do.
        // The tables were changed under a prepared statement, by a rebuild; so will a connection that prepares anew.
        "25006" | "0A000" => Kind::Unavailable,
        // Too complex or too deep, a value beyond an index entry's size.
        "54000" | "54001" | "54011" => Kind::Data,
        _ => match code.get(..2) {
            Some("53") => Kind::Pressure,
            // Connection exception; shutdown, crash recovery, start-up; I/O errors of the server's own disk.
            Some("08" | "57" | "58") => Kind::Unavailable,
            // Data exception, integrity constraint violation.
            Some("22" | "23") => Kind::Data,
            _ => Kind::Bug,
        },
    }
}

/// Whether an answer of Postgres tells of its machinery: connection exceptions, shutdown and start-up, too many
/// connections, and read-only under a write.
fn is_of_machinery(code: &str) -> bool {
    code.starts_with("08") || matches!(code, "57P01" | "57P02" | "57P03" | "53300" | "25006")
}

#[cfg(test)]
mod tests;
