//! One connection: reads frames, writes what its sessions say, keeps its times, ends it in order.
//! Promises that a slow reader, a silent peer and a stop each end it within a bound, after having been told why.
//! Does not decide what a conversation is owed; its session does.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::{poll_fn, ready};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{SinkExt as _, StreamExt as _};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};
use tracing::debug;

use super::desk::Done;
use super::early::Joining;
use super::frame::{Code, Fault, Protocol};
use super::joined::Joined;
use super::{Credential, Sockets};
use crate::admission::bucket::Bucket;
use crate::event::{ConversationId, MessageId};
use crate::lifecycle::Seat;
use crate::live::inbox::{Inbox, News};

/// Without a hello for so long a connection is closed (API).
const HELLO_MAX: Duration = Duration::from_secs(10);

/// Without any sign of the client for so long it is closed (API).
const IDLE_MAX: Duration = Duration::from_mins(1);

/// How often the client hears of the server, whether or not there is news (API).
pub(super) const HEARTBEAT: Duration = Duration::from_secs(30);

/// Frames of a client: so many a second, and so many at once (API).
pub(super) const FRAMES_PER_SECOND: u32 = 20;
pub(super) const FRAMES_BURST: u32 = 40;

/// How long a write may take before the reader counts as too slow.
const WRITE_MAX: Duration = Duration::from_secs(10);

/// How long the other end may take to answer a close.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// The same for one that has not read what was written before: it is not waited for.
const STUCK_CLOSE_MAX: Duration = Duration::from_millis(250);

/// How long it may take to say that a connection has left its conversations.
const LEAVE_MAX: Duration = Duration::from_secs(1);

/// Over how long closes are spread when the door closes, so that clients do not all return at once. Less than what a
/// door has to drain.
pub(super) const DRAIN_WINDOW: Duration = Duration::from_secs(8);

/// Why a connection ends.
#[derive(Debug)]
pub(super) enum End {
    /// The client closed it, or it broke.
    Gone,
    /// It is closed with a code, after this error.
    Close(u16, Fault),
}

/// The talk with one client.
pub(super) struct Talk {
    pub(super) sockets: Arc<Sockets>,
    /// By which it knows its own whispers, among the connections of all nodes.
    pub(super) number: u64,
    socket: WebSocketStream<TokioIo<Upgraded>>,
    pub(super) protocol: Protocol,
    pub(super) credential: Option<Credential>,
    pub(super) inbox: Inbox,
    /// Boxed, because a node of the tree has room for eleven, and most connections have one.
    pub(super) joined: BTreeMap<ConversationId, Box<Joined>>,
    /// Joins that are not decided yet.
    pub(super) joining: HashMap<ConversationId, Joining>,
    /// How many joins were wished.
    pub(super) joins: u64,
    /// Sends, joins and pages under way. Each is a task of its own, because a task may hold one permit at most.
    pub(super) under_way: JoinSet<Done>,
    /// Events that are this connection's own and not acknowledged to it yet, and by which client id.
    pub(super) own: HashMap<MessageId, String>,
    /// What is to be written.
    pub(super) out: VecDeque<Message>,
    pub(super) rate: Bucket,
    pub(super) said_hello: bool,
    /// Whether the client knows what a gap is.
    pub(super) has_gaps: bool,
    times: Times,
}

#[derive(Clone, Copy, Debug)]
struct Times {
    began: Instant,
    heard: Instant,
    heartbeat: Instant,
    /// Since when something is being written that the other end has not taken yet.
    writes: Option<Instant>,
    /// When it is closed because the door closes.
    leaves: Option<Instant>,
}

impl Talk {
    pub(super) fn new(
        sockets: Arc<Sockets>,
        socket: WebSocketStream<TokioIo<Upgraded>>,
        protocol: Option<Protocol>,
        credential: Option<Credential>,
    ) -> Self {
        let now = sockets.clock.now();
        let times = Times {
            began: now,
            heard: now,
            heartbeat: now + HEARTBEAT,
            writes: None,
            leaves: None,
        };
        Self {
            number: sockets.dice.draw(),
            sockets,
            socket,
            protocol: protocol.unwrap_or(Protocol::Json),
            credential,
            inbox: Inbox::default(),
            joined: BTreeMap::new(),
            joining: HashMap::new(),
            joins: 0,
            under_way: JoinSet::new(),
            own: HashMap::new(),
            out: VecDeque::new(),
            rate: Bucket::new(FRAMES_PER_SECOND, FRAMES_BURST, now),
            said_hello: false,
            has_gaps: false,
            times,
        }
    }

