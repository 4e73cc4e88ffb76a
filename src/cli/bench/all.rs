//! `forebay bench all`: every benchmark, one after the other, each as a command of its own; `bench plot`: charts of what they found.
//! Promises one file with all reports, and that a part that fails is named and does not end the others.
//! Does not measure and does not draw; each part is the command that it is named after, and the bench room draws.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::{Map, Value, json};
use tokio::process::Command;

use crate::bench::report::plot::charts;
use crate::cli::sandbox::Scratch;
use crate::cli::say;
use crate::clock::Clock;
use crate::load::Narrator;

/// Arguments of `bench all`.
#[derive(Args, Clone, Debug)]
pub(in crate::cli) struct Arguments {
    /// Minutes instead of an hour: shorter rounds, smaller sizes
    #[arg(long)]
    quick: bool,
    /// Only these parts; each is a command of `bench`
    #[arg(long, value_delimiter = ',')]
    parts: Vec<String>,
    /// Where programs are kept; the data of the run is beside them, and removed at the end
    #[arg(long, default_value = ".forebay")]
    data_dir: PathBuf,
    /// Write all reports to this file
    #[arg(long, value_name = "FILE", value_parser = super::writable)]
    json: PathBuf,
}

/// A part: its command, what it is called with always, and what with `--quick`.
type Part = (&'static str, &'static [&'static str], &'static [&'static str]);

/// In the order in which they run.
const PARTS: [Part; 10] = [
    (
        "send",
        &["--compare", "--hold-projector"],
        &["--rounds", "1", "--seconds", "2", "--connections", "256"],
    ),
    ("append", &[], &["--rounds", "1", "--seconds", "2"]),
    ("load", &[], &["--percents", "25,75,100,300", "--seconds", "1.5"]),
    ("read", &[], &["--events", "200000", "--rounds", "1", "--seconds", "1.5"]),
    (
        "live",
        &[],
        &[
            "--idle",
            "2000",
            "--receivers",
            "300",
            "--messages",
            "60",
            "--pairs",
            "300",
            "--seconds",
            "3",
        ],
    ),
    (
        "deliver",
        &[],
        &[
            "--faults",
            "dead",
            "--rounds",
            "1",
            "--seconds",
            "5",
            "--parked",
            "2000",
            "--deliveries",
            "5000",
        ],
    ),
    ("pool", &["--compare"], &["--seconds", "5"]),
    ("project", &[], &["--rounds", "1", "--events", "100000"]),
    ("start", &[], &["--rounds", "1", "--events", "200000"]),
    ("growth", &[], &["--seconds", "1.5", "--events", "50000"]),
];

/// Runs the parts, and fails at the end if one of them did.
pub(super) async fn run(arguments: &Arguments, clock: &Clock) -> anyhow::Result<()> {
    let known = |name: &String| PARTS.iter().any(|(part, _, _)| part == name);
    if let Some(unknown) = arguments.parts.iter().find(|name| !known(name)) {
        let names = PARTS.map(|(name, _, _)| name).join(", ");
        bail!("there is no part {unknown}; the parts are {names}");
    }
    let chosen =
        |name: &str| arguments.parts.is_empty() || arguments.parts.iter().any(|part| part == name);
    let parts: Vec<_> = PARTS.into_iter().filter(|(name, _, _)| chosen(name)).collect();
    let (narrator, scratch) = (Narrator::on_stderr(), Scratch::new()?);
    let (mut reports, mut failed) = (Map::new(), Vec::new());
    let begun = clock.timestamp().to_string();
    for (nth, part) in parts.iter().enumerate() {
        let (name, _, _) = part;
        narrator.line(&format!("part {} of {}: bench {name}", nth + 1, parts.len()));
        let file = scratch.path.join(format!("{name}.json"));
        match report_of(arguments, part, &file).await {
            Ok(report) => drop(reports.insert((*name).to_owned(), report)),
            Err(error) => {
                narrator.line(&format!("bench {name} failed: {error:#}"));
                failed.push(*name);
            }
        }
        let all =
            json!({"at": begun, "quick": arguments.quick, "failed": failed, "reports": reports});
        let text = serde_json::to_vec_pretty(&all).context("writing the reports as JSON")?;
        // After each part: what is there is there, whatever happens to the next one.
        std::fs::write(&arguments.json, text)
            .with_context(|| format!("writing {}", arguments.json.display()))?;
    }
    narrator.finish();
    if failed.is_empty() {
        return Ok(());
    }
    bail!("{} of {} parts failed: {}", failed.len(), parts.len(), failed.join(", "))
}

/// Runs one part and reads what it wrote.
async fn report_of(
    arguments: &Arguments,
    (name, always, quick): &Part,
    file: &std::path::Path,
) -> anyhow::Result<Value> {
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.args(["bench", name]).args(*always);
    if arguments.quick {
        command.args(*quick);
    }
    command.arg("--data-dir").arg(&arguments.data_dir).arg("--json").arg(file);
    let status = command.stdin(Stdio::null()).kill_on_drop(true).status().await;
    let status = status.context("running it")?;
    if !status.success() {
        bail!("it ended with {status}");
    }
    let text = std::fs::read(file).context("reading its report")?;
    serde_json::from_slice(&text).context("reading its report")
}

/// Arguments of `bench plot`.
#[derive(Args, Clone, Debug)]
pub(in crate::cli) struct PlotArguments {
    /// Files of `bench all`, `bench load` or `bench growth`
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Where the charts go
    #[arg(long, default_value = "docs/plots")]
    out: PathBuf,
}

/// Reads the reports, writes the charts.
pub(super) fn plot(arguments: &PlotArguments) -> anyhow::Result<()> {
    let mut reports = Vec::new();
    for file in &arguments.files {
        let text = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        let report = serde_json::from_slice(&text);
        reports.push(report.with_context(|| format!("{} is no report", file.display()))?);
    }
    let charts = charts(&reports);
    if charts.is_empty() {
        bail!("no report of bench load or bench growth is among them, and charts are of these");
    }
    std::fs::create_dir_all(&arguments.out)
        .with_context(|| format!("making {}", arguments.out.display()))?;
    for chart in charts {
        let path = arguments.out.join(chart.name).with_extension("svg");
        std::fs::write(&path, chart.draw()?)
            .with_context(|| format!("writing {}", path.display()))?;
        say(&format!("wrote {}", path.display()));
    }
    Ok(())
}
