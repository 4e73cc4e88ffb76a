//! A healthy tenant beside a neighbour in trouble: measured as `forebay bench deliver` does, then audited.
//! Promises that the healthy tenant's baseline was measured just before, in the same process.
//! Does not make the trouble; the bench room does.

use std::path::PathBuf;
use std::time::Duration;

use forebay::bench::deliver::{self, Options, Target};
use forebay::clock::Clock;
use forebay::event::ConversationId;
use forebay::load::{Ledger, Narrator};

use super::judge;
use super::report::Report;
use crate::anytime_checks::reads::Excused;
use crate::anytime_checks::{Looking, Watched};
use crate::eventually_healed::{READY_MAX, ready};
use crate::finally_audit::{self, level, stored};
use crate::scenario::{Neighbour, Plan};
use crate::stage::{ADMIN_TOKEN, Places, Stage};

/// Messages of the healthy tenant, a second: thousands in all, because the p95 of a few hundred moves by more than the tenth
/// that it may, whatever the neighbour does.
const MESSAGES_PER_SECOND: u32 = 50;

/// How long an attempt may take, so that a dead channel is one for a while (`bench deliver` measures with the same).
pub(crate) const TIMEOUT: (&str, &str) = ("DELIVERY_TIMEOUT_MS", "10000");

/// Longer than all rounds take.
const LOOK_MAX: Duration = Duration::from_hours(1);

/// Measures and judges.
pub(crate) async fn run(
    (name, plan, neighbour): (&str, &Plan, Neighbour),
    places: &Places,
    (narrator, clock): (&Narrator, &Clock),
    report: &mut Report,
) -> anyhow::Result<()> {
    let stage = Stage::set(name, plan, places, clock).await?;
    let target = Target {
        url: stage.nodes[0].url(),
        admin_token: ADMIN_TOKEN.to_owned(),
        pid: stage.nodes[0].pid().unwrap_or_default(),
        data_dir: PathBuf::from(stage.postgres.data_dir()),
    };
    let options = Options {
        rounds: neighbour.rounds,
        length: neighbour.length,
        messages_per_second: MESSAGES_PER_SECOND,
        backlog: neighbour.backlog,
        channels: 1,
        faults: vec![neighbour.fault],
        parked: Vec::new(),
        deliveries: 0,
    };
    let watched = Watched {
        roll: &stage.roll,
        doors: &stage.doors,
        tenant: &stage.tenant,
        // Nobody but the neighbour's receiver is in trouble.
        excused: Excused { silence: false, ignorance: false },
        until: clock.now() + LOOK_MAX,
    };
    // The bench counts what is acknowledged by itself.
    let looking = Looking::start(&watched, || 0, clock);
    let found = deliver::run(&target, options, narrator, clock).await?;
    let seen = looking.seen();
    drop(looking);
    judge::neighbour::judge(&neighbour, &found.rounds, report);
    judge::neighbour::seen(&seen, report);
    let is_ready = ready(&stage.addresses(), clock.now(), clock).await;
    let is_in_time = is_ready.is_some_and(|took| took <= READY_MAX);
    let told = is_ready.map_or_else(|| "no".to_owned(), |took| format!("after {took:.1?}"));
    report.check("the node is ready at the end", is_in_time.into(), told);
    let config = stage.config()?;
    judge::level(&level(&config, clock).await?, report);
    let mut ledger = Ledger::default();
    found.rounds.iter().flat_map(|round| &round.receipts).for_each(|e| ledger.acknowledge(*e));
    let conversations: Vec<ConversationId> =
        ledger.entries().iter().map(|entry| entry.conversation).collect();
    let stored = stored(&config, &conversations).await?;
    judge::audit(&finally_audit::audit(&mut ledger, &stored), report);
    judge::ended(&stage.strike().await?, report);
    Ok(())
}
