use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::event::key::message_id;
use crate::event::limits::CLOCK_SKEW_MAX;
use crate::event::{ClientId, Event, Json, Message, NodeId, Record, RecordId};

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn request() -> Request<'static> {
    Request {
        tenant: TenantId::derive([1; 16]),
        conversation: ConversationId::derive([2; 16]),
        user: None,
        key: None,
        trace: None,
        now: at("2026-03-01T12:00:00Z"),
    }
}

fn sent(body: &Value) -> Result<Checked, Rejected> {
    send(body.to_string().as_bytes(), &request())
}

fn message_of(checked: &Checked) -> &Message {
    match &checked.body {
        Body::Message(message) => message,
        Body::Opened(_) | Body::Closed | Body::Reopened => panic!("not a message"),
    }
}

/// The code and the pointers of what was refused.
fn refusal<T: std::fmt::Debug>(result: Result<T, Rejected>) -> (Code, Vec<String>) {
    let rejected = result.unwrap_err();
    assert!((1..=ERRORS_MAX).contains(&rejected.errors.len()));
    let pointers = rejected.errors.into_iter().map(|e| e.pointer).collect();
    (rejected.code, pointers)
}

#[test]
fn a_full_body_becomes_a_message_word_for_word() {
    let body = "\n{ \"type\": \"order.paid\", \"text\" : \"Gr\\u00fc\\u00dfe \\ud83d\\ude00\" , \"data\": { \"n\": 1.50, \"n\": 2 },\
        \"sender\": {\"id\": \"ann\", \"role\": \"agent\", \"name\": \"Ann\", \"age\": 7}, \"metadata\": {\"a\":[ ]},\
        \"clientId\": \"c-1\", \"firstSentAt\": \"2026-03-01T11:59:00+00:00\", \"later\": [1, {}] }";
    let checked = send(body.as_bytes(), &request()).unwrap();
    let message = message_of(&checked);
    assert_eq!(&*message.kind, "order.paid");
    assert_eq!(message.text.as_deref(), Some("Grüße 😀"));
    let json = |json: &Option<Json>| json.as_ref().map(|j| j.as_str().to_owned());
    assert_eq!(json(&message.data).unwrap(), "{ \"n\": 1.50, \"n\": 2 }");
    assert_eq!(json(&message.metadata).unwrap(), "{\"a\":[ ]}");
    let sender = message.sender.as_ref().unwrap();
    assert_eq!(
        (&*sender.id, sender.role.as_deref(), sender.name.as_deref()),
        ("ann", Some("agent"), Some("Ann"))
    );
    let key = ClientId::parse("c-1").unwrap();
    assert_eq!(message.client_id.as_ref(), Some(&key));
    let request = request();
    let id = message_id(request.tenant, request.conversation, Some("ann"), &key);
    assert_eq!(checked.id, Some(id));
    assert_eq!(checked.key_time, Some(at("2026-03-01T11:59:00Z")));
}

#[test]
fn null_and_absent_are_the_same_and_the_rest_has_defaults() {
    let bare = sent(&json!({"text": ""})).unwrap();
    let nulls = json!({
        "type": null, "text": "", "data": null, "sender": null, "metadata": null, "clientId": null, "firstSentAt": null
    });
    assert_eq!(sent(&nulls).unwrap(), bare);
    assert_eq!(&*message_of(&bare).kind, "message");
    assert_eq!((bare.id, bare.key_time), (None, None));
}

#[test]
fn bad_content_is_refused_at_its_place() {
    use Code::{BadRequest, Invalid};
    let too_large = |limit, max| Code::TooLarge { limit, max };
    let deep = format!("{}{}", "[".repeat(33), "]".repeat(33));
    let deep: Value = serde_json::from_str(&deep).unwrap();
    let text = too_large("textBytes", TEXT_MAX);
    let data = too_large("dataBytes", DATA_MAX);
    let metadata = too_large("metadataBytes", METADATA_BYTES_MAX);
    refuse_all([
        (json!({}), Invalid, ""),
        (json!({"text": null}), Invalid, ""),
        (json!({"text": 5}), BadRequest, "/text"),
        (json!({"text": {"a": 1}}), BadRequest, "/text"),
        (json!({"text": "a\0"}), Invalid, "/text"),
        (json!({"text": long(TEXT_MAX)}), text, "/text"),
        (json!({"data": "a\0"}), Invalid, "/data"),
        (json!({"data": {"a\0": 1}}), Invalid, "/data"),
        (json!({"data": deep}), Invalid, "/data"),
        (json!({"data": long(DATA_MAX - 2)}), data, "/data"),
        (noted(&json!({"a": long(METADATA_BYTES_MAX)})), metadata, "/metadata"),
        (noted(&json!([1])), BadRequest, "/metadata"),
        (noted(&json!({"a": "\0"})), Invalid, "/metadata"),
    ]);
    let number = b"{\"data\": [1e401]}";
    let expected = (Invalid, vec!["/data".to_owned()]);
    assert_eq!(refusal(send(number, &request())), expected);
}

