//! Behind a pooler that gives a session to whoever has a transaction, and to somebody else right after it.

use forebay::projection::rebuild::Rebuild;
use futures_util::future::join_all;
use serde_json::json;

use crate::world::client::Client;
use crate::world::{World, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_works_behind_a_pooler_of_transactions() {
    // Fewer sessions than connections: statements of the two pools meet on the same ones.
    let (world, pooler) = World::with_own_pooler(2).await;
    let settings = [
        ("DATABASE_URL", pooler.as_str()),
        ("DB_TOPOLOGY", "transaction_pooler"),
        ("FOREBAY_SCHEMA", "apart"),
        ("FOREBAY_TAIL_BYTES_MAX", "65536"),
        ("FOREBAY_PARTITIONS", "2"),
        ("POOL_MIN", "4"),
        ("BACKGROUND_POOL_MIN", "4"),
    ];
    let server = world.serve(&settings).await;
    let tenant = Client::tenant(&server).await;
    let conversations = [tenant.open().await, tenant.open().await, tenant.open().await];
    let messages = vec![json!({"text": "x".repeat(3_000)}); 10];
    for round in 0..8 {
        for conversation in conversations {
            let path = format!("/v1/conversations/{conversation}/messages:batch");
            let sent = tenant.post(&path, json!({ "messages": messages })).await;
            assert_eq!(sent.status, 201, "round {round}");
        }
    }
    for conversation in conversations {
        let newest = async || tenant.page(conversation, "order=desc&limit=1").await.json();
        eventually("it is projected", async || newest().await["projectedSeq"] == 81).await;
    }
    let all: Vec<u64> = (1..=81).collect();
    for _ in 0..5 {
        let pages = conversations.map(|c| tenant.page(c, "limit=500"));
        for page in join_all(pages).await {
            assert_eq!(page.seqs(), all);
        }
    }
    for pool in [server.pools.0.status(), server.pools.1.status()] {
        assert_eq!((pool.totals.destroyed, pool.totals.cancels_sent), (0, 0), "{pool:?}");
        assert!(pool.live >= 4);
    }
    let found = world.verifier(&server).run(&|_| {}).await.unwrap();
    assert!(found.is_clean() && found.events == 243, "{:?}", found.differences);
    let rebuild = Rebuild {
        log: server.log.clone(),
        partitions: server.shape.partitions,
        epoch: server.shape.epoch.clone(),
        target: world.config(&settings).database,
        clock: world.clock.clone(),
    };
    let refused = rebuild.run(&|_| {}).await.unwrap_err();
    let why = forebay::lifecycle::chain(&refused);
    assert!(why.contains("needs a direct connection"), "{why}");
    server.stop().await;
}
