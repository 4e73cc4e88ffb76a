//! What a log with much in it costs: `bench project`, `bench start`, and the histories that `bench read` and `bench growth` need.
//! Promises that what is put into the log is what a server would have put there, by the log's own codec.
//! Does not start servers; it is given running ones.

mod copy;
pub mod fill;
pub mod project;
pub mod start;

use std::time::Duration;

use sqlx::postgres::{PgConnection, PgPoolOptions};
use sqlx::{Connection as _, Row as _};

use super::Error;
use super::machine::Pids;
use super::reference::rows::statement;
use crate::clock::Clock;
use crate::event::{Partitions, TenantId};
use crate::log::Log;

pub use project::of_project;
pub use start::of_start;

/// Longest time until Postgres has what the log has: a million rows at 10 000 a second, and as much again.
const LEVEL_MAX: Duration = Duration::from_secs(200);

/// How often it is looked whether it has.
const LOOK: Duration = Duration::from_millis(20);

/// A log and the tables that it is projected to.
#[derive(Clone, Debug)]
pub struct Place {
    /// The log.
    pub log: Log,
    /// Its partitions.
    pub partitions: Partitions,
    /// Whose conversations they are.
    pub tenant: TenantId,
    /// The database.
    pub database_url: String,
    /// Processes to watch.
    pub pids: Pids,
    /// Where time comes from.
    pub clock: Clock,
}

/// How far the tables are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Progress {
    /// Records of the log.
    records: u64,
    /// Of these, the ones that are in the tables.
    projected: u64,
}

impl Progress {
    const fn is_level(self) -> bool {
        self.projected >= self.records
    }
}

impl Place {
    /// Waits until the tables have everything that the log has now.
    ///
    /// # Errors
    /// [`Error::ProjectorBehind`] after [`LEVEL_MAX`].
    pub async fn level(&self) -> Result<(), Error> {
        let mut conn = self.connect().await?;
        let begun = self.clock.now();
        while !self.progress(&mut conn).await?.is_level() {
            if self.clock.now().saturating_duration_since(begun) > LEVEL_MAX {
                return Err(Error::ProjectorBehind);
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    async fn connect(&self) -> Result<PgConnection, Error> {
        let connected = PgConnection::connect(&self.database_url).await;
        connected.map_err(database("connecting to Postgres"))
    }

    async fn progress(&self, conn: &mut PgConnection) -> Result<Progress, Error> {
        let rows = statement("SELECT partition, position FROM checkpoints");
        let rows = rows.fetch_all(conn).await.map_err(database("reading checkpoints"))?;
        let mut progress = Progress::default();
        for partition in self.partitions.all() {
            let bounds = self.log.bounds(partition).await.map_err(Error::Log)?;
            let number = i16::try_from(partition.number()).unwrap_or(i16::MAX);
            let row = rows.iter().find(|row| row.try_get::<i16, _>(0).is_ok_and(|n| n == number));
            let position = row.and_then(|row| row.try_get::<i64, _>(1).ok()).unwrap_or(0);
            progress.records += bounds.last;
            progress.projected += u64::try_from(position).unwrap_or(0).min(bounds.last);
        }
        Ok(progress)
    }

    /// So many connections, as a service would keep them.
    pub(super) async fn pool(&self, connections: u32) -> Result<sqlx::PgPool, Error> {
        let options = PgPoolOptions::new()
            .max_connections(connections)
            .min_connections(connections)
            .test_before_acquire(false);
        options.connect(&self.database_url).await.map_err(database("connecting to Postgres"))
    }
}

fn database(doing: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |source| Error::Database { doing, source }
}
