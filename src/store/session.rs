//! Where the database is and how a session with it is set up.
//! Promises that every session says who it is, is bounded by Postgres itself too, and speaks UTC.
//! Does not keep connections; the pool does.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection};
use tokio::time::timeout_at;

use super::Error;

/// How long one statement may wait for a lock. Nothing here holds a lock for longer than one batch takes to write;
/// whoever waits longer waits for a person's session.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a session may sit in a transaction without a statement. No transaction here waits for anything but
/// Postgres, so one that sits has lost its owner; its locks would stop the projection.
const IDLE_IN_TRANSACTION_TIMEOUT: Duration = Duration::from_secs(10);

/// How often Postgres looks whether a client whose statement is running is still there. It ends statements that a
/// deadline has abandoned. PostgreSQL 14 and later.
const CONNECTION_CHECK_INTERVAL: Duration = Duration::from_secs(1);

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
        Ok(Self { options, schema })
    }

    /// The schema.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The same database with another schema.
    #[must_use]
    pub fn with_schema(&self, schema: Schema) -> Self {
        Self { options: self.options.clone(), schema }
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

    fn options(&self, name: &str, statement_timeout: Duration) -> PgConnectOptions {
        let settings = [
            ("search_path", self.schema.0.clone()),
            ("TimeZone", "UTC".to_owned()),
            ("statement_timeout", millis(statement_timeout)),
            ("lock_timeout", millis(LOCK_TIMEOUT)),
            ("idle_in_transaction_session_timeout", millis(IDLE_IN_TRANSACTION_TIMEOUT)),
            ("client_connection_check_interval", millis(CONNECTION_CHECK_INTERVAL)),
        ];
        self.options.clone().application_name(&format!("forebay {name}")).options(settings)
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
