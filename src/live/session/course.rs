//! Pure: the way of a session from replay to live, into a gap and out of it.
//! Promises that whatever came in is settled before the door hears of it: sent, held, asked for, announced.
//! Does not know what came in.

use std::time::{Duration, Instant};

use super::{Fetch, PAGE_FRAMES, REPLAY_FRAMES_MAX, RETRY_AFTER, Replay, Session};
use crate::live::command::{Cause, Close, Command, Live, State};
use crate::live::reach::Pass;

impl<F> Session<F> {
    /// Whether what follows this watermark can be replayed no more.
    pub(super) const fn is_gone(&self, watermark: u64) -> bool {
        watermark < self.oldest.saturating_sub(1)
    }

    /// The head has reached the client's watermark: begins. `false` if it has not, or nobody waits for it.
    pub(super) fn attach(&mut self, now: Instant, out: &mut Vec<Command<F>>) -> bool {
        let watermark = self.replay.from;
        let can = self.state == State::Attach && watermark <= self.reach.head();
        if can && self.is_gone(watermark) {
            self.state = State::Waiting;
            out.push(Command::ReplayGone { watermark, oldest: self.oldest });
        } else if can {
            self.begin(State::Replay, watermark, now, out);
        }
        can
    }

    /// Begins to replay from this watermark, which is not above the head.
    pub(super) fn begin(
        &mut self,
        state: State,
        watermark: u64,
        now: Instant,
        out: &mut Vec<Command<F>>,
    ) {
        self.reach.rewind(watermark);
        self.backlog.skip(watermark);
        self.replay = Replay { is_owed: true, ..Self::replay_from(watermark, now) };
        self.state = state;
        self.settle(now, out);
    }

    /// A replay that nobody asked for.
    pub(super) const fn replay_from(watermark: u64, now: Instant) -> Replay {
        Replay { from: watermark, since: now, frames: 0, is_owed: false, again: None }
    }

    /// Sends an event if it is its turn, unless its ack was sent. `false` if it is not its turn.
    pub(super) fn send(&mut self, seq: u64, frame: F, out: &mut Vec<Command<F>>) -> bool {
        match self.reach.pass(seq) {
            Pass::Send => out.push(Command::Event(seq, frame)),
            Pass::Acked => {}
            Pass::NotNext => return false,
        }
        true
    }

    /// Holds a live frame until it is its turn. At a bound the replay is given up.
    pub(super) fn hold(&mut self, live: Live<F>, now: Instant, out: &mut Vec<Command<F>>) {
        if live.seq <= self.reach.frontier() || self.backlog.contains(live.seq) {
            return;
        }
        if live.seq == self.reach.frontier() + 1 {
            self.send(live.seq, live.frame, out);
        } else if self.backlog.has_room_for(live.bytes) {
            self.backlog.hold(live, now);
        } else {
            self.give_up(Cause::Pressure, RETRY_AFTER, now, out);
            self.on_live(live, now, out);
        }
    }

    /// Sends a live frame although something before it is missing, which is announced first.
    pub(super) fn send_beyond(&mut self, live: Live<F>, out: &mut Vec<Command<F>>) {
        self.reach.absorb(u64::MAX);
        if live.seq > self.reach.frontier() + 1 && !self.announce(live.seq - 1, out) {
            self.reach.owe(live.seq);
        } else if live.seq == self.reach.frontier() + 1 {
            self.send(live.seq, live.frame, out);
        }
    }

    /// Announces that everything between what was sent and `to` is missing. `false` at the bound of gaps.
    fn announce(&mut self, to: u64, out: &mut Vec<Command<F>>) -> bool {
        let gap = self.reach.open_gap(to);
        if let Some(gap) = gap {
            self.say_gap(gap.from, gap.to, out);
        }
        gap.is_some()
    }

    fn say_gap(&self, from: u64, to: u64, out: &mut Vec<Command<F>>) {
        let (watermark, head) = (self.reach.contiguous(), self.reach.head());
        out.push(Command::Gap { watermark, from, to, head, cause: self.cause });
    }

    /// Sends what is held and follows without a hole, up to `limit`.
    pub(super) fn flush(&mut self, limit: u64, out: &mut Vec<Command<F>>) {
        loop {
            self.reach.absorb(limit);
            self.backlog.skip(self.reach.frontier());
            let next = self.reach.frontier() + 1;
            let Some(live) = (next <= limit).then(|| self.backlog.take(next)).flatten() else {
                return;
            };
            self.send(next, live.frame, out);
        }
    }

