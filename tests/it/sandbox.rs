//! The private services: what they keep over kills and restarts, and that nothing is left of them.

pub mod pgbouncer;

use std::future::Future;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use forebay::sandbox::{
    Binaries, Durability, Error, Install, Nats, Options, PgBouncer, Pooling, Postgres, provide,
};
use sqlx::{Connection, PgConnection};
use tokio::process::Command;
use tokio::time::{interval, timeout};

/// The root that the helper process below is to hold, and how.
const HOLD: &str = "FOREBAY_TEST_HOLD";

#[tokio::test]
async fn postgres_keeps_what_was_committed_over_a_kill_and_falls_silent_while_paused() {
    let directory = tempfile::Builder::new().prefix("sand box").tempdir().unwrap();
    let options = options(directory.path());
    let mut postgres = Postgres::start(&binaries().await, &options).await.unwrap();
    postgres.create_database("world").await.unwrap();
    postgres.create_database("world").await.unwrap();
    assert!(matches!(postgres.create_database("a b").await, Err(Error::DatabaseName { .. })));
    let url = postgres.url("world");
    let mut connection = PgConnection::connect(&url).await.unwrap();
    query(&mut connection, "CREATE TABLE kept (n int)").await.unwrap();
    query(&mut connection, "INSERT INTO kept VALUES (1)").await.unwrap();

    postgres.pause().await;
    let silent = timeout(Duration::from_millis(200), query(&mut connection, "TABLE kept")).await;
    assert!(silent.is_err(), "a paused server answered");
    postgres.resume();
    let mut connection = PgConnection::connect(&url).await.unwrap();
    assert_eq!(query(&mut connection, "TABLE kept").await.unwrap(), 1);

    let first = postgres.pid();
    postgres.pause().await;
    postgres.kill().await.unwrap();
    assert!(!runs(first));
    assert!(postgres.watch().await.unwrap().status.is_none());
    query(&mut connection, "TABLE kept").await.unwrap_err();
    postgres.restart().await.unwrap();
    assert_eq!(postgres.url("world"), url);
    let mut connection = PgConnection::connect(&url).await.unwrap();
    assert_eq!(query(&mut connection, "TABLE kept").await.unwrap(), 1);

    let second = postgres.pid();
    signal("KILL", second).await;
    let exit = within(postgres.watch()).await.unwrap();
    assert_eq!(exit.status.unwrap().to_string(), "signal: 9 (SIGKILL)");
    postgres.restart().await.unwrap();
    let third = postgres.pid();
    postgres.stop().await.unwrap();
    assert!(!runs(second) && !runs(third));
}

#[tokio::test]
async fn nats_keeps_port_and_messages_over_a_kill() {
    let directory = tempfile::Builder::new().prefix("sand box").tempdir().unwrap();
    let binaries = binaries().await;
    let options = options(directory.path());
    let mut nats = Nats::start(&binaries, &options).await.unwrap();
    let url = nats.url();
    let stream = async_nats::jetstream::stream::Config {
        name: "KEPT".into(),
        subjects: vec!["kept".into()],
        ..Default::default()
    };
    let client = async_nats::jetstream::new(async_nats::connect(&url).await.unwrap());
    client.create_stream(stream).await.unwrap();
    client.publish("kept", "1".into()).await.unwrap().await.unwrap();

    nats.pause().await;
    let silent = timeout(Duration::from_millis(200), async_nats::connect(&url)).await;
    assert!(silent.is_err(), "a paused server answered");
    nats.resume();
    client.publish("kept", "2".into()).await.unwrap().await.unwrap();

    let first = nats.pid();
    nats.kill().await.unwrap();
    assert!(!runs(first));
    nats.restart().await.unwrap();
    assert_eq!(nats.url(), url);
    let client = async_nats::jetstream::new(async_nats::connect(&url).await.unwrap());
    assert_eq!(client.get_stream("KEPT").await.unwrap().cached_info().state.messages, 2);

    // A later run finds the same port, and one whose port was taken meanwhile finds another.
    nats.stop().await.unwrap();
    let nats = Nats::start(&binaries, &options).await.unwrap();
    assert_eq!(nats.url(), url);
    nats.stop().await.unwrap();
    let port: u16 = url.rsplit(':').next().unwrap().parse().unwrap();
    let _squatter = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    let nats = Nats::start(&binaries, &options).await.unwrap();
    assert_ne!(nats.url(), url);
    nats.stop().await.unwrap();
}

