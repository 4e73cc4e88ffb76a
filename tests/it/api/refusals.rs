//! Everything that is refused: a problem with a pointer and a reason, and nothing of it in the log.

use bytes::Bytes;
use forebay::event::ConversationId;
use hyper::Method;
use serde_json::{Value, json};

use crate::world::World;
use crate::world::client::{Answer, Client};

/// A body, and how it is to be refused: status, code, pointer of the first failure, part of its reason.
struct Case {
    body: Bytes,
    status: u16,
    code: &'static str,
    pointer: &'static str,
    reason: &'static str,
}

fn bad(body: impl Into<Bytes>, pointer: &'static str, reason: &'static str) -> Case {
    Case { body: body.into(), status: 400, code: "bad_request", pointer, reason }
}

fn invalid(body: impl Into<Bytes>, pointer: &'static str, reason: &'static str) -> Case {
    Case { body: body.into(), status: 422, code: "invalid_message", pointer, reason }
}

fn large(body: impl Into<Bytes>, pointer: &'static str, reason: &'static str) -> Case {
    Case { body: body.into(), status: 413, code: "payload_too_large", pointer, reason }
}

impl Case {
    fn check(&self, answer: &Answer) {
        let start = String::from_utf8_lossy(&self.body[..self.body.len().min(100)]);
        assert_eq!(answer.status, self.status, "{start}: {answer:?}");
        assert_eq!(answer.problem(), self.code, "{start}: {answer:?}");
        let body = answer.json();
        let first = &body["errors"][0];
        // The door knows the limit of a whole body before anybody reads it, and says it in the detail alone.
        let pointer = first["pointer"].as_str().unwrap_or_default();
        let detail = first["detail"].as_str().unwrap_or_default();
        assert_eq!(pointer, self.pointer, "{start}: {body}");
        let whole = format!("{} {detail}", body["detail"]);
        assert!(whole.contains(self.reason), "{start}: {whole:?} has no {:?}", self.reason);
    }
}

/// A tenant with a conversation, and how long the log was before the cases.
struct Scene {
    world: World,
    server: forebay::cli::serve::Server,
    tenant: Client,
    conversation: ConversationId,
    before: Vec<u64>,
}

impl Scene {
    async fn set() -> Self {
        let world = World::new().await;
        let server = world.serve(&[]).await;
        let tenant = Client::tenant(&server).await;
        let conversation = tenant.open().await;
        let before = world.ends(&server).await;
        Self { world, server, tenant, conversation, before }
    }

    async fn refuse(&self, suffix: &str, cases: Vec<Case>) {
        let path = format!("/v1/conversations/{}/{suffix}", self.conversation);
        for case in cases {
            let body = case.body.clone();
            case.check(&self.tenant.call(Method::POST, &path, &[], body).await);
        }
    }

    /// Nothing is in the log that was not there before, and the conversation goes on at the next seq.
    async fn strike(self) {
        assert_eq!(self.world.ends(&self.server).await, self.before, "something reached the log");
        assert_eq!(self.tenant.say(self.conversation, "and on").await, 2);
        self.world.assert_clean(&self.server).await;
        self.server.stop().await;
    }
}

fn with_text(text: &str) -> String {
    json!({ "text": text }).to_string()
}

