//! `forebay bench plot`: charts of reports that were written with `--json`.
//! Promises one SVG for each chart that the reports are enough for.
//! Does not measure and does not draw; the bench room draws.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;

use crate::bench::report::plot::charts;
use crate::cli::say;

/// Arguments of `bench plot`.
#[derive(Args, Clone, Debug)]
pub(in crate::cli) struct Arguments {
    /// Files of `bench all`, `bench load` or `bench growth`
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Where the charts go
    #[arg(long, default_value = "docs/plots")]
    out: PathBuf,
}

/// Reads the reports, writes the charts.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut reports = Vec::new();
    for file in &arguments.files {
        let text = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        let report = serde_json::from_slice(&text);
        reports.push(report.with_context(|| format!("reading {}", file.display()))?);
    }
    let charts = charts(&reports);
    if charts.is_empty() {
        bail!("no report of bench load or bench growth is among them");
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
