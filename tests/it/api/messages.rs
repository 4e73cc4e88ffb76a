//! Sends, batches and pages.

use forebay::event::{Body, ConversationId};
use hyper::Method;
use serde_json::{Value, json};

use crate::world::World;
use crate::world::client::Client;

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[tokio::test]
async fn a_repeat_is_answered_with_the_first_receipt() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let path = format!("/v1/conversations/{conversation}/messages");
    let send = async |key: &str, body: Value| {
        let headers = [("idempotency-key", key)];
        tenant.call(Method::POST, &path, &headers, body.to_string()).await
    };
    let first = send("order-7", json!({"text": "a"})).await;
    assert_eq!((first.status, first.header("idempotency-replayed")), (201, ""), "{first:?}");
    let receipt = first.json();
    assert_eq!((&receipt["seq"], &receipt["watermark"]), (&json!(2), &json!(2)));
    assert_eq!(receipt["duplicate"], false);
    assert!(receipt["id"].as_str().unwrap().starts_with("msg_"), "{receipt}");
    let at = receipt["at"].as_str().unwrap();
    assert!(at.ends_with('Z') && at.len() == "2026-01-01T00:00:00.000000Z".len(), "{at}");
    tenant.say(conversation, "between").await;

    // The key is the same quoted, bare, or in the body.
    let in_body = tenant.send(conversation, json!({"text": "a", "clientId": "order-7"})).await;
    for again in [
        send("order-7", json!({"text": "a"})).await,
        send("\"order-7\"", json!({"text": "a"})).await,
        send("order-7", json!({"text": "a", "clientId": "order-7"})).await,
        in_body,
    ] {
        assert_eq!(
            (again.status, again.header("idempotency-replayed")),
            (200, "true"),
            "{again:?}"
        );
        let repeat = again.json();
        for field in ["id", "seq", "at"] {
            assert_eq!(repeat[field], receipt[field], "{field}");
        }
        assert_eq!((&repeat["duplicate"], &repeat["watermark"]), (&json!(true), &json!(3)));
    }
    let other = send("order-7", json!({"text": "b"})).await;
    other.assert_problem(422, "idempotency_conflict");
    let sender = json!({"text": "a", "sender": {"id": "ann"}});
    assert_eq!(send("order-7", sender).await.status, 201, "another sender's key is another key");
    assert_eq!(tenant.page(conversation, "").await.seqs(), [1, 2, 3, 4]);
    world.assert_clean(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn a_batch_is_committed_adjacent_and_in_order() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let path = format!("/v1/conversations/{conversation}/messages:batch");
    let message = |n: usize| json!({"text": format!("t{n}"), "clientId": format!("k{n}")});
    let whole: Vec<Value> = (0..500).map(message).collect();
    let sent = tenant.post(&path, json!({ "messages": whole })).await;
    assert_eq!(sent.status, 201, "{}", sent.text());
    let body = sent.json();
    let receipts = body["receipts"].as_array().unwrap();
    let seqs: Vec<u64> = receipts.iter().map(|r| r["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, (2..=501).collect::<Vec<_>>());
    let partition = server.journal.partitions().of(conversation);
    let events = world.events(&server, partition).await;
    let of_batch = events.iter().filter(|(_, event)| matches!(event.body, Body::Message(_)));
    let positions: std::collections::BTreeSet<u64> = of_batch.map(|(at, _)| *at).collect();
    assert_eq!(positions.len(), 1, "one record");

    let again = tenant.post(&path, json!({"messages": [message(3), message(499)]})).await;
    assert_eq!((again.status, again.header("idempotency-replayed")), (200, "true"), "{again:?}");
    let mixed = json!({"messages": [
        {"text": "t3", "clientId": "k3"},
        {"text": "other", "clientId": "k4"},
        {"text": "new", "clientId": "new"},
        {"text": "new", "clientId": "new"},
    ]});
    let mixed = tenant.post(&path, mixed).await;
    assert_eq!(mixed.status, 201, "{mixed:?}");
    let body = mixed.json();
    let of = |n: usize, field: &str| body["receipts"][n][field].clone();
    assert_eq!((of(0, "duplicate"), of(0, "seq")), (json!(true), json!(5)));
    assert_eq!(of(1, "code"), "idempotency_conflict");
    assert_eq!((of(2, "duplicate"), of(2, "seq")), (json!(false), json!(502)));
    assert_eq!((of(3, "duplicate"), of(3, "seq")), (json!(true), json!(502)));
    world.assert_clean(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn a_page_goes_on_from_a_watermark_in_both_directions() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let texts: Vec<Value> = (2..=10).map(|n| json!({"text": format!("t{n}")})).collect();
    let path = format!("/v1/conversations/{conversation}/messages:batch");
    assert_eq!(tenant.post(&path, json!({ "messages": texts })).await.status, 201);
    for (query, seqs, watermark, more) in [
        ("", (1..=10).collect::<Vec<_>>(), 10, false),
        ("limit=3", vec![1, 2, 3], 3, true),
        ("after=3&limit=3", vec![4, 5, 6], 6, true),
        ("after=7&limit=3", vec![8, 9, 10], 10, false),
        ("after=10", vec![], 10, false),
        ("after=9&order=asc&limit=500", vec![10], 10, false),
        ("order=desc&limit=3", vec![10, 9, 8], 8, true),
        ("order=desc&limit=3&after=8", vec![7, 6, 5], 5, true),
        ("order=desc&after=3", vec![2, 1], 1, false),
        ("order=desc&after=1", vec![], 1, false),
        ("order=desc&after=99", (1..=10).rev().collect(), 1, false),
    ] {
        let page = tenant.page(conversation, query).await;
        assert_eq!((page.status, page.seqs()), (200, seqs), "{query}");
        let page = page.json();
        let (at, has_more) = (page["watermark"].as_u64(), page["hasMore"].as_bool());
        assert_eq!((at, has_more), (Some(watermark), Some(more)), "{query} {page}");
        assert_eq!((&page["headSeq"], &page["complete"]), (&json!(10), &json!(true)), "{query}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_message_comes_back_as_it_was_sent_from_tail_and_database() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let whole = json!({
        "type": "order.placed", "text": "Zürich \u{1f600}\ttab",
        "data": {"n": 1.5, "list": [1, null, true], "deep": {"a": {"b": "ü"}}},
        "sender": {"id": "ann", "role": "agent", "name": "Ann"},
        "metadata": {"k": "v"}, "clientId": "c-1", "unknownField": {"is": "ignored"},
    });
    assert_eq!(tenant.send(conversation, whole.clone()).await.status, 201);
    let fresh = tenant.page(conversation, "after=1").await.json()["messages"][0].clone();
    world.assert_clean(&server).await;
    server.stop().await;
    // A window without keys, so that the next node begins with an empty tail.
    world.clock.shift_wall(3_600_000_000);
    let later = world.serve(&[]).await;
    let stored =
        tenant.at(&later).page(conversation, "after=1").await.json()["messages"][0].clone();
    for shown in [&fresh, &stored] {
        for field in ["type", "text", "data", "sender", "metadata", "clientId"] {
            assert_eq!(shown[field], whole[field], "{field} of {shown}");
        }
        assert_eq!(shown["seq"], 2);
        assert_eq!(shown.get("unknownField"), None);
    }
    assert_eq!(fresh, stored);
    later.stop().await;
}

#[tokio::test]
async fn a_trace_is_carried_into_the_log_and_back_out() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let path = format!("/v1/conversations/{conversation}/messages");
    for (trace, carried) in [(TRACE, true), ("nonsense", false)] {
        let headers = [("traceparent", trace), ("x-request-id", "order-7")];
        let sent = tenant.call(Method::POST, &path, &headers, r#"{"text":"a"}"#).await;
        assert_eq!(sent.status, 201, "{sent:?}");
        assert_eq!(sent.header("traceparent"), if carried { trace } else { "" });
        assert_eq!(sent.header("x-request-id"), "order-7");
    }
    let traces = traces_of(&world, &server, conversation).await;
    assert_eq!(traces, [None, Some(TRACE.to_owned()), None]);
    world.projected(&server).await;
    let sql = format!("SELECT COUNT(*) FROM messages WHERE trace = '{TRACE}'");
    assert_eq!(world.number(&sql).await, Some(1));
    server.stop().await;
}

async fn traces_of(
    world: &World,
    server: &forebay::cli::serve::Server,
    conversation: ConversationId,
) -> Vec<Option<String>> {
    let events = world.events(server, server.journal.partitions().of(conversation)).await;
    let of_this = events.into_iter().filter(|(_, event)| event.conversation == conversation);
    of_this.map(|(_, event)| event.trace.map(String::from)).collect()
}

#[tokio::test]
async fn a_tenant_beyond_its_quota_waits_and_nobody_else_does() {
    let world = World::new().await;
    let quota = [("FOREBAY_SEND_RATE", "1"), ("FOREBAY_SEND_BURST", "3")];
    let server = world.serve(&quota).await;
    let (tenant, other) = (Client::tenant(&server).await, Client::tenant(&server).await);
    let conversation = tenant.open().await;
    let first = tenant.send(conversation, json!({"text": "a"})).await;
    assert_eq!(first.header("ratelimit-policy"), r#""sends";q=3;w=3"#, "{first:?}");
    assert_eq!(first.header("ratelimit"), r#""sends";r=2;t=1"#, "{first:?}");
    let body = || json!({"text": "a"});
    let flood = futures_util::future::join_all((0..20).map(|_| tenant.send(conversation, body())));
    let answers = flood.await;
    let stored = answers.iter().filter(|answer| answer.status == 201).count();
    assert!((2..10).contains(&stored), "{stored} of 20 at once, the burst has 2 left");
    for answer in answers.iter().filter(|answer| answer.status != 201) {
        answer.assert_problem(429, "rate_limited");
        assert!(answer.header("ratelimit").starts_with(r#""sends";r=0"#), "{answer:?}");
        assert_eq!(answer.header("ratelimit-policy"), r#""sends";q=3;w=3"#);
    }
    let batch = json!({"messages": [{"text": "a"}, {"text": "b"}, {"text": "c"}, {"text": "d"}]});
    let path = format!("/v1/conversations/{conversation}/messages:batch");
    tenant.post(&path, batch).await.assert_problem(413, "payload_too_large");
    let unhindered = other.open().await;
    assert_eq!(other.say(unhindered, "mine").await, 2);
    let stored = stored as u64;
    assert_eq!(tenant.page(conversation, "").await.json()["headSeq"], 2 + stored);
    server.stop().await;
}
