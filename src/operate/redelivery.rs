//! What became of deliveries, as Postgres has it, and delivering again by hand.
//! Promises that a delivery that is made again has its first id and its first body, with a schedule of its own.
//! Does not attempt; what is delivered again goes through its lane like everything else.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::admission::{Priority, Source, Tag};
use crate::clock::{Clock, Timestamp};
use crate::directory::{Channel, Lane, Tenant};
use crate::event::webhook::body;
use crate::event::{
    ChannelId, ConversationId, Delivery, DeliveryId, Event, MessageId, RequestId, TenantId,
};
use crate::lifecycle::{Kind, Supervisor, chain};
use crate::log::batch::{BATCH_BYTES_MAX, Posted, Posting};
use crate::log::{self, Log};
use crate::store::attempts::Attempt;
use crate::store::deliveries::{Filter, Row};
use crate::store::messages::Content;
use crate::store::{self, Interactive, attempts, deliveries, messages};

/// Longest wait for Postgres on the way of a read.
const READ_MAX: Duration = Duration::from_millis(1_500);

/// Deliveries of one step of a job.
const STEP: usize = 100;

/// Jobs of a tenant that are remembered on a node; of those that have ended the oldest is forgotten first. A channel has
/// one that runs at most.
const JOBS_MAX: usize = 100;

/// Pause before a step that failed is tried again, and how often that is done.
const AGAIN: Duration = Duration::from_secs(1);
const TRIES_MAX: usize = 60;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Postgres cannot be asked now.
    #[error("reading deliveries")]
    Store(#[from] store::Error),
    /// The queues cannot be asked now.
    #[error("the queues of deliveries")]
    Log(#[from] log::Error),
    /// The queue did not take it.
    #[error("the queue of deliveries did not take it")]
    NotQueued(String),
}

/// How a job is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its id.
    pub id: RequestId,
    /// Whose it is.
    pub tenant: TenantId,
    /// Its channel.
    pub channel: ChannelId,
    /// `running`, `done` or `failed`.
    pub state: &'static str,
    /// Deliveries that were queued again.
    pub queued: u64,
    /// Deliveries whose event is not there any more.
    pub missing: u64,
    /// When it began.
    pub began_at: Timestamp,
}

/// What became of deliveries, and delivering again. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Redelivery {
    log: Log,
    database: Interactive,
    clock: Clock,
    supervisor: Supervisor,
    jobs: Arc<Mutex<VecDeque<Job>>>,
}

impl Redelivery {
    /// Over the queues and the pool of reads.
    pub fn new(log: Log, database: Interactive, clock: Clock, supervisor: Supervisor) -> Self {
        Self { log, database, clock, supervisor, jobs: Arc::default() }
    }

