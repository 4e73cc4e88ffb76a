//! Conversations and keys that memory has forgotten: found in Postgres, or refused by themselves while it is away.

use std::time::Duration;

use forebay::cli::serve::Server;
use forebay::event::ConversationId;
use serde_json::{Value, json};

use crate::world::client::Client;
use crate::world::{WISH, World, eventually};

/// The smallest memory that can be configured, in one partition.
pub const FORGETFUL: [(&str, &str); 4] = [
    ("FOREBAY_PARTITIONS", "1"),
    ("FOREBAY_HEADS_MAX", "64"),
    ("FOREBAY_KEYS_MAX", "64"),
    ("FOREBAY_TAIL_BYTES_MAX", "65536"),
];

/// Opens conversations until memory has forgotten this one.
pub async fn make_forget(world: &World, server: &Server, tenant: &Client, known: ConversationId) {
    world.projected(server).await;
    eventually("the conversation is forgotten", async || {
        tenant.open().await;
        server.journal.tail_of(known).head(known).is_none()
    })
    .await;
    world.projected(server).await;
}

/// Sends under fresh keys until memory has forgotten those from before.
async fn forget_keys(world: &World, server: &Server, tenant: &Client) {
    let filler = tenant.open().await;
    let messages: Vec<Value> =
        (0..70).map(|n| json!({"text": "a", "clientId": format!("filler-{n}")})).collect();
    let path = format!("/v1/conversations/{filler}/messages:batch");
    assert_eq!(tenant.post(&path, json!({ "messages": messages })).await.status, 201);
    assert_eq!(
        tenant.post(&path, json!({"messages": [{"text": "a", "clientId": "last"}]})).await.status,
        201
    );
    assert!(server.journal.tail_of(filler).keys_since().is_some(), "keys were forgotten");
    world.projected(server).await;
}

