//! `forebay serve`: builds a server from its configuration, from the ground up, and stops it in reverse.
//! Promises that two servers can run in one process: nothing here is global.
//! Does not decide; it connects.

mod house;

use std::net::SocketAddr;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tracing::{info, warn};

use house::House;

use crate::admission::{Origin, Priority, Source, Tag};
use crate::api;
use crate::clock::Clock;
use crate::config::Config;
use crate::delivery;
use crate::directory::{self, Directory};
use crate::event::NodeId;
use crate::history::History;
use crate::ingest::Ingest;
use crate::journal::{self, Journal, Recall, snapshot};
use crate::lifecycle::{Kind, Supervisor, chain};
use crate::live::hub::Hub;
use crate::log::{self, Log, streams};
use crate::readiness::Board;
use crate::store::{self, Background, Interactive, checkpoints, schema};
use crate::telemetry::{self, Exporter};

/// The server waits for where it may begin.
const OPENING: Tag = Origin::system(Source::Projector).at(Priority::Critical);

/// Longest wait for the directory to be read when the server starts.
const DIRECTORY_MAX: Duration = Duration::from_secs(20);

/// Longest wait for Postgres when the server starts; without it the log alone says where to begin.
const DATABASE_MAX: Duration = Duration::from_secs(5);

/// Why a server does not start or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log cannot be used.
    #[error("the log")]
    Log(#[from] log::Error),
    /// The journal cannot be opened.
    #[error("the journal")]
    Journal(#[from] journal::Error),
    /// The directory cannot be read.
    #[error("the directory was not read within {} s", DIRECTORY_MAX.as_secs())]
    Directory,
    /// The nodes cannot agree on the key of tokens.
    #[error("the key of tokens")]
    TokenSecret(#[source] directory::Error),
    /// The recorder of metrics cannot be built.
    #[error("the metrics")]
    Telemetry(#[from] telemetry::Error),
    /// Deliveries cannot be made.
    #[error("deliveries")]
    Delivery(#[from] delivery::Error),
    /// The key of tokens cannot be used.
    #[error("the key of tokens")]
    Tokens(#[from] api::tokens::Error),
    /// The address cannot be bound.
    #[error("listening on {address}")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The signals cannot be heard.
    #[error("listening for signals")]
    Signals(#[source] std::io::Error),
    /// A task failed that the server cannot do without.
    #[error("{0}")]
    Failed(String),
    /// Draining took too long.
    #[error("some tasks did not end in time and were dropped")]
    Forced,
}

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    /// Where it takes requests.
    pub address: SocketAddr,
    /// Its tasks.
    pub supervisor: Supervisor,
    /// What the log is.
    pub shape: streams::Shape,
    /// What it knows of the log.
    pub journal: Journal,
    /// Tenants, keys and channels.
    pub directory: Directory,
    /// The flow of sends.
    pub ingest: Ingest,
    /// The flow of reads.
    pub history: History,
    /// Who listens to which conversation.
    pub hub: Hub,
    /// Whether it is ready.
    pub board: Board,
    /// The log, for those who start a server to look at it.
    pub log: Log,
    /// The pools, likewise.
    pub pools: (Interactive, Background),
    /// Its metrics.
    pub exporter: Exporter,
}

impl Server {
    /// Drains and says whether everything ended by itself.
    pub async fn stop(self) -> bool {
        // The pools close in their turn, after everybody who uses them.
        self.supervisor.drain().await
    }
}

/// Builds and starts a server. `seed` is its only source of randomness.
///
/// # Errors
/// [`Error`], before it has taken any request.
pub async fn start(config: Config, clock: Clock, seed: u64) -> Result<Server, Error> {
    // Everything that is opened on the way lives in this one future.
    Box::pin(build(config, clock, seed)).await
}

async fn build(config: Config, clock: Clock, seed: u64) -> Result<Server, Error> {
    let mut rng = StdRng::seed_from_u64(seed);
    let supervisor = Supervisor::new();
    let board = Board::new(clock.now());
    let log = Log::connect(config.log.clone()).await?;
    let epoch = format!("{:08x}", rand::RngExt::random::<u32>(&mut rng));
    let shape = streams::open(&log, &epoch).await?;
    let (metrics, exporter) = telemetry::metrics(shape.partitions.count())?;
    let mut means = store::Means {
        clock: clock.clone(),
        metrics: metrics.clone(),
        supervisor: supervisor.clone(),
        rng: StdRng::from_rng(&mut rng),
    };
    let pools = store::open(&config.store(), &mut means);
    let (interactive, background) = &pools;
    let directory = open_directory(&log, &supervisor, &config, (&clock, &mut rng)).await?;
    warm(&pools, &clock).await;
    let migrated = migrate(background.database().1, shape.clone(), clock.clone()).await;
    let recalls = recall(&log, &shape, background, &clock).await;
    let node = NodeId::generate(clock.timestamp(), &mut rng);
    let opening = journal::Opening {
        log: log.clone(),
        partitions: shape.partitions,
        node,
        settings: config.memory,
        clock: clock.clone(),
        rng: StdRng::from_rng(&mut rng),
        metrics: metrics.clone(),
    };
    let journal = Journal::open(opening, recalls, &supervisor).await?;
    info!(node.id = %node, "node {node} has folded {} partitions", shape.partitions.count());
    let house = House {
        config: &config,
        clock: clock.clone(),
        supervisor: &supervisor,
        shape: &shape,
        log: &log,
        journal: &journal,
        background,
        metrics: &metrics,
        board: &board,
    };
    house.supervise_background(migrated, &directory);
    house.supervise_watch((interactive.clone(), exporter.clone()));
    let ingest = house.ingest(interactive, StdRng::from_rng(&mut rng));
    let history = History::new(journal.clone(), interactive.clone(), clock.clone());
    let (listener, address) = bind(config.listen)?;
    let deliveries = Box::pin(house.deliveries(&directory, node, &mut rng)).await?;
    let rooms = house.rooms(&directory, (&ingest, &history), (interactive, deliveries));
    let hub = rooms.hub.clone();
    house.open_door(listener, rooms, (exporter.clone(), &mut rng))?;
    Ok(Server {
        address,
        supervisor,
        shape,
        journal,
        directory,
        ingest,
        history,
        hub,
        board,
        log,
        pools,
        exporter,
    })
}

/// Starts a server and keeps it until a signal or a fatal failure; the second signal forces.
///
/// # Errors
/// [`Error`] when it does not start, or does not end as it should.
pub async fn run(
    config: Config,
    clock: Clock,
    seed: u64,
    until_stdin_closes: bool,
) -> Result<(), Error> {
    let server = start(config, clock, seed).await?;
    info!("listening on http://{}", server.address);
    let failed = tokio::select! {
        signal = crate::lifecycle::signal() => signal.map_err(Error::Signals).map(|()| None)?,
        () = stdin_closes(), if until_stdin_closes => None,
        failure = server.supervisor.failed() => Some(failure),
    };
    let supervisor = server.supervisor.clone();
    let clean = tokio::select! {
        clean = server.stop() => clean,
        _ = crate::lifecycle::signal() => {
            supervisor.force().await;
            false
        }
    };
    match failed {
        Some(failure) => Err(Error::Failed(failure)),
        None if clean => Ok(()),
        None => Err(Error::Forced),
    }
}

fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    let bound = api::listen::bind(address);
    let bound = bound.and_then(|listener| listener.local_addr().map(|own| (listener, own)));
    bound.map_err(|source| Error::Bind { address, source })
}

/// Waits until nobody holds the other end of standard input any more.
async fn stdin_closes() {
    let mut stdin = tokio::io::stdin();
    let mut ignored = [0; 64];
    while stdin.read(&mut ignored).await.is_ok_and(|count| count > 0) {}
}

/// The directory, once it is read; with the key of tokens.
async fn open_directory(
    log: &Log,
    supervisor: &Supervisor,
    config: &Config,
    (clock, rng): (&Clock, &mut StdRng),
) -> Result<Directory, Error> {
    let (directory, follower) = Directory::open(log.directory());
    supervisor.supervise(Kind::Directory, "directory", move |stop| {
        let follower = follower.clone();
        async move { follower.run(stop).await }
    });
    let ready = tokio::time::timeout(DIRECTORY_MAX, directory.ready()).await;
    if ready.is_err() {
        return Err(Error::Directory);
    }
    if config.token_secret.is_none() {
        let when =
            directory::When { now: clock.timestamp(), deadline: clock.now() + DIRECTORY_MAX };
        directory.agree_token_secret(when, rng).await.map_err(Error::TokenSecret)?;
    }
    Ok(directory)
}

/// Waits until both pools have their least number of connections, of the other database if the first has none; a server
/// starts without them all the same.
async fn warm((interactive, background): &(Interactive, Background), clock: &Clock) {
    for is_last in [false, true] {
        let deadline = clock.now() + DATABASE_MAX;
        let warm = tokio::join!(interactive.warm(deadline), background.warm(deadline));
        if warm == (true, true) {
            return;
        }
        warn!("the pools have no connections yet");
        background.leave_primary();
        if is_last || !background.has_failback() {
            return;
        }
    }
}

/// Migrates if Postgres answers; a server starts without it all the same.
async fn migrate(database: store::Target, shape: streams::Shape, clock: Clock) -> bool {
    let deadline = clock.now() + DATABASE_MAX;
    let migrating = async {
        let mut conn = database.connect("migrate", DATABASE_MAX, deadline).await?;
        schema::migrate(&mut conn, &database, deadline).await?;
        let ensuring = database.perform(&mut conn, async |conn| {
            checkpoints::ensure(conn, shape.partitions, &shape.epoch).await
        });
        ensuring.await
    };
    match migrating.await {
        Ok(()) => true,
        Err(error) => {
            warn!(error = %chain(&error), "the schema is not migrated yet");
            false
        }
    }
}

/// What the fold may begin with: checkpoints if Postgres answers, heads if a node saved some.
async fn recall(
    log: &Log,
    shape: &streams::Shape,
    background: &Background,
    clock: &Clock,
) -> Vec<Recall> {
    let deadline = clock.now() + DATABASE_MAX;
    let read = async {
        let mut lease = background.acquire(OPENING, deadline).await?;
        lease.run(deadline, async |conn| checkpoints::read_all(conn).await).await
    };
    let found = read.await.inspect_err(|error| {
        warn!(error = %chain(error), "Postgres does not say how far it is; beginning without it");
    });
    let found = found.unwrap_or_default();
    let saver = snapshot::Saver {
        bucket: log.snapshots(),
        epoch: shape.epoch.clone(),
        clock: clock.clone(),
    };
    let mut recalls = Vec::new();
    // Positions of another log say nothing of this one.
    let of_this_log = |row: &&checkpoints::Checkpoint| row.epoch == shape.epoch;
    for partition in shape.partitions.all() {
        let mut own = found.iter().filter(of_this_log);
        let of_this = own.find(|row| row.partition == partition.number());
        let checkpoint = of_this.map(|row| row.position);
        let snapshot = saver.load(partition).await;
        recalls.push(Recall { checkpoint, snapshot });
    }
    recalls
}
