//! Pure: judges what was seen while the load lasted: answers to reads, processes, memory.
//! Promises that nothing seen is a violation too: a look that never was holds nothing.
//! Does not judge sends.

use super::told;
use crate::anytime_checks::{Memory, Seen};
use crate::run::report::Report;
use crate::scenario::Plan;

/// Most memory that a node may take beside what it had when it was ready: a million recent keys
/// (`FOREBAY_KEYS_MAX`), and the tail at its bound of 32 MiB, which is twice that decoded. Runs at 200 sends a second
/// take some 30 MiB.
pub(super) const GROWTH_MAX: u64 = 128 << 20;

/// Judges what reads were answered.
pub(super) fn answers(seen: &Seen, report: &mut Report) {
    report.check(
        "reads are answered with a page, or 503 with a watermark in time",
        seen.misread.is_empty().into(),
        told(&seen.misread, "as it should be"),
    );
}

/// Judges reads before, during and after a fault.
pub(super) fn reads(plan: &Plan, seen: &Seen, report: &mut Report) {
    answers(seen, report);
    let pages = |phase: usize| seen.reads[phase].get("200").copied().unwrap_or(0);
    let (before, after) = (pages(0), pages(2));
    // Without a step there is no before.
    let were_read = (before > 0 || plan.steps.is_empty()) && after > 0;
    let found = format!("{before} pages before the fault, {after} after");
    report.check("pages are read before and after the fault", were_read.into(), found);
}

/// Judges processes and their memory.
pub(super) fn nodes(nodes: usize, seen: &Seen, report: &mut Report) {
    report.check("nobody ends by itself", seen.died.is_empty().into(), told(&seen.died, "nobody"));
    let grown = |memory: &Memory| memory.most.saturating_sub(memory.first);
    let most = seen.memory.values().max_by_key(|memory| grown(memory)).copied().unwrap_or_default();
    let were_seen = seen.memory.len() == nodes && seen.memory.values().all(|m| m.first > 0);
    let found = format!(
        "from {} to {} MiB, {} more allowed, {} node(s) seen",
        most.first >> 20,
        most.most >> 20,
        GROWTH_MAX >> 20,
        seen.memory.len()
    );
    let is_bounded = were_seen && grown(&most) <= GROWTH_MAX;
    report.check("memory of a node stays bounded", is_bounded.into(), found);
}
