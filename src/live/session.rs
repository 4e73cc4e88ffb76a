//! Pure: one conversation on one connection: what is sent, held, fetched and announced.
//! Promises n+1 only after n or after the gap before it was announced, each event once, and one page on its way at most.
//! Does not write, read or wait; the door does what the commands say, in their order.
//!
//! The way of a session: hold live frames, replay from the client's watermark up to the head, `replayComplete`, flush
//! what was held, live. What cannot be replayed in time becomes a gap for a client that knows gaps, else a close.
//!
//! Corners that the protocol leaves open:
//! * A watermark above the head is waited for as long as live frames are held: after a failover the other node may be
//!   a moment behind. Then it is refused, with the head, and nothing is sent until the client syncs.
//! * After `replayTruncated` and `replayGone` nothing is sent until the client syncs, and nothing is held: what comes
//!   meanwhile belongs to that replay.
//! * A sync above what was sent tells that the client has it from elsewhere (REST): it is taken at its word. A sync
//!   below what was sent asks for it again. While a replay runs, one that it covers is answered by its end, and one
//!   that goes further back is served after it, before `replayComplete`.
//! * A sync in a gap is a wish to try now, within the rate of tries. If that fails, it is answered by 9002 again.
//! * A hole that opens in a gap is announced at once: holding would delay everybody behind an outage. With as many
//!   gaps as are allowed, what lies behind a further hole is withheld and replayed when the gaps are closed: widening
//!   a gap over events that were sent would send them twice.
//! * The connection's own sends: an ack passes the event, whether it comes before or while the event is held. A door
//!   that knows an event of the tail for its own says `on_acked` for it in place of `on_live`.
//! * A page that comes after its replay was given up is used all the same.
//! * Draining lets pass what comes in its turn and begins nothing: what is held is left to the replay on the next
//!   node. Closing is the door's.

mod course;
mod refill;

use std::time::{Duration, Instant};

use self::refill::Refill;
use super::backlog::{Backlog, HOLD_MAX};
use super::command::{Cause, Command, Join, Live, Page, Refused, State, Status};
use super::reach::Reach;

/// Most frames of one page: a fifth of what may wait to be written on a connection (API: 1 000).
pub const PAGE_FRAMES: usize = 200;

/// Most frames of one replay. Who missed more should say so again, or read pages; so no connection replays for
/// minutes because of one frame.
pub const REPLAY_FRAMES_MAX: usize = 10_000;

/// When to come back where no answer says it (API: `DB_RETRY_AFTER_MS`).
pub const RETRY_AFTER: Duration = Duration::from_secs(1);

/// One conversation on one connection. `F` is what is written.
#[derive(Debug)]
pub struct Session<F> {
    state: State,
    has_gaps: bool,
    oldest: u64,
    reach: Reach,
    /// Invariant: empty but in a replay.
    backlog: Backlog<F>,
    replay: Replay,
    /// Invariant: one at most, whatever the state.
    fetch: Option<Fetch>,
    refill: Refill,
    /// Why the newest gap came to be.
    cause: Cause,
}

/// A replay: by joining, by sync, or of a hole.
#[derive(Clone, Copy, Debug)]
struct Replay {
    /// The client's watermark.
    from: u64,
    since: Instant,
    frames: usize,
    /// Whether the client waits for `replayComplete`.
    is_owed: bool,
    /// From where to replay again after this one.
    again: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Fetch {
    after: u64,
    since: Instant,
}

impl<F> Session<F> {
    /// A client joins.
    pub fn join(join: Join, now: Instant, out: &mut Vec<Command<F>>) -> Self {
        let Join { watermark, has_gaps, head, oldest, epoch_matches } = join;
        let mut session = Self {
            state: State::Attach,
            has_gaps,
            oldest,
            reach: Reach::new(watermark, head),
            backlog: Backlog::new(),
            replay: Replay { from: watermark, since: now, frames: 0, is_owed: true, again: None },
            fetch: None,
            refill: Refill::new(now),
            cause: Cause::Pressure,
        };
        if !epoch_matches || (watermark <= head && session.is_gone(watermark)) {
            session.state = State::Waiting;
            out.push(Command::ReplayGone { watermark, oldest });
        } else if watermark <= head {
            session.begin(State::Replay, watermark, now, out);
        }
        session
    }

