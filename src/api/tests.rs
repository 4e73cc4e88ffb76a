use std::collections::BTreeSet;

use axum::body::Body;
use hyper::Method;
use tower::ServiceExt as _;

use super::*;
use crate::clock::test_start;
use crate::readiness::Check;

/// Every call of the document, as `METHOD /path`.
fn calls() -> BTreeSet<String> {
    let json = serde_json::to_value(openapi()).unwrap();
    let paths = json["paths"].as_object().unwrap();
    let of = |(path, item): (&String, &serde_json::Value)| {
        let methods = item.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        methods
            .into_iter()
            .map(|method| format!("{} {path}", method.to_uppercase()))
            .collect::<Vec<_>>()
    };
    paths.iter().flat_map(of).collect()
}

#[test]
fn the_document_lists_every_call() {
    let listed = calls().into_iter().collect::<Vec<_>>().join("\n");
    insta::assert_snapshot!(listed, @r"
    DELETE /v1/channels/{id}
    DELETE /v1/tenants/{id}/keys/{keyId}
    GET /asyncapi.yaml
    GET /demo
    GET /docs
    GET /forebay.js
    GET /livez
    GET /metrics
    GET /openapi.json
    GET /problems/{code}
    GET /readyz
    GET /readyz/{check}
    GET /v1/channels
    GET /v1/channels/{id}
    GET /v1/channels/{id}/deliveries
    GET /v1/channels/{id}/redeliver/{jobId}
    GET /v1/conversations/{id}
    GET /v1/conversations/{id}/events
    GET /v1/conversations/{id}/messages
    GET /v1/deliveries/{id}
    GET /v1/messages/{id}/deliveries
    GET /v1/operator/status
    GET /v1/socket
    GET /v1/tenants
    GET /v1/tenants/{id}
    GET /v1/tenants/{id}/keys
    PATCH /v1/channels/{id}
    PATCH /v1/tenants/{id}
    POST /v1/channels
    POST /v1/channels/{id}/inbound
    POST /v1/channels/{id}/pause
    POST /v1/channels/{id}/redeliver
    POST /v1/channels/{id}/resume
    POST /v1/channels/{id}/rotate-secret
    POST /v1/channels/{id}/test
    POST /v1/conversations
    POST /v1/conversations/{id}/close
    POST /v1/conversations/{id}/messages
    POST /v1/conversations/{id}/messages:batch
    POST /v1/conversations/{id}/reopen
    POST /v1/operator/database/return
    POST /v1/tenants
    POST /v1/tenants/{id}/keys
    POST /v1/tokens
    POST /v1/tokens/refresh
    ");
}

#[test]
fn every_documented_call_is_counted_under_a_route_of_its_own_family() {
    for call in calls() {
        let (method, path) = call.split_once(' ').unwrap();
        let method: Method = method.parse().unwrap();
        let route = frame::route_of(&method, &path.replace("{id}", "cnv_0"));
        assert_ne!(route, crate::metrics::Route::Other, "{call}");
    }
}

#[test]
fn every_call_has_an_id_of_its_own() {
    let json = serde_json::to_value(openapi()).unwrap();
    let items = json["paths"].as_object().unwrap().values();
    let operations = items.flat_map(|item| item.as_object().unwrap().values());
    let ids: BTreeSet<_> =
        operations.map(|operation| operation["operationId"].to_string()).collect();
    assert_eq!(ids.len(), calls().len(), "{ids:?}");
}

#[test]
fn every_call_of_version_1_names_its_callers_and_problems() {
    let json = serde_json::to_value(openapi()).unwrap();
    for (path, item) in json["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            assert!(
                operation["summary"].as_str().is_some_and(|s| s.ends_with('.')),
                "{method} {path}"
            );
            if path.starts_with("/v1/") {
                assert!(!operation["security"].as_array().unwrap().is_empty(), "{method} {path}");
                assert!(operation["responses"]["401"].is_object(), "{method} {path}");
            }
        }
    }
    assert!(json["components"]["schemas"]["Problem"].is_object());
    assert_eq!(json["openapi"].as_str().unwrap().get(..3), Some("3.1"));
}

/// What needs no rooms.
fn open_doors(board: &Board) -> Router {
    let probes = Probes {
        board: board.clone(),
        clock: Clock::system(),
        render: Render::new(|| "forebay_x 1\n".to_owned()),
    };
    let routes = probes::routes()
        .with_state(Arc::new(probes))
        .merge(problem::routes())
        .merge(docs::routes().with_state(Arc::new(docs::Document::of(&openapi()))));
    Router::from(routes)
}

async fn get(router: &Router, path: &str) -> (u16, String) {
    let request = axum::extract::Request::get(path).body(Body::empty()).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

#[tokio::test]
async fn probes_say_what_is_on_the_board() {
    let now = test_start();
    let board = Board::new(now);
    let router = open_doors(&board);
    assert_eq!(get(&router, "/livez").await, (200, "ok\n".to_owned()));
    let (status, body) = get(&router, "/readyz").await;
    assert_eq!((status, body.contains("[-]log failed")), (503, true), "{body}");
    for check in [Check::Log, Check::Database, Check::Migrations] {
        board.pass(check, now);
    }
    assert_eq!(get(&router, "/readyz").await, (200, "readyz check passed\n".to_owned()));
    board.fail(Check::Database, "no connection", now);
    assert_eq!(get(&router, "/readyz/ingest").await.0, 200);
    assert_eq!(get(&router, "/readyz/reads").await.0, 503);
    assert_eq!(get(&router, "/readyz/reads?exclude=database").await.0, 200);
    assert_eq!(get(&router, "/readyz/database").await.0, 503);
    let (status, body) = get(&router, "/readyz?verbose").await;
    assert_eq!((status, body.contains("[-]database failed")), (200, true), "{body}");
    board.pass(Check::Database, now);
    board.fail(Check::Pool, "requests wait", now);
    board.note_wait(Duration::from_millis(321));
    assert_eq!(get(&router, "/readyz/ingest").await.0, 200);
    assert_eq!(get(&router, "/readyz/reads").await.0, 503);
    assert_eq!(get(&router, "/readyz?exclude=pool").await.0, 200);
    let (status, body) = get(&router, "/readyz").await;
    assert_eq!((status, body.contains("[-]pool failed")), (503, true), "{body}");
    assert!(body.contains("[i]mean wait for a connection 321 ms\n"), "{body}");
    board.drain(now);
    assert_eq!(get(&router, "/readyz/ingest").await.0, 503);
    assert_eq!(get(&router, "/livez").await.0, 200);
    assert_eq!(get(&router, "/metrics").await, (200, "forebay_x 1\n".to_owned()));
}

#[tokio::test]
async fn every_problem_has_a_page_and_the_docs_are_served() {
    let router = open_doors(&Board::new(test_start()));
    for row in problem::TABLE {
        let (status, body) = get(&router, &format!("/problems/{}", row.name)).await;
        assert_eq!((status, body.contains(row.title)), (200, true), "{}", row.name);
    }
    let (status, body) = get(&router, "/openapi.json").await;
    assert_eq!((status, body.starts_with("{\"openapi\":\"3.1")), (200, true));
    assert_eq!(get(&router, "/docs").await.0, 200);
    assert_eq!(get(&router, "/").await.0, 307, "the root leads to the docs");
}
