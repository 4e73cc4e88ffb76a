//! Pure: the record that is being put together, and what each draft finds when it comes to its turn.
//! Promises that a draft sees everything before it: what is folded, and what the same record already holds.
//! Does not change the fold; a staged record may still lose its race.

use std::collections::HashMap;

use super::{Slot, Staged};
use crate::event::limits::{RECORD_BYTES_MAX, RECORD_EVENTS_MAX, RECORD_OVERHEAD_BYTES};
use crate::event::{ConversationId, Event, MessageId, Outcome};
use crate::journal::draft::{Answer, Draft, Intent, Receipt, Request, Unanswered, Verdict};
use crate::journal::fold::Fold;
use crate::journal::heads::{Head, Seed, Status};

/// A record that is being put together on top of a fold.
#[derive(Debug)]
pub(super) struct Staging<'a> {
    fold: &'a Fold,
    events: Vec<Event>,
    outcomes: Vec<Outcome>,
    heads: HashMap<ConversationId, Head>,
    keys: HashMap<MessageId, usize>,
    bytes: usize,
}

/// What is to become of a draft.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// It goes into the record with this seq.
    Append { seq: u64 },
    /// It repeats the key of this event of the same record.
    Same { index: usize },
    /// It is answered at once.
    Done(Verdict),
}

/// What is known of a draft's conversation.
enum Known {
    There(Head),
    Absent,
    Cold,
}

impl<'a> Staging<'a> {
    pub(super) fn new(fold: &'a Fold) -> Self {
        let (events, heads, keys) = (Vec::new(), HashMap::new(), HashMap::new());
        let outcomes = Vec::new();
        Self { fold, events, outcomes, heads, keys, bytes: RECORD_OVERHEAD_BYTES }
    }

    /// Whether all of these still fit. An empty record takes any request: the door keeps requests within a record.
    pub(super) fn has_room_for(&self, drafts: &[Draft], outcomes: &[Outcome]) -> bool {
        let bytes = drafts.iter().map(|draft| draft.body.size()).sum::<usize>()
            + outcomes.iter().map(Outcome::size).sum::<usize>();
        let entries = self.events.len() + self.outcomes.len();
        let fits = entries + drafts.len() + outcomes.len() <= RECORD_EVENTS_MAX
            && self.bytes + bytes <= RECORD_BYTES_MAX;
        fits || entries == 0
    }

    pub(super) fn into_entries(self) -> (Vec<Event>, Vec<Outcome>) {
        (self.events, self.outcomes)
    }

    /// Puts outcomes into the record and says how many they were.
    pub(super) fn note(&mut self, outcomes: Vec<Outcome>) -> usize {
        let count = outcomes.len();
        self.bytes += outcomes.iter().map(Outcome::size).sum::<usize>();
        self.outcomes.extend(outcomes);
        count
    }

    /// Puts a draft into the record and says at which place.
    pub(super) fn append(&mut self, draft: Draft, seq: u64) -> usize {
        let index = self.events.len();
        self.bytes += draft.body.size();
        if draft.is_keyed() {
            self.keys.insert(draft.id, index);
        }
        let event = draft.into_event(seq);
        let before = self.heads.get(&event.conversation).copied();
        let before = before.or_else(|| self.fold.head(event.conversation));
        let head = Head::after(before.as_ref(), &event, self.fold.position() + 1);
        self.heads.insert(event.conversation, head);
        self.events.push(event);
        index
    }

    /// Whether memory and seed together do not know enough to decide one of these drafts of one conversation.
    pub(super) fn is_cold(&self, drafts: &[Draft], seed: Option<&Seed>) -> bool {
        let is_head_cold = |draft: &Draft| matches!(self.known(draft, seed), Known::Cold);
        drafts.first().is_some_and(is_head_cold)
            || drafts.iter().any(|draft| draft.is_keyed() && self.is_key_cold(draft, seed))
    }

    /// Whether one of these drafts of one conversation is refused, or answered with what already is, for the state
    /// that the conversation is taken to have. Repeats of keys are no such case: they are certain.
    pub(super) fn is_refusing(&self, drafts: &[Draft], seed: Option<&Seed>) -> bool {
        let Some(first) = drafts.first() else { return false };
        let refuses = match self.known(first, seed) {
            Known::There(head) => {
                head.tenant == first.tenant && !is_appended(first.intent, head.status)
            }
            Known::Absent => !is_opening(first.intent),
            Known::Cold => false,
        };
        let is_repeat = |draft: &Draft| {
            draft.is_keyed()
                && (self.keys.contains_key(&draft.id) || self.repeat(draft, seed).is_some())
        };
        refuses && !drafts.iter().all(is_repeat)
    }

    /// What is to become of a draft that is not cold, given everything before it. Repeats come first: a message that
    /// was stored before its conversation closed is still a repeat after.
    pub(super) fn decide(&mut self, draft: &Draft, seed: Option<&Seed>) -> Decision {
        if draft.is_keyed() {
            if let Some(index) = self.keys.get(&draft.id) {
                return Decision::Same { index: *index };
            }
            if let Some(verdict) = self.repeat(draft, seed) {
                return Decision::Done(verdict);
            }
        }
        match self.known(draft, seed) {
            Known::There(head) => self.decide_there(draft, head),
            Known::Absent | Known::Cold if is_opening(draft.intent) => Decision::Append { seq: 1 },
            Known::Absent | Known::Cold => Decision::Done(Verdict::NotFound),
        }
    }

