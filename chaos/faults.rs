//! Performs what a plan says: signals to processes, kills and restarts, conditions of links.
//! Promises that the roll of those who are to run is right before anybody is ended and after everybody is started.
//! Does not decide what comes when.

pub(crate) mod database;
pub(crate) mod proxy;

use anyhow::Context as _;
use rustix::process::Signal;

use crate::scenario::{Act, Deed};
use crate::stage::Stage;

/// What an act leaves behind for a later one.
#[derive(Debug, Default)]
pub(crate) struct Aftermath {
    /// Connections that somebody has taken.
    taken: Option<database::Taken>,
    /// The server of NATS that was killed as a leader.
    leader: Option<usize>,
}

/// Performs an act.
pub(crate) async fn perform(
    stage: &mut Stage,
    act: Act,
    aftermath: &mut Aftermath,
) -> anyhow::Result<()> {
    match act {
        Act::Postgres(deed) => postgres(stage, deed).await,
        Act::Log(server, deed) => log(stage, server, deed).await,
        Act::Node(number, deed) => node(stage, number, deed).await,
        Act::Link(link, condition) => {
            stage.set_link(link, condition);
            Ok(())
        }
        Act::EndSessions => database::end_sessions(stage).await,
        Act::TakeConnections => {
            aftermath.taken = Some(database::take(stage).await?);
            Ok(())
        }
        Act::FreeConnections => {
            drop(aftermath.taken.take());
            Ok(())
        }
        Act::KillLogLeader => {
            let leader = crate::stage::cluster::leader(&stage.nats).await?;
            aftermath.leader = Some(leader);
            log(stage, leader, Deed::Kill).await
        }
        Act::StartLogLeader => match aftermath.leader.take() {
            Some(leader) => log(stage, leader, Deed::Start).await,
            None => Ok(()),
        },
        Act::LimitLog(number, bytes) => {
            let node_of_limit = &mut stage.nodes[number];
            node_of_limit.set("FOREBAY_PARTITION_BYTES_MAX", bytes.to_string());
            node_of_limit.apply_streams().await?;
            node(stage, number, Deed::Stop).await?;
            node(stage, number, Deed::Start).await
        }
        Act::Clock(number, seconds) => stage.nodes[number].set_clock(seconds),
    }
}

async fn postgres(stage: &mut Stage, deed: Deed) -> anyhow::Result<()> {
    match deed {
        Deed::Pause => stage.postgres.pause().await,
        Deed::Resume => stage.postgres.resume(),
        Deed::Kill | Deed::Stop => {
            stage.roll.enter("postgres", None);
            stage.postgres.kill().await?;
        }
        Deed::Start => {
            stage.postgres.restart().await.context("starting Postgres again")?;
            stage.roll.enter("postgres", Some(stage.postgres.pid()));
        }
    }
    Ok(())
}

async fn log(stage: &mut Stage, server: usize, deed: Deed) -> anyhow::Result<()> {
    let name = format!("nats {server}");
    let nats = &mut stage.nats[server];
    match deed {
        Deed::Pause => nats.pause().await,
        Deed::Resume => nats.resume(),
        Deed::Kill | Deed::Stop => {
            stage.roll.enter(&name, None);
            nats.kill().await?;
        }
        Deed::Start => {
            nats.restart().await.context("starting NATS again")?;
            stage.roll.enter(&name, Some(nats.pid()));
        }
    }
    Ok(())
}

async fn node(stage: &mut Stage, number: usize, deed: Deed) -> anyhow::Result<()> {
    let name = format!("node {number}");
    let node = &mut stage.nodes[number];
    match deed {
        Deed::Pause => node.signal(Signal::STOP),
        Deed::Resume => node.signal(Signal::CONT),
        Deed::Kill => {
            stage.roll.enter(&name, None);
            node.kill().await?;
        }
        Deed::Stop => {
            stage.roll.enter(&name, None);
            node.stop().await?;
        }
        Deed::Start => {
            node.start()?;
            stage.roll.enter(&name, node.pid());
        }
    }
    Ok(())
}
