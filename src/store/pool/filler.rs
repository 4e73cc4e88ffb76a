//! The tasks of a pool: the gate's timer, the filler that makes connections, the sweep that renews them.
//! Promises that nobody who asks for a connection makes one: a caller that gives up wastes no session of the server.
//! Does not decide when one is made; the supply does.

use std::convert::Infallible;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use deadpool::unmanaged::Pool as Bag;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use sqlx::PgConnection;
use tokio::sync::{Notify, watch};
use tracing::warn;

use super::cancel::Cancels;
use super::census::{Census, Sizes};
use super::slot::{Backend, Slot};
use super::supply::Next;
use super::{Limits, Means, Pool};
use crate::admission::{self, Class, Gate};
use crate::lifecycle::{Kind, Stop, chain};
use crate::store::session::failback::Endpoints;
use crate::store::{Error, Target, Topology, while_doing};

/// How long making a connection may take. Nobody waits for it by itself, so it is patient: one that is under way when a
/// paused server goes on is done at once, while each that is given up leaves the server a session to clear away.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// How often idle connections are looked through.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// How long closing may take when the server stops.
const CLOSE_MAX: Duration = Duration::from_secs(4);

/// Which part of the background pool is kept for the service's own work when it is shared with requests: one
/// connection in five, at least one. More would be missed by readers, fewer would let them stop the projection.
const RESERVED_PART: usize = 5;

