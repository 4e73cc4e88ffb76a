//! Reads: at once after an acknowledgement, beyond the tail, and while Postgres is away.

mod restart;

use std::time::{Duration, Instant};

use forebay::cli::serve::Server;
use forebay::event::ConversationId;
use serde_json::{Value, json};

use crate::world::client::Client;
use crate::world::{WISH, World, eventually};

/// The promise: within two seconds, with a little for a busy machine.
const ANSWER_MAX: Duration = Duration::from_millis(2_500);

/// A tail of 64 KiB in one partition.
const SHORT: [(&str, &str); 2] = [("FOREBAY_PARTITIONS", "1"), ("FOREBAY_TAIL_BYTES_MAX", "65536")];

#[tokio::test]
async fn what_was_acknowledged_is_read_at_once_also_without_a_projector() {
    let world = World::new().await;
    for project in ["on", "off"] {
        let server = world.serve(&[("FOREBAY_PROJECT", project)]).await;
        let tenant = Client::tenant(&server).await;
        let conversation = tenant.open().await;
        for seq in 2..=20 {
            assert_eq!(tenant.say(conversation, "hello").await, seq);
            let page = tenant.page(conversation, &format!("after={}", seq - 1)).await;
            assert_eq!(page.seqs(), [seq], "projector {project}");
            let page = page.json();
            assert_eq!((&page["headSeq"], &page["watermark"]), (&json!(seq), &json!(seq)));
            assert_eq!((&page["complete"], &page["hasMore"]), (&json!(true), &json!(false)));
            let newest = tenant.page(conversation, "order=desc&limit=1").await;
            assert_eq!(newest.seqs(), [seq]);
            let view = tenant.get(&format!("/v1/conversations/{conversation}")).await.json();
            assert_eq!(view["headSeq"], seq);
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn a_page_tells_how_far_postgres_is() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    tenant.say(conversation, "projected").await;
    let projected = async || tenant.page(conversation, "").await.json()["projectedSeq"].clone();
    eventually("all of it is projected", async || projected().await == 2).await;
    // Whoever holds the checkpoints holds the projection.
    let mut lease = server.pools.0.acquire(WISH, world.clock.now() + ANSWER_MAX).await.unwrap();
    let far = world.clock.now() + Duration::from_secs(10);
    let held = lease.transaction(far, async |conn| {
        forebay::store::checkpoints::lock_all(conn).await?;
        tenant.say(conversation, "only in the log").await;
        let page = tenant.page(conversation, "").await;
        assert_eq!(page.seqs(), [1, 2, 3]);
        let page = page.json();
        assert_eq!((&page["projectedSeq"], &page["headSeq"]), (&json!(2), &json!(3)));
        assert_eq!(page["complete"], true);
        Ok(())
    });
    held.await.unwrap();
    eventually("the rest follows", async || projected().await == 3).await;
    server.stop().await;
}

/// A conversation of which the tail holds only the newest part.
async fn long(tenant: &Client, server: &Server) -> (ConversationId, u64) {
    let conversation = tenant.open().await;
    let message = json!({"text": "x".repeat(4_000)});
    let messages: Vec<Value> = vec![message; 5];
    let path = format!("/v1/conversations/{conversation}/messages:batch");
    for _ in 0..8 {
        assert_eq!(tenant.post(&path, json!({ "messages": messages })).await.status, 201);
    }
    let span = server.journal.tail_of(conversation).span(conversation, 0, 1);
    let first = span.first_seq.unwrap();
    assert!((10..40).contains(&first), "the tail begins at {first}");
    (conversation, first)
}

#[tokio::test]
async fn a_page_beyond_the_tail_is_put_together_from_both() {
    let world = World::new().await;
    let server = world.serve(&SHORT).await;
    let tenant = Client::tenant(&server).await;
    let (conversation, _first) = long(&tenant, &server).await;
    world.projected(&server).await;
    let all: Vec<u64> = (1..=41).collect();
    for (query, seqs) in [
        ("limit=500", all.clone()),
        ("limit=10", all[..10].to_vec()),
        ("after=5&limit=30", all[5..35].to_vec()),
        ("order=desc&limit=500", all.iter().rev().copied().collect()),
        ("order=desc&limit=20", all[21..].iter().rev().copied().collect()),
        ("order=desc&after=20&limit=5", vec![19, 18, 17, 16, 15]),
    ] {
        let page = tenant.page(conversation, query).await;
        assert_eq!(page.seqs(), seqs, "{query}");
        assert_eq!((&page.json()["complete"], &page.json()["headSeq"]), (&json!(true), &json!(41)));
    }
    server.stop().await;
}

#[tokio::test]
async fn while_postgres_is_paused_sends_go_on_and_the_tail_is_read() {
    sends_go_on(Outage::Paused).await;
}

#[tokio::test]
async fn while_postgres_is_killed_sends_go_on_and_the_tail_is_read() {
    sends_go_on(Outage::Killed).await;
}

/// How Postgres goes away.
#[derive(Clone, Copy, PartialEq)]
enum Outage {
    Paused,
    Killed,
}

async fn sends_go_on(outage: Outage) {
    let world = World::with_own_postgres().await;
    let server = world.serve(&SHORT).await;
    let tenant = Client::tenant(&server).await;
    let (conversation, first) = long(&tenant, &server).await;
    world.projected(&server).await;
    let nobody = Client::with(&server, "");
    eventually("it has started", async || nobody.get("/readyz").await.status == 200).await;
    match outage {
        Outage::Paused => world.pause_postgres().await,
        Outage::Killed => world.kill_postgres().await,
    }
    for round in 0..4_u64 {
        assert_eq!(tenant.say(conversation, "meanwhile").await, 42 + round);
        let head = 42 + round;
        for (query, watermark) in [("", 0), ("after=3", 3), ("order=desc&after=5", 0)] {
            let began = Instant::now();
            let refused = tenant.page(conversation, query).await;
            assert!(began.elapsed() < ANSWER_MAX, "{query}: {:?}", began.elapsed());
            refused.assert_problem(503, "replay_unavailable");
            let body = refused.json();
            assert_eq!((&body["watermark"], &body["headSeq"]), (&json!(watermark), &json!(head)));
        }
        let page = tenant.page(conversation, &format!("after={}", head - 3)).await;
        assert_eq!(page.seqs(), [head - 2, head - 1, head]);
        assert_eq!(page.json()["complete"], true);
        let page = tenant.page(conversation, "order=desc&limit=3").await;
        assert_eq!(page.seqs(), [head, head - 1, head - 2]);
    }
    // What can be told in part is told in part: the newest, as far as the tail reaches.
    let page = tenant.page(conversation, "order=desc&limit=500").await;
    assert_eq!(page.status, 200, "{page:?}");
    let (seqs, body) = (page.seqs(), page.json());
    assert_eq!(seqs, (first..=45).rev().take(seqs.len()).collect::<Vec<_>>());
    assert!(seqs.len() > 3 && seqs.len() < 45, "{seqs:?}");
    assert_eq!((&body["complete"], &body["hasMore"]), (&json!(false), &json!(true)));
    assert_eq!(body["watermark"], *seqs.last().unwrap());

    eventually("reads are not ready", async || nobody.get("/readyz/reads").await.status == 503)
        .await;
    for path in ["/readyz/ingest", "/readyz?exclude=pool"] {
        assert_eq!(nobody.get(path).await.status, 200, "{path}: sends need no Postgres");
    }
    let metrics = nobody.get("/metrics").await;
    let counted = |source| {
        let series = format!("forebay_db_unavailable_total{{source=\"{source}\"}} ");
        metrics.text().lines().any(|line| line.starts_with(&series) && !line.ends_with(" 0"))
    };
    assert!(counted("rest"), "{}", metrics.text());
    // A paused Postgres lets a batch wait for half a minute before it is given up.
    assert!(counted("projector") || outage == Outage::Paused, "{}", metrics.text());
    match outage {
        Outage::Paused => world.resume_postgres().await,
        Outage::Killed => world.restart_postgres().await,
    }
    eventually("all of it is read again", async || {
        let page = tenant.page(conversation, "limit=500").await;
        assert!(page.status == 200 || page.problem() == "replay_unavailable", "{page:?}");
        page.status == 200 && page.seqs() == (1..=45).collect::<Vec<_>>()
    })
    .await;
    world.assert_clean(&server).await;
    eventually("reads are ready", async || nobody.get("/readyz/reads").await.status == 200).await;
    server.stop().await;
}
