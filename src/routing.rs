//! From the log to the queues: every event for every channel that hears of it, once unless something fails on the way.
//! Promises that the log counts as routed up to a place only once every delivery up to there is stored.
//! Does not deliver, and does not ask Postgres.

mod error;
mod links;
mod postings;
pub mod rules;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::StdRng;
use tracing::{debug, error, info, warn};

use crate::clock::Clock;
use crate::directory::{Channel, Directory, Scope};
use crate::event::delivery::Place;
use crate::event::record::CodecError;
use crate::event::{ChannelId, Event, Record, TenantId};
use crate::journal::Tail;
use crate::journal::ring::{Folded, Window};
use crate::lifecycle::restraint::{Decision, Restraint};
use crate::lifecycle::{Stop, chain};
use crate::log::batch::{FEW_MAX, Posted, Posting};
use crate::log::{Follow, Log};
use crate::metrics;
pub use error::Error;
use links::Links;
use postings::{Marks, Postings};
use rules::{Plan, Planned};

/// Most events of one step.
const STEP_EVENTS_MAX: usize = 2_000;

/// How often a node that does not route a partition looks whether the one that does still gets on. Failover takes
/// about twice this long.
const STANDBY: Duration = Duration::from_millis(500);

/// A marker is stored without deliveries when the place has moved and this much time passed, so that the log can be
/// purged and a restart need not route much anew.
const MARKER_EVERY: Duration = Duration::from_secs(5);

/// Pause after a refusal for want of room. Nothing is lost meanwhile: the log keeps it.
const FULL_PAUSE: Duration = Duration::from_secs(1);

/// Longest wait for the directory to have what was written to it.
const DIRECTORY_MAX: Duration = Duration::from_secs(2);

/// What a router is made of.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The log and the queues.
    pub log: Log,
    /// Who hears of what.
    pub directory: Directory,
    /// Where time comes from.
    pub clock: Clock,
    /// What is counted.
    pub metrics: metrics::Delivery,
}

/// Routes one partition.
#[derive(Debug)]
pub struct Router {
    parts: Parts,
    tail: Tail,
    links: Links,
    rng: StdRng,
    /// Where the queue's marker and the backlogs' marker stand; `None` until they are read.
    marks: Option<Marks>,
    /// How far the log is looked through beyond the queue's marker, where nobody heard of anything.
    place: Place,
    marked_at: Instant,
    behind: Option<Follow>,
    refusals: Restraint,
    /// The queue had no room for the last plan.
    is_wary: bool,
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// So many deliveries were queued; there may be more.
    Routed(usize),
    /// There was nothing to route.
    Idle,
    /// Another node routes this partition.
    Elsewhere,
}

/// How a plan is stored.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// One by one, the marker last, where they are few: a batch costs the server more than they do.
    OneByOne,
    /// In an atomic batch: all of it or nothing.
    Together,
}

impl Router {
    /// A router that has looked at nothing yet.
    pub fn new(parts: Parts, tail: Tail, rng: StdRng) -> Self {
        let (links, marked_at) = (Links::new(parts.log.links()), parts.clock.now());
        let place = Place::default();
        let (marks, behind, refusals) = (None, None, Restraint::default());
        let is_wary = false;
        Self { parts, tail, links, rng, marks, place, marked_at, behind, refusals, is_wary }
    }

    /// Routes until the stop.
    ///
    /// # Errors
    /// When the log or the queue fail; it begins anew from the marker then.
    pub async fn run(mut self, stop: Stop) -> Result<(), Error> {
        let mut advanced = self.tail.advanced();
        loop {
            let step = match self.step().await {
                Err(full @ (Error::Full | Error::BacklogsFull)) => {
                    self.tell(&format!("{full}; the log keeps what follows"));
                    tokio::select! {
                        () = stop.requested() => return Ok(()),
                        () = tokio::time::sleep(FULL_PAUSE) => continue,
                    }
                }
                step => step?,
            };
            match step {
                Step::Routed(_) if stop.is_requested() => return Ok(()),
                Step::Routed(_) => {}
                Step::Idle => tokio::select! {
                    () = stop.requested() => return Ok(()),
                    _ = advanced.changed() => {}
                    () = tokio::time::sleep(MARKER_EVERY) => {}
                },
                Step::Elsewhere => {
                    tokio::select! {
                        () = stop.requested() => return Ok(()),
                        () = self.stand_by() => {}
                    }
                }
            }
        }
    }

    /// A line about a want of room, not more often than somebody reads it.
    fn tell(&mut self, refusal: &str) {
        if let Decision::Log { suppressed } = self.refusals.on_event(self.parts.clock.now()) {
            warn!(suppressed, "{refusal}");
        }
    }

