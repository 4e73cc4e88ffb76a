//! What an operator does while a server runs: verify, rebuild, and looking after the log's age and its streams.

pub(crate) mod streams;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay::cli::serve::Server;
use forebay::event::ConversationId;
use forebay::operate::janitor::Janitor;
use forebay::projection::rebuild::Rebuild;
use serde_json::{Value, json};
use sqlx::Connection;

use crate::world::client::Client;
use crate::world::{World, eventually};

const ONE: (&str, &str) = ("FOREBAY_PARTITIONS", "1");

fn rebuild(world: &World, server: &Server) -> Rebuild {
    Rebuild {
        log: server.log.clone(),
        partitions: server.shape.partitions,
        epoch: server.shape.epoch.clone(),
        target: world.config(&[]).database,
        clock: world.clock.clone(),
    }
}

fn janitor(world: &World, server: &Server, retention: Duration) -> Janitor {
    Janitor {
        log: server.log.clone(),
        database: server.pools.1.clone(),
        retention,
        epoch: server.shape.epoch.clone(),
        clock: world.clock.clone(),
    }
}

/// A conversation with everything that a row can hold, closed and reopened.
async fn varied(tenant: &Client) -> ConversationId {
    let opened = tenant.post("/v1/conversations", json!({"metadata": {"plan": "gold"}})).await;
    let conversation = ConversationId::parse(opened.json()["id"].as_str().unwrap()).unwrap();
    let whole = json!({
        "type": "order", "text": "Zürich", "data": {"n": 1.50, "list": [1, null]},
        "sender": {"id": "ann", "role": "agent", "name": "Ann"}, "metadata": {"k": "v"},
        "clientId": "c-1",
    });
    assert_eq!(tenant.send(conversation, whole).await.status, 201);
    for suffix in ["close", "reopen"] {
        let path = format!("/v1/conversations/{conversation}/{suffix}");
        assert_eq!(tenant.post(&path, json!({})).await.status, 200);
    }
    tenant.say(conversation, "last").await;
    conversation
}

#[tokio::test]
async fn a_rebuild_gives_the_same_rows() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    for _ in 0..5 {
        varied(&tenant).await;
    }
    world.assert_clean(&server).await;
    let before = world.rows().await;
    assert_eq!(rebuild(&world, &server).run(&|_| {}).await.unwrap(), 25);
    assert_eq!(world.rows().await, before);
    world.assert_clean(&server).await;
    let left =
        "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name LIKE 'public\\_%'";
    assert_eq!(world.number(left).await, Some(0), "nothing is left of it");
    let again = varied(&tenant).await;
    world.assert_clean(&server).await;
    assert_eq!(tenant.page(again, "").await.seqs(), [1, 2, 3, 4, 5]);
    server.stop().await;
}

#[tokio::test]
async fn sends_and_reads_go_on_during_a_rebuild() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = varied(&tenant).await;
    let done = AtomicBool::new(false);
    let sending = async {
        let mut sent = 0;
        while !done.load(Ordering::Relaxed) || sent < 20 {
            let seq = tenant.say(conversation, "meanwhile").await;
            let page = tenant.page(conversation, &format!("after={}", seq - 2)).await;
            assert_eq!(page.seqs(), [seq - 1, seq]);
            let whole = tenant.page(conversation, "limit=3").await;
            assert_eq!(whole.seqs(), [1, 2, 3], "readers never see less than before");
            sent += 1;
        }
        sent
    };
    let rebuilding = async {
        for _ in 0..2 {
            rebuild(&world, &server).run(&|_| {}).await.unwrap();
        }
        done.store(true, Ordering::Relaxed);
    };
    let (sent, ()) = tokio::join!(sending, rebuilding);
    let findings = world.assert_clean(&server).await;
    assert_eq!(findings.events, 5 + sent);
    let rows = world.rows().await;
    rebuild(&world, &server).run(&|_| {}).await.unwrap();
    assert_eq!(world.rows().await, rows, "Postgres is a function of the log");
    server.stop().await;
}

#[tokio::test]
async fn a_rebuild_waits_for_whoever_has_its_lock_for_a_moment() {
    let world = World::new().await;
    let server = world.serve(&[ONE]).await;
    let mut other = sqlx::PgConnection::connect(world.postgres_url()).await.unwrap();
    // `rebuild` in ASCII: the lock of `store::rebuild`, which the janitor has while it looks and deletes.
    let lock = "SELECT pg_advisory_lock(32199620896058468)";
    sqlx::query(lock).execute(&mut other).await.unwrap();
    let letting_go = async {
        let sessions = "SELECT COUNT(*) FROM pg_stat_activity \
                        WHERE datname = current_database() AND application_name = 'forebay rebuild' \
                        AND query LIKE '%advisory_lock%'";
        eventually("the rebuild meets the lock", async || world.number(sessions).await == Some(1))
            .await;
        other.close().await.unwrap();
    };
    let rebuild = rebuild(&world, &server);
    let (rebuilt, ()) = tokio::join!(rebuild.run(&|_| {}), letting_go);
    assert_eq!(rebuilt.unwrap(), 0);
    server.stop().await;
}

