use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::io;

use sqlx::error::{DatabaseError, ErrorKind};

use super::*;

/// What Postgres answers, with this code.
#[derive(Debug)]
struct Answer(&'static str);

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl StdError for Answer {}

impl DatabaseError for Answer {
    fn message(&self) -> &str {
        self.0
    }

    fn code(&self) -> Option<Cow<'_, str>> {
        Some(self.0.into())
    }

    fn as_error(&self) -> &(dyn StdError + Send + Sync + 'static) {
        self
    }

    fn as_error_mut(&mut self) -> &mut (dyn StdError + Send + Sync + 'static) {
        self
    }

    fn into_error(self: Box<Self>) -> Box<dyn StdError + Send + Sync + 'static> {
        self
    }

    fn kind(&self) -> ErrorKind {
        ErrorKind::Other
    }
}

fn answered(code: &'static str) -> sqlx::Error {
    sqlx::Error::Database(Box::new(Answer(code)))
}

fn broken(kind: io::ErrorKind) -> sqlx::Error {
    sqlx::Error::Io(kind.into())
}

fn stated(source: sqlx::Error) -> Error {
    Error::Statement { doing: "read", source }
}

fn refused(source: Overload) -> Error {
    Error::Refused { pool: "interactive", source }
}

/// Whether a failure is infrastructure, in the tables.
const MACHINERY: bool = true;
const OTHER: bool = false;

#[test]
fn every_answer_of_postgres_has_its_class() {
    use Kind::{Bug, Data, Pressure, Timeout, Unavailable};
    for (code, kind, infrastructure) in [
        // Cancelled, waited for a lock, sat in a transaction.
        ("57014", Timeout, OTHER),
        ("55P03", Timeout, OTHER),
        ("25P03", Timeout, OTHER),
        ("25P04", Timeout, OTHER),
        // Too much of something; lost against another transaction.
        ("53300", Pressure, MACHINERY),
        ("53000", Pressure, OTHER),
        ("53100", Pressure, OTHER),
        ("53200", Pressure, OTHER),
        ("53400", Pressure, OTHER),
        ("40001", Pressure, OTHER),
        ("40P01", Pressure, OTHER),
        // Connection exceptions; shutdown, crash, start-up, idle session; its disk; a standby.
        ("08000", Unavailable, MACHINERY),
        ("08001", Unavailable, MACHINERY),
        ("08003", Unavailable, MACHINERY),
        ("08004", Unavailable, MACHINERY),
        ("08006", Unavailable, MACHINERY),
        ("08P01", Unavailable, MACHINERY),
        ("57P01", Unavailable, MACHINERY),
        ("57P02", Unavailable, MACHINERY),
        ("57P03", Unavailable, MACHINERY),
        ("57P05", Unavailable, OTHER),
        ("58030", Unavailable, OTHER),
        ("25006", Unavailable, MACHINERY),
        ("0A000", Unavailable, OTHER),
        // Input that cannot be stored.
        ("22P05", Data, OTHER),
        ("22021", Data, OTHER),
        ("23514", Data, OTHER),
        ("54000", Data, OTHER),
        ("54001", Data, OTHER),
        ("54011", Data, OTHER),
        // Ours, or the installation's.
        ("42P01", Bug, OTHER),
        ("42501", Bug, OTHER),
        ("28P01", Bug, OTHER),
        ("3D000", Bug, OTHER),
        ("25P02", Bug, OTHER),
        ("XX000", Bug, OTHER),
        ("", Bug, OTHER),
    ] {
        let retryable = matches!(kind, Pressure | Timeout | Unavailable);
        for error in [stated(answered(code)), Error::Connect(answered(code))] {
            assert_eq!(error.kind(), kind, "{code} {error:?}");
            assert_eq!(error.is_retryable(), retryable, "{code} {error:?}");
            assert_eq!(error.is_infrastructure(), infrastructure, "{code} {error:?}");
        }
    }
}

#[test]
fn every_other_failure_has_its_class() {
    use Kind::{Bug, Data, Inconsistent, Pressure, Timeout, Unavailable};
    let tls = || sqlx::Error::Tls("handshake".into());
    for (error, kind, infrastructure) in [
        // Our own refusals are nobody's fault but the load's.
        (refused(Overload::Queue), Pressure, OTHER),
        (refused(Overload::QueueFull), Pressure, OTHER),
        (refused(Overload::Deadline), Pressure, OTHER),
        (refused(Overload::ZeroCapacity), Pressure, OTHER),
        (refused(Overload::Closed), Unavailable, OTHER),
        (refused(Overload::Nested), Bug, OTHER),
        (Error::Standby, Unavailable, MACHINERY),
        (Error::Deadline { doing: "connect" }, Timeout, MACHINERY),
        (Error::Lost, Unavailable, OTHER),
        // Connecting.
        (Error::Connect(broken(io::ErrorKind::ConnectionRefused)), Unavailable, MACHINERY),
        (Error::Connect(broken(io::ErrorKind::TimedOut)), Unavailable, MACHINERY),
        (Error::Connect(tls()), Unavailable, MACHINERY),
        // Under a statement.
        (stated(broken(io::ErrorKind::BrokenPipe)), Unavailable, MACHINERY),
        (stated(broken(io::ErrorKind::TimedOut)), Unavailable, MACHINERY),
        (stated(tls()), Unavailable, OTHER),
        (stated(sqlx::Error::Protocol("odd".into())), Unavailable, OTHER),
        (stated(sqlx::Error::RowNotFound), Bug, OTHER),
        // What is stored, or cannot be.
        (Error::Inconsistent { table: "messages", column: "kind" }, Inconsistent, OTHER),
        (Error::Unstorable { column: "seq" }, Data, OTHER),
        (Error::Migrate(MigrateError::Execute(answered("57P01"))), Unavailable, OTHER),
        (Error::Migrate(MigrateError::VersionMissing(1)), Bug, OTHER),
        (Error::Url(answered("")), Bug, OTHER),
        (Error::SchemaName { name: "A".to_owned() }, Bug, OTHER),
    ] {
        assert_eq!(error.kind(), kind, "{error:?}");
        let retryable = matches!(kind, Pressure | Timeout | Unavailable);
        assert_eq!(error.is_retryable(), retryable, "{error:?}");
        assert_eq!(error.is_infrastructure(), infrastructure, "{error:?}");
    }
}

#[test]
fn a_connection_outlives_an_answer_and_nothing_else() {
    assert!(stated(answered("22P05")).spares_connection());
    assert!(Error::Inconsistent { table: "messages", column: "kind" }.spares_connection());
    assert!(!stated(answered("57P01")).spares_connection());
    assert!(!stated(broken(io::ErrorKind::BrokenPipe)).spares_connection());
}
