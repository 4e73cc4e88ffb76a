//! Pure: stages records from queued drafts and settles them: assigns `seq`, answers duplicates, refuses what cannot be.
//! Promises one verdict a draft, and that nothing is staged again before it is certain that the record is not in the log.
//! Does not publish; the writer does, and tells what came of it.

mod gather;
mod staging;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::draft::{Answer, Draft, Haste, Intent, Receipt, Request, Unanswered, Verdict};
use super::fold::{Fit, Fold};
use super::heads::Seed;
use super::ring::Folded;
use crate::clock::Timestamp;
use crate::event;
use crate::event::record::VERSION;
use crate::event::{NodeId, Record, RecordId};
use crate::log::{Outcome, Outgoing};
use staging::{Staging, stage_request};

/// Queues drafts and keeps the one record that is on its way.
#[derive(Debug)]
pub struct Sequencer<T> {
    node: NodeId,
    queue: VecDeque<Request<T>>,
    flight: Option<Flight<T>>,
}

/// The record that is on its way. One at a time: a second one could be stored on top of a foreign record that
/// made the first one fail.
#[derive(Debug)]
struct Flight<T> {
    record: Record,
    outgoing: Outgoing,
    staged: Vec<Staged<T>>,
    /// Set once the record met a conflict: nothing may be decided before the fold has reached this position.
    behind: Option<u64>,
}

impl<T> Flight<T> {
    /// The record as it is in the log; the flight itself does not need it any more.
    fn take_record(&mut self) -> Record {
        let events = std::mem::take(&mut self.record.events);
        let outcomes = std::mem::take(&mut self.record.outcomes);
        let (id, node) = (self.record.id, self.record.node);
        Record { version: VERSION, id, node, events, outcomes }
    }
}

#[derive(Debug)]
struct Staged<T> {
    /// Gone once its owner was told that it is late.
    ticket: Option<T>,
    seed: Option<Seed>,
    deadline: Instant,
    slots: Vec<Slot>,
    /// How many of the record's outcomes are this request's.
    outcomes: usize,
}

/// What one draft of a staged request waits for.
#[derive(Debug)]
enum Slot {
    /// Nothing; it was decided when it was staged. Staged again, it is decided again.
    Done { verdict: Verdict, draft: Box<Draft> },
    /// The event at this place in the record.
    Event { index: usize, intent: Intent, key_time: Option<Timestamp> },
    /// The event at this place too: it repeats that event's key.
    Same { index: usize, draft: Box<Draft> },
}

/// What staging gave.
#[derive(Debug)]
pub struct Stage<T> {
    /// Requests that could be answered without the log.
    pub answers: Vec<Answer<T>>,
    /// The record to publish, if there was anything to append.
    pub outgoing: Option<Outgoing>,
}

/// What is to be done after an outcome.
#[derive(Debug)]
#[must_use]
pub enum Next<T> {
    /// The record is settled: these can be told. Staging may go on.
    Settled(Vec<Answer<T>>),
    /// Nothing is known: publish the very same record again.
    Again(Outgoing),
    /// Fold up to this position first; it may hold the record.
    Behind(u64),
    /// Another node took the position; the drafts are queued again. Staging may go on.
    Lost,
    /// The log ends before positions that were acknowledged: it was replaced or lost data.
    WentBack {
        /// Where it ends.
        last: u64,
    },
}

impl<T> Sequencer<T> {
    /// A sequencer with nothing to do.
    pub fn new(node: NodeId) -> Self {
        Self { node, queue: VecDeque::new(), flight: None }
    }

    /// Queues a request. The bound of the queue is kept at the door, where places are given out.
    pub fn push(&mut self, request: Request<T>) {
        // Whoever asks again has an older deadline than those who came meanwhile.
        if request.is_level {
            self.queue.push_front(request);
        } else {
            self.queue.push_back(request);
        }
    }

    /// Whether the record of this id is on its way.
    pub fn flies(&self, id: RecordId) -> bool {
        self.flight.as_ref().is_some_and(|flight| flight.record.id == id)
    }

    /// Whether a record is on its way.
    pub fn is_flying(&self) -> bool {
        self.flight.is_some()
    }

    /// The position that the record on its way waits for, if it met a conflict.
    pub fn behind(&self) -> Option<u64> {
        self.flight.as_ref()?.behind
    }

