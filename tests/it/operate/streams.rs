//! The streams of an installation: made, compared, mended, and refused where they cannot be.

use forebay::log::streams::{self, Mismatch};
use forebay::log::{Error, Log};
use serde_json::{Value, json};

use crate::world::World;

/// The raw answer of JetStream's API about a stream of this world.
pub(crate) async fn api(world: &World, call: &str, stream: &str, body: Value) -> Value {
    let client = async_nats::connect(world.nats_url()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let subject = format!("STREAM.{call}.{stream}");
    let answer: Value = context.request(subject, &body).await.unwrap();
    assert!(answer.get("error").is_none(), "{answer}");
    answer
}

async fn config(world: &World, stream: &str) -> Value {
    api(world, "INFO", stream, json!({})).await["config"].clone()
}

#[tokio::test]
async fn applying_twice_changes_nothing() {
    let world = World::new().await;
    let log = Log::connect(world.config(&[]).log).await.unwrap();
    let missing = streams::check(&log).await.unwrap();
    assert_eq!(missing.len(), 9, "two partitions, four buckets, three queues: {missing:?}");
    assert!(missing.iter().all(|drift| drift.mendable && drift.found == "missing"));
    let absent = streams::shape(&log).await;
    assert!(matches!(absent, Err(Error::Streams(Mismatch::Absent))), "{absent:?}");

    let first = streams::apply(&log, "first").await.unwrap();
    assert_eq!((first.partitions.count(), first.epoch.as_str()), (2, "first"));
    let namespace = world.namespace();
    let names: Vec<String> = ["LOG_0", "LOG_1"]
        .map(|suffix| format!("{}_{suffix}", namespace.as_str()))
        .into_iter()
        .chain(["DIRECTORY", "SNAPSHOTS"].map(|name| format!("KV_{}_{name}", namespace.as_str())))
        .collect();
    let mut before = Vec::new();
    for name in &names {
        before.push(config(&world, name).await);
    }
    assert_eq!(streams::check(&log).await.unwrap(), []);
    assert_eq!(streams::apply(&log, "second").await.unwrap(), first, "a log keeps its epoch");
    for (name, before) in names.iter().zip(before) {
        assert_eq!(config(&world, name).await, before, "{name}");
    }
}

#[tokio::test]
async fn what_was_changed_by_hand_is_reported_and_mended() {
    let world = World::new().await;
    let log = world.log().await;
    let name = format!("{}_LOG_1", world.namespace().as_str());
    let mut changed = config(&world, &name).await;
    changed["max_bytes"] = json!(33_554_432);
    changed["discard"] = json!("old");
    api(&world, "UPDATE", &name, changed).await;
    let drifts = streams::check(&log).await.unwrap();
    let mut keys: Vec<_> = drifts.iter().map(|drift| drift.key.as_str()).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["discard", "max_bytes"]);
    assert!(drifts.iter().all(|drift| drift.stream == name && drift.mendable));
    let line = drifts.iter().find(|drift| drift.key == "discard").unwrap().to_string();
    assert_eq!(line, format!("{name}: discard is \"old\", should be \"new\""));
    streams::apply(&log, "x").await.unwrap();
    assert_eq!(streams::check(&log).await.unwrap(), []);
}

#[tokio::test]
async fn what_cannot_be_changed_is_refused_with_its_reason() {
    let world = World::new().await;
    world.log().await;
    let settings = world.config(&[("FOREBAY_PARTITIONS", "3")]).log;
    let more = Log::connect(settings).await.unwrap();
    for refused in
        [streams::apply(&more, "x").await.map(drop), streams::check(&more).await.map(drop)]
    {
        let error = refused.unwrap_err();
        let Error::Streams(Mismatch::Partitions { found: 2, wanted: 3 }) = &error else {
            panic!("{error:?}");
        };
        assert!(error.to_string().contains("conversations live where their hash put them"));
    }
    let third = format!("{}_LOG_2", world.namespace().as_str());
    let context = async_nats::jetstream::new(async_nats::connect(world.nats_url()).await.unwrap());
    assert!(context.get_stream(&third).await.is_err(), "nothing was made");

    let name = format!("{}_LOG_1", world.namespace().as_str());
    let mut other = config(&world, &name).await;
    other["metadata"]["forebay.epoch"] = json!("another");
    other["max_bytes"] = json!(33_554_432);
    api(&world, "UPDATE", &name, other).await;
    let log = Log::connect(world.config(&[]).log).await.unwrap();
    let refused = streams::apply(&log, "x").await.unwrap_err();
    assert!(matches!(refused, Error::Streams(Mismatch::Fixed(_))), "{refused:?}");
    assert!(refused.to_string().contains("metadata"), "{refused}");
    assert_eq!(config(&world, &name).await["max_bytes"], 33_554_432, "nothing was changed");
}

#[tokio::test]
async fn streams_of_somebody_else_are_not_taken_over() {
    let world = World::new().await;
    let name = format!("{}_LOG_0", world.namespace().as_str());
    let subject = format!("{}.other", world.namespace().as_str());
    let foreign = json!({"name": name, "subjects": [subject], "max_bytes": 1_048_576});
    api(&world, "CREATE", &name, foreign).await;
    let log = Log::connect(world.config(&[]).log).await.unwrap();
    let refused = streams::apply(&log, "x").await.unwrap_err();
    let is_named = |stream: &String| *stream == name;
    assert!(
        matches!(&refused, Error::Streams(Mismatch::Metadata { stream }) if is_named(stream)),
        "{refused:?}"
    );
}
