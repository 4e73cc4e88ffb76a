//! Pure: what an answer to a read may be: a page without holes, or a refusal that is documented and comes in time.
//! Promises that whatever else is answered is told as a fault.
//! Does not ask.

use std::time::Duration;

use serde_json::Value;

use crate::scenario::{Plan, Sends};
use crate::stage::caller::Answer;

/// Most events of a page that is asked for.
pub(crate) const PAGE: u64 = 20;

/// Longest wait for a refusal: 2 s (docs/API.md), and one more for a machine that is busy with the run itself.
const REFUSED_MAX: Duration = Duration::from_secs(3);

/// What the faults of a plan excuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Excused {
    /// No answer: connections are cut.
    pub(crate) silence: bool,
    /// A refusal that is late or knows no watermark: a node is away, starts, or does not reach the log.
    pub(crate) ignorance: bool,
}

impl Excused {
    /// By this plan.
    pub(crate) fn by(plan: &Plan) -> Self {
        Self { silence: plan.expect.sends == Sends::Broken, ignorance: plan.touches_nodes_or_log() }
    }
}

/// What is wrong with the answer to a read from the conversation's begin.
pub(crate) fn misread(answer: &Answer, took: Duration, excused: Excused) -> Option<String> {
    match answer {
        Answer::Answered(200, page) => {
            flaw(page).map(|flaw| format!("a page {flaw}: {}", brief(page)))
        }
        Answer::Answered(429, _) => None,
        Answer::Answered(503, body) => {
            let is_ignorant = body["code"] == "unavailable" && excused.ignorance;
            if !is_ignorant && !body["watermark"].is_u64() {
                return Some(format!("a read was refused without a watermark: {body}"));
            }
            let late = took > REFUSED_MAX && !excused.ignorance;
            late.then(|| format!("a read was refused after {:.1} s", took.as_secs_f64()))
        }
        Answer::Answered(status, body) => Some(format!("a read was answered {status}: {body}")),
        Answer::Broken | Answer::Late if excused.silence => None,
        Answer::Broken => Some("a read's connection broke".to_owned()),
        Answer::Late => Some("a read had no answer in time".to_owned()),
    }
}

/// What is wrong with a page that begins with seq 1.
fn flaw(page: &Value) -> Option<&'static str> {
    let (Some(messages), Some(watermark), Some(head)) =
        (page["messages"].as_array(), page["watermark"].as_u64(), page["headSeq"].as_u64())
    else {
        return Some("lacks messages, watermark or headSeq");
    };
    let in_order = messages.iter().zip(1..).all(|(message, seq)| message["seq"] == seq);
    let last = messages.len() as u64;
    if !in_order {
        return Some("has a hole");
    }
    if watermark != last {
        return Some("names another watermark than its last seq");
    }
    let is_short = last < head.min(PAGE);
    (is_short && page["complete"] != false).then_some("is short and says that it is complete")
}

/// A page without its contents.
fn brief(page: &Value) -> String {
    let seqs: Vec<&Value> =
        page["messages"].as_array().into_iter().flatten().map(|message| &message["seq"]).collect();
    let seqs = seqs.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let of = |name: &str| &page[name];
    format!(
        "seqs {seqs}, watermark {}, head {}, complete {}",
        of("watermark"),
        of("headSeq"),
        of("complete")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SOON: Duration = Duration::from_millis(3);
    const LATE: Duration = Duration::from_millis(3_001);
    const NOTHING: Excused = Excused { silence: false, ignorance: false };
    const ALL: Excused = Excused { silence: true, ignorance: true };

    fn page(seqs: &[u64], watermark: u64, head: u64, complete: bool) -> Answer {
        let messages: Vec<Value> = seqs.iter().map(|seq| json!({"seq": seq})).collect();
        let page = json!({
            "messages": messages, "watermark": watermark, "headSeq": head, "complete": complete,
        });
        Answer::Answered(200, page)
    }

    #[test]
    fn a_page_has_no_hole_names_its_end_and_says_when_it_is_short() {
        let full: Vec<u64> = (1..=20).collect();
        for (answer, wanted) in [
            (page(&[1, 2, 3], 3, 3, true), true),
            (page(&full, 20, 900, true), true),
            (page(&[1, 2], 2, 9, false), true),
            (page(&[1, 2], 2, 9, true), false),
            (page(&[], 0, 1, true), false),
            (page(&[1, 3], 3, 3, true), false),
            (page(&[2, 3], 3, 3, true), false),
            (page(&[1, 2], 3, 3, true), false),
            (Answer::Answered(200, json!({})), false),
            (Answer::Answered(200, json!({"messages": [], "headSeq": 0})), false),
        ] {
            assert_eq!(misread(&answer, SOON, ALL).is_none(), wanted, "{answer:?}");
        }
    }

    #[test]
    fn only_documented_refusals_pass() {
        let answered = |status, body| Answer::Answered(status, body);
        let known = json!({"code": "replay_unavailable", "watermark": 3});
        let starting = json!({"code": "unavailable"});
        for (answer, took, excused, wanted) in [
            (answered(503, known.clone()), SOON, NOTHING, true),
            (answered(503, known.clone()), LATE, NOTHING, false),
            (answered(503, known), LATE, ALL, true),
            (answered(503, starting.clone()), SOON, ALL, true),
            (answered(503, starting), SOON, NOTHING, false),
            (answered(503, json!({"code": "replay_unavailable"})), SOON, ALL, false),
            (answered(429, json!({})), SOON, NOTHING, true),
            (answered(500, json!({"code": "internal"})), SOON, ALL, false),
            (answered(404, json!({"code": "not_found"})), SOON, ALL, false),
            (Answer::Late, LATE, NOTHING, false),
            (Answer::Broken, SOON, NOTHING, false),
            (Answer::Late, LATE, ALL, true),
            (Answer::Broken, SOON, ALL, true),
        ] {
            let found = misread(&answer, took, excused);
            assert_eq!(found.is_none(), wanted, "{answer:?} {excused:?}: {found:?}");
        }
    }
}
