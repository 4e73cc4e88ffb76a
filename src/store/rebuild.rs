//! Filling a second schema from the log and swapping its tables in.
//! Promises that readers see either all of the old tables or all of the new ones, and none that is behind the old.
//! Does not read the log: projection writes to the second schema as it does to the first.

use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, PgConnection};

use super::checkpoints::{self, Checkpoint, write_position};
use super::{Error, Schema, Target, Topology, schema, while_doing};
use crate::event::{Partition, Partitions};

/// The tables that are a function of the log, in the order in which readers lock them.
const TABLES: [&str; 6] =
    ["checkpoints", "conversations", "messages", "quarantine", "deliveries", "attempts"];

/// What came of a swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swap {
    /// The new tables are in place; the old ones wait in the retired schema.
    Done,
    /// The new tables lack records that the old ones have; nothing was changed.
    Behind {
        /// In which partition.
        partition: u16,
        /// The old checkpoint.
        old: u64,
        /// The new checkpoint.
        new: u64,
    },
}

/// The three schemas of a rebuild.
#[derive(Clone, Debug)]
pub struct Plan {
    target: Target,
    fresh: Schema,
    retired: Schema,
}

impl Plan {
    /// For the tables that this target names.
    ///
    /// # Errors
    /// [`Error::SchemaName`] when the schema's name is too long to put others beside it.
    pub fn new(target: &Target) -> Result<Self, Error> {
        if target.topology() != Topology::Direct {
            // The lock that keeps others away belongs to a session.
            return Err(Error::NeedsSession { doing: "a rebuild" });
        }
        Ok(Self {
            target: target.clone(),
            fresh: target.schema().beside("rebuild")?,
            retired: target.schema().beside("retired")?,
        })
    }

    /// Where projection is to write until the swap.
    pub fn fresh(&self) -> Target {
        self.target.with_schema(self.fresh.clone())
    }

    /// Makes the second schema, empty, with checkpoints at 0. What an earlier rebuild left is dropped.
    ///
    /// # Errors
    /// [`Error`] of any kind; it can be tried again.
    pub async fn prepare(
        &self,
        partitions: Partitions,
        epoch: &str,
        deadline: Instant,
    ) -> Result<(), Error> {
        let mut live = self.session(&self.target, deadline).await?;
        self.discard(&mut live).await?;
        let mut fresh = self.session(&self.fresh(), deadline).await?;
        schema::migrate(&mut fresh, &self.fresh(), deadline).await?;
        checkpoints::ensure(&mut fresh, partitions, epoch).await
    }

    /// Copies what the log has forgotten: the rows of a partition below `floor`, the first position that the log still
    /// has. Heads are folded anew from the copied messages, and the new checkpoint moves to just below the floor.
    ///
    /// To be called once a partition after [`Plan::prepare`], in a transaction.
    ///
    /// # Errors
    /// [`Error::Statement`] or [`Error::Unstorable`].
    pub async fn copy_below(
        &self,
        conn: &mut PgConnection,
        partition: Partition,
        floor: u64,
    ) -> Result<(), Error> {
        let (live, fresh) = (self.target.schema().as_str(), self.fresh.as_str());
        let (partition, floor) = (partition.number(), write_position(floor)?);
        let sql = include_str!("sql/copy_below.sql")
            .replace("{live}", &format!("\"{live}\""))
            .replace("{fresh}", &format!("\"{fresh}\""))
            .replace("{partition}", &partition.to_string())
            .replace("{floor}", &floor.to_string());
        run(conn, sql, "copy what the log has forgotten").await
    }

    /// Puts the new tables in the place of the old ones.
    ///
    /// To be called in a transaction on the live schema that has [`checkpoints::lock_all`], after projection has
    /// brought the new tables up to those checkpoints. It waits for readers as long as the session's `lock_timeout`.
    ///
    /// # Errors
    /// [`Error::Statement`] or [`Error::Inconsistent`]; the transaction is to be rolled back then.
    pub async fn swap(&self, conn: &mut PgConnection, old: &[Checkpoint]) -> Result<Swap, Error> {
        let live = self.target.schema().as_str();
        let (fresh, retired) = (self.fresh.as_str(), self.retired.as_str());
        run(conn, format!("SET LOCAL search_path = \"{fresh}\""), "swap").await?;
        let new = checkpoints::lock_all(conn).await?;
        run(conn, format!("SET LOCAL search_path = \"{live}\""), "swap").await?;
        if let Some(behind) = behind(old, &new) {
            return Ok(behind);
        }
        // All at once and in the readers' order, so that nobody waits for anybody in a circle.
        let all = TABLES.map(|table| format!("\"{live}\".{table}")).join(", ");
        let moves = TABLES.map(|table| {
            format!(
                "ALTER TABLE \"{live}\".{table} SET SCHEMA \"{retired}\";
                 ALTER TABLE \"{fresh}\".{table} SET SCHEMA \"{live}\";"
            )
        });
        let sql = format!(
            "LOCK TABLE {all} IN ACCESS EXCLUSIVE MODE; CREATE SCHEMA \"{retired}\"; {}",
            moves.concat()
        );
        run(conn, sql, "swap the tables").await?;
        Ok(Swap::Done)
    }