    /// Talks until one of the two ends it.
    pub(super) async fn run(mut self: Box<Self>, mut seat: Seat) {
        let mut revoked = self.sockets.doorkeeper.directory.revoked();
        let end = loop {
            match self.turn(&mut seat, &mut revoked).await {
                Ok(()) => {}
                Err(end) => break end,
            }
            if let Err(end) = self.flush(&mut seat, &mut revoked).await {
                break end;
            }
        };
        drop(timeout(LEAVE_MAX, self.leave_all()).await);
        if let End::Close(code, fault) = end {
            debug!(code, reason = fault.code(), "a socket is closed");
            self.close(code, &fault).await;
        }
    }

    /// Waits for one thing and deals with it. Which comes first is left to chance, so that neither a busy conversation
    /// nor a busy client keeps the other, a deadline or a stop waiting.
    async fn turn(
        &mut self,
        seat: &mut Seat,
        revoked: &mut watch::Receiver<u64>,
    ) -> Result<(), End> {
        let wake = self.next_wake();
        tokio::select! {
            () = seat.dismissed(), if self.times.leaves.is_none() => self.drain(),
            Ok(()) = revoked.changed() => self.look_at_access()?,
            done = self.under_way.join_next(), if !self.under_way.is_empty() => match done {
                Some(Ok(done)) => self.on_done(done)?,
                Some(Err(error)) => debug!(%error, "a task of a socket failed"),
                None => {}
            },
            () = self.inbox.filled() => self.on_news()?,
            read = self.socket.next() => self.on_read(read)?,
            () = sleep_until(wake.into()) => self.on_wake()?,
            // What came during the last write waits to be written itself.
            () = ready(()), if !self.out.is_empty() => {}
        }
        Ok(())
    }

