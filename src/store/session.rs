//! Where the database is and how a session with it is set up.
//! Promises that every session says who it is, is bounded by Postgres itself too, and speaks UTC.
//! Does not keep connections; the pool does.

pub(super) mod detector;
pub(super) mod failback;
mod savepoint;
mod topology;

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection as _, PgConnection, Postgres, Transaction};
use tokio::time::timeout_at;

pub use self::savepoint::savepoint;
pub use self::topology::Topology;
use super::{Error, while_doing};

/// How long one statement may wait for a lock. Nothing here holds a lock for longer than one batch takes to write;
/// whoever waits longer waits for a person's session.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a session may sit in a transaction without a statement. No transaction here waits for anything but
/// Postgres, so one that sits has lost its owner; its locks would stop the projection.
const IDLE_IN_TRANSACTION_TIMEOUT: Duration = Duration::from_secs(10);

/// How often Postgres looks whether a client whose statement is running is still there. It ends statements that a
/// deadline has abandoned. PostgreSQL 14 and later.
const CONNECTION_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Longest statement of an operation outside of the pools, behind a pooler: as long as the migrations may take.
const PLAIN_STATEMENT_MAX: Duration = Duration::from_mins(1);

/// The schema that unqualified names mean: 1 to 63 characters of `a-z 0-9 _`, not beginning with a digit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema(String);

impl Schema {
    /// Checks a name.
    ///
    /// # Errors
    /// [`Error::SchemaName`] when it has another character or length.
    pub fn parse(name: &str) -> Result<Self, Error> {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        let starts_well = name.bytes().next().is_some_and(|b| !b.is_ascii_digit());
        if starts_well && name.len() <= 63 && name.bytes().all(allowed) {
            Ok(Self(name.to_owned()))
        } else {
            Err(Error::SchemaName { name: name.to_owned() })
        }
    }

    /// The name. It needs no quotes and no escapes in SQL text if it is written between double quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A schema beside this one, for a rebuild to fill or to empty.
    ///
    /// # Errors
    /// [`Error::SchemaName`] when this name is too long to take the suffix.
    pub fn beside(&self, suffix: &str) -> Result<Self, Error> {
        Self::parse(&format!("{}_{suffix}", self.0))
    }
}

impl Default for Schema {
    /// `public`, where Postgres puts things when nobody says otherwise.
    fn default() -> Self {
        Self("public".to_owned())
    }
}

/// A database, and the schema within it. Never shows the password.
#[derive(Clone)]
pub struct Target {
    options: PgConnectOptions,
    schema: Schema,
    topology: Topology,
}

/// What a transaction begins with where a session's own settings are not to be had; `None` for a plain `BEGIN`.
#[derive(Clone, Debug)]
pub(super) struct Opening(Option<String>);

impl Opening {
    /// Opens a transaction.
    pub(super) async fn begin(
        self,
        conn: &mut PgConnection,
    ) -> Result<Transaction<'_, Postgres>, Error> {
        let began = match self.0 {
            None => conn.begin().await,
            Some(opening) => conn.begin_with(AssertSqlSafe(opening)).await,
        };
        began.map_err(while_doing("begin"))
    }
}

