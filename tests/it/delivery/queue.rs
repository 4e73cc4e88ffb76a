//! What the router stores, looked at in the streams themselves: once, in its place, and the marker last.

use bytes::Bytes;
use forebay::event::Partitions;
use forebay::log::Log;
use forebay::log::batch::{Posted, Posting};
use serde_json::json;

use crate::operate::streams::api;
use crate::world::client::Client;
use crate::world::{World, eventually};

fn posting(subject: &str, name: Option<&str>, guard: Option<u64>) -> Posting {
    let (subject, name) = (subject.to_owned(), name.map(str::to_owned));
    Posting { subject, name, guard, payload: Bytes::from_static(b"x") }
}

/// How many messages this stream of the world has.
async fn count(world: &World, stream: &str) -> u64 {
    let name = format!("{}_{stream}", world.namespace().as_str());
    api(world, "INFO", &name, json!({})).await["state"]["messages"].as_u64().unwrap()
}

#[tokio::test]
async fn few_are_stored_once_and_the_last_only_after_all_the_others() {
    let world = World::new().await;
    let log = world.log().await;
    let lane = log.lane_subject("standard-0", "c");
    let partition = Partitions::new(1).unwrap().all().next().unwrap();
    let marker = log.routed_subject(partition);
    let few = |guard| {
        let two = ["a", "b"].map(|name| posting(&lane, Some(name), None));
        two.into_iter().chain([posting(&marker, None, Some(guard))]).collect::<Vec<_>>()
    };
    let stored = log.post_few(few(0)).await;
    assert!(matches!(stored, Posted::Stored(3)), "{stored:?}");
    assert_eq!(log.post_few(few(0)).await, Posted::Conflict, "somebody else was faster");
    let again = log.post_few(few(3)).await;
    assert!(matches!(again, Posted::Stored(4)), "{again:?}");
    assert_eq!(count(&world, "DELIVER").await, 4, "two deliveries, each once, and two markers");

    let parked = format!("{}_PARKED", world.namespace().as_str());
    let mut full = api(&world, "INFO", &parked, json!({})).await["config"].clone();
    full["max_msgs"] = json!(1);
    api(&world, "UPDATE", &parked, full).await;
    let (backlog, marker) = (log.backlog_subject("c"), log.backlog_subject("routed-0"));
    let two = ["a", "b"].map(|name| posting(&backlog, Some(name), None));
    let postings = two.into_iter().chain([posting(&marker, None, Some(0))]).collect();
    assert_eq!(log.post_few(postings).await, Posted::Full);
    assert_eq!(log.last(&parked, &marker).await.unwrap(), None, "no marker without its deliveries");
}

/// Writes every marker again as it is, as the purge of what is settled does.
async fn rewrite_markers(world: &World, log: &Log) {
    let stream = format!("{}_DELIVER", world.namespace().as_str());
    for partition in Partitions::new(2).unwrap().all() {
        let subject = log.routed_subject(partition);
        if let Some((sequence, payload)) = log.last(&stream, &subject).await.unwrap() {
            let posting = Posting { subject, name: None, guard: Some(sequence), payload };
            assert!(matches!(log.post("", vec![posting]).await, Posted::Stored(_)));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_marker_that_was_written_again_is_no_other_router() {
    let world = World::new().await;
    let server = world.serve(&[("FOREBAY_DELIVER", "route")]).await;
    let tenant = Client::tenant(&server).await;
    let (channel, _) = super::channel(&tenant, "http://127.0.0.1:9/", json!({})).await;
    let conversation = tenant.open().await;
    eventually("the opening is routed", async || count(&world, "DELIVER").await >= 2).await;
    let log = world.log().await;
    rewrite_markers(&world, &log).await;
    let before = count(&world, "DELIVER").await;
    let path = format!("/v1/conversations/{conversation}/messages:batch");
    let messages: Vec<_> = (0..300).map(|n| json!({"text": n.to_string()})).collect();
    assert_eq!(tenant.post(&path, json!({"messages": messages})).await.status, 201);
    eventually("the burst is routed", async || count(&world, "DELIVER").await >= before + 2).await;
    // Whoever stored a second call would have done so before the marker.
    assert_eq!(log.backlog_sizes(&channel).await.unwrap().values().sum::<u64>(), 300);
    assert_eq!(count(&world, "DELIVER").await, before + 2, "a call and a marker");
    server.stop().await;
}
