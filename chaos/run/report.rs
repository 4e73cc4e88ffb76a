//! Pure: what a scenario came to: its checks, its figures, and the seed with which it can be had again.
//! Promises that a run is good only when every check holds.
//! Does not print; `main` does.

use std::collections::BTreeMap;
use std::fmt;

use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde::Serialize;

use crate::scenario::{Options, Pace, Step};

/// Columns of a table of checks; longer cells are wrapped. A terminal of usual width shows it whole.
const TABLE_WIDTH: u16 = 118;

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

/// Whether a scenario, or several, came out as they should. The later ones weigh more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Outcome {
    /// Everything holds.
    Good,
    /// It could not be run, or not to its end: nothing is proven.
    Failed,
    /// Something that must hold does not.
    Violated,
}

impl Outcome {
    /// Of all of them; nothing proves nothing.
    pub(crate) fn over(reports: &[Report]) -> Self {
        reports.iter().map(|report| report.outcome).max().unwrap_or(Self::Failed)
    }

    /// The exit code of the process.
    pub(crate) const fn exit_code(self) -> u8 {
        match self {
            Self::Good => 0,
            Self::Failed => 1,
            Self::Violated => 5,
        }
    }
}

/// Something that was planned.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Planned {
    /// When, from the begin of the load.
    pub(crate) at_seconds: f64,
    /// What.
    pub(crate) act: String,
}

/// What a scenario came to.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    /// Which.
    pub(crate) scenario: &'static str,
    /// With this seed.
    pub(crate) seed: u64,
    /// Sends a second that were asked for.
    pub(crate) rate: u32,
    /// How long a storm was to last.
    pub(crate) storm_seconds: u64,
    /// How much time it was given.
    pub(crate) pace: Pace,
    /// The plan's steps.
    pub(crate) steps: Vec<Planned>,
    /// How long it took in all.
    pub(crate) seconds: f64,
    /// Whether it is as it should be.
    pub(crate) outcome: Outcome,
    /// Why it could not be run, if it could not.
    pub(crate) failed: Option<String>,
    /// Before, during and after the fault.
    pub(crate) phases: Vec<Phase>,
    /// Everything that was checked.
    pub(crate) checks: Vec<Check>,
}

impl Report {
    /// Nothing yet.
    pub(crate) const fn new(scenario: &'static str, options: Options) -> Self {
        Self {
            scenario,
            seed: options.seed,
            rate: options.per_second,
            storm_seconds: options.storm.as_secs(),
            pace: options.pace,
            steps: Vec::new(),
            seconds: 0.0,
            outcome: Outcome::Good,
            failed: None,
            phases: Vec::new(),
            checks: Vec::new(),
        }
    }

    /// Notes what was planned.
    pub(crate) fn plan(&mut self, steps: &[Step]) {
        let planned =
            |step: &Step| Planned { at_seconds: step.at.as_secs_f64(), act: step.act.to_string() };
        self.steps = steps.iter().map(planned).collect();
    }

    /// Notes something that must hold.
    pub(crate) fn check(&mut self, name: &'static str, holds: Holds, found: impl Into<String>) {
        let verdict = if holds == Holds::Yes { Verdict::Held } else { Verdict::Violated };
        self.note(Check { name, verdict, found: found.into() });
    }

    /// Notes a figure that is aimed at: latencies of a debug build say nothing.
    pub(crate) fn aim(&mut self, name: &'static str, holds: Holds, found: impl Into<String>) {
        let verdict = match holds {
            Holds::Yes => Verdict::Held,
            Holds::No if cfg!(debug_assertions) => Verdict::Missed,
            Holds::No => Verdict::Violated,
        };
        self.note(Check { name, verdict, found: found.into() });
    }

    fn note(&mut self, check: Check) {
        if check.verdict == Verdict::Violated {
            self.outcome = Outcome::Violated;
        }
        self.checks.push(check);
    }

    /// Notes that it could not be run.
    pub(crate) fn fail(&mut self, why: String) {
        self.outcome = self.outcome.max(Outcome::Failed);
        self.failed = Some(why);
    }

