//! What a node knows of the log and how it appends to it: per partition one writer and the tail.
//! Promises receipts only after the record's durable acknowledgement, and a gap-free `seq` whatever other nodes do.
//! Does not touch Postgres; what it has forgotten, its callers look up and hand in as a [`Seed`].

pub mod draft;
pub mod fold;
mod follower;
mod opening;
pub mod sequencer;
pub mod snapshot;
pub mod tail;
pub mod turns;
mod writer;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tracing::debug;

use crate::clock::Clock;
use crate::event::record::CodecError;
use crate::event::{ConversationId, NodeId, Outcome, Partition, Partitions};
use crate::lifecycle::{Kind, Supervisor, chain};
use crate::log::Log;
use crate::metrics::Metrics;

pub use draft::{Draft, Haste, Intent, Receipt, Unanswered, Verdict};
pub use fold::heads::{Head, Seed, Status, Stored};
pub use fold::{heads, keys, ring};
pub use opening::{Recall, Saved};
pub use tail::{Busy, Place, Span, Tail};

/// What can go wrong between callers and the log.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing is known to be stored: no verdict came before the deadline.
    #[error("the log did not acknowledge in time")]
    Late,
    /// Memory does not know the conversation or a key: the drafts are to come again with a seed. Nothing was stored.
    #[error("memory does not know the conversation or a key")]
    Cold(Vec<Draft>),
    /// It would be refused for what the fold says, and the fold may lag behind the log.
    #[error("the fold may lag behind the log")]
    Doubtful(Vec<Draft>),
    /// Nothing was stored.
    #[error("nothing was appended")]
    Unanswered(#[source] Unanswered),
    /// The server stops.
    #[error("the server stops")]
    Stopping,
    /// The log cannot be read.
    #[error("reading the log")]
    Log(#[from] crate::log::Error),
    /// A newer version of this program wrote to the log.
    #[error("position {position} of partition {partition} needs a newer version of this program")]
    Newer {
        /// Which partition.
        partition: Partition,
        /// Which position.
        position: u64,
        /// What the codec says.
        #[source]
        source: CodecError,
    },
    /// Acknowledged records are gone: the log was replaced or lost data.
    #[error("partition {partition} ends at {last}, before what was acknowledged ({position})")]
    WentBack {
        /// Which partition.
        partition: Partition,
        /// Where it ends.
        last: u64,
        /// Where it must reach.
        position: u64,
    },
    /// The follower or the connection ended before the writer, or one of them was to begin twice.
    #[error("the follower of a partition ended")]
    FollowerGone,
}

/// How much of the log is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long idempotency keys are remembered.
    pub dedupe_window: Duration,
    /// Most idempotency keys that the node remembers; about 120 bytes each.
    pub keys_max: usize,
    /// Most heads that the node remembers; about 100 bytes each.
    pub heads_max: usize,
    /// Most bytes of encoded records that the node holds for readers; decoded, they take about twice that.
    pub tail_bytes_max: usize,
}

impl Default for Settings {
    /// 15 minutes or a million keys, 400 000 heads, 32 MiB of records.
    fn default() -> Self {
        Self {
            dedupe_window: Duration::from_mins(15),
            keys_max: 1_000_000,
            heads_max: 400_000,
            tail_bytes_max: 32 * 1024 * 1024,
        }
    }
}

/// What a node knows of the log and how it appends to it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Journal {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    log: Log,
    partitions: Partitions,
    tails: Vec<Tail>,
    /// Where each partition's log ended when it was last asked, and when that was.
    ends: Vec<tokio::sync::Mutex<(Instant, u64)>>,
    inboxes: Vec<mpsc::Sender<draft::Request<writer::Ticket>>>,
    clock: Clock,
}

/// What a journal is opened with.
#[derive(Debug)]
pub struct Opening {
    /// The log.
    pub log: Log,
    /// Its partitions.
    pub partitions: Partitions,
    /// This process.
    pub node: NodeId,
    /// How much is remembered.
    pub settings: Settings,
    /// Where time comes from.
    pub clock: Clock,
    /// Where the writers' randomness comes from.
    pub rng: rand::rngs::StdRng,
    /// Where the writers count.
    pub metrics: Metrics,
}

