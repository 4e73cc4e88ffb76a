//! The test of the test: three builds that break a promise each are run through a scenario, and each must be caught.
//! Promises success only when each was caught by the check that is there for it and the sound build passes the same scenario.
//! Does not make the breaks; they are in the server, behind the feature `broken`.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Context as _;
use forebay::clock::Clock;
use tokio::process::Command;

use super::judge::{AUDIT, LEVEL, ORDER};
use super::report::{Report, Verdict};
use super::run;
use crate::scenario::{Options, Scenario};
use crate::stage::Places;

/// The variable by which a broken build is told what to break.
const CHOICE: &str = "FOREBAY_BROKEN";

/// A promise that a build breaks.
struct Break {
    /// What it is called there.
    choice: &'static str,
    /// What is to be proven.
    what: &'static str,
    /// The check that is there for it: another one that fails proves nothing about this promise.
    by: &'static str,
}

/// What each build breaks.
const BREAKS: [Break; 3] = [
    Break { choice: "early_receipt", what: "a receipt before the log's ack is caught", by: AUDIT },
    Break {
        choice: "loose_checkpoint",
        what: "a checkpoint outside of its rows' transaction is caught",
        by: LEVEL,
    },
    Break {
        choice: "passed_hole",
        what: "a live watermark that passes a hole is caught",
        by: ORDER,
    },
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
    let mut verdict = Report::new("self-test", options);
    let sound = Box::pin(run(scenario, options, places, clock)).await;
    verdict.check("the sound build passes", sound.is_good().into(), caught(&sound));
    let mut reports = vec![sound];
    for Break { choice, what, by } in BREAKS {
        crate::say(&format!("self-test: {choice}"));
        let extra = vec![(CHOICE.to_owned(), choice.to_owned())];
        let places = Places { program: program.clone(), extra, ..places.clone() };
        let report = Box::pin(run(scenario, options, &places, clock)).await;
        // A build that cannot be run at all proves nothing.
        let is_caught = report.failed.is_none() && report.violates(by);
        verdict.check(what, is_caught.into(), caught(&report));
        reports.push(report);
    }
    verdict.seconds = clock.now().saturating_duration_since(begun).as_secs_f64();
    Ok((verdict, reports))
}

/// Which checks found something.
fn caught(report: &Report) -> String {
    if let Some(why) = &report.failed {
        return format!("it could not be run: {why}");
    }
    let violated = report.checks.iter().filter(|check| check.verdict == Verdict::Violated);
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
