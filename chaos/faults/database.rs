//! What an unkind client does to Postgres: ends every session of others, or takes every connection there is.
//! Promises to give back what it took when that is dropped.
//! Does not touch rows.

use std::time::Duration;

use forebay::store::PgConnection;

use crate::stage::Stage;

/// What it calls itself.
const NAME: &str = "chaos";

/// Longest wait for a connection or a statement.
const DEADLINE: Duration = Duration::from_secs(10);

/// More connections than the private Postgres has.
const CONNECTIONS_MAX: usize = 400;

/// How often the sessions of others are ended: who comes back at once may be faster than who takes.
const ROUNDS: usize = 3;

/// Connections that are left for psql meanwhile.
const LEFT: usize = 5;

/// Connections that somebody has taken.
#[derive(Debug)]
pub(crate) struct Taken(#[expect(dead_code, reason = "they are held, not used")] Vec<PgConnection>);

/// Ends every session of others.
pub(crate) async fn end_sessions(stage: &Stage) -> anyhow::Result<()> {
    Ok(stage.postgres.end_sessions_but(NAME).await?)
}

/// Takes every connection that Postgres has. Some are left for psql, which ends the sessions of others, so that they must
/// ask again; then those are taken too.
pub(crate) async fn take(stage: &Stage) -> anyhow::Result<Taken> {
    let mut taken = fill(stage).await?;
    for _ in 0..ROUNDS {
        taken.truncate(taken.len().saturating_sub(LEFT));
        // Others may have been faster, and psql finds no room; then the next round ends them.
        drop(end_sessions(stage).await);
        taken.extend(fill(stage).await?);
    }
    Ok(Taken(taken))
}

async fn fill(stage: &Stage) -> anyhow::Result<Vec<PgConnection>> {
    let target = stage.config()?.database;
    let mut taken = Vec::new();
    while taken.len() < CONNECTIONS_MAX {
        let deadline = stage.clock.now() + DEADLINE;
        // The first that is refused: it is full.
        let Ok(conn) = target.connect(NAME, DEADLINE, deadline).await else { break };
        taken.push(conn);
    }
    Ok(taken)
}