    /// Waits until whoever routes this partition has not got on for a while although there is something. Cancel safe: it only
    /// reads.
    async fn stand_by(&mut self) {
        let mut seen = None;
        loop {
            tokio::time::sleep(STANDBY).await;
            let Ok(marks) = self.postings().read_marks().await else { continue };
            let waits = self.tail.position() > marks.queue.0.position;
            if waits && seen == Some(marks.queue.1) {
                info!("partition {} is routed here from now on", self.tail.partition());
                return;
            }
            seen = waits.then_some(marks.queue.1);
        }
    }

    /// Routes what one batch takes.
    ///
    /// Idempotency key: the markers, stored with the deliveries or after them, and the names of those.
    ///
    /// # Errors
    /// [`Error`]; the markers say what was stored.
    pub async fn step(&mut self) -> Result<Step, Error> {
        let marks = if let Some(marks) = self.marks {
            marks
        } else {
            let marks = self.postings().read_marks().await?;
            self.place = marks.queue.0;
            *self.marks.insert(marks)
        };
        let records = self.gather(self.place.position).await?;
        let plan = self.plan(&records).await?;
        let moved = plan.end > marks.queue.0;
        let due = self.parts.clock.now() >= self.marked_at + MARKER_EVERY;
        if plan.deliveries.is_empty() && !(moved && due) {
            let idle = self.place == plan.end;
            self.place = plan.end;
            return Ok(if idle { Step::Idle } else { Step::Routed(0) });
        }
        let count = plan.deliveries.len();
        let stored = self.store(marks, &plan).await;
        if !matches!(stored, Ok(true)) {
            self.marks = None;
        }
        if stored? {
            self.parts.metrics.routed.increment(count as u64);
            return Ok(Step::Routed(count));
        }
        debug!("partition {} is routed elsewhere", self.tail.partition());
        Ok(Step::Elsewhere)
    }

    /// Stores a plan. Where the backlogs have no room for a burst it takes its place in its lane, so that others' deliveries
    /// need not wait for room. False when another node was faster.
    async fn store(&mut self, marks: Marks, plan: &Plan) -> Result<bool, Error> {
        let bursting = rules::bursting(&plan.deliveries);
        match self.store_as(marks, plan, &bursting).await {
            Err(Error::BacklogsFull) if !bursting.is_empty() => {
                self.tell("the stream of backlogs is full; a burst goes through its lane");
                self.store_as(marks, plan, &BTreeMap::new()).await
            }
            stored => stored,
        }
    }

    /// First what goes straight to backlogs, then the rest with the marker that counts. A channel that has a burst is called in
    /// its lane, so that somebody drains what is in its backlog by then.
    async fn store_as(
        &mut self,
        marks: Marks,
        plan: &Plan,
        bursting: &BTreeMap<ChannelId, TenantId>,
    ) -> Result<bool, Error> {
        let end = plan.end;
        // A backlogs' marker that is ahead was left by a crash between the two. What it covers is there already; it goes
        // through the queue a second time, because who was pinned or had a burst then may not now.
        let goes_straight = |planned: &&Planned| {
            let goes = planned.channel.is_pinned() || bursting.contains_key(&planned.channel.id);
            goes && planned.place > marks.backlogs.0
        };
        let (straight, queued): (Vec<_>, Vec<_>) = plan.deliveries.iter().partition(goes_straight);
        let mut next = Marks { queue: (end, 0), ..marks };
        if !straight.is_empty() {
            let postings = self.postings().to_backlogs(&straight, end, marks);
            // Together, or one that is refused would come after those behind it. Alone, it needs no batch.
            let way = if straight.len() == 1 { Way::OneByOne } else { Way::Together };
            let posted = self.post(postings, way).await;
            let is_full = matches!(posted, Err(Error::Full));
            let posted = if is_full { Err(Error::BacklogsFull) } else { posted };
            let Some(sequence) = posted? else { return Ok(false) };
            next.backlogs = (end, sequence);
            let (bursts, pinned): (Vec<_>, Vec<_>) =
                straight.iter().map(|p| p.channel.id).partition(|id| bursting.contains_key(id));
            self.parts.metrics.diverted.increment(bursts.len() as u64);
            if !pinned.is_empty() {
                self.parts.log.nudge(&pinned).await;
            }
        }
        let Some(sequence) = self.post_lanes((&queued, bursting), end, marks).await? else {
            return Ok(false);
        };
        next.queue.1 = sequence;
        (self.marks, self.place) = (Some(next), end);
        self.marked_at = self.parts.clock.now();
        Ok(true)
    }

