//! A node that is started while Postgres is away: what it knows from the snapshot, and what it says of the rest.

use serde_json::json;

use crate::world::client::Client;
use crate::world::{World, eventually};

const FORGETFUL: [(&str, &str); 2] = [("FOREBAY_PARTITIONS", "1"), ("FOREBAY_HEADS_MAX", "64")];

#[tokio::test]
async fn a_node_that_starts_without_postgres_serves_what_was_active_lately() {
    let world = World::with_own_postgres().await;
    let server = world.serve(&FORGETFUL).await;
    let tenant = Client::tenant(&server).await;
    let cold = tenant.open().await;
    world.projected(&server).await;
    eventually("the first one is forgotten", async || {
        tenant.open().await;
        server.journal.tail_of(cold).head(cold).is_none()
    })
    .await;
    let (recent, closed) = (tenant.open().await, tenant.open().await);
    assert_eq!(tenant.say(recent, "hello").await, 2);
    let close = format!("/v1/conversations/{closed}/close");
    assert_eq!(tenant.post(&close, json!({})).await.status, 200);
    world.projected(&server).await;
    assert!(server.stop().await, "the snapshot is saved at the end");
    world.kill_postgres().await;

    // An hour later no key is worth reading the log for: the heads come from the snapshot alone.
    world.clock.shift_wall(3_600_000_000);
    let server = world.serve(&FORGETFUL).await;
    let tenant = tenant.at(&server);
    let nobody = Client::with(&server, "");
    eventually("it takes sends", async || nobody.get("/readyz/ingest").await.status == 200).await;
    assert_eq!(nobody.get("/readyz").await.status, 503, "it has never seen Postgres");

    assert_eq!(tenant.say(recent, "and on").await, 3);
    assert_eq!(tenant.page(recent, "after=2").await.seqs(), [3]);
    tenant.page(recent, "").await.assert_problem(503, "replay_unavailable");
    let late = tenant.send(closed, json!({"text": "a"})).await;
    late.assert_problem(409, "conversation_closed");
    let fresh = tenant.open().await;
    assert_eq!(tenant.say(fresh, "new").await, 2);

    let unknown = forebay::event::ConversationId::derive([9; 16]);
    for conversation in [cold, unknown] {
        let sent = tenant.send(conversation, json!({"text": "a"})).await;
        sent.assert_problem(503, "database_unavailable");
        let page = tenant.page(conversation, "").await;
        page.assert_problem(503, "replay_unavailable");
        assert_eq!(page.json()["watermark"], 0);
        let path = format!("/v1/conversations/{conversation}");
        tenant.get(&path).await.assert_problem(503, "database_unavailable");
    }

    world.restart_postgres().await;
    eventually("it is ready for everything", async || nobody.get("/readyz").await.status == 200)
        .await;
    eventually("the cold one is found", async || {
        tenant.send(cold, json!({"text": "a", "clientId": "a"})).await.status < 300
    })
    .await;
    assert_eq!(tenant.page(cold, "").await.seqs(), [1, 2]);
    tenant.send(unknown, json!({"text": "a"})).await.assert_problem(404, "not_found");
    world.assert_clean(&server).await;
    server.stop().await;
}
