//! Pure: what `bench pool` found, as a table for people.
//! Promises that each row accounts for every request, and that the text above it says what the per cents are of.
//! Does not print; the command does.

use super::{Figures, Report};
use crate::bench::report::{grouped, machine_line, most_frequent, plain, plain_table};

/// A load that was further behind its times than this may have hidden a part of what it measures.
const BEHIND_WORTH_TELLING_MS: f64 = 20.0;

/// The whole report, in Markdown that also reads well on a terminal.
pub fn of_pool(report: &Report) -> String {
    let (options, capacity) = (&report.options, &report.capacity);
    let mut lines = vec![
        machine_line(&report.machine),
        format!(
            "{} requests/s for {:.1} s at fixed times, of {} tenants in turns; each sleeps for {} ms in Postgres; \
             a client waits for {} ms",
            plain(options.per_second),
            options.length.as_secs_f64(),
            options.tenants,
            options.service.as_millis(),
            options.deadline.as_millis(),
        ),
        format!(
            "capacity {}/s: {} connections / {:.2} ms, the mean of {} requests one after the other over one connection",
            plain(capacity.per_second),
            options.connections,
            capacity.service_ms,
            capacity.requests,
        ),
    ];
    if let Some((clients, query_wait)) = report.pgbouncer {
        let (pool, wait) = (options.connections, query_wait.as_secs_f64());
        lines.push(format!(
            "PgBouncer: default_pool_size {pool}, query_wait_timeout {wait} s, {clients} clients, queries as text"
        ));
    }
    let mut table = plain_table(&[
        "pool",
        "goodput %",
        "p50 ms",
        "p99 ms",
        "sent",
        "ok",
        "late",
        "refused",
        "errors",
        "shed",
        "sessions opened",
        "backends peak",
    ]);
    for figures in &report.measured {
        table.add_row(row(figures));
    }
    lines.push(format!("\n{table}\n"));
    lines.extend(report.measured.iter().filter_map(remarks));
    lines.join("\n").trim_end().to_owned()
}

fn row(figures: &Figures) -> [String; 12] {
    let Figures { ok, late, refused, errors, shed, sent, .. } = *figures;
    let latency = |ms| if ok > 0 { plain(ms) } else { "-".to_owned() };
    [
        figures.who.label().to_owned(),
        format!("{:.1}", figures.goodput_percent),
        latency(figures.p50_ms),
        latency(figures.p99_ms),
        grouped(sent),
        grouped(ok),
        grouped(late),
        grouped(refused),
        grouped(errors),
        grouped(shed),
        figures.sessions_opened.to_string(),
        figures.backends_peak.to_string(),
    ]
}

/// Why requests were refused or failed, and whether the load kept its times.
fn remarks(figures: &Figures) -> Option<String> {
    let reasons: Vec<String> = most_frequent(&figures.reasons)
        .into_iter()
        .map(|(reason, count)| format!("{} x {reason}", grouped(count)))
        .collect();
    let behind = (figures.behind_ms > BEHIND_WORTH_TELLING_MS)
        .then(|| format!("the load was up to {} ms behind its times", plain(figures.behind_ms)));
    let told: Vec<String> = reasons.into_iter().chain(behind).collect();
    (!told.is_empty()).then(|| format!("{}: {}", figures.who.label(), told.join("; ")))
}

/// One contestant in one line, for the progress of a run.
pub(super) fn line_of(figures: &Figures) -> String {
    format!(
        "{}: {:.1} % of the capacity, {} of {} requests answered in time",
        figures.who.label(),
        figures.goodput_percent,
        grouped(figures.ok),
        grouped(figures.sent),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::pool::Who;

    fn figures() -> Figures {
        Figures {
            who: Who::Sqlx,
            sent: 60_000,
            ok: 0,
            late: 59_000,
            refused: 1_000,
            errors: 0,
            shed: 0,
            reasons: [("the queue stands".to_owned(), 1_000)].into(),
            goodput_percent: 0.0,
            p50_ms: 0.0,
            p99_ms: 0.0,
            sessions_opened: 1_234,
            backends_peak: 12,
            behind_ms: 3.0,
        }
    }

    #[test]
    fn a_row_accounts_for_every_request_and_has_no_latency_without_an_answer() {
        let expected = "sqlx::PgPool|0.0|-|-|60 000|0|59 000|1 000|0|0|1234|12";
        assert_eq!(row(&figures()).join("|"), expected);
    }

    #[test]
    fn reasons_are_told_and_a_load_behind_its_times_too() {
        let told = remarks(&figures()).unwrap();
        assert_eq!(told, "sqlx::PgPool: 1 000 x the queue stands");
        let late = Figures { behind_ms: 31.0, reasons: [].into(), ..figures() };
        assert!(remarks(&late).unwrap().ends_with("up to 31.0 ms behind its times"));
        assert_eq!(remarks(&Figures { behind_ms: 1.0, ..late }), None);
    }
}
