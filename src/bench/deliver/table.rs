//! Pure: what `bench deliver` found, as tables for people.
//! Promises that each figure stands beside its aim, and that what is missing or repeated is told.
//! Does not print; the command does.

use super::{Fault, Latency, Parked, Rate, Report, Round};
use crate::bench::report::{Aimed, grouped, machine_line, plain_table};

/// Aims of a healthy tenant's p95: against the run without the fault, and in milliseconds.
const RATIO_AIM: f64 = 1.1;
const P95_MS_AIM: f64 = 150.0;

/// Aims of parking, in seconds a delivery: 10 000 in half a second, 100 000 in five.
const PARK_S_AIM: f64 = 0.5 / 10_000.0;

/// Aim of the router alone, in deliveries a second.
const ROUTER_AIM: u32 = 20_000;

/// Aim of throughput against the plain client.
const SHARE_AIM: f64 = 0.5;

/// The whole report, in Markdown that also reads well on a terminal.
pub fn of_deliver(report: &Report) -> String {
    let mut lines = vec![machine_line(&report.machine)];
    let mut table = plain_table(&[
        "neighbour",
        "without: p50/p95/p99 ms",
        "with: p50/p95/p99 ms",
        "p95 ratio",
        "aim <= 1.1 and 150 ms",
        "missing",
        "repeated",
        "neighbour's share of its cap",
    ]);
    for fault in &report.options.faults {
        let rounds: Vec<_> = report.rounds.iter().filter(|round| round.fault == *fault).collect();
        for round in &rounds {
            let mut row = row_of(round);
            if rounds.len() == 1 {
                row[VERDICT] = judged(round).to_string();
            }
            table.add_row(row);
        }
        if rounds.len() > 1 {
            let all = all_of(*fault, &rounds);
            let mut row = row_of(&all);
            row[0].push_str(", all rounds");
            row[VERDICT] = judged(&all).to_string();
            table.add_row(row);
        }
    }
    lines.push(format!("\n{table}"));
    let mut table = plain_table(&[
        "parked",
        "until all are parked",
        "aim",
        "released in",
        "missing",
        "repeated",
        "out of order",
    ]);
    for parked in &report.parked {
        table.add_row(row_of_parked(parked));
    }
    lines.push(format!("\n{table}"));
    lines.push(format!("\n{}", of_throughput(report)));
    lines.join("\n")
}

fn of_throughput(report: &Report) -> impl std::fmt::Display + use<> {
    let ceiling = report.rates.last().map_or(0.0, |rate| rate.per_second);
    let mut table = plain_table(&[
        "throughput",
        "deliveries/s",
        "of the plain client",
        "aim",
        "server CPU each",
    ]);
    for rate in &report.rates {
        let share = rate.per_second / ceiling.max(0.001);
        let aim = rate.cpu_us.map_or_else(String::new, |_| {
            format!(">= {SHARE_AIM}: {}", Aimed::at_least(share, SHARE_AIM))
        });
        table.add_row([
            rate.what.clone(),
            format!("{:.0}", rate.per_second),
            format!("{share:.2}"),
            aim,
            cpu_of(rate),
        ]);
    }
    if let Some(rate) = &report.router {
        let aim = Aimed::at_least(rate.per_second, f64::from(ROUTER_AIM));
        table.add_row([
            rate.what.clone(),
            format!("{:.0}", rate.per_second),
            String::new(),
            format!(">= {}/s: {aim}", grouped(u64::from(ROUTER_AIM))),
            cpu_of(rate),
        ]);
    }
    table
}

fn cpu_of(rate: &Rate) -> String {
    rate.cpu_us.map_or_else(String::new, |us| format!("{us:.0} us"))
}

/// One round in a line, while the benchmark goes on.
pub(super) fn line_of(round: &Round) -> String {
    let mut row = row_of(round);
    row[VERDICT] = judged(round).to_string();
    row.join("  ")
}

/// All rounds as if they were one: 20 of the 400 messages of a round are above its p95, which chance moves by more than the
/// aim allows.
fn all_of(fault: Fault, rounds: &[&Round]) -> Round {
    let shares: Vec<_> = rounds.iter().filter_map(|round| round.neighbour_share).collect();
    #[expect(clippy::cast_precision_loss, reason = "a count of rounds")]
    let mean = shares.iter().sum::<f64>() / (shares.len().max(1)) as f64;
    Round {
        fault,
        without: Latency::over(&rounds.iter().map(|round| &round.without).collect::<Vec<_>>()),
        with: Latency::over(&rounds.iter().map(|round| &round.with).collect::<Vec<_>>()),
        neighbour_share: (!shares.is_empty()).then_some(mean),
        neighbour_came: rounds.iter().map(|round| round.neighbour_came).sum(),
        receipts: Vec::new(),
    }
}

/// The column of the aim, which is empty in the row of a round that is judged together with others.
const VERDICT: usize = 4;

fn ratio(round: &Round) -> f64 {
    round.with.p95_ms / round.without.p95_ms.max(0.001)
}

fn judged(round: &Round) -> Aimed {
    let slow = Aimed::at_most(round.with.p95_ms, P95_MS_AIM);
    Aimed::at_most(ratio(round), RATIO_AIM).and(slow)
}

fn row_of(round: &Round) -> [String; 8] {
    let figures = |latency: &Latency| {
        format!("{:.1} / {:.1} / {:.1}", latency.p50_ms, latency.p95_ms, latency.p99_ms)
    };
    [
        round.fault.name().to_owned(),
        figures(&round.without),
        figures(&round.with),
        format!("{:.2}", ratio(round)),
        String::new(),
        format!("{}", round.with.missing),
        format!("{}", round.with.repeated),
        round.neighbour_share.map_or_else(String::new, |share| format!("{share:.2}")),
    ]
}

fn row_of_parked(parked: &Parked) -> [String; 7] {
    #[expect(clippy::cast_precision_loss, reason = "a count of deliveries")]
    let aim = PARK_S_AIM * parked.deliveries as f64;
    let verdict = Aimed::at_most(parked.park_s, aim);
    [
        grouped(u64::try_from(parked.deliveries).unwrap_or(0)),
        format!("{:.2} s", parked.park_s),
        format!("<= {aim} s: {verdict}"),
        format!("{:.2} s", parked.release_s),
        parked.missing.to_string(),
        parked.repeated.to_string(),
        parked.out_of_order.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aim_is_met_by_both_of_its_halves() {
        let latency = |p95_ms| Latency { p95_ms, ..Latency::default() };
        let row = |without, with| {
            let (without, with) = (latency(without), latency(with));
            let round = Round {
                fault: Fault::Dead,
                without,
                with,
                neighbour_share: None,
                neighbour_came: 0,
                receipts: Vec::new(),
            };
            judged(&round).label()
        };
        assert_eq!(row(10.0, 10.9), "met");
        assert_eq!(row(10.0, 11.1), "missed");
        assert_eq!(row(160.0, 160.0), "missed", "slow without the fault already");
    }
}
