//! Pure: judges what a run found: each check a line of the report.
//! Promises that every check is in the report whether it holds or not.
//! Does not look for anything; it is handed what was found.

use std::time::Duration;

use forebay::load::tally::millis;

use super::Found;
use super::report::{Phase, Report};
use crate::anytime_checks::RSS_MAX;
use crate::driver_sends::PHASES;
use crate::eventually_healed::READY_MAX;
use crate::scenario::{FullLog, LiveDuring, Plan, Sends, Silence};

/// How long after the log went an acknowledgement may still come: it was on its way.
const ON_ITS_WAY: Duration = Duration::from_millis(500);

/// What of the acknowledged must come live while the fault lasts, in percent: the rest is on its way at both ends.
const LIVE_PERCENT_MIN: u64 = 90;

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
    anytime(plan, found, report);
    live(plan, found, report);
    eventually(plan, found, report);
    finally(found, report);
}

fn anytime(plan: &Plan, found: &Found, report: &mut Report) {
    let odd: Vec<String> = report
        .phases
        .iter()
        .flat_map(|phase| phase.refused.keys())
        .filter(|how| !may_be(how, plan.expect.sends))
        .cloned()
        .collect();
    let what = match plan.expect.sends {
        Sends::Acknowledged => "every send is answered 2xx",
        Sends::Refused => "sends are answered 2xx, 429 or 503",
        Sends::Broken => "sends are answered 2xx, 429, 503 or not at all",
    };
    report.check(what, odd.is_empty().into(), told(&odd, "as it should be"));
    report.check(
        "sends have an answer at the end",
        (found.sent.unfinished == 0).into(),
        format!("{} without", found.sent.unfinished),
    );
    let refused = &found.by_socket.refused;
    report.check("sends by socket are stored", refused.is_empty().into(), told(refused, "all"));
    let seen = &found.seen;
    report.check(
        "reads are answered 2xx or 503 with a watermark",
        seen.misread.is_empty().into(),
        told(&seen.misread, "as it should be"),
    );
    report.check("nobody ends by itself", seen.died.is_empty().into(), told(&seen.died, "nobody"));
    let most = seen.rss.values().copied().max().unwrap_or(0);
    let found_rss = format!("{} MiB at most, {} allowed", most >> 20, RSS_MAX >> 20);
    report.check("memory of a node stays bounded", (most <= RSS_MAX).into(), found_rss);
}

/// Whether a send may be answered so.
fn may_be(how: &str, sends: Sends) -> bool {
    match sends {
        Sends::Acknowledged => false,
        Sends::Refused => matches!(how, "429" | "503"),
        Sends::Broken => matches!(how, "429" | "503" | "broken" | "unreachable"),
    }
}

fn live(plan: &Plan, found: &Found, report: &mut Report) {
    if let Some(factor) = plan.expect.p99_factor_max {
        let (before, during) = (report.phases[0].p99_ms, report.phases[1].p99_ms);
        let holds = during <= before * factor;
        let told = format!("{during:.1} ms, before {before:.1} ms, at most {factor} times that");
        report.aim("p99 of sends during the fault", holds.into(), told);
    }
    if plan.expect.silence == Silence::Kept {
        let (from, _) = plan.fault();
        let to = plan.steps.get(1).map_or(plan.length, |step| step.at);
        let is_in = |at: &&Duration| (from + ON_ITS_WAY..to).contains(*at);
        let rises = found.seen.rises.iter().filter(is_in).count();
        let told = format!("{rises} times something was");
        report.check("nothing is acknowledged without the log", (rises == 0).into(), told);
    }
    if plan.expect.live == LiveDuring::GoesOn {
        let acknowledged = report.phases[1].acknowledged;
        let goes_on = |count: u64| count * 100 >= acknowledged * LIVE_PERCENT_MIN;
        let told = |count: u64| format!("{count} for {acknowledged} acknowledged sends");
        let (live, hooks) = (found.during.live, found.during.hooks);
        report.check("live frames go on during the fault", goes_on(live).into(), told(live));
        report.check("webhooks go on during the fault", goes_on(hooks).into(), told(hooks));
    }
    if plan.expect.full_log == FullLog::Refuses {
        let refused = report.phases[0].refused.get("503").copied().unwrap_or(0);
        let told = format!("{refused} sends were answered 503");
        report.check("a full log refuses sends", (refused > 0).into(), told);
    }
    let silence = found.seen.silence;
    let told = format!("{:.1} s without an acknowledgement at most", silence.as_secs_f64());
    if let Some(most) = plan.expect.resume_max {
        report.check("sends resume in time", (silence <= most).into(), told);
        let told = format!(
            "{:.1} s without an event of it at most, {} allowed",
            found.unheard.as_secs_f64(),
            most.as_secs()
        );
        report.check("each conversation resumes in time", (found.unheard <= most).into(), told);
    } else {
        let resumed = found.sent.phases[2].acknowledged() > 0;
        report.check("sends resume", resumed.into(), told);
    }
}

fn eventually(plan: &Plan, found: &Found, report: &mut Report) {
    let told_ready = found.ready.map_or_else(
        || "never".to_owned(),
        |took| format!("after {:.1} s, {} allowed", took.as_secs_f64(), READY_MAX.as_secs()),
    );
    let is_ready = found.ready.is_some_and(|took| took <= READY_MAX);
    report.check("every node is ready once healed", is_ready.into(), told_ready);
    let all = format!("all, with {} reconnects on {} node(s)", found.reconnects, plan.nodes);
    let missing = &found.incomplete;
    report.check("listeners have everything", missing.is_empty().into(), told(missing, &all));
    let faults = &found.listener_faults;
    let in_order = "each in order, once";
    report.check("listeners have it in order", faults.is_empty().into(), told(faults, in_order));
}

fn finally(found: &Found, report: &mut Report) {
    let audit = &found.audit;
    let told_audit = format!(
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
    report.check("the log has each receipt once, seq is 1..n", is_clean.into(), told_audit);
    let findings = &found.findings;
    let is_level = findings.is_clean() && findings.records_ahead == 0 && findings.events > 0;
    let level = format!("{} events compared", findings.events);
    let mut differences = findings.differences.clone();
    if findings.records_ahead > 0 {
        differences.insert(0, format!("{} records not projected", findings.records_ahead));
    }
    report.check("Postgres is what the log says", is_level.into(), told(&differences, &level));
    let delivered = found.delivered;
    report.check(
        "the receiver has each receipt's message",
        (delivered.missing == 0).into(),
        format!("{} missing, {} repeats", delivered.missing, delivered.repeats),
    );
    let failed = &found.failed;
    report.check("the plan was performed", failed.is_empty().into(), told(failed, "all of it"));
    let undrained = &found.undrained;
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
mod tests {
    use super::*;

    #[test]
    fn a_500_is_never_an_answer_and_a_503_only_where_it_may_be() {
        for sends in [Sends::Acknowledged, Sends::Refused, Sends::Broken] {
            assert!(!may_be("500", sends) && !may_be("404", sends) && !may_be("unreadable", sends));
        }
        assert!(!may_be("503", Sends::Acknowledged) && may_be("503", Sends::Refused));
        assert!(!may_be("broken", Sends::Refused) && may_be("broken", Sends::Broken));
    }

    #[test]
    fn a_few_texts_stand_for_many() {
        let texts: Vec<String> = (0..5).map(|n| n.to_string()).collect();
        assert_eq!(told(&texts, "none"), "0; 1; 2; and 2 more");
        assert_eq!(told(&[], "none"), "none");
    }
}
