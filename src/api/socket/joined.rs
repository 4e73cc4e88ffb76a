//! The conversations of one connection: what their sessions say is written, fetched or ends the connection.
//! Promises that a page is read only for somebody who may still read it.
//! Does not decide what is owed; `live::session` does.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt as _;
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use super::desk::Done;
use super::frame::{Code, Fault};
use super::talk::{End, Talk};
use crate::admission::Source;
use crate::event::{ConversationId, Reason};
use crate::history::{self, Item, Order, Query, Reader};
use crate::live::frame::{Content, Frame};
use crate::live::hub::Membership;
use crate::live::session::RETRY_AFTER;
use crate::live::whisper::{Said, Whisper};
use crate::live::{Cause, Close, Command, Live, Page, Refused, Session};
use crate::store;

/// A conversation that this connection has joined.
pub(super) struct Joined {
    pub(super) session: Session<Frame>,
    /// Where the conversation ended at the last heartbeat, as far as memory knew.
    pub(super) head_at_beat: u64,
    pub(super) _membership: Membership,
}

impl Joined {
    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.session.next_wake()
    }
}

/// What reading a page gave.
pub(super) type Paged = Result<Page<Frame>, (Cause, bool)>;

impl Talk {
    /// Lets a session deal with something and does what it says.
    pub(super) fn with_session(
        &mut self,
        conversation: ConversationId,
        deal: impl FnOnce(&mut Session<Frame>, Instant, &mut Vec<Command<Frame>>),
    ) -> Result<(), End> {
        let (now, mut commands) = (self.sockets.clock.now(), Vec::new());
        if let Some(joined) = self.joined.get_mut(&conversation) {
            deal(&mut joined.session, now, &mut commands);
        }
        self.carry_out(conversation, commands)
    }

    pub(super) fn on_event(
        &mut self,
        conversation: ConversationId,
        frame: Frame,
    ) -> Result<(), End> {
        let is_own = frame.event().is_some_and(|event| self.own.contains_key(&event.id));
        let (seq, bytes) = (frame.seq(), frame.weight());
        self.with_session(conversation, |session, now, out| {
            if is_own {
                session.on_acked(seq, now, out);
            } else {
                session.on_live(Live { seq, bytes, frame }, now, out);
            }
        })
    }

    pub(super) fn on_whisper(&mut self, whisper: &Whisper) {
        let user = self.credential.as_ref().and_then(|held| held.speaker.user());
        if !self.joined.contains_key(&whisper.conversation) || whisper.is_of(user, self.number) {
            return;
        }
        // Where a tenant's webhooks go is nothing for its users, who may not ask for it either.
        let is_user = self.credential.as_ref().is_none_or(|held| held.speaker.grant.is_some());
        if is_user && matches!(whisper.said, Said::Delivery(_)) {
            return;
        }
        let sender = whisper.user.as_deref().map(|id| json!({ "id": id }));
        let conversation = whisper.conversation;
        let frame = match &whisper.said {
            Said::Typing { is_typing } => json!({
                "frame": "typing", "conversationId": conversation, "sender": sender, "isTyping": is_typing,
            }),
            Said::Read { watermark } => json!({
                "frame": "read", "conversationId": conversation, "sender": sender, "watermark": watermark,
            }),
            Said::Presence { is_there } => json!({
                "frame": "presence", "conversationId": conversation, "sender": sender,
                "state": if *is_there { "joined" } else { "left" },
            }),
            Said::Delivery(outcome) => json!({
                "frame": "deliveryStatus", "conversationId": conversation, "seq": outcome.seq,
                "messageId": outcome.message, "deliveryId": outcome.delivery, "channelId": outcome.channel,
                "status": outcome.fate.as_str(), "attempt": outcome.attempt,
                "reason": outcome.reason.map(Reason::as_str), "at": outcome.began_at.to_string(),
            }),
        };
        let message = self.protocol.encode(&frame);
        self.out.push_back(message);
    }

