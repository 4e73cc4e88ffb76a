//! Performs what a plan says: signals to processes, kills and restarts, conditions of links.
//! Promises that the roll of those who are to run is right before anybody is ended and after everybody is started.
//! Does not decide what comes when.

pub(crate) mod database;
pub(crate) mod proxy;

use anyhow::Context as _;
use forebay::clock::Timestamp;
use rustix::process::Signal;
use serde_json::json;

use crate::scenario::{Act, Deed};
use crate::stage::Stage;
use crate::stage::caller::Caller;

/// How far a receipt's time may be from where its node's clock was moved to: longer than any answer takes.
const CLOCK_MICROS: i64 = 60_000_000;

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
        Act::StartLogLeader => {
            let leader = aftermath.leader.take().context("no leader was killed before")?;
            log(stage, leader, Deed::Start).await
        }
        Act::LimitLog(number, bytes) => {
            let node_of_limit = &mut stage.nodes[number];
            node_of_limit.set("FOREBAY_PARTITION_BYTES_MAX", bytes.to_string());
            node_of_limit.apply_streams().await?;
            let stopped = node(stage, number, Deed::Stop).await;
            // It is to run again, however it ended.
            node(stage, number, Deed::Start).await?;
            stopped
        }
        Act::Clock(number, seconds) => clock(stage, number, seconds).await,
    }
}

/// Moves the clock of a node, and proves by the time of a receipt that it was moved.
async fn clock(stage: &mut Stage, number: usize, seconds: i64) -> anyhow::Result<()> {
    let node = &stage.nodes[number];
    node.set_clock(seconds)?;
    let conversation = stage.tenant.conversations.first().context("a conversation")?;
    let mut caller = Caller::new(node.address, &stage.tenant.api_key);
    let path = format!("/v1/conversations/{conversation}/messages");
    let receipt = caller.made(&path, &json!({"text": "what time is it"})).await?;
    let at: Timestamp = receipt["at"].as_str().context("a receipt has a time")?.parse()?;
    let off = at.micros() - stage.clock.timestamp().micros();
    anyhow::ensure!(is_moved(off, seconds), "the clock is {} s off", off / 1_000_000);
    Ok(())
}

/// Whether a time that is so many microseconds off is of a clock that was moved so many seconds.
fn is_moved(off_micros: i64, seconds: i64) -> bool {
    (off_micros - seconds * 1_000_000).abs() < CLOCK_MICROS
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_stayed_is_known() {
        let hour = 3_600_000_000;
        for (off, seconds, wanted) in [
            (hour + 5_000, 3_600, true),
            (-hour, -3_600, true),
            (-4_000, 0, true),
            (0, 3_600, false),
            (hour, 0, false),
            (hour, -3_600, false),
        ] {
            assert_eq!(is_moved(off, seconds), wanted, "{off} {seconds}");
        }
    }
}
