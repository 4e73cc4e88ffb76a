//! Parking, release and throughput, beside a plain client that posts the same to the same receiver.
//! Promises that what is counted was received, not only sent, and an error instead of a figure when a step takes too long.
//! Does not judge; the table does.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::json;

use super::caller::Stage;
use super::{Parked, Rate};
use crate::bench::Error;
use crate::bench::machine::Usage;
use crate::load::connection::Connection;
use crate::load::tally::rate;

/// How long one step of a measurement may take.
const STEP_MAX: Duration = Duration::from_mins(3);

fn late(doing: &'static str) -> Error {
    Error::Late { doing, within: STEP_MAX }
}

/// Connections of the plain client, as many as the tier standard has slots.
const CONNECTIONS: usize = 20;

/// Channels of the measurement that spreads its deliveries.
const CHANNELS: usize = 100;

/// What is looked at of the beginning of a release.
const BEGINNING: Duration = Duration::from_millis(100);

/// How much longer is waited for what comes twice.
const TWICE: Duration = Duration::from_millis(500);

/// How often a count is asked for.
const LOOK: Duration = Duration::from_millis(20);

/// Parks a backlog by a pause and releases it by a resume.
pub(super) async fn park(stage: &Stage<'_>, count: usize) -> Result<Parked, Error> {
    let mut tenant = stage.tenant(None).await?;
    stage.receiver.clear();
    let channel = tenant.channel(&stage.receiver.url("parked"), json!({})).await?;
    let place = tenant.conversation().await?;
    tenant.post(&format!("/v1/channels/{channel}/pause"), &json!({})).await?;
    tenant.burst(&place, count).await?;
    let begun = stage.clock.now();
    let path = format!("/v1/channels/{channel}");
    let wanted = u64::try_from(count).unwrap_or(u64::MAX);
    loop {
        let shown = tenant.get(&path).await?;
        if shown["delivery"]["parked"].as_u64().is_some_and(|parked| parked >= wanted) {
            break;
        }
        if stage.clock.now() >= begun + STEP_MAX {
            return Err(late("parking a backlog"));
        }
        tokio::time::sleep(LOOK).await;
    }
    let park = stage.clock.now().saturating_duration_since(begun);
    let resumed = stage.clock.now();
    tenant.post(&format!("{path}/resume"), &json!({})).await?;
    tokio::time::sleep(BEGINNING).await;
    let in_flight_max = stage.receiver.in_flight_max("parked");
    let released = stage.receiver.wait_for("parked", count, STEP_MAX).await;
    released.map_err(|_late| late("releasing a backlog"))?;
    tokio::time::sleep(TWICE).await;
    let receipts = stage.receiver.received("parked");
    let (mut seen, mut newest, mut out_of_order): (HashMap<u64, Instant>, u64, u64) =
        (HashMap::new(), 0, 0);
    for receipt in &receipts {
        let seq = receipt.seq.unwrap_or(0);
        seen.entry(seq).or_insert(receipt.at);
        // Several are under way at once; what is further off than the cap was not taken in order.
        out_of_order += u64::from(seq + 20 < newest);
        newest = newest.max(seq);
    }
    let last = seen.values().max().copied().unwrap_or(resumed);
    let distinct = u64::try_from(seen.len()).unwrap_or(0);
    tenant.delete_channel(&channel).await?;
    Ok(Parked {
        deliveries: count,
        park_s: park.as_secs_f64(),
        release_s: last.saturating_duration_since(resumed).as_secs_f64(),
        repeated: u64::try_from(receipts.len()).unwrap_or(0) - distinct,
        missing: wanted.saturating_sub(distinct),
        out_of_order,
        in_flight_max,
    })
}

/// Deliveries a second through one channel, through many, and of a plain client.
pub(super) async fn measure(stage: &Stage<'_>, count: usize) -> Result<Vec<Rate>, Error> {
    let one = through(stage, 1, count).await?;
    let many = through(stage, CHANNELS, count).await?;
    Ok(vec![one, many, bare(stage, count).await?, plain(stage, count).await?])
}

/// Deliveries a second into the queue, on a node that only routes: `routed` tells how many it has in all.
pub(super) async fn route(
    stage: &Stage<'_>,
    count: usize,
    routed: impl AsyncFn() -> Result<u64, Error>,
) -> Result<Rate, Error> {
    let mut tenant = stage.tenant(None).await?;
    for number in 0..CHANNELS {
        tenant.channel(&stage.receiver.url(&format!("routed-{number}")), json!({})).await?;
    }
    let place = tenant.conversation().await?;
    let messages = (count / CHANNELS).max(1);
    let wanted = u64::try_from(messages * CHANNELS).unwrap_or(u64::MAX);
    let (usage, before, begun) = (Usage::of(stage.target.pid), routed().await?, stage.clock.now());
    tenant.burst(&place, messages).await?;
    let mut done = 0;
    while done < wanted {
        if stage.clock.now() >= begun + STEP_MAX {
            return Err(late("queueing deliveries on a node that only routes"));
        }
        tokio::time::sleep(LOOK).await;
        done = routed().await? - before;
    }
    let span = stage.clock.now().saturating_duration_since(begun);
    let what = format!("the router alone, {CHANNELS} channels, the sends included");
    Ok(Rate { what, per_second: rate(done, span), cpu_us: cpu_each(stage, usage, done) })
}

