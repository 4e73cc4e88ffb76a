//! Runs a scenario: sets the stage, drives load and listeners, performs the plan, heals, waits, audits.
//! Promises a report with every check, whatever happened, or an error when the scenario could not be run.
//! Does not decide what is a violation of what is stored; `finally_audit` and `load::ledger` do.

pub(crate) mod judge;
pub(crate) mod neighbour;
pub(crate) mod report;
pub(crate) mod self_test;

use std::time::{Duration, Instant};

use forebay::clock::Clock;
use forebay::load::Narrator;
use tokio::time::sleep_until;

use crate::anytime_checks::{Looking, Seen};
use crate::driver_listeners::{Listening, SentBySocket, lock};
use crate::driver_sends::{Sending, Sent};
use crate::faults::{Aftermath, perform};
use crate::finally_audit::{Delivered, delivered, stored, verify};
use crate::scenario::{Course, Options, Plan, Scenario, Step};
use crate::stage::{HOOK, Places, Stage};
use crate::{eventually_healed, finally_audit};
use report::Report;

/// Why no clock jumps: namespaces of time do not cover the time of day, and setting it takes privileges.
const NO_CLOCKS: &str =
    "libfaketime is not installed, and nothing else moves the clock of one process";

/// Everything that a plan's run came to.
pub(crate) struct Found {
    pub(crate) sent: Sent,
    pub(crate) by_socket: SentBySocket,
    pub(crate) seen: Seen,
    pub(crate) ready: Option<Duration>,
    pub(crate) incomplete: Vec<String>,
    pub(crate) listener_faults: Vec<String>,
    pub(crate) reconnects: u64,
    /// The longest time in which a conversation's listener heard nothing.
    pub(crate) unheard: Duration,
    pub(crate) audit: forebay::load::Audit,
    pub(crate) findings: forebay::operate::verify::Findings,
    pub(crate) delivered: Delivered,
    pub(crate) during: During,
    /// Acts of the plan that could not be performed.
    pub(crate) failed: Vec<String>,
    /// Nodes that did not end in order when they were asked.
    pub(crate) undrained: Vec<String>,
}

/// What went on while the fault lasted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct During {
    /// Live frames that came to listeners.
    pub(crate) live: u64,
    /// Requests that came to the receiver.
    pub(crate) hooks: u64,
}

/// Runs a scenario.
pub(crate) async fn run(
    scenario: &Scenario,
    options: Options,
    places: &Places,
    clock: &Clock,
) -> anyhow::Result<Report> {
    let begun = clock.now();
    let narrator = Narrator::on_stderr();
    narrator.line(&format!("{}: {} (seed {})", scenario.name, scenario.about, options.seed));
    let mut report = Report::new(scenario.name, options.seed);
    match (scenario.course)(options) {
        Course::Neighbour(neighbour) => {
            let mut plan = Plan::calm(options, neighbour.length);
            plan.settings = vec![neighbour::TIMEOUT];
            let wanted = (scenario.name, &plan, neighbour);
            neighbour::run(wanted, places, (&narrator, clock), &mut report).await?;
        }
        Course::Steps(plan) => {
            let found = steps(scenario.name, &plan, places, (&narrator, clock)).await?;
            judge::judge(&plan, &found, &mut report);
        }
        Course::Clock(plan) => match Places::clocks() {
            Some(library) => {
                let places = Places { clocks: Some(library), ..places.clone() };
                let found = steps(scenario.name, &plan, &places, (&narrator, clock)).await?;
                judge::judge(&plan, &found, &mut report);
            }
            None => report.skipped = Some(NO_CLOCKS),
        },
    }
    narrator.finish();
    report.seconds = clock.now().saturating_duration_since(begun).as_secs_f64();
    Ok(report)
}

