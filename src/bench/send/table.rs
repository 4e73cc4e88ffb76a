//! Pure: what `bench load` found, as tables for people.
//! Promises that each load stands beside the variant's own maximum, and each aim beside what was found.
//! Does not print; the command does.

use super::offered::{Measured, Report, Step, Way};
use crate::bench::report::{
    audit_line, cost_of_thousand, grouped, machine_line, megabytes, met, plain, plain_table,
};
use crate::load::tally::precise;
use crate::load::{Round, SHED};

/// Aim: at three times the maximum so much of the maximum is still acknowledged.
const KEPT_AIM: f64 = 0.9;

/// The load at which the aim is looked at, in per cent of the maximum.
const OVERLOAD_PERCENT: u32 = 300;

/// Aim: a refusal takes at most this long (p99), in milliseconds: less than a client's patience by far.
const REFUSAL_MS_AIM: f64 = 250.0;

/// Aim: the server's memory grows by at most so much from the lowest to the highest load, in bytes.
const GROWTH_AIM: u64 = 150_000_000;

/// The whole report, in Markdown that also reads well on a terminal.
pub fn of_load(report: &Report) -> String {
    let options = &report.options;
    let mut lines = vec![
        machine_line(&report.machine),
        format!(
            "steps of {:.1} s after {:.1} s of warm-up, {} connections ({} for the maximum), bodies of {} bytes, {} conversations; a send that \
             finds no free connection within {} ms is not made",
            options.round.as_secs_f64(),
            options.warmup.as_secs_f64(),
            options.connections,
            options.maximum_connections,
            options.body_bytes,
            options.conversations,
            options.patience.as_millis(),
        ),
    ];
    for measured in &report.ways {
        let quota =
            measured.quota.map_or_else(String::new, |q| format!(" of {}/s", grouped(q.into())));
        let maxima: Vec<String> = measured.maxima.iter().map(|m| plain(*m)).collect();
        lines.push(format!(
            "\n{}{quota}; maximum before and after: {} acks/s\n{}",
            measured.label,
            maxima.join(", "),
            table_of(measured)
        ));
    }
    lines.push(String::new());
    lines.extend(report.ways.iter().filter_map(judged));
    lines.extend(report.audit.as_ref().map(audit_line));
    lines.join("\n")
}

fn table_of(measured: &Measured) -> comfy_table::Table {
    let mut table = plain_table(&[
        "offered",
        "sends/s",
        "acks/s",
        "of the maximum",
        "p50 ms",
        "p99 ms",
        "refused",
        "p99 of a refusal ms",
        "not made",
        "CPU s / 1 000: server, nats, postgres",
        "server MB",
    ]);
    for step in &measured.steps {
        let Step { percent, offered_per_second, round, taken } = step;
        table.add_row([
            format!("{percent} %"),
            plain(*offered_per_second),
            plain(round.per_second),
            format!("{:.2}", round.per_second / measured.maximum().max(1.0)),
            plain(round.p50_ms),
            plain(round.p99_ms),
            share(refused(round), round),
            if refused(round) > 0 { plain(round.refusal_p99_ms) } else { String::new() },
            share(shed(round), round),
            taken.as_ref().map_or_else(String::new, |taken| cost_of_thousand(&taken.cost)),
            taken.as_ref().map_or_else(String::new, |taken| megabytes(&taken.cost)),
        ]);
    }
    table
}

fn shed(round: &Round) -> u64 {
    round.refused.get(SHED).copied().unwrap_or(0)
}

/// What the server refused or did not answer.
fn refused(round: &Round) -> u64 {
    round.errors() - shed(round)
}

fn share(part: u64, round: &Round) -> String {
    let whole = round.acknowledged + round.errors();
    if part == 0 {
        return "0".to_owned();
    }
    format!("{:.1} %", 100.0 * precise(part) / precise(whole.max(1)))
}

/// The aims of Forebay under overload, in a line; `None` for a reference or without such a load.
fn judged(measured: &Measured) -> Option<String> {
    if !matches!(measured.way, Way::Forebay | Way::WithQuota) {
        return None;
    }
    let step = measured.steps.iter().find(|step| step.percent >= OVERLOAD_PERCENT)?;
    let base = measured.quota.map_or_else(|| measured.maximum(), f64::from);
    let kept = step.round.per_second / base.max(1.0);
    let of = if measured.quota.is_some() { "quota" } else { "maximum" };
    let memory =
        |step: &Step| step.taken.and_then(|taken| taken.cost.server_rss_bytes).unwrap_or(0);
    let highest = measured.steps.iter().map(memory).max().unwrap_or(0);
    let grown = highest.saturating_sub(measured.steps.first().map_or(0, memory));
    let mut parts = vec![format!(
        "{:.2} of the {of} acknowledged (aim {KEPT_AIM}: {})",
        kept,
        met(kept >= KEPT_AIM)
    )];
    if refused(&step.round) > 0 {
        let took = step.round.refusal_p99_ms;
        parts.push(format!(
            "p99 of a refusal {} ms (aim {REFUSAL_MS_AIM}: {})",
            plain(took),
            met(took <= REFUSAL_MS_AIM)
        ));
    }
    parts.push(format!(
        "memory grew by {} MB from the lowest load to the highest (aim {}: {})",
        grown / 1_000_000,
        GROWTH_AIM / 1_000_000,
        met(grown <= GROWTH_AIM)
    ));
    Some(format!("{} at {} %: {}", measured.label, step.percent, parts.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::machine::Cost;
    use crate::bench::send::Taken;

    fn measured(quota: Option<u32>, acknowledged_per_second: f64) -> Measured {
        let round = Round {
            acknowledged: 900,
            per_second: acknowledged_per_second,
            refused: [("429".to_owned(), 90), (SHED.to_owned(), 10)].into(),
            refusal_p99_ms: 3.0,
            ..Round::default()
        };
        let taken = |rss| {
            let cost = Cost { server_rss_bytes: Some(rss), ..Cost::default() };
            Some(Taken { cost, ..Taken::default() })
        };
        let step = |percent, rss| Step {
            percent,
            offered_per_second: 10.0,
            round: round.clone(),
            taken: taken(rss),
        };
        Measured {
            way: Way::Forebay,
            label: "forebay",
            quota,
            maxima: vec![900.0, 1_100.0],
            steps: vec![step(10, 1_000_000), step(300, 5_000_000)],
        }
    }

    #[test]
    fn overload_is_judged_by_the_maximum_or_by_the_quota() {
        let by_maximum = judged(&measured(None, 850.0)).unwrap();
        assert!(by_maximum.contains("0.85 of the maximum acknowledged (aim 0.9: missed)"));
        let by_quota = judged(&measured(Some(900), 850.0)).unwrap();
        assert!(by_quota.contains("0.94 of the quota acknowledged (aim 0.9: met)"), "{by_quota}");
        assert!(by_quota.contains("memory grew by 4 MB"), "{by_quota}");
        assert_eq!(judged(&Measured { way: Way::Direct, ..measured(None, 1.0) }), None);
    }

    #[test]
    fn what_was_not_made_is_no_refusal() {
        let step = &measured(None, 1.0).steps[0];
        assert_eq!((refused(&step.round), shed(&step.round)), (90, 10));
        assert_eq!(share(10, &step.round), "1.0 %");
    }
}