/// CPU time of the server for each of so many, in microseconds.
fn cpu_each(stage: &Stage<'_>, before: Option<Usage>, done: u64) -> Option<f64> {
    let spent = Usage::of(stage.target.pid)?.cpu.saturating_sub(before?.cpu);
    #[expect(clippy::cast_precision_loss, reason = "a count of deliveries")]
    let each = spent.as_secs_f64() * 1e6 / (done.max(1)) as f64;
    Some(each)
}

async fn through(stage: &Stage<'_>, channels: usize, count: usize) -> Result<Rate, Error> {
    let mut tenant = stage.tenant(None).await?;
    stage.receiver.clear();
    let mut ids = Vec::new();
    for number in 0..channels {
        let url = stage.receiver.url(&format!("rate-{number}"));
        ids.push(tenant.channel(&url, json!({"maxInFlight": 20})).await?);
    }
    let place = tenant.conversation().await?;
    let before = Usage::of(stage.target.pid);
    let begun = stage.clock.now();
    let each = count / channels;
    tenant.burst(&place, each).await?;
    for number in 0..channels {
        let received = stage.receiver.wait_for(&format!("rate-{number}"), each, STEP_MAX).await;
        received.map_err(|_late| late("receiving what was sent through channels"))?;
    }
    let span = stage.clock.now().saturating_duration_since(begun);
    let done: usize = (0..channels).map(|n| stage.receiver.distinct(&format!("rate-{n}"))).sum();
    let done = u64::try_from(done).unwrap_or(0);
    let cpu_us = cpu_each(stage, before, done);
    for id in ids {
        tenant.delete_channel(&id).await?;
    }
    let what = format!("{channels} channel(s), from the first send to the last receipt");
    Ok(Rate { what, per_second: rate(done, span), cpu_us })
}

/// A body about as long as that of a delivery.
fn body() -> String {
    format!("{{\"type\":\"message\",\"data\":{{\"text\":\"{}\"}}}}", "x".repeat(300))
}

/// The same receiver, posted to with the library that deliveries are made with: the ceiling.
async fn plain(stage: &Stage<'_>, count: usize) -> Result<Rate, Error> {
    stage.receiver.clear();
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let (url, body) = (stage.receiver.url("plain"), Bytes::from(body()));
    let lost = |source| Error::Io { doing: "posting to the receiver", source };
    let begun = stage.clock.now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (client, url, body) = (client.clone(), url.clone(), body.clone());
        tasks.spawn(async move {
            for _ in 0..count / CONNECTIONS {
                let request = Request::post(&url)
                    .header("content-type", "application/json")
                    .header("webhook-id", "plain")
                    .body(Full::new(body.clone()))
                    .map_err(std::io::Error::other)?;
                let answer = client.request(request).await.map_err(std::io::Error::other)?;
                answer.into_body().collect().await.map_err(std::io::Error::other)?;
            }
            Ok::<(), std::io::Error>(())
        });
    }
    for done in tasks.join_all().await {
        done.map_err(lost)?;
    }
    let span = stage.clock.now().saturating_duration_since(begun);
    let done = u64::try_from(stage.receiver.count("plain")).unwrap_or(0);
    let what = "the client's library alone, 20 connections".to_owned();
    Ok(Rate { what, per_second: rate(done, span), cpu_us: None })
}

/// The same receiver, posted to with prepared bytes, whose answers are hardly read: what the receiver can take.
async fn bare(stage: &Stage<'_>, count: usize) -> Result<Rate, Error> {
    stage.receiver.clear();
    let address = stage.receiver.address();
    let body = body();
    let request = format!(
        "POST /hook/bare HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         webhook-id: bare\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let begun = stage.clock.now();
    let loops = (0..CONNECTIONS).map(|_| async {
        let mut connection = Connection::open(address).await?;
        for _ in 0..count / CONNECTIONS {
            connection.exchange(request.as_bytes()).await?;
        }
        Ok::<(), std::io::Error>(())
    });
    let done = futures_util::future::try_join_all(loops).await;
    done.map_err(|source| Error::Io { doing: "posting to the receiver", source })?;
    let span = stage.clock.now().saturating_duration_since(begun);
    let done = u64::try_from(stage.receiver.count("bare")).unwrap_or(0);
    let what = "prepared bytes over 20 connections".to_owned();
    Ok(Rate { what, per_second: rate(done, span), cpu_us: None })
}
