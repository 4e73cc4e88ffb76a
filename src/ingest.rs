//! Sends: from a stranger's request to a checked draft, within the tenant's quota, to a receipt of the log.
//! Promises that nothing reaches the log that the log, Postgres or a reader could not take.
//! Does not touch Postgres, except to ask for a conversation or key that memory has forgotten.

pub mod draft;
pub mod json;
pub mod quota;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;

use crate::admission::{Origin, Priority};
use crate::clock::{Clock, Timestamp};
use crate::directory::Tenant;
use crate::event::{ConversationId, MessageId};
use crate::journal::{self, Busy, Draft, Head, Journal, Place, Seed, Status, Stored, Verdict};
use crate::metrics::{self, Refusal};
use crate::store::{self, Interactive, conversations, seeds};

pub use draft::{Checked, Opened, Rejected, Request};
pub use quota::{Policy, Quota};

/// Longest wait for Postgres when memory has forgotten a conversation or key. Less than a send's deadline, so that
/// there is time left to answer.
const LOOK_UP_MAX: Duration = Duration::from_secs(1);

/// Most keys of one batch that are looked up one by one, within [`LOOK_UP_MAX`]; a batch with more of them is refused.
const LOOK_UPS_MAX: usize = 50;

/// Why a send has no verdicts.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log did not acknowledge, or the server stops.
    #[error(transparent)]
    Journal(#[from] journal::Error),
    /// Memory has forgotten the conversation or a key, and Postgres could not be asked.
    #[error("looking up what memory has forgotten")]
    Database(#[from] store::Error),
    /// Memory has forgotten the conversation or a key, and Postgres does not have the log up to there yet.
    #[error("Postgres does not yet have what memory has forgotten")]
    Cold,
    /// Memory has forgotten more keys of one batch than are looked up.
    #[error("more than {max} keys that memory has forgotten")]
    OldKeys {
        /// How many are looked up.
        max: usize,
    },
}

/// The flow of sends. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Ingest {
    journal: Journal,
    database: Interactive,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    policy: Option<Policy>,
    quota: Mutex<Quota>,
    rng: Mutex<StdRng>,
    metrics: metrics::Ingest,
}

impl Ingest {
    /// The flow over a journal, with the pool that cold look-ups may use.
    pub fn new(
        (journal, database): (Journal, Interactive),
        policy: Option<Policy>,
        clock: Clock,
        rng: StdRng,
        metrics: metrics::Ingest,
    ) -> Self {
        let (quota, rng) = (Mutex::new(Quota::new(policy)), Mutex::new(rng));
        Self { journal, database, shared: Arc::new(Shared { clock, policy, quota, rng, metrics }) }
    }

    /// Whether the conversation's partition has room, before a body is read: a refusal costs nothing then.
    ///
    /// # Errors
    /// [`Busy`] when the partition's queue has no room or the log does not acknowledge.
    pub fn check_room(&self, conversation: ConversationId) -> Result<(), Busy> {
        self.journal.check_room(conversation).inspect_err(|busy| self.count_busy(*busy))
    }

    /// Reserves room for a request of this many bytes.
    ///
    /// # Errors
    /// [`Busy`], at once, when the partition's queue has no room or the log does not acknowledge.
    pub fn admit(&self, conversation: ConversationId, bytes: usize) -> Result<Place, Busy> {
        self.journal.admit(conversation, bytes).inspect_err(|busy| self.count_busy(*busy))
    }

    fn count_busy(&self, busy: Busy) {
        self.refused(match busy {
            Busy::Full => Refusal::QueueFull,
            Busy::Stalled => Refusal::Log,
            Busy::Stopping => Refusal::Unavailable,
        });
    }

    /// Takes from the tenant's quota: its own, or the one that every tenant has on this node.
    pub fn take_quota(&self, tenant: &Tenant, messages: u32) -> (Option<Policy>, quota::Decision) {
        let own = tenant.send_quota.and_then(|own| {
            let number = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
            Policy::new(number(own.per_second), number(own.burst))
        });
        let policy = own.or(self.shared.policy);
        if policy.is_none() {
            return (None, quota::Decision::Unlimited);
        }
        let now = self.shared.clock.now();
        let mut quota = self.shared.quota.lock().unwrap_or_else(PoisonError::into_inner);
        (policy, quota.on_send_under(policy, tenant.id, messages, now))
    }

    /// An id for an event that has no key.
    pub fn make_id(&self, now: Timestamp) -> MessageId {
        MessageId::generate(now, &mut *self.rng())
    }

    /// An id for a conversation that its client does not name.
    pub fn make_conversation(&self, now: Timestamp) -> ConversationId {
        ConversationId::generate(now, &mut *self.rng())
    }

