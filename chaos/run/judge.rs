//! Pure: judges what a run found: each check a line of the report.
//! Promises that every check is in the report whether it holds or not.
//! Does not look for anything; it is handed what was found.

pub(crate) mod neighbour;
mod seen;
mod sends;

use forebay::load::Audit;
use forebay::load::tally::millis;

use super::Found;
use super::report::{Phase, Report};
use crate::driver_sends::PHASES;
use crate::eventually_healed::{READY_MAX, Readied};
use crate::finally_audit::{Delivered, Level};
use crate::scenario::Plan;

/// The check of receipts against the log.
pub(crate) const AUDIT: &str = "the log has each receipt once, seq is 1..n";

/// The check of Postgres against the log.
pub(crate) const LEVEL: &str = "Postgres is what the log says";

/// The check of what listeners heard in which order.
pub(crate) const ORDER: &str = "listeners have it in order";

/// Most texts of one check.
const TEXTS_MAX: usize = 3;

/// Judges everything.
pub(crate) fn judge(plan: &Plan, found: &Found, report: &mut Report) {
    for phase in 0..PHASES {
        let tally = &found.sent.phases[phase];
        report.phases.push(Phase {
            acknowledged: tally.acknowledged(),
            p50_ms: millis(tally.quantile(0.5)),
            p99_ms: millis(tally.quantile(0.99)),
            refused: tally.refused.clone(),
            reads: found.seen.reads[phase].clone(),
        });
    }
    sends::answers(plan, found, report);
    seen::reads(plan, &found.seen, report);
    seen::nodes(plan.nodes, &found.seen, report);
    sends::going_on(plan, found, report);
    ready(plan, found, report);
    listeners(plan, found, report);
    audit(&found.stored.audit, report);
    level(&found.stored.level, report);
    delivered(found.stored.delivered, report);
    let failed = &found.driven.failed;
    report.check("the plan was performed", failed.is_empty().into(), told(failed, "all of it"));
    ended(&found.undrained, report);
}

fn ready(plan: &Plan, found: &Found, report: &mut Report) {
    let told_ready = found.ready.map_or_else(
        || "never".to_owned(),
        |took| format!("after {:.1} s, {} allowed", took.as_secs_f64(), READY_MAX.as_secs()),
    );
    let is_ready = found.ready.is_some_and(|took| took <= READY_MAX);
    report.check("every node is ready once healed", is_ready.into(), told_ready);
    let readied = &found.driven.readied;
    if plan.whole_after().len() > 1 {
        let is_late = readied.iter().any(|readied| readied.is_late());
        let of_ready: Vec<&Readied> = readied.iter().filter(|readied| readied.is_ready).collect();
        let most = of_ready.iter().map(|readied| readied.after).max().unwrap_or_default();
        let found = format!(
            "{} of {} times, after {:.1} s at most; else the next fault came first",
            of_ready.len(),
            readied.len(),
            most.as_secs_f64()
        );
        report.check("every node is ready between faults", (!is_late).into(), found);
    }
}

fn listeners(plan: &Plan, found: &Found, report: &mut Report) {
    let heard = &found.heard;
    let all = format!("all, with {} reconnects on {} node(s)", heard.reconnects, plan.nodes);
    let missing = &heard.incomplete;
    report.check("listeners have everything", missing.is_empty().into(), told(missing, &all));
    let faults = &heard.faults;
    report.check(ORDER, faults.is_empty().into(), told(faults, "each in order, once"));
    let differing = &heard.differing;
    let found = told(differing, "each by its id");
    report.check("listeners have what is stored", differing.is_empty().into(), found);
}

/// Receipts against the log.
pub(super) fn audit(audit: &Audit, report: &mut Report) {
    let told = format!(
        "{} receipts: {} lost, {} doubled, {} gaps, {} clashes, {} misplaced, {} not audited",
        audit.acknowledged,
        audit.lost,
        audit.duplicated,
        audit.gaps,
        audit.clashes,
        audit.misplaced,
        audit.left_out
    );
    let is_clean = audit.is_clean() && audit.acknowledged > 0 && audit.left_out == 0;
    report.check(AUDIT, is_clean.into(), told);
}

/// Postgres against the log.
pub(super) fn level(level: &Level, report: &mut Report) {
    let Level { findings, rows } = level;
    let mut differences = findings.differences.clone();
    if findings.records_ahead > 0 {
        differences.insert(0, format!("{} records not projected", findings.records_ahead));
    } else if *rows != findings.events {
        differences.insert(0, format!("{rows} rows for {} events", findings.events));
    }
    let is_level = differences.is_empty() && findings.further == 0 && findings.events > 0;
    let found = format!("{} events compared", findings.events);
    report.check(LEVEL, is_level.into(), told(&differences, &found));
}

fn delivered(delivered: Delivered, report: &mut Report) {
    let Delivered { missing, repeats, unverified, dropped } = delivered;
    report.check(
        "the receiver has each receipt's message",
        (missing == 0 && dropped == 0).into(),
        format!("{missing} missing, {repeats} repeats, {dropped} not kept"),
    );
    let found = format!("{unverified} were not");
    report.check("webhooks are signed with the secret", (unverified == 0).into(), found);
}

/// How nodes ended that were asked to.
pub(super) fn ended(undrained: &[String], report: &mut Report) {
    report.check(
        "nodes end in order when asked",
        undrained.is_empty().into(),
        told(undrained, "all"),
    );
}

/// The first of the texts, or what is said when there is none.
fn told(texts: &[String], none: &str) -> String {
    if texts.is_empty() {
        return none.to_owned();
    }
    let more = texts.len().saturating_sub(TEXTS_MAX);
    let first = texts.iter().take(TEXTS_MAX).cloned().collect::<Vec<_>>().join("; ");
    if more == 0 { first } else { format!("{first}; and {more} more") }
}

#[cfg(test)]
mod tests;
