//! The test of the test: three builds that break a promise each are run through a scenario, and each must be caught.
//! Promises success only when all three were caught and the sound build passes the same scenario.
//! Does not make the breaks; they are in the server, behind the feature `broken`.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Context as _;
use forebay::clock::Clock;
use tokio::process::Command;

use super::report::{Holds, Report};
use super::run;
use crate::scenario::{Options, Scenario};
use crate::stage::Places;

/// The variable by which a broken build is told what to break.
const CHOICE: &str = "FOREBAY_BROKEN";

/// What each build breaks, and what it is called there.
const BREAKS: [(&str, &str); 3] = [
    ("early_receipt", "a receipt before the log's ack is caught"),
    ("loose_checkpoint", "a checkpoint outside of its rows' transaction is caught"),
    ("passed_hole", "a live watermark that passes a hole is caught"),
];

/// Runs the scenario on the sound build and on each broken one.
pub(crate) async fn self_test(
    scenario: &Scenario,
    options: Options,
    (places, broken): (&Places, Option<&Path>),
    clock: &Clock,
) -> anyhow::Result<(Report, Vec<Report>)> {
    let begun = clock.now();
    let program = match broken {
        Some(program) => program.to_owned(),
        None => build().await?,
    };
    let mut verdict = Report::new("self-test", options.seed);
    let sound = Box::pin(run(scenario, options, places, clock)).await?;
    verdict.check("the sound build passes", sound.is_good().into(), caught(&sound));
    let mut reports = vec![sound];
    for (name, what) in BREAKS {
        crate::say(&format!("self-test: {name}"));
        let extra = vec![(CHOICE.to_owned(), name.to_owned())];
        let places = Places { program: program.clone(), extra, ..places.clone() };
        match Box::pin(run(scenario, options, &places, clock)).await {
            Ok(report) => {
                let is_caught = !report.is_good();
                verdict.check(what, is_caught.into(), caught(&report));
                reports.push(report);
            }
            // A build that cannot be run at all proves nothing.
            Err(error) => verdict.check(what, Holds::No, format!("{error:#}")),
        }
    }
    verdict.seconds = clock.now().saturating_duration_since(begun).as_secs_f64();
    Ok((verdict, reports))
}

/// Which checks found something.
fn caught(report: &Report) -> String {
    let violated =
        report.checks.iter().filter(|check| check.verdict == super::report::Verdict::Violated);
    let told: Vec<String> =
        violated.map(|check| format!("{}: {}", check.name, check.found)).collect();
    if told.is_empty() { "nothing is violated".to_owned() } else { told.join("; ") }
}

/// Builds the broken server, keeps it under another name, and puts the sound one back in its place.
async fn build() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let target = own.parent().and_then(Path::parent).context("the directory of builds")?;
    let built = target.join("debug").join("forebay");
    let kept = target.join("debug").join("forebay-broken");
    cargo(target, &["--features", "broken"]).await?;
    std::fs::copy(&built, &kept).with_context(|| format!("copying {}", built.display()))?;
    cargo(target, &[]).await?;
    Ok(kept)
}

async fn cargo(target: &Path, features: &[&str]) -> anyhow::Result<()> {
    crate::say(&format!("cargo build --bin forebay {}", features.join(" ")));
    let status = Command::new("cargo")
        .args(["build", "--locked", "--bin", "forebay", "--target-dir"])
        .arg(target)
        .args(features)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .status()
        .await
        .context("running cargo")?;
    anyhow::ensure!(status.success(), "cargo ended with {status}");
    Ok(())
}
