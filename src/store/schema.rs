//! The schema's migrations: which there are, which are applied, applying the rest.
//! Promises that two nodes that start together migrate one after the other, and that waiting for the other ends.
//! Does not go back: a migration is safe while the previous version of the program still runs.

use std::time::Instant;

use sqlx::migrate::{Migrate, MigrateError, Migrator};
use sqlx::{AssertSqlSafe, PgConnection};
use tokio::time::timeout_at;

use super::{Error, Schema, Target, Topology, while_doing};

/// The files in `migrations/`, in the program. The lock is taken here, where it has a deadline.
static MIGRATIONS: Migrator = Migrator { locking: false, ..sqlx::migrate!() };

/// Names the lock that one migrator at a time holds: `forebay` in ASCII.
const LOCK: i64 = 0x0066_6f72_6562_6179;

/// Applies what is not applied yet to the schema, which is created if there is none, and says how many that were.
///
/// Idempotent by version. Each migration commits with its own row in `_sqlx_migrations`; behind a pooler of transactions
/// they all commit together. The session must be one of the target, and is to be dropped after an error.
///
/// # Errors
/// [`Error::Migrate`] when a migration fails or differs from what was applied; [`Error::Deadline`].
pub async fn migrate(
    conn: &mut PgConnection,
    target: &Target,
    deadline: Instant,
) -> Result<usize, Error> {
    let migrating = async {
        match target.topology() {
            Topology::Direct => migrate_locked(conn, target.schema()).await,
            Topology::TransactionPooler => {
                target
                    .perform(conn, async |conn| migrate_at_once(conn, target.schema()).await)
                    .await
            }
        }
    };
    let migrated = timeout_at(deadline.into(), migrating).await;
    migrated.unwrap_or(Err(Error::Deadline { doing: "migrate" }))
}

/// How many migrations are not applied yet. Creates nothing.
///
/// # Errors
/// [`Error::Migrate`] when what was applied is not what this program has.
pub async fn pending(conn: &mut PgConnection) -> Result<usize, Error> {
    let exists =
        sqlx::query_scalar!(r#"SELECT to_regclass('_sqlx_migrations') IS NOT NULL AS "exists!""#)
            .fetch_one(&mut *conn)
            .await
            .map_err(while_doing("look for migrations"))?;
    if !exists {
        return Ok(MIGRATIONS.iter().count());
    }
    let applied =
        conn.list_applied_migrations(&MIGRATIONS.table_name).await.map_err(Error::Migrate)?;
    let mut pending = 0;
    for migration in MIGRATIONS.iter() {
        match applied.iter().find(|a| a.version == migration.version) {
            None => pending += 1,
            Some(found) if found.checksum == migration.checksum => {}
            Some(found) => {
                return Err(Error::Migrate(MigrateError::VersionMismatch(found.version)));
            }
        }
    }
    Ok(pending)
}

async fn migrate_locked(conn: &mut PgConnection, schema: &Schema) -> Result<usize, Error> {
    // This wait is bounded by the deadline, not by the session's lock_timeout. The lock belongs to the session, so a
    // session that is dropped gives it back.
    let waiting = "wait for another migrator";
    sqlx::raw_sql("SET lock_timeout = 0")
        .execute(&mut *conn)
        .await
        .map_err(while_doing(waiting))?;
    sqlx::query!("SELECT pg_advisory_lock($1)", LOCK)
        .execute(&mut *conn)
        .await
        .map_err(while_doing(waiting))?;
    sqlx::raw_sql("RESET lock_timeout").execute(&mut *conn).await.map_err(while_doing(waiting))?;
    let result = apply(conn, schema).await;
    sqlx::query_scalar!("SELECT pg_advisory_unlock($1)", LOCK)
        .fetch_one(&mut *conn)
        .await
        .map_err(while_doing("let the next migrator go on"))?;
    result
}

/// All of it in the open transaction, which holds the lock: behind a pooler a lock of the session would be left with it.
async fn migrate_at_once(conn: &mut PgConnection, schema: &Schema) -> Result<usize, Error> {
    let waiting = "wait for another migrator";
    sqlx::raw_sql("SET LOCAL lock_timeout = 0")
        .execute(&mut *conn)
        .await
        .map_err(while_doing(waiting))?;
    sqlx::query!("SELECT pg_advisory_xact_lock($1)", LOCK)
        .execute(&mut *conn)
        .await
        .map_err(while_doing(waiting))?;
    apply(conn, schema).await
}

async fn apply(conn: &mut PgConnection, schema: &Schema) -> Result<usize, Error> {
    let creating = "create the schema";
    let current = sqlx::query_scalar!("SELECT current_schema()")
        .fetch_one(&mut *conn)
        .await
        .map_err(while_doing(creating))?;
    // Asked for only when it is missing: to create what exists needs a right that the program should not need.
    if current.as_deref() != Some(schema.as_str()) {
        let sql = format!("CREATE SCHEMA \"{}\"", schema.as_str());
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut *conn)
            .await
            .map_err(while_doing(creating))?;
    }
    let count = pending(conn).await?;
    // `run` would ask for any lender of connections, which makes the future of a supervised task nameless.
    MIGRATIONS.run_direct(None, conn, false).await.map_err(Error::Migrate)?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_has_every_migration_of_the_folder() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations");
        let files = std::fs::read_dir(folder).unwrap().count();
        assert_eq!(MIGRATIONS.iter().count(), files);
        let forward = |m: &sqlx::migrate::Migration| !m.migration_type.is_down_migration();
        assert!(MIGRATIONS.iter().all(forward));
    }
}
