//! The clients' side of `PgBouncer`: a bag of connections to it, each with one request under way at a time.
//! Promises that a client whose deadline passes closes its connection, as drivers do, and that the next one opens another.
//! Does not pool connections to Postgres; that is what is behind it.

use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection};
use tokio::sync::Semaphore;
use tokio::time::timeout_at;

use super::contestant::{Asked, judge, number_of};
use crate::bench::Error;

/// Connections to `PgBouncer`.
#[derive(Debug)]
pub(super) struct Bag {
    options: PgConnectOptions,
    /// As many as there may be connections; waiters take turns in the order in which they came.
    places: Semaphore,
    idle: Mutex<Vec<PgConnection>>,
    service: f64,
}

impl Bag {
    /// Opens all of them.
    pub(super) async fn open(url: &str, clients: usize, service: Duration) -> Result<Self, Error> {
        let options = PgConnectOptions::from_str(url)
            .map(ConnectOptions::disable_statement_logging)
            .map_err(failed("reading the address of PgBouncer"))?;
        let mut idle = Vec::with_capacity(clients);
        for _ in 0..clients {
            idle.push(options.connect().await.map_err(failed("connecting to PgBouncer"))?);
        }
        Ok(Self {
            options,
            places: Semaphore::new(clients),
            idle: Mutex::new(idle),
            service: service.as_secs_f64(),
        })
    }

    /// Asks, and leaves at the deadline.
    pub(super) async fn ask(&self, request: u64, deadline: Instant) -> Asked {
        match timeout_at(deadline.into(), self.exchange(number_of(request))).await {
            Ok(Ok(asked)) => asked,
            Ok(Err(error)) => asked_of(&error),
            Err(_elapsed) => Asked::Late,
        }
    }

    /// One query over one connection, which comes back to the bag only if all went well.
    async fn exchange(&self, number: i64) -> Result<Asked, sqlx::Error> {
        let Ok(_place) = self.places.acquire().await else {
            return Ok(Asked::Failed("the bag is closed".to_owned()));
        };
        let held = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut conn = match held {
            Some(conn) => conn,
            None => self.options.connect().await?,
        };
        // PgBouncer 1.18 does not carry statements that are prepared by name from one connection to another, so this
        // goes as text. Both values are numbers of ours.
        let text = format!("SELECT {number}::int8 FROM pg_sleep({}::float8)", self.service);
        let row = sqlx::raw_sql(AssertSqlSafe(text)).fetch_one(&mut conn).await?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(conn);
        Ok(judge(&row, number))
    }
}

/// `PgBouncer` itself speaks with this code when it disconnects a client that has waited for too long, or has no room
/// for one more.
const PROTOCOL_VIOLATION: &str = "08P01";

fn asked_of(error: &sqlx::Error) -> Asked {
    match error.as_database_error() {
        Some(word) if word.code().as_deref() == Some(PROTOCOL_VIOLATION) => {
            Asked::Refused(word.message().to_owned())
        }
        Some(_) | None => Asked::Failed(error.to_string()),
    }
}

fn failed(doing: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |source| Error::Database { doing, source }
}
