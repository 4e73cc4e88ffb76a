//! Pure: what an attempt becomes in the log.
//! Promises that what a receiver answered can be stored, and is no longer than is kept.
//! Does not store it.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::delivery::attempt::{ANSWER_BYTES_MAX, Came};
use crate::delivery::verdict::{Met, Sign, Verdict};
use crate::event::{Delivery, Outcome};

/// The outcome of an attempt, as the log keeps it.
pub(super) fn outcome(
    delivery: &Delivery,
    came: &Came,
    (began_at, took): (Timestamp, Duration),
    verdict: Verdict,
) -> Outcome {
    let status = match came.met {
        Met::Answer { status, .. } => Some(status),
        Met::Nothing(_) => None,
    };
    let answer = (verdict.sign != Sign::Success).then(|| storable(&came.answer));
    Outcome {
        tenant: delivery.tenant,
        conversation: delivery.conversation,
        delivery: delivery.id,
        channel: delivery.channel,
        message: delivery.message,
        seq: delivery.seq,
        attempt: delivery.attempt,
        began_at,
        took_ms: u32::try_from(took.as_millis()).unwrap_or(u32::MAX),
        status,
        reason: verdict.reason,
        fate: verdict.fate,
        answer: answer.filter(|text| !text.is_empty()),
    }
}

/// Bytes of anybody as a text that Postgres can store and that is no longer than they were allowed to be.
fn storable(bytes: &[u8]) -> Box<str> {
    let text = String::from_utf8_lossy(bytes).replace('\0', "\u{fffd}");
    let mut end = text.len().min(ANSWER_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_anybody_becomes_a_text_that_can_be_stored() {
        assert_eq!(&*storable(b"plain"), "plain");
        assert_eq!(&*storable(b"a\0b\xffc"), "a\u{fffd}b\u{fffd}c");
        let long = storable(&[0xff; 16 * 1024]);
        assert!(long.len() <= ANSWER_BYTES_MAX && long.len() > 16_000);
    }
}
