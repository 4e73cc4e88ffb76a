//! What a pool does when sessions end, the server stops, is killed or has no room, and when callers go away.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use forebay::admission::Overload;
use forebay::store::{Error, Interactive, PgConnection, Schema, Target};
use futures_util::poll;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use super::{cold_pools, pools, session, soon, target};
use crate::world::{PATIENCE, WISH, World, eventually};

/// Connections that may be made at once beyond those that are being replaced.
const BURST: i64 = 5;

/// Lets the load go on for so long.
async fn pass(time: Duration) {
    drop(timeout(time, std::future::pending::<()>()).await);
}

/// What came of requests that each know their own answer.
#[derive(Default)]
struct Tally {
    answered: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    gone: AtomicU64,
}

impl Tally {
    fn of(count: &AtomicU64) -> u64 {
        count.load(Ordering::Relaxed)
    }
}

/// Asks for a number and insists on getting this one.
async fn echo(conn: &mut PgConnection, number: i64, nap: f64) -> Result<(), Error> {
    let asked = sqlx::query_scalar("SELECT $1::bigint FROM pg_sleep($2)").bind(number).bind(nap);
    let answer: i64 =
        asked.fetch_one(conn).await.map_err(|source| Error::Statement { doing: "echo", source })?;
    assert_eq!(answer, number, "somebody else's row");
    Ok(())
}

async fn request(
    pool: &Interactive,
    number: i64,
    patience: Duration,
    nap: f64,
) -> Result<(), Error> {
    let deadline = Instant::now() + patience;
    let mut lease = pool.acquire(WISH, deadline).await?;
    lease.run(deadline, async |conn| echo(conn, number, nap).await).await
}