async fn steps(
    name: &str,
    plan: &Plan,
    places: &Places,
    (narrator, clock): (&Narrator, &Clock),
) -> anyhow::Result<Found> {
    let unhealed = plan.unhealed();
    anyhow::ensure!(unhealed.is_empty(), "the plan leaves broken: {unhealed:?}");
    let mut stage = Stage::set(name, plan, places, clock).await?;
    let amount = (plan.per_second, plan.length);
    let mut listening = Listening::start(&stage.doors, &stage.tenant, clock)?;
    let begun = clock.now();
    let sending = Sending::start(&stage.doors, &stage.tenant, amount, clock);
    let everything = (&stage.roll, &*stage.doors, &stage.tenant);
    let looking = Looking::start(everything, plan.expect.sends, sending.acknowledged(), clock);
    let drive = Drive { sending: &sending, looking: &looking, narrator, begun };
    let (broke, healed, failed) = drive.perform(plan, &mut stage).await;
    let nodes: Vec<_> = stage.nodes.iter().map(|node| node.address).collect();
    let ready = eventually_healed::ready(&nodes, healed, clock).await;
    drive.until(begun + plan.length).await;
    let mut sent = sending.finish().await?;
    narrator.line("  the load is over; waiting for listeners, Postgres and the receiver");
    let by_socket = listening.end_senders().await;
    // Before the audit, which would take the node's readers for its own.
    let seen = looking.seen();
    drop(looking);
    let config = stage.config()?;
    let stored = stored(&config, &stage.tenant.conversations).await?;
    let incomplete = eventually_healed::complete(&listening, &stored.heads, clock).await;
    sent.ledger.absorb(by_socket.ledger.clone());
    let audit = finally_audit::audit(&mut sent.ledger, &stored);
    let findings = verify(&config, clock).await?;
    let tenant = &stage.tenant;
    let delivered =
        delivered(&stage.receiver, tenant.channel, (&sent.ledger, &stored), clock).await;
    let of_notes = |(_, notes): &(_, _)| {
        let noted = lock(notes);
        noted.faults.iter().map(|fault| format!("{}: {fault}", noted.by)).collect::<Vec<_>>()
    };
    let found = Found {
        listener_faults: listening.notes.iter().flat_map(of_notes).collect(),
        reconnects: listening.notes.iter().map(|(_, notes)| lock(notes).reconnects).sum(),
        unheard: listening.longest_silence(),
        during: during(&stage, &listening, (broke, healed)),
        sent,
        by_socket,
        seen,
        ready,
        incomplete,
        audit,
        findings,
        delivered,
        failed,
        undrained: Vec::new(),
    };
    drop(listening);
    let undrained = stage.strike().await?;
    Ok(Found { undrained, ..found })
}

fn during(stage: &Stage, listening: &Listening, (from, to): (Instant, Instant)) -> During {
    let receipts = stage.receiver.received(HOOK);
    let hooks = receipts.iter().filter(|receipt| (from..to).contains(&receipt.at)).count();
    During { live: listening.count_between(from, to), hooks: hooks as u64 }
}

/// What a plan's steps are performed on, and told to.
struct Drive<'a> {
    sending: &'a Sending,
    looking: &'a Looking,
    narrator: &'a Narrator,
    begun: Instant,
}

impl Drive<'_> {
    /// Performs every step at its time; gives when the first was and when the last was done, and what failed.
    async fn perform(&self, plan: &Plan, stage: &mut Stage) -> (Instant, Instant, Vec<String>) {
        let clock = stage.clock.clone();
        let (mut aftermath, mut failed) = (Aftermath::default(), Vec::new());
        let (mut broke, mut healed) = (None, self.begun);
        for Step { at, act } in &plan.steps {
            self.until(self.begun + *at).await;
            if broke.is_none() {
                broke = Some(clock.now());
                self.sending.enter_phase(1);
                self.looking.enter_phase(1);
            }
            self.narrator.line(&format!("  {:>5.1} s  {act}", at.as_secs_f64()));
            if let Err(error) = perform(stage, *act, &mut aftermath).await {
                failed.push(format!("{act}: {error:#}"));
            }
            healed = clock.now();
        }
        self.sending.enter_phase(2);
        self.looking.enter_phase(2);
        (broke.unwrap_or(healed), healed, failed)
    }

    async fn until(&self, at: Instant) {
        sleep_until(at.into()).await;
    }
}
