//! Runs a scenario: sets the stage, drives load and listeners, performs the plan, heals, waits, audits.
//! Promises a report with every check, whatever happened, or with the reason why the scenario could not be run.
//! Does not decide what is a violation; `judge` does, and `load::ledger` what is one of what is stored.

pub(crate) mod judge;
pub(crate) mod neighbour;
pub(crate) mod report;
pub(crate) mod self_test;

use std::time::{Duration, Instant};

use forebay::clock::Clock;
use forebay::load::{Audit, Ledger, Narrator};
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use crate::anytime_checks::reads::Excused;
use crate::anytime_checks::{Looking, Seen, Watched};
use crate::driver_listeners::{Listening, SentBySocket, lock};
use crate::driver_sends::{Sending, Sent};
use crate::eventually_healed::Readied;
use crate::faults::{Aftermath, perform};
use crate::finally_audit::{Delivered, Level, delivered, first_between, level, stored};
use crate::scenario::{Course, Options, Plan, Scenario, Step};
use crate::stage::{HOOK, Places, Stage};
use crate::{eventually_healed, finally_audit};
use report::Report;

/// Why no clock jumps: namespaces of time do not cover the time of day, and setting it takes privileges.
const NO_CLOCKS: &str =
    "libfaketime is not installed, and nothing else moves the clock of one process";

/// How long before the first fault its phase begins: a send that began earlier has its answer, on a busy machine too, before
/// anything is broken.
const LEAD: Duration = Duration::from_secs(1);

/// Everything that a plan's run came to.
pub(crate) struct Found {
    pub(crate) sent: Sent,
    pub(crate) by_socket: SentBySocket,
    pub(crate) seen: Seen,
    /// How long it took after the last heal; `None` for never.
    pub(crate) ready: Option<Duration>,
    pub(crate) heard: Heard,
    pub(crate) stored: Kept,
    pub(crate) during: During,
    pub(crate) driven: Driven,
    /// Nodes that did not end in order when they were asked.
    pub(crate) undrained: Vec<String>,
}

/// What listeners came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    /// What they lack of what is stored.
    pub(crate) incomplete: Vec<String>,
    /// What they have and is not what is stored.
    pub(crate) differing: Vec<String>,
    /// What must not be.
    pub(crate) faults: Vec<String>,
    pub(crate) reconnects: u64,
    /// The longest time in which a conversation's listener heard nothing, from the load's begin to its end.
    pub(crate) silence: Duration,
    /// Conversations of which nothing was heard after the last heal.
    pub(crate) mute: Vec<String>,
}

/// What is stored and delivered in the end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    pub(crate) audit: Audit,
    pub(crate) level: Level,
    pub(crate) delivered: Delivered,
}

/// What went on while the fault lasted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct During {
    /// How long that was under load.
    pub(crate) length: Duration,
    /// Live frames that came to listeners.
    pub(crate) live: u64,
    /// Messages that came to the receiver for the first time.
    pub(crate) hooks: u64,
}

/// What became of the plan.
#[derive(Clone, Debug, Default)]
pub(crate) struct Driven {
    /// Acts that could not be performed.
    pub(crate) failed: Vec<String>,
    /// How it was with readiness after each heal but the last.
    pub(crate) readied: Vec<Readied>,
}

/// Runs a scenario.
pub(crate) async fn run(
    scenario: &Scenario,
    options: Options,
    places: &Places,
    clock: &Clock,
) -> Report {
    let begun = clock.now();
    let narrator = Narrator::on_stderr();
    narrator.line(&format!("{}: {} (seed {})", scenario.name, scenario.about, options.seed));
    let mut report = Report::new(scenario.name, options);
    if let Err(error) = fill(scenario, options, (places, &narrator, clock), &mut report).await {
        crate::say(&format!("chaos: {} (seed {}): {error:#}", scenario.name, options.seed));
        report.fail(format!("{error:#}"));
    }
    narrator.finish();
    report.seconds = clock.now().saturating_duration_since(begun).as_secs_f64();
    report
}

