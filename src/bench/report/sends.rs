//! Pure: what `bench send` found, as a table for people, and what it says about the aims.
//! Promises that each row stands beside every reference, and that Forebay is judged with and without its projector.
//! Does not print; the command does.

use std::time::Duration;

use comfy_table::Table;

use super::{Aimed, audit_line, grouped, machine_line, plain, plain_table, spread};
use crate::bench::lineup::Variant;
use crate::bench::send::{Measured, Options, Report, Taken};
use crate::load::{Round, Spread};

/// Connections at which the aims are looked at.
const JUDGED_AT: u16 = 256;

/// Aim: rows a second that a backlog is projected with.
const CATCH_UP_AIM: f64 = 40_000.0;

/// Aim: the server's memory after [`MEMORY_SENDS`] sends with keys, in bytes.
const MEMORY_AIM: u64 = 250_000_000;

/// From so many sends on memory says something about its aim.
const MEMORY_SENDS: u64 = 1_000_000;

/// A figure of Forebay against that of a reference.
struct Comparison {
    reference: Variant,
    figure: fn(&Round) -> f64,
    told: &'static str,
    /// What it says about the aim, and how the aim is told.
    judged: fn(f64) -> (Aimed, &'static str),
}

/// The aims at [`JUDGED_AT`] connections.
const COMPARISONS: [Comparison; 4] = [
    Comparison {
        reference: Variant::Direct,
        figure: |round| round.per_second,
        told: "x direct",
        judged: |ratio| (Aimed::at_least(ratio, 5.0), "at least 5"),
    },
    Comparison {
        reference: Variant::Gathered,
        figure: |round| round.per_second,
        told: "x gathered",
        judged: |ratio| (Aimed::at_least(ratio, 1.0), "at least 1"),
    },
    Comparison {
        reference: Variant::RecordsHttp,
        figure: |round| round.per_second,
        told: "x raw over HTTP",
        judged: |ratio| (Aimed::at_least(ratio, 0.75), "at least 0.75"),
    },
    Comparison {
        reference: Variant::Direct,
        figure: |round| round.p99_ms,
        told: "of direct's p99",
        judged: |ratio| (Aimed::at_most(ratio, 0.5), "at most 0.5"),
    },
];

/// The whole report, in Markdown that also reads well on a terminal.
pub fn of_send(report: &Report) -> String {
    let options = &report.options;
    let mut lines = vec![machine_line(&report.machine), options_line(options)];
    for connections in &options.connections {
        let at = report.measured.iter();
        let block: Vec<&Measured> = at.filter(|m| m.connections == *connections).collect();
        lines.push(format!("\n{connections} connections\n{}\n", table_of(&block)));
        lines.extend(block.iter().filter_map(|measured| taken_line(measured)));
        if *connections == JUDGED_AT {
            lines.push(String::new());
            lines.extend(block.iter().filter_map(|measured| judged(measured, &block)));
        }
    }
    lines.extend(memory_line(report));
    lines.extend(report.audit.as_ref().map(audit_line));
    lines.join("\n")
}

fn options_line(options: &Options) -> String {
    let slowed = if options.sync_delay.is_zero() {
        String::new()
    } else {
        let delay = plain(options.sync_delay.as_secs_f64() * 1_000.0);
        format!("; each sync of Postgres and nats-server takes {delay} ms longer")
    };
    let rounds = match options.rounds {
        1 => "1 round".to_owned(),
        rounds => format!("{rounds} rounds"),
    };
    let seconds = |length: Duration| length.as_secs_f64();
    format!(
        "{rounds} of {:.1} s each, {:.1} s warm-up, bodies of {} bytes, {} conversations; median (lowest - highest); \
         order of the variants by seed {}{slowed}",
        seconds(options.round),
        seconds(options.warmup),
        options.body_bytes,
        options.conversations,
        options.seed,
    )
}

fn table_of(block: &[&Measured]) -> Table {
    let mut table = plain_table(&[
        "variant",
        "acks/s",
        "p50 ms",
        "p99 ms",
        "max ms",
        "errors",
        "x direct",
        "p99 / direct's",
        "x gathered",
        "x raw over HTTP",
        "x raw",
    ]);
    for measured in block {
        let over = |of: fn(&Round) -> f64| Spread::over(measured.rounds.iter().map(of));
        let errors: u64 = measured.rounds.iter().map(Round::errors).sum();
        let told = |variant, figure: fn(&Round) -> f64| {
            let ratio = ratio(measured, reference(block, variant), figure);
            ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"))
        };
        table.add_row([
            measured.variant.label().to_owned(),
            spread(over(|round| round.per_second)),
            spread(over(|round| round.p50_ms)),
            spread(over(|round| round.p99_ms)),
            over(|round| round.max_ms).map_or_else(String::new, |s| plain(s.high)),
            grouped(errors),
            told(Variant::Direct, |round| round.per_second),
            told(Variant::Direct, |round| round.p99_ms),
            told(Variant::Gathered, |round| round.per_second),
            told(Variant::RecordsHttp, |round| round.per_second),
            told(Variant::Records, |round| round.per_second),
        ]);
    }
    table
}

fn reference<'a>(block: &[&'a Measured], variant: Variant) -> Option<&'a Measured> {
    block.iter().copied().find(|measured| measured.variant == variant)
}

