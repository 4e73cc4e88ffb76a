//! Pure: what a benchmark found, as a table for people and as JSON.
//! Promises that no figure stands alone: each row has the spread over its rounds and its ratio to the references.
//! Does not print; the command does.

pub mod plot;

use std::collections::BTreeMap;

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};

use super::append;
use super::lineup::Variant;
use super::machine::{Cost, Machine};
use super::send::{Measured, Report, Taken};
use crate::load::{Audit, Round, Spread};

/// The whole report, in Markdown that also reads well on a terminal.
pub fn of_send(report: &Report) -> String {
    let options = &report.options;
    let mut lines = vec![
        machine_line(&report.machine),
        format!(
            "{} rounds of {:.1} s each, {:.1} s warm-up, bodies of {} bytes, {} conversations; \
             median (lowest - highest)",
            options.rounds,
            options.round.as_secs_f64(),
            options.warmup.as_secs_f64(),
            options.body_bytes,
            options.conversations,
        ),
    ];
    for connections in &options.connections {
        let at = report.measured.iter();
        let block: Vec<&Measured> = at.filter(|m| m.connections == *connections).collect();
        lines.push(format!("\n{connections} connections\n{}\n", table_of(&block)));
        lines.extend(block.into_iter().filter_map(taken_line));
    }
    if let Some(bytes) = report.server_rss_bytes {
        let (sends, megabytes) = (grouped(report.acknowledged), bytes / 1_000_000);
        lines.push(format!("server memory after {sends} acknowledged sends: {megabytes} MB"));
    }
    lines.extend(report.audit.as_ref().map(audit_line));
    lines.join("\n")
}

fn table_of(block: &[&Measured]) -> Table {
    let figure = |variant: Variant| block.iter().find(|m| m.variant == variant);
    let direct = figure(Variant::Direct);
    let (raw_http, raw) = (figure(Variant::RecordsHttp), figure(Variant::Records));
    let mut table = plain_table(&[
        "variant",
        "acks/s",
        "p50 ms",
        "p99 ms",
        "max ms",
        "errors",
        "x direct",
        "p99 / direct's",
        "x raw over HTTP",
        "x raw",
    ]);
    for measured in block {
        let over = |of: fn(&Round) -> f64| Spread::over(measured.rounds.iter().map(of));
        let errors: u64 = measured.rounds.iter().map(Round::errors).sum();
        table.add_row([
            measured.variant.label().to_owned(),
            spread(over(|round| round.per_second)),
            spread(over(|round| round.p50_ms)),
            spread(over(|round| round.p99_ms)),
            over(|round| round.max_ms).map_or_else(String::new, |s| plain(s.high)),
            grouped(errors),
            ratio(measured, direct, |round| round.per_second),
            ratio(measured, direct, |round| round.p99_ms),
            ratio(measured, raw_http, |round| round.per_second),
            ratio(measured, raw, |round| round.per_second),
        ]);
    }
    table
}

pub(super) fn plain_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(header.to_vec());
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Median against median.
fn ratio(of: &Measured, to: Option<&&Measured>, figure: fn(&Round) -> f64) -> String {
    let median = |m: &Measured| Spread::over(m.rounds.iter().map(figure)).map(|s| s.median);
    match (median(of), to.and_then(|to| median(to))) {
        (Some(of), Some(to)) if to > 0.0 => format!("{:.2}", of / to),
        (Some(_) | None, _) => String::new(),
    }
}

/// What Forebay's processes took, in one line; `None` when nothing of it is known.
fn taken_line(measured: &Measured) -> Option<String> {
    let over = |of: fn(&Taken) -> Option<f64>| Spread::over(measured.taken.iter().filter_map(of));
    let parts = [
        ("cpu s a round: server", over(|t| t.cost.server_cpu_seconds)),
        ("nats", over(|t| t.cost.nats_cpu_seconds)),
        ("postgres", over(|t| t.cost.postgres_cpu_seconds)),
        ("projected rows/s under load", over(|t| t.projected_per_second)),
        ("rows/s catching up", over(|t| t.caught_up_per_second)),
    ];
    let told = parts.into_iter().filter_map(|(name, figure)| {
        figure.map(|figure| format!("{name} {}", spread(Some(figure))))
    });
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| format!("{}: {}", measured.variant.label(), told.join("; ")))
}

/// The report of `bench append`.
pub fn of_append(report: &append::Report) -> String {
    let mut table = plain_table(&[
        "nodes",
        "events/s",
        "p50 ms",
        "p99 ms",
        "max ms",
        "conflicts %",
        "shares %",
        "errors",
    ]);
    for measured in &report.measured {
        let over =
            |of: fn(&append::NodesRound) -> f64| Spread::over(measured.rounds.iter().map(of));
        let errors: u64 = measured.rounds.iter().map(|r| r.round.errors()).sum();
        table.add_row([
            measured.nodes.to_string(),
            spread(over(|r| r.round.per_second)),
            spread(over(|r| r.round.p50_ms)),
            spread(over(|r| r.round.p99_ms)),
            over(|r| r.round.max_ms).map_or_else(String::new, |s| plain(s.high)),
            spread(Spread::over(measured.rounds.iter().filter_map(|r| r.conflicts_percent))),
            shares(&measured.rounds),
            grouped(errors),
        ]);
    }
    let callers = report.callers;
    let mut lines = vec![
        machine_line(&report.machine),
        format!("{callers} callers, median (lowest - highest)\n{table}\n"),
    ];
    lines.extend(report.audit.as_ref().map(audit_line));
    lines.join("\n")
}