#[tokio::test]
async fn every_kind_of_difference_is_found_and_mended_by_a_rebuild() {
    let world = World::new().await;
    let server = world.serve(&[ONE]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = varied(&tenant).await;
    let other = varied(&tenant).await;
    world.assert_clean(&server).await;
    let rows = world.rows().await;
    let uuid = conversation.uuid();
    let of_message = format!("WHERE conversation_id = '{uuid}' AND seq = 2");
    let of_head = format!("WHERE id = '{uuid}'");
    for (change, named) in [
        (format!("UPDATE messages SET text = 'Genf' {of_message}"), "text"),
        (format!("UPDATE messages SET data = '{{}}' {of_message}"), "data"),
        (format!("UPDATE messages SET sender_id = 'bob' {of_message}"), "sender_id"),
        (format!("UPDATE messages SET kind = 'tombstone' {of_message}"), "kind"),
        (format!("UPDATE messages SET at = at + interval '1 second' {of_message}"), "at"),
        (format!("DELETE FROM messages {of_message}"), "missing"),
        (format!("DELETE FROM messages WHERE conversation_id = '{uuid}'"), "missing"),
        (format!("UPDATE conversations SET head_seq = 9 {of_head}"), "head"),
        (format!("UPDATE conversations SET head_seq = 4 {of_head}"), "head"),
        (format!("UPDATE conversations SET status = 'closed' {of_head}"), "status"),
        (format!("UPDATE conversations SET metadata = NULL {of_head}"), "metadata"),
        (format!("DELETE FROM conversations {of_head}"), "head"),
        (
            format!(
                "INSERT INTO messages SELECT conversation_id, 6, position, fingerprint, at, size, \
                 partition, tenant_id, gen_random_uuid(), NULL, kind FROM messages {of_message}"
            ),
            "head",
        ),
    ] {
        world.execute(&change).await;
        let findings = world.verifier(&server).run(&|_| {}).await.unwrap();
        assert!(!findings.is_clean(), "{change} is not found");
        let lines = findings.differences.join("\n");
        assert!(lines.contains(&conversation.to_string()), "{change}: {lines}");
        assert!(lines.contains(named), "{change}: {lines}");
        assert!(!lines.contains(&other.to_string()), "{change}: {lines}");
        rebuild(&world, &server).run(&|_| {}).await.unwrap();
        assert_eq!(world.rows().await, rows, "after {change}");
    }
    world.assert_clean(&server).await;
    world.execute("UPDATE checkpoints SET position = position + 100").await;
    let findings = world.verifier(&server).run(&|_| {}).await.unwrap();
    assert!(findings.differences[0].contains("the log ends at"), "{findings:?}");
    server.stop().await;
}

/// So many records of one message each.
async fn records(tenant: &Client, conversation: ConversationId, count: u64) {
    for _ in 0..count {
        tenant.say(conversation, "hello").await;
    }
}

#[tokio::test]
async fn the_janitor_deletes_only_what_is_projected_and_old() {
    let world = World::new().await;
    let server = world.serve(&[ONE, ("FOREBAY_PROJECT", "off")]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = varied(&tenant).await;
    records(&tenant, conversation, 130).await;
    let partition = server.journal.partitions().of(conversation);
    let bounds = async || {
        let bounds = server.log.bounds(partition).await.unwrap();
        (bounds.first, bounds.last)
    };
    let (all, old) = (Duration::ZERO, Duration::from_hours(1));
    assert_eq!(janitor(&world, &server, all).step().await.unwrap(), 0);
    assert_eq!(bounds().await, (1, 135), "nothing is projected");
    server.stop().await;

    let server = world.serve(&[ONE, ("FOREBAY_DELIVER", "on")]).await;
    let tenant = tenant.at(&server);
    world.assert_clean(&server).await;
    let rows = world.rows().await;
    assert_eq!(janitor(&world, &server, old).step().await.unwrap(), 0);
    let foreign = Janitor { epoch: "another".to_owned(), ..janitor(&world, &server, all) };
    assert_eq!(foreign.step().await.unwrap(), 0, "checkpoints of another log say nothing");
    // What is not routed yet stays; the marker moves within seconds.
    let mut purged = 0;
    eventually("all is routed and goes", async || {
        purged += janitor(&world, &server, all).step().await.unwrap();
        purged == 134
    })
    .await;
    assert_eq!(bounds_of(&server, partition).await, (135, 135), "the newest stays");
    assert_eq!(janitor(&world, &server, all).step().await.unwrap(), 0);

    // Seqs, keys and history go on, on this node and on one that starts later.
    assert_eq!(tenant.say(conversation, "and on").await, 136);
    let repeat = json!({
        "type": "order", "text": "Zürich", "data": {"n": 1.50, "list": [1, null]},
        "sender": {"id": "ann", "role": "agent", "name": "Ann"}, "metadata": {"k": "v"},
        "clientId": "c-1",
    });
    let repeat: Value = tenant.send(conversation, repeat).await.json();
    assert_eq!(repeat["duplicate"], true, "{repeat}");
    server.stop().await;
    let server = world.serve(&[ONE]).await;
    let tenant = tenant.at(&server);
    assert_eq!(tenant.say(conversation, "and on").await, 137);
    let whole = tenant.page(conversation, "limit=500").await;
    assert_eq!(whole.seqs(), (1..=137).collect::<Vec<_>>());
    world.assert_clean(&server).await;

    // What the log has forgotten, only Postgres has; a rebuild keeps it.
    let before = world.rows().await;
    rebuild(&world, &server).run(&|_| {}).await.unwrap();
    assert_eq!(world.rows().await, before);
    let kept = rows.lines().filter(|line| before.contains(*line)).count();
    assert_eq!(kept, 135, "every message from before the purge is there, unchanged");
    world.assert_clean(&server).await;
    server.stop().await;
}

async fn bounds_of(server: &Server, partition: forebay::event::Partition) -> (u64, u64) {
    let bounds = server.log.bounds(partition).await.unwrap();
    (bounds.first, bounds.last)
}
