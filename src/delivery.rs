//! From the queues to the subscribers: signed requests, retries, and channels that are out of order kept apart.
//! Promises at least one attempt of every delivery, always under the same id, and that one channel's trouble stays its own.
//! Does not read Postgres and does not write it; outcomes go into the log.

pub mod breaker;
mod divert;
mod drain;
pub mod exchange;
pub mod health;
pub mod keeper;
pub mod ramp;
pub mod recent;
pub mod slots;
mod worker;

pub use exchange::{attempt, egress, retry, signature, verdict};

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::{Notify, mpsc};
use tracing::warn;

use crate::clock::Clock;
use crate::directory::{Directory, Lane};
use crate::event::{ChannelId, NodeId, Partition};
use crate::journal::Journal;
use crate::journal::ring::Window;
use crate::lifecycle::{Kind, Stop, Supervisor, chain};
use crate::log::backlog::PURGE_EVERY;
use crate::log::bucket;
use crate::log::queue::{Queue, Source};
use crate::log::{self, Log};
use crate::metrics;
use attempt::{Sender, Times};
use divert::Diverter;
use egress::Egress;
use keeper::Keeper;
use slots::{Class, Sizes, Slots};
use worker::{Worker, lock};

/// Most retries that are pulled at once.
const DUE_MAX: usize = 64;

/// Pause when a lane has no room, and before a pull that failed is tried again.
const BREATH: Duration = Duration::from_millis(10);
const PAUSE: Duration = Duration::from_millis(500);

/// How often channels that are to be drained are looked for, beside every change of one.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The queues cannot be read.
    #[error("the queues of deliveries")]
    Log(#[from] log::Error),
    /// The machine has no certificates to trust.
    #[error("reading the certificates that are trusted")]
    Certificates(#[source] std::io::Error),
}

/// How deliveries are made.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Attempts at once, by tier.
    pub sizes: Sizes,
    /// How long an attempt may take.
    pub times: Times,
    /// Where they may go.
    pub egress: Egress,
}

/// What deliveries need.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The queues.
    pub log: Log,
    /// Where outcomes go.
    pub journal: Journal,
    /// Channels and their tenants.
    pub directory: Directory,
    /// This process.
    pub node: NodeId,
    /// Where time comes from.
    pub clock: Clock,
    /// What is counted.
    pub metrics: metrics::Delivery,
    /// Who looks after attempts.
    pub supervisor: Supervisor,
}

/// What others may see of deliveries. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Deliveries {
    worker: Arc<Worker>,
}

/// What a node sees of a channel's deliveries.
#[derive(Clone, Debug)]
pub struct Sight {
    /// The entry of a channel that is set apart, as all nodes have it.
    pub entry: Option<Arc<breaker::Entry>>,
    /// Attempts that failed one after the other, as far as this node has seen.
    pub consecutive_failures: u32,
    /// Attempts that are under way on this node.
    pub in_flight: usize,
}

impl Deliveries {
    /// Whether deliveries may go to this URL, as far as its text says.
    pub fn may_go_to(&self, url: &str) -> bool {
        self.worker.sender.may_go_to(url)
    }

    /// Has the breaker of a channel probed now, if it is open.
    ///
    /// Idempotency key: the channel.
    ///
    /// # Errors
    /// When the bucket of breakers does not answer.
    pub async fn hurry(&self, channel: ChannelId) -> Result<(), bucket::Error> {
        let now = self.worker.clock.timestamp();
        self.worker.keeper.change(channel, |entry| entry.hurry(now)).await.map(drop)
    }

    /// What this node sees of a channel.
    pub fn look(&self, channel: ChannelId) -> Sight {
        let (consecutive_failures, in_flight) = self.worker.sight(channel);
        Sight { entry: self.worker.keeper.get(channel), consecutive_failures, in_flight }
    }
}

/// Starts every loop of delivery on this node.
///
/// # Errors
/// [`Error`] when the queues cannot be made.
pub async fn start(parts: Parts, settings: Settings, mut rng: StdRng) -> Result<Deliveries, Error> {
    let sender = Sender::new(settings.egress, settings.times).map_err(Error::Certificates)?;
    let keeper = Keeper::new(parts.log.breakers(), parts.node, parts.clock.clone());
    let (moving, moved) = mpsc::channel(divert::WAITING_MAX);
    let diverter = Diverter {
        log: parts.log.clone(),
        keeper: keeper.clone(),
        metrics: parts.metrics.clone(),
        rng: StdRng::from_rng(&mut rng),
    };
    let worker = Arc::new(Worker {
        log: parts.log,
        journal: parts.journal,
        directory: parts.directory,
        keeper: keeper.clone(),
        sender,
        clock: parts.clock,
        metrics: parts.metrics,
        supervisor: parts.supervisor.clone(),
        moving,
        wake: Notify::new(),
        slots: Mutex::new(Slots::new(settings.sizes)),
        health: Mutex::default(),
        recent: Mutex::default(),
        rng: Mutex::new(rng),
    });
    let mut queues = Vec::with_capacity(Lane::COUNT);
    for lane in Lane::all() {
        let filter = format!("deliver.{}.*", lane.name());
        queues.push(worker.log.queue(Source::Deliver, &lane.name(), &filter).await?);
    }
    let due = worker.log.queue(Source::Retries, "due", "retry.due.>").await?;
    supervise(&parts.supervisor, &worker, keeper, (queues, due), (diverter, moved));
    Ok(Deliveries { worker })
}