    /// A delivery of a tenant, with its attempts.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub async fn delivery(
        &self,
        tenant: &Tenant,
        id: DeliveryId,
    ) -> Result<Option<(Row, Vec<Attempt>)>, Error> {
        let (tag, deadline) = (tag(tenant), self.deadline());
        let mut lease = self.database.acquire(tag, deadline).await?;
        let found = lease.run(deadline, async |conn| {
            let Some(row) = deliveries::find(conn, tenant.id, id).await? else { return Ok(None) };
            Ok(Some((row, attempts::list(conn, id).await?)))
        });
        Ok(found.await?)
    }

    /// The deliveries of an event that were attempted.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub async fn of_message(&self, tenant: &Tenant, id: MessageId) -> Result<Vec<Row>, Error> {
        let (tag, deadline) = (tag(tenant), self.deadline());
        let mut lease = self.database.acquire(tag, deadline).await?;
        Ok(lease
            .run(deadline, async |conn| deliveries::of_message(conn, tenant.id, id).await)
            .await?)
    }

    /// Deliveries of a channel that were attempted, in the order of their ids.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub async fn of_channel(
        &self,
        tenant: &Tenant,
        channel: ChannelId,
        filter: &Filter,
        page: (Option<DeliveryId>, usize),
    ) -> Result<Vec<Row>, Error> {
        let (tag, deadline) = (tag(tenant), self.deadline());
        let mut lease = self.database.acquire(tag, deadline).await?;
        let read = lease
            .run(deadline, async |conn| deliveries::of_channel(conn, channel, filter, page).await);
        Ok(read.await?)
    }

    /// How many deliveries a job would make again.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub async fn count(
        &self,
        tenant: &Tenant,
        channel: ChannelId,
        filter: &Filter,
    ) -> Result<u64, Error> {
        let (tag, deadline) = (tag(tenant), self.deadline());
        let mut lease = self.database.acquire(tag, deadline).await?;
        Ok(lease.run(deadline, async |conn| deliveries::count(conn, channel, filter).await).await?)
    }

    /// How many deliveries of a channel lie in the queues: fresh, in the backlog, waiting for their next attempt.
    ///
    /// # Errors
    /// [`Error::Log`]
    pub async fn sizes(
        &self,
        tenant: &Tenant,
        channel: ChannelId,
    ) -> Result<(u64, u64, u64), Error> {
        let name = channel.to_string();
        let lane = Lane::of(tenant.tier, tenant.id).name();
        let (fresh, retrying) = self.log.queue_sizes(&lane, &name).await?;
        let backlog = self.log.backlog_sizes(&name).await?.values().sum();
        Ok((fresh, backlog, retrying))
    }

    /// Queues a delivery that no event stands behind, to see whether a channel works.
    ///
    /// # Errors
    /// [`Error::NotQueued`]
    pub async fn test(
        &self,
        tenant: &Tenant,
        channel: ChannelId,
        id: MessageId,
    ) -> Result<DeliveryId, Error> {
        let conversation = ConversationId::from_uuid(channel.uuid());
        let text = serde_json::json!({
            "type": "test",
            "timestamp": self.clock.timestamp().to_string(),
            "data": { "id": id, "channelId": channel },
        });
        let delivery = Delivery {
            id: Delivery::name(id, channel),
            tenant: tenant.id,
            channel,
            conversation,
            message: id,
            seq: 0,
            attempt: 1,
            before: 0,
            body: text.to_string().into(),
        };
        let name = delivery.id;
        self.queue(tenant, vec![delivery]).await.map(|()| name)
    }

    /// A job of a tenant, on the node that runs it.
    pub fn job(&self, tenant: TenantId, id: RequestId) -> Option<Job> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.iter().find(|job| job.id == id && job.tenant == tenant).cloned()
    }

    /// Makes deliveries again, step by step, beside the answer that names the job.
    pub fn start(&self, job: Job, tenant: Arc<Tenant>, channel: Arc<Channel>, filter: Filter) {
        let running = self.clone().run(job, tenant, channel, filter);
        self.supervisor.spawn(Kind::Upkeep, running);
    }

    async fn run(self, job: Job, tenant: Arc<Tenant>, channel: Arc<Channel>, filter: Filter) {
        let (mut job, mut after, mut failures) = (job, None, 0);
        loop {
            match self.step(&tenant, &channel, &filter, after).await {
                Ok((queued, missing, last)) => {
                    (job.queued, job.missing, failures) =
                        (job.queued + queued, job.missing + missing, 0);
                    after = last;
                    job.state = if last.is_some() { "running" } else { "done" };
                }
                Err(error) => {
                    failures += 1;
                    tracing::warn!(error = %chain(&error), "a step of redelivery waits");
                    if failures >= TRIES_MAX {
                        job.state = "failed";
                    }
                    tokio::time::sleep(AGAIN).await;
                }
            }
            self.note(job.clone());
            if job.state != "running" {
                return;
            }
        }
    }

    /// A job that has not begun, and is known from now on; or the one that runs for this channel already.
    ///
    /// # Errors
    /// The job that runs.
    pub fn begin(&self, id: RequestId, tenant: TenantId, channel: ChannelId) -> Result<Job, Job> {
        let began_at = self.clock.timestamp();
        let job = Job { id, tenant, channel, state: "running", queued: 0, missing: 0, began_at };
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = |known: &&Job| known.channel == channel && known.state == "running";
        if let Some(running) = jobs.iter().find(runs) {
            return Err(running.clone());
        }
        remember(&mut jobs, job.clone());
        Ok(job)
    }

    async fn step(
        &self,
        tenant: &Tenant,
        channel: &Channel,
        filter: &Filter,
        after: Option<DeliveryId>,
    ) -> Result<(u64, u64, Option<DeliveryId>), Error> {
        let rows = self.of_channel(tenant, channel.id, filter, (after, STEP)).await?;
        let (last, full) = (rows.last().map(|row| row.id), rows.len() == STEP);
        let (mut again, mut missing) = (Vec::new(), 0);
        for row in rows {
            match self.event(tenant, row.message).await? {
                Some(event) => again.push(remake(&row, &event)),
                None => missing += 1,
            }
        }
        let queued = again.len() as u64;
        if !again.is_empty() {
            self.queue(tenant, again).await?;
        }
        Ok((queued, missing, last.filter(|_| full)))
    }

    async fn event(&self, tenant: &Tenant, id: MessageId) -> Result<Option<Event>, Error> {
        let (tag, deadline) = (tag(tenant), self.deadline());
        let mut lease = self.database.acquire(tag, deadline).await?;
        let found = lease.run(deadline, async |conn| messages::find(conn, id).await).await?;
        Ok(found.and_then(|entry| match entry.content {
            Content::Event(event) => Some(*event),
            Content::Tombstone { .. } => None,
        }))
    }

    async fn queue(&self, tenant: &Tenant, again: Vec<Delivery>) -> Result<(), Error> {
        let lane = Lane::of(tenant.tier, tenant.id).name();
        let posting = |delivery: Delivery| Posting {
            subject: self.log.lane_subject(&lane, &delivery.channel.to_string()),
            name: None,
            guard: None,
            payload: delivery.encode(),
        };
        // A step that fails half way is made again: what was queued before is the same attempt, and known by it.
        for batch in batches(again) {
            let name = batch.first().map(|first| format!("{}-{}", first.id, first.attempt));
            let postings = batch.into_iter().map(posting).collect();
            match self.log.post(&name.unwrap_or_default(), postings).await {
                Posted::Stored(_) => {}
                other @ (Posted::Conflict | Posted::Full | Posted::Unknown(_)) => {
                    return Err(Error::NotQueued(format!("{other:?}")));
                }
            }
        }
        Ok(())
    }

    fn note(&self, job: Job) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        remember(&mut jobs, job);
    }

    fn deadline(&self) -> Instant {
        self.clock.now() + READ_MAX
    }
}

