//! The backlogs that are this node's: a drain for each, and a look for those that are nobody's.
//! Promises that every backlog is drained by somebody, also when a nudge or a node is lost.
//! Does not drain.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tracing::warn;

use super::Drain;
use crate::delivery::Error;
use crate::delivery::breaker::Why;
use crate::delivery::worker::{Worker, lock};
use crate::directory::Tier;
use crate::event::ChannelId;
use crate::lifecycle::{Stop, chain};

/// How often backlogs are looked for that nobody drains.
const SWEEP_EVERY: Duration = Duration::from_secs(30);

/// How often channels that are to be drained are looked for, beside every change of one.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Runs a drain for every backlog that is this node's.
pub(in crate::delivery) async fn run(worker: Arc<Worker>, stop: Stop) -> Result<(), Error> {
    let mut running: HashMap<ChannelId, (Arc<Notify>, tokio::task::AbortHandle)> = HashMap::new();
    // Ends with this loop: what was under way is begun anew by the next.
    let mut drains = tokio::task::JoinSet::new();
    let mut changes = worker.keeper.changes();
    let mut nudges = worker.log.nudges().await?;
    let mut directory = worker.directory.changes();
    let mut swept = None;
    loop {
        if worker.keeper.is_level() {
            let now = worker.clock.now();
            if directory.has_changed().unwrap_or(false) || swept.is_none() {
                directory.mark_unchanged();
                pin(&worker).await;
            }
            if swept.is_none_or(|at| now.saturating_duration_since(at) >= SWEEP_EVERY) {
                swept = Some(now);
                sweep(&worker).await;
            }
            while drains.try_join_next().is_some() {}
            running.retain(|_, (_, task)| !task.is_finished());
            let (own, all) = worker.keeper.own();
            worker.metrics.diverted_channels.set(u32::try_from(all).unwrap_or(u32::MAX));
            for channel in own {
                running.entry(channel).or_insert_with(|| {
                    let nudged = Arc::new(Notify::new());
                    let drain = Drain::new(Arc::clone(&worker), channel);
                    let run = drain.run(Arc::clone(&nudged), stop.clone());
                    (nudged, drains.spawn(run))
                });
            }
            for (tier, at) in [Tier::High, Tier::Standard, Tier::Bulk].into_iter().zip(0..) {
                let (in_flight, waiting) = lock(&worker.slots).status(tier);
                worker.metrics.in_flight[at].set(u32::try_from(in_flight).unwrap_or(u32::MAX));
                worker.metrics.waiting[at].set(u32::try_from(waiting).unwrap_or(u32::MAX));
            }
        }
        tokio::select! {
            () = stop.requested() => break,
            _ = changes.changed() => {}
            _ = directory.changed() => directory.mark_changed(),
            nudged = nudges.next() => for channel in nudged.unwrap_or_default() {
                match running.get(&channel) {
                    Some((nudge, _)) => nudge.notify_one(),
                    // Given up at the same moment; whoever is faster takes it.
                    None if worker.keeper.get(channel).is_none() => {
                        drop(worker.keeper.ensure(channel, Why::Leftover).await);
                    }
                    None => {}
                }
            },
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
    while drains.join_next().await.is_some() {}
    Ok(())
}

/// Sets apart what is in order or counted: its deliveries go to its backlog from the start.
async fn pin(worker: &Worker) {
    for channel in worker.directory.pinned_channels() {
        if worker.keeper.get(channel.id).is_none() {
            drop(worker.keeper.ensure(channel.id, Why::Pinned).await);
        }
    }
}

/// Sets apart what has a backlog that nobody drains.
async fn sweep(worker: &Worker) {
    pin(worker).await;
    match worker.log.backlog_sizes("*").await {
        Ok(sizes) => {
            let names = sizes.keys().filter_map(|name| ChannelId::parse(name).ok());
            for channel in names.filter(|channel| worker.keeper.get(*channel).is_none()) {
                drop(worker.keeper.ensure(channel, Why::Leftover).await);
            }
        }
        Err(error) => warn!(error = %chain(&error), "backlogs were not looked for"),
    }
}
