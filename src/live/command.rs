//! Pure: what a session and its door tell each other.
//! Promises words only: each is plain data.
//! Does not decide; `session` does.

use std::time::{Duration, Instant};

use super::gap::Gap;

/// How a client joins a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join {
    /// The client has everything up to this seq; 0 for one that begins.
    pub watermark: u64,
    /// Whether the client knows what a gap is (capability `gaps`). Without it a gap closes the connection.
    pub has_gaps: bool,
    /// The conversation's head, read after live frames began to come in.
    pub head: u64,
    /// The lowest seq that can be replayed; 1 normally.
    pub oldest: u64,
    /// Whether the client's epoch is the log's. A client that names none has nothing of another one.
    pub epoch_matches: bool,
}

/// An event as it comes from the tail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live<F> {
    /// Its place in the conversation.
    pub seq: u64,
    /// What it weighs while it is held.
    pub bytes: usize,
    /// What is written to the connection.
    pub frame: F,
}

/// The answer to a [`Command::Fetch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<F> {
    /// The `after` it was asked with.
    pub after: u64,
    /// Frames with their seqs, ascending, without a hole, from `after + 1`. What comes behind a hole is ignored.
    pub frames: Vec<(u64, F)>,
    /// The conversation's head at that time.
    pub head: u64,
    /// Whether there is more that can be had now. Where there is not, and more is needed, the projection lags.
    pub has_more: bool,
}

/// Why a replay cannot be completed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Postgres or its pool has too much to do; or live frames came faster than the replay.
    Pressure,
    /// Postgres does not have it yet, and memory has it no longer.
    ProjectionLag,
    /// It took too long.
    Timeout,
}

/// Why something was not done, on a connection that stays open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Error 1003 `invalid_watermark`: nobody can have read that far.
    WatermarkAhead {
        /// Where the conversation ends.
        head: u64,
    },
    /// Error 9001 `unavailable`: this node is on its way out and begins no replay.
    Draining,
}

/// How the connection is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// 1013 with `{"reason":"replay_unavailable","retryAfterMs":n}`: the client does not know what a gap is.
    TryLater {
        /// When to come back, at the earliest.
        retry_after: Duration,
    },
}

/// What the door is to do. The order counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<F> {
    /// Send this event.
    Event(u64, F),
    /// Read a page from memory or else Postgres, and answer with `on_page` or `on_page_failed`. Never more than one
    /// is out. Authorization is looked at again each time.
    Fetch {
        /// The seq to go on from, exclusive.
        after: u64,
        /// Most frames.
        limit: usize,
    },
    /// Everything up to here was sent.
    ReplayComplete {
        /// Up to where.
        watermark: u64,
    },
    /// Too much for one replay: nothing is sent until the client syncs.
    ReplayTruncated {
        /// What was sent.
        watermark: u64,
        /// Where the conversation ends.
        head: u64,
    },
    /// What the client has cannot be gone on from: nothing is sent until it syncs.
    ReplayGone {
        /// What the client said.
        watermark: u64,
        /// Where to restart.
        oldest: u64,
    },
    /// Error 9002 `replay_unavailable`: the events from `from` to `to` come later; what follows may lie beyond them.
    /// From here to the next `ReplayComplete` an event has no `id:` in a stream of server-sent events.
    Gap {
        /// The highest seq below which the client has everything.
        watermark: u64,
        /// The first seq that is missing.
        from: u64,
        /// The last one.
        to: u64,
        /// Where the conversation ends.
        head: u64,
        /// Why.
        cause: Cause,
    },
    /// Send an error; the connection stays.
    Refuse {
        /// Which.
        code: Refused,
    },
    /// Send the reason as an error and close. Nothing comes after it.
    Close(Close),
}

/// Where a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The client's watermark is above the head: another node may have been ahead, so live frames are waited for.
    Attach,
    /// What the client missed is sent; live frames are held.
    Replay,
    /// Live frames are sent as they come.
    Live,
    /// A live frame was missing: it is fetched, and those behind it are held.
    Fill,
    /// Live frames are sent; something announced is missing below them.
    Gap,
    /// As `Replay`, because the client asked on a live connection.
    Sync,
    /// The client was told to sync, and nothing is sent until it does.
    Waiting,
    /// The node is on its way out: what is there is sent, nothing is begun.
    Drain,
    /// The door was told to close.
    Closed,
}

/// What can be seen of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Where it is.
    pub state: State,
    /// Everything up to this seq was sent, or acknowledged to this connection.
    pub contiguous: u64,
    /// The highest seq that was heard of.
    pub head: u64,
    /// How many frames are held.
    pub held_frames: usize,
    /// What they weigh.
    pub held_bytes: usize,
    /// Since when the lowest of them is held.
    pub held_since: Option<Instant>,
    /// The oldest gap.
    pub gap: Option<Gap>,
    /// How many gaps there are.
    pub gaps: usize,
    /// Whether a page is on its way.
    pub is_fetching: bool,
}
