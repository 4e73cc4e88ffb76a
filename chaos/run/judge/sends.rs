//! Pure: judges the load: what sends were answered, how long nothing was acknowledged, and what went on meanwhile.
//! Promises that a load that stood still is a violation wherever it may not, the begin and the end included.
//! Does not judge what is stored.

use std::time::Duration;

use super::told;
use crate::run::Found;
use crate::run::report::Report;
use crate::scenario::{FullLog, LiveDuring, Plan, Sends, Silence};
use crate::stage::CONVERSATIONS;

/// How long after the log went an acknowledgement may still come: it was on its way.
const ON_ITS_WAY: Duration = Duration::from_millis(500);

/// What of the acknowledged must come live while the fault lasts, in percent: the rest is on its way at both ends.
const LIVE_PERCENT_MIN: u64 = 90;

/// What of the load must be acknowledged while a fault lasts that must not touch it, in percent: the shortest such fault is
/// 6 s, and at its end sends of half a second may be on their way on a busy machine.
const LOAD_PERCENT_MIN: f64 = 90.0;

pub(super) fn answers(plan: &Plan, found: &Found, report: &mut Report) {
    let (before, later) = report.phases.split_at(1);
    let odd = |phases: &[crate::run::report::Phase], sends: Sends| -> Vec<String> {
        let all = phases.iter().flat_map(|phase| &phase.refused);
        let odd = all.filter(|(how, _)| !may_be(how, sends));
        odd.map(|(how, count)| format!("{how}: {count}")).collect()
    };
    let (early, odd) = (odd(before, plan.expect.before), odd(later, plan.expect.sends));
    let found_early = told(&early, "as it should be");
    report.check("sends before the fault are answered so", early.is_empty().into(), found_early);
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
}

/// Whether a send may be answered so.
fn may_be(how: &str, sends: Sends) -> bool {
    match sends {
        Sends::Acknowledged => false,
        Sends::Refused => matches!(how, "429" | "503"),
        Sends::Broken => matches!(how, "429" | "503" | "broken" | "unreachable"),
    }
}

pub(super) fn going_on(plan: &Plan, found: &Found, report: &mut Report) {
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
    during(plan, found, report);
    if plan.expect.full_log == FullLog::Refuses {
        let refused = report.phases[0].refused.get("503").copied().unwrap_or(0);
        let told = format!("{refused} sends were answered 503");
        report.check("a full log refuses sends", (refused > 0).into(), told);
    }
    resumption(plan, found, report);
}

fn during(plan: &Plan, found: &Found, report: &mut Report) {
    let acknowledged = report.phases[1].acknowledged;
    if plan.expect.sends == Sends::Acknowledged {
        let wanted = f64::from(plan.per_second) * found.during.length.as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a count of sends")]
        let percent = acknowledged as f64 * 100.0 / wanted.max(1.0);
        let told = format!("{acknowledged} of {wanted:.0}, {LOAD_PERCENT_MIN} % wanted");
        let holds = percent >= LOAD_PERCENT_MIN;
        report.check("the load goes on during the fault", holds.into(), told);
    }
    if plan.expect.live == LiveDuring::GoesOn {
        let goes_on = |count: u64| count > 0 && count * 100 >= acknowledged * LIVE_PERCENT_MIN;
        let told = |count: u64| format!("{count} for {acknowledged} acknowledged sends");
        let (live, hooks) = (found.during.live, found.during.hooks);
        report.check("live frames go on during the fault", goes_on(live).into(), told(live));
        report.check("webhooks go on during the fault", goes_on(hooks).into(), told(hooks));
    }
}

fn resumption(plan: &Plan, found: &Found, report: &mut Report) {
    let silence = found.seen.silence;
    let told_silence = format!("{:.1} s without an acknowledgement at most", silence.as_secs_f64());
    if let Some(most) = plan.expect.resume_max {
        // Each conversation has its turn once in so long; that is no silence.
        let most_of_one = most + turn(plan.per_second);
        report.check("sends resume in time", (silence <= most).into(), told_silence);
        let unheard = found.heard.silence;
        let found = format!(
            "{:.1} s without an event of it at most, {:.1} allowed",
            unheard.as_secs_f64(),
            most_of_one.as_secs_f64()
        );
        report.check("each conversation resumes in time", (unheard <= most_of_one).into(), found);
    } else {
        let resumed = found.sent.phases[2].acknowledged() > 0;
        report.check("sends resume", resumed.into(), told_silence);
    }
    let mute = &found.heard.mute;
    report.check(
        "each conversation goes on after the heal",
        mute.is_empty().into(),
        told(mute, "each"),
    );
}

/// From one send to a conversation to the next.
fn turn(per_second: u32) -> Duration {
    let conversations = u32::try_from(CONVERSATIONS).unwrap_or(u32::MAX);
    Duration::from_secs(1) * conversations / per_second.max(1)
}
