//! What a conversation has come to over all connections, and what each frame of the server does to it.
//! Promises to tell the application in the order in which the reader passes things on.
//! Does not connect; `attempt` does.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::mpsc;

use super::frame::{self, Details, Frame, Text};
use super::keep::Kept;
use super::{Settings, Start, State, Stopped, Telling, Told};
use crate::event::ConversationId;
use crate::live::gap::Gap;
use crate::live::reader::{Action, Incoming, Log, Reader};

/// How long a hole that nobody announced may stay: usually an ack has passed events that are on their way.
const HOLE_MAX: Duration = Duration::from_secs(1);

/// Refused watermarks in a row at which reading goes on at the head: it is not a node that is behind (PROTOCOL: 1003).
const AHEAD_MAX: u8 = 2;

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// There is to be none any more.
    Stopped(Stopped),
    /// Another is to be opened, after at least what the server asked for.
    Again { why: String, after: Option<Duration>, is_overload: bool },
    /// Nobody listens any more.
    Unheard,
}

impl Ended {
    /// The other end said nothing, or went.
    pub(super) fn broken(why: impl std::fmt::Display) -> Self {
        Self::Again { why: why.to_string(), after: None, is_overload: true }
    }
}

/// One conversation as its reader has it.
#[derive(Debug)]
pub(super) struct Course {
    conversation: ConversationId,
    reader: Reader,
    /// Whether the watermark means something: not before the first welcome of a client that begins at the head.
    is_placed: bool,
    epoch: Option<String>,
    /// The epoch of this connection, which is taken over when its replay begins to count.
    met: Option<String>,
    ahead: u8,
    /// A seq that is there, below which something was missing then.
    hole: Option<(u64, Instant)>,
    state: State,
    tell: mpsc::Sender<Telling>,
}

impl Course {
    pub(super) fn new(
        settings: &Settings,
        kept: Option<Kept>,
        tell: mpsc::Sender<Telling>,
    ) -> Self {
        let start = match settings.start {
            Start::Head => None,
            Start::After(seq) => Some(Kept { watermark: seq, epoch: None }),
        };
        let start = kept.or(start);
        Self {
            conversation: settings.conversation,
            reader: Reader::resume(start.as_ref().map_or(0, |kept| kept.watermark)),
            is_placed: start.is_some(),
            epoch: start.and_then(|kept| kept.epoch),
            met: None,
            ahead: 0,
            hole: None,
            state: State::Connecting,
            tell,
        }
    }

    pub(super) fn hello(&self) -> Value {
        let watermark = self.is_placed.then(|| self.reader.watermark());
        frame::hello(self.conversation, watermark, self.epoch.as_deref())
    }

    pub(super) async fn tell(&mut self, told: Told) -> Result<(), Ended> {
        let watermark = self.reader.watermark();
        let kept = self.is_placed.then(|| Kept { watermark, epoch: self.epoch.clone() });
        self.tell.send(Telling { told, kept }).await.map_err(|_closed| Ended::Unheard)
    }

    pub(super) async fn enter(&mut self, state: State) -> Result<(), Ended> {
        if self.state == state {
            return Ok(());
        }
        self.state = state.clone();
        self.tell(Told::State(state)).await
    }

    /// Takes in a frame; gives frames to answer with.
    pub(super) async fn on_frame(
        &mut self,
        frame: &Frame,
        text: Text,
        now: Instant,
    ) -> Result<Vec<Value>, Ended> {
        let mut actions = Vec::new();
        let seq = frame.seq.unwrap_or(0);
        let watermark = frame.watermark.unwrap_or(0);
        match frame.name.as_str() {
            "welcome" => {
                self.on_welcome(frame);
                self.reader.on(Incoming::Connected, &mut actions);
                self.enter(State::CatchingUp).await?;
            }
            "event" | "tombstone" => self.reader.on(Incoming::Event(seq, text), &mut actions),
            "ack" => {
                self.reader.on(Incoming::Ack(seq), &mut actions);
                self.suspect(seq, now);
            }
            "heartbeat" => self.suspect(frame.head_seq.unwrap_or(0), now),
            "replayComplete" => {
                self.epoch.clone_from(&self.met);
                self.reader.on(Incoming::ReplayComplete { watermark }, &mut actions);
            }
            "replayTruncated" => self.reader.on(Incoming::ReplayTruncated, &mut actions),
            "replayGone" => {
                let is_same = self.epoch.is_none() || self.epoch == frame.epoch;
                let log = if is_same { Log::Same } else { Log::Another };
                self.epoch.clone_from(&frame.epoch);
                let oldest = frame.oldest_seq.unwrap_or(1);
                self.reader.on(Incoming::ReplayGone { oldest, log }, &mut actions);
            }
            "error" if frame.client_id.is_none() => self.on_error(frame, &mut actions).await?,
            _ => {}
        }
        self.carry_out(actions).await
    }

