//! What Postgres itself says while it is measured: sessions, backends, and what one request takes.
//! Promises to look from another database, so that it is not counted itself.
//! Does not judge.

use std::time::Duration;

use sqlx::{Connection, PgConnection, Row};

use super::contestant::query;
use super::{Capacity, Options};
use crate::bench::Error;
use crate::clock::Clock;

/// Looks at one database from another.
#[derive(Debug)]
pub(super) struct Witness {
    conn: PgConnection,
    database: String,
}

const BACKENDS: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1";
const SESSIONS: &str = "SELECT sessions FROM pg_stat_database WHERE datname = $1";

/// Longest wait until nobody is connected any more.
const QUIET_MAX: Duration = Duration::from_secs(15);

/// How often that is looked at.
const QUIET_LOOK: Duration = Duration::from_millis(20);

/// Requests whose mean is what one request takes.
const SAMPLES: u32 = 200;

/// Requests before that, which prepare the statement.
const FIRST: u32 = 5;

impl Witness {
    pub(super) async fn connect(url: &str, database: &str) -> Result<Self, Error> {
        let conn = PgConnection::connect(url).await.map_err(failed("connecting to Postgres"))?;
        Ok(Self { conn, database: database.to_owned() })
    }

    /// Backends that serve the database now.
    pub(super) async fn backends(&mut self) -> Result<i64, Error> {
        self.count(BACKENDS, "counting backends").await
    }

    /// Sessions that the database has seen. Waits until nobody is connected: a backend reports its session when it ends
    /// at the latest.
    pub(super) async fn sessions_when_quiet(&mut self, clock: &Clock) -> Result<i64, Error> {
        let give_up = clock.now() + QUIET_MAX;
        while self.backends().await? > 0 {
            if clock.now() > give_up {
                return Err(Error::NotQuiet);
            }
            tokio::time::sleep(QUIET_LOOK).await;
        }
        self.count(SESSIONS, "counting sessions").await
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the views are the server's own, so no build has to check the statement"
    )]
    async fn count(&mut self, sql: &'static str, doing: &'static str) -> Result<i64, Error> {
        let row = sqlx::query(sql).bind(&self.database).fetch_one(&mut self.conn).await;
        row.and_then(|row| row.try_get(0)).map_err(failed(doing))
    }
}

/// What one request takes that meets no other, and what follows for so many connections.
pub(super) async fn capacity(
    url: &str,
    options: &Options,
    clock: &Clock,
) -> Result<Capacity, Error> {
    let mut conn = PgConnection::connect(url).await.map_err(failed("connecting to Postgres"))?;
    let service = options.service.as_secs_f64();
    let mut began = clock.now();
    for nth in 0..FIRST + SAMPLES {
        if nth == FIRST {
            began = clock.now();
        }
        let answer = query(i64::from(nth), service).fetch_one(&mut conn).await;
        answer.map(drop).map_err(failed("measuring what one request takes"))?;
    }
    let took = clock.now().saturating_duration_since(began);
    conn.close().await.map_err(failed("closing a connection to Postgres"))?;
    Ok(Capacity::of(SAMPLES, took, options.connections))
}

fn failed(doing: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |source| Error::Database { doing, source }
}