impl Journal {
    /// Folds every partition from where `recalls` allow it to begin up to its end, and starts followers and writers.
    ///
    /// # Errors
    /// When the log cannot be read or a newer version wrote to it.
    pub async fn open(
        mut opening: Opening,
        recalls: Vec<Recall>,
        supervisor: &Supervisor,
    ) -> Result<Self, Error> {
        let count = usize::from(opening.partitions.count());
        let bounds = opening.settings.for_each_partition(count);
        let recalls = recalls.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
        let folding = opening.partitions.all().zip(recalls).map(|(partition, recall)| {
            let recall = recall.unwrap_or_default();
            opening::fold(&opening.log, partition, bounds, recall, &opening.clock)
        });
        let folds = futures_util::future::try_join_all(folding).await?;
        let (mut tails, mut inboxes) = (Vec::new(), Vec::new());
        for (partition, (fold, follow)) in opening.partitions.all().zip(folds) {
            let tail = Tail::new(partition, fold, opening.clock.now());
            let (inbox, requests) = mpsc::channel(tail::QUEUE_REQUESTS_MAX);
            let (arriving, arrivals) = mpsc::channel(follower::QUEUE_RECORDS_MAX);
            let parts = writer::Parts {
                log: opening.log.clone(),
                tail: tail.clone(),
                node: opening.node,
                inbox: requests,
                arrivals,
                announcements: opening.log.announcements(partition).await?,
                clock: opening.clock.clone(),
                rng: rand::SeedableRng::from_rng(&mut opening.rng),
                metrics: opening.metrics.journal[partition.index()].clone(),
            };
            let following = (follow, opening.node, tail.clone(), arriving);
            supervise(supervisor, writer::Writer::new(parts), following);
            tails.push(tail);
            inboxes.push(inbox);
        }
        let began = opening.clock.now();
        let ends = (0..count).map(|_| tokio::sync::Mutex::new((began, 0))).collect();
        let inner = Inner {
            log: opening.log,
            partitions: opening.partitions,
            tails,
            ends,
            inboxes,
            clock: opening.clock,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// How many partitions there are.
    pub fn partitions(&self) -> Partitions {
        self.inner.partitions
    }

    /// What others may read of a partition.
    pub fn tail(&self, partition: Partition) -> &Tail {
        &self.inner.tails[partition.index()]
    }

    /// What others may read of the partition in which a conversation lives.
    pub fn tail_of(&self, conversation: ConversationId) -> &Tail {
        self.tail(self.inner.partitions.of(conversation))
    }

    /// All tails, in the order of their partitions.
    pub fn tails(&self) -> &[Tail] {
        &self.inner.tails
    }

    /// Whether the queue of a conversation's partition has room, before a body is read.
    ///
    /// # Errors
    /// [`Busy`] when a bound of the queue is reached.
    pub fn check_room(&self, conversation: ConversationId) -> Result<(), Busy> {
        self.tail_of(conversation).check_room(self.inner.clock.now())
    }

    /// Reserves room in the queue of a conversation's partition.
    ///
    /// # Errors
    /// [`Busy`], at once, when a bound of the queue is reached.
    pub fn admit(&self, conversation: ConversationId, bytes: usize) -> Result<Place, Busy> {
        self.tail_of(conversation).admit(bytes, self.inner.clock.now())
    }

    /// Brings the fold of a conversation's partition up to where the log ends now.
    ///
    /// # Errors
    /// [`Error::Late`] when that is not known or not reached before `deadline`.
    pub async fn level(
        &self,
        conversation: ConversationId,
        deadline: Instant,
    ) -> Result<(), Error> {
        let tail = self.tail_of(conversation);
        let called = self.inner.clock.now();
        let levelling = async {
            // One question at a time: whoever waited for an answer to a question that was asked after its own call
            // takes that answer.
            let mut known = self.inner.ends[tail.partition().index()].lock().await;
            if known.0 < called {
                let asked = self.inner.clock.now();
                *known = (asked, self.inner.log.bounds(tail.partition()).await?.last);
            }
            let end = known.1;
            drop(known);
            // The sender of this channel lives in the tail itself.
            drop(tail.advanced().wait_for(|position| *position >= end).await);
            Ok(())
        };
        match tokio::time::timeout_at(deadline.into(), levelling).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                let error: crate::log::Error = error;
                debug!(error = %chain(&error), "the end of the log is not known");
                Err(Error::Late)
            }
            Err(_elapsed) => Err(Error::Late),
        }
    }