/// Deliveries as batches, none with more bytes than one may have unless it is one delivery.
fn batches(deliveries: Vec<Delivery>) -> Vec<Vec<Delivery>> {
    let (mut batches, mut room): (Vec<Vec<Delivery>>, usize) = (Vec::new(), 0);
    for delivery in deliveries {
        let bytes = delivery.body.len();
        match batches.last_mut() {
            Some(batch) if bytes <= room => {
                room -= bytes;
                batch.push(delivery);
            }
            _ => {
                room = BATCH_BYTES_MAX.saturating_sub(bytes);
                batches.push(vec![delivery]);
            }
        }
    }
    batches
}

/// Keeps a job, and of its tenant's others that have ended the newest.
fn remember(jobs: &mut VecDeque<Job>, job: Job) {
    jobs.retain(|known| known.id != job.id);
    let tenant = job.tenant;
    jobs.push_back(job);
    while jobs.iter().filter(|known| known.tenant == tenant).count() > JOBS_MAX {
        let is_oldest = |known: &Job| known.tenant == tenant && known.state != "running";
        let Some(oldest) = jobs.iter().position(is_oldest) else { return };
        jobs.remove(oldest);
    }
}

/// Somebody waits for one answer.
fn tag(tenant: &Tenant) -> Tag {
    tenant.origin(Source::Rest).at(Priority::High)
}

/// The next attempt of a delivery, as if its schedule began.
fn remake(row: &Row, event: &Event) -> Delivery {
    Delivery {
        id: row.id,
        tenant: row.tenant,
        channel: row.channel,
        conversation: row.conversation,
        message: row.message,
        seq: row.seq,
        attempt: row.attempts + 1,
        before: row.attempts,
        body: body(event),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_batch_has_what_fits_and_a_delivery_that_does_not_goes_alone() {
        let (id, uuid) = (MessageId::from_uuid(uuid::Uuid::nil()), uuid::Uuid::nil());
        let sized = |bytes| Delivery {
            id: Delivery::name(id, ChannelId::from_uuid(uuid)),
            tenant: TenantId::from_uuid(uuid),
            channel: ChannelId::from_uuid(uuid),
            conversation: ConversationId::from_uuid(uuid),
            message: id,
            seq: 1,
            attempt: 1,
            before: 0,
            body: Bytes::from(vec![0; bytes]),
        };
        let split = |sizes: &[usize]| -> Vec<Vec<usize>> {
            let all = batches(sizes.iter().map(|&bytes| sized(bytes)).collect());
            all.iter().map(|batch| batch.iter().map(|one| one.body.len()).collect()).collect()
        };
        let half = BATCH_BYTES_MAX / 2;
        assert!(split(&[]).is_empty());
        assert_eq!(split(&[half, half]), [vec![half, half]]);
        assert_eq!(split(&[half, half, 1, half]), [vec![half, half], vec![1, half]]);
        assert_eq!(
            split(&[1, BATCH_BYTES_MAX + 1, 1]),
            [vec![1], vec![BATCH_BYTES_MAX + 1], vec![1]]
        );
    }
}
