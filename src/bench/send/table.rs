//! Pure: what `bench load` found, as tables for people.
//! Promises that each load stands beside the variant's own maximum, and each aim beside what was found.
//! Does not print; the command does.

use super::offered::{Measured, OVERLOAD_PERCENT, Options, Report, Step, Way};
use crate::bench::report::{
    Aimed, audit_line, cost_of_thousand, grouped, machine_line, megabytes, most_frequent, plain,
    plain_table,
};
use crate::load::tally::precise;
use crate::load::{Round, SHED};

/// Aim: at three times the maximum so much of the maximum is still acknowledged.
const KEPT_AIM: f64 = 0.9;

/// Aim: a refusal takes at most this long (p99), in milliseconds: less than a client's patience by far.
const REFUSAL_MS_AIM: f64 = 250.0;

/// Aim: the server's memory is at most so much more at its highest than after the lowest load, in bytes.
const GROWTH_AIM: u64 = 150_000_000;

/// The whole report, in Markdown that also reads well on a terminal.
pub fn of_load(report: &Report) -> String {
    let options = &report.options;
    let mut lines = vec![
        machine_line(&report.machine),
        format!(
            "steps of {:.1} s after {:.1} s of warm-up, {} connections ({} and as many for the maximum), bodies of {} bytes, \
             {} conversations; a send that finds no free connection within {} ms is not made; order by seed {}",
            options.round.as_secs_f64(),
            options.warmup.as_secs_f64(),
            options.connections,
            options.maximum_connections,
            options.body_bytes,
            options.conversations,
            options.patience.as_millis(),
            options.seed,
        ),
    ];
    for measured in &report.ways {
        lines.push(format!("\n{}\n{}", heading(measured, options), table_of(measured)));
    }
    lines.push(String::new());
    lines.extend(report.ways.iter().filter_map(judged));
    lines.extend(report.audit.as_ref().map(audit_line));
    lines.join("\n")
}

fn heading(measured: &Measured, options: &Options) -> String {
    let (label, maximum) = (measured.label, plain(measured.maximum()));
    let way = match (measured.way, measured.quota) {
        (Way::FullQueue, _) => format!(
            " (all to one partition over {} connections, bodies of {} bytes)",
            grouped(measured.way.connections(options).into()),
            options.queue_body_bytes
        ),
        (_, Some(quota)) => format!(" of {}/s", grouped(quota.into())),
        (_, None) => String::new(),
    };
    let found = measured.loops.iter();
    let loops = found.map(|l| format!("{} over {}", plain(l.per_second), l.connections));
    let loops = loops.collect::<Vec<_>>().join(", ");
    format!(
        "{label}{way}; maximum {maximum} acks/s, the highest of closed loops before and after: {loops}"
    )
}

fn table_of(measured: &Measured) -> comfy_table::Table {
    let mut table = plain_table(&[
        "offered",
        "sends/s",
        "acks/s",
        "of the maximum",
        "p50 ms",
        "p99 ms",
        "429",
        "503",
        "other",
        "p99 of a refusal ms",
        "not made",
        "CPU ms / 1 000: server, nats, postgres",
        "server MB at most",
    ]);
    for step in &measured.steps {
        let Step { percent, offered_per_second, round, taken } = step;
        table.add_row([
            format!("{percent} %"),
            plain(*offered_per_second),
            plain(round.per_second),
            format!("{:.2}", round.per_second / measured.maximum().max(1.0)),
            plain(round.p50_ms),
            plain(round.p99_ms),
            share(of(round, "429"), round),
            share(of(round, "503"), round),
            share(other(round), round),
            if refused(round) > 0 { plain(round.refusal_p99_ms) } else { String::new() },
            share(of(round, SHED), round),
            cost_of_thousand(&taken.cost),
            megabytes(&taken.cost),
        ]);
    }
    table
}

fn of(round: &Round, reason: &str) -> u64 {
    round.refused.get(reason).copied().unwrap_or(0)
}