/// Median against median.
fn ratio(of: &Measured, to: Option<&Measured>, figure: fn(&Round) -> f64) -> Option<f64> {
    let median = |m: &Measured| Spread::over(m.rounds.iter().map(figure)).map(|s| s.median);
    let (of, to) = (median(of)?, median(to?)?);
    (to > 0.0).then(|| of / to)
}

/// What one of Forebay's rows says about the aims; `None` for a reference, or without one to compare with.
fn judged(measured: &Measured, block: &[&Measured]) -> Option<String> {
    if !measured.variant.is_forebay() {
        return None;
    }
    let compared = COMPARISONS.iter().filter_map(|comparison| {
        let Comparison { reference: variant, figure, told, judged } = comparison;
        let ratio = ratio(measured, reference(block, *variant), *figure)?;
        let (verdict, aim) = judged(ratio);
        Some(format!("{ratio:.2} {told} (aim {aim}: {verdict})"))
    });
    let mut parts: Vec<String> = compared.collect();
    if parts.is_empty() {
        return None;
    }
    let rows = measured.taken.iter().filter_map(|taken| taken.caught_up_per_second);
    if let Some(Spread { median, .. }) = Spread::over(rows) {
        let verdict = Aimed::at_least(median, CATCH_UP_AIM);
        let (rows, aim) = (plain(median), plain(CATCH_UP_AIM));
        parts.push(format!("{rows} rows/s catching up (aim at least {aim}: {verdict})"));
    }
    Some(format!("aims, {}: {}", measured.variant.label(), parts.join("; ")))
}

/// What the processes took, in one line; `None` when nothing of it is known.
fn taken_line(measured: &Measured) -> Option<String> {
    let over = |of: &dyn Fn(&Taken) -> Option<f64>| {
        Spread::over(measured.taken.iter().filter_map(of)).map(|figure| spread(Some(figure)))
    };
    let named = ["server", "nats", "postgres"].into_iter().enumerate();
    let costs = named.filter_map(|(place, name)| {
        let millis = |taken: &Taken| taken.cost.of_thousand()[place].map(|s| s * 1_000.0);
        over(&millis).map(|figure| format!("{name} {figure}"))
    });
    let costs: Vec<String> = costs.collect();
    let rows = [
        ("projected rows/s under load", over(&|taken| taken.projected_per_second)),
        ("rows/s catching up", over(&|taken| taken.caught_up_per_second)),
    ];
    let rows = rows.into_iter().filter_map(|(name, figure)| Some(format!("{name} {}", figure?)));
    let mut parts: Vec<String> = rows.collect();
    if !costs.is_empty() {
        parts.insert(0, format!("CPU ms / 1 000 sends: {}", costs.join(", ")));
    }
    (!parts.is_empty()).then(|| format!("{}: {}", measured.variant.label(), parts.join("; ")))
}

