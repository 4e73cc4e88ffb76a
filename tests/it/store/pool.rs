//! Leases: what goes back to a pool, what does not, and how long anybody waits.

use std::time::{Duration, Instant};

use forebay::admission::Overload;
use forebay::store::{Error, Interactive, PgConnection, Schema, Target};
use futures_util::FutureExt;

use crate::world::WISH;

use super::{pools, session, soon, target};

async fn backend(conn: &mut PgConnection) -> Result<i32, Error> {
    let pid = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(conn);
    pid.await.map_err(|source| Error::Statement { doing: "ask for the backend", source })
}

async fn pid(pool: &Interactive) -> i32 {
    let mut lease = pool.acquire(WISH, soon()).await.unwrap();
    lease.run(soon(), backend).await.unwrap()
}

async fn nap(conn: &mut PgConnection) -> Result<(), Error> {
    let slept = sqlx::query("SELECT pg_sleep(30)").execute(conn).await;
    drop(slept);
    Ok(())
}

async fn divide(conn: &mut PgConnection) -> Result<(), Error> {
    let failed = sqlx::query("SELECT 1 / 0").execute(conn).await;
    failed.map(drop).map_err(|source| Error::Statement { doing: "divide", source })
}

#[tokio::test]
async fn a_connection_in_order_is_used_again() {
    let (pool, _) = pools(&target().await, 2);
    let first = pid(&pool).await;
    assert_eq!(pool.status().idle, 1);
    assert_eq!(pid(&pool).await, first);
    let mut lease = pool.acquire(WISH, soon()).await.unwrap();
    let failed = lease.run(soon(), divide).await.unwrap_err();
    assert_eq!(failed.sqlstate().as_deref(), Some("22012"));
    drop(lease);
    assert_eq!(pid(&pool).await, first);
}

#[tokio::test]
async fn a_lease_whose_operation_was_cut_off_never_goes_back() {
    let (pool, _) = pools(&target().await, 2);
    let first = pid(&pool).await;
    let mut lease = pool.acquire(WISH, soon()).await.unwrap();
    let started = Instant::now();
    let cut = lease.run(started + Duration::from_millis(300), nap).await;
    assert!(matches!(cut, Err(Error::Deadline { .. })), "{cut:?}");
    assert!(started.elapsed() < Duration::from_secs(2));
    let spent = lease.run(soon(), backend).await;
    assert!(matches!(spent, Err(Error::Lost)), "{spent:?}");
    drop(lease);
    assert_eq!((pool.status().idle, pool.status().gate.in_use), (0, 0));
    assert_ne!(pid(&pool).await, first);
}

#[tokio::test]
async fn a_lease_whose_operation_was_dropped_never_goes_back() {
    let (pool, _) = pools(&target().await, 2);
    let first = pid(&pool).await;
    let mut lease = pool.acquire(WISH, soon()).await.unwrap();
    assert!(lease.run(soon(), nap).now_or_never().is_none());
    drop(lease);
    assert_eq!((pool.status().idle, pool.status().gate.in_use), (0, 0));
    assert_ne!(pid(&pool).await, first);
}

#[tokio::test]
async fn a_transaction_that_is_left_open_never_goes_back() {
    let (pool, _) = pools(&target().await, 2);
    let first = pid(&pool).await;
    let mut lease = pool.acquire(WISH, soon()).await.unwrap();
    let left = async |conn: &mut PgConnection| {
        let mut open = sqlx::Connection::begin(conn).await.unwrap();
        backend(&mut open).await
    };
    assert_eq!(lease.run(soon(), left).await.unwrap(), first);
    drop(lease);
    assert_ne!(pid(&pool).await, first);
}

#[tokio::test]
async fn a_transaction_commits_when_it_succeeds_and_is_undone_when_it_fails() {
    let (pool, _) = pools(&target().await, 1);
    let add = "INSERT INTO checkpoints (partition, position, epoch) VALUES (7, 1, 'e')";
    let count = async |conn: &mut PgConnection| {
        let count = sqlx::query_scalar("SELECT COUNT(*) FROM checkpoints WHERE partition = 7");
        Ok::<i64, Error>(count.fetch_one(conn).await.unwrap())
    };
    let mut lease = pool.acquire(WISH, soon()).await.unwrap();
    let undone = async |conn: &mut PgConnection| {
        sqlx::query(add).execute(&mut *conn).await.unwrap();
        divide(conn).await
    };
    assert!(lease.transaction(soon(), undone).await.is_err());
    assert_eq!(lease.run(soon(), count).await.unwrap(), 0);
    let done = async |conn: &mut PgConnection| {
        sqlx::query(add).execute(conn).await.unwrap();
        Ok(())
    };
    lease.transaction(soon(), done).await.unwrap();
    assert_eq!(lease.run(soon(), count).await.unwrap(), 1);
}

