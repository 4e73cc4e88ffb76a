//! Pure: the client's half: what a reader has, what it may keep as its watermark, and when it asks.
//! Promises each event once, in order but for announced gaps, and a watermark that never passes a hole.
//! Does not connect or keep anything.
//!
//! Events beyond an announced gap are passed on at once; the application shows where something is missing. An event
//! beyond a hole that nobody announced is not: the reader asks, and gets it again in its turn.

use super::gap::Gap;

/// Most pieces that a reader remembers beyond its watermark: twice the gaps that a server announces, and room for own
/// sends. At the bound an event is dropped and asked for once the gaps are closed.
pub const PIECES_MAX: usize = 64;

/// What comes to a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming<E> {
    /// It is connected, and has said hello with its watermark.
    Connected,
    /// An event.
    Event(u64, E),
    /// An own send was stored with this seq.
    Ack(u64),
    /// Everything up to here was sent.
    ReplayComplete {
        /// Up to where.
        watermark: u64,
    },
    /// There is more than one replay holds.
    ReplayTruncated,
    /// What the reader has cannot be gone on from.
    ReplayGone {
        /// Where to restart.
        oldest: u64,
        /// Which log it is.
        log: Log,
    },
    /// These come later.
    Gap(Gap),
    /// The watermark was refused: this node ends before it.
    WatermarkAhead,
}

/// Whether it is the log that the reader knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// It is: seqs mean the same events.
    Same,
    /// The epoch differs: nothing that was read means anything.
    Another,
}

/// What a reader does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<E> {
    /// Pass the event on to the application.
    Deliver(u64, E),
    /// Forget everything that was passed on: it was another log.
    Reset,
    /// Send `sync`.
    Sync {
        /// From where.
        watermark: u64,
    },
    /// Everything up to here has been passed on.
    Complete {
        /// Up to where.
        watermark: u64,
    },
    /// Connect again, later and perhaps to another node.
    Reconnect,
}

/// The state of one conversation at a client.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    watermark: u64,
    /// What it has beyond the watermark. Invariant: in order, apart, none touches the watermark.
    had: Vec<Gap>,
    /// What it was told to come later.
    told: Vec<Gap>,
    is_syncing: bool,
}

impl Reader {
    /// A reader that has everything up to this watermark, kept or 0.
    pub fn resume(watermark: u64) -> Self {
        Self { watermark, ..Self::default() }
    }

    /// What may be kept: everything up to here has been passed on.
    pub const fn watermark(&self) -> u64 {
        self.watermark
    }

    /// Whether this seq has been passed on, or was an own send.
    pub fn has(&self, seq: u64) -> bool {
        seq <= self.watermark || find(&self.had, seq).is_some()
    }

    /// Takes in what comes, in the order of arrival.
    pub fn on<E>(&mut self, incoming: Incoming<E>, out: &mut Vec<Action<E>>) {
        match incoming {
            Incoming::Connected => {
                self.is_syncing = false;
                self.told.clear();
            }
            Incoming::Event(seq, event) => {
                if self.has(seq) {
                    return;
                }
                if self.is_told_before(seq) && self.insert(seq) {
                    out.push(Action::Deliver(seq, event));
                } else {
                    self.sync(out);
                }
            }
            Incoming::Ack(seq) => {
                if !self.has(seq) {
                    self.insert(seq);
                }
            }
            Incoming::ReplayComplete { watermark } => {
                self.is_syncing = false;
                if self.watermark < watermark {
                    self.sync(out);
                } else {
                    out.push(Action::Complete { watermark });
                }
            }
            Incoming::ReplayTruncated => {
                self.is_syncing = false;
                self.sync(out);
            }
            Incoming::ReplayGone { oldest, log } => self.restart(oldest, log, out),
            Incoming::Gap(gap) => {
                self.is_syncing = false;
                self.tell(gap);
            }
            Incoming::WatermarkAhead => out.push(Action::Reconnect),
        }
    }

    /// One at a time; the answer to it is a replay that ends, or a gap.
    fn sync<E>(&mut self, out: &mut Vec<Action<E>>) {
        if !std::mem::replace(&mut self.is_syncing, true) {
            out.push(Action::Sync { watermark: self.watermark });
        }
    }

    fn restart<E>(&mut self, oldest: u64, log: Log, out: &mut Vec<Action<E>>) {
        let before = oldest.saturating_sub(1);
        match log {
            Log::Same => self.watermark = self.watermark.max(before),
            Log::Another => {
                *self = Self::resume(before);
                out.push(Action::Reset);
            }
        }
        self.join();
        self.is_syncing = false;
        self.sync(out);
    }

    /// Whether everything before this seq is here or announced.
    pub fn is_told_before(&self, seq: u64) -> bool {
        let mut next = self.watermark + 1;
        while next < seq {
            let Some(piece) = find(&self.had, next).or_else(|| find(&self.told, next)) else {
                return false;
            };
            next = piece.to + 1;
        }
        true
    }

    /// `false` at the bound of pieces.
    fn insert(&mut self, seq: u64) -> bool {
        let at = self.had.partition_point(|piece| piece.to < seq);
        let touches_left = at > 0 && self.had[at - 1].to + 1 == seq;
        let touches_right = self.had.get(at).is_some_and(|piece| seq + 1 == piece.from);
        match (touches_left, touches_right) {
            (true, true) => self.had[at - 1].to = self.had.remove(at).to,
            (true, false) => self.had[at - 1].to = seq,
            (false, true) => self.had[at].from = seq,
            (false, false) if seq == self.watermark + 1 => self.watermark = seq,
            (false, false) if self.had.len() >= PIECES_MAX => return false,
            (false, false) => self.had.insert(at, Gap { from: seq, to: seq }),
        }
        self.join();
        true
    }

    /// What touches the watermark becomes part of it.
    fn join(&mut self) {
        while let Some(piece) = self.had.first().filter(|piece| piece.from <= self.watermark + 1) {
            self.watermark = self.watermark.max(piece.to);
            self.had.remove(0);
        }
        let watermark = self.watermark;
        self.told.retain(|gap| gap.to > watermark);
    }

    /// At the bound the newest is widened: it allows more than was announced, and what is missing then is found when
    /// the replay ends.
    fn tell(&mut self, gap: Gap) {
        let is_full = self.told.len() >= PIECES_MAX;
        match self.told.last_mut() {
            Some(last) if is_full => last.to = last.to.max(gap.to),
            _ => self.told.push(gap),
        }
    }
}

fn find(pieces: &[Gap], seq: u64) -> Option<Gap> {
    pieces.iter().copied().find(|piece| piece.from <= seq && seq <= piece.to)
}

#[cfg(test)]
mod tests;
