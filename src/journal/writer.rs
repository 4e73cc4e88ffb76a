//! The only writer of a partition on this node: queue, sequencer, turns, and one publish at a time.
//! Promises that callers are told only what the sequencer settled, and that a record in doubt is published again
//! until its fate is known.
//! Does not decide; every decision is the sequencer's or the turns'.

mod operation;

use std::time::{Duration, Instant};

use bytes::Bytes;
use rand::rngs::StdRng;
use tokio::sync::{mpsc, oneshot};
use tracing::{debug, warn};

use super::Error;
use super::draft::{Answer, Request, Unanswered, Verdict};
use super::fold::Fit;
use super::follower::{self, Arrival};
use super::sequencer::{Next, Sequencer};
use super::tail::{Place, Tail};
use super::turns::{Loss, Turns};
use operation::{Done, Operation, under_way};

use crate::clock::Clock;
use crate::event::{NodeId, RecordId};
use crate::lifecycle::Stop;
use crate::log::{Announcements, Log, Outcome};
use crate::metrics;

/// Requests taken from the inbox at once.
const INBOX_BATCH: usize = 512;

/// Pause before a record in doubt is published again, unless the connection comes back earlier.
const DOUBT_PAUSE: Duration = Duration::from_millis(50);

/// Who waits for verdicts, and the room that the request takes meanwhile.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) reply: oneshot::Sender<Result<Vec<Verdict>, Unanswered>>,
    pub(super) place: Place,
}

/// One partition's writer.
pub(super) struct Writer {
    pub(super) log: Log,
    pub(super) tail: Tail,
    pub(super) sequencer: Sequencer<Ticket>,
    pub(super) turns: Turns,
    pub(super) node: NodeId,
    pub(super) inbox: mpsc::Receiver<Request<Ticket>>,
    pub(super) arrivals: mpsc::Receiver<Arrival>,
    pub(super) announcements: Announcements,
    pub(super) clock: Clock,
    pub(super) rng: StdRng,
    pub(super) metrics: metrics::Journal,
    operation: Option<Operation>,
    /// When the record on its way was published first.
    published_at: Option<Instant>,
    /// When the last record was made.
    staged_at: Option<Instant>,
}

/// What a writer is made of, beside what it begins with.
pub(super) struct Parts {
    pub(super) log: Log,
    pub(super) tail: Tail,
    pub(super) node: NodeId,
    pub(super) inbox: mpsc::Receiver<Request<Ticket>>,
    pub(super) arrivals: mpsc::Receiver<Arrival>,
    pub(super) announcements: Announcements,
    pub(super) clock: Clock,
    pub(super) rng: StdRng,
    pub(super) metrics: metrics::Journal,
}