/// Requests at a fixed rate, until the time is over; a part of them is dropped by their callers after 5 ms.
async fn drive(
    pool: &Interactive,
    tally: &Arc<Tally>,
    (pace, length): (Duration, Duration),
    dropped_of_ten: u64,
) {
    let (began, mut tick) = (Instant::now(), interval(pace));
    let mut running = JoinSet::new();
    let mut number = 0_u32;
    while began.elapsed() < length {
        tick.tick().await;
        while let Some(ended) = running.try_join_next() {
            ended.unwrap();
        }
        number += 1;
        let (pool, tally) = (pool.clone(), Arc::clone(tally));
        running.spawn(async move {
            let patience = Duration::from_secs(1);
            let is_dropped = u64::from(number % 10) < dropped_of_ten;
            // Some of those that are dropped end within the grace, some must be cancelled.
            let nap = if is_dropped { f64::from(number % 4) * 0.004 } else { 0.002 };
            let asking = request(&pool, i64::from(number), patience, nap);
            let answered = if is_dropped {
                timeout(Duration::from_millis(5), asking).await.ok()
            } else {
                let late = patience + Duration::from_millis(500);
                Some(timeout(late, asking).await.expect("an answer within the deadline"))
            };
            let count = match answered {
                None => &tally.gone,
                Some(Ok(())) => &tally.answered,
                Some(Err(Error::Refused { source, .. })) => {
                    assert!(!matches!(source, Overload::Closed | Overload::Nested), "{source}");
                    &tally.refused
                }
                Some(Err(error)) => {
                    assert!(error.is_retryable(), "{error:?}");
                    &tally.failed
                }
            };
            count.fetch_add(1, Ordering::Relaxed);
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.unwrap();
    }
}

async fn sessions(conn: &mut PgConnection) -> i64 {
    let count = "SELECT COUNT(*) FROM pg_stat_activity
        WHERE application_name = 'forebay interactive' AND datname = current_database()";
    sqlx::query_scalar(count).fetch_one(conn).await.unwrap()
}

async fn assert_at_rest(pool: &Interactive) {
    eventually("every permit is back", async || {
        let status = pool.status();
        status.gate.in_use == 0 && status.gate.waiting == 0 && status.idle == status.live
    })
    .await;
}

const END_ALL: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = 'forebay interactive' AND datname = current_database()";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_whose_sessions_are_all_ended_is_whole_again_within_seconds() {
    let target = target().await;
    let (pool, _) = pools(&target, 6).await;
    let tally = Arc::new(Tally::default());
    let mut watcher = session(&target).await;
    let pace = (Duration::from_millis(2), Duration::from_secs(6));
    let watching = async {
        let mut tick = interval(Duration::from_millis(100));
        for round in 0..40 {
            tick.tick().await;
            if round % 15 == 10 {
                sqlx::query(END_ALL).execute(&mut watcher).await.unwrap();
            }
            let count = sessions(&mut watcher).await;
            assert!(count <= 6 + BURST, "{count} sessions");
        }
    };
    tokio::join!(drive(&pool, &tally, pace, 0), watching);
    assert_at_rest(&pool).await;
    let (answered, failed) = (Tally::of(&tally.answered), Tally::of(&tally.failed));
    println!("{answered} answered, {failed} failed, {} refused", Tally::of(&tally.refused));
    assert!(answered > 1_500, "{answered} answered");
    assert!(failed <= 12, "each session fails its user once: {failed}");
    let began = Instant::now();
    let leases = full(&pool, 6).await;
    assert!(began.elapsed() < Duration::from_secs(10));
    drop(leases);
}

/// Waits until the pool has grown to this many connections, with a user each.
async fn full(pool: &Interactive, size: usize) -> Vec<forebay::store::Lease> {
    let mut leases = Vec::new();
    while leases.len() < size {
        let wish = Instant::now() + Duration::from_millis(500);
        leases.extend(pool.acquire(WISH, wish).await.ok());
    }
    leases
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_go_away_leave_nothing_behind() {
    going_away(Duration::from_secs(5)).await;
}

/// `cargo test --release --test it -- --ignored callers_that_go_away_for_a_minute`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute"]
async fn callers_that_go_away_for_a_minute() {
    going_away(Duration::from_mins(1)).await;
}

async fn going_away(length: Duration) {
    let target = target().await;
    let (pool, _) = pools(&target, 6).await;
    let tally = Arc::new(Tally::default());
    drive(&pool, &tally, (Duration::from_millis(1), length), 3).await;
    assert_at_rest(&pool).await;
    let (answered, gone) = (Tally::of(&tally.answered), Tally::of(&tally.gone));
    let status = pool.status();
    println!("{answered} answered, {gone} gone, {:?}", status.totals);
    assert_eq!(Tally::of(&tally.failed), 0);
    assert!(gone > 0 && answered > 100);
    assert!(sessions(&mut session(&target).await).await <= 6);
    assert!(status.totals.created <= 6 + status.totals.destroyed);
    assert_eq!(status.totals.destroyed, 0, "every connection was cleared, none was thrown away");
}

#[tokio::test]
async fn a_begin_that_is_dropped_at_any_await_leaves_no_transaction() {
    let target = target().await;
    let (pool, _) = pools(&target, 1).await;
    let add = "INSERT INTO checkpoints (partition, position, epoch) VALUES ($1, 1, 'e')";
    for polls in 0..40_i16 {
        let mut lease = pool.acquire(WISH, soon()).await.unwrap();
        {
            let mut transaction = Box::pin(lease.transaction(soon(), async |conn| {
                sqlx::query(add).bind(1_000 + polls).execute(conn).await.unwrap();
                std::future::pending::<Result<(), Error>>().await
            }));
            for _ in 0..polls {
                assert!(matches!(poll!(&mut transaction), Poll::Pending));
                pass(Duration::from_micros(200)).await;
            }
        }
        drop(lease);
        let mut lease = pool.acquire(WISH, soon()).await.unwrap();
        let add_own = async |conn: &mut PgConnection| {
            sqlx::query(add).bind(2_000 + polls).execute(conn).await.unwrap();
            Ok(())
        };
        lease.run(soon(), add_own).await.unwrap();
    }
    let mut watcher = session(&target).await;
    let count = "SELECT COUNT(*) FILTER (WHERE partition < 2000),
        COUNT(*) FILTER (WHERE partition >= 2000) FROM checkpoints";
    let (left, own): (i64, i64) = sqlx::query_as(count).fetch_one(&mut watcher).await.unwrap();
    assert_eq!((left, own), (0, 40), "what was dropped is undone, what others wrote is there");
    assert_eq!(pool.status().totals.destroyed, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_room_gives_what_it_has() {
    let target = target().await;
    let mut admin = session(&target).await;
    let role = format!("narrow_{}", std::process::id());
    for sql in [
        format!("CREATE ROLE {role} LOGIN CONNECTION LIMIT 3"),
        format!("GRANT USAGE ON SCHEMA public TO {role}"),
    ] {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut admin).await.unwrap();
    }
    let narrow = target_as(&role).await;
    let (pool, _) = cold_pools(&narrow, 8);
    let tally = Arc::new(Tally::default());
    drive(&pool, &tally, (Duration::from_millis(1), Duration::from_secs(4)), 0).await;
    let answered = Tally::of(&tally.answered);
    println!("{answered} answered, {} refused", Tally::of(&tally.refused));
    assert!(answered > 200, "{answered}");
    assert_eq!(Tally::of(&tally.failed), 0, "only the pool hears that there is no room");
    assert!(pool.status().live <= 3);
    assert_at_rest(&pool).await;
}

/// A database on the shared server, as somebody else.
async fn target_as(role: &str) -> Target {
    let url = crate::world::postgres().await;
    Target::parse(&format!("{url}&user={role}"), Schema::default()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_paused_for_ten_seconds_is_used_again_within_two() {
    let world = World::with_own_postgres().await;
    let target = Target::parse(world.postgres_url(), Schema::default()).unwrap();
    let (pool, _) = pools(&target, 6).await;
    let tally = Arc::new(Tally::default());
    let pace = (Duration::from_millis(1), Duration::from_secs(15));
    let pausing = async {
        pass(Duration::from_secs(1)).await;
        world.pause_postgres().await;
        pass(Duration::from_secs(10)).await;
        world.resume_postgres().await;
        let before = Tally::of(&tally.answered);
        pass(Duration::from_secs(2)).await;
        let refused = Tally::of(&tally.refused);
        let answered = Tally::of(&tally.answered);
        pass(Duration::from_secs(1)).await;
        let then = Tally::of(&tally.answered) - answered;
        println!(
            "{} answered in two seconds after the pause, {then} in the next",
            answered - before
        );
        assert!(then > 600, "{then} of about 1000 answered in the third second");
        println!("{} refused then", Tally::of(&tally.refused) - refused);
    };
    tokio::join!(drive(&pool, &tally, pace, 0), pausing);
    assert_at_rest(&pool).await;
    println!("{:?}", pool.status());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_started_again_is_used_again() {
    let world = World::with_own_postgres().await;
    let target = Target::parse(world.postgres_url(), Schema::default()).unwrap();
    let (pool, _) = pools(&target, 6).await;
    let tally = Arc::new(Tally::default());
    let driving = drive(&pool, &tally, (Duration::from_millis(2), Duration::from_secs(8)), 0);
    let killing = async {
        pass(Duration::from_secs(1)).await;
        world.kill_postgres().await;
        pass(Duration::from_secs(1)).await;
        world.restart_postgres().await;
        let (began, before) = (Instant::now(), Tally::of(&tally.answered));
        while Tally::of(&tally.answered) < before + 100 {
            assert!(began.elapsed() < PATIENCE.min(Duration::from_secs(10)));
            pass(Duration::from_millis(20)).await;
        }
        println!("back within {:?}", began.elapsed());
    };
    tokio::join!(driving, killing);
    assert_at_rest(&pool).await;
}