    fn on_read(&mut self, read: Option<Result<Message, Error>>) -> Result<(), End> {
        self.times.heard = self.sockets.clock.now();
        match read {
            None
            | Some(
                Ok(Message::Close(_))
                | Err(
                    Error::ConnectionClosed
                    | Error::AlreadyClosed
                    | Error::Io(_)
                    | Error::Protocol(ProtocolError::ResetWithoutClosingHandshake),
                ),
            ) => Err(End::Gone),
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => Ok(()),
            Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) => self.on_frame(message),
            Some(Err(Error::Capacity(_))) => Err(End::Close(
                1009,
                Fault::new(Code::PayloadTooLarge, "The frame is larger than any that is read."),
            )),
            Some(Err(Error::Utf8(_))) => {
                Err(End::Close(1007, Fault::new(Code::BadRequest, "The text is not UTF-8.")))
            }
            Some(Err(error)) => {
                debug!(%error, "a client broke the protocol of WebSockets: {error}");
                Err(End::Close(
                    1002,
                    Fault::new(Code::BadRequest, "This is not a WebSocket frame."),
                ))
            }
        }
    }

    fn on_news(&mut self) -> Result<(), End> {
        let Ok(all) = self.inbox.take() else {
            return Err(End::Close(
                4503,
                Fault::new(Code::SlowConsumer, "More waits for this connection than may wait.")
                    .after(self.wait()),
            ));
        };
        for notice in all {
            match notice.news {
                News::Event(frame) => self.on_event(notice.conversation, frame)?,
                News::Whisper(whisper) => self.on_whisper(&whisper),
            }
        }
        Ok(())
    }

    /// The earliest of its times.
    fn next_wake(&self) -> Instant {
        let Times { began, heard, heartbeat, leaves, .. } = self.times;
        let hello = (!self.said_hello).then(|| began + HELLO_MAX);
        let sessions = self.joined.values().filter_map(|joined| joined.next_wake());
        let others = [hello, leaves, self.expires()].into_iter().flatten();
        others.chain(sessions).fold(heartbeat.min(heard + IDLE_MAX), Instant::min)
    }

    fn on_wake(&mut self) -> Result<(), End> {
        self.look_at_limits()?;
        let now = self.sockets.clock.now();
        if !self.said_hello && now >= self.times.began + HELLO_MAX {
            let fault = Fault::new(Code::NoSession, "No hello came within 10 s.");
            return Err(End::Close(4408, fault));
        }
        if now >= self.times.heard + IDLE_MAX {
            let fault = Fault::new(Code::NoSession, "Nothing was heard for 60 s.");
            return Err(End::Close(4408, fault));
        }
        if now >= self.times.heartbeat {
            self.times.heartbeat = now + HEARTBEAT;
            self.look_for_lost()?;
            self.beat();
        }
        self.wake_sessions(now)
    }

    /// What ends it whatever it is doing: its turn to leave, and the end of its token.
    fn look_at_limits(&self) -> Result<(), End> {
        if self.times.leaves.is_some_and(|at| self.sockets.clock.now() >= at) {
            let fault = Fault::new(Code::Unavailable, "The server is on its way out.");
            return Err(End::Close(1012, fault.after(self.wait())));
        }
        if self.has_expired() { Err(self.without_access()) } else { Ok(()) }
    }

    /// Leaves within the window, at a time of its own.
    fn drain(&mut self) {
        let now = self.sockets.clock.now();
        let part = u32::try_from(self.sockets.dice.draw() % 1_000).unwrap_or(0);
        self.times.leaves = Some(now + DRAIN_WINDOW * part / 1_000);
        self.drain_sessions(now);
    }

    /// Writes what waits. Who does not take it in time is too slow; a stop and the end of access do not wait for him.
    async fn flush(
        &mut self,
        seat: &mut Seat,
        revoked: &mut watch::Receiver<u64>,
    ) -> Result<(), End> {
        if self.out.is_empty() {
            return Ok(());
        }
        let now = self.sockets.clock.now();
        let deadline = now + WRITE_MAX;
        self.times.writes = Some(now);
        loop {
            let leaves = self.times.leaves;
            let wake = leaves.into_iter().chain(self.expires()).fold(deadline, Instant::min);
            tokio::select! {
                written = write(&mut self.socket, &mut self.out) => match written {
                    Ok(()) => break,
                    Err(_broken) => return Err(End::Gone),
                },
                () = seat.dismissed(), if leaves.is_none() => self.drain(),
                Ok(()) = revoked.changed() => self.look_at_access()?,
                () = self.inbox.filled() => if self.inbox.has_overflowed() {
                    return Err(self.too_slow());
                },
                () = sleep_until(wake.into()) => self.look_at_limits()?,
            }
            if self.sockets.clock.now() >= deadline {
                return Err(self.too_slow());
            }
        }
        self.times.writes = None;
        // What came meanwhile told of itself to that wait, not to the next one.
        self.on_news()
    }

    fn too_slow(&self) -> End {
        let fault = Fault::new(Code::SlowConsumer, "What is written is not read.");
        End::Close(4503, fault.after(self.wait()))
    }

    /// Says why, closes, and waits a little for the other end to do the same.
    async fn close(&mut self, code: u16, fault: &Fault) {
        let (last, patience) =
            (self.protocol.encode(fault), patience(self.times.writes.is_some(), code));
        let frame = CloseFrame { code: code.into(), reason: fault.reason().into() };
        // Sends under way are answered before the connection goes. Nobody waits for joins and pages any more.
        let answering = async {
            while !self.own.is_empty() {
                let Some(done) = self.under_way.join_next().await else { break };
                if let Ok(Done::Sent(sent)) = done {
                    self.own.remove(&sent.id());
                    let answer = self.answer(sent);
                    self.socket.feed(answer).await?;
                }
            }
            Ok::<(), Error>(())
        };
        drop(timeout(patience, answering).await);
        let closing = async {
            self.socket.feed(last).await?;
            self.socket.close(Some(frame)).await?;
            while let Some(Ok(_)) = self.socket.next().await {}
            Ok::<(), Error>(())
        };
        drop(timeout(patience, closing).await);
    }

    /// A wait that is named in an answer: between once and twice the base.
    pub(super) fn wait(&self) -> Duration {
        let base = self.sockets.retry_base;
        let span = u64::try_from(base.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
        base + Duration::from_millis(self.sockets.dice.draw() % span)
    }
}

/// How long a close may take. Who is closed for being slow is given the time to read why.
const fn patience(is_stuck: bool, code: u16) -> Duration {
    if is_stuck && code != 4503 { STUCK_CLOSE_MAX } else { CLOSE_MAX }
}

/// Writes all of it.
///
/// Cancel safe: a message is in the queue until the socket has taken all of it over.
async fn write(
    socket: &mut WebSocketStream<TokioIo<Upgraded>>,
    out: &mut VecDeque<Message>,
) -> Result<(), Error> {
    while !out.is_empty() {
        poll_fn(|context| socket.poll_ready_unpin(context)).await?;
        if let Some(message) = out.pop_front() {
            socket.start_send_unpin(message)?;
        }
    }
    socket.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_behind_is_not_waited_for_but_to_hear_that_he_is() {
        for (is_stuck, code, wanted) in [
            (false, 1012, CLOSE_MAX),
            (false, 4503, CLOSE_MAX),
            (true, 4503, CLOSE_MAX),
            (true, 1012, STUCK_CLOSE_MAX),
            (true, 4403, STUCK_CLOSE_MAX),
        ] {
            assert_eq!(patience(is_stuck, code), wanted, "{is_stuck} {code}");
        }
    }
}