impl Target {
    /// From a `postgres://` URL.
    ///
    /// # Errors
    /// [`Error::Url`] when it is not one.
    pub fn parse(url: &str, schema: Schema) -> Result<Self, Error> {
        // The driver takes every scheme for its own.
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            let source = sqlx::Error::Configuration("it must begin with postgres://".into());
            return Err(Error::Url(source));
        }
        let options = PgConnectOptions::from_str(url).map_err(Error::Url)?;
        // The statements are constants of this program; what is slow is seen in the pool's metrics.
        let options = options.disable_statement_logging();
        Ok(Self { options, schema, topology: Topology::Direct })
    }

    /// Where it is, for people: without user and password.
    pub(super) fn place(&self) -> String {
        let host = match self.options.get_socket() {
            Some(socket) => socket.display().to_string(),
            None => self.options.get_host().to_owned(),
        };
        format!("{host}:{}", self.options.get_port())
    }

    /// The schema.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The same database with another schema.
    #[must_use]
    pub fn with_schema(&self, schema: Schema) -> Self {
        Self { schema, ..self.clone() }
    }

    /// The same database with this between it and the program.
    #[must_use]
    pub fn behind(self, topology: Topology) -> Self {
        Self { topology, ..self }
    }

    /// What stands between.
    pub fn topology(&self) -> Topology {
        self.topology
    }

    /// Performs one operation on a session of its own. Behind a pooler it is a transaction, for only there the session
    /// stays the same from one statement to the next.
    ///
    /// # Errors
    /// What the operation failed with.
    pub async fn perform<T, F>(&self, conn: &mut PgConnection, operation: F) -> Result<T, Error>
    where
        F: AsyncFnOnce(&mut PgConnection) -> Result<T, Error>,
    {
        match self.topology {
            Topology::Direct => operation(conn).await,
            Topology::TransactionPooler => {
                let mut open = self.opening(PLAIN_STATEMENT_MAX).begin(conn).await?;
                let result = operation(&mut open).await?;
                open.commit().await.map_err(while_doing("commit"))?;
                Ok(result)
            }
        }
    }

    /// A session of its own, outside of the pools: for migrations and commands.
    ///
    /// # Errors
    /// [`Error::Connect`] or [`Error::Deadline`].
    pub async fn connect(
        &self,
        name: &str,
        statement_timeout: Duration,
        deadline: Instant,
    ) -> Result<PgConnection, Error> {
        let options = self.options(name, statement_timeout);
        match timeout_at(deadline.into(), options.connect()).await {
            Ok(connected) => connected.map_err(Error::Connect),
            Err(_elapsed) => Err(Error::Deadline { doing: "connect" }),
        }
    }

    /// What a transaction of such a session begins with.
    pub(super) fn opening(&self, statement_timeout: Duration) -> Opening {
        if self.topology == Topology::Direct {
            return Opening(None);
        }
        // Prepared statements of whoever had the session before: the driver names them alike everywhere.
        let mut text = "BEGIN; DEALLOCATE ALL".to_owned();
        for (name, value) in self.settings(statement_timeout) {
            text.extend(["; SET LOCAL ", name, " = '", &value, "'"]);
        }
        Opening(Some(text))
    }

    fn options(&self, name: &str, statement_timeout: Duration) -> PgConnectOptions {
        let options = self.options.clone().application_name(&format!("forebay {name}"));
        match self.topology {
            Topology::Direct => options
                .options(self.settings(statement_timeout))
                .options([("client_connection_check_interval", millis(CONNECTION_CHECK_INTERVAL))]),
            // What a pooler does not know at the start of a session it refuses.
            Topology::TransactionPooler => {
                options.statement_cache_capacity(0).extra_float_digits(None)
            }
        }
    }

    /// Names and values that need no quotes.
    fn settings(&self, statement_timeout: Duration) -> [(&'static str, String); 6] {
        [
            ("search_path", self.schema.0.clone()),
            ("TimeZone", "UTC".to_owned()),
            ("statement_timeout", millis(statement_timeout)),
            ("lock_timeout", millis(LOCK_TIMEOUT)),
            ("idle_in_transaction_session_timeout", millis(IDLE_IN_TRANSACTION_TIMEOUT)),
            // A rollback where there is no transaction is no news.
            ("client_min_messages", "error".to_owned()),
        ]
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("host", &self.options.get_host())
            .field("port", &self.options.get_port())
            .field("database", &self.options.get_database())
            .field("schema", &self.schema.0)
            .finish_non_exhaustive()
    }
}

fn millis(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_schemas() {
        for good in ["public", "forebay_rebuild", "_a1", &"a".repeat(63)] {
            assert!(Schema::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "1a", "A", "a b", "a\"b", "a;b", "a,b", "ä", &"a".repeat(64)] {
            assert!(Schema::parse(bad).is_err(), "{bad}");
        }
        let beside = Schema::default().beside("rebuild").unwrap();
        assert_eq!(beside.as_str(), "public_rebuild");
    }

    #[test]
    fn a_target_does_not_show_its_password() {
        let url = "postgres://forebay:hidden-word@127.0.0.1:5433/main";
        let target = Target::parse(url, Schema::default()).unwrap();
        let shown = format!("{target:?}");
        assert!(shown.contains("5433") && !shown.contains("hidden-word"), "{shown}");
        assert!(Target::parse("mysql://x", Schema::default()).is_err());
    }
}