fn supervise(
    supervisor: &Supervisor,
    worker: &Arc<Worker>,
    keeper: Keeper,
    (queues, due): (Vec<Queue>, Queue),
    (diverter, moved): (Diverter, mpsc::Receiver<divert::Moving>),
) {
    let kind = Kind::Delivery;
    supervisor.supervise(kind, "breakers", move |stop| keeper.clone().run(stop));
    for (lane, queue) in Lane::all().zip(queues.clone()) {
        let worker = Arc::clone(worker);
        supervisor.supervise(kind, format!("lane {}", lane.name()), move |stop| {
            let room = move |worker: &Worker| lock(&worker.slots).room(lane);
            pull(Arc::clone(&worker), (queue.clone(), Class::Fresh), room, stop)
        });
    }
    let own = Arc::clone(worker);
    supervisor.supervise(kind, "retries", move |stop| {
        pull(Arc::clone(&own), (due.clone(), Class::Due), |_| DUE_MAX, stop)
    });
    let own = Arc::clone(worker);
    supervisor.supervise(kind, "attempts", move |stop| start_attempts(Arc::clone(&own), stop));
    let own = Arc::clone(worker);
    supervisor.supervise(kind, "drains", move |stop| drain::owner::run(Arc::clone(&own), stop));
    let own = Arc::clone(worker);
    supervisor
        .supervise(kind, "compaction", move |stop| compact(Arc::clone(&own), queues.clone(), stop));
    for partition in worker.journal.partitions().all() {
        let own = Arc::clone(worker);
        supervisor.supervise(kind, format!("outcomes {partition}"), move |stop| {
            hear(Arc::clone(&own), partition, stop)
        });
    }
    let movers = Arc::new(tokio::sync::Mutex::new((diverter, moved)));
    supervisor.supervise(kind, "backlogs", move |stop| {
        let movers = Arc::clone(&movers);
        async move {
            let mut movers = movers.lock().await;
            let (diverter, moved) = &mut *movers;
            diverter.run(moved, &stop).await;
            Ok::<(), Infallible>(())
        }
    });
}

/// Pulls a lane's fresh deliveries, or retries that have come due, as many as there is room for.
async fn pull(
    worker: Arc<Worker>,
    (queue, class): (Queue, Class),
    room: impl Fn(&Worker) -> usize,
    stop: Stop,
) -> Result<(), Error> {
    while !stop.is_requested() {
        let room = room(&worker);
        if room == 0 || !worker.keeper.is_level() {
            tokio::time::sleep(BREATH).await;
            continue;
        }
        let Ok(mut pull) = queue.pull(room).await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        loop {
            tokio::select! {
                () = stop.requested() => return Ok(()),
                taken = pull.next() => match taken {
                    Some(taken) => worker.take_in(class, taken).await,
                    None => break,
                },
            }
        }
    }
    Ok(())
}

/// Starts attempts as slots become free.
async fn start_attempts(worker: Arc<Worker>, stop: Stop) -> Result<(), Infallible> {
    loop {
        let wake = worker.start_all().await;
        let wait = wake.map_or(LOOK_EVERY, |at| at.saturating_duration_since(worker.clock.now()));
        tokio::select! {
            () = stop.requested() => return Ok(()),
            () = worker.wake.notified() => {}
            () = tokio::time::sleep(wait.min(LOOK_EVERY)) => {}
        }
    }
}

/// Purges what every lane has settled.
async fn compact(worker: Arc<Worker>, queues: Vec<Queue>, stop: Stop) -> Result<(), Infallible> {
    loop {
        tokio::select! {
            () = stop.requested() => return Ok(()),
            () = tokio::time::sleep(PURGE_EVERY) => {}
        }
        if let Err(error) = worker.log.compact(&queues, worker.journal.partitions()).await {
            warn!(error = %chain(&error), "settled deliveries were not purged");
        }
    }
}

/// Remembers what the log says of deliveries, this node's and others'.
async fn hear(worker: Arc<Worker>, partition: Partition, stop: Stop) -> Result<(), Infallible> {
    let tail = worker.journal.tail(partition).clone();
    let (mut advanced, mut position) = (tail.advanced(), tail.forgotten());
    loop {
        match tail.records_after(position, 1_000) {
            Window::Forgotten => position = tail.position(),
            Window::Records(records) if records.is_empty() => tokio::select! {
                () = stop.requested() => return Ok(()),
                _ = advanced.changed() => {}
            },
            Window::Records(records) => {
                let mut recent = lock(&worker.recent);
                for folded in &records {
                    position = folded.position;
                    folded.record.outcomes.iter().for_each(|outcome| recent.note(outcome));
                }
            }
        }
    }
}