/// What the server refused as it should: by the quota, or because it has no room.
fn refused(round: &Round) -> u64 {
    of(round, "429") + of(round, "503")
}

/// What ended as no send should: broken, unanswered, or refused in another way.
fn other(round: &Round) -> u64 {
    round.errors() - refused(round) - of(round, SHED)
}

/// The first load under which sends to Forebay ended as none should; `None` if there is none.
pub fn broken(ways: &[Measured]) -> Option<String> {
    let ours = ways.iter().filter(|measured| measured.way.is_forebay());
    let mut steps =
        ours.flat_map(|measured| measured.steps.iter().map(move |step| (measured, step)));
    let (measured, step) = steps.find(|(_, step)| other(&step.round) > 0)?;
    let Step { percent, round, .. } = step;
    Some(format!(
        "{} at {percent} %: {} sends were neither acknowledged nor refused with 429 or 503: {:?}, {} unanswered",
        measured.label,
        grouped(other(round)),
        most_frequent(&round.refused),
        round.unfinished,
    ))
}

fn share(part: u64, round: &Round) -> String {
    let whole = round.acknowledged + round.errors();
    if part == 0 {
        return "0".to_owned();
    }
    format!("{:.1} %", 100.0 * precise(part) / precise(whole.max(1)))
}

/// The aims of Forebay under overload, in a line; `None` for a reference or without such a load.
fn judged(measured: &Measured) -> Option<String> {
    if !measured.way.is_forebay() {
        return None;
    }
    let step = measured.steps.iter().find(|step| step.percent >= OVERLOAD_PERCENT)?;
    let base = measured.quota.map_or_else(|| measured.maximum(), f64::from);
    let kept = step.round.per_second / base.max(1.0);
    let of = if measured.quota.is_some() { "quota" } else { "maximum" };
    let mut parts = vec![
        format!(
            "{kept:.2} of the {of} acknowledged (aim {KEPT_AIM}: {})",
            Aimed::at_least(kept, KEPT_AIM)
        ),
        judged_refusals(&step.round),
    ];
    parts.extend(judged_memory(&measured.steps));
    Some(format!("{} at {} %: {}", measured.label, step.percent, parts.join("; ")))
}

/// A load under which nothing was refused says nothing about how long refusals take.
fn judged_refusals(round: &Round) -> String {
    let aim = format!("aim {REFUSAL_MS_AIM} ms");
    if refused(round) == 0 {
        return format!("nothing was refused ({aim}: {})", Aimed::NotShown);
    }
    let took = round.refusal_p99_ms;
    format!("p99 of a refusal {} ms ({aim}: {})", plain(took), Aimed::at_most(took, REFUSAL_MS_AIM))
}