#[tokio::test]
async fn a_forgotten_conversation_is_found_in_postgres() {
    let world = World::new().await;
    let server = world.serve(&FORGETFUL).await;
    let (tenant, stranger) = (Client::tenant(&server).await, Client::tenant(&server).await);
    let (open, closed) = (tenant.open().await, tenant.open().await);
    let close = format!("/v1/conversations/{closed}/close");
    assert_eq!(tenant.post(&close, json!({})).await.status, 200);
    for conversation in [open, closed] {
        make_forget(&world, &server, &tenant, conversation).await;
    }
    let path = format!("/v1/conversations/{open}");
    stranger.send(open, json!({"text": "a"})).await.assert_problem(404, "not_found");
    let foreign = stranger.post("/v1/conversations", json!({"id": open})).await;
    foreign.assert_problem(404, "not_found");
    stranger.get(&path).await.assert_problem(404, "not_found");
    stranger.page(open, "").await.assert_problem(404, "not_found");
    let unknown = format!("/v1/conversations/cnv_{}/messages", "0".repeat(32));
    tenant.post(&unknown, json!({"text": "a"})).await.assert_problem(404, "not_found");
    tenant.get(&unknown).await.assert_problem(404, "not_found");

    let again = tenant.post("/v1/conversations", json!({"id": open})).await;
    assert_eq!((again.status, &again.json()["headSeq"]), (200, &json!(1)), "{again:?}");
    assert_eq!(tenant.say(open, "back again").await, 2);
    assert_eq!(tenant.page(open, "").await.seqs(), [1, 2]);
    let late = tenant.send(closed, json!({"text": "a"})).await;
    late.assert_problem(409, "conversation_closed");
    let reopened = tenant.post(&format!("/v1/conversations/{closed}/reopen"), json!({})).await;
    assert_eq!((reopened.status, &reopened.json()["headSeq"]), (200, &json!(3)), "{reopened:?}");
    world.assert_clean(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn an_old_key_is_looked_up_and_answered_with_its_first_receipt() {
    let world = World::new().await;
    let server = world.serve(&FORGETFUL).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let now = world.clock.timestamp();
    let uuid = uuid_at(now.millis());
    let by_uuid = json!({"text": "a", "clientId": uuid});
    let by_time = json!({"text": "b", "clientId": "order-7", "firstSentAt": now.to_string()});
    let unused = json!({"text": "c", "clientId": uuid_at(now.millis() - 1_000)});
    let first = tenant.send(conversation, by_uuid.clone()).await;
    let second = tenant.send(conversation, by_time.clone()).await;
    assert_eq!((first.status, second.status), (201, 201), "{first:?} {second:?}");
    forget_keys(&world, &server, &tenant).await;
    for (body, receipt) in [(&by_uuid, first.json()), (&by_time, second.json())] {
        let again = tenant.send(conversation, body.clone()).await;
        assert_eq!(
            (again.status, again.header("idempotency-replayed")),
            (200, "true"),
            "{again:?}"
        );
        for field in ["id", "seq", "at"] {
            assert_eq!(again.json()[field], receipt[field], "{field} of {body}");
        }
    }
    let other = json!({"text": "another", "clientId": uuid});
    tenant.send(conversation, other).await.assert_problem(422, "idempotency_conflict");
    assert_eq!(tenant.send(conversation, unused).await.status, 201, "an old key that is new to us");
    let batch = json!({"messages": [by_uuid, by_time, {"text": "new", "clientId": "new"}]});
    let path = format!("/v1/conversations/{conversation}/messages:batch");
    let mixed = tenant.post(&path, batch).await;
    assert_eq!(mixed.status, 201, "{mixed:?}");
    let seqs: Vec<_> = (0..3).map(|n| mixed.json()["receipts"][n]["seq"].clone()).collect();
    assert_eq!(seqs, [2, 3, 5]);
    world.assert_clean(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn a_batch_of_more_old_keys_than_are_looked_up_is_refused_for_good() {
    let world = World::new().await;
    let server = world.serve(&FORGETFUL).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let then = world.clock.timestamp().millis();
    forget_keys(&world, &server, &tenant).await;
    let path = format!("/v1/conversations/{conversation}/messages:batch");
    let old = |n: u64| json!({"text": "a", "clientId": uuid_at(then - n)});
    let refused = tenant.post(&path, json!({"messages": (0..51).map(old).collect::<Vec<_>>()}));
    let refused = refused.await;
    refused.assert_problem(413, "payload_too_large");
    let detail = refused.json()["detail"].to_string();
    assert!(detail.contains("oldKeys = 50"), "{detail}");
    let taken = tenant.post(&path, json!({"messages": (0..50).map(old).collect::<Vec<_>>()}));
    assert_eq!(taken.await.status, 201);
    world.assert_clean(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn keys_are_forgotten_when_the_window_has_passed_and_still_found() {
    let world = World::new().await;
    let settings = [("FOREBAY_PARTITIONS", "1"), ("FOREBAY_DEDUPE_WINDOW_S", "60")];
    let server = world.serve(&settings).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let key = json!({"text": "a", "clientId": uuid_at(world.clock.timestamp().millis())});
    assert_eq!(tenant.send(conversation, key.clone()).await.json()["seq"], 2);
    world.projected(&server).await;
    world.clock.shift_wall(61_000_000);
    assert_eq!(tenant.say(conversation, "a minute later").await, 3);
    assert!(server.journal.tail_of(conversation).keys_since().is_some(), "the key was forgotten");
    let again = tenant.send(conversation, key).await;
    assert_eq!((again.status, &again.json()["seq"]), (200, &json!(2)), "{again:?}");
    server.stop().await;
}

#[tokio::test]
async fn while_postgres_is_away_only_what_is_forgotten_is_refused() {
    let world = World::with_own_postgres().await;
    let server = world.serve(&FORGETFUL).await;
    let tenant = Client::tenant(&server).await;
    let cold = tenant.open().await;
    make_forget(&world, &server, &tenant, cold).await;
    let warm = tenant.open().await;
    let old = json!({"text": "a", "clientId": uuid_at(world.clock.timestamp().millis())});
    let first = tenant.send(warm, old.clone()).await;
    forget_keys(&world, &server, &tenant).await;
    world.pause_postgres().await;

    for round in 0..4 {
        let began = std::time::Instant::now();
        let refused = tenant.send(cold, json!({"text": "a"})).await;
        refused.assert_problem(503, "database_unavailable");
        tenant.send(warm, old.clone()).await.assert_problem(503, "database_unavailable");
        let opened = tenant.post("/v1/conversations", json!({"id": cold})).await;
        opened.assert_problem(503, "database_unavailable");
        tenant.page(cold, "").await.assert_problem(503, "replay_unavailable");
        let looked = tenant.get(&format!("/v1/conversations/{cold}")).await;
        looked.assert_problem(503, "database_unavailable");
        assert!(began.elapsed() < Duration::from_secs(8), "round {round}: {:?}", began.elapsed());
        let fresh = json!({"text": "a", "clientId": format!("fresh-{round}")});
        assert_eq!(tenant.send(warm, fresh).await.status, 201, "round {round}");
        tenant.open().await;
    }
    world.resume_postgres().await;
    eventually("the cold one is found again", async || {
        let answer = tenant.send(cold, json!({"text": "b", "clientId": "b"})).await;
        assert!(answer.status != 500 && answer.status != 404, "{answer:?}");
        answer.status < 300
    })
    .await;
    let again = tenant.send(warm, old).await;
    assert_eq!((again.status, &again.json()["seq"]), (200, &first.json()["seq"]), "{again:?}");
    assert_eq!(tenant.page(cold, "").await.seqs(), [1, 2]);
    world.assert_clean(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn a_pool_without_a_free_connection_refuses_cold_ones_alone() {
    let world = World::new().await;
    let server = world.serve(&[&FORGETFUL[..], &[("POOL_SIZE", "1")]].concat()).await;
    let tenant = Client::tenant(&server).await;
    let cold = tenant.open().await;
    make_forget(&world, &server, &tenant, cold).await;
    let warm = tenant.open().await;
    let soon = world.clock.now() + Duration::from_secs(10);
    let taken = server.pools.0.acquire(WISH, soon).await.unwrap();

    let sent = tenant.send(cold, json!({"text": "a"}));
    let warm_while_cold_waits = async {
        let waits = async || server.pools.0.status().gate.waiting == 1;
        eventually("the cold one waits for a connection", waits).await;
        tenant.say(warm, "meanwhile").await
    };
    let (refused, seq) = tokio::join!(sent, warm_while_cold_waits);
    assert_eq!(seq, 2);
    refused.assert_problem(503, "database_unavailable");
    tenant.page(cold, "").await.assert_problem(503, "replay_unavailable");
    let looked = tenant.get(&format!("/v1/conversations/{cold}")).await;
    looked.assert_problem(503, "database_unavailable");
    drop(taken);
    assert_eq!(tenant.say(cold, "after").await, 2);
    let metrics = Client::with(&server, "").get("/metrics").await;
    let counted = "forebay_db_unavailable_total{source=\"rest\"} 3\n";
    assert!(metrics.text().contains(counted), "{}", metrics.text());
    server.stop().await;
}

/// A UUIDv7 of that time.
fn uuid_at(millis: u64) -> String {
    uuid::Builder::from_unix_timestamp_millis(millis, &[7; 10]).into_uuid().to_string()
}
