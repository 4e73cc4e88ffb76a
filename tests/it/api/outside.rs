//! What machines and people see of a server: probes, metrics, the pages, and what every answer has in common.

use forebay::api::problem::TABLE as PROBLEMS;
use forebay::metrics::TABLE as METRICS;
use hyper::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::world::client::Client;
use crate::world::{World, eventually};

#[tokio::test]
async fn probes_say_what_works_and_turn_when_the_server_drains() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let nobody = Client::with(&server, "");
    eventually("it is ready", async || nobody.get("/readyz").await.status == 200).await;
    let views = ["/readyz", "/readyz/ingest", "/readyz/reads", "/readyz/log", "/readyz/database"];
    for path in views.into_iter().chain(["/livez", "/readyz/migrations", "/readyz?exclude=log"]) {
        let answer = nobody.get(path).await;
        assert_eq!(answer.status, 200, "{path} {answer:?}");
        assert!(answer.header("content-type").starts_with("text/plain"), "{path}");
    }
    let verbose = nobody.get("/readyz?verbose").await;
    for check in
        ["log", "database", "migrations", "pool", "started", "draining", "lag", "mean wait"]
    {
        assert!(verbose.text().contains(check), "{check} in {}", verbose.text());
    }
    nobody.get("/readyz/nothing").await.assert_problem(404, "not_found");
    nobody.get("/readyz?exclude=nothing").await.assert_problem(400, "bad_request");

    server.board.drain(world.clock.now());
    for path in ["/readyz", "/readyz/ingest", "/readyz/reads", "/readyz/draining"] {
        let answer = nobody.get(path).await;
        assert_eq!(answer.status, 503, "{path}");
        assert!(answer.text().contains("drain"), "{path} {}", answer.text());
    }
    assert_eq!(nobody.get("/livez").await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_draining_server_finishes_what_was_begun() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let board = server.board.clone();
    let body = br#"{"text": "begun before the drain"}"#;
    let (begun, rest) = body.split_at(10);
    let sending = async {
        let mut stream = tenant.begin_send(conversation, body.len(), begun).await;
        let rest = async {
            eventually("the server drains", async || board.is_draining()).await;
            stream.write_all(rest).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let (answer, clean) = tokio::join!(rest, server.stop());
        assert!(clean, "every task ended by itself");
        answer
    };
    let answer = sending.await;
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    let again = world.serve(&[]).await;
    assert_eq!(tenant.at(&again).page(conversation, "").await.seqs(), [1, 2]);
    again.stop().await;
}

#[tokio::test]
async fn every_metric_of_the_table_is_on_the_page() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    tenant.say(conversation, "hello").await;
    world.projected(&server).await;
    let nobody = Client::with(&server, "");
    let missing = async || {
        let page = nobody.get("/metrics").await.text().to_owned();
        let is_there = |name: &str| page.lines().any(|line| line.starts_with(name));
        METRICS.iter().map(|row| row.name).filter(|name| !is_there(name)).collect::<Vec<_>>()
    };
    eventually("all are there", async || missing().await.is_empty()).await;
    let page = nobody.get("/metrics").await;
    assert!(page.header("content-type").starts_with("text/plain; version=0.0.4"), "{page:?}");
    for row in METRICS {
        let help = format!("# HELP {} {}", row.name, row.help);
        assert!(page.text().contains(&help), "{help}");
    }
    let status = Client::operator(&server).get("/v1/operator/status").await.json();
    assert_eq!(status["ready"]["all"], true, "{status}");
    assert_eq!(status["directory"]["tenants"], 1);
    tenant.get("/v1/operator/status").await.assert_problem(403, "forbidden");
    server.stop().await;
}

#[tokio::test]
async fn the_document_lists_every_call_and_the_page_shows_it() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let nobody = Client::with(&server, "");
    let document = nobody.get("/openapi.json").await.json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"), "{}", document["openapi"]);
    for (path, methods) in [
        ("/v1/tenants", &["get", "post"][..]),
        ("/v1/tenants/{id}", &["get", "patch"]),
        ("/v1/tenants/{id}/keys", &["get", "post"]),
        ("/v1/tenants/{id}/keys/{keyId}", &["delete"]),
        ("/v1/channels", &["get", "post"]),
        ("/v1/channels/{id}", &["get", "patch", "delete"]),
        ("/v1/conversations", &["post"]),
        ("/v1/conversations/{id}", &["get"]),
        ("/v1/conversations/{id}/close", &["post"]),
        ("/v1/conversations/{id}/reopen", &["post"]),
        ("/v1/conversations/{id}/messages", &["get", "post"]),
        ("/v1/conversations/{id}/messages:batch", &["post"]),
        ("/v1/tokens", &["post"]),
        ("/v1/tokens/refresh", &["post"]),
        ("/v1/operator/status", &["get"]),
        ("/livez", &["get"]),
        ("/readyz", &["get"]),
        ("/readyz/{check}", &["get"]),
        ("/metrics", &["get"]),
        ("/problems/{code}", &["get"]),
    ] {
        for method in methods {
            let call = &document["paths"][path][method];
            assert!(call["responses"].is_object(), "{method} {path}");
        }
    }
    let page = nobody.get("/docs").await;
    assert!(page.status == 200 && page.header("content-type").starts_with("text/html"), "{page:?}");
    server.stop().await;
}

#[tokio::test]
async fn each_problem_has_a_page_and_each_answer_a_name() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let nobody = Client::with(&server, "");
    for row in PROBLEMS {
        let page = nobody.get(&format!("/problems/{}", row.name)).await;
        assert_eq!(page.status, 200, "{}", row.name);
        assert!(page.text().contains(row.name), "{}", page.text());
    }
    nobody.get("/problems/nothing").await.assert_problem(404, "not_found");
    nobody.get("/nowhere").await.assert_problem(404, "not_found");
    let wrong = nobody.delete("/livez").await;
    wrong.assert_problem(405, "method_not_allowed");
    assert!(wrong.header("allow").contains("GET"), "{wrong:?}");

    let chosen = [("x-request-id", "order-7")];
    let named = nobody.call(Method::GET, "/livez", &chosen, "").await;
    assert_eq!(named.header("x-request-id"), "order-7");
    let unsound = [("x-request-id", "a b\"c")];
    let mut names = Vec::new();
    for headers in [&unsound[..], &[]] {
        let answer = nobody.call(Method::GET, "/livez", headers, "").await;
        names.push(answer.header("x-request-id").to_owned());
    }
    assert!(names[0] != names[1] && names.iter().all(|name| name.starts_with("req_")), "{names:?}");
    server.stop().await;
}