    /// Appends drafts of one conversation next to each other and in order: one verdict each.
    ///
    /// Idempotency key: each draft's id, where it has a client id. They commit together, in one record.
    /// A refusal is given only on a fold that was level with the log after the call began.
    /// Not cancel safe: what was handed over may be stored although nobody waits for the verdicts.
    ///
    /// # Errors
    /// [`Error::Late`] when no verdict came before `deadline`: the drafts may or may not be stored. [`Error::Cold`],
    /// [`Error::Unanswered`] and [`Error::Stopping`] when they are certainly not.
    pub async fn append(
        &self,
        place: Place,
        drafts: Vec<Draft>,
        seed: Option<Seed>,
        deadline: Instant,
    ) -> Result<Vec<Verdict>, Error> {
        let again = seed.clone();
        let doubtful = match self.ask(place, (drafts, seed), false, deadline).await {
            Err(Error::Doubtful(drafts)) => drafts,
            other => return other,
        };
        let Some(conversation) = doubtful.first().map(|draft| draft.conversation) else {
            return Ok(Vec::new());
        };
        self.level(conversation, deadline).await?;
        let bytes = doubtful.iter().map(|draft| draft.body.size()).sum();
        let place = self.admit(conversation, bytes).map_err(|_busy| Error::Late)?;
        match self.ask(place, (doubtful, again), true, deadline).await {
            // Another record took the place meanwhile; whoever loses that often sends again.
            Err(Error::Doubtful(_)) => Err(Error::Late),
            other => other,
        }
    }

    async fn ask(
        &self,
        place: Place,
        (drafts, seed): (Vec<Draft>, Option<Seed>),
        is_level: bool,
        deadline: Instant,
    ) -> Result<Vec<Verdict>, Error> {
        let is = (is_level, Haste::Now);
        self.hand_over(place, (drafts, Vec::new(), seed), is, deadline).await
    }

    /// Appends what became of attempts to deliver events of one partition; they are durable when this returns. What
    /// is wanted soon waits up to 50 ms for others to share a record with.
    ///
    /// Idempotency key: delivery, attempt and its beginning, by which Postgres takes a repeat for what it is.
    /// Not cancel safe: what was handed over may be stored.
    ///
    /// # Errors
    /// [`Error::Late`] when they may or may not be stored; [`Error::Unanswered`] and [`Error::Stopping`] when they
    /// are not.
    pub async fn note(
        &self,
        place: Place,
        (outcomes, haste): (Vec<Outcome>, Haste),
        deadline: Instant,
    ) -> Result<(), Error> {
        let is = (false, haste);
        self.hand_over(place, (Vec::new(), outcomes, None), is, deadline).await.map(drop)
    }

    async fn hand_over(
        &self,
        place: Place,
        (drafts, outcomes, seed): (Vec<Draft>, Vec<Outcome>, Option<Seed>),
        (is_level, haste): (bool, Haste),
        deadline: Instant,
    ) -> Result<Vec<Verdict>, Error> {
        let (reply, answer) = oneshot::channel();
        let inbox = &self.inner.inboxes[place.partition().index()];
        let ticket = writer::Ticket { reply, place };
        let request = draft::Request { ticket, drafts, outcomes, seed, deadline, is_level, haste };
        // The inbox has as many places as are given out, so it can only be closed.
        inbox.try_send(request).map_err(|_closed| Error::Stopping)?;
        match answer.await {
            Ok(verdicts) => verdicts.map_err(|unanswered| match unanswered {
                Unanswered::Late => Error::Late,
                Unanswered::Cold(drafts) => Error::Cold(drafts),
                Unanswered::Doubtful(drafts) => Error::Doubtful(drafts),
                refused @ Unanswered::Refused(_) => Error::Unanswered(refused),
            }),
            Err(_writer_gone) => Err(Error::Stopping),
        }
    }
}

/// Starts one partition's two tasks.
///
/// Neither can begin a second time: what they hold is the state of the partition. Their failure ends the server, and
/// its next start folds anew.
fn supervise(
    supervisor: &Supervisor,
    writer: writer::Writer,
    following: (crate::log::Follow, NodeId, Tail, mpsc::Sender<follower::Arrival>),
) {
    let partition = following.2.partition();
    let (mut writer, mut following) = (Some(writer), Some(following));
    supervisor.supervise(Kind::Writer, format!("writer {partition}"), move |stop| {
        let writer = writer.take();
        async move {
            match writer {
                Some(writer) => writer.run(stop).await,
                None => Err(Error::FollowerGone),
            }
        }
    });
    supervisor.supervise(Kind::Follower, format!("follower {partition}"), move |stop| {
        let following = following.take();
        async move {
            match following {
                Some((follow, node, tail, arriving)) => {
                    follower::run(follow, node, (tail, arriving), stop).await
                }
                None => Err(Error::FollowerGone),
            }
        }
    });
}

impl Settings {
    fn for_each_partition(self, count: usize) -> fold::Bounds {
        let keys = keys::Memory { window: self.dedupe_window, keys_max: self.keys_max / count };
        fold::Bounds {
            keys,
            heads_max: self.heads_max / count,
            ring_bytes_max: self.tail_bytes_max / count,
        }
    }
}
