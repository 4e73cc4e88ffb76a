//! What the flows refuse, as problems.
//! Promises a sentence that says whether something was stored and what to do.
//! Does not decide; every refusal of a flow has exactly one problem here.

use crate::api::problem::{Code, Fault, Problem};
use crate::history;
use crate::ingest::draft::Rejected;
use crate::ingest::{self, draft};
use crate::journal::{self, Busy, Verdict};
use crate::lifecycle::chain;

/// Why the queue took nothing, and what that says of the send: of this request alone, because an earlier try of the same may be in
/// a record whose fate is not known yet.
pub(in crate::api) fn busy_detail(busy: Busy) -> &'static str {
    match busy {
        Busy::Full => {
            "Too much is waiting for the log. This request stored nothing, an earlier try of it may have; send it again as it is."
        }
        Busy::Stalled => {
            "The log does not acknowledge now. This request stored nothing, an earlier try of it may have; send it again as it is."
        }
        Busy::Stopping => {
            "The server is on its way out. This request stored nothing; send it again as it is, another node may answer."
        }
    }
}

/// No room in the queue, as a problem.
pub(in crate::api) fn busy(busy: Busy) -> Problem {
    let code = match busy {
        Busy::Full | Busy::Stalled => Code::LogUnavailable,
        Busy::Stopping => Code::Unavailable,
    };
    Problem::new(code, busy_detail(busy))
}

/// A body that was refused, as a problem.
pub(in crate::api) fn rejected(rejected: Rejected) -> Problem {
    let problem = match rejected.code {
        draft::Code::BadRequest if rejected.errors.iter().any(|error| error.pointer.is_empty()) => {
            Problem::new(Code::BadRequest, "The body cannot be read.")
        }
        draft::Code::BadRequest => {
            Problem::new(Code::BadRequest, "A field is missing or has the wrong form.")
        }
        draft::Code::TooLarge { limit, max } => {
            Problem::new(Code::PayloadTooLarge, format!("The limit {limit} = {max} is exceeded."))
        }
        draft::Code::Invalid => Problem::new(Code::InvalidMessage, "A field breaks a rule."),
    };
    let faults = rejected
        .errors
        .into_iter()
        .map(|error| Fault { pointer: error.pointer, detail: error.detail });
    problem.with_faults(faults.collect())
}

/// A send of which nothing is known to be stored, as a problem.
pub(in crate::api) fn ingest_problem(error: &ingest::Error) -> Problem {
    let cause = chain(error);
    let problem = match error {
        ingest::Error::Journal(journal::Error::Stopping) => Problem::new(
            Code::Unavailable,
            "The server is on its way out. It is not known whether this is stored; send it again as it is, another node may answer.",
        ),
        ingest::Error::OldKeys { max } => Problem::new(
            Code::PayloadTooLarge,
            format!(
                "The limit oldKeys = {max} is exceeded: so many old keys of a batch are looked up. Send it in smaller ones."
            ),
        ),
        ingest::Error::Journal(_) => Problem::new(
            Code::LogUnavailable,
            "The log did not acknowledge in time. It is not known whether this is stored; send it again as it is.",
        ),
        ingest::Error::Database(error) if !error.is_retryable() => Problem::internal(cause.clone()),
        ingest::Error::Database(_) | ingest::Error::Cold => Problem::new(
            Code::DatabaseUnavailable,
            "This conversation or key is so old that the database must be asked, which cannot be done now. This request stored nothing; send it again as it is.",
        ),
    };
    problem.with_cause(cause)
}

/// A verdict that stored nothing, as a problem.
pub(in crate::api) fn verdict_problem(verdict: Verdict) -> Problem {
    match verdict {
        Verdict::KeyConflict => Problem::new(
            Code::IdempotencyConflict,
            "A message with this idempotency key was stored before, with another payload.",
        ),
        Verdict::Closed => Problem::new(Code::ConversationClosed, "The conversation is closed."),
        Verdict::NotFound => Problem::not_found("There is no such conversation."),
        Verdict::Stored(_) | Verdict::Duplicate(_) => {
            Problem::internal("a stored verdict is no problem")
        }
    }
}

/// What history could not do, as a problem.
pub(in crate::api) fn history_problem(error: &history::Error) -> Problem {
    let cause = chain(error);
    match error {
        history::Error::NotFound => Problem::not_found("There is no such conversation."),
        history::Error::ReplayUnavailable { watermark, head_seq, cause: _ } => {
            let detail =
                "This part of the history cannot be read now. Go on from the watermark later.";
            Problem::new(Code::ReplayUnavailable, detail)
                .with_progress(*watermark, *head_seq)
                .with_cause(cause)
        }
        history::Error::DatabaseUnavailable(_) => {
            Problem::new(Code::DatabaseUnavailable, "The database cannot be asked now.")
                .with_cause(cause)
        }
        history::Error::LogUnavailable(_) => {
            let detail = "Whether there is such a conversation is not known while the log is away.";
            Problem::new(Code::LogUnavailable, detail).with_cause(cause)
        }
        history::Error::Store(_) => Problem::internal(cause),
    }
}
