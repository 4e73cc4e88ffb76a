//! Pure: what a benchmark found, as a table for people and as JSON.
//! Promises that no figure stands alone: each row has the spread over its rounds and its ratio to the references.
//! Does not print; the command does.

pub mod plot;
mod sends;

use std::collections::BTreeMap;
use std::fmt;

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};

pub use sends::of_send;

use super::append;
use super::machine::{Cost, Machine};
use crate::load::{Audit, Round, Spread};

pub(super) fn plain_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(header.to_vec());
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
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

/// Processor milliseconds of 1 000 operations, which are microseconds of one: server, nats-server, Postgres.
pub(super) fn cost_of_thousand(cost: &Cost) -> String {
    let of = |seconds: Option<f64>| seconds.map_or_else(|| "?".to_owned(), |s| plain(s * 1_000.0));
    cost.of_thousand().map(of).join(", ")
}

/// The most memory that the server had meanwhile, in MB; empty when it is not known.
pub(super) fn megabytes(cost: &Cost) -> String {
    cost.server_peak_bytes.map_or_else(String::new, |bytes| grouped(bytes / 1_000_000))
}

/// What a run says about an aim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aimed {
    Met,
    Missed,
    /// Nothing happened that the aim is about.
    NotShown,
}

impl Aimed {
    pub(super) fn at_least(figure: f64, aim: f64) -> Self {
        if figure >= aim { Self::Met } else { Self::Missed }
    }

    pub(super) fn at_most(figure: f64, aim: f64) -> Self {
        if figure <= aim { Self::Met } else { Self::Missed }
    }

    /// Met by none of what must not be.
    pub(super) fn none(count: u64) -> Self {
        if count == 0 { Self::Met } else { Self::Missed }
    }

    /// Of two aims that belong together.
    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Missed, _) | (_, Self::Missed) => Self::Missed,
            (Self::NotShown, _) | (_, Self::NotShown) => Self::NotShown,
            (Self::Met, Self::Met) => Self::Met,
        }
    }

    /// How a table says it.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "missed",
            Self::NotShown => "not shown",
        }
    }
}

impl fmt::Display for Aimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
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
    fn an_aim_is_met_missed_or_not_shown() {
        use Aimed::{Met, Missed, NotShown};
        assert_eq!([5.0, 4.99, f64::NAN].map(|x| Aimed::at_least(x, 5.0)), [Met, Missed, Missed]);
        assert_eq!([0.5, 0.51, f64::NAN].map(|x| Aimed::at_most(x, 0.5)), [Met, Missed, Missed]);
        assert_eq!([0, 1].map(Aimed::none), [Met, Missed]);
        for (one, other, both) in [
            (Met, Met, Met),
            (Met, Missed, Missed),
            (Met, NotShown, NotShown),
            (Missed, NotShown, Missed),
            (NotShown, NotShown, NotShown),
        ] {
            assert_eq!((one.and(other), other.and(one)), (both, both));
        }
    }

    #[test]
    fn a_cost_has_three_digits_and_says_what_is_not_known() {
        let cost = Cost {
            operations: 2_000,
            server_cpu_seconds: Some(0.000_9),
            postgres_cpu_seconds: Some(0.034),
            ..Cost::default()
        };
        assert_eq!(cost_of_thousand(&cost), "0.45, ?, 17.0");
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
