//! The tasks of a server: what runs behind the door, the door itself, and who looks after them.
//! Promises that every task is supervised under its row of the table.
//! Does not build what the tasks are given.

use std::sync::Arc;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::net::TcpListener;

use super::{Error, migrate};
use crate::api;
use crate::clock::Clock;
use crate::config::Config;
use crate::delivery::{self, Deliveries};
use crate::directory::Directory;
use crate::event::NodeId;
use crate::history::History;
use crate::ingest::Ingest;
use crate::journal::{Journal, snapshot};
use crate::lifecycle::{Kind, Supervisor};
use crate::live::hub::Hub;
use crate::log::{Log, streams};
use crate::metrics::{Metrics, Source};
use crate::operate::failback::Failback;
use crate::operate::janitor::Janitor;
use crate::operate::redelivery::Redelivery;
use crate::operate::watch::Watch;
use crate::projection::directory::DirectoryProjector;
use crate::projection::{self, Projector};
use crate::readiness::{Board, Check};
use crate::routing::{self, Router};
use crate::store::{Background, Interactive};
use crate::telemetry::{self, Exporter};

/// What the tasks of a server are given.
pub(super) struct House<'a> {
    pub(super) config: &'a Config,
    pub(super) clock: Clock,
    pub(super) supervisor: &'a Supervisor,
    pub(super) shape: &'a streams::Shape,
    pub(super) log: &'a Log,
    pub(super) journal: &'a Journal,
    pub(super) background: &'a Background,
    pub(super) metrics: &'a Metrics,
    pub(super) board: &'a Board,
}

