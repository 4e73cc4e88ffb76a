//! `bench project`: how fast a node writes a backlog to Postgres, beside copying the same rows without a log.
//! Promises that the time ends when every checkpoint is at the end of its partition.
//! Does not start the node; it is called when the node has just been started.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::fill::{Filled, Filling};
use super::{LEVEL_MAX, LOOK, Place, copy};
use crate::bench::Error;
use crate::bench::machine::{Cost, Machine, Meter};
use crate::bench::report::{Aimed, cost_of_thousand, grouped, machine_line, plain, plain_table};
use crate::clock::Clock;
use crate::load::tally::{precise, rate};

/// Aims: rows a second, and of what copying does.
const ROWS_AIM: f64 = 40_000.0;
const SHARE_AIM: f64 = 0.5;

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// On what.
    pub machine: Machine,
    /// Events in the backlog.
    pub events: u64,
    /// Bytes of a message's text.
    pub text_bytes: usize,
    /// How long the log took to take them, in seconds.
    pub filled_s: f64,
    /// The projector, by round.
    pub projected: Vec<Rows>,
    /// The reference, by round.
    pub copied: Vec<Rows>,
}

/// Rows that were written in one round.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rows {
    /// How many.
    pub written: u64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Rows a second.
    pub per_second: f64,
    /// From the start of the process until level, in seconds; nothing for the reference.
    pub since_start_s: Option<f64>,
    /// What it cost.
    pub cost: Cost,
}

impl Report {
    /// A report without figures.
    ///
    /// # Errors
    /// When the machine cannot be looked at.
    pub async fn begin(
        data_dir: &Path,
        (filling, filled): (Filling, &Filled),
        clock: &Clock,
    ) -> Result<Self, Error> {
        Ok(Self {
            machine: Machine::look(data_dir, clock).await?,
            events: filled.events,
            text_bytes: filling.text_bytes,
            filled_s: filled.took.as_secs_f64(),
            projected: Vec::new(),
            copied: Vec::new(),
        })
    }
}

/// Waits until a node that was started so long ago has written the backlog. The rate counts from the first record that is
/// seen to be written, so that it does not contain the start of the node.
///
/// # Errors
/// [`Error::ProjectorBehind`] when it does not end.
pub async fn catch_up(place: &Place, events: u64, ready_after: Duration) -> Result<Rows, Error> {
    let mut conn = place.connect().await?;
    let begun = place.clock.now();
    let mut progress = place.progress(&mut conn).await?;
    let (mut first, mut since) = (progress.projected, begun);
    let mut meter = Meter::start(place.pids);
    while !progress.is_level() {
        if place.clock.now().saturating_duration_since(begun) > LEVEL_MAX {
            return Err(Error::ProjectorBehind);
        }
        tokio::time::sleep(LOOK).await;
        let now = place.progress(&mut conn).await?;
        if first == 0 {
            (first, since) = (now.projected, place.clock.now());
            meter = Meter::start(place.pids);
        }
        progress = now;
    }
    let took = place.clock.now().saturating_duration_since(since);
    let share = precise(progress.records - first) / precise(progress.records.max(1));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
    let rows = (precise(events) * share) as u64;
    let total = place.clock.now().saturating_duration_since(begun) + ready_after;
    Ok(Rows {
        written: rows,
        seconds: took.as_secs_f64(),
        per_second: rate(rows, took),
        since_start_s: Some(total.as_secs_f64()),
        cost: meter.cost(rows),
    })
}

/// Who writes first in a round: by turns, so that neither always meets what the other one leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// The projector.
    Projector,
    /// `COPY`.
    Copy,
}

impl First {
    /// In the nth round.
    pub const fn of_round(nth: u16) -> Self {
        if nth.is_multiple_of(2) { Self::Copy } else { Self::Projector }
    }
}

/// Copies the same rows into a table of its own.
///
/// # Errors
/// When Postgres refuses.
pub async fn copy_rows(place: &Place, filling: Filling) -> Result<Rows, Error> {
    let prepared = copy::prepare(place, filling).await?;
    let meter = Meter::start(place.pids);
    let copy::Copied { rows, took, backends } = prepared.copy(place).await?;
    let cost = meter.cost(rows);
    drop(backends);
    copy::remove(place).await?;
    Ok(Rows {
        written: rows,
        seconds: took.as_secs_f64(),
        per_second: rate(rows, took),
        since_start_s: None,
        cost,
    })
}

/// The whole report, in Markdown that also reads well on a terminal.
pub fn of_project(report: &Report) -> String {
    let mut table = plain_table(&[
        "what",
        "rows",
        "s",
        "rows/s",
        "of copying",
        "since the start of the process, s",
        "CPU ms / 1 000 rows: server, nats, postgres",
    ]);
    let mean = |all: &[Rows]| {
        let count = u64::try_from(all.len()).unwrap_or(1).max(1);
        all.iter().map(|rows| rows.per_second).sum::<f64>() / precise(count)
    };
    let copying = mean(&report.copied).max(1.0);
    let lists = [("the projector", &report.projected), ("COPY of the same rows", &report.copied)];
    for (what, list) in lists {
        for rows in list {
            table.add_row([
                what.to_owned(),
                grouped(rows.written),
                plain(rows.seconds),
                plain(rows.per_second),
                format!("{:.2}", rows.per_second / copying),
                rows.since_start_s.map_or_else(String::new, plain),
                cost_of_thousand(&rows.cost),
            ]);
        }
    }
    let found = mean(&report.projected);
    format!(
        "{}\na backlog of {} events with {} bytes of text each (the log took them in {:.1} s)\n\n{table}\n\n\
         {} rows/s (aim {}: {}), {:.2} of copying (aim {SHARE_AIM}: {})",
        machine_line(&report.machine),
        grouped(report.events),
        report.text_bytes,
        report.filled_s,
        plain(found),
        plain(ROWS_AIM),
        Aimed::at_least(found, ROWS_AIM),
        found / copying,
        Aimed::at_least(found / copying, SHARE_AIM),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_begin_by_turns() {
        let firsts = [1, 2, 3, 4].map(First::of_round);
        assert_eq!(firsts, [First::Projector, First::Copy, First::Projector, First::Copy]);
    }
}
