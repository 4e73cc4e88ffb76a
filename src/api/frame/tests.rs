use axum::routing::{get, post};
use rand::Rng as _;

use super::*;
use crate::metrics::Metrics;

fn framed(router: Router) -> Frame {
    Frame {
        sends: None,
        router,
        clock: Clock::system(),
        dice: Dice::seeded(1),
        metrics: Metrics::silent(1).api,
        shortage: Shortage::new(Metrics::silent(1).database),
        retry_base: Duration::from_millis(500),
    }
}

async fn read(request: Request) -> Result<String, Problem> {
    let (parts, body) = request.into_parts();
    let bytes = read_body(&parts.headers, body, BodyLimit(8)).await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn routes() -> Router {
    Router::new()
        .route("/echo", post(read))
        .route("/panic", get(|| async { panic!("oh") as &'static str }))
        .route("/bare", get(|| async { StatusCode::BAD_GATEWAY }))
        .route("/v1/conversations/{id}/messages:batch", post(|| async { "batch" }))
        .method_not_allowed_fallback(|| async { Problem::new(Code::MethodNotAllowed, "No.") })
}

async fn answer(request: Request) -> (u16, HeaderMap, String) {
    let response = framed(routes()).answer(request).await;
    let (parts, body) = response.into_parts();
    let bytes = axum::body::to_bytes(body, 65_536).await.unwrap();
    (parts.status.as_u16(), parts.headers, String::from_utf8(bytes.to_vec()).unwrap())
}

fn request(method: &str, path: &str, body: impl Into<Body>) -> Request {
    Request::builder().method(method).uri(path).body(body.into()).unwrap()
}

#[tokio::test]
async fn a_panic_is_answered_as_a_problem_that_tells_nothing() {
    let (status, headers, body) = answer(request("GET", "/panic", "")).await;
    assert_eq!(status, 500);
    assert_eq!(headers["content-type"], "application/problem+json");
    assert!(body.contains("\"code\":\"internal\"") && !body.contains("oh"), "{body}");
    assert!(body.contains(headers["x-request-id"].to_str().unwrap()), "{body}");
}

#[tokio::test]
async fn unknown_paths_methods_and_bare_statuses_are_problems() {
    let (status, _, body) = answer(request("GET", "/nowhere", "")).await;
    assert_eq!((status, body.contains("not_found")), (404, true), "{body}");
    let (status, headers, body) = answer(request("DELETE", "/echo", "")).await;
    assert_eq!((status, body.contains("method_not_allowed")), (405, true), "{body}");
    assert_eq!(headers["allow"], "POST");
    let (status, _, body) = answer(request("GET", "/bare", "")).await;
    assert_eq!((status, body.contains("internal")), (500, true), "{body}");
}

#[tokio::test]
async fn a_colon_may_stand_in_a_path() {
    let (status, _, body) = answer(request("POST", "/v1/conversations/x/messages:batch", "")).await;
    assert_eq!((status, body.as_str()), (200, "batch"));
}

#[tokio::test]
async fn a_body_beyond_its_limit_is_refused_announced_or_not() {
    assert_eq!(answer(request("POST", "/echo", "12345678")).await.2, "12345678");
    assert_eq!(answer(request("POST", "/echo", "123456789")).await.0, 413);
    let chunks = ["1234", "5678", "9"]
        .map(|chunk| Ok::<_, Infallible>(Bytes::from_static(chunk.as_bytes())));
    let streamed = Body::from_stream(futures_util::stream::iter(chunks.clone()));
    let (status, headers, body) = answer(request("POST", "/echo", streamed)).await;
    assert_eq!((status, &headers["connection"]), (413, &HeaderValue::from_static("close")));
    assert!(body.contains("bodyBytes = 8"), "{body}");
    let streamed = Body::from_stream(futures_util::stream::iter(chunks.into_iter().take(2)));
    assert_eq!(answer(request("POST", "/echo", streamed)).await.2, "12345678");
}

#[tokio::test]
async fn only_plain_json_in_utf_8_is_read() {
    for (media, status) in [
        ("application/json", 200),
        ("Application/JSON; charset=UTF-8", 200),
        ("application/json;charset=\"utf-8\"", 200),
        ("application/json; charset=latin1", 415),
        ("application/x-www-form-urlencoded", 415),
        ("text/json", 415),
    ] {
        let mut asked = request("POST", "/echo", "{}");
        asked.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
        assert_eq!(answer(asked).await.0, status, "{media}");
    }
    let mut packed = request("POST", "/echo", "{}");
    packed.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    assert_eq!(answer(packed).await.0, 415);
}

#[tokio::test]
async fn request_ids_and_traces_come_back_if_they_are_sound() {
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let mut asked = request("GET", "/nowhere", "");
    asked.headers_mut().insert(REQUEST_ID, HeaderValue::from_static("order-7"));
    asked.headers_mut().insert(TRACEPARENT, HeaderValue::from_static(trace));
    let (_, headers, body) = answer(asked).await;
    assert_eq!(
        (&headers["x-request-id"], &headers["traceparent"]),
        (&HeaderValue::from_static("order-7"), &HeaderValue::from_static(trace))
    );
    assert!(body.contains("\"requestId\":\"order-7\""), "{body}");
    for unsound in ["a b", "a\"b", "", &"x".repeat(129)] {
        assert!(!is_request_id(unsound.as_bytes()), "{unsound}");
    }
}

#[test]
fn traces_are_taken_as_the_recommendation_writes_them() {
    let (id, parent) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let sound = |text: &str| is_trace(&HeaderValue::from_str(text).unwrap());
    assert!(sound(&format!("00-{id}-{parent}-01")));
    assert!(sound(&format!("cc-{id}-{parent}-01-later")));
    for unsound in [
        format!("00-{id}-{parent}-01-more"),
        format!("ff-{id}-{parent}-01"),
        format!("00-{}-{parent}-01", "0".repeat(32)),
        format!("00-{id}-{}-01", "0".repeat(16)),
        format!("00-{}-{parent}-01", id.to_uppercase()),
        format!("00_{id}-{parent}-01"),
        format!("cc-{id}-{parent}-01-{}", "x".repeat(20)),
        String::new(),
    ] {
        assert!(!sound(&unsound), "{unsound}");
    }
}

#[test]
fn dice_fill_everything_and_do_not_repeat() {
    let mut dice = Dice::seeded(7);
    let mut bytes = [0; 21];
    dice.fill_bytes(&mut bytes);
    assert!(bytes[16..].iter().any(|byte| *byte != 0));
    let drawn: std::collections::BTreeSet<u64> = (0..1_000).map(|_| dice.draw()).collect();
    assert_eq!(drawn.len(), 1_000);
    assert_ne!(dice.next_u32(), dice.clone().next_u32());
}

#[tokio::test]
async fn a_body_that_stops_coming_is_given_up() {
    let stuck = Body::from_stream(futures_util::stream::pending::<Result<Bytes, Infallible>>());
    let problem = read_within(stuck, BodyLimit(8), Duration::from_millis(1)).await.unwrap_err();
    assert_eq!(problem.code(), Code::RequestTimeout);
}