    pub(super) fn on_page(
        &mut self,
        conversation: ConversationId,
        paged: Paged,
    ) -> Result<(), End> {
        let wait = self.wait().max(RETRY_AFTER);
        match paged {
            Ok(page) => self.with_session(conversation, |session, now, out| {
                session.on_page(page, now, out);
            }),
            Err((_, true)) => {
                self.forget(conversation);
                Ok(())
            }
            Err((cause, false)) => self.with_session(conversation, |session, now, out| {
                session.on_page_failed(cause, wait, now, out);
            }),
        }
    }

    pub(super) fn wake_sessions(&mut self, now: Instant) -> Result<(), End> {
        let due = |joined: &Joined| joined.next_wake().is_some_and(|at| now >= at);
        let ids: Vec<_> =
            self.joined.iter().filter(|(_, joined)| due(joined)).map(|(id, _)| *id).collect();
        for id in ids {
            self.with_session(id, Session::on_wake)?;
        }
        Ok(())
    }

    pub(super) fn drain_sessions(&mut self, now: Instant) {
        for id in self.joined.keys().copied().collect::<Vec<_>>() {
            let mut commands = Vec::new();
            if let Some(joined) = self.joined.get_mut(&id) {
                joined.session.on_drain(now, &mut commands);
            }
            // A connection that is leaving is not ended twice.
            drop(self.carry_out(id, commands));
        }
    }

    /// What memory has known since the last heartbeat and nobody told is lost: the session reads it.
    pub(super) fn look_for_lost(&mut self) -> Result<(), End> {
        let hub = self.sockets.hub.clone();
        for id in self.joined.keys().copied().collect::<Vec<_>>() {
            let Some(joined) = self.joined.get_mut(&id) else { continue };
            let known = std::mem::replace(&mut joined.head_at_beat, hub.head(id).unwrap_or(0));
            self.with_session(id, |session, now, out| session.on_head(known, now, out))?;
        }
        Ok(())
    }

    /// Tells of every conversation where it ends, and of itself where there is none.
    pub(super) fn beat(&mut self) {
        if self.joined.is_empty() {
            self.say(&json!({ "frame": "heartbeat" }));
        }
        for (id, joined) in &self.joined {
            let head = joined.session.status().head;
            let beat = json!({ "frame": "heartbeat", "conversationId": id, "headSeq": head });
            self.out.push_back(self.protocol.encode(&beat));
        }
        self.out.push_back(Message::Ping(Bytes::new()));
    }

    pub(super) fn carry_out(
        &mut self,
        conversation: ConversationId,
        commands: Vec<Command<Frame>>,
    ) -> Result<(), End> {
        for command in commands {
            match command {
                Command::Event(_, frame) => {
                    let message = self.protocol.encode_event(conversation, &frame);
                    self.out.push_back(message);
                }
                Command::Fetch { after, limit } => self.fetch(conversation, after, limit)?,
                Command::ReplayComplete { watermark } => self.say(&json!({
                    "frame": "replayComplete", "conversationId": conversation, "watermark": watermark,
                })),
                Command::ReplayTruncated { watermark, head } => self.say(&json!({
                    "frame": "replayTruncated", "conversationId": conversation,
                    "watermark": watermark, "headSeq": head,
                })),
                Command::ReplayGone { watermark, oldest } => self.say(&json!({
                    "frame": "replayGone", "conversationId": conversation, "watermark": watermark,
                    "oldestSeq": oldest, "epoch": self.sockets.epoch,
                })),
                Command::Gap { watermark, from, to, head, cause } => {
                    let details = json!({
                        "watermark": watermark, "from": from, "to": to, "headSeq": head,
                        "cause": name(cause),
                    });
                    let fault = unavailable().after(self.wait()).of(conversation).with(details);
                    self.say(&fault);
                }
                Command::Refuse { code: Refused::WatermarkAhead { head } } => {
                    self.say(&ahead(conversation, head));
                }
                Command::Refuse { code: Refused::Draining } => {
                    let fault = Fault::new(Code::Unavailable, "The server is on its way out.");
                    let fault = fault.of(conversation).after(self.wait());
                    self.say(&fault);
                }
                Command::Close(Close::TryLater { retry_after }) => {
                    return Err(End::Close(1013, unavailable().after(retry_after)));
                }
            }
        }
        Ok(())
    }

