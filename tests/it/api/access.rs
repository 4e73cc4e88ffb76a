//! Who may do what: operators, tenants and users; what is revoked, expired or forged.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use forebay::cli::serve::Server;
use forebay::event::ConversationId;
use hyper::Method;
use serde_json::{Value, json};
use tokio::time::{interval, timeout};

use crate::world::World;
use crate::world::client::{Answer, Client, tenant_of};

/// What is promised for a revocation to reach every node.
const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn an_operator_makes_a_tenant_and_sees_its_key_once() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let operator = Client::operator(&server);
    let made = operator.post("/v1/tenants", json!({"name": "acme", "tier": "high"})).await;
    assert_eq!(made.status, 201, "{made:?}");
    let tenant = made.json();
    let (id, key) = (text(&tenant["id"]), text(&tenant["apiKey"]));
    assert!(id.starts_with("ten_") && key.starts_with("fbk_") && key.len() == 47, "{tenant}");
    assert_eq!((&tenant["tier"], &tenant["status"]), (&json!("high"), &json!("active")));
    assert_eq!(made.header("location"), format!("/v1/tenants/{id}"));

    let another = operator.post(&format!("/v1/tenants/{id}/keys"), json!({})).await;
    assert_eq!(another.status, 201, "{another:?}");
    let second = text(&another.json()["apiKey"]);
    assert_ne!(second, key);
    for path in
        [format!("/v1/tenants/{id}"), "/v1/tenants".into(), format!("/v1/tenants/{id}/keys")]
    {
        let shown = operator.get(&path).await;
        assert_eq!(shown.status, 200, "{shown:?}");
        assert!(!shown.text().contains("fbk_"), "{path} shows a key: {}", shown.text());
    }
    for key in [&key, &second] {
        Client::with(&server, key).open().await;
    }
    server.stop().await;
}

#[tokio::test]
async fn each_call_serves_its_own_kind_of_caller() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let (operator, tenant) = (Client::operator(&server), Client::tenant(&server).await);
    let conversation = tenant.open().await;
    let user = tenant.as_bearer(&token(&tenant, json!({})).await);
    let messages = format!("/v1/conversations/{conversation}/messages");
    let own = format!("/v1/conversations/{conversation}");
    let tenants = "/v1/tenants".to_owned();
    let refresh = "/v1/tokens/refresh".to_owned();
    for (caller, path, status) in [
        (&operator, &tenants, 200),
        (&tenant, &tenants, 403),
        (&user, &tenants, 403),
        (&operator, &messages, 403),
        (&tenant, &messages, 200),
        (&user, &messages, 200),
        (&operator, &own, 403),
        (&tenant, &own, 200),
        (&user, &own, 403),
    ] {
        let answer = caller.get(path).await;
        assert_eq!(answer.status, status, "{path} {answer:?}");
    }
    for (caller, status) in [(&operator, 403), (&tenant, 403), (&user, 201)] {
        assert_eq!(caller.post(&refresh, json!({})).await.status, status);
    }
    for stranger in ["", "fbk_", "not-the-operators-token", "a.b.c"] {
        let answer = tenant.as_bearer(stranger).get(&messages).await;
        answer.assert_problem(401, "unauthorized");
        assert!(answer.header("www-authenticate").starts_with("Bearer"), "{answer:?}");
    }
    let basic = [("authorization", "Basic dTpw")];
    let answer = tenant.call(Method::GET, &messages, &basic, "").await;
    answer.assert_problem(401, "unauthorized");
    server.stop().await;
}

#[tokio::test]
async fn what_is_revoked_or_suspended_is_refused_by_every_node_within_a_second() {
    let world = World::new().await;
    let (a, b) = (world.serve(&[]).await, world.serve(&[]).await);
    let (operator, tenant) = (Client::operator(&a), Client::tenant(&a).await);
    let id = tenant_of(&a, &tenant);
    let made = operator.post(&format!("/v1/tenants/{id}/keys"), json!({})).await.json();
    let second = Client::with(&b, &text(&made["apiKey"]));
    let (first, user) = (tenant.at(&b), second.as_bearer(&token(&tenant, json!({})).await));
    becomes(&second, 201).await;
    becomes(&first, 201).await;

    let path = format!("/v1/tenants/{id}/keys/{}", text(&made["id"]));
    assert_eq!(operator.delete(&path).await.status, 204);
    becomes(&second, 401).await;
    becomes(&first, 201).await;

    let conversation = first.open().await;
    for (status, key, token) in [("suspended", 401, 401), ("active", 201, 200)] {
        let patched = operator.patch(&format!("/v1/tenants/{id}"), json!({"status": status})).await;
        assert_eq!(patched.json()["status"], status);
        becomes(&first, key).await;
        assert_eq!(user.page(conversation, "").await.status, token);
    }
    a.stop().await;
    b.stop().await;
}