impl Pool {
    pub(super) fn new(
        (name, limits, writes): (&'static str, Limits, bool),
        endpoints: &Endpoints,
        cancels: &Arc<Cancels>,
        means: &mut Means,
    ) -> Arc<Self> {
        let clock = means.clock.clone();
        let metrics = match name {
            "interactive" => means.metrics.interactive.clone(),
            _ => means.metrics.background.clone(),
        };
        let gate = Gate::new(
            admission::Settings {
                capacity: 0,
                waiters_max: limits.waiters,
                target: limits.target,
                interval: limits.interval,
                window: limits.window,
                tenant_max: limits.tenant_max,
                reserved: writes
                    .then(|| (Class::System, (limits.connections / RESERVED_PART).max(1))),
            },
            clock.clone(),
        );
        Arc::new(Self {
            name,
            limits,
            opening: endpoints.opening(limits.statement_timeout),
            writes,
            gate,
            // Room for those that a switch has prepared beside those that it closes.
            bag: Bag::new(limits.connections + limits.least()),
            looking: Mutex::new(()),
            hoping: AtomicUsize::new(0),
            endpoints: endpoints.clone(),
            cancels: Arc::clone(cancels),
            census: Mutex::new(Census::new(clock.now())),
            rng: Mutex::new(StdRng::from_rng(&mut means.rng)),
            demand: Notify::new(),
            sizes: watch::Sender::default(),
            supervisor: means.supervisor.clone(),
            metrics,
            clock,
        })
    }

    /// Starts the tasks.
    pub(super) fn keep(self: &Arc<Self>) {
        let pool = Arc::clone(self);
        let name = format!("{} pool", self.name);
        self.supervisor.supervise(Kind::Pool, name, move |stop| Arc::clone(&pool).run(stop));
    }

    async fn run(self: Arc<Self>, stop: Stop) -> Result<(), Infallible> {
        let mut tick = tokio::time::interval(SWEEP_EVERY);
        let sweeping = async {
            while !stop.is_requested() {
                tick.tick().await;
                self.sweep();
            }
        };
        tokio::select! {
            () = stop.requested() => {}
            () = self.gate.keep() => {}
            () = self.fill() => {}
            () = sweeping => {}
        }
        self.close(self.clock.now() + CLOSE_MAX).await;
        Ok(())
    }

    async fn fill(self: &Arc<Self>) {
        loop {
            let demand = self.demand();
            let next = self.census().supply.on_look(demand, self.clock.now());
            match next {
                Next::Connect => self.make().await,
                Next::OnDemand => self.demand.notified().await,
                Next::At(at) => tokio::select! {
                    () = self.demand.notified() => {}
                    () = tokio::time::sleep_until(at.into()) => {}
                },
            }
        }
    }

    /// One attempt to make a connection.
    async fn make(self: &Arc<Self>) {
        let (generation, target) = self.endpoints.current();
        let attempt = Attempt::new(self);
        let made = self.connect(generation, &target).await;
        drop(attempt);
        let now = self.clock.now();
        self.note_outcome(generation, made.as_ref().is_err_and(Error::is_infrastructure));
        match made {
            Ok(slot) => {
                if self.census().supply.is_failing() {
                    // As loud as its beginning was: whoever saw the one is to see the other.
                    warn!("Postgres answers the {} pool again", self.name);
                }
                self.census().supply.on_connected();
                self.add(slot);
            }
            Err(error) => {
                let draw = self.draw();
                let mut census = self.census();
                if !census.supply.is_failing() {
                    let error = chain(&error);
                    let place = target.place();
                    warn!(
                        error,
                        "the {} pool cannot connect to Postgres at {place} and goes on trying",
                        self.name
                    );
                }
                census.supply.on_failed(now, draw);
                self.sizes.send_modify(|sizes| sizes.is_failing = true);
            }
        }
    }

    /// Makes a connection to an endpoint and finds out whose session it has.
    pub(super) async fn connect(&self, generation: u64, target: &Target) -> Result<Slot, Error> {
        let deadline = self.clock.now() + CONNECT_MAX;
        let mut conn = target.connect(self.name, self.limits.statement_timeout, deadline).await?;
        let asking = async {
            if self.writes && target.perform(&mut conn, is_standby).await? {
                return Err(Error::Standby);
            }
            match target.topology() {
                Topology::Direct => identify(&mut conn).await.map(Some),
                Topology::TransactionPooler => Ok(None),
            }
        };
        let asked = tokio::time::timeout_at(deadline.into(), asking).await;
        let backend = asked.unwrap_or(Err(Error::Deadline { doing: "connect" }))?;
        Ok(Slot::new(conn, backend, generation, (self.clock.now(), self.draw())))
    }

    /// Takes a connection into the pool, unless it leads to the endpoint of a former choice.
    pub(super) fn add(self: &Arc<Self>, slot: Slot) {
        if self.gate.is_closed() || slot.generation != self.endpoints.generation() {
            return;
        }
        self.recount(|census| {
            // Under the lock of the counts, so that nobody closes it before it is counted. There is always room: the
            // filler stays below the largest number, and a switch adds the least number at most.
            if self.bag.try_add(slot).is_ok() {
                census.live += 1;
                census.totals.created += 1;
                census.renews = false;
            }
        });
    }

    pub(super) async fn warm(&self, deadline: Instant) -> bool {
        let mut sizes = self.sizes.subscribe();
        let is_decided = |sizes: &Sizes| sizes.live >= self.limits.least() || sizes.is_failing;
        let warm = sizes.wait_for(is_decided);
        let seen = tokio::time::timeout_at(deadline.into(), warm).await;
        seen.is_ok_and(|seen| seen.is_ok_and(|sizes| sizes.live >= self.limits.least()))
    }
}

/// Counts an attempt for as long as it is under way.
struct Attempt<'p>(&'p Pool);

impl<'p> Attempt<'p> {
    fn new(pool: &'p Pool) -> Self {
        pool.census().creating += 1;
        Self(pool)
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.0.census().creating -= 1;
    }
}

async fn identify(conn: &mut PgConnection) -> Result<Backend, Error> {
    let row = sqlx::query!(
        r#"SELECT pid AS "pid!", backend_start AS "start!" FROM pg_stat_activity
        WHERE pid = pg_backend_pid()"#
    );
    let row = row.fetch_one(conn).await.map_err(while_doing("identify the session"))?;
    Ok(Backend { pid: row.pid, start: row.start })
}

/// Whether the server only reads.
pub(super) async fn is_standby(conn: &mut PgConnection) -> Result<bool, Error> {
    let asked = sqlx::query_scalar!(r#"SELECT pg_is_in_recovery() AS "is_standby!""#);
    asked.fetch_one(conn).await.map_err(while_doing("ask for the server's role"))
}
