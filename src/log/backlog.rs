//! Backlogs: a subject for each channel that is diverted, read in order by batched direct get and purged from the front.
//! Promises pages in order and without a gap.
//! Does not know what the messages mean or who may read them.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use serde_json::json;

use super::{Error, Log, NO_MESSAGE, REQUEST_TIMEOUT, streams};
use crate::event::ChannelId;

/// Most bytes of one page; below the server's bound for what waits for one client.
const PAGE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// The status that ends a page.
const END_OF_BATCH: u16 = 204;

/// A message of a backlog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its place in the stream.
    pub sequence: u64,
    /// What it holds.
    pub payload: Bytes,
}

impl Log {
    /// The subject of a backlog of this name.
    pub fn backlog_subject(&self, name: &str) -> String {
        format!("{}.parked.{name}", self.namespace().as_str())
    }

    /// Up to `count` messages of a backlog from this place in the stream on, in order.
    ///
    /// # Errors
    /// When JetStream does not answer.
    pub async fn backlog_page(
        &self,
        name: &str,
        from: u64,
        count: usize,
    ) -> Result<Vec<Waiting>, Error> {
        let doing = "reading a backlog";
        let lost = |source: async_nats::Error| Error::Unavailable { doing, source };
        let client = self.deliveries();
        let inbox = client.new_inbox();
        let mut answers =
            client.subscribe(inbox.clone()).await.map_err(|source| lost(source.into()))?;
        let request = json!({
            "seq": from.max(1),
            "batch": count,
            "max_bytes": PAGE_BYTES_MAX,
            "next_by_subj": self.backlog_subject(name),
        });
        let subject = format!("$JS.API.DIRECT.GET.{}", self.parked_stream());
        let asked = client.publish_with_reply(subject, inbox, request.to_string().into()).await;
        asked.map_err(|source| lost(source.into()))?;
        let mut page = Vec::new();
        loop {
            let next = tokio::time::timeout(REQUEST_TIMEOUT, answers.next()).await;
            let message = next.map_err(|elapsed| lost(elapsed.into()))?;
            let message = message.ok_or_else(|| lost("the connection was closed".into()))?;
            match message.status.map(|status| status.as_u16()) {
                None => {}
                Some(END_OF_BATCH | NO_MESSAGE) => return Ok(page),
                Some(other) => return Err(lost(format!("status {other}").into())),
            }
            let header = |name: &str| message.headers.as_ref().and_then(|h| h.get(name));
            let sequence = header("Nats-Sequence").and_then(|seq| seq.as_str().parse().ok());
            let sequence = sequence.ok_or_else(|| lost("a message without sequence".into()))?;
            page.push(Waiting { sequence, payload: message.payload });
        }
    }

    /// Deletes a backlog's messages below this place in the stream.
    ///
    /// # Errors
    /// When JetStream does not answer or refuses.
    pub async fn backlog_purge(&self, name: &str, below: u64) -> Result<(), Error> {
        let subject = format!("STREAM.PURGE.{}", self.parked_stream());
        let body = json!({ "filter": self.backlog_subject(name), "seq": below });
        let purged = streams::request(&self.deliveries, subject, &body, "purging a backlog");
        purged.await.map(drop)
    }

    /// How many messages the backlogs hold whose names match, by name. `*` names all.
    ///
    /// # Errors
    /// When JetStream does not answer.
    pub async fn backlog_sizes(&self, name: &str) -> Result<BTreeMap<String, u64>, Error> {
        let (stream, filter) = (self.parked_stream(), self.backlog_subject(name));
        self.sizes(&stream, &filter).await
    }

    /// How many messages the subjects hold that match, by what follows the last dot.
    pub(super) async fn sizes(
        &self,
        stream: &str,
        filter: &str,
    ) -> Result<BTreeMap<String, u64>, Error> {
        let mut sizes = BTreeMap::new();
        let (doing, mut offset) = ("counting a backlog", 0);
        loop {
            let body = json!({ "subjects_filter": filter, "offset": offset });
            let subject = format!("STREAM.INFO.{stream}");
            let info = streams::request(&self.deliveries, subject, &body, doing).await?;
            let Some(subjects) = info["state"]["subjects"].as_object() else {
                return Ok(sizes);
            };
            offset += subjects.len();
            for (subject, count) in subjects {
                let name = subject.rsplit('.').next().unwrap_or_default().to_owned();
                *sizes.entry(name).or_default() += count.as_u64().unwrap_or(0);
            }
            let total = info["total"].as_u64().unwrap_or(0);
            if subjects.is_empty() || offset as u64 >= total {
                return Ok(sizes);
            }
        }
    }

    /// How many fresh and how many scheduled deliveries a channel has, about: fresh ones count until they are purged, but
    /// are no more than wait in its lane.
    ///
    /// # Errors
    /// When JetStream does not answer.
    pub async fn queue_sizes(&self, lane: &str, channel: &str) -> Result<(u64, u64), Error> {
        let prefix = self.namespace().as_str();
        let total = |sizes: BTreeMap<String, u64>| sizes.values().sum::<u64>();
        let fresh = format!("{prefix}.deliver.*.{channel}");
        let fresh = self.sizes(&format!("{prefix}_DELIVER"), &fresh).await?;
        let retries = format!("{prefix}_RETRIES");
        let at = self.sizes(&retries, &format!("{prefix}.retry.at.{channel}.*")).await?;
        let due = self.sizes(&retries, &format!("{prefix}.retry.due.*.{channel}")).await?;
        let waiting = self.waiting_in(lane).await?;
        Ok((total(fresh).min(waiting), total(at) + total(due)))
    }

    /// Tells every node that something was put into these backlogs. Nothing depends on its arrival.
    pub async fn nudge(&self, channels: &[ChannelId]) {
        let mut bytes = Vec::with_capacity(channels.len() * 16);
        for (index, channel) in channels.iter().enumerate() {
            if !channels[..index].contains(channel) {
                bytes.extend_from_slice(channel.uuid().as_bytes());
            }
        }
        let subject = format!("{}.nudge", self.namespace().as_str());
        drop(self.deliveries().publish(subject, bytes.into()).await);
    }

    /// Into which backlogs something was put, on any node. It may miss some.
    ///
    /// # Errors
    /// When the subscription cannot be sent.
    pub async fn nudges(&self) -> Result<Nudges, Error> {
        let subject = format!("{}.nudge", self.namespace().as_str());
        let subscribed = self.deliveries().subscribe(subject).await;
        let inner = subscribed.map_err(|source| Error::Unavailable {
            doing: "listening for nudges",
            source: source.into(),
        })?;
        Ok(Nudges { inner })
    }

    pub(super) fn parked_stream(&self) -> String {
        format!("{}_PARKED", self.namespace().as_str())
    }
}

/// Into which backlogs something was put.
#[derive(Debug)]
pub struct Nudges {
    inner: async_nats::Subscriber,
}

impl Nudges {
    /// The next channels; `None` when the connection was closed for good.
    ///
    /// Cancel safe: a message stays in the subscription until it is returned.
    pub async fn next(&mut self) -> Option<Vec<ChannelId>> {
        let message = self.inner.next().await?;
        let ids = message.payload.chunks_exact(16);
        let ids = ids.filter_map(|bytes| uuid::Uuid::from_slice(bytes).ok());
        Some(ids.map(ChannelId::from_uuid).collect())
    }
}

/// How often what is settled is purged: often enough to keep the streams small, seldom enough to cost nothing.
pub const PURGE_EVERY: Duration = Duration::from_secs(1);