    /// An event comes from the tail.
    pub fn on_live(&mut self, live: Live<F>, now: Instant, out: &mut Vec<Command<F>>) {
        self.reach.see(live.seq);
        match self.state {
            State::Closed => {}
            State::Attach => {
                if self.attach(now, out) {
                    self.on_live(live, now, out);
                }
            }
            State::Waiting => self.reach.owe(live.seq),
            State::Live if live.seq > self.reach.frontier() + 1 => {
                self.reach.owe(live.seq - 1);
                self.replay = Self::replay_from(self.reach.frontier(), now);
                self.state = State::Fill;
                self.hold(live, now, out);
            }
            State::Live => {
                self.send(live.seq, live.frame, out);
            }
            State::Replay | State::Sync | State::Fill => self.hold(live, now, out),
            State::Gap => self.send_beyond(live, out),
            State::Drain if self.reach.is_behind() => {}
            State::Drain => {
                // Behind a hole nothing passes any more: the client goes on from here elsewhere.
                self.send(live.seq, live.frame, out);
                self.reach.owe(live.seq);
            }
        }
        self.settle(now, out);
    }

    /// The conversation has been known for long to reach so far: what did not come by now is read.
    pub fn on_head(&mut self, head: u64, now: Instant, out: &mut Vec<Command<F>>) {
        if self.state == State::Live && head > self.reach.frontier() {
            self.reach.see(head);
            self.reach.owe(head);
            self.replay = Self::replay_from(self.reach.frontier(), now);
            self.state = State::Fill;
            self.settle(now, out);
        }
    }

    /// The ack of an own send with this seq was written to the connection, so its event is not. A door that
    /// recognises the event of an own send in the tail says this in place of `on_live`.
    pub fn on_acked(&mut self, seq: u64, now: Instant, out: &mut Vec<Command<F>>) {
        if self.state != State::Closed {
            self.reach.ack(seq);
            self.attach(now, out);
            self.settle(now, out);
        }
    }

    /// A page comes. Exactly one answer is expected for each fetch, in any state.
    pub fn on_page(&mut self, page: Page<F>, now: Instant, out: &mut Vec<Command<F>>) {
        let Some(fetch) = self.fetch.take_if(|fetch| fetch.after == page.after) else {
            return;
        };
        if matches!(self.state, State::Attach | State::Waiting | State::Closed) {
            return;
        }
        self.reach.see(page.head);
        let before = self.reach.contiguous();
        for (seq, frame) in page.frames {
            self.replay.frames += usize::from(self.send(seq, frame, out));
        }
        let is_stale = fetch.after != before;
        let has_moved = self.reach.contiguous() > before;
        let is_barren = !is_stale && !has_moved;
        match self.state {
            State::Replay | State::Sync | State::Fill => {
                self.flush(self.reach.due(), out);
                let is_short = is_barren || !(page.has_more || is_stale);
                if self.reach.is_behind() && self.replay.frames >= REPLAY_FRAMES_MAX {
                    self.truncate(out);
                } else if self.reach.is_behind() && is_short {
                    self.give_up(Cause::ProjectionLag, RETRY_AFTER, now, out);
                }
            }
            State::Gap if is_barren => self.fail(Cause::ProjectionLag, RETRY_AFTER, now, out),
            State::Gap => self.refill.on_progress(now),
            State::Attach | State::Live | State::Waiting | State::Drain | State::Closed => {}
        }
        self.settle(now, out);
    }