/// Each round's shares, for example `49-51, 50-50`.
fn shares(rounds: &[append::NodesRound]) -> String {
    let of = |round: &append::NodesRound| {
        let shares: Vec<String> = round.shares_percent.iter().map(|s| format!("{s:.0}")).collect();
        shares.join("-")
    };
    rounds.iter().map(of).collect::<Vec<_>>().join(", ")
}

/// One round in one line, for the progress of a run.
pub fn line_of_round(label: &str, connections: u16, nth: usize, round: &Round) -> String {
    let errors = match round.errors() {
        0 => String::new(),
        errors => format!(", {} errors {:?}", grouped(errors), most_frequent(&round.refused)),
    };
    format!(
        "round {nth}: {label}, {connections} connections: {}/s, p50 {} ms, p99 {} ms{errors}",
        plain(round.per_second),
        plain(round.p50_ms),
        plain(round.p99_ms),
    )
}

/// The three reasons that came most often.
pub fn most_frequent(refused: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut all: Vec<_> = refused.iter().collect();
    all.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let first = all.into_iter().take(3);
    first.map(|(reason, count)| (reason.clone(), *count)).collect()
}

pub(super) fn machine_line(machine: &Machine) -> String {
    format!(
        "{} cores, {}, Linux {}; a sync of 4 KiB takes {:.2} ms (p50), {:.2} ms (p99)",
        machine.cores,
        machine.cpu.as_deref().unwrap_or("processor unknown"),
        machine.kernel.as_deref().unwrap_or("unknown"),
        machine.sync_p50_ms,
        machine.sync_p99_ms,
    )
}

/// An audit in one line.
pub fn audit_line(audit: &Audit) -> String {
    let verdict = if audit.is_clean() { "clean" } else { "NOT CLEAN" };
    format!(
        "audit {verdict}: {} acknowledged, {} stored; {} lost, {} duplicated, {} gaps, {} clashes, {} misplaced; \
         {} stored without a receipt, {} not audited",
        grouped(audit.acknowledged),
        grouped(audit.stored),
        audit.lost,
        audit.duplicated,
        audit.gaps,
        audit.clashes,
        audit.misplaced,
        grouped(audit.unacknowledged),
        grouped(audit.left_out),
    )
}

fn spread(figure: Option<Spread>) -> String {
    figure.map_or_else(String::new, |s| {
        format!("{} ({} - {})", plain(s.median), plain(s.low), plain(s.high))
    })
}

/// Three digits for small figures, thousands set apart for large ones.
pub(super) fn plain(figure: f64) -> String {
    match figure {
        small if small < 10.0 => format!("{small:.2}"),
        middle if middle < 100.0 => format!("{middle:.1}"),
        large => grouped_text(&format!("{large:.0}")),
    }
}

/// Processor seconds of 1 000 operations: server, nats-server, Postgres.
pub(super) fn cost_of_thousand(cost: &Cost) -> String {
    let of = |seconds: Option<f64>| seconds.map_or_else(|| "?".to_owned(), |s| format!("{s:.3}"));
    cost.of_thousand().map(of).join(", ")
}

/// The server's memory in MB; empty when it is not known.
pub(super) fn megabytes(cost: &Cost) -> String {
    cost.server_rss_bytes.map_or_else(String::new, |bytes| grouped(bytes / 1_000_000))
}

/// How a table says whether an aim is met.
pub(super) const fn met(is_met: bool) -> &'static str {
    if is_met { "met" } else { "missed" }
}

pub(super) fn grouped(count: u64) -> String {
    grouped_text(&count.to_string())
}

fn grouped_text(digits: &str) -> String {
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_as_long_as_they_are_worth() {
        let texts: Vec<_> = [0.456, 45.67, 456.7, 51_234.9, 1_234_567.0].map(plain).into();
        assert_eq!(texts, ["0.46", "45.7", "457", "51 235", "1 234 567"]);
    }

    #[test]
    fn ratios_are_medians_against_medians_and_empty_without_a_reference() {
        let measured = |variant, figures: &[f64]| Measured {
            variant,
            connections: 1,
            rounds: figures
                .iter()
                .map(|per_second| Round { per_second: *per_second, ..Round::default() })
                .collect(),
            taken: Vec::new(),
        };
        let forebay = measured(Variant::Forebay, &[40.0, 50.0, 90.0]);
        let direct = measured(Variant::Direct, &[10.0, 10.0, 11.0]);
        assert_eq!(ratio(&forebay, Some(&&direct), |r| r.per_second), "5.00");
        assert_eq!(ratio(&forebay, None, |r| r.per_second), "");
        assert_eq!(ratio(&forebay, Some(&&direct), |r| r.p99_ms), "");
    }

    #[test]
    fn the_most_frequent_reasons_are_told() {
        let refused = [("503", 9), ("broken", 1), ("429", 5), ("500", 7)];
        let refused = refused.map(|(reason, count)| (reason.to_owned(), count)).into();
        let told: Vec<_> = most_frequent(&refused).into_keys().collect();
        assert_eq!(told, ["429", "500", "503"]);
    }

    #[test]
    fn an_audit_says_at_once_whether_it_is_clean() {
        assert!(audit_line(&Audit::default()).starts_with("audit clean"));
        let lost = Audit { lost: 1, ..Audit::default() };
        assert!(audit_line(&lost).starts_with("audit NOT CLEAN"));
    }
}