    /// Appends drafts of one conversation next to each other: one verdict each.
    ///
    /// Idempotency key: each draft's id, where it has a client id. They commit together, in one record. Asks Postgres
    /// only for what memory has forgotten, on behalf of `origin`: nothing else here needs a permit.
    ///
    /// # Errors
    /// [`Error`] when it is not known to be stored; the same keys can be sent again.
    pub async fn append(
        &self,
        place: Place,
        drafts: Vec<Draft>,
        origin: Origin,
        deadline: Instant,
    ) -> Result<Vec<Verdict>, Error> {
        let verdicts = self.try_append(place, drafts, origin, deadline).await;
        match &verdicts {
            Ok(verdicts) => self.count(verdicts),
            Err(Error::Journal(journal::Error::Stopping)) => self.refused(Refusal::Unavailable),
            Err(Error::Journal(_)) => self.refused(Refusal::Log),
            Err(Error::Database(_) | Error::Cold) => self.refused(Refusal::Database),
            Err(Error::OldKeys { .. }) => self.refused(Refusal::Invalid),
        }
        verdicts
    }

    async fn try_append(
        &self,
        place: Place,
        drafts: Vec<Draft>,
        origin: Origin,
        deadline: Instant,
    ) -> Result<Vec<Verdict>, Error> {
        let cold = match self.journal.append(place, drafts, None, deadline).await {
            Err(journal::Error::Cold(drafts)) => drafts,
            other => return Ok(other?),
        };
        let Some(first) = cold.first() else { return Err(Error::Cold) };
        let (conversation, bytes) = (first.conversation, cold.iter().map(|d| d.body.size()).sum());
        let patience = self.shared.clock.now() + LOOK_UP_MAX;
        let seed = self.look_up(self.forgotten(&cold), origin, deadline.min(patience)).await?;
        // The first place was given back with the drafts.
        let place =
            self.journal.admit(conversation, bytes).map_err(|_busy| journal::Error::Late)?;
        match self.journal.append(place, cold, Some(seed), deadline).await {
            Err(journal::Error::Cold(_)) => Err(Error::Cold),
            other => Ok(other?),
        }
    }

    /// What of these drafts of one conversation memory has forgotten.
    fn forgotten(&self, drafts: &[Draft]) -> Forgotten {
        let conversation = drafts[0].conversation;
        let since = self.journal.tail_of(conversation).keys_since();
        let is_old =
            |draft: &&Draft| draft.key_time.zip(since).is_some_and(|(time, since)| time < since);
        let keys = drafts.iter().filter(is_old).map(|draft| draft.id).collect();
        Forgotten { conversation, keys }
    }

    async fn look_up(
        &self,
        forgotten: Forgotten,
        origin: Origin,
        deadline: Instant,
    ) -> Result<Seed, Error> {
        let Forgotten { conversation, keys } = forgotten;
        if keys.len() > LOOK_UPS_MAX {
            return Err(Error::OldKeys { max: LOOK_UPS_MAX });
        }
        let partition = self.journal.partitions().of(conversation);
        let mut lease = self.database.acquire(origin.at(Priority::High), deadline).await?;
        let ids = if keys.is_empty() { vec![None] } else { keys.into_iter().map(Some).collect() };
        let mut rows = Vec::with_capacity(ids.len());
        for id in ids {
            let row = lease
                .run(deadline, async |conn| seeds::look_up(conn, partition, conversation, id).await)
                .await?;
            rows.push(row);
        }
        Ok(seed_of(&rows))
    }

    fn count(&self, verdicts: &[Verdict]) {
        for verdict in verdicts {
            match verdict {
                Verdict::Stored(_) => {}
                Verdict::Duplicate(_) => self.shared.metrics.duplicates.increment(1),
                Verdict::KeyConflict => self.refused(Refusal::KeyConflict),
                Verdict::Closed => self.refused(Refusal::Closed),
                Verdict::NotFound => self.refused(Refusal::NotFound),
            }
        }
    }

    /// Counts a send that was refused.
    pub fn refused(&self, reason: Refusal) {
        self.shared.metrics.refused(reason).increment(1);
    }

    fn rng(&self) -> std::sync::MutexGuard<'_, StdRng> {
        self.shared.rng.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a send needs that memory does not have.
struct Forgotten {
    conversation: ConversationId,
    keys: Vec<MessageId>,
}

/// One seed of several look-ups: as old as the oldest of them, and with the head that belongs to it.
fn seed_of(rows: &[seeds::SeedRow]) -> Seed {
    let oldest = rows.iter().min_by_key(|row| row.checkpoint);
    let stored = rows.iter().filter_map(|row| row.stored).map(|stored| Stored {
        id: stored.id,
        seq: stored.seq,
        at: stored.at,
        fingerprint: stored.fingerprint,
    });
    Seed {
        checkpoint: oldest.map_or(0, |row| row.checkpoint),
        head: oldest.and_then(|row| row.head).map(head_of),
        stored: stored.collect(),
    }
}

fn head_of(head: conversations::Head) -> Head {
    let status = match head.status {
        conversations::Status::Open => Status::Open,
        conversations::Status::Closed => Status::Closed,
    };
    Head {
        tenant: head.tenant,
        seq: head.seq,
        status,
        opened_at: Some(head.opened_at),
        position: head.position,
    }
}
