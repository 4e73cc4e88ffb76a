//! Server-sent events.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::key_of;
use crate::world::World;
use crate::world::client::Client;

/// A stream as `curl -N` reads it.
struct Reading {
    stream: TcpStream,
    text: String,
}

impl Reading {
    async fn open(server: &forebay::cli::serve::Server, key: &str, path: &str, id: &str) -> Self {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let id = if id.is_empty() { String::new() } else { format!("Last-Event-ID: {id}\r\n") };
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n{id}Connection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        Self { stream, text: String::new() }
    }

    /// Reads until this was read, and gives all that was.
    async fn until(&mut self, wanted: &str) -> &str {
        let mut buffer = [0; 4_096];
        while !self.text.contains(wanted) {
            let reading = timeout(Duration::from_secs(20), self.stream.read(&mut buffer));
            let count =
                reading.await.unwrap_or_else(|_| panic!("no {wanted:?}: {}", self.text)).unwrap();
            assert!(count > 0, "it ended before {wanted:?}: {}", self.text);
            self.text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        }
        &self.text
    }
}

#[tokio::test]
async fn a_stream_goes_on_from_the_last_id() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let key = key_of(&tenant);
    let conversation = tenant.open().await;
    let path = format!("/v1/conversations/{conversation}/events");
    let epoch = server.shape.epoch.clone();
    let mut first = Reading::open(&server, &key, &format!("{path}?after=0"), "").await;
    let head = first.until("event: replayComplete").await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    for line in
        ["content-type: text/event-stream", "cache-control: no-store", "x-accel-buffering: no"]
    {
        assert!(head.to_ascii_lowercase().contains(line), "{line} in {head}");
    }
    assert!(head.contains(&format!("id: {epoch}:1\ndata: {{")), "{head}");
    tenant.say(conversation, "one").await;
    tenant.say(conversation, "two").await;
    first.until(&format!("id: {epoch}:3\n")).await;
    drop(first);
    tenant.say(conversation, "three").await;
    // The id beats the query.
    let after = format!("{path}?after=0");
    let mut second = Reading::open(&server, &key, &after, &format!("{epoch}:3")).await;
    let text = second.until(&format!("id: {epoch}:4\n")).await;
    assert!(!text.contains(&format!("id: {epoch}:3\n")), "{text}");
    let mut gone = Reading::open(&server, &key, &path, "other:3").await;
    gone.until("event: replayGone").await;
    // Without a place, only what happens from now on.
    let mut fresh = Reading::open(&server, &key, &path, "").await;
    fresh.until("event: replayComplete").await;
    tenant.say(conversation, "four").await;
    let text = fresh.until(&format!("id: {epoch}:5\n")).await;
    assert!(!text.contains(&format!("id: {epoch}:4\n")), "{text}");
    let stopping = async { server.stop().await };
    let ending = async { second.until("on its way out").await.contains("retry: ") };
    let (clean, told) = tokio::join!(stopping, ending);
    assert!(clean && told);
}

#[tokio::test]
async fn who_may_not_read_is_told_in_http() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let path = format!("/v1/conversations/{conversation}/events");
    for id in ["2", "rubbish", "a:-1"] {
        let answer = tenant.call(hyper::Method::GET, &path, &[("last-event-id", id)], "").await;
        answer.assert_problem(400, "bad_request");
    }
    tenant.as_bearer("").get(&path).await.assert_problem(401, "unauthorized");
    let bound = tenant.post("/v1/tokens", json!({"conversationId": tenant.open().await})).await;
    let token = bound.json()["token"].as_str().unwrap().to_owned();
    tenant.as_bearer(&token).get(&path).await.assert_problem(403, "forbidden");
    let other = Client::tenant(&server).await;
    let text = other.get(&path).await;
    assert!(text.text().contains("{\"code\":\"conversation_not_found\","), "{text:?}");
    let text = tenant.get(&format!("{path}?after=99")).await;
    let said = text.text();
    assert!(said.contains("{\"code\":\"invalid_watermark\",\"headSeq\":1,"), "{said:?}");
    server.stop().await;
}