    /// A page cannot be had now.
    pub fn on_page_failed(
        &mut self,
        cause: Cause,
        retry_after: Duration,
        now: Instant,
        out: &mut Vec<Command<F>>,
    ) {
        if self.fetch.take().is_none() {
            return;
        }
        match self.state {
            State::Replay | State::Sync | State::Fill => {
                self.give_up(cause, retry_after, now, out);
            }
            State::Gap => self.fail(cause, retry_after, now, out),
            State::Attach | State::Live | State::Waiting | State::Drain | State::Closed => {}
        }
        self.settle(now, out);
    }

    /// The client wants everything beyond this watermark.
    pub fn on_sync(&mut self, watermark: u64, now: Instant, out: &mut Vec<Command<F>>) {
        let head = self.reach.head();
        match self.state {
            State::Closed => return,
            State::Drain => return out.push(Command::Refuse { code: Refused::Draining }),
            _ if watermark > head => {
                return out.push(Command::Refuse { code: Refused::WatermarkAhead { head } });
            }
            _ if self.is_gone(watermark) => {
                return out.push(Command::ReplayGone { watermark, oldest: self.oldest });
            }
            State::Attach | State::Waiting | State::Live => {
                self.begin(State::Sync, watermark, now, out);
            }
            State::Replay | State::Sync | State::Fill => {
                self.replay.is_owed = true;
                if watermark < self.replay.from {
                    let again = self.replay.again.map_or(watermark, |again| again.min(watermark));
                    self.replay.again = Some(again);
                } else if watermark > self.reach.contiguous() {
                    self.reach.skip(watermark);
                }
            }
            State::Gap => {
                if watermark > self.reach.contiguous() {
                    self.reach.skip(watermark);
                } else {
                    self.reach.widen(watermark);
                }
                self.refill.on_asked(now);
            }
        }
        self.settle(now, out);
    }

    /// Time has passed; to be called at [`Session::next_wake`].
    pub fn on_wake(&mut self, now: Instant, out: &mut Vec<Command<F>>) {
        let is_due = self.next_wake().is_some_and(|wake| wake <= now);
        match self.state {
            State::Attach if is_due => {
                self.state = State::Waiting;
                let head = self.reach.head();
                out.push(Command::Refuse { code: Refused::WatermarkAhead { head } });
            }
            State::Replay | State::Sync | State::Fill if is_due => {
                self.give_up(Cause::Timeout, RETRY_AFTER, now, out);
            }
            State::Attach
            | State::Replay
            | State::Sync
            | State::Fill
            | State::Gap
            | State::Live
            | State::Waiting
            | State::Drain
            | State::Closed => {}
        }
        self.settle(now, out);
    }

    /// When something is to be done although nothing comes.
    pub fn next_wake(&self) -> Option<Instant> {
        match self.state {
            State::Attach => Some(self.replay.since + HOLD_MAX),
            State::Replay | State::Sync | State::Fill => {
                let fetching = self.fetch.map(|fetch| fetch.since);
                fetching.into_iter().chain(self.backlog.since()).min().map(|since| since + HOLD_MAX)
            }
            State::Gap if self.fetch.is_none() => Some(self.refill.next()),
            State::Gap | State::Live | State::Waiting | State::Drain | State::Closed => None,
        }
    }

    /// The node is on its way out.
    pub fn on_drain(&mut self, now: Instant, out: &mut Vec<Command<F>>) {
        match self.state {
            State::Closed => return,
            // Nothing flows, and nothing may begin to.
            State::Attach | State::Waiting => self.reach.mute(),
            State::Replay | State::Sync | State::Fill => self.backlog.clear(),
            State::Live | State::Gap | State::Drain => {}
        }
        self.state = State::Drain;
        self.settle(now, out);
    }

    /// What can be seen.
    pub fn status(&self) -> Status {
        Status {
            state: self.state,
            contiguous: self.reach.contiguous(),
            head: self.reach.head(),
            held_frames: self.backlog.len(),
            held_bytes: self.backlog.bytes(),
            held_since: self.backlog.since(),
            gap: self.reach.gaps().first(),
            gaps: self.reach.gaps().len(),
            is_fetching: self.fetch.is_some(),
        }
    }
}

#[cfg(test)]
mod tests;
