//! Pure: what `bench live` found, as tables for people.
//! Promises that each figure stands beside its aim, and that what failed or is missing is told.
//! Does not print; the command does.

use super::{FanOut, Idle, Pairs, Report, Storm};
use crate::bench::report::{Aimed, grouped, machine_line, plain, plain_table};

/// Aims: bytes of an idle connection, p99 of arrivals in p99s of acks, and milliseconds of a storm.
const IDLE_BYTES_AIM: f64 = 12.0 * 1_024.0;
const RATIO_AIM: f64 = 3.0;
const STORM_MS_AIM: f64 = 5_000.0;

/// The whole report, in Markdown that also reads well on a terminal.
pub fn of_live(report: &Report) -> String {
    let mut lines = vec![machine_line(&report.machine)];
    let mut table = plain_table(&["what", "figure", "aim", ""]);
    for row in report.idle.iter().flat_map(idle) {
        table.add_row(row);
    }
    for row in report.fan_out.iter().flat_map(fan_out) {
        table.add_row(row);
    }
    for row in report.pairs.iter().flat_map(pairs) {
        table.add_row(row);
    }
    for row in report.storm.iter().flat_map(storm) {
        table.add_row(row);
    }
    lines.push(format!("\n{table}"));
    lines.join("\n")
}

type Row = [String; 4];

fn row(what: impl Into<String>, figure: impl Into<String>) -> Row {
    [what.into(), figure.into(), "-".to_owned(), String::new()]
}

fn aimed(what: impl Into<String>, figure: impl Into<String>, aim: &str, verdict: Aimed) -> Row {
    [what.into(), figure.into(), aim.to_owned(), verdict.to_string()]
}

fn count(count: usize) -> String {
    grouped(u64::try_from(count).unwrap_or(u64::MAX))
}

fn idle(found: &Idle) -> Vec<Row> {
    let what = format!(
        "{} idle connections, {} conversations: memory of one",
        count(found.connections),
        found.conversations
    );
    let figure = format!("{:.1} KiB", found.bytes_a_connection / 1_024.0);
    let verdict = Aimed::at_most(found.bytes_a_connection, IDLE_BYTES_AIM);
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    vec![
        aimed(what, figure, "<= 12 KiB", verdict),
        row(
            "server before, with them",
            format!("{}, {}", mib(found.rss_before), mib(found.rss_after)),
        ),
        row("all of them joined within", format!("{} ms", plain(found.took_ms))),
    ]
}

fn fan_out(found: &FanOut) -> Vec<Row> {
    let pace = found.messages_per_second.map_or_else(
        || format!("{} messages at once", found.messages),
        |rate| format!("{} messages, {rate}/s", found.messages),
    );
    let what = format!("1 conversation to {}, {pace}", count(found.receivers));
    let mut rows = vec![
        row(format!("{what}: deliveries/s"), format!("{:.0}", found.deliveries_per_second)),
        row(
            "send to receive: p50, p99, longest",
            format!(
                "{}, {}, {} ms",
                plain(found.latency.p50_ms),
                plain(found.latency.p99_ms),
                plain(found.latency.max_ms)
            ),
        ),
    ];
    if found.missing > 0 {
        rows.push(aimed("deliveries missing", grouped(found.missing), "0", Aimed::Missed));
    }
    rows
}

fn pairs(found: &Pairs) -> Vec<Row> {
    let latency = |of: super::Latency| format!("{}, {} ms", plain(of.p50_ms), plain(of.p99_ms));
    let lost = found.sent - found.acknowledged.min(found.delivered).min(found.sent);
    let ratio = format!("{:.2}", found.ratio);
    vec![
        row(
            format!(
                "{} sends in {} conversations of 2: ack p50, p99",
                grouped(found.sent),
                count(found.conversations)
            ),
            latency(found.ack),
        ),
        row("send to receive p50, p99", latency(found.arrival)),
        aimed(
            "p99 of receiving / of the ack",
            ratio,
            "<= 3",
            Aimed::at_most(found.ratio, RATIO_AIM),
        ),
        aimed("sends without ack or arrival", grouped(lost), "0", Aimed::none(lost)),
    ]
}

fn storm(found: &Storm) -> Vec<Row> {
    let what = format!(
        "{} clients back at once, {} events behind: all complete",
        count(found.clients),
        found.missed_each
    );
    let failed = Aimed::none(u64::try_from(found.failed).unwrap_or(u64::MAX));
    let verdict = Aimed::at_most(found.took_ms, STORM_MS_AIM).and(failed);
    let mut rows = vec![
        aimed(what, format!("{} ms", plain(found.took_ms)), "<= 5 s", verdict),
        row(
            "a client p50, p99",
            format!("{}, {} ms", plain(found.latency.p50_ms), plain(found.latency.p99_ms)),
        ),
        aimed("clients failed", count(found.failed), "0", failed),
    ];
    if let Some(acquires) = found.acquires {
        rows.push(aimed(
            "database connections taken",
            grouped(acquires),
            "0",
            Aimed::none(acquires),
        ));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::live::Latency;

    #[test]
    fn an_aim_that_is_missed_says_so_and_so_does_a_failure() {
        let mut found = Storm {
            clients: 2_000,
            complete: 2_000,
            failed: 0,
            missed_each: 5,
            took_ms: 4_999.0,
            latency: Latency::default(),
            acquires: Some(0),
        };
        assert!(storm(&found).iter().all(|row| row[3] != "missed"));
        found.failed = 1;
        assert_eq!(storm(&found)[0][3], "missed");
        found.acquires = Some(3);
        assert_eq!(storm(&found)[3], ["database connections taken", "3", "0", "missed"]);
    }

    #[test]
    fn memory_is_told_for_one_connection() {
        let found = Idle {
            connections: 10_000,
            conversations: 100,
            rss_before: 50 << 20,
            rss_after: 150 << 20,
            bytes_a_connection: 10_485.76,
            took_ms: 1.0,
        };
        assert_eq!(idle(&found)[0][1..], ["10.2 KiB", "<= 12 KiB", "met"]);
    }
}