    /// Calls come before what may be in a backlog already, so that it is set apart by then.
    async fn post_lanes(
        &mut self,
        (queued, bursting): (&[&Planned], &BTreeMap<ChannelId, TenantId>),
        end: Place,
        marks: Marks,
    ) -> Result<Option<u64>, Error> {
        let lanes = |router: &Self, marks| {
            let mut postings = router.postings().calls(bursting, end);
            postings.extend(router.postings().to_lanes(queued, end, marks));
            postings
        };
        let posted = self.post_queue(lanes(self, marks)).await?;
        if posted.is_some() {
            return Ok(posted);
        }
        // A marker that only was written again, so as not to hold up the purge of what is settled, is no other router.
        let now = self.postings().read_marks().await?;
        if now.queue.0 != marks.queue.0 {
            return Ok(None);
        }
        self.post_queue(lanes(self, now)).await
    }

    /// Stores what goes into the queue, with its marker; as a batch after a plan that it had no room for, because some of a few
    /// may fit in again and again, of a batch all do or none. What the backlogs answer says nothing about the queue.
    async fn post_queue(&mut self, postings: Vec<Posting>) -> Result<Option<u64>, Error> {
        let way = if self.is_wary { Way::Together } else { Way::OneByOne };
        let posted = self.post(postings, way).await;
        self.is_wary = matches!(posted, Err(Error::Full));
        posted
    }

    fn postings(&self) -> Postings<'_> {
        let (log, directory) = (&self.parts.log, &self.parts.directory);
        Postings { log, directory, partition: self.tail.partition() }
    }

    /// Stores postings that end in a marker; `None` when its guard did not hold.
    async fn post(&mut self, postings: Vec<Posting>, way: Way) -> Result<Option<u64>, Error> {
        let posted = match way {
            Way::OneByOne if postings.len() <= FEW_MAX => self.parts.log.post_few(postings).await,
            Way::OneByOne | Way::Together => {
                let name = format!("{:032x}", self.rng.random::<u128>());
                self.parts.log.post(&name, postings).await
            }
        };
        match posted {
            Posted::Stored(sequence) => Ok(Some(sequence)),
            Posted::Conflict => Ok(None),
            Posted::Full => Err(Error::Full),
            Posted::Unknown(reason) => Err(Error::Unknown(reason)),
        }
    }

    async fn plan(&mut self, records: &[Arc<Folded>]) -> Result<Plan, Error> {
        let directory = self.parts.directory.clone();
        // Whoever made a channel on another node and then speaks is heard by it: what is routed is never routed again.
        if records.iter().any(|folded| !folded.record.events.is_empty()) {
            directory.catch_up(self.parts.clock.now() + DIRECTORY_MAX).await?;
        }
        let mut tenants: HashMap<TenantId, Arc<[Arc<Channel>]>> = HashMap::new();
        for event in records.iter().flat_map(|folded| &folded.record.events) {
            let now = self.parts.clock.now();
            self.links.learn(event, now).await?;
            let channels = tenants
                .entry(event.tenant)
                .or_insert_with(|| in_order(directory.channels(event.tenant)));
            if channels.iter().any(|channel| channel.settings.conversations == Scope::Linked) {
                self.links.look(event.conversation, now).await?;
            }
        }
        let nothing: Arc<[_]> = Arc::from([]);
        Ok(rules::plan((self.tail.partition(), self.place), records, |event: &Event| {
            let channels = tenants.get(&event.tenant).map_or_else(|| Arc::from([]), Arc::clone);
            let links = self.links.known(event.conversation);
            (channels, links.unwrap_or_else(|| Arc::clone(&nothing)))
        }))
    }

    /// The next records: from the tail where it reaches back far enough, else from the log.
    async fn gather(&mut self, position: u64) -> Result<Vec<Arc<Folded>>, Error> {
        if let Window::Records(records) = self.tail.records_after(position, STEP_EVENTS_MAX) {
            self.behind = None;
            return Ok(records);
        }
        let follow = match self.behind.take() {
            Some(follow) if follow.position() == position => follow,
            Some(_) | None => self.parts.log.follow(self.tail.partition(), position),
        };
        let follow = self.behind.insert(follow);
        let (mut records, mut events) = (Vec::new(), 0);
        while events < STEP_EVENTS_MAX && follow.position() < self.tail.position() {
            let (position, raw) = follow.next_known().await?;
            match Record::decode(&raw) {
                Ok(record) => {
                    events += record.entries();
                    records.push(Arc::new(Folded { position, bytes: raw.len(), record }));
                }
                Err(source @ CodecError::Version(_)) => {
                    return Err(Error::Newer { position, source });
                }
                Err(other) => error!(
                    position,
                    error = %chain(&other),
                    "a position of partition {} holds no record and is not routed",
                    self.tail.partition()
                ),
            }
        }
        Ok(records)
    }
}

fn in_order(mut channels: Vec<Arc<Channel>>) -> Arc<[Arc<Channel>]> {
    channels.sort_by_key(|channel| channel.id);
    channels.into()
}
