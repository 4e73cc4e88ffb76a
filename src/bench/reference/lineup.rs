//! What is compared: Forebay and its references, all up at once and measured in turns.
//! Promises that every reference runs on threads of its own, apart from the load's, as Forebay's process does.
//! Does not measure.

use std::future::Future;
use std::sync::Arc;

use serde::Serialize;
use tokio::runtime::Runtime;

use super::raw::RawLog;
use super::rows::{Gathering, Table};
use super::{Backing, Reference};
use crate::bench::{Error, io};
use crate::clock::Clock;
use crate::event::Partitions;

/// One way of acknowledging a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Variant {
    /// Forebay, its projector at work.
    Forebay,
    /// Forebay, its projector held back until the round is over.
    ForebayHeld,
    /// An endpoint that gathers `INSERT`s across requests.
    Gathered,
    /// An endpoint that answers after one `INSERT` through a pool.
    Direct,
    /// An endpoint that answers at once.
    Nothing,
    /// An endpoint that gathers sends into raw guarded records: Forebay without everything but the log.
    RecordsHttp,
    /// Raw guarded records from as many callers, without HTTP: the ceiling of the log.
    Records,
}

impl Variant {
    /// The references, in the order of the table.
    pub const REFERENCES: [Self; 5] =
        [Self::Direct, Self::Gathered, Self::RecordsHttp, Self::Nothing, Self::Records];

    /// How a table names it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Forebay => "forebay",
            Self::ForebayHeld => "forebay, projector held",
            Self::Gathered => "INSERTs gathered across requests",
            Self::Direct => "one INSERT a send, pool of 10",
            Self::Nothing => "no-op (HTTP alone)",
            Self::RecordsHttp => "raw guarded records over HTTP",
            Self::Records => "raw guarded records, no HTTP",
        }
    }

    /// Whether it is Forebay itself.
    pub const fn is_forebay(self) -> bool {
        matches!(self, Self::Forebay | Self::ForebayHeld)
    }
}

/// Where the references are to live.
#[derive(Clone, Debug)]
pub struct Places {
    /// The database in which they may make a schema `forebay_bench`.
    pub database_url: String,
    /// The NATS server on which they may make streams.
    pub nats_url: String,
    /// The first part of the streams' names; Forebay's namespace with something that sets it apart.
    pub name: String,
    /// Streams of the raw records: as many as Forebay has partitions.
    pub partitions: Partitions,
}

/// Writers of the gathered `INSERT`s. Measured on two cores: up to four writers gain nothing at 256 connections, and lose at
/// 64, because their batches are smaller.
const GATHER_WRITERS: usize = 1;

/// The references, listening.
#[derive(Debug)]
pub struct References {
    table: Table,
    log: Arc<RawLog>,
    listening: Vec<(Variant, Reference)>,
    own: OwnRuntime,
}

impl References {
    /// Starts all of them.
    ///
    /// # Errors
    /// When Postgres, NATS or the machine refuses something.
    pub async fn start(places: Places, clock: &Clock) -> Result<Self, Error> {
        let own = OwnRuntime::start()?;
        let database_url = places.database_url.clone();
        let (table, gathering) = own
            .run(async move {
                let table = Table::make(&database_url).await?;
                let gathering = Gathering::start(&table, GATHER_WRITERS);
                Ok((table, gathering))
            })
            .await?;
        let raw = async move {
            let count = usize::from(places.partitions.count());
            RawLog::start(&places.nats_url, &places.name, count).await
        };
        let log = Arc::new(own.run(raw).await?);
        let backings = [
            (Variant::Direct, Backing::Direct(table.clone())),
            (Variant::Gathered, Backing::Gathered(gathering)),
            (Variant::Nothing, Backing::Nothing),
            (Variant::RecordsHttp, Backing::Records(Arc::clone(&log))),
        ];
        let mut listening = Vec::new();
        for (variant, backing) in backings {
            let reference = Reference::start(backing, own.handle(), clock.clone()).await?;
            listening.push((variant, reference));
        }
        Ok(Self { table, log, listening, own })
    }

    /// Where a reference listens; `None` for what has no HTTP.
    pub fn url(&self, variant: Variant) -> Option<&str> {
        let of_variant = |(listening, _): &&(Variant, Reference)| *listening == variant;
        let (_, reference) = self.listening.iter().find(of_variant)?;
        Some(&reference.url)
    }

    /// The raw log.
    pub fn log(&self) -> Arc<RawLog> {
        Arc::clone(&self.log)
    }

    /// Runs something on the references' threads.
    ///
    /// # Errors
    /// What it fails with.
    pub async fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        self.own.run(task).await
    }

    /// Takes away what an earlier round left.
    ///
    /// # Errors
    /// When Postgres or NATS refuses.
    pub async fn empty(&self) -> Result<(), Error> {
        let (table, log) = (self.table.clone(), self.log());
        let task = async move {
            table.empty().await?;
            log.empty().await
        };
        self.own.run(task).await
    }

    /// Stops them and removes table and streams.
    ///
    /// # Errors
    /// When Postgres or NATS refuses.
    pub async fn remove(self) -> Result<(), Error> {
        let (table, log) = (self.table.clone(), self.log());
        let task = async move {
            table.remove().await?;
            log.remove().await
        };
        self.own.run(task).await
    }
}

/// Threads of the references' own.
#[derive(Debug)]
struct OwnRuntime(Option<Runtime>);

impl OwnRuntime {
    fn start() -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(io("starting threads for the references"))?;
        Ok(Self(Some(runtime)))
    }

    fn handle(&self) -> &Runtime {
        self.0.as_ref().expect("it is taken only when it is dropped")
    }

    async fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let ended = self.handle().spawn(task).await;
        ended.map_err(|_panic| Error::Panicked)?
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        // A runtime may not be dropped where blocking is not allowed; this ends its tasks without waiting for them.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