async fn fill(
    scenario: &Scenario,
    options: Options,
    (places, narrator, clock): (&Places, &Narrator, &Clock),
    report: &mut Report,
) -> anyhow::Result<()> {
    let (plan, places) = match (scenario.course)(options) {
        Course::Neighbour(neighbour) => {
            let mut plan = Plan::calm(options, neighbour.length);
            plan.settings = vec![neighbour::TIMEOUT];
            let wanted = (scenario.name, &plan, neighbour);
            return neighbour::run(wanted, places, (narrator, clock), report).await;
        }
        Course::Steps(plan) => (plan, places.clone()),
        Course::Clock(plan) => {
            let clocks = Places::clocks();
            anyhow::ensure!(clocks.is_some(), NO_CLOCKS);
            (plan, Places { clocks, ..places.clone() })
        }
    };
    report.plan(&plan.steps);
    let found = steps(scenario.name, &plan, &places, (narrator, clock)).await?;
    judge::judge(&plan, &found, report);
    Ok(())
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
    let end = begun + plan.length;
    let sending = Sending::start(&stage.doors, &stage.tenant, amount, clock);
    let watched = Watched {
        roll: &stage.roll,
        doors: &stage.doors,
        tenant: &stage.tenant,
        excused: Excused::by(plan),
        until: end,
    };
    let looking = Looking::start(&watched, sending.acknowledged(), clock);
    let drive = Drive { sending: &sending, looking: &looking, narrator, begun };
    let (driven, (broke, healed)) = drive.perform(plan, &mut stage).await;
    let ready = eventually_healed::ready(&stage.addresses(), healed, clock).await;
    drive.until(end).await;
    let mut sent = sending.finish().await?;
    narrator.line("  the load is over; waiting for the receiver, Postgres and listeners");
    let by_socket = listening.end_senders().await;
    // Before the audit, which would take the node's readers for its own.
    let seen = looking.seen();
    drop(looking);
    sent.ledger.absorb(by_socket.ledger.clone());
    let during = during(&stage, &listening, (broke, healed.min(end)));
    let (kept, mut heard) = audited(&stage, &mut sent.ledger, &listening, clock).await?;
    heard.silence = listening.longest_silence(begun, end);
    heard.mute = listening.unheard_since(healed);
    drop(listening);
    let undrained = stage.strike().await?;
    Ok(Found { sent, by_socket, seen, ready, heard, stored: kept, during, driven, undrained })
}

/// Waits for what is on its way, and compares. The log is read last: what anybody still writes to it is in the audit.
async fn audited(
    stage: &Stage,
    ledger: &mut Ledger,
    listening: &Listening,
    clock: &Clock,
) -> anyhow::Result<(Kept, Heard)> {
    let config = stage.config()?;
    let tenant = &stage.tenant;
    // What is lost is not waited for.
    let early = stored(&config, &tenant.conversations).await?;
    let delivered = delivered(&stage.receiver, tenant.channel, (ledger, &early), clock).await;
    let level = level(&config, clock).await?;
    let stored = stored(&config, &tenant.conversations).await?;
    let incomplete = eventually_healed::complete(listening, &stored.heads, clock).await;
    let audit = finally_audit::audit(ledger, &stored);
    let of_notes = |(_, notes): &(_, _)| {
        let noted = lock(notes);
        noted.faults.iter().map(|fault| format!("{}: {fault}", noted.by)).collect::<Vec<_>>()
    };
    let heard = Heard {
        incomplete,
        differing: listening.differing(&stored.places()),
        faults: listening.notes.iter().flat_map(of_notes).collect(),
        reconnects: listening.notes.iter().map(|(_, notes)| lock(notes).reconnects).sum(),
        ..Heard::default()
    };
    Ok((Kept { audit, level, delivered }, heard))
}

fn during(stage: &Stage, listening: &Listening, (from, to): (Instant, Instant)) -> During {
    let receipts = stage.receiver.received(HOOK);
    let arrivals = receipts.iter().map(|receipt| (&*receipt.id, receipt.at));
    During {
        length: to.saturating_duration_since(from),
        live: listening.count_between(from, to),
        hooks: first_between(arrivals, (from, to)),
    }
}

/// What a plan's steps are performed on, and told to.
struct Drive<'a> {
    sending: &'a Sending,
    looking: &'a Looking,
    narrator: &'a Narrator,
    begun: Instant,
}

impl Drive<'_> {
    /// Performs every step at its time; gives what became of it, and from when to when the fault lasted: from shortly before
    /// the first step until the last was done.
    async fn perform(&self, plan: &Plan, stage: &mut Stage) -> (Driven, (Instant, Instant)) {
        let clock = stage.clock.clone();
        let (mut aftermath, mut driven) = (Aftermath::default(), Driven::default());
        let (whole, mut readying) = (plan.whole_after(), JoinSet::new());
        self.until(self.begun + plan.fault().0.saturating_sub(LEAD)).await;
        let broke = clock.now();
        let mut healed = broke;
        self.enter_phase(1);
        for (number, Step { at, act }) in plan.steps.iter().enumerate() {
            self.until(self.begun + *at).await;
            self.narrator.line(&format!("  {:>5.1} s  {act}", at.as_secs_f64()));
            if let Err(error) = perform(stage, *act, &mut aftermath).await {
                driven.failed.push(format!("{act}: {error:#}"));
            }
            healed = clock.now();
            // Beside the plan, which goes on. After the last step everybody waits for it.
            if let (true, Some(next)) = (whole.contains(&number), plan.steps.get(number + 1)) {
                let (nodes, clock) = (stage.addresses(), clock.clone());
                let window = (healed, self.begun + next.at);
                readying
                    .spawn(async move { eventually_healed::readied(&nodes, window, &clock).await });
            }
        }
        self.enter_phase(2);
        driven.readied = readying.join_all().await;
        (driven, (broke, healed))
    }

    fn enter_phase(&self, phase: usize) {
        self.sending.enter_phase(phase);
        self.looking.enter_phase(phase);
    }

    async fn until(&self, at: Instant) {
        sleep_until(at.into()).await;
    }
}