    /// Whether everything holds and was run.
    pub(crate) fn is_good(&self) -> bool {
        self.outcome == Outcome::Good
    }

    /// Whether a check of this name is violated.
    pub(crate) fn violates(&self, name: &str) -> bool {
        let mut violated = self.checks.iter().filter(|check| check.verdict == Verdict::Violated);
        violated.any(|check| check.name == name)
    }

    /// For people.
    pub(crate) fn table(&self) -> String {
        let Self { scenario, seed, seconds, .. } = self;
        if let (Some(why), true) = (&self.failed, self.checks.is_empty()) {
            return format!("{scenario}: seed {seed}, {seconds:.0} s: COULD NOT BE RUN: {why}");
        }
        let phases = if self.phases.is_empty() { String::new() } else { self.figures() + "\n" };
        let mut checks = Table::new();
        checks.load_style(UTF8_BORDERS_ONLY);
        checks.set_content_arrangement(ContentArrangement::Dynamic).set_width(TABLE_WIDTH);
        checks.set_header(["check", "", "found"]);
        for check in &self.checks {
            checks.add_row([check.name, &check.verdict.to_string(), &check.found]);
        }
        let good = match (self.outcome, &self.failed) {
            (Outcome::Good, _) => "all hold".to_owned(),
            (Outcome::Violated, _) => "VIOLATED".to_owned(),
            (Outcome::Failed, why) => {
                format!("COULD NOT BE RUN: {}", why.as_deref().unwrap_or_default())
            }
        };
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
    use std::time::Duration;

    use super::*;
    use crate::scenario::{Act, Deed};

    const OPTIONS: Options =
        Options { seed: 7, storm: Duration::from_mins(1), per_second: 200, pace: Pace::Short };

    #[test]
    fn one_violation_spoils_a_run_and_an_aim_of_a_debug_build_does_not() {
        let mut report = Report::new("db_pause", OPTIONS);
        report.check("good", Holds::Yes, "");
        report.aim("fast", Holds::No, "slow");
        assert_eq!(report.is_good(), cfg!(debug_assertions));
        report.check("bad", Holds::No, "found");
        assert!(!report.is_good());
        assert!(report.violates("bad") && !report.violates("good"));
        let table = report.table();
        assert!(table.contains("seed 7") && table.contains("VIOLATED"), "{table}");
    }

    #[test]
    fn what_could_not_be_run_says_why_and_is_not_good() {
        let mut report = Report::new("clock_jump", OPTIONS);
        report.fail("no clock".to_owned());
        assert!(report.table().contains("no clock") && !report.is_good());
    }

    #[test]
    fn the_exit_code_is_of_the_worst() {
        let of = |outcome| Report { outcome, ..Report::new("db_pause", OPTIONS) };
        let (good, failed) = (of(Outcome::Good), of(Outcome::Failed));
        let violated = of(Outcome::Violated);
        for (reports, wanted) in [
            (vec![good.clone(), good.clone()], 0),
            (vec![good.clone(), failed.clone()], 1),
            (vec![violated.clone(), failed.clone(), good], 5),
            (vec![failed, violated], 5),
            (vec![], 1),
        ] {
            assert_eq!(Outcome::over(&reports).exit_code(), wanted);
        }
    }

    #[test]
    fn a_violation_stays_one_when_the_rest_could_not_be_run() {
        let mut report = Report::new("db_pause", OPTIONS);
        report.check("bad", Holds::No, "found");
        report.fail("gone".to_owned());
        assert_eq!(report.outcome, Outcome::Violated);
    }

    #[test]
    fn what_can_be_had_again_is_in_the_json() {
        let mut report = Report::new("db_pause", OPTIONS);
        let act = Act::Postgres(Deed::Pause);
        report.plan(&[Step { at: Duration::from_millis(1_500), act }]);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["seed"], 7);
        assert_eq!(json["rate"], 200);
        assert_eq!(json["stormSeconds"], 60);
        assert_eq!(json["pace"], "short");
        assert_eq!(json["outcome"], "good");
        assert_eq!(json["steps"][0]["atSeconds"], 1.5);
        assert_eq!(json["steps"][0]["act"], "Postgres: Pause");
    }
}
