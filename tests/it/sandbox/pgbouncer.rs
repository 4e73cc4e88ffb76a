//! `PgBouncer` in front of a private Postgres: that it pools transactions, is found again, and leaves nothing behind.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay::sandbox::{PgBouncer, Pooling, Postgres, provide_pgbouncer};
use sqlx::{Connection, PgConnection, Row};
use tokio::time::timeout;

use super::{binaries, options, runs, signal, within};

/// The program, found or installed once for all tests.
#[expect(clippy::print_stderr, reason = "an installation takes a while and says what it does")]
pub async fn program() -> PathBuf {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join(".forebay");
    provide_pgbouncer(&options(&shared), &mut |line| eprintln!("{line}")).await.unwrap()
}

/// Which backend serves this client now.
async fn backend(conn: &mut PgConnection) -> i32 {
    let row = sqlx::raw_sql("SELECT pg_backend_pid()").fetch_one(conn).await;
    row.unwrap().get(0)
}

async fn execute(conn: &mut PgConnection, sql: &'static str) {
    sqlx::raw_sql(sql).execute(conn).await.unwrap();
}

#[tokio::test]
async fn clients_of_pgbouncer_share_a_backend_transaction_by_transaction() {
    let directory = tempfile::Builder::new().prefix("sand box").tempdir().unwrap();
    let options = options(directory.path());
    let postgres = Postgres::start(&binaries().await, &options).await.unwrap();
    postgres.create_database("world").await.unwrap();
    let pooling =
        Pooling { pool_size: 1, query_wait: Duration::from_secs(20), ..Pooling::default() };
    let mut bouncer =
        PgBouncer::start(&program().await, &options, &postgres, pooling).await.unwrap();
    let url = bouncer.url("world");
    let mut first = PgConnection::connect(&url).await.unwrap();
    let mut second = PgConnection::connect(&url).await.unwrap();
    let shared = backend(&mut first).await;
    assert_eq!(backend(&mut second).await, shared);

    // The only backend belongs to whoever has a transaction open on it.
    execute(&mut first, "BEGIN").await;
    assert_eq!(backend(&mut first).await, shared);
    {
        let waits = backend(&mut second);
        tokio::pin!(waits);
        timeout(Duration::from_millis(200), &mut waits).await.unwrap_err();
        execute(&mut first, "COMMIT").await;
        assert_eq!(within(waits).await, shared);
    }

    bouncer.pause().await;
    timeout(Duration::from_millis(200), backend(&mut first)).await.unwrap_err();
    bouncer.resume();

    let before = bouncer.pid();
    signal("KILL", before).await;
    let exit = within(bouncer.watch()).await.unwrap();
    assert_eq!(exit.status.unwrap().to_string(), "signal: 9 (SIGKILL)");
    bouncer.restart().await.unwrap();
    assert_eq!(bouncer.url("world"), url);
    let mut again = PgConnection::connect(&url).await.unwrap();
    backend(&mut again).await;
    let after = bouncer.pid();
    bouncer.stop().await.unwrap();
    assert!(!runs(before) && !runs(after));
    PgConnection::connect(&url).await.unwrap_err();
    postgres.stop().await.unwrap();
}