    fn decide_there(&mut self, draft: &Draft, head: Head) -> Decision {
        if head.tenant != draft.tenant {
            return Decision::Done(Verdict::NotFound);
        }
        // What came from a seed must be here when the event is appended on top of it.
        self.heads.entry(draft.conversation).or_insert(head);
        if is_appended(draft.intent, head.status) {
            return Decision::Append { seq: head.seq + 1 };
        }
        Decision::Done(match draft.intent {
            Intent::Send => Verdict::Closed,
            Intent::Close | Intent::Reopen | Intent::OpenNew | Intent::OpenNamed => {
                let (id, seq, at) = (draft.id, head.seq, draft.at);
                Verdict::Duplicate(Receipt { id, seq, at, watermark: seq })
            }
        })
    }

    fn known(&self, draft: &Draft, seed: Option<&Seed>) -> Known {
        let warm = self.heads.get(&draft.conversation).copied();
        if let Some(head) = warm.or_else(|| self.fold.head(draft.conversation)) {
            return Known::There(head);
        }
        let floor = self.fold.heads.floor();
        if floor == 0 || draft.intent == Intent::OpenNew {
            return Known::Absent;
        }
        match seed.filter(|seed| seed.checkpoint >= floor) {
            Some(seed) => seed.head.map_or(Known::Absent, Known::There),
            None => Known::Cold,
        }
    }

    /// The verdict on a key that was used before, as far as that is known.
    fn repeat(&self, draft: &Draft, seed: Option<&Seed>) -> Option<Verdict> {
        let (seq, at, fingerprint) = if let Some(used) = self.fold.keys.get(draft.id) {
            (used.seq, used.at, used.fingerprint)
        } else {
            let stored = seed?.stored.iter().find(|stored| stored.id == draft.id)?;
            (stored.seq, stored.at, stored.fingerprint)
        };
        if fingerprint != draft.fingerprint {
            return Some(Verdict::KeyConflict);
        }
        let head = self.fold.head(draft.conversation).or_else(|| seed.and_then(|seed| seed.head));
        let watermark = head.map_or(seq, |head| head.seq.max(seq));
        Some(Verdict::Duplicate(Receipt { id: draft.id, seq, at, watermark }))
    }

    /// Whether the key says itself that it may have been used before memory begins, and nobody looked it up.
    fn is_key_cold(&self, draft: &Draft, seed: Option<&Seed>) -> bool {
        let keys = &self.fold.keys;
        let is_old = draft.key_time.is_some_and(|time| time < keys.since());
        is_old
            && keys.floor() > 0
            && keys.get(draft.id).is_none()
            && seed.is_none_or(|seed| seed.checkpoint < keys.floor())
    }
}

/// Whether a draft is appended to a conversation that is there.
fn is_appended(intent: Intent, status: Status) -> bool {
    match intent {
        Intent::Send | Intent::Close => status == Status::Open,
        Intent::Reopen => status == Status::Closed,
        Intent::OpenNew | Intent::OpenNamed => false,
    }
}

fn is_opening(intent: Intent) -> bool {
    matches!(intent, Intent::OpenNew | Intent::OpenNamed)
}

/// Decides every draft of a request. `Err` when nothing of it waits for the log.
pub(super) fn stage_request<T>(
    staging: &mut Staging<'_>,
    request: Request<T>,
) -> Result<Staged<T>, Answer<T>> {
    let Request { ticket, drafts, outcomes, seed, deadline, is_level, .. } = request;
    if staging.is_cold(&drafts, seed.as_ref()) {
        return Err(Answer { ticket, verdicts: Err(Unanswered::Cold(drafts)) });
    }
    if !is_level && staging.is_refusing(&drafts, seed.as_ref()) {
        return Err(Answer { ticket, verdicts: Err(Unanswered::Doubtful(drafts)) });
    }
    let mut slots = Vec::with_capacity(drafts.len());
    for draft in drafts {
        let (intent, key_time) = (draft.intent, draft.key_time);
        slots.push(match staging.decide(&draft, seed.as_ref()) {
            Decision::Append { seq } => {
                Slot::Event { index: staging.append(draft, seq), intent, key_time }
            }
            Decision::Same { index } => Slot::Same { index, draft: Box::new(draft) },
            Decision::Done(verdict) => Slot::Done { verdict, draft: Box::new(draft) },
        });
    }
    let verdicts: Option<Vec<Verdict>> = slots
        .iter()
        .map(|slot| match slot {
            Slot::Done { verdict, .. } => Some(*verdict),
            Slot::Event { .. } | Slot::Same { .. } => None,
        })
        .collect();
    let outcomes = staging.note(outcomes);
    match verdicts {
        Some(verdicts) if outcomes == 0 => Err(Answer { ticket, verdicts: Ok(verdicts) }),
        Some(_) | None => Ok(Staged { ticket: Some(ticket), seed, deadline, slots, outcomes }),
    }
}
