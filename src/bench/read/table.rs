//! Pure: what `bench read` found, as a table for people.
//! Promises that each figure stands beside the same statement asked of Postgres itself.
//! Does not print; the command does.

use super::{Age, Measured, Report, Who};
use crate::bench::machine::Cost;
use crate::bench::report::{cost_of_thousand, grouped, machine_line, plain, plain_table};
use crate::load::{Round, Spread};

/// The whole report, in Markdown that also reads well on a terminal.
pub fn of_read(report: &Report) -> String {
    let options = &report.options;
    let mut table = plain_table(&[
        "pages",
        "pages/s: median (lowest - highest)",
        "p50 ms",
        "p99 ms",
        "errors",
        "of the SELECT",
        "CPU ms / 1 000 pages: server, nats, postgres",
        "writes/s meanwhile",
        "p99 of a write ms",
    ]);
    for measured in &report.measured {
        let over = |of: fn(&Round) -> f64| Spread::over(measured.rounds.iter().map(of));
        let median = |s: Option<Spread>| s.map_or_else(String::new, |s| plain(s.median));
        let speed = over(|r| r.per_second).map_or_else(String::new, |s| {
            format!("{} ({} - {})", plain(s.median), plain(s.low), plain(s.high))
        });
        let writes = |of: fn(&Round) -> f64| Spread::over(measured.writes.iter().map(of));
        table.add_row([
            label(measured),
            speed,
            median(over(|r| r.p50_ms)),
            median(over(|r| r.p99_ms)),
            grouped(measured.rounds.iter().map(Round::errors).sum()),
            share(report, measured),
            cost_of_thousand(&Cost::sum(&measured.costs)),
            median(writes(|r| r.per_second)),
            median(writes(|r| r.p99_ms)),
        ]);
    }
    format!(
        "{}\n{} rounds of {:.1} s, {} readers, pages of {} messages; writes over {} connections, at most {}/s alone, \
         {}/s beside reads; the SELECT over {} connections without HTTP\n\n{table}",
        machine_line(&report.machine),
        options.rounds,
        options.round.as_secs_f64(),
        options.readers,
        options.limit,
        options.writers,
        plain(report.write_maximum),
        plain(report.write_rate),
        options.connections,
    )
}

/// How a table names what was measured.
pub(super) fn label(measured: &Measured) -> String {
    let age = match measured.age {
        Age::Recent => "recent",
        Age::Old => "old",
    };
    let who = match measured.who {
        Who::Forebay => "forebay",
        Who::Select => "the same SELECT",
    };
    let beside = if measured.beside_writes { ", beside writes" } else { "" };
    format!("{age}, {who}{beside}")
}

/// Median against the median of the reference for the same pages.
fn share(report: &Report, measured: &Measured) -> String {
    let reference = report.measured.iter().find(|other| {
        other.who == Who::Select
            && other.age == measured.age
            && other.beside_writes == measured.beside_writes
    });
    let median = |of: &Measured| Spread::over(of.rounds.iter().map(|r| r.per_second));
    match (median(measured), reference.and_then(median)) {
        (Some(own), Some(other)) if other.median > 0.0 => {
            format!("{:.2}", own.median / other.median)
        }
        (Some(_) | None, _) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_says_what_was_read_from_whom_and_beside_what() {
        let (rounds, costs, writes) = Default::default();
        let measured = Measured {
            age: Age::Old,
            who: Who::Select,
            beside_writes: true,
            rounds,
            costs,
            writes,
        };
        assert_eq!(label(&measured), "old, the same SELECT, beside writes");
    }
}