    pub(super) fn say(&mut self, frame: &impl serde::Serialize) {
        self.out.push_back(self.protocol.encode(frame));
    }

    fn fetch(&mut self, conversation: ConversationId, after: u64, limit: usize) -> Result<(), End> {
        let Some(held) = self.credential.as_ref().filter(|held| held.is_good(&self.sockets)) else {
            return Err(self.without_access());
        };
        let reader = Reader::of(&held.speaker.tenant, Source::Socket);
        let history = self.sockets.history.clone();
        self.under_way.spawn(async move {
            let reading = page(&history, reader, conversation, (after, limit));
            // The session waits for exactly one answer to each fetch.
            let paged = whole(reading, || Err((Cause::Pressure, false))).await;
            Done::Paged(conversation, paged)
        });
        Ok(())
    }
}

/// What the work gives, or this when it panics: nobody may wait for what will not come.
pub(super) async fn whole<T>(work: impl Future<Output = T>, fallen: impl FnOnce() -> T) -> T {
    // What it panicked in is dropped with it.
    AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|_panic| fallen())
}

/// A page for a session: from memory, else from Postgres. An error says why, and whether the conversation is not there.
pub(in crate::api) async fn page(
    history: &history::History,
    reader: Reader,
    conversation: ConversationId,
    (after, limit): (u64, usize),
) -> Paged {
    let query = Query { after: Some(after), limit, order: Order::Ascending };
    match history.page(reader, conversation, query).await {
        Ok(page) => Ok(Page {
            after,
            // A page that pressure cut short is not the end of what there is: the next one tells.
            has_more: page.has_more || !page.complete,
            head: page.head_seq,
            frames: page.items.into_iter().map(framed).collect(),
        }),
        Err(history::Error::NotFound) => Err((Cause::Pressure, true)),
        Err(history::Error::ReplayUnavailable { cause: None, .. }) => {
            Err((Cause::ProjectionLag, false))
        }
        Err(history::Error::ReplayUnavailable { cause: Some(cause), .. })
            if cause.kind() == store::Kind::Timeout =>
        {
            Err((Cause::Timeout, false))
        }
        Err(_) => Err((Cause::Pressure, false)),
    }
}

fn framed(item: Item) -> (u64, Frame) {
    let seq = item.seq();
    let content = match item {
        Item::Recent(entry) => Content::Recent(entry),
        Item::Stored(event) => Content::Stored(event),
        Item::Tombstone { seq, duplicate_of } => Content::Tombstone { seq, duplicate_of },
    };
    (seq, Frame::new(content))
}

/// The answer to a watermark above the head.
pub(super) fn ahead(conversation: ConversationId, head: u64) -> Fault {
    Fault::new(Code::InvalidWatermark, "Nobody can have read that far.")
        .of(conversation)
        .with(json!({ "headSeq": head }))
}

fn unavailable() -> Fault {
    Fault::new(Code::ReplayUnavailable, "A part of the history cannot be read now; it comes later.")
}

/// The word of a cause in the protocol.
pub(in crate::api) const fn name(cause: Cause) -> &'static str {
    match cause {
        Cause::Pressure => "pressure",
        Cause::ProjectionLag => "projection_lag",
        Cause::Timeout => "timeout",
    }
}

/// How long an undecided join waits before it is looked at again.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_that_panics_ends_at_once_with_what_stands_for_it() {
        assert_eq!(whole(async { 1 }, || 2).await, 1);
        assert_eq!(whole(async { panic!("oh") }, || 2).await, 2);
    }
}
