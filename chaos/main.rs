//! Chaos: real processes under load, broken by plan, healed, and audited to the last message.
//! Promises that a run can be had again by its seed, exit code 5 when anything that must hold does not, and 1 when that is
//! not known because something could not be run.
//! Does not test in one process what `tests/it` can.

#![forbid(unsafe_code)]

mod anytime_checks;
mod driver_listeners;
mod driver_sends;
mod eventually_healed;
mod faults;
mod finally_audit;
mod run;
mod scenario;
mod stage;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use forebay::clock::Clock;

use run::report::{Outcome, Report};
use scenario::catalogue::{ALL, SELF_TEST, SHORT};
use scenario::{Options, Pace, Scenario};
use stage::Places;

/// A signal came before the end.
const EXIT_INTERRUPTED: u8 = 130;

/// Words that stand for scenarios, and alone.
const WORDS: [&str; 4] = ["all", "short", "list", "self-test"];

/// Real processes under load, broken by plan.
#[derive(Debug, Parser)]
struct Arguments {
    /// Scenarios by name; `list` names them, `all` runs them all, `short` those that take five minutes together,
    /// `self-test` proves on three broken builds that the checks see what they are for
    #[arg(required = true)]
    scenarios: Vec<String>,
    /// Decides everything that is left to chance; printed always
    #[arg(long)]
    seed: Option<u64>,
    /// Write every report to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// How long a storm lasts: 20 s to a day
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(20..=86_400))]
    seconds: u64,
    /// Sends a second; fewer than one for each conversation would make every silence a long one
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(20..=10_000))]
    rate: u32,
    /// Where programs are kept; data is beside them and removed at the end, the nodes' logs stay in `chaos`
    #[arg(long, default_value = ".forebay")]
    data_dir: PathBuf,
    /// The server; the `forebay` beside this program unless given
    #[arg(long)]
    forebay: Option<PathBuf>,
    /// The server with the feature `broken`, for `self-test`; built unless given
    #[arg(long)]
    broken: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(unless_interrupted(carry_out(&arguments))),
        Err(error) => Err(error.into()),
    };
    match done {
        Ok(Some(outcome)) => ExitCode::from(outcome.exit_code()),
        Ok(None) => {
            say("chaos: interrupted");
            ExitCode::from(EXIT_INTERRUPTED)
        }
        Err(error) => {
            say(&format!("chaos: {error:#}"));
            ExitCode::from(Outcome::Failed.exit_code())
        }
    }
}

/// `None` after an interruption: what is dropped then ends its processes and removes their data.
async fn unless_interrupted<F>(work: F) -> anyhow::Result<Option<Outcome>>
where
    F: Future<Output = anyhow::Result<Outcome>>,
{
    tokio::select! {
        done = work => done.map(Some),
        _ = forebay::lifecycle::signal() => Ok(None),
    }
}

/// Runs what was asked for.
async fn carry_out(arguments: &Arguments) -> anyhow::Result<Outcome> {
    if arguments.scenarios == ["list"] {
        for scenario in ALL {
            print(&format!("{:<22} {}", scenario.name, scenario.about));
        }
        return Ok(Outcome::Good);
    }
    // A file that cannot be written should be told before anything is run.
    arguments.keep(&[])?;
    let clock = Clock::system();
    let seed = arguments.seed.unwrap_or_else(|| clock.timestamp().micros().unsigned_abs());
    let places = arguments.places()?;
    let storm = Duration::from_secs(arguments.seconds);
    let options = Options { seed, storm, per_second: arguments.rate, pace: Pace::Full };
    if arguments.scenarios == ["self-test"] {
        return self_test(arguments, options, &places, &clock).await;
    }
    let (chosen, pace) = arguments.chosen()?;
    let options = Options { pace, ..options };
    let mut reports: Vec<Report> = Vec::new();
    for scenario in chosen {
        let report = Box::pin(run::run(scenario, options, &places, &clock)).await;
        print(&report.table());
        reports.push(report);
        // After each, so that what is known is kept when a later one takes the machine with it.
        arguments.keep(&reports)?;
    }
    for outcome in [Outcome::Violated, Outcome::Failed] {
        let of_it = reports.iter().filter(|report| report.outcome == outcome);
        let names: Vec<_> = of_it.map(|report| report.scenario).collect();
        if !names.is_empty() {
            let what = if outcome == Outcome::Violated { "violated" } else { "could not be run" };
            say(&format!("{what}: {}; seed {seed}", names.join(", ")));
        }
    }
    Ok(Outcome::over(&reports))
}

async fn self_test(
    arguments: &Arguments,
    options: Options,
    places: &Places,
    clock: &Clock,
) -> anyhow::Result<Outcome> {
    let scenario = named(SELF_TEST)?;
    let programs = (places, arguments.broken.as_deref());
    let tested = Box::pin(run::self_test::self_test(scenario, options, programs, clock)).await;
    let (verdict, mut reports) = tested?;
    for report in &reports {
        print(&report.table());
    }
    print(&verdict.table());
    let outcome = verdict.outcome;
    reports.push(verdict);
    arguments.keep(&reports)?;
    Ok(outcome)
}

/// The scenario of this name.
fn named(name: &str) -> anyhow::Result<&'static Scenario> {
    let found = ALL.iter().find(|scenario| scenario.name == name);
    anyhow::ensure!(!WORDS.contains(&name), "`{name}` stands alone");
    found.with_context(|| format!("there is no scenario {name}; `list` names them"))
}

impl Arguments {
    /// Writes the reports to their file.
    fn keep(&self, reports: &[Report]) -> anyhow::Result<()> {
        let Some(file) = &self.json else { return Ok(()) };
        let written = std::fs::write(file, serde_json::to_vec_pretty(reports)?);
        written.with_context(|| format!("writing {}", file.display()))
    }

    fn chosen(&self) -> anyhow::Result<(Vec<&'static Scenario>, Pace)> {
        let names: Vec<&str> = self.scenarios.iter().map(String::as_str).collect();
        let all = |names: &[&str]| -> anyhow::Result<Vec<&'static Scenario>> {
            names.iter().map(|name| named(name)).collect()
        };
        Ok(match &names[..] {
            ["all"] => (ALL.iter().collect(), Pace::Full),
            ["short"] => (all(&SHORT)?, Pace::Short),
            names => (all(names)?, Pace::Full),
        })
    }

    fn places(&self) -> anyhow::Result<Places> {
        let program = match &self.forebay {
            Some(program) => program.clone(),
            None => std::env::current_exe()?.with_file_name("forebay"),
        };
        anyhow::ensure!(program.is_file(), "{} is missing: build it first", program.display());
        Ok(Places { data_dir: self.data_dir.clone(), program, clocks: None, extra: Vec::new() })
    }
}

/// A line for the person at the terminal.
fn say(line: &str) {
    // A closed standard error is no reason to fail.
    drop(writeln!(std::io::stderr(), "{line}"));
}

/// A line of data.
fn print(line: &str) {
    // A reader that has seen enough closes the pipe; that is no failure.
    drop(writeln!(std::io::stdout(), "{line}"));
}
