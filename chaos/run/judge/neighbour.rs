//! Pure: judges a healthy tenant beside a neighbour in trouble.
//! Promises that a neighbour without trouble is a violation: then nothing was shown.
//! Does not judge the stage; that is judged as everywhere.

use forebay::bench::deliver::{Fault, Latency, Round};

use crate::anytime_checks::Seen;
use crate::run::report::Report;
use crate::scenario::Neighbour;

/// The healthy tenant's 95th percentile beside the neighbour, against its baseline (aim of the product).
const P95_FACTOR_MAX: f64 = 1.1;

/// What of its backlog a neighbour whose channel works must have got rid of in a round, as one of so many parts: its cap lets
/// 500 requests a second through, and a round lasts 10 s at least.
const BURST_PART: usize = 10;

/// Judges what came to the two receivers.
pub(in crate::run) fn judge(neighbour: &Neighbour, rounds: &[Round], report: &mut Report) {
    let sum = |pick: fn(&Latency) -> u64| -> u64 {
        rounds.iter().map(|round| pick(&round.without) + pick(&round.with)).sum()
    };
    let (sent, missing) = (sum(|latency| latency.sent), sum(|latency| latency.missing));
    report.check(
        "the healthy receiver has every message",
        (missing == 0 && sent > 0).into(),
        format!("{missing} of {sent} missing, {} repeats", sum(|latency| latency.repeated)),
    );
    let least = least(neighbour);
    let came: Vec<usize> = rounds.iter().map(|round| round.neighbour_came).collect();
    let is_in_trouble = !came.is_empty() && came.iter().all(|came| *came >= least);
    let told = format!("{came:?} requests in each round, {least} at least");
    report.check("the neighbour is in trouble", is_in_trouble.into(), told);
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

/// Judges what was seen of the node and of reads meanwhile.
pub(in crate::run) fn seen(seen: &Seen, report: &mut Report) {
    super::seen::answers(seen, report);
    super::seen::nodes(1, seen, report);
    let count: u64 = seen.reads.iter().filter_map(|phase| phase.get("200")).sum();
    report.check("pages are read meanwhile", (count > 0).into(), format!("{count} pages"));
}

/// Fewest requests of a neighbour in trouble in a round. One that answers nothing is tried until its breaker opens.
fn least(neighbour: &Neighbour) -> usize {
    match neighbour.fault {
        Fault::Burst => neighbour.backlog / BURST_PART,
        Fault::Dead | Fault::Hung | Fault::Slow | Fault::Flapping | Fault::Many => 1,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay::load::Tally;

    use super::*;
    use crate::run::judge::tests::OPTIONS;

    fn latency(missing: u64, ms: u64) -> Latency {
        let mut tally = Tally::default();
        (0..10).for_each(|_| tally.took(Duration::from_millis(ms)));
        Latency::new(tally, 10, missing, 0)
    }

    fn round(missing: u64, ms: u64, neighbour_came: usize) -> Round {
        let (without, with) = (latency(0, 100), latency(missing, ms));
        let receipts = Vec::new();
        Round { fault: Fault::Dead, without, with, neighbour_share: None, neighbour_came, receipts }
    }

    fn judged(fault: Fault, rounds: &[Round]) -> Report {
        let length = Duration::from_secs(10);
        let neighbour = Neighbour { fault, rounds: 1, length, backlog: 1_000 };
        let mut report = Report::new("dead_channel", OPTIONS);
        judge(&neighbour, rounds, &mut report);
        report
    }

    #[test]
    fn a_message_that_is_missing_is_a_violation_and_a_slow_one_is_told() {
        let judged = |rounds: &[Round]| judged(Fault::Dead, rounds);
        assert!(judged(&[round(0, 109, 9)]).is_good());
        assert!(!judged(&[round(0, 109, 9), round(1, 100, 9)]).is_good());
        assert!(!judged(&[]).is_good());
        assert_eq!(judged(&[round(0, 200, 9)]).is_good(), cfg!(debug_assertions));
    }

    #[test]
    fn a_neighbour_without_trouble_is_a_violation() {
        for (fault, came, wanted) in [
            (Fault::Dead, [1, 9], true),
            (Fault::Dead, [0, 9], false),
            (Fault::Burst, [100, 500], true),
            (Fault::Burst, [500, 99], false),
        ] {
            let rounds = came.map(|came| round(0, 100, came));
            assert_eq!(judged(fault, &rounds).is_good(), wanted, "{fault:?} {came:?}");
        }
    }
}