impl Writer {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { log, tail, node, inbox, arrivals, announcements, clock, rng, metrics } = parts;
        let (sequencer, turns) = (Sequencer::new(node), Turns::new(node, clock.now()));
        let (operation, published_at, staged_at) = (None, None, None);
        Self {
            log,
            tail,
            sequencer,
            turns,
            node,
            inbox,
            arrivals,
            announcements,
            clock,
            rng,
            metrics,
            operation,
            published_at,
            staged_at,
        }
    }

    /// Runs until it is stopped and nothing waits any more, or until the log makes no sense.
    pub(super) async fn run(mut self, stop: Stop) -> Result<(), Error> {
        let ended = self.work(&stop).await;
        self.tail.refuse_new();
        for ticket in self.sequencer.abandon() {
            // What is on its way may be stored; nobody will know in time.
            drop(ticket.reply.send(Err(Unanswered::Late)));
        }
        ended
    }

    async fn work(&mut self, stop: &Stop) -> Result<(), Error> {
        let mut requests = Vec::with_capacity(INBOX_BATCH);
        let mut open = true;
        loop {
            let now = self.clock.now();
            let late = self.sequencer.on_wake(now);
            self.tell(late);
            if self.sequencer.is_idle() {
                self.tail.note_progress(false, now);
            }
            let wake = [self.begin(now), self.sequencer.next_wake()].into_iter().flatten().min();
            if stop.is_requested() && self.sequencer.is_idle() && self.inbox.is_empty() {
                return Ok(());
            }
            let turn = wake.unwrap_or(now + Duration::from_hours(1));
            tokio::select! {
                done = under_way(&mut self.operation) => {
                    self.operation = None;
                    self.on_done(done).await?;
                }
                arrival = self.arrivals.recv() => match arrival {
                    Some(arrival) => self.on_arrival(arrival).await?,
                    None => return Err(Error::FollowerGone),
                },
                count = self.inbox.recv_many(&mut requests, INBOX_BATCH), if open => {
                    open = count > 0;
                    requests.drain(..).for_each(|request| self.sequencer.push(request));
                    self.tail.note_waiting(self.clock.now());
                }
                announced = self.announcements.next() => match announced {
                    Some(announced) => self.on_announcement(&announced),
                    None => return Err(Error::FollowerGone),
                },
                () = tokio::time::sleep_until(turn.into()), if wake.is_some() => {}
                () = stop.requested(), if open => {
                    self.tail.refuse_new();
                    self.inbox.close();
                    open = false;
                    while let Ok(request) = self.inbox.try_recv() {
                        self.sequencer.push(request);
                    }
                }
            }
        }
    }

    /// Stages and publishes if there is something to stage and it is this node's turn. Says when to look again.
    fn begin(&mut self, now: Instant) -> Option<Instant> {
        if self.operation.is_some() || self.sequencer.is_flying() || !self.sequencer.has_queue() {
            return None;
        }
        let wait = self.sequencer.rests_until(self.staged_at, now).or_else(|| self.turns.wait(now));
        if wait.is_some() {
            return wait;
        }
        let id = RecordId::generate(self.clock.timestamp(), &mut self.rng);
        let stage = {
            let fold = self.tail.lock();
            self.sequencer.stage(&fold, id, now)
        };
        self.tell(stage.answers);
        if let Some(outgoing) = stage.outgoing {
            (self.published_at, self.staged_at) = (Some(now), Some(now));
            self.operation = Some(self.publish(outgoing, None));
            #[cfg(feature = "broken")]
            if crate::lifecycle::broken::Break::EarlyReceipt.is_chosen() {
                let early = self.sequencer.acknowledge_unseen();
                self.tell(early);
            }
        } else {
            self.tail.note_progress(self.sequencer.has_queue(), now);
        }
        None
    }

    async fn on_done(&mut self, done: Done) -> Result<(), Error> {
        match done {
            Done::Published { id, outcome } => {
                if matches!(outcome, Outcome::Stored { .. }) {
                    self.note_win();
                } else {
                    self.note_outcome(&outcome);
                }
                let told = self.clock.timestamp();
                let next = {
                    let mut fold = self.tail.lock();
                    self.sequencer.on_outcome(&mut fold, (id, outcome), told)
                };
                self.go_on(next).await
            }
            Done::Fetched(records) => {
                for (position, bytes) in records {
                    let arrival = follower::arrival(self.tail.partition(), position, &bytes)?;
                    self.on_arrival(arrival).await?;
                }
                let looked = {
                    let fold = self.tail.lock();
                    self.sequencer.look(&fold)
                };
                if let Some(next) = looked {
                    return self.go_on(next).await;
                }
                if let (None, Some(last)) = (&self.operation, self.sequencer.behind()) {
                    self.operation = Some(self.fetch(last));
                }
                Ok(())
            }
        }
    }

    /// The record on its way is durable, whoever said so first: its acknowledgement or the follower.
    fn note_win(&mut self) {
        let now = self.clock.now();
        if let Some(published_at) = self.published_at.take() {
            let took = now.saturating_duration_since(published_at);
            self.turns.on_win(took, now);
            self.metrics.ack_duration.record(took.as_secs_f64());
        }
    }

    fn note_outcome(&self, outcome: &Outcome) {
        let partition = self.tail.partition();
        match outcome {
            Outcome::Stored { .. } => {}
            Outcome::Conflict { .. } => self.metrics.conflicts.increment(1),
            Outcome::Repeated { position } => {
                debug!("a record of partition {partition} was stored before, at {position}");
            }
            Outcome::Unknown { reason } => {
                warn!("a record of partition {partition} is in doubt: {reason}");
            }
            Outcome::Refused { reason } => {
                warn!("JetStream refused a record of partition {partition}: {reason}");
            }
        }
    }

    async fn on_arrival(&mut self, arrival: Arrival) -> Result<(), Error> {
        let arrival = match arrival {
            Arrival::Own { position, id, bytes } => {
                if position <= self.tail.position() {
                    return Ok(());
                }
                if self.sequencer.flies(id) {
                    return self.on_own(position, id).await;
                }
                follower::arrival(self.tail.partition(), position, &bytes)?
            }
            other @ (Arrival::Record(_) | Arrival::Unreadable(_)) => other,
        };
        let (fit, next, position) = match arrival {
            Arrival::Record(folded) => {
                let told = self.clock.timestamp();
                let (fit, next) = {
                    let mut fold = self.tail.lock();
                    self.sequencer.on_record(&mut fold, &folded, told)
                };
                // A node that only notes outcomes takes its time, which is no measure of whose turn it is.
                if fit == Fit::Folded && !folded.record.events.is_empty() {
                    self.turns.on_record(folded.record.node, self.clock.now());
                }
                (fit, next, folded.position)
            }
            Arrival::Own { .. } => return Ok(()),
            Arrival::Unreadable(position) => {
                let mut fold = self.tail.lock();
                let fit = fold.skip(position);
                let next = self.sequencer.look(&fold).unwrap_or(Next::Settled(Vec::new()));
                (fit, next, position)
            }
        };
        match fit {
            Fit::Folded => self.go_on(next).await,
            Fit::Known => Ok(()),
            Fit::Ahead => {
                // The follower skips what it takes for folded, so a hole means that a fetch ran ahead of it.
                debug!("position {position} came before the ones between");
                Ok(())
            }
        }
    }

    /// The record on its way was seen in the log before its acknowledgement came: that says the same.
    async fn on_own(&mut self, position: u64, id: RecordId) -> Result<(), Error> {
        let told = self.clock.timestamp();
        if self.tail.lock().fit(position) != Fit::Folded {
            return Ok(());
        }
        self.note_win();
        let next = {
            let mut fold = self.tail.lock();
            self.sequencer.on_outcome(&mut fold, (id, Outcome::Stored { position }), told)
        };
        self.go_on(next).await
    }

    /// Does what the sequencer asks for after the fold or the record in flight has moved.
    async fn go_on(&mut self, next: Next<Ticket>) -> Result<(), Error> {
        let (now, position) = (self.clock.now(), self.tail.lock().position());
        if position != self.tail.position() {
            self.tail.publish(position);
        }
        match next {
            Next::Settled(answers) => {
                if !self.sequencer.is_flying() {
                    // The record came by the follower before its acknowledgement did.
                    self.operation = None;
                }
                self.tell(answers);
            }
            Next::Again(outgoing) => {
                self.metrics.republished_records.increment(1);
                self.operation = Some(self.publish(outgoing, Some(DOUBT_PAUSE)));
                return Ok(());
            }
            Next::Behind(last) => self.operation = Some(self.fetch(last)),
            Next::Lost => {
                self.operation = None;
                if self.turns.on_loss() == Loss::Announce {
                    let node = Bytes::copy_from_slice(self.node.uuid().as_bytes());
                    self.log.announce(self.tail.partition(), node).await;
                }
            }
            Next::WentBack { last } => {
                return Err(Error::WentBack { partition: self.tail.partition(), last, position });
            }
        }
        self.tail.note_progress(!self.sequencer.is_idle(), now);
        Ok(())
    }

    fn tell(&self, answers: Vec<Answer<Ticket>>) {
        let mut stored = 0;
        for answer in answers {
            if let Ok(verdicts) = &answer.verdicts {
                stored += verdicts.iter().filter(|v| matches!(v, Verdict::Stored(_))).count();
            }
            let Ticket { reply, place } = answer.ticket;
            drop(place);
            // Whoever does not wait any more was told by its deadline.
            drop(reply.send(answer.verdicts));
        }
        if stored > 0 {
            self.metrics.appended_events.increment(stored as u64);
            #[expect(clippy::cast_precision_loss, reason = "a record has at most 1 000 events")]
            self.metrics.record_events.record(stored as f64);
        }
    }

    fn on_announcement(&mut self, announced: &[u8]) {
        if let Ok(node) = uuid::Uuid::from_slice(announced) {
            self.turns.on_announcement(NodeId::from_uuid(node), self.clock.now());
        }
    }
}
