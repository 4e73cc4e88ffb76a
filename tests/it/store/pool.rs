//! Leases: what goes back to a pool, what does not, and how long anybody waits.

use std::time::{Duration, Instant};

use forebay::admission::Overload;
use forebay::store::{Error, Interactive, PgConnection, Schema, Target};
use futures_util::FutureExt;
use tokio::time::timeout;

use super::{cold_pools, pools, soon, target};
use crate::world::{WISH, eventually};

async fn backend(conn: &mut PgConnection) -> Result<i32, Error> {
    let pid = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(conn);
    pid.await.map_err(|source| Error::Statement { doing: "ask for the backend", source })
}

fn is_refused(error: &Error, why: Overload) -> bool {
    matches!(error, Error::Refused { source, .. } if *source == why)
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

const ADD: &str = "INSERT INTO checkpoints (partition, position, epoch) VALUES (7, 1, 'e')";

async fn count(conn: &mut PgConnection) -> Result<i64, Error> {
    let count = sqlx::query_scalar("SELECT COUNT(*) FROM checkpoints WHERE partition = 7");
    count.fetch_one(conn).await.map_err(|source| Error::Statement { doing: "count", source })
}

async fn divide(conn: &mut PgConnection) -> Result<(), Error> {
    let failed = sqlx::query("SELECT 1 / 0").execute(conn).await;
    failed.map(drop).map_err(|source| Error::Statement { doing: "divide", source })
}

#[tokio::test]
async fn a_connection_in_order_is_used_again() {
    let (pool, _) = pools(&target().await, 2).await;
    let first = pid(&pool).await;
    assert_eq!(pid(&pool).await, first);
    let mut lease = pool.acquire(WISH, soon()).await.unwrap();
    let failed = lease.run(soon(), divide).await.unwrap_err();
    assert_eq!(failed.sqlstate().as_deref(), Some("22012"));
    drop(lease);
    assert_eq!(pid(&pool).await, first);
}

#[tokio::test]
async fn what_a_deadline_cut_off_is_cancelled_and_the_connection_goes_back() {
    let (pool, _) = pools(&target().await, 1).await;
    let first = pid(&pool).await;
    let mut lease = pool.acquire(WISH, soon()).await.unwrap();
    let started = Instant::now();
    let cut = lease.run(started + Duration::from_millis(300), nap).await;
    assert!(matches!(cut, Err(Error::Deadline { .. })), "{cut:?}");
    let spent = lease.run(soon(), backend).await;
    assert!(matches!(spent, Err(Error::Lost)), "{spent:?}");
    drop(lease);
    assert_eq!(pool.status().gate.in_use, 1, "it is being cleared");
    eventually("it is cleared", async || pool.status().gate.in_use == 0).await;
    assert!(started.elapsed() < Duration::from_secs(3));
    assert_eq!(pid(&pool).await, first);
    assert_eq!(pool.status().totals.cancels_sent, 1);
}

#[tokio::test]
async fn what_its_caller_dropped_is_cancelled_and_the_connection_goes_back() {
    let (pool, _) = pools(&target().await, 1).await;
    let first = pid(&pool).await;
    let mut lease = pool.acquire(WISH, soon()).await.unwrap();
    // Long enough for the statement to have begun.
    let left = timeout(Duration::from_millis(100), lease.run(soon(), nap)).await;
    assert!(left.is_err(), "its caller leaves");
    drop(lease);
    eventually("it is cleared", async || pool.status().gate.in_use == 0).await;
    assert_eq!(pid(&pool).await, first);
    assert_eq!(pool.status().totals.cancels_sent, 1);
}

#[tokio::test]
async fn what_ends_within_the_grace_is_not_cancelled() {
    let (pool, _) = pools(&target().await, 1).await;
    let first = pid(&pool).await;
    for _ in 0..20 {
        let mut lease = pool.acquire(WISH, soon()).await.unwrap();
        // Often the answer is not there yet.
        drop(lease.run(soon(), backend).now_or_never());
        drop(lease);
        assert_eq!(pid(&pool).await, first);
    }
    assert_eq!(pool.status().totals.cancels_sent, 0);
}

#[tokio::test]
async fn nothing_of_a_transaction_that_is_left_open_reaches_the_next_user() {
    let (pool, _) = pools(&target().await, 1).await;
    let first = pid(&pool).await;
    let mut lease = pool.acquire(WISH, soon()).await.unwrap();
    let left = async |conn: &mut PgConnection| {
        let mut open = sqlx::Connection::begin(conn).await.unwrap();
        sqlx::query(ADD).execute(&mut *open).await.unwrap();
        backend(&mut open).await
    };
    assert_eq!(lease.run(soon(), left).await.unwrap(), first);
    drop(lease);
    let mut lease = pool.acquire(WISH, soon()).await.unwrap();
    assert_eq!(lease.run(soon(), count).await.unwrap(), 0);
    assert_eq!(lease.run(soon(), backend).await.unwrap(), first);
}

#[tokio::test]
async fn a_transaction_commits_when_it_succeeds_and_is_undone_when_it_fails() {
    let (pool, _) = pools(&target().await, 1).await;
    let mut lease = pool.acquire(WISH, soon()).await.unwrap();
    let undone = async |conn: &mut PgConnection| {
        sqlx::query(ADD).execute(&mut *conn).await.unwrap();
        divide(conn).await
    };
    assert!(lease.transaction(soon(), undone).await.is_err());
    assert_eq!(lease.run(soon(), count).await.unwrap(), 0);
    let done = async |conn: &mut PgConnection| {
        sqlx::query(ADD).execute(conn).await.unwrap();
        Ok(())
    };
    lease.transaction(soon(), done).await.unwrap();
    assert_eq!(lease.run(soon(), count).await.unwrap(), 1);
}

#[tokio::test]
async fn nobody_has_a_connection_without_a_permit() {
    let (pool, _) = pools(&target().await, 1).await;
    let lease = pool.acquire(WISH, soon()).await.unwrap();
    let late = pool.acquire(WISH, Instant::now() + Duration::from_millis(50)).await.unwrap_err();
    assert!(is_refused(&late, Overload::Deadline), "{late}");
    drop(lease);
    pool.close(soon()).await;
    let closed = pool.acquire(WISH, soon()).await.unwrap_err();
    assert!(is_refused(&closed, Overload::Closed), "{closed}");
    assert_eq!(pool.status().idle, 0);
}

#[tokio::test]
async fn a_server_that_does_not_answer_costs_a_tenth_of_a_second() {
    // The kernel takes the connections; nobody ever reads from them.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://u@{}/d?sslmode=disable", silent.local_addr().unwrap());
    let (pool, _) = cold_pools(&Target::parse(&url, Schema::default()).unwrap(), 2);
    assert!(!pool.warm(Instant::now() + Duration::from_millis(300)).await);
    let began = Instant::now();
    let error = pool.acquire(WISH, soon()).await.unwrap_err();
    assert!(is_refused(&error, Overload::ZeroCapacity), "{error}");
    assert!(error.is_retryable());
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(pool.status().creating, 1);
}

#[tokio::test]
async fn a_server_that_refuses_connections_is_tried_more_and_more_rarely() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://u@{}/d?sslmode=disable", closed.local_addr().unwrap());
    drop(closed);
    let (pool, _) = cold_pools(&Target::parse(&url, Schema::default()).unwrap(), 2);
    eventually("an attempt has failed", async || pool.status().away).await;
    let error = pool.acquire(WISH, soon()).now_or_never().unwrap().unwrap_err();
    assert!(is_refused(&error, Overload::ZeroCapacity), "{error}");
}

