//! Pure: what a scenario came to: its checks, its figures, and the seed with which it can be had again.
//! Promises that a run is good only when every check holds.
//! Does not print; `main` does.

use std::collections::BTreeMap;
use std::fmt;

use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

/// What became of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Verdict {
    /// It holds.
    Held,
    /// It does not.
    Violated,
    /// A figure that is an aim, and that a debug build cannot be held to, was missed.
    Missed,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Held => "holds",
            Self::Violated => "VIOLATED",
            Self::Missed => "missed (debug build)",
        })
    }
}

/// One thing that must hold.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Check {
    /// What.
    pub(crate) name: &'static str,
    /// Whether it does.
    pub(crate) verdict: Verdict,
    /// What was found.
    pub(crate) found: String,
}

/// The figures of sends before, during or after the fault.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Phase {
    /// Sends that were acknowledged.
    pub(crate) acknowledged: u64,
    /// Half of them took at most so long, in milliseconds.
    pub(crate) p50_ms: f64,
    /// 99 of 100 of them did.
    pub(crate) p99_ms: f64,
    /// Other answers to sends.
    pub(crate) refused: BTreeMap<String, u64>,
    /// Answers to reads by status.
    pub(crate) reads: BTreeMap<String, u64>,
}

/// What a scenario came to.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    /// Which.
    pub(crate) scenario: &'static str,
    /// With this seed.
    pub(crate) seed: u64,
    /// How long it took in all.
    pub(crate) seconds: f64,
    /// Why it was left out, if it was.
    pub(crate) skipped: Option<&'static str>,
    /// Before, during and after the fault.
    pub(crate) phases: Vec<Phase>,
    /// Everything that was checked.
    pub(crate) checks: Vec<Check>,
}

impl Report {
    /// Nothing yet.
    pub(crate) const fn new(scenario: &'static str, seed: u64) -> Self {
        Self { scenario, seed, seconds: 0.0, skipped: None, phases: Vec::new(), checks: Vec::new() }
    }

    /// Notes something that must hold.
    pub(crate) fn check(&mut self, name: &'static str, holds: Holds, found: impl Into<String>) {
        let verdict = if holds == Holds::Yes { Verdict::Held } else { Verdict::Violated };
        self.checks.push(Check { name, verdict, found: found.into() });
    }

    /// Notes a figure that is aimed at: latencies of a debug build say nothing.
    pub(crate) fn aim(&mut self, name: &'static str, holds: Holds, found: impl Into<String>) {
        let verdict = match holds {
            Holds::Yes => Verdict::Held,
            Holds::No if cfg!(debug_assertions) => Verdict::Missed,
            Holds::No => Verdict::Violated,
        };
        self.checks.push(Check { name, verdict, found: found.into() });
    }

    /// Whether nothing is violated.
    pub(crate) fn is_good(&self) -> bool {
        self.checks.iter().all(|check| check.verdict != Verdict::Violated)
    }

    /// For people.
    pub(crate) fn table(&self) -> String {
        let Self { scenario, seed, seconds, .. } = self;
        if let Some(why) = self.skipped {
            return format!("{scenario}: skipped: {why}");
        }
        let phases = if self.phases.is_empty() { String::new() } else { self.figures() + "\n" };
        let mut checks = Table::new();
        checks.load_style(UTF8_BORDERS_ONLY);
        checks.set_header(["check", "", "found"]);
        for check in &self.checks {
            checks.add_row([check.name, &check.verdict.to_string(), &check.found]);
        }
        let good = if self.is_good() { "all hold" } else { "VIOLATED" };
        format!("{scenario}: seed {seed}, {seconds:.0} s\n{phases}{checks}\n{scenario}: {good}")
    }

    fn figures(&self) -> String {
        let mut table = Table::new();
        table.load_style(UTF8_BORDERS_ONLY);
        table.set_header(["sends", "before", "during", "after"]);
        let row = |name: &str, cell: &dyn Fn(&Phase) -> String| {
            std::iter::once(name.to_owned()).chain(self.phases.iter().map(cell)).collect::<Vec<_>>()
        };
        table.add_row(row("acknowledged", &|phase| phase.acknowledged.to_string()));
        table.add_row(row("other answers", &|phase| counts(&phase.refused)));
        table.add_row(row("p50, ms", &|phase| format!("{:.1}", phase.p50_ms)));
        table.add_row(row("p99, ms", &|phase| format!("{:.1}", phase.p99_ms)));
        table.add_row(row("reads", &|phase| counts(&phase.reads)));
        for column in 1..=3 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.to_string()
    }
}

/// Whether something does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// It does.
    Yes,
    /// It does not.
    No,
}

impl From<bool> for Holds {
    fn from(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }
}

fn counts(counts: &BTreeMap<String, u64>) -> String {
    if counts.is_empty() {
        return "none".to_owned();
    }
    let one = |(name, count): (&String, &u64)| format!("{name}: {count}");
    counts.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_violation_spoils_a_run_and_an_aim_of_a_debug_build_does_not() {
        let mut report = Report::new("db_pause", 7);
        report.check("good", Holds::Yes, "");
        report.aim("fast", Holds::No, "slow");
        assert_eq!(report.is_good(), cfg!(debug_assertions));
        report.check("bad", Holds::No, "found");
        assert!(!report.is_good());
        let table = report.table();
        assert!(table.contains("seed 7") && table.contains("VIOLATED"), "{table}");
    }

    #[test]
    fn a_report_without_checks_names_its_reason() {
        let report = Report { skipped: Some("no clock"), ..Report::new("clock_jump", 7) };
        assert!(report.table().contains("no clock") && report.is_good());
    }
}