#[tokio::test]
async fn a_bound_token_can_do_nothing_beyond_its_bounds() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let (own, other) = (tenant.open().await, tenant.open().await);
    let wish = json!({"conversationId": own, "userId": "ann"});
    let user = tenant.as_bearer(&token(&tenant, wish).await);
    let claimed = json!({"text": "hi", "sender": {"id": "bob", "role": "agent", "name": "Bob"}});
    assert_eq!(user.send(own, claimed.clone()).await.status, 201);
    let page = user.page(own, "after=1").await.json();
    assert_eq!(page["messages"][0]["sender"], json!({"id": "ann"}), "{page}");

    user.send(other, claimed).await.assert_problem(403, "forbidden");
    user.page(other, "").await.assert_problem(403, "forbidden");
    user.post("/v1/conversations", json!({})).await.assert_problem(403, "forbidden");
    user.post("/v1/tokens", json!({})).await.assert_problem(403, "forbidden");
    let batch = format!("/v1/conversations/{other}/messages:batch");
    let refused = user.post(&batch, json!({"messages": [{"text": "a"}]})).await;
    refused.assert_problem(403, "forbidden");

    let refreshed = user.post("/v1/tokens/refresh", json!({})).await.json();
    let again = user.as_bearer(&text(&refreshed["token"]));
    assert_eq!(again.say(own, "still ann").await, 3);
    again.page(other, "").await.assert_problem(403, "forbidden");
    server.stop().await;
}

#[tokio::test]
async fn expired_and_forged_tokens_are_refused_and_reach_no_log() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let valid = token(&tenant, json!({"conversationId": conversation})).await;
    assert_eq!(tenant.as_bearer(&valid).say(conversation, "valid").await, 2);

    let parts: Vec<&str> = valid.split('.').collect();
    let [head, claims, signature] = parts[..] else { panic!("three parts: {valid}") };
    let encode = |text: &str| BASE64_URL_SAFE_NO_PAD.encode(text);
    let decoded = BASE64_URL_SAFE_NO_PAD.decode(claims).unwrap();
    let mut wider: Value = serde_json::from_slice(&decoded).unwrap();
    wider.as_object_mut().unwrap().remove("cnv");
    let wider = encode(&wider.to_string());
    let foreign = foreign_token(&world, &server, conversation).await;
    let before = world.ends(&server).await;
    for (what, forged) in [
        ("other claims", format!("{head}.{wider}.{signature}")),
        ("no algorithm", format!("{}.{claims}.", encode(r#"{"alg":"none","typ":"JWT"}"#))),
        ("none, spelled oddly", format!("{}.{claims}.{signature}", encode(r#"{"alg":"nOnE"}"#))),
        ("another algorithm", format!("{}.{claims}.{signature}", encode(r#"{"alg":"HS384"}"#))),
        ("no signature", format!("{head}.{claims}.")),
        ("half a signature", format!("{head}.{claims}.{}", &signature[..20])),
        ("another key", foreign),
        ("too long", format!("{head}.{claims}.{}", "A".repeat(9_000))),
    ] {
        let user = tenant.as_bearer(&forged);
        refused(&user.send(conversation, json!({"text": what})).await, what);
        refused(&user.page(conversation, "").await, what);
    }
    let short = token(&tenant, json!({"ttlSeconds": 60})).await;
    world.clock.shift_wall(61_000_000);
    let user = tenant.as_bearer(&short);
    let answer = user.send(conversation, json!({"text": "late"})).await;
    refused(&answer, "expired");
    assert!(answer.json()["detail"].as_str().unwrap().contains("expired"), "{answer:?}");
    refused(&user.post("/v1/tokens/refresh", json!({})).await, "refresh after the end");
    assert_eq!(world.ends(&server).await, before);
    server.stop().await;
}

#[tokio::test]
async fn a_token_is_made_within_its_limits_or_not_at_all() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    for (wish, status, pointer) in [
        (json!({"ttlSeconds": 0}), 422, "/ttlSeconds"),
        (json!({"ttlSeconds": 86_401}), 422, "/ttlSeconds"),
        (json!({"userId": ""}), 422, "/userId"),
        (json!({"userId": "x".repeat(257)}), 422, "/userId"),
        (json!({"userId": "a\u{0}b"}), 422, "/userId"),
        (json!({"conversationId": "cnv_1"}), 422, "/conversationId"),
        (json!({"ttlSeconds": "long"}), 400, ""),
    ] {
        let answer = tenant.post("/v1/tokens", wish.clone()).await;
        assert_eq!(answer.status, status, "{wish} {answer:?}");
        answer.problem();
        if status == 422 {
            assert_eq!(answer.json()["errors"][0]["pointer"], pointer, "{wish}");
        }
    }
    server.stop().await;
}

/// A token of the right form from an installation with another key.
async fn foreign_token(world: &World, server: &Server, conversation: ConversationId) -> String {
    let key = [("FOREBAY_TOKEN_SECRET", "another-secret-of-thirty-two-bytes")];
    let other = world.serve(&key).await;
    let tenant = Client::operator(server).post("/v1/tenants", json!({"name": "b"})).await.json();
    let tenant = Client::with(&other, &text(&tenant["apiKey"]));
    becomes(&tenant, 201).await;
    let made = token(&tenant, json!({"conversationId": conversation})).await;
    other.stop().await;
    made
}

async fn token(tenant: &Client, wish: Value) -> String {
    let made = tenant.post("/v1/tokens", wish).await;
    assert_eq!(made.status, 201, "{made:?}");
    text(&made.json()["token"])
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn refused(answer: &Answer, what: &str) {
    assert_eq!((answer.status, answer.problem().as_str()), (401, "unauthorized"), "{what}");
}

/// Waits until opening a conversation is answered so, a second at most.
async fn becomes(tenant: &Client, status: u16) {
    let mut tick = interval(Duration::from_millis(10));
    let looking = async {
        while tenant.post("/v1/conversations", json!({})).await.status != status {
            tick.tick().await;
        }
    };
    timeout(SECOND, looking).await.unwrap_or_else(|_| panic!("not {status} within a second"));
}