#[tokio::test]
async fn a_second_owner_of_a_root_is_refused_and_told_who_the_first_is() {
    let directory = tempfile::tempdir().unwrap();
    let binaries = binaries().await;
    let options = options(directory.path());
    let nats = Nats::start(&binaries, &options).await.unwrap();
    let refused = Nats::start(&binaries, &options).await.unwrap_err();
    assert!(matches!(refused, Error::InUse { pid: Some(pid), .. } if pid == std::process::id()));
    nats.stop().await.unwrap();
}

#[tokio::test]
async fn nothing_survives_a_parent_that_is_killed() {
    end_with_parent("running").await;
}

#[tokio::test]
async fn nothing_survives_a_parent_that_is_killed_while_its_services_are_paused() {
    end_with_parent("paused").await;
}

async fn end_with_parent(how: &str) {
    let directory = tempfile::tempdir().unwrap();
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args(["sandbox::held_until_killed", "--exact", "--ignored", "--nocapture"])
        .env(HOLD, format!("{how}:{}", directory.path().display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pids = directory.path().join("pids");
    eventually(|| pids.exists()).await;
    let pids: Vec<u32> = std::fs::read_to_string(&pids)
        .unwrap()
        .split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect();
    assert!(pids.len() > 4, "the sessions of Postgres count too");
    assert!(pids.iter().all(|&pid| runs(pid)));

    parent.kill().await.unwrap();
    eventually(|| !pids.iter().any(|&pid| runs(pid))).await;

    let postgres = Postgres::start(&binaries().await, &options(directory.path())).await.unwrap();
    postgres.stop().await.unwrap();
}

/// The parent of the two tests above: starts all services and waits for its end.
#[tokio::test]
#[ignore = "started by other tests as a process of its own"]
async fn held_until_killed() {
    let Some(hold) = std::env::var_os(HOLD) else {
        return;
    };
    let hold = hold.into_string().unwrap();
    let (how, root) = hold.split_once(':').unwrap();
    let root = Path::new(root);
    let binaries = binaries().await;
    let postgres = Postgres::start(&binaries, &options(root)).await.unwrap();
    let nats = Nats::start(&binaries, &options(root)).await.unwrap();
    let program = pgbouncer::program().await;
    let (options, pooling) = (options(root), Pooling::default());
    let bouncer = PgBouncer::start(&program, &options, &postgres, pooling).await.unwrap();
    let mut pids = vec![postgres.pid(), nats.pid(), bouncer.pid()];
    pids.extend(children(postgres.pid()));
    if how == "paused" {
        postgres.pause().await;
        nats.pause().await;
        bouncer.pause().await;
    }
    let text: Vec<String> = pids.iter().map(u32::to_string).collect();
    std::fs::write(root.join("pids.new"), text.join(" ")).unwrap();
    std::fs::rename(root.join("pids.new"), root.join("pids")).unwrap();
    std::future::pending::<()>().await;
}

/// The programs, installed once for all tests below the directory that `forebay dev` uses too.
#[expect(clippy::print_stderr, reason = "an installation takes a while and says what it does")]
async fn binaries() -> Binaries {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join(".forebay");
    provide(&options(&shared), &mut |line| eprintln!("{line}")).await.unwrap()
}

fn options(root: &Path) -> Options {
    Options { root: root.to_owned(), install: Install::Allow, durability: Durability::Fast }
}

async fn query(connection: &mut PgConnection, sql: &'static str) -> Result<u64, sqlx::Error> {
    sqlx::raw_sql(sql).execute(connection).await.map(|done| done.rows_affected())
}

async fn signal(name: &str, pid: u32) {
    let pid = pid.to_string();
    let status = Command::new("kill").args(["-s", name, &pid]).status().await.unwrap();
    assert!(status.success());
}

/// Whether the process is there and not just waiting to be reaped.
fn runs(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn children(parent: u32) -> Vec<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let text = std::fs::read_to_string(path).unwrap();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(20), future).await.expect("nothing happened for 20 s")
}

async fn eventually(condition: impl Fn() -> bool) {
    let mut beat = interval(Duration::from_millis(20));
    within(async {
        while !condition() {
            beat.tick().await;
        }
    })
    .await;
}