fn memory_line(report: &Report) -> Option<String> {
    let end = report.server_rss_bytes? / 1_000_000;
    let taken = report.measured.iter().flat_map(|measured| &measured.taken);
    let peak = taken.filter_map(|taken| taken.cost.server_peak_bytes).max()?;
    let verdict = match (report.acknowledged >= MEMORY_SENDS, peak <= MEMORY_AIM) {
        (false, _) => Aimed::NotShown,
        (true, true) => Aimed::Met,
        (true, false) => Aimed::Missed,
    };
    Some(format!(
        "server memory after {} acknowledged sends: {end} MB, at most {} MB (aim {} after a million: {verdict})",
        grouped(report.acknowledged),
        peak / 1_000_000,
        MEMORY_AIM / 1_000_000,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::machine::Cost;

    fn measured(variant: Variant, per_second: &[f64]) -> Measured {
        let round = |per_second: &f64| Round {
            per_second: *per_second,
            p99_ms: 10_000.0 / per_second,
            ..Round::default()
        };
        let rounds = per_second.iter().map(round).collect();
        Measured { variant, connections: JUDGED_AT, rounds, taken: Vec::new() }
    }

    #[test]
    fn ratios_are_medians_against_medians_and_absent_without_a_reference() {
        let forebay = measured(Variant::Forebay, &[40.0, 50.0, 90.0]);
        let direct = measured(Variant::Direct, &[10.0, 10.0, 11.0]);
        assert_eq!(ratio(&forebay, Some(&direct), |r| r.per_second), Some(5.0));
        assert_eq!(ratio(&forebay, None, |r| r.per_second), None);
        assert_eq!(ratio(&forebay, Some(&direct), |r| r.max_ms), None);
    }

    #[test]
    fn forebay_is_judged_against_each_reference_with_and_without_its_projector() {
        let direct = measured(Variant::Direct, &[100.0]);
        let gathered = measured(Variant::Gathered, &[500.0]);
        let raw = measured(Variant::RecordsHttp, &[700.0]);
        for (variant, acks, expected) in [
            (Variant::Forebay, 490.0, ["4.90 x direct", "missed", "missed", "missed", "met"]),
            (Variant::ForebayHeld, 500.0, ["5.00 x direct", "met", "met", "missed", "met"]),
            (Variant::ForebayHeld, 530.0, ["5.30 x direct", "met", "met", "met", "met"]),
            (Variant::Forebay, 180.0, ["1.80 x direct", "missed", "missed", "missed", "missed"]),
        ] {
            let forebay = measured(variant, &[acks]);
            let line = judged(&forebay, &[&forebay, &direct, &gathered, &raw]).unwrap();
            let [first, verdicts @ ..] = expected;
            assert!(line.starts_with(&format!("aims, {}: {first}", variant.label())), "{line}");
            let told: Vec<_> =
                line.split("; ").filter_map(|part| part.rsplit(": ").next()).collect();
            assert_eq!(told, verdicts.map(|verdict| format!("{verdict})")), "{line}");
        }
        assert_eq!(judged(&direct, &[&direct, &raw]), None, "a reference has no aim");
        let alone = measured(Variant::Forebay, &[1.0]);
        assert_eq!(judged(&alone, &[&alone]), None, "nothing to compare with");
    }

    #[test]
    fn processor_time_is_told_for_a_thousand_sends() {
        let mut forebay = measured(Variant::Forebay, &[1.0]);
        assert_eq!(taken_line(&forebay), None);
        let cost = |server| Cost {
            operations: 2_000,
            server_cpu_seconds: server,
            nats_cpu_seconds: Some(0.02),
            ..Cost::default()
        };
        let taken = |server| Taken { cost: cost(server), ..Taken::default() };
        forebay.taken = vec![taken(Some(0.05)), taken(Some(0.06)), taken(Some(0.07))];
        let line = taken_line(&forebay).unwrap();
        assert!(line.contains("server 30.0 (25.0 - 35.0), nats 10.0 (10.0 - 10.0)"), "{line}");
        forebay.taken = vec![taken(None)];
        let line = taken_line(&forebay).unwrap();
        assert!(line.contains("1 000 sends: nats"), "a reference's server is not told: {line}");
    }

    #[test]
    fn a_slowed_disk_is_told() {
        let options = |millis| Options {
            connections: vec![JUDGED_AT],
            rounds: 3,
            round: Duration::from_secs(5),
            warmup: Duration::from_secs(1),
            body_bytes: 300,
            conversations: 10,
            variants: Vec::new(),
            sync_delay: Duration::from_millis(millis),
            seed: 7,
        };
        assert!(!options_line(&options(0)).contains("longer"));
        assert!(options_line(&options(2)).ends_with("takes 2.00 ms longer"));
    }
}