#[test]
fn bad_names_and_keys_are_refused_at_their_place() {
    use Code::{BadRequest, Invalid};
    let kind = |kind: Value| json!({"text": "", "type": kind});
    let sender = |sender: Value| json!({"text": "", "sender": sender});
    let key = |key: Value| json!({"text": "", "clientId": key});
    let first = |at: Value| json!({"text": "", "firstSentAt": at});
    refuse_all([
        (kind(json!("")), Invalid, "/type"),
        (kind(json!("a b")), Invalid, "/type"),
        (kind(json!("ä")), Invalid, "/type"),
        (kind(json!(true)), BadRequest, "/type"),
        (kind(json!(long(256))), Invalid, "/type"),
        (kind(json!("conversation.closed")), Invalid, "/type"),
        (kind(json!("tombstone")), Invalid, "/type"),
        (sender(json!("ann")), BadRequest, "/sender"),
        (sender(json!(["ann", "agent", "Ann"])), BadRequest, "/sender"),
        (sender(json!({})), Invalid, "/sender/id"),
        (sender(json!({"id": ""})), Invalid, "/sender/id"),
        (sender(json!({"id": 7})), BadRequest, "/sender/id"),
        (sender(json!({"id": "a\0"})), Invalid, "/sender/id"),
        (sender(json!({"id": long(256)})), Invalid, "/sender/id"),
        (sender(json!({"id": "a", "role": long(256)})), Invalid, "/sender/role"),
        (sender(json!({"id": "a", "name": "\0"})), Invalid, "/sender/name"),
        (key(json!("")), Invalid, "/clientId"),
        (key(json!("a b")), Invalid, "/clientId"),
        (key(json!(long(128))), Invalid, "/clientId"),
        (key(json!(1)), BadRequest, "/clientId"),
        (first(json!("yesterday")), Invalid, "/firstSentAt"),
        (first(json!(1)), BadRequest, "/firstSentAt"),
    ]);
}