impl House<'_> {
    /// Projection, janitor and snapshots.
    pub(super) fn supervise_background(&self, migrated: bool, directory: &Directory) {
        let parts = projection::Parts {
            journal: self.journal.clone(),
            log: self.log.clone(),
            epoch: self.shape.epoch.clone(),
            database: self.background.clone(),
            clock: self.clock.clone(),
        };
        let (database, shape) = (self.background.clone(), self.shape.clone());
        let (board, clock) = (self.board.clone(), self.clock.clone());
        let mut done = migrated;
        self.supervisor.supervise(Kind::Pool, "migration", move |_stop| {
            let is_done = std::mem::replace(&mut done, false);
            let (board, at) = (board.clone(), clock.clone());
            let migrating = migrate(database.database().1, shape.clone(), clock.clone());
            async move {
                if is_done || migrating.await {
                    board.pass(Check::Migrations, at.now());
                    Ok(())
                } else {
                    Err("Postgres could not be migrated")
                }
            }
        });
        if self.config.projects {
            self.supervise_projection(&parts, directory);
        }
        let janitor = Janitor {
            log: self.log.clone(),
            database: self.background.clone(),
            retention: self.config.log_retention,
            epoch: self.shape.epoch.clone(),
            clock: self.clock.clone(),
        };
        self.supervisor.supervise(Kind::Janitor, "janitor", move |stop| janitor.clone().run(stop));
        let (journal, saver) = (
            self.journal.clone(),
            snapshot::Saver {
                bucket: self.log.snapshots(),
                epoch: self.shape.epoch.clone(),
                clock: self.clock.clone(),
            },
        );
        self.supervisor.supervise(Kind::Snapshot, "snapshots", move |stop| {
            snapshot::run(saver.clone(), journal.clone(), stop)
        });
    }

    /// What writes the log and the directory to Postgres. Whatever waits for Postgres starts again until it is there.
    fn supervise_projection(&self, parts: &projection::Parts, directory: &Directory) {
        let shortages = self.metrics.database.unavailable(Source::Projector);
        let counted = |shortages: &metrics::Counter, error: &projection::Error| {
            if error.is_shortage() {
                shortages.increment(1);
            }
        };
        for partition in self.shape.partitions.all() {
            let (parts, shortages) = (parts.clone(), shortages.clone());
            let metrics = self.metrics.projection[partition.index()].clone();
            let name = format!("projector {partition}");
            self.supervisor.supervise(Kind::Projection, name, move |stop| {
                let running = Projector::new(parts.clone(), partition, metrics.clone()).run(stop);
                let shortages = shortages.clone();
                async move { running.await.inspect_err(|error| counted(&shortages, error)) }
            });
        }
        let (directory, parts, shortages) = (directory.clone(), parts.clone(), shortages.clone());
        self.supervisor.supervise(Kind::Projection, "projector of the directory", move |stop| {
            let (database, clock) = (parts.database.clone(), parts.clock.clone());
            let running = DirectoryProjector::new(directory.clone(), database, clock).run(stop);
            let shortages = shortages.clone();
            async move { running.await.inspect_err(|error| counted(&shortages, error)) }
        });
    }

    /// The flow of sends.
    pub(super) fn ingest(&self, interactive: &Interactive, rng: StdRng) -> Ingest {
        let knowledge = (self.journal.clone(), interactive.clone());
        let metrics = self.metrics.ingest.clone();
        Ingest::new(knowledge, self.config.quota, self.clock.clone(), rng, metrics)
    }

    /// What the doors lead to.
    pub(super) fn rooms(
        &self,
        directory: &Directory,
        (ingest, history): (&Ingest, &History),
        (interactive, deliveries): (&Interactive, Option<Deliveries>),
    ) -> api::Rooms {
        api::Rooms {
            directory: directory.clone(),
            journal: self.journal.clone(),
            ingest: ingest.clone(),
            history: history.clone(),
            board: self.board.clone(),
            failback: Failback::new(interactive.clone()),
            deliveries,
            redelivery: Redelivery::new(
                self.log.clone(),
                interactive.clone(),
                self.clock.clone(),
                self.supervisor.clone(),
            ),
            hub: self.hub(),
            epoch: self.shape.epoch.clone(),
        }
    }

    /// The routers, and on a node that makes deliveries the workers.
    pub(super) async fn deliveries(
        &self,
        directory: &Directory,
        node: NodeId,
        rng: &mut StdRng,
    ) -> Result<Option<Deliveries>, Error> {
        if !self.config.routes {
            return Ok(None);
        }
        let metrics = self.metrics.delivery.clone();
        for tail in self.journal.tails() {
            let parts = routing::Parts {
                log: self.log.clone(),
                directory: directory.clone(),
                clock: self.clock.clone(),
                metrics: metrics.clone(),
            };
            let (tail, mut rng) = (tail.clone(), StdRng::from_rng(rng));
            let name = format!("router {}", tail.partition());
            self.supervisor.supervise(Kind::Routing, name, move |stop| {
                Router::new(parts.clone(), tail.clone(), StdRng::from_rng(&mut rng)).run(stop)
            });
        }
        let Some(settings) = &self.config.delivery else { return Ok(None) };
        let parts = delivery::Parts {
            log: self.log.clone(),
            journal: self.journal.clone(),
            directory: directory.clone(),
            node,
            clock: self.clock.clone(),
            metrics,
            supervisor: self.supervisor.clone(),
        };
        let rng = StdRng::from_rng(rng);
        Ok(Some(delivery::start(parts, settings.clone(), rng).await?))
    }

    /// The hub, with the tasks that tell what happens.
    fn hub(&self) -> Hub {
        let hub = Hub::new(self.journal.clone(), self.log.clone());
        for partition in self.shape.partitions.all() {
            let (hub, name) = (hub.clone(), format!("hub {partition}"));
            self.supervisor
                .supervise(Kind::Upkeep, name, move |stop| hub.clone().run(partition, stop));
        }
        let whispering = hub.clone();
        self.supervisor
            .supervise(Kind::Upkeep, "whispers", move |stop| whispering.clone().run_whispers(stop));
        hub
    }

    /// The door, behind which everything else stands already.
    pub(super) fn open_door(
        &self,
        listener: TcpListener,
        rooms: api::Rooms,
        (exporter, rng): (Exporter, &mut StdRng),
    ) -> Result<(), Error> {
        let secret = match (&self.config.token_secret, rooms.directory.token_secret()) {
            (Some(own), _) => own.expose().as_bytes().to_vec(),
            (None, agreed) => agreed.map(|agreed| agreed.expose().to_vec()).unwrap_or_default(),
        };
        let fittings = api::Fittings {
            tokens: api::tokens::Tokens::new(&secret)?,
            operator: api::OperatorToken::new(self.config.admin_token.expose()),
            clock: self.clock.clone(),
            metrics: self.metrics.clone(),
            render: api::Render::new(move || exporter.render()),
            seeds: api::Seeds::new(StdRng::from_rng(rng)),
            dice: api::Dice::seeded(rand::RngExt::random(rng)),
            closing: self.supervisor.stop(Kind::Door),
            retry_base: self.config.retry_after,
        };
        let door = Arc::new(api::Door::new(
            listener,
            api::frame(rooms, fittings),
            self.supervisor.clone(),
            self.board.clone(),
            api::listen::Config {
                connections_max: self.config.connections_max,
                ..api::listen::Config::default()
            },
        ));
        self.supervisor.supervise(Kind::Door, "door", move |stop| {
            let door = Arc::clone(&door);
            async move { door.run(stop).await }
        });
        Ok(())
    }

    /// Gauges, readiness, and the histories of metrics.
    pub(super) fn supervise_watch(&self, (interactive, exporter): (Interactive, Exporter)) {
        let watch = Watch {
            log: self.log.clone(),
            journal: self.journal.clone(),
            epoch: self.shape.epoch.clone(),
            pools: (interactive, self.background.clone()),
            wait_limit: self.config.ready_wait,
            board: self.board.clone(),
            metrics: self.metrics.clone(),
            clock: self.clock.clone(),
        };
        self.supervisor.supervise(Kind::Upkeep, "watch", move |stop| watch.clone().run(stop));
        self.supervisor.supervise(Kind::Upkeep, "metrics", move |stop| {
            let exporter = exporter.clone();
            async move {
                while !stop.is_requested() {
                    exporter.upkeep();
                    tokio::select! {
                        () = stop.requested() => {}
                        () = tokio::time::sleep(telemetry::UPKEEP_EVERY) => {}
                    }
                }
                Ok::<(), Error>(())
            }
        });
    }
}