    /// Whether nothing is queued and nothing on its way.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.flight.is_none()
    }

    /// Whether requests wait to be staged.
    pub fn has_queue(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Makes one record of as much of the queue as fits. Does nothing while a record is on its way.
    pub fn stage(&mut self, fold: &Fold, id: RecordId, now: Instant) -> Stage<T> {
        let mut answers = Vec::new();
        if self.flight.is_some() {
            return Stage { answers, outgoing: None };
        }
        let mut staging = Staging::new(fold);
        let mut staged = Vec::new();
        while let Some(request) = self.queue.pop_front() {
            if request.deadline <= now {
                answers.push(late(request.ticket));
            } else if staging.has_room_for(&request.drafts, &request.outcomes) {
                match stage_request(&mut staging, request) {
                    Ok(waiting) => staged.push(waiting),
                    Err(answer) => answers.push(answer),
                }
            } else {
                self.queue.push_front(request);
                break;
            }
        }
        let outgoing = self.launch(staging.into_entries(), staged, fold.position(), id);
        Stage { answers, outgoing }
    }

    fn launch(
        &mut self,
        (events, outcomes): (Vec<event::Event>, Vec<event::Outcome>),
        staged: Vec<Staged<T>>,
        expected: u64,
        id: RecordId,
    ) -> Option<Outgoing> {
        if events.is_empty() && outcomes.is_empty() {
            return None;
        }
        let record = Record { version: VERSION, id, node: self.node, events, outcomes };
        let bytes = record.encode().expect("staging keeps every bound that encoding checks");
        let outgoing = Outgoing { id, expected, bytes: bytes.into() };
        self.flight = Some(Flight { record, outgoing: outgoing.clone(), staged, behind: None });
        Some(outgoing)
    }

    /// Tells those whose record is on its way that it is stored, which nobody knows yet.
    #[cfg(feature = "broken")]
    pub fn acknowledge_unseen(&mut self) -> Vec<Answer<T>> {
        let Some(Flight { record, staged, .. }) = self.flight.as_mut() else { return Vec::new() };
        let verdict = |slot: &Slot| match slot {
            Slot::Event { index, .. } => {
                let event = &record.events[*index];
                let (id, seq, at) = (event.id, event.seq, event.at);
                Some(Verdict::Stored(Receipt { id, seq, at, watermark: seq }))
            }
            Slot::Done { .. } | Slot::Same { .. } => None,
        };
        let answer = |staged: &mut Staged<T>| {
            let verdicts = staged.slots.iter().map(verdict).collect::<Option<_>>()?;
            Some(Answer { ticket: staged.ticket.take()?, verdicts: Ok(verdicts) })
        };
        staged.iter_mut().filter_map(answer).collect()
    }

    /// Takes in what came of publishing the record with this id. An outcome of an earlier record says nothing:
    /// the follower may bring a record before its acknowledgement comes.
    pub fn on_outcome(
        &mut self,
        fold: &mut Fold,
        (id, outcome): (RecordId, Outcome),
        now: Timestamp,
    ) -> Next<T> {
        let Some(flight) = self.flight.as_mut().filter(|flight| flight.record.id == id) else {
            return Next::Settled(Vec::new());
        };
        let expected = flight.outgoing.expected;
        match outcome {
            Outcome::Stored { position } => Next::Settled(self.settle_own(fold, position, now)),
            Outcome::Conflict { last } | Outcome::Repeated { position: last }
                if last < expected =>
            {
                Next::WentBack { last }
            }
            Outcome::Conflict { last } | Outcome::Repeated { position: last }
                if last > expected =>
            {
                flight.behind = Some(last);
                self.look(fold).unwrap_or(Next::Behind(last))
            }
            // Not stored by this answer. Whether an earlier copy was, the position after the guard tells.
            Outcome::Conflict { .. } | Outcome::Repeated { .. } | Outcome::Unknown { .. } => {
                if fold.position() > expected {
                    self.unstage()
                } else {
                    Next::Again(flight.outgoing.clone())
                }
            }
            Outcome::Refused { reason } => Next::Settled(self.refuse(&reason)),
        }
    }

    /// Takes in a record of the log. The record on its way is settled when it is this one.
    pub fn on_record(
        &mut self,
        fold: &mut Fold,
        folded: &Arc<Folded>,
        now: Timestamp,
    ) -> (Fit, Next<T>) {
        let fit = fold.apply(folded, now);
        if fit != Fit::Folded {
            return (fit, Next::Settled(Vec::new()));
        }
        let ours = self.flight.as_ref().is_some_and(|flight| flight.record.id == folded.record.id);
        if ours {
            return (fit, Next::Settled(self.settle(fold)));
        }
        (fit, self.look(fold).unwrap_or(Next::Settled(Vec::new())))
    }

    /// The fold has moved: a record that met a conflict is staged again once the fold has reached it.
    ///
    /// Had one of the folded records been ours, it would have been settled then; so it is not in the log, and its
    /// guard keeps it out for ever.
    pub fn look(&mut self, fold: &Fold) -> Option<Next<T>> {
        let behind = self.flight.as_ref()?.behind?;
        (fold.position() >= behind).then(|| self.unstage())
    }

    /// When the oldest of those who wait has waited long enough.
    pub fn next_wake(&self) -> Option<Instant> {
        let flying = self.flight.iter().flat_map(|flight| &flight.staged);
        let flying = flying.filter(|staged| staged.ticket.is_some()).map(|staged| staged.deadline);
        flying.chain(self.queue.front().map(|request| request.deadline)).min()
    }

    /// Tells those whose deadline has passed. A record on its way stays so: what came of it is settled all the same.
    pub fn on_wake(&mut self, now: Instant) -> Vec<Answer<T>> {
        let mut answers = Vec::new();
        for staged in self.flight.iter_mut().flat_map(|flight| &mut flight.staged) {
            if staged.deadline <= now {
                answers.extend(staged.ticket.take().map(late));
            }
        }
        while self.queue.front().is_some_and(|request| request.deadline <= now) {
            answers.extend(self.queue.pop_front().map(|request| late(request.ticket)));
        }
        answers
    }

    /// Everybody who still waits, for a writer that gives up.
    pub fn abandon(&mut self) -> Vec<T> {
        let flying = self.flight.take().into_iter().flat_map(|flight| flight.staged);
        let flying = flying.filter_map(|staged| staged.ticket);
        flying.chain(self.queue.drain(..).map(|request| request.ticket)).collect()
    }

    fn settle_own(&mut self, fold: &mut Fold, position: u64, now: Timestamp) -> Vec<Answer<T>> {
        let Some(flight) = self.flight.as_mut() else {
            return Vec::new();
        };
        let bytes = flight.outgoing.bytes.len();
        let record = flight.take_record();
        let folded = Arc::new(Folded { position, bytes, record });
        let fit = fold.apply(&folded, now);
        debug_assert_eq!(
            fit,
            Fit::Folded,
            "the guard held, so the fold was at the guard's position"
        );
        self.settle_with(fold, &folded.record)
    }

    fn settle(&mut self, fold: &Fold) -> Vec<Answer<T>> {
        let Some(flight) = self.flight.as_mut() else {
            return Vec::new();
        };
        let record = flight.take_record();
        self.settle_with(fold, &record)
    }

    fn settle_with(&mut self, fold: &Fold, record: &Record) -> Vec<Answer<T>> {
        let Some(flight) = self.flight.take() else {
            return Vec::new();
        };
        let receipt = |index: usize| {
            let event = &record.events[index];
            let watermark = fold.head(event.conversation).map_or(event.seq, |head| head.seq);
            Receipt { id: event.id, seq: event.seq, at: event.at, watermark }
        };
        let verdict = |slot: &Slot| match slot {
            Slot::Done { verdict, .. } => *verdict,
            Slot::Event { index, .. } => Verdict::Stored(receipt(*index)),
            Slot::Same { index, draft } => {
                if record.events[*index].fingerprint == draft.fingerprint {
                    Verdict::Duplicate(receipt(*index))
                } else {
                    Verdict::KeyConflict
                }
            }
        };
        let answer = |staged: Staged<T>| {
            let verdicts = Ok(staged.slots.iter().map(verdict).collect());
            staged.ticket.map(|ticket| Answer { ticket, verdicts })
        };
        flight.staged.into_iter().filter_map(answer).collect()
    }

    fn refuse(&mut self, reason: &str) -> Vec<Answer<T>> {
        let staged = self.flight.take().map(|flight| flight.staged).unwrap_or_default();
        let refused = || Err(Unanswered::Refused(reason.to_owned()));
        let tickets = staged.into_iter().filter_map(|staged| staged.ticket);
        tickets.map(|ticket| Answer { ticket, verdicts: refused() }).collect()
    }

    /// Puts the drafts of the record on its way back to the front of the queue, in their order.
    fn unstage(&mut self) -> Next<T> {
        let Some(flight) = self.flight.take() else {
            return Next::Lost;
        };
        let mut events: Vec<_> = flight.record.events.into_iter().map(Some).collect();
        let mut outcomes = flight.record.outcomes;
        for staged in flight.staged.into_iter().rev() {
            let outcomes = outcomes.split_off(outcomes.len() - staged.outcomes);
            let drafts = staged.slots.into_iter().filter_map(|slot| match slot {
                Slot::Done { draft, .. } | Slot::Same { draft, .. } => Some(*draft),
                Slot::Event { index, intent, key_time } => {
                    events[index].take().map(|event| Draft::from_event(event, intent, key_time))
                }
            });
            let drafts = drafts.collect();
            let Staged { ticket, seed, deadline, .. } = staged;
            // Whoever was told that it is late sends again, so its drafts need no second try.
            if let Some(ticket) = ticket {
                // Settled or not, the fold has moved on since: what it refuses is to be looked at anew.
                let (is_level, haste) = (false, Haste::Now);
                self.queue.push_front(Request {
                    ticket,
                    drafts,
                    outcomes,
                    seed,
                    deadline,
                    is_level,
                    haste,
                });
            }
        }
        Next::Lost
    }
}

fn late<T>(ticket: T) -> Answer<T> {
    Answer { ticket, verdicts: Err(Unanswered::Late) }
}

#[cfg(test)]
mod tests;