fn refuse_all(cases: impl IntoIterator<Item = (Value, Code, &'static str)>) {
    for (body, code, pointer) in cases {
        let name: String = body.to_string().chars().take(80).collect();
        let expected = (code, vec![pointer.to_owned()]);
        assert_eq!(refusal(sent(&body)), expected, "{name}");
    }
}

fn long(max: usize) -> String {
    "x".repeat(max + 1)
}

fn noted(metadata: &Value) -> Value {
    json!({"text": "", "metadata": metadata})
}

#[test]
fn the_longest_of_everything_is_taken() {
    let body = json!({
        "text": "x".repeat(TEXT_MAX), "data": "x".repeat(DATA_MAX - 2), "type": "x".repeat(256),
        "sender": {"id": "x".repeat(256), "role": "x".repeat(256), "name": "x".repeat(256)},
        "metadata": {"a": "x".repeat(METADATA_BYTES_MAX - 8)}, "clientId": "x".repeat(128),
    });
    let checked = sent(&body).unwrap();
    assert!(checked.body.size() + RECORD_OVERHEAD_BYTES <= RECORD_BYTES_MAX);
}

#[test]
fn every_part_of_the_payload_counts_in_its_fingerprint() {
    let payload = json!({
        "type": "a", "text": "b", "data": "c", "metadata": {"d": 1}, "sender": {"id": "e", "role": "f", "name": "g"},
    });
    let print = |body: &Value| sent(body).unwrap().fingerprint;
    let paths =
        ["/type", "/text", "/data", "/metadata/d", "/sender/id", "/sender/role", "/sender/name"];
    for path in paths {
        let mut other = payload.clone();
        *other.pointer_mut(path).unwrap() = json!("z");
        assert_ne!(print(&payload), print(&other), "{path}");
    }
}

const TEXT_MAX: usize = crate::event::limits::TEXT_BYTES_MAX;
const DATA_MAX: usize = crate::event::limits::DATA_BYTES_MAX;

#[test]
fn a_body_that_is_no_object_is_refused_as_a_whole() {
    let bodies: [&[u8]; 14] = [
        b"",
        b" ",
        b"null",
        b"[\"message\",\"text\"]",
        b"\"text\"",
        b"{",
        b"{\"text\":\"a}",
        b"{\"text\":\"a\"",
        b"{\"text\":\"a\"} x",
        b"{\"text\":\"a\nb\"}",
        b"{\"text\":\"a\",\"text\":\"b\"}",
        b"{\"text\":\"a\",\"other\":[}",
        b"{\"text\":\"\xff\"}",
        b"\xef\xbb\xbf{\"text\":\"a\"}",
    ];
    for body in bodies {
        let name = String::from_utf8_lossy(body);
        let expected = (Code::BadRequest, vec![String::new()]);
        assert_eq!(refusal(send(body, &request())), expected, "{name}");
    }
}

#[test]
fn half_of_a_surrogate_pair_is_refused_wherever_it_stands() {
    for (body, pointer) in [
        (r#"{"text": "\ud800"}"#, "/text"),
        (r#"{"text": "\udc00 \ud800"}"#, "/text"),
        (r#"{"data": ["\ud800"]}"#, "/data"),
        (r#"{"text": "", "metadata": {"\udfff": 1}}"#, "/metadata"),
        (r#"{"text": "", "sender": {"id": "\ud800"}}"#, "/sender/id"),
    ] {
        let expected = (Code::Invalid, vec![pointer.to_owned()]);
        assert_eq!(refusal(send(body.as_bytes(), &request())), expected, "{body}");
    }
}

#[test]
fn all_failures_are_told_and_the_gravest_gives_the_code() {
    let body = json!({
        "type": "conversation.x", "data": "\0", "sender": {"role": 5, "name": "\0"}, "metadata": {"a": "\0"}, "clientId": "ä",
    });
    let expected =
        ["/type", "/data", "/sender/role", "/sender/name", "/sender/id", "/metadata", "/clientId"];
    let (code, pointers) = refusal(sent(&body));
    assert_eq!(code, Code::BadRequest);
    assert_eq!(pointers, expected);
    let body = json!({"type": "ä", "text": "x".repeat(TEXT_MAX + 1)});
    let limit = "textBytes";
    let code = Code::TooLarge { limit, max: TEXT_MAX };
    assert_eq!(refusal(sent(&body)).0, code);
    let many = json!({"messages": vec![json!({"text": "", "type": "", "clientId": ""}); 15]});
    let rejected = batch(many.to_string().as_bytes(), &request()).unwrap_err();
    assert_eq!(rejected.errors.len(), ERRORS_MAX);
    assert_eq!(rejected.errors[19].pointer, "/messages/9/clientId");
}

#[test]
fn a_bound_user_is_the_sender_whatever_the_body_says() {
    let bound = Request { user: Some("ann"), ..request() };
    for sender in [json!(null), json!({"id": "bob", "role": "agent"}), json!(7)] {
        let body = json!({"text": "hi", "sender": sender, "clientId": "c"}).to_string();
        let checked = send(body.as_bytes(), &bound).unwrap();
        let sender = message_of(&checked).sender.clone().unwrap();
        assert_eq!((&*sender.id, sender.role, sender.name), ("ann", None, None));
        let free = sent(&json!({"text": "hi", "sender": {"id": "ann"}, "clientId": "c"}));
        assert_eq!(checked, free.unwrap());
    }
}

#[test]
fn the_key_comes_from_the_header_or_the_body_but_is_one() {
    let key = |header: &[u8], body: &Value| {
        let request = Request { key: Some(header), ..request() };
        let checked =
            send(body.to_string().as_bytes(), &request).map_err(|r| r.errors[0].pointer.clone())?;
        Ok::<_, String>(message_of(&checked).client_id.as_ref().unwrap().as_str().to_owned())
    };
    let plain = json!({"text": "a"});
    let named = json!({"text": "a", "clientId": "k-1"});
    for (header, body, expected) in [
        (&b"k-1"[..], &plain, Ok("k-1")),
        (b"\"k-1\"", &plain, Ok("k-1")),
        (b"\"k-1\"", &named, Ok("k-1")),
        (b"k-2", &named, Err("/clientId")),
        (b"", &plain, Err("")),
        (b"\"\"", &plain, Err("")),
        (b"\"", &plain, Err("")),
        (b"\"k-1", &plain, Err("")),
        (b"k 1", &plain, Err("")),
        (b"k\xff", &plain, Err("")),
    ] {
        let expected = expected.map(str::to_owned).map_err(str::to_owned);
        assert_eq!(key(header, body), expected, "{header:?}");
    }
}

#[test]
fn the_age_of_a_key_is_what_the_client_says_unless_that_lies_ahead() {
    let now = request().now;
    let uuid_at = |at: Timestamp| {
        uuid::Builder::from_unix_timestamp_millis(at.millis(), &[7; 10]).into_uuid().to_string()
    };
    let (old, older) = (at("2026-02-01T00:00:00Z"), at("2026-01-01T00:00:00Z"));
    let edge = now.plus(CLOCK_SKEW_MAX);
    let ahead = edge.plus(std::time::Duration::from_millis(1));
    let cases = [
        (Some("order-7".to_owned()), None, None),
        (Some("order-7".to_owned()), Some(old), Some(old)),
        (Some(uuid_at(older)), None, Some(older)),
        (Some(uuid_at(older)), Some(old), Some(old)),
        (Some(uuid_at(older)), Some(ahead), Some(older)),
        (Some(uuid_at(edge)), None, Some(edge)),
        (Some(uuid_at(ahead)), None, None),
        (Some(uuid_at(ahead)), Some(edge), Some(edge)),
        (None, Some(old), None),
    ];
    for (key, first_sent_at, expected) in cases {
        let first_sent_at = first_sent_at.map(|at| at.to_string());
        let body = json!({"text": "a", "clientId": key, "firstSentAt": first_sent_at});
        assert_eq!(sent(&body).unwrap().key_time, expected, "{body}");
    }
}

#[test]
fn a_batch_has_one_to_five_hundred_messages() {
    let run = |count: usize| {
        let messages: Vec<Value> = (0..count).map(|n| json!({"text": n.to_string()})).collect();
        batch(json!({"messages": messages}).to_string().as_bytes(), &request())
    };
    let checked = run(500).unwrap();
    let texts = checked.iter().map(|c| message_of(c).text.clone().unwrap().to_string());
    assert!(texts.eq((0..500).map(|n: usize| n.to_string())));
    let (limit, max) = ("batchMessages", 500);
    let place = vec!["/messages".to_owned()];
    assert_eq!(refusal(run(501)), (Code::TooLarge { limit, max }, place.clone()));
    assert_eq!(refusal(run(0)), (Code::Invalid, place.clone()));
    let other = |body: &str| refusal(batch(body.as_bytes(), &request()));
    assert_eq!(other("{}"), (Code::Invalid, place.clone()));
    assert_eq!(other("{\"messages\": {}}"), (Code::BadRequest, place));
    let body = r#"{"messages": [{"text": "a"}, null, ["message"], {"text": "a", "sender": {"id": 1}}, {}]}"#;
    let places = ["/messages/1", "/messages/2", "/messages/3/sender/id", "/messages/4"];
    assert_eq!(other(body), (Code::BadRequest, places.map(str::to_owned).to_vec()));
    let keyed = Request { key: Some(b"k"), ..request() };
    let one = batch(b"{\"messages\": [{\"text\": \"a\"}]}", &keyed);
    assert_eq!(refusal(one), (Code::Invalid, vec![String::new()]));
}

#[test]
fn a_batch_that_fits_no_record_is_refused() {
    let run = |bytes: usize| {
        let messages = vec![json!({"text": "x".repeat(bytes)}); 10];
        batch(json!({"messages": messages}).to_string().as_bytes(), &request())
    };
    let one = run(0).unwrap()[0].body.size();
    let most = (RECORD_BYTES_MAX - RECORD_OVERHEAD_BYTES) / 10 - one;
    assert!(run(most).is_ok());
    let code = Code::TooLarge { limit: "recordBytes", max: RECORD_BYTES_MAX };
    assert_eq!(refusal(run(most + 1)), (code, vec!["/messages".to_owned()]));
}

#[test]
fn bodies_beyond_their_limit_are_not_read() {
    let padded = |max: usize| format!("{{\"text\":\"\"{}}}", " ".repeat(max - 11));
    let limit = "bodyBytes";
    let max = SEND_BODY_BYTES_MAX;
    assert!(send(padded(max).as_bytes(), &request()).is_ok());
    let verdict = send(padded(max + 1).as_bytes(), &request());
    assert_eq!(refusal(verdict).0, Code::TooLarge { limit, max });
    let max = BATCH_BODY_BYTES_MAX;
    let verdict = batch(padded(max + 1).as_bytes(), &request());
    assert_eq!(refusal(verdict).0, Code::TooLarge { limit, max });
    let max = BODY_BYTES_MAX;
    assert_eq!(refusal(open(padded(max + 1).as_bytes())).0, Code::TooLarge { limit, max });
}

#[test]
fn a_conversation_is_opened_with_channels_each_once() {
    assert_eq!(open(b"").unwrap(), Opened::default());
    assert_eq!(open(b"{}").unwrap(), Opened::default());
    let id = ConversationId::derive([5; 16]);
    let (a, b) = (ChannelId::derive([6; 16]), ChannelId::derive([7; 16]));
    let body = json!({"id": id, "channelIds": [a, b, a], "metadata": {"x": 1}}).to_string();
    let opened = open(body.as_bytes()).unwrap();
    assert_eq!(opened.id, Some(id));
    assert_eq!(opened.opening.channels, [a, b]);
    assert_eq!(opened.opening.metadata.unwrap().as_str(), "{\"x\":1}");
}

#[test]
fn a_bad_opening_is_refused_at_its_place() {
    use Code::{BadRequest, Invalid};
    let channels = vec![ChannelId::derive([6; 16]).to_string(); 101];
    let (limit, max) = ("conversationChannels", 100);
    for (body, code, pointer) in [
        (json!([]), BadRequest, ""),
        (json!({"id": 1}), BadRequest, "/id"),
        (json!({"id": "cnv_1"}), Invalid, "/id"),
        (json!({"id": TenantId::derive([1; 16])}), Invalid, "/id"),
        (json!({"channelIds": "ch_1"}), BadRequest, "/channelIds"),
        (json!({"channelIds": [channels[0], "x"]}), Invalid, "/channelIds/1"),
        (json!({"channelIds": [null]}), BadRequest, "/channelIds/0"),
        (json!({"channelIds": channels}), Code::TooLarge { limit, max }, "/channelIds"),
        (json!({"metadata": 1}), BadRequest, "/metadata"),
    ] {
        let expected = (code, vec![pointer.to_owned()]);
        assert_eq!(refusal(open(body.to_string().as_bytes())), expected, "{body}");
    }
}

#[test]
fn a_draft_takes_the_derived_id_or_a_new_one() {
    let fresh = MessageId::derive([9; 16]);
    let long = "0".repeat(TRACE_BYTES_MAX + 1);
    let keyed = sent(&json!({"text": "a", "clientId": "c"})).unwrap();
    let derived = keyed.id.unwrap();
    let traced = Request { trace: Some("00-a-b-01"), ..request() };
    let draft = keyed.into_draft(&traced, Intent::Send, || fresh);
    assert_eq!((draft.id, draft.trace.as_deref()), (derived, Some("00-a-b-01")));
    let overlong = Request { trace: Some(&long), ..request() };
    let draft = Checked::from(Body::Closed).into_draft(&overlong, Intent::Close, || fresh);
    assert_eq!((draft.id, draft.trace, draft.at), (fresh, None, request().now));
}

fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(any::<char>(), 0..30)
        .prop_map(|chars| chars.into_iter().filter(|c| *c != '\0').collect())
}

prop_compose! {
    /// A body of fields that are all as they should be, some of them absent.
    fn good()(
        text in text(), data in prop::option::of(text()), kind in prop::option::of("[a-z._-]{1,9}"),
        sender in prop::option::of(("[a-z]{1,9}", prop::option::of(text()))),
        metadata in prop::option::of(text()), key in prop::option::of("[A-Za-z0-9._:~-]{1,128}"),
    ) -> Value {
        json!({
            "text": text, "data": data, "type": kind.filter(|k| !k.starts_with("conversation.")),
            "sender": sender.map(|(id, name)| json!({"id": id, "name": name})),
            "metadata": metadata.map(|m| json!({"m": m})), "clientId": key,
        })
    }
}

/// A body whose fields hold anything.
fn wild() -> impl Strategy<Value = Value> {
    let field = prop::sample::select(vec![
        "text",
        "data",
        "type",
        "sender",
        "metadata",
        "clientId",
        "firstSentAt",
        "messages",
        "id",
        "channelIds",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<i32>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        Just(json!("a")),
        Just(json!({"id": "a"})),
    ];
    leaf.prop_recursive(4, 40, 5, move |inner| {
        let pairs = prop::collection::vec((field.clone(), inner.clone()), 0..5);
        prop_oneof![
            prop::collection::vec(inner, 0..5).prop_map(Value::from),
            pairs.prop_map(|pairs| Value::Object(
                pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
            )),
        ]
    })
}

proptest! {
    #[test]
    fn a_good_body_is_taken_as_it_is(body in good(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&body) } else { serde_json::to_string(&body) };
        let checked = send(text.unwrap().as_bytes(), &request()).unwrap();
        let message = message_of(&checked);
        prop_assert_eq!(message.text.as_deref(), body["text"].as_str());
        prop_assert_eq!(&*message.kind, body["type"].as_str().unwrap_or("message"));
        let json = |json: &Option<Json>| json.as_ref().map(|j| serde_json::from_str::<Value>(j.as_str()).unwrap());
        prop_assert_eq!(json(&message.data).unwrap_or_default(), body["data"].clone());
        prop_assert_eq!(json(&message.metadata).unwrap_or_default(), body["metadata"].clone());
        prop_assert_eq!(message.client_id.as_ref().map(ClientId::as_str), body["clientId"].as_str());
        prop_assert_eq!(message.sender.as_ref().map(|s| &*s.id), body["sender"]["id"].as_str());
        prop_assert_eq!(message.sender.as_ref().and_then(|s| s.name.as_deref()), body["sender"]["name"].as_str());
        prop_assert_eq!(checked.id.is_some(), message.client_id.is_some());
    }

    #[test]
    fn only_the_same_payload_has_the_same_fingerprint(one in good(), other in good()) {
        let print = |body: &Value| sent(body).unwrap().fingerprint;
        let mut same = one.clone();
        same["clientId"] = json!("another");
        prop_assert_eq!(print(&one), print(&same));
        for field in ["text", "data", "type", "sender", "metadata"] {
            let mut mixed = one.clone();
            mixed[field] = other[field].clone();
            let kind = |body: &Value| body["type"].as_str().unwrap_or("message").to_owned();
            let alike = mixed[field] == one[field] || field == "type" && kind(&mixed) == kind(&one);
            prop_assert_eq!(print(&one) == print(&mixed), alike, "{}", field);
        }
    }

    #[test]
    fn whatever_comes_is_taken_or_refused_with_a_place(body in wild(), bound in any::<bool>()) {
        let bytes = body.to_string().into_bytes();
        let request = Request { user: bound.then_some("ann"), ..request() };
        let rejections = [send(&bytes, &request).err(), batch(&bytes, &request).err(), open(&bytes).err()];
        for rejected in rejections.into_iter().flatten() {
            prop_assert!((1..=ERRORS_MAX).contains(&rejected.errors.len()));
            for error in rejected.errors {
                prop_assert!(!error.detail.is_empty() && error.detail.len() < 300, "{}", error.detail);
                let known = error.pointer.is_empty() || body.pointer(&error.pointer).is_some()
                    || error.pointer.ends_with("/id") || error.pointer == "/messages" || error.pointer == "/sender/id";
                prop_assert!(known, "{} in {}", error.pointer, body);
            }
        }
    }

    #[test]
    fn bytes_of_any_kind_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(send(&bytes, &request()).is_err());
        prop_assert!(batch(&bytes, &request()).is_err());
    }

    #[test]
    fn a_checked_batch_can_be_written_as_one_record(bodies in prop::collection::vec(good(), 1..40)) {
        let body = json!({"messages": bodies}).to_string();
        let checked = batch(body.as_bytes(), &request()).unwrap();
        let draft = |checked: Checked| checked.into_draft(&request(), Intent::Send, || MessageId::derive([3; 16]));
        let event = |draft: Draft| Event {
            tenant: draft.tenant, conversation: draft.conversation, seq: 1, id: draft.id, at: draft.at,
            fingerprint: draft.fingerprint, trace: draft.trace, body: draft.body,
        };
        let events = checked.into_iter().map(draft).map(event).collect();
        let (id, node) = (RecordId::derive([4; 16]), NodeId::derive([5; 16]));
        let record = Record { version: 1, id, node, events, outcomes: Vec::new() };
        prop_assert_eq!(Record::decode(&record.encode().unwrap()).unwrap(), record);
    }
}