/// A message whose data is this JSON.
fn with_data(data: &str) -> String {
    format!(r#"{{"data": {data}}}"#)
}

fn nested(depth: usize) -> String {
    format!("{}1{}", "[".repeat(depth), "]".repeat(depth))
}

#[tokio::test]
async fn what_is_no_json_or_of_the_wrong_type_is_refused() {
    let scene = Scene::set().await;
    let cases = vec![
        bad("", "", "must be a JSON object"),
        bad(r#"{"text": "a""#, "", "malformed"),
        bad(r#"{"text": "a"} trailing"#, "", "malformed"),
        bad(r#"{"text": "a", "text": "b"}"#, "", "malformed"),
        bad("{'text': 'a'}", "", "malformed"),
        bad("[]", "", "must be a JSON object"),
        bad("\"text\"", "", "must be a JSON object"),
        bad(&b"{\"text\": \"\xff\"}"[..], "", "not UTF-8"),
        bad(&b"{\"text\": \"\xed\xa0\x80\"}"[..], "", "not UTF-8"),
        bad("{\"text\": \"a\u{0}b\"}", "", "malformed"),
        bad(r#"{"text": 7}"#, "/text", "must be a string"),
        bad(r#"{"text": "a", "type": ["message"]}"#, "/type", "must be a string"),
        bad(r#"{"text": "a", "sender": "ann"}"#, "/sender", "must be a JSON object"),
        bad(r#"{"text": "a", "clientId": 7}"#, "/clientId", "must be a string"),
        bad(r#"{"text": "a", "firstSentAt": 7}"#, "/firstSentAt", "must be a string"),
    ];
    scene.refuse("messages", cases).await;
    let path = format!("/v1/conversations/{}/messages", scene.conversation);
    for header in [("content-type", "text/plain"), ("content-encoding", "gzip")] {
        let answer = scene.tenant.call(Method::POST, &path, &[header], with_text("a")).await;
        answer.assert_problem(415, "unsupported_media_type");
    }
    scene.strike().await;
}

#[tokio::test]
async fn what_postgres_cannot_store_is_refused() {
    let scene = Scene::set().await;
    let (zero, lone) = (r"\u0000", r"\ud800");
    let mut cases = vec![
        invalid(format!(r#"{{"text": "a{zero}"}}"#), "/text", "U+0000"),
        invalid(with_data(&format!(r#"["{zero}"]"#)), "/data", "U+0000"),
        invalid(with_data(&format!(r#"{{"a{zero}": 1}}"#)), "/data", "U+0000"),
        invalid(
            format!(r#"{{"text": "a", "metadata": {{"k": "{zero}"}}}}"#),
            "/metadata",
            "U+0000",
        ),
        invalid(
            format!(r#"{{"text": "a", "sender": {{"id": "{zero}"}}}}"#),
            "/sender/id",
            "U+0000",
        ),
        invalid(
            format!(r#"{{"text": "a", "sender": {{"id": "a", "name": "{zero}"}}}}"#),
            "/sender/name",
            "U+0000",
        ),
        invalid(format!(r#"{{"text": "a", "type": "{zero}"}}"#), "/type", ""),
        invalid(format!(r#"{{"text": "a", "clientId": "{zero}"}}"#), "/clientId", ""),
        invalid(format!(r#"{{"text": "{lone}"}}"#), "/text", "surrogate"),
        invalid(r#"{"text": "\udc00\ud800"}"#, "/text", "surrogate"),
        invalid(with_data(&format!(r#"{{"a": "{lone}"}}"#)), "/data", "surrogate"),
        invalid(with_data(&format!(r#"{{"{lone}": 1}}"#)), "/data", "surrogate"),
        invalid(
            format!(r#"{{"text": "a", "metadata": {{"{lone}": 1}}}}"#),
            "/metadata",
            "surrogate",
        ),
        invalid(with_data(&nested(33)), "/data", "deeper than 32"),
        invalid(with_data(&nested(5_000)), "/data", "deeper than 32"),
        invalid(
            format!(r#"{{"text": "a", "metadata": {{"k": {}}}}}"#, nested(32)),
            "/metadata",
            "deeper",
        ),
    ];
    for number in ["1e401", "-1E+401", "1e-401", "1e99999999999", &"9".repeat(401)] {
        cases.push(invalid(with_data(number), "/data", "number"));
    }
    let many = format!("[{}1]", "1e400,".repeat(1_000));
    cases.push(invalid(with_data(&many), "/data", "written out"));
    scene.refuse("messages", cases).await;
    scene.strike().await;
}

#[tokio::test]
async fn each_limit_holds_and_not_one_beyond_it() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let fits = |n: usize| format!("\"{}\"", "x".repeat(n - 2));
    let metadata = |n: usize| format!("{{\"k\":\"{}\"}}", "x".repeat(n - 8));
    let named = |field: &str, n: usize| format!(r#"{{"text": "a", {field}: "{}"}}"#, "x".repeat(n));
    let sender = |n: usize| format!(r#"{{"text": "a", "sender": {{"id": "{}"}}}}"#, "x".repeat(n));
    let with_metadata = |n: usize| format!(r#"{{"text": "a", "metadata": {}}}"#, metadata(n));
    let rows: Vec<(String, Case)> = vec![
        (
            with_text(&"x".repeat(65_536)),
            large(with_text(&"x".repeat(65_537)), "/text", "textBytes = 65536"),
        ),
        (
            with_data(&fits(131_072)),
            large(with_data(&fits(131_073)), "/data", "dataBytes = 131072"),
        ),
        (with_metadata(16_384), large(with_metadata(16_385), "/metadata", "metadataBytes = 16384")),
        (with_data(&nested(32)), invalid(with_data(&nested(33)), "/data", "deeper")),
        (with_data("1e400"), invalid(with_data("1e401"), "/data", "400")),
        (with_data(&"9".repeat(400)), invalid(with_data(&"9".repeat(401)), "/data", "400")),
        (named("\"clientId\"", 128), invalid(named("\"clientId\"", 129), "/clientId", "128")),
        (named("\"type\"", 256), invalid(named("\"type\"", 257), "/type", "256")),
        (sender(256), invalid(sender(257), "/sender/id", "256")),
        (padded(524_288), large(padded(524_289), "", "bodyBytes = 524288")),
    ];
    let path = format!("/v1/conversations/{conversation}/messages");
    let mut stored = 1;
    for (within, beyond) in rows {
        let start = within[..within.len().min(60)].to_owned();
        let sent = tenant.call(Method::POST, &path, &[], within).await;
        assert_eq!(sent.status, 201, "{start} {sent:?}");
        stored += 1;
        let body = beyond.body.clone();
        beyond.check(&tenant.call(Method::POST, &path, &[], body).await);
    }
    let page = tenant.page(conversation, "order=desc&limit=1").await.json();
    assert_eq!(page["headSeq"], stored, "what is beyond a limit is not stored");
    world.assert_clean(&server).await;
    server.stop().await;
}

/// A small message in a body of so many bytes.
fn padded(bytes: usize) -> String {
    let small = with_text("a");
    format!("{small}{}", " ".repeat(bytes - small.len()))
}

#[tokio::test]
async fn what_breaks_a_rule_is_refused_where_it_stands() {
    let scene = Scene::set().await;
    let cases = vec![
        invalid("{}", "", "text or data"),
        invalid(r#"{"text": null, "data": null}"#, "", "text or data"),
        invalid(r#"{"text": "a", "type": "tombstone"}"#, "/type", "tombstone"),
        invalid(r#"{"text": "a", "type": "conversation.x"}"#, "/type", "conversation."),
        invalid(r#"{"text": "a", "type": "conversation."}"#, "/type", "conversation."),
        invalid(r#"{"text": "a", "type": "conversation.opened"}"#, "/type", "conversation."),
        invalid(r#"{"text": "a", "type": ""}"#, "/type", "characters"),
        invalid(r#"{"text": "a", "type": "a b"}"#, "/type", "characters"),
        invalid(r#"{"text": "a", "sender": {}}"#, "/sender/id", "required"),
        invalid(r#"{"text": "a", "sender": {"id": ""}}"#, "/sender/id", "empty"),
        invalid(r#"{"text": "a", "clientId": ""}"#, "/clientId", "1 to 128"),
        invalid(r#"{"text": "a", "clientId": "a b"}"#, "/clientId", "1 to 128"),
        invalid(r#"{"text": "a", "firstSentAt": "yesterday"}"#, "/firstSentAt", "RFC 3339"),
    ];
    scene.refuse("messages", cases).await;
    let several = r#"{"type": "", "sender": {"id": ""}, "clientId": "?"}"#;
    let path = format!("/v1/conversations/{}/messages", scene.conversation);
    let answer = scene.tenant.call(Method::POST, &path, &[], several).await;
    answer.assert_problem(422, "invalid_message");
    let body = answer.json();
    let pointers: Vec<_> =
        body["errors"].as_array().unwrap().iter().map(|e| &e["pointer"]).collect();
    assert_eq!(pointers, ["/type", "", "/sender/id", "/clientId"], "all of it is named at once");
    for (key, body) in [
        ("a b", r#"{"text": "a"}"#),
        (&*"x".repeat(129), r#"{"text": "a"}"#),
        ("", r#"{"text": "a"}"#),
        ("one", r#"{"text": "a", "clientId": "other"}"#),
    ] {
        let headers = [("idempotency-key", key)];
        let answer = scene.tenant.call(Method::POST, &path, &headers, body).await;
        answer.assert_problem(422, "invalid_message");
        assert!(answer.text().contains("Idempotency-Key"), "{answer:?}");
    }
    scene.strike().await;
}

#[tokio::test]
async fn a_batch_is_refused_as_a_whole_before_it_reaches_the_log() {
    let scene = Scene::set().await;
    let of = |messages: Vec<Value>| json!({ "messages": messages }).to_string();
    let small = || json!({"text": "a"});
    let bulky = || json!({"text": "x".repeat(60_000)});
    let cases = vec![
        invalid("{}", "/messages", "required"),
        bad(r#"{"messages": {}}"#, "/messages", "must be an array"),
        invalid(of(vec![]), "/messages", "empty"),
        bad(of(vec![small(), json!([])]), "/messages/1", "must be a JSON object"),
        invalid(of(vec![small(), json!({"text": "a\u{0}"})]), "/messages/1/text", "U+0000"),
        invalid(
            of(vec![json!({"text": "a", "type": "tombstone"})]),
            "/messages/0/type",
            "tombstone",
        ),
        large(of(vec![small(); 501]), "/messages", "batchMessages = 500"),
        large(of(vec![bulky(); 9]), "/messages", "recordBytes = 524288"),
        large(format!("{}{}", of(vec![small()]), " ".repeat(2_097_152)), "", "bodyBytes = 2097152"),
    ];
    scene.refuse("messages:batch", cases).await;
    let path = format!("/v1/conversations/{}/messages:batch", scene.conversation);
    let headers = [("idempotency-key", "one")];
    let answer = scene.tenant.call(Method::POST, &path, &headers, of(vec![small()])).await;
    answer.assert_problem(422, "invalid_message");
    scene.strike().await;
}

#[tokio::test]
async fn an_opening_and_a_query_are_refused_where_they_are_wrong() {
    let scene = Scene::set().await;
    let channel = |n: usize| format!("ch_{n:032x}");
    let many: Vec<String> = (0..101).map(channel).collect();
    let cases = vec![
        bad("[]", "", "must be a JSON object"),
        bad(r#"{"id": 7}"#, "/id", "must be a string"),
        invalid(r#"{"id": "cnv_1"}"#, "/id", ""),
        invalid(json!({"id": format!("msg_{}", "0".repeat(32))}).to_string(), "/id", ""),
        invalid(r#"{"channelIds": ["ch_1"]}"#, "/channelIds/0", ""),
        invalid(json!({"channelIds": [channel(7)]}).to_string(), "/channelIds", "no channel"),
        large(
            json!({ "channelIds": many }).to_string(),
            "/channelIds",
            "conversationChannels = 100",
        ),
        invalid(r#"{"metadata": {"k": "\u0000"}}"#, "/metadata", "U+0000"),
        large(
            json!({"metadata": {"k": "x".repeat(16_384)}}).to_string(),
            "/metadata",
            "metadataBytes = 16384",
        ),
        large(format!("{{}}{}", " ".repeat(65_536)), "", "bodyBytes = 65536"),
    ];
    for case in cases {
        let body = case.body.clone();
        case.check(&scene.tenant.call(Method::POST, "/v1/conversations", &[], body).await);
    }
    for query in [
        "limit=0",
        "limit=501",
        "limit=ten",
        "limit=",
        "limit=-1",
        "after=-1",
        "after=x",
        "after=99999999999999999999",
        "order=up",
        "order=",
    ] {
        let answer = scene.tenant.page(scene.conversation, query).await;
        assert_eq!(answer.status, 400, "{query} {answer:?}");
        answer.assert_problem(400, "bad_request");
    }
    scene.strike().await;
}