/// Futures of leases are sent between threads; this is checked when it compiles.
#[tokio::test]
async fn an_operation_can_run_in_a_spawned_task() {
    let (pool, _) = pools(&target().await, 1).await;
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

#[tokio::test]
async fn a_task_that_gave_up_may_ask_again_while_its_connection_is_cleared() {
    let (pool, _) = pools(&target().await, 2).await;
    let task = tokio::spawn(async move {
        for _ in 0..2 {
            let mut lease = pool.acquire(WISH, soon()).await?;
            let cut = lease.run(Instant::now() + Duration::from_millis(50), nap).await;
            assert!(matches!(cut, Err(Error::Deadline { .. })), "{cut:?}");
        }
        let mut lease = pool.acquire(WISH, soon()).await?;
        let nested = pool.acquire(WISH, soon()).await.unwrap_err();
        assert!(is_refused(&nested, Overload::Nested), "{nested}");
        assert!(!nested.is_retryable());
        lease.run(soon(), backend).await
    });
    assert!(task.await.unwrap().unwrap() > 0);
}

#[tokio::test]
async fn a_mistake_in_a_statement_costs_no_connection() {
    let (pool, _) = pools(&target().await, 1).await;
    let first = pid(&pool).await;
    for sql in ["SELECT no_such_column", "SELECT * FROM no_such_table", "SELEC"] {
        let mut lease = pool.acquire(WISH, soon()).await.unwrap();
        let failed = lease.run(soon(), async |conn: &mut PgConnection| {
            let failed = sqlx::query(sql).execute(conn).await;
            failed.map(drop).map_err(|source| Error::Statement { doing: "err", source })
        });
        let failed = failed.await.unwrap_err();
        assert_eq!(failed.kind(), forebay::store::Kind::Bug);
    }
    assert_eq!(pid(&pool).await, first);
}

#[tokio::test]
async fn a_request_without_time_left_spoils_no_connection() {
    let target = target().await;
    let (pool, _) = pools(&target, 2).await;
    let first = pid(&pool).await;
    let mut lease = pool.acquire(WISH, soon()).await.unwrap();
    // From here on idle connections are asked before they are used.
    let end = "SELECT pg_terminate_backend(pg_backend_pid())";
    let ended = lease.run(soon(), async |conn: &mut PgConnection| {
        let ended = sqlx::query(end).execute(conn).await;
        ended.map(drop).map_err(|source| Error::Statement { doing: "end", source })
    });
    assert!(ended.await.unwrap_err().is_retryable());
    drop(lease);
    eventually("there are two again", async || pool.status().idle == 2).await;
    let lost = pool.status().totals.destroyed;
    for _ in 0..5 {
        drop(pool.acquire(WISH, Instant::now()).await);
    }
    eventually("all are back", async || pool.status().gate.in_use == 0).await;
    assert_eq!(pool.status().totals.destroyed, lost);
    assert!(pid(&pool).await != first || lost == 1);
}

#[tokio::test]
async fn a_server_that_stops_takes_leave_of_postgres() {
    let target = target().await;
    let mut means = super::means();
    let supervisor = means.supervisor.clone();
    let (pool, _) = super::open_with(&target, 3, &mut means);
    assert!(pool.warm(soon()).await);
    let mut lease = pool.acquire(WISH, soon()).await.unwrap();
    // Long enough for the statement to have begun.
    let left = timeout(Duration::from_millis(100), lease.run(soon(), nap)).await;
    assert!(left.is_err(), "its caller leaves");
    drop(lease);
    assert!(supervisor.drain().await, "everything ended by itself");
    let totals = pool.status().totals;
    assert_eq!(totals.cancels_sent, 1, "what ran was ended, and not left to itself");
    assert_eq!(totals.destroyed, totals.created);
    let mut watcher = super::session(&target).await;
    let left = "SELECT COUNT(*) FROM pg_stat_activity
        WHERE application_name LIKE 'forebay %active' AND datname = current_database()";
    eventually("no session is left", async || {
        sqlx::query_scalar::<_, i64>(left).fetch_one(&mut watcher).await.unwrap() == 0
    })
    .await;
    let closed = pool.acquire(WISH, soon()).await.unwrap_err();
    assert!(is_refused(&closed, Overload::Closed), "{closed}");
}
