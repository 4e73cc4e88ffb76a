//! Carries out what the detector of failback decides: probes, preparations, the switch.
//! Promises that requests go to the other database only when connections to it are ready, and that none of the former
//! one's is used after that.
//! Does not decide.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout_at};
use tracing::{info, warn};

use super::filler::is_standby;
use super::slot::Slot;
use super::{Error, Pool};
use crate::admission::bucket;
use crate::lifecycle::{Stop, chain};
use crate::store::session::detector::{Decision, Endpoint, Probe, Status};

/// How long a probe of the primary may take.
const PROBE_MAX: Duration = Duration::from_secs(2);

/// Takes up decisions for all pools until the server stops.
pub(super) async fn run(pools: Vec<Arc<Pool>>, stop: Stop) -> Result<(), Infallible> {
    let Some(first) = pools.first() else { return Ok(()) };
    let (endpoints, clock) = (&first.endpoints, &first.clock);
    // What this task was preparing when it failed, if it did, is given up.
    endpoints.give_up_preparing(clock.now());
    // Told now, because in the disaster it is too late to find out.
    if let Err(error) = first.look_at_other().await {
        let error = chain(&error);
        warn!(error, "the failback database does not answer now");
    }
    loop {
        let decision = tokio::select! {
            () = stop.requested() => return Ok(()),
            decision = endpoints.decision(clock) => decision,
        };
        match decision {
            Decision::Probe => {
                let probe = probe(first).await;
                endpoints.decide(|detector| detector.on_probe(probe, clock.now()));
            }
            Decision::Prepare { to } => prepare(&pools, to).await,
            // A switch is carried out where it is decided, together with the connections that were prepared.
            Decision::Stay | Decision::Switch { .. } => {}
        }
    }
}

async fn probe(pool: &Pool) -> Probe {
    let deadline = pool.clock.now() + PROBE_MAX;
    let target = pool.endpoints.primary();
    let asking = async {
        let mut conn = target.connect("probe", PROBE_MAX, deadline).await?;
        target.perform(&mut conn, is_standby).await
    };
    match timeout_at(deadline.into(), asking).await {
        Ok(Ok(false)) => Probe::Serves,
        Ok(Ok(true)) => Probe::Standby,
        Ok(Err(_)) | Err(_) => Probe::Fails,
    }
}

/// Opens the least number of connections of every pool, and switches when all of them are there.
async fn prepare(pools: &[Arc<Pool>], to: Endpoint) {
    if let Some(first) = pools.first() {
        let Status { requests, errors, .. } = first.endpoints.status();
        warn!(requests, errors, "the {} database is being prepared", name(to));
    }
    let mut spares: Vec<Vec<Slot>> = Vec::with_capacity(pools.len());
    for pool in pools {
        match pool.open_spares().await {
            Ok(slots) => spares.push(slots),
            Err(error) => {
                let error = chain(&error);
                warn!(error, "the {} database cannot be used either", name(to));
                pool.endpoints.give_up_preparing(pool.clock.now());
                return;
            }
        }
    }
    let Some(first) = pools.first() else { return };
    let now = first.clock.now();
    first.endpoints.decide(|detector| detector.on_prepared(now));
    for (pool, slots) in pools.iter().zip(spares) {
        pool.turn(slots);
    }
    if to == Endpoint::Primary {
        info!("requests go to the primary database again");
    } else {
        warn!("requests go to the failback database");
    }
}

fn name(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Primary => "primary",
        Endpoint::Failback => "failback",
    }
}

impl Pool {
    /// Whether the other endpoint can be reached. That it only reads is in order, as long as it is not needed.
    async fn look_at_other(&self) -> Result<(), Error> {
        let deadline = self.clock.now() + PROBE_MAX;
        let (_, target) = self.endpoints.other();
        target.connect("probe", PROBE_MAX, deadline).await.map(drop)
    }

    /// Connections to the other endpoint, as many as are kept when nobody asks for one.
    async fn open_spares(&self) -> Result<Vec<Slot>, Error> {
        let (generation, target) = self.endpoints.other();
        let mut slots = Vec::with_capacity(self.limits.least());
        while slots.len() < self.limits.least() {
            let taken = self.census().supply.take_token(self.clock.now());
            match taken {
                bucket::Decision::Taken => slots.push(self.connect(generation, &target).await?),
                bucket::Decision::Wait(wait) => sleep(wait).await,
            }
        }
        Ok(slots)
    }

    /// The other endpoint has become the present one: lets go of every idle connection and takes in the new ones.
    fn turn(self: &Arc<Self>, slots: Vec<Slot>) {
        self.count(|totals| totals.failbacks += 1);
        self.census().supply.on_connected();
        for slot in slots {
            self.add(slot);
        }
        self.sweep();
    }
}
