//! A healthy tenant beside a neighbour in trouble: measured as `forebay bench deliver` does, then audited.
//! Promises that the healthy tenant's baseline was measured just before, in the same process.
//! Does not make the trouble; the bench room does.

use std::path::PathBuf;

use forebay::bench::deliver::{self, Latency, Options, Round, Target};
use forebay::clock::Clock;
use forebay::load::Narrator;

use super::report::Report;
use crate::finally_audit::verify;
use crate::scenario::{Neighbour, Plan};
use crate::stage::{ADMIN_TOKEN, Places, Stage};

/// Messages of the healthy tenant, a second.
const MESSAGES_PER_SECOND: u32 = 20;

/// How long an attempt may take, so that a dead channel is one for a while (`bench deliver` measures with the same).
pub(crate) const TIMEOUT: (&str, &str) = ("DELIVERY_TIMEOUT_MS", "10000");

/// The healthy tenant's 95th percentile beside the neighbour, against its baseline (aim of the product).
const P95_FACTOR_MAX: f64 = 1.1;

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
    let found = deliver::run(&target, options, narrator, clock).await?;
    judge(&found.rounds, report);
    let findings = verify(&stage.config()?, clock).await?;
    let is_level = findings.is_clean() && findings.records_ahead == 0 && findings.events > 0;
    let told = match findings.differences.first() {
        Some(first) => format!("{first} and {} more", findings.differences.len() - 1),
        None => format!("{} events compared", findings.events),
    };
    report.check("Postgres is what the log says", is_level.into(), told);
    let undrained = stage.strike().await?;
    report.check(
        "nodes end in order when asked",
        undrained.is_empty().into(),
        undrained.join("; "),
    );
    Ok(())
}

fn judge(rounds: &[Round], report: &mut Report) {
    let sum = |pick: fn(&Latency) -> u64| -> u64 {
        rounds.iter().map(|round| pick(&round.without) + pick(&round.with)).sum()
    };
    let (sent, missing) = (sum(|latency| latency.sent), sum(|latency| latency.missing));
    report.check(
        "the healthy receiver has every message",
        (missing == 0 && sent > 0).into(),
        format!("{missing} of {sent} missing, {} repeats", sum(|latency| latency.repeated)),
    );
    // All rounds as if they were one: chance moves the p95 of one by more than the aim allows.
    let p95 = |pick: fn(&Round) -> &Latency| {
        Latency::over(&rounds.iter().map(pick).collect::<Vec<_>>()).p95_ms
    };
    let (without, with) = (p95(|round| &round.without), p95(|round| &round.with));
    report.aim(
        "p95 from ack to receipt, healthy tenant",
        (with <= without * P95_FACTOR_MAX).into(),
        format!("{with:.1} ms beside the neighbour, {without:.1} ms before, at most {P95_FACTOR_MAX} times that"),
    );
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay::bench::deliver::Fault;
    use forebay::load::Tally;

    use super::*;

    fn latency(missing: u64, ms: u64) -> Latency {
        let mut tally = Tally::default();
        (0..10).for_each(|_| tally.took(Duration::from_millis(ms)));
        Latency::new(tally, 10, missing, 0)
    }

    fn round(missing: u64, ms: u64) -> Round {
        let (without, with) = (latency(0, 100), latency(missing, ms));
        Round { fault: Fault::Dead, without, with, neighbour_share: None }
    }

    #[test]
    fn a_message_that_is_missing_is_a_violation_and_a_slow_one_is_told() {
        let judged = |rounds: &[Round]| {
            let mut report = Report::new("dead_channel", 1);
            judge(rounds, &mut report);
            report
        };
        assert!(judged(&[round(0, 109)]).is_good());
        assert!(!judged(&[round(0, 109), round(1, 100)]).is_good());
        assert!(!judged(&[]).is_good());
        assert_eq!(judged(&[round(0, 200)]).is_good(), cfg!(debug_assertions));
    }
}