/// How much more memory the server had at most than after the lowest load; `None` with one load, or if it is not known.
fn judged_memory(steps: &[Step]) -> Option<String> {
    let lowest = steps.iter().min_by_key(|step| step.percent)?;
    let before = lowest.taken.cost.server_rss_bytes?;
    let highest = steps.iter().filter_map(|step| step.taken.cost.server_peak_bytes).max()?;
    let grown = highest.saturating_sub(before);
    let verdict = if grown <= GROWTH_AIM { Aimed::Met } else { Aimed::Missed };
    (steps.len() > 1).then(|| {
        format!(
            "memory grew by {} MB at most after the lowest load (aim {} MB: {verdict})",
            grown / 1_000_000,
            GROWTH_AIM / 1_000_000,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::machine::Cost;
    use crate::bench::send::Taken;
    use crate::bench::send::offered::Loop;

    fn measured(way: Way, quota: Option<u32>, acknowledged_per_second: f64) -> Measured {
        let round = Round {
            acknowledged: 900,
            per_second: acknowledged_per_second,
            refused: [("429".to_owned(), 60), ("503".to_owned(), 30), (SHED.to_owned(), 10)].into(),
            refusal_p99_ms: 3.0,
            ..Round::default()
        };
        let taken = |rss, peak| {
            let (server_rss_bytes, server_peak_bytes) = (Some(rss), Some(peak));
            let cost = Cost { server_rss_bytes, server_peak_bytes, ..Cost::default() };
            Taken { cost, ..Taken::default() }
        };
        let step = |percent, taken| {
            let round = round.clone();
            Step { percent, offered_per_second: 10.0, round, taken }
        };
        let found = |connections, per_second| Loop { connections, per_second };
        Measured {
            way,
            label: way.label(),
            quota,
            loops: vec![found(256, 900.0), found(1_000, 1_000.0), found(256, 800.0)],
            steps: vec![
                step(10, taken(1_000_000, 2_000_000)),
                step(300, taken(3_000_000, 5_000_000)),
            ],
        }
    }

    #[test]
    fn overload_is_judged_by_the_highest_maximum_or_by_the_quota() {
        let by_maximum = judged(&measured(Way::Forebay, None, 850.0)).unwrap();
        assert!(by_maximum.contains("0.85 of the maximum acknowledged (aim 0.9: missed)"));
        let by_quota = judged(&measured(Way::WithQuota, Some(900), 850.0)).unwrap();
        assert!(by_quota.contains("0.94 of the quota acknowledged (aim 0.9: met)"), "{by_quota}");
        assert!(by_quota.contains("memory grew by 4 MB"), "by the peak: {by_quota}");
        assert_eq!(judged(&measured(Way::Direct, None, 1.0)), None);
        let mut alone = measured(Way::FullQueue, None, 900.0);
        alone.steps.remove(0);
        let alone = judged(&alone).unwrap();
        assert!(alone.contains("(aim 0.9: met); p99 of a refusal 3.00 ms"), "{alone}");
        assert!(!alone.contains("memory"), "one load shows no growth: {alone}");
    }

    #[test]
    fn refusals_are_judged_only_where_there_are_any() {
        let round = |count, refusal_p99_ms| {
            let refused = [("503".to_owned(), count), (SHED.to_owned(), 5)].into();
            Round { refused, refusal_p99_ms, ..Round::default() }
        };
        for (round, expected) in [
            (round(1, 250.0), "p99 of a refusal 250 ms (aim 250 ms: met)"),
            (round(1, 251.0), "p99 of a refusal 251 ms (aim 250 ms: missed)"),
            (round(0, 0.0), "nothing was refused (aim 250 ms: not shown)"),
        ] {
            assert_eq!(judged_refusals(&round), expected);
        }
    }

    #[test]
    fn what_was_not_made_is_no_refusal_and_what_broke_is_neither() {
        let mut round = measured(Way::Forebay, None, 1.0).steps[0].round.clone();
        assert_eq!((refused(&round), of(&round, SHED), other(&round)), (90, 10, 0));
        assert_eq!(share(10, &round), "1.0 %");
        round.refused.insert("broken".to_owned(), 2);
        round.refused.insert("500".to_owned(), 3);
        round.unfinished = 4;
        assert_eq!((refused(&round), other(&round)), (90, 9));
    }

    #[test]
    fn a_broken_send_to_forebay_is_told_and_one_to_a_reference_is_not_ours() {
        let with = |way: Way, broken: u64| {
            let mut measured = measured(way, None, 1.0);
            measured.steps[1].round.unfinished = broken;
            measured
        };
        for (ways, expected) in [
            (vec![with(Way::Forebay, 0), with(Way::Direct, 7)], None),
            (
                vec![with(Way::Direct, 7), with(Way::WithQuota, 2)],
                Some("forebay, quota at 300 %: 2"),
            ),
        ] {
            let found = broken(&ways);
            assert_eq!(found.is_some(), expected.is_some(), "{found:?}");
            assert!(found.unwrap_or_default().starts_with(expected.unwrap_or_default()));
        }
    }
}