    /// Drops the second and the retired schema with all that is in them, after a swap or to give a rebuild up.
    ///
    /// # Errors
    /// [`Error::Statement`].
    pub async fn discard(&self, conn: &mut PgConnection) -> Result<(), Error> {
        let (fresh, retired) = (self.fresh.as_str(), self.retired.as_str());
        let sql = format!("DROP SCHEMA IF EXISTS \"{fresh}\", \"{retired}\" CASCADE");
        run(conn, sql, "drop the schemas of a rebuild").await
    }

    async fn session(&self, target: &Target, deadline: Instant) -> Result<PgConnection, Error> {
        target.connect("rebuild", STATEMENT_TIMEOUT, deadline).await
    }
}

/// The advisory lock that a rebuild holds. The number is `rebuild` in ASCII.
const LOCK: i64 = 0x0072_6562_7569_6c64;

/// Takes the rebuild's lock for this session, if nobody has it.
///
/// # Errors
/// [`Error::Statement`].
pub async fn lock(conn: &mut PgConnection) -> Result<bool, Error> {
    sqlx::query_scalar!(r#"SELECT pg_try_advisory_lock($1) AS "locked!""#, LOCK)
        .fetch_one(conn)
        .await
        .map_err(while_doing("lock the rebuild"))
}

/// Whether nobody rebuilds. To be asked in a transaction, for whose length a rebuild that begins waits. What is deleted from the
/// log after it may be missed by a rebuild that has begun meanwhile; that one ends with an error and changes nothing.
///
/// # Errors
/// [`Error::Statement`].
pub async fn is_free(conn: &mut PgConnection) -> Result<bool, Error> {
    sqlx::query_scalar!(r#"SELECT pg_try_advisory_xact_lock_shared($1) AS "free!""#, LOCK)
        .fetch_one(conn)
        .await
        .map_err(while_doing("look whether somebody rebuilds"))
}

/// Dropping and making tables is quick; it is locks that take time, and they have a bound of their own.
const STATEMENT_TIMEOUT: Duration = Duration::from_mins(1);

/// The first partition whose new rows lack records that the old ones have. Old rows of another log have none of this one's.
fn behind(old: &[Checkpoint], new: &[Checkpoint]) -> Option<Swap> {
    old.iter().find_map(|old| {
        let new = new.iter().find(|new| new.partition == old.partition);
        // Positions of another log cannot be compared: its rows are what the rebuild is to get rid of.
        if new.is_some_and(|new| new.epoch != old.epoch) {
            return None;
        }
        let position = new.map_or(0, |new| new.position);
        (position < old.position).then_some(Swap::Behind {
            partition: old.partition,
            old: old.position,
            new: position,
        })
    })
}

/// Text with names of schemas in it cannot be checked by the macros. Every name is a [`Schema`], every number a number.
async fn run(conn: &mut PgConnection, sql: String, doing: &'static str) -> Result<(), Error> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.map_err(while_doing(doing))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(partition: u16, position: u64) -> Checkpoint {
        Checkpoint { partition, position, epoch: "e".to_owned() }
    }

    #[test]
    fn a_partition_that_lacks_records_or_is_missing_is_behind() {
        let old = [at(0, 5), at(1, 0)];
        assert_eq!(behind(&old, &[at(0, 5), at(1, 3)]), None);
        assert_eq!(behind(&old, &[at(0, 5)]), None);
        let lacking = Swap::Behind { partition: 0, old: 5, new: 4 };
        assert_eq!(behind(&old, &[at(0, 4), at(1, 3)]), Some(lacking));
        let foreign = |position| Checkpoint { epoch: "f".to_owned(), ..at(0, position) };
        assert_eq!(behind(&[foreign(9)], &[at(0, 4)]), None);
    }
}