    /// Goes on as far as what came in allows.
    pub(super) fn settle(&mut self, now: Instant, out: &mut Vec<Command<F>>) {
        match self.state {
            State::Replay | State::Sync | State::Fill => self.settle_replay(now, out),
            State::Gap => self.settle_gap(now, out),
            State::Live => self.reach.absorb(u64::MAX),
            State::Drain => {
                self.reach.absorb(self.reach.due());
                if !self.reach.is_behind() {
                    self.reach.absorb(u64::MAX);
                    if self.reach.gaps().is_empty() {
                        self.complete(out);
                    }
                }
            }
            State::Attach | State::Waiting | State::Closed => {}
        }
    }

    fn settle_replay(&mut self, now: Instant, out: &mut Vec<Command<F>>) {
        self.flush(self.reach.due(), out);
        if self.reach.is_behind() {
            return self.ask(now, out);
        }
        let again = self.replay.again.take().filter(|&again| again < self.reach.frontier());
        if let Some(watermark) = again {
            return self.begin(State::Sync, watermark, now, out);
        }
        self.complete(out);
        self.flush(u64::MAX, out);
        self.state = State::Live;
        if let Some(first) = self.backlog.first() {
            self.reach.owe(first - 1);
            self.replay = Self::replay_from(self.reach.frontier(), now);
            self.state = State::Fill;
            self.ask(now, out);
        }
    }

    fn settle_gap(&mut self, now: Instant, out: &mut Vec<Command<F>>) {
        self.reach.absorb(u64::MAX);
        if let Some(gap) = self.reach.gaps().first() {
            if self.fetch.is_none() && self.refill.try_start(now) {
                self.fetch_up_to(gap.to, PAGE_FRAMES, now, out);
            }
        } else if self.reach.is_behind() {
            // Withheld at the bound of gaps.
            self.begin(State::Sync, self.reach.frontier(), now, out);
        } else {
            self.complete(out);
            self.state = State::Live;
        }
    }

    fn complete(&mut self, out: &mut Vec<Command<F>>) {
        if std::mem::replace(&mut self.replay.is_owed, false) {
            out.push(Command::ReplayComplete { watermark: self.reach.contiguous() });
        }
    }

    /// Asks for what lies before the first frame that is held, or else for all that is owed.
    fn ask(&mut self, now: Instant, out: &mut Vec<Command<F>>) {
        if self.fetch.is_none() {
            let held = self.backlog.first().map_or(u64::MAX, |first| first - 1);
            let room = REPLAY_FRAMES_MAX.saturating_sub(self.replay.frames).clamp(1, PAGE_FRAMES);
            self.fetch_up_to(held.min(self.reach.due()), room, now, out);
        }
    }

    fn fetch_up_to(&mut self, to: u64, most: usize, now: Instant, out: &mut Vec<Command<F>>) {
        let after = self.reach.contiguous();
        let limit = usize::try_from(to - after).unwrap_or(most).min(most);
        self.fetch = Some(Fetch { after, since: now });
        out.push(Command::Fetch { after, limit });
    }

    /// More was missed than one replay may hold.
    pub(super) fn truncate(&mut self, out: &mut Vec<Command<F>>) {
        self.reach.owe(self.backlog.last().unwrap_or(0));
        self.backlog.clear();
        self.state = State::Waiting;
        let (watermark, head) = (self.reach.contiguous(), self.reach.head());
        out.push(Command::ReplayTruncated { watermark, head });
    }

    /// A replay cannot be completed now: announces what is missing and sends what is held, or closes.
    pub(super) fn give_up(
        &mut self,
        cause: Cause,
        retry_after: Duration,
        now: Instant,
        out: &mut Vec<Command<F>>,
    ) {
        if !self.has_gaps {
            self.backlog.clear();
            self.state = State::Closed;
            return out.push(Command::Close(Close::TryLater { retry_after }));
        }
        self.state = State::Gap;
        self.cause = cause;
        self.replay.is_owed = true;
        self.refill.on_failed(retry_after, now);
        while let Some(live) = self.backlog.first().and_then(|first| self.backlog.take(first)) {
            self.send_beyond(live, out);
        }
        if self.reach.is_behind() {
            self.announce(self.reach.due(), out);
        }
        if let Some(watermark) = self.replay.again.take() {
            self.reach.widen(watermark);
        }
    }

    /// A try to close a gap failed.
    pub(super) fn fail(
        &mut self,
        cause: Cause,
        retry_after: Duration,
        now: Instant,
        out: &mut Vec<Command<F>>,
    ) {
        self.cause = cause;
        self.refill.on_failed(retry_after, now);
        if let Some(gap) = self.reach.gaps().first().filter(|_| self.refill.take_asked()) {
            self.say_gap(gap.from, gap.to, out);
        }
    }
}
