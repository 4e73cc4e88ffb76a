//! Postgres: the guarded pools and, a file per table, every statement that this program sends.
//! Promises that each wait has a deadline, and that each failure has one class, by which callers decide.
//! Does not decide what to write or when to try again; the flows do.

pub mod checkpoints;
pub mod conversations;
pub mod directory;
pub mod messages;
pub mod pool;
pub mod quarantine;
pub mod rebuild;
pub mod schema;
pub mod session;
pub mod verify;

use sqlx::migrate::MigrateError;

use crate::admission::Overload;

pub use messages::{page, seeds};
pub use pool::savepoint;
pub use pool::{Background, Interactive, Lease, Limits, Settings, open, open_counted};
pub use session::{Schema, Target};
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
    /// Postgres did not answer several times in a row and is not asked again until the next probe.
    #[error("Postgres does not answer; the {pool} pool waits for its next probe")]
    Away {
        /// Which pool.
        pool: &'static str,
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
            Self::Refused { .. } => Kind::Pressure,
            Self::Deadline { .. } => Kind::Timeout,
            Self::Away { .. } | Self::Lost => Kind::Unavailable,
            // Whatever keeps a connection from being made may pass, but for an answer that says otherwise.
            Self::Connect(source) if source.as_database_error().is_none() => Kind::Unavailable,
            Self::Connect(source)
            | Self::Statement { source, .. }
            | Self::Migrate(
                MigrateError::Execute(source) | MigrateError::ExecuteMigration(source, _),
            ) => kind_of(source),
            Self::Inconsistent { .. } => Kind::Inconsistent,
            Self::Unstorable { .. } => Kind::Data,
            Self::Migrate(_) | Self::Url(_) | Self::SchemaName { .. } => Kind::Bug,
        }
    }

    /// Whether the same call can succeed later without anybody changing anything.
    pub fn is_retryable(&self) -> bool {
        match self.kind() {
            Kind::Pressure | Kind::Timeout | Kind::Unavailable => true,
            Kind::Data | Kind::Inconsistent | Kind::Bug => false,
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
            let answered = source.as_database_error().is_some();
            answered && !matches!(kind_of(source), Kind::Unavailable | Kind::Bug)
        } else {
            matches!(self, Self::Inconsistent { .. } | Self::Unstorable { .. })
        }
    }
}

/// For `map_err`: keeps what was being done beside what the driver said.
fn while_doing(doing: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |source| Error::Statement { doing, source }
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
        // Canceled by statement_timeout or by hand, lock_timeout, idle in transaction too long.
        "57014" | "55P03" | "25P03" => Kind::Timeout,
        // Too many connections; serialization failure and deadlock; no memory or disk.
        "53300" | "40001" | "40P01" => Kind::Pressure,
        // Read-only: a standby, or a primary that was demoted. A connection to the new one will do.
        "25006" => Kind::Unavailable,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_of_postgres_has_its_class() {
        for (code, kind) in [
            ("57014", Kind::Timeout),
            ("55P03", Kind::Timeout),
            ("53300", Kind::Pressure),
            ("53100", Kind::Pressure),
            ("40P01", Kind::Pressure),
            ("57P01", Kind::Unavailable),
            ("57P03", Kind::Unavailable),
            ("08006", Kind::Unavailable),
            ("25006", Kind::Unavailable),
            ("22P05", Kind::Data),
            ("22021", Kind::Data),
            ("23514", Kind::Data),
            ("54000", Kind::Data),
            ("42P01", Kind::Bug),
            ("", Kind::Bug),
        ] {
            assert_eq!(kind_of_sqlstate(code), kind, "{code}");
        }
    }

    #[test]
    fn what_passes_is_retryable_and_what_stays_is_not() {
        let refused = Error::Refused { pool: "interactive", source: Overload::QueueFull };
        assert!(refused.is_retryable());
        let broken = Error::Statement {
            doing: "read",
            source: sqlx::Error::Io(std::io::ErrorKind::BrokenPipe.into()),
        };
        assert_eq!(broken.kind(), Kind::Unavailable);
        assert!(!broken.spares_connection());
        let odd = Error::Inconsistent { table: "messages", column: "kind" };
        assert!(!odd.is_retryable() && odd.spares_connection());
    }
}
