//! `bench start`: how long a server takes from its start until it is ready, and what it has in memory then.
//! Promises that each case says what the log held and what the server could begin from.
//! Does not start servers; it is told how long each took.

use std::time::Duration;

use serde::Serialize;

use super::Place;
use crate::bench::Error;
use crate::bench::machine::{Machine, Usage};
use crate::bench::report::{grouped, machine_line, plain, plain_table};
use crate::load::Spread;
use crate::load::tally::millis;

/// How long a server is left alone before its memory is read.
const SETTLE: Duration = Duration::from_secs(1);

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// On what.
    pub machine: Machine,
    /// Events in the log of the cases that have any.
    pub events: u64,
    /// The cases.
    pub cases: Vec<Case>,
    /// Reading the same log to its end, all partitions at once, without looking into a record: milliseconds.
    pub read_back_ms: Vec<f64>,
}

/// One way of starting.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Case {
    /// What the log held, and what there was to begin from.
    pub what: String,
    /// The starts.
    pub starts: Vec<Started>,
}

/// One start.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Started {
    /// From the start of the process to the first 200 of `/readyz`, in milliseconds.
    pub ready_ms: f64,
    /// Processor time of the process until a second later, in seconds.
    pub cpu_seconds: Option<f64>,
    /// Its resident memory then, in bytes.
    pub rss_bytes: Option<u64>,
}

impl Started {
    /// Looks at a server that was ready after so long.
    pub async fn look(pid: u32, ready_after: Duration) -> Self {
        tokio::time::sleep(SETTLE).await;
        let usage = Usage::of(pid);
        Self {
            ready_ms: millis(ready_after),
            cpu_seconds: usage.map(|usage| usage.cpu.as_secs_f64()),
            rss_bytes: usage.map(|usage| usage.rss_bytes),
        }
    }
}

/// Reads the log to its end and forgets what was read; milliseconds.
///
/// # Errors
/// When the log cannot be read.
pub async fn read_back(place: &Place) -> Result<f64, Error> {
    let begun = place.clock.now();
    let each = place.partitions.all().map(|partition| async move {
        let bounds = place.log.bounds(partition).await?;
        let mut follow = place.log.follow(partition, bounds.first.max(1) - 1);
        while follow.position() < bounds.last {
            follow.next_known().await?;
        }
        Ok(())
    });
    let read = futures_util::future::try_join_all(each).await;
    read.map_err(Error::Log)?;
    Ok(millis(place.clock.now().saturating_duration_since(begun)))
}

/// The whole report, in Markdown that also reads well on a terminal.
pub fn of_start(report: &Report) -> String {
    let mut table = plain_table(&[
        "a start with",
        "ready after ms: median (lowest - highest)",
        "CPU s until a second later",
        "memory MB",
    ]);
    let spread = |figure: Option<Spread>| {
        figure.map_or_else(String::new, |s| {
            format!("{} ({} - {})", plain(s.median), plain(s.low), plain(s.high))
        })
    };
    let median = |figure: Option<Spread>| figure.map_or_else(String::new, |s| plain(s.median));
    for case in &report.cases {
        let starts = case.starts.iter();
        let megabytes = starts.clone().filter_map(|s| s.rss_bytes).max().map(|b| b / 1_000_000);
        table.add_row([
            case.what.clone(),
            spread(Spread::over(starts.clone().map(|s| s.ready_ms))),
            median(Spread::over(starts.filter_map(|s| s.cpu_seconds))),
            megabytes.map_or_else(String::new, grouped),
        ]);
    }
    let read = Spread::over(report.read_back_ms.iter().copied());
    table.add_row([
        format!("reference: reading {} events back, undecoded", grouped(report.events)),
        spread(read),
        String::new(),
        String::new(),
    ]);
    format!("{}\n\n{table}", machine_line(&report.machine))
}
