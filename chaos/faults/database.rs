//! What an unkind client does to Postgres: ends every session of others, or takes every connection there is.
//! Promises to give back what it took when that is dropped, and to fail where Postgres was not full.
//! Does not touch rows.

use std::time::Duration;

use anyhow::Context as _;
use forebay::store::{self, PgConnection};
use sqlx::error::DatabaseError;

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

/// Fewest that must have been taken: half of what the private Postgres has; the pools of a node hold far fewer.
const TAKEN_MIN: usize = 100;

/// `too_many_connections`, of Postgres' error codes.
const TOO_MANY: &str = "53300";

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
    let (mut taken, mut refusal) = fill(stage).await?;
    for _ in 0..ROUNDS {
        taken.truncate(taken.len().saturating_sub(LEFT));
        // Others may have been faster, and psql finds no room; then the next round ends them.
        drop(end_sessions(stage).await);
        let (more, refused) = fill(stage).await?;
        taken.extend(more);
        refusal = refused;
    }
    is_full(taken.len(), &refusal).map_err(anyhow::Error::msg)?;
    Ok(Taken(taken))
}

/// Why no further connection was to be had.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    /// There was one for every question.
    None,
    /// Postgres said so, with this code.
    Code(String),
    /// Something else was in the way.
    Other(String),
}

/// Whether every connection is taken.
fn is_full(taken: usize, refusal: &Refusal) -> Result<(), String> {
    match refusal {
        Refusal::Code(code) if code == TOO_MANY && taken >= TAKEN_MIN => Ok(()),
        Refusal::Code(_) | Refusal::None | Refusal::Other(_) => {
            Err(format!("Postgres was not full: {taken} connections taken, then {refusal:?}"))
        }
    }
}

async fn fill(stage: &Stage) -> anyhow::Result<(Vec<PgConnection>, Refusal)> {
    let target = stage.config().context("where Postgres is")?.database;
    let mut taken = Vec::new();
    while taken.len() < CONNECTIONS_MAX {
        let deadline = stage.clock.now() + DEADLINE;
        match target.connect(NAME, DEADLINE, deadline).await {
            Ok(conn) => taken.push(conn),
            Err(error) => return Ok((taken, refusal(&error))),
        }
    }
    Ok((taken, Refusal::None))
}

fn refusal(error: &store::Error) -> Refusal {
    let source = std::error::Error::source(error);
    let source = source.and_then(|source| source.downcast_ref::<sqlx::Error>());
    let code = source.and_then(sqlx::Error::as_database_error).and_then(DatabaseError::code);
    match code {
        Some(code) => Refusal::Code(code.into_owned()),
        None => Refusal::Other(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_for_want_of_connections_after_many_is_fullness() {
        let code = |code: &str| Refusal::Code(code.to_owned());
        for (taken, refusal, wanted) in [
            (190, code(TOO_MANY), true),
            (TAKEN_MIN, code(TOO_MANY), true),
            (TAKEN_MIN - 1, code(TOO_MANY), false),
            (190, code("57P03"), false),
            (400, Refusal::None, false),
            (190, Refusal::Other("the deadline passed".to_owned()), false),
        ] {
            assert_eq!(is_full(taken, &refusal).is_ok(), wanted, "{taken} {refusal:?}");
        }
    }
}