    fn on_welcome(&mut self, frame: &Frame) {
        self.met.clone_from(&frame.epoch);
        if self.epoch.is_none() {
            self.epoch.clone_from(&frame.epoch);
        }
        if !self.is_placed {
            self.reader = Reader::resume(frame.watermark.unwrap_or(0));
            self.is_placed = true;
        }
        self.hole = None;
    }

    async fn on_error(
        &mut self,
        frame: &Frame,
        actions: &mut Vec<Action<Text>>,
    ) -> Result<(), Ended> {
        match (frame.number, &frame.details) {
            (9_002, Some(Details { from: Some(from), to: Some(to), .. })) => {
                let gap = Gap { from: *from, to: *to };
                self.reader.on(Incoming::Gap(gap), actions);
                self.enter(State::Missing(gap)).await?;
            }
            (1_003, Some(Details { head_seq: Some(head), .. })) => {
                self.ahead += 1;
                if self.ahead < AHEAD_MAX {
                    self.reader.on(Incoming::WatermarkAhead, actions);
                } else {
                    let (watermark, head) = (self.reader.watermark(), *head);
                    self.reader = Reader::resume(head);
                    self.ahead = 0;
                    self.tell(Told::Rewound { watermark, head }).await?;
                    actions.push(Action::Sync { watermark: head });
                }
            }
            (2_002, _) => return Err(Ended::Stopped(Stopped::Forbidden)),
            (4_001, _) => return Err(Ended::Stopped(Stopped::NotFound)),
            _ => {}
        }
        Ok(())
    }

    async fn carry_out(&mut self, actions: Vec<Action<Text>>) -> Result<Vec<Value>, Ended> {
        let mut answers = Vec::new();
        for action in actions {
            match action {
                Action::Deliver(seq, frame) => self.tell(Told::Event { seq, frame }).await?,
                Action::Reset => self.tell(Told::Reset).await?,
                Action::Sync { watermark } => {
                    answers.push(frame::sync(self.conversation, watermark));
                }
                Action::Complete { watermark } => {
                    self.ahead = 0;
                    self.enter(State::Live { watermark }).await?;
                }
                Action::Reconnect => {
                    let why = "the server does not know the watermark yet".to_owned();
                    return Err(Ended::Again { why, after: None, is_overload: false });
                }
            }
        }
        let watermark = self.reader.watermark();
        // A gap on a live connection may end without a word; the newest is told last, and is the highest.
        if matches!(self.state, State::Missing(gap) if watermark >= gap.to) {
            self.enter(State::Live { watermark }).await?;
        }
        Ok(answers)
    }

    /// Something is said to be at this seq: if something is missing before, it is looked at again in a moment.
    fn suspect(&mut self, seq: u64, now: Instant) {
        let is_told = self.reader.is_told_before(seq.saturating_add(1));
        if self.is_placed && self.hole.is_none() && !is_told {
            self.hole = Some((seq, now + HOLE_MAX));
        }
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.hole.map(|(_, at)| at)
    }

    /// Asks for what is still missing.
    pub(super) fn on_wake(&mut self, now: Instant) -> Option<Value> {
        let (seq, _) = self.hole.take_if(|(_, at)| now >= *at)?;
        let is_told = self.reader.is_told_before(seq.saturating_add(1));
        (!is_told).then(|| frame::sync(self.conversation, self.reader.watermark()))
    }
}