#[tokio::test]
async fn nobody_has_a_connection_without_a_permit() {
    let (pool, _) = pools(&target().await, 1);
    let lease = pool.acquire(WISH, soon()).await.unwrap();
    let late = pool.acquire(WISH, Instant::now() + Duration::from_millis(50)).await.unwrap_err();
    let by_deadline = Overload::Deadline;
    assert!(matches!(late, Error::Refused { source, .. } if source == by_deadline), "{late}");
    drop(lease);
    pool.close();
    let closed = pool.acquire(WISH, soon()).await.unwrap_err();
    assert!(
        matches!(closed, Error::Refused { source, .. } if source == Overload::Closed),
        "{closed}"
    );
    assert_eq!(pool.status().idle, 0);
}

#[tokio::test]
async fn a_connection_that_the_server_ended_is_noticed_and_the_others_are_asked() {
    let target = target().await;
    let (pool, _) = pools(&target, 3);
    let mut leases = Vec::new();
    for _ in 0..3 {
        let mut lease = pool.acquire(WISH, soon()).await.unwrap();
        lease.run(soon(), backend).await.unwrap();
        leases.push(lease);
    }
    drop(leases);
    let end = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
        WHERE application_name = 'forebay interactive' AND datname = current_database()";
    let ended = sqlx::query(end).execute(&mut session(&target).await).await;
    assert_eq!(ended.unwrap().rows_affected(), 3);
    let mut lease = pool.acquire(WISH, soon()).await.unwrap();
    let error = lease.run(soon(), backend).await;
    assert!(error.unwrap_err().is_retryable());
    drop(lease);
    assert_eq!(pool.status().idle, 2);
    let mut lease = pool.acquire(WISH, soon()).await.unwrap();
    assert!(lease.run(soon(), backend).await.is_ok());
    assert_eq!(pool.status().idle, 0);
}

#[tokio::test]
async fn a_server_that_does_not_answer_costs_a_few_waits_and_then_none() {
    // The kernel takes the connections; nobody ever reads from them.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://u@{}/d?sslmode=disable", silent.local_addr().unwrap());
    let (pool, _) = pools(&Target::parse(&url, Schema::default()).unwrap(), 2);
    for _ in 0..3 {
        let error =
            pool.acquire(WISH, Instant::now() + Duration::from_millis(300)).await.unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
    }
    assert!(pool.status().away);
    let error = pool.acquire(WISH, soon()).now_or_never().unwrap().unwrap_err();
    assert!(matches!(error, Error::Away { .. }), "{error}");
    assert!(error.is_retryable());
}

#[tokio::test]
async fn a_server_that_refuses_connections_is_away_at_once() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://u@{}/d?sslmode=disable", closed.local_addr().unwrap());
    drop(closed);
    let (pool, _) = pools(&Target::parse(&url, Schema::default()).unwrap(), 2);
    let mut last = None;
    for _ in 0..4 {
        last = pool.acquire(WISH, soon()).await.err();
    }
    assert!(matches!(last, Some(Error::Away { .. })), "{last:?}");
}

/// Futures of leases are sent between threads; this is checked when it compiles.
#[tokio::test]
async fn an_operation_can_run_in_a_spawned_task() {
    let (pool, _) = pools(&target().await, 1);
    let words = ["one".to_owned(), "two".to_owned()];
    let task = tokio::spawn(async move {
        let mut lease = pool.acquire(WISH, soon()).await?;
        let all: Vec<&str> = words.iter().map(String::as_str).collect();
        lease
            .transaction(soon(), async |conn| {
                let first = backend(conn).await?;
                Ok((first, all.len()))
            })
            .await
    });
    assert_eq!(task.await.unwrap().unwrap().1, 2);
}
