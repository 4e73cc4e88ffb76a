//! Two databases: requests leave the first when it fails for long enough, and none is lost or answered by a standby.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay::store::{Error, Limits, Schema, Settings, Target, open};
use tokio::time::interval;

use super::{means, soon};
use crate::world::{WISH, World, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_go_to_the_other_database_when_the_first_is_gone_and_return_when_asked() {
    let first = World::with_own_postgres().await;
    let second = World::with_own_postgres().await;
    let at = |world: &World| Target::parse(world.postgres_url(), Schema::default()).unwrap();
    for (world, name) in [(&first, "first"), (&second, "second")] {
        world.execute(&format!("CREATE TABLE who AS SELECT '{name}'::text AS name")).await;
    }
    let settings = Settings {
        target: at(&first),
        failback: Some(at(&second)),
        // Always full, so that what is prepared finds every place taken.
        interactive: Limits { connections: 4, connections_min: 4, ..Limits::INTERACTIVE },
        background: Limits { connections: 4, ..Limits::BACKGROUND },
    };
    let (interactive, background) = open(&settings, &mut means());
    assert!(interactive.warm(soon()).await && background.warm(soon()).await);
    let who = async || -> Result<String, Error> {
        let deadline = Instant::now() + Duration::from_secs(1);
        let mut lease = interactive.acquire(WISH, deadline).await?;
        let asking = lease.run(deadline, async |conn| {
            let name = sqlx::query_scalar("SELECT name FROM who").fetch_one(conn);
            name.await.map_err(|source| Error::Statement { doing: "ask who", source })
        });
        asking.await
    };
    assert_eq!(who().await.unwrap(), "first");

    // Enough requests a second that the detector believes them.
    let stop = Arc::new(AtomicBool::new(false));
    let asking = async {
        let mut tick = interval(Duration::from_millis(10));
        while !stop.load(Ordering::Relaxed) {
            tick.tick().await;
            if let Err(error) = who().await {
                assert!(error.is_retryable(), "{error:?}");
            }
        }
    };
    let switching = async {
        first.kill_postgres().await;
        let began = Instant::now();
        eventually("the second one answers", async || {
            who().await.is_ok_and(|name| name == "second")
        })
        .await;
        // Five bad windows of a second, the one that was open, and the connections.
        let took = began.elapsed();
        assert!((Duration::from_secs(4)..Duration::from_secs(12)).contains(&took), "{took:?}");
        println!("on the second one after {took:?}");
        stop.store(true, Ordering::Relaxed);
    };
    tokio::join!(asking, switching);
    for status in [interactive.status(), background.status()] {
        assert!(status.uses_failback && status.totals.failbacks == 1, "{status:?}");
    }

    // Asked to return to what is not there, it stays.
    interactive.return_to_primary();
    eventually("it has tried", async || !who().await.unwrap().is_empty()).await;
    assert_eq!(who().await.unwrap(), "second");
    first.restart_postgres().await;
    eventually("it has returned", async || {
        interactive.return_to_primary();
        who().await.is_ok_and(|name| name == "first")
    })
    .await;
    assert_eq!(interactive.status().totals.failbacks, 2);
    let leads_nowhere_else = async || interactive.status().live == interactive.status().idle;
    eventually("the connections of the second one are closed", leads_nowhere_else).await;
}
