//! What a client asks for on a socket: hello, join, send, sync and the small things; and what came of it.
//! Promises an answer to everything that is not one of the small things, and that nothing bad reaches the flows.
//! Does not wait: what takes time is a task, whose result comes back here.

use std::time::Instant;

use bytes::Bytes;
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use super::Credential;
use super::early::only;
use super::frame::{Code, Fault, time};
use super::incoming::{Incoming, Unread};
use super::join::{JOINED_MAX, Looked};
use super::joined::{Paged, ahead};
use super::send::{IN_FLIGHT_MAX, Sent};
use super::talk::{End, FRAMES_BURST, FRAMES_PER_SECOND, HEARTBEAT, Talk};
use crate::admission::bucket::Decision;
use crate::event::ConversationId;
use crate::journal::Verdict;
use crate::live::inbox::{BYTES_MAX, FRAMES_MAX};
use crate::live::whisper::{Said, Whisper};

/// Largest frame that is taken (API); larger ones are answered, and far larger ones end the connection.
pub(super) const FRAME_BYTES_MAX: usize = 128 * 1024;

/// What came of a task.
pub(super) enum Done {
    /// A conversation was looked at.
    Looked(Looked),
    /// A page was read.
    Paged(ConversationId, Paged),
    /// A send has an answer.
    Sent(Sent),
    /// A whisper is on its way.
    Whispered,
}

impl Talk {
    pub(super) fn on_frame(&mut self, message: Message) -> Result<(), End> {
        let now = self.sockets.clock.now();
        if let Decision::Wait(wait) = self.rate.try_take(now) {
            let client_id = self.client_id_of(message);
            let detail = "More frames came than a connection may send.";
            self.say(&Fault::new(Code::RateLimited, detail).after(wait).for_send(client_id));
            return Ok(());
        }
        if message.len() > FRAME_BYTES_MAX {
            let detail = format!("The frame exceeds the limit frameBytes = {FRAME_BYTES_MAX}.");
            self.say(&Fault::new(Code::PayloadTooLarge, detail));
            return Ok(());
        }
        let text = match self.protocol.decode(message) {
            Ok(text) => text,
            Err(why) => {
                self.say(&Fault::new(Code::BadRequest, why));
                return Ok(());
            }
        };
        match Incoming::read(&text) {
            Ok(frame) => self.on_incoming(frame, &text),
            Err(Unread { why, client_id }) => {
                self.say(&Fault::new(Code::BadRequest, why).for_send(client_id));
                Ok(())
            }
        }
    }

    /// Which send a frame is, if it is one: whoever sent it is to know that it was dropped.
    fn client_id_of(&self, message: Message) -> Option<String> {
        let small = Some(message).filter(|message| message.len() <= FRAME_BYTES_MAX)?;
        let text = self.protocol.decode(small).ok()?;
        Incoming::read(&text).ok()?.client_id
    }

    fn on_incoming(&mut self, frame: Incoming, text: &Bytes) -> Result<(), End> {
        match frame.frame.as_str() {
            "hello" if self.said_hello => Ok(()),
            "hello" => self.hello(&frame),
            "auth" => self.auth(&frame),
            "ping" => {
                let head = self.joined.values().next().map(|one| one.session.status().head);
                self.say(&json!({ "frame": "heartbeat", "nonce": frame.nonce, "headSeq": head }));
                Ok(())
            }
            "join" | "leave" | "message" | "sync" | "typing" | "read" => {
                if !self.said_hello {
                    let fault = Fault::new(Code::NoSession, "Say hello first.");
                    self.say(&fault.for_send(frame.client_id));
                    return Ok(());
                }
                let conversation = match self.conversation_of(&frame) {
                    Ok(conversation) => conversation,
                    Err(fault) => {
                        self.say(&fault.for_send(frame.client_id));
                        return Ok(());
                    }
                };
                self.on_frame_of(conversation, frame, text)
            }
            _ => {
                self.say(&Fault::new(Code::BadRequest, "There is no frame of this name."));
                Ok(())
            }
        }
    }

    /// Deals with a frame about a conversation that is joined, or is not even wished to be.
    pub(super) fn deal(
        &mut self,
        conversation: ConversationId,
        frame: Incoming,
        text: &Bytes,
    ) -> Result<(), End> {
        match frame.frame.as_str() {
            "join" => return self.join(conversation, &frame),
            "leave" => return self.leave(conversation),
            "message" => self.send(conversation, frame, text),
            _ if !self.joined.contains_key(&conversation) => {
                let fault = Fault::new(Code::NoSession, "Join the conversation first.");
                self.say(&fault.of(conversation));
            }
            "sync" => return self.sync(conversation, &frame),
            "typing" => {
                let is_typing = frame.is_typing.unwrap_or(true);
                self.whisper(conversation, Said::Typing { is_typing });
            }
            _ => self.read(conversation, &frame),
        }
        Ok(())
    }

    pub(super) fn on_done(&mut self, done: Done) -> Result<(), End> {
        match done {
            Done::Looked(looked) => self.on_looked(looked),
            Done::Paged(conversation, paged) => self.on_page(conversation, paged),
            Done::Sent(sent) => {
                let (conversation, id) = (sent.conversation, sent.id);
                let stored = match &sent.outcome {
                    Ok(Verdict::Stored(receipt) | Verdict::Duplicate(receipt)) => Some(receipt.seq),
                    Ok(Verdict::KeyConflict | Verdict::Closed | Verdict::NotFound) | Err(_) => None,
                };
                let answer = self.answer(sent);
                self.out.push_back(answer);
                self.own.remove(&id);
                match stored {
                    Some(seq) => self.with_session(conversation, |session, now, out| {
                        session.on_acked(seq, now, out);
                    }),
                    None => Ok(()),
                }
            }
            Done::Whispered => Ok(()),
        }
    }

    fn hello(&mut self, frame: &Incoming) -> Result<(), End> {
        if let Some(token) = &frame.token
            && self.credential.is_none()
        {
            self.credential = Credential::of_text(&self.sockets, token).ok();
        }
        let Some(held) = &self.credential else {
            let fault = Fault::new(Code::Unauthorized, "The credential is missing or not valid.");
            return Err(End::Close(4401, fault));
        };
        self.said_hello = true;
        self.has_gaps |= frame.capabilities.iter().flatten().any(|name| name == "gaps");
        if frame.conversation_id.is_some() {
            return match self.conversation_of(frame) {
                Ok(conversation) => self.join(conversation, frame),
                Err(fault) => {
                    self.say(&fault);
                    Ok(())
                }
            };
        }
        let expires = held.speaker.grant.as_ref().map(|grant| time(grant.expires_at));
        let welcome = json!({
            "frame": "welcome", "connectionId": self.connection_id(), "epoch": self.sockets.epoch,
            "limits": limits(), "expiresAt": expires,
        });
        self.say(&welcome);
        Ok(())
    }

    /// What a client has said once that it knows holds for all of its connection.
    pub(super) fn note_capabilities(&mut self, frame: &Incoming) {
        self.has_gaps |= frame.capabilities.iter().flatten().any(|name| name == "gaps");
    }

    /// A fresh credential of the same tenant and user.
    fn auth(&mut self, frame: &Incoming) -> Result<(), End> {
        let fresh = frame.token.as_deref().map(|token| Credential::of_text(&self.sockets, token));
        let is_same = |fresh: &Credential| {
            self.credential.as_ref().is_none_or(|held| {
                held.speaker.tenant.id == fresh.speaker.tenant.id
                    && held.speaker.user() == fresh.speaker.user()
            })
        };
        match fresh {
            Some(Ok(fresh)) if is_same(&fresh) => {
                let expires = fresh.speaker.grant.as_ref().map(|grant| time(grant.expires_at));
                self.credential = Some(fresh);
                self.say(&json!({ "frame": "tokenRefreshed", "expiresAt": expires }));
                return self.leave_what_is_out_of_bounds();
            }
            Some(Ok(_)) => {
                self.say(&Fault::new(Code::Forbidden, "The token is of another user."));
            }
            Some(Err(_)) | None => {
                self.say(&Fault::new(Code::Unauthorized, "The token is not valid."));
            }
        }
        Ok(())
    }

    /// When the token ends.
    pub(super) fn expires(&self) -> Option<Instant> {
        let grant = self.credential.as_ref()?.speaker.grant.as_ref()?;
        let left = grant.expires_at.since(self.sockets.clock.timestamp());
        Some(self.sockets.clock.now() + left)
    }

    pub(super) fn has_expired(&self) -> bool {
        let grant = self.credential.as_ref().and_then(|held| held.speaker.grant.as_ref());
        grant.is_some_and(|grant| grant.expires_at <= self.sockets.clock.timestamp())
    }

    pub(super) fn look_at_access(&self) -> Result<(), End> {
        let is_good = self.credential.as_ref().is_none_or(|held| held.is_good(&self.sockets));
        if is_good {
            return Ok(());
        }
        Err(self.without_access())
    }

    /// How it ends when the credential is good no more.
    pub(super) fn without_access(&self) -> End {
        if self.has_expired() {
            End::Close(4401, Fault::new(Code::TokenExpired, "The token has expired."))
        } else {
            End::Close(4403, Fault::new(Code::Forbidden, "Access was taken away."))
        }
    }

    /// A fresh token may be bound where the old one was not.
    fn leave_what_is_out_of_bounds(&mut self) -> Result<(), End> {
        let Some(held) = &self.credential else { return Ok(()) };
        let all = self.joined.keys().chain(self.joining.keys()).copied();
        let out: Vec<_> = all.filter(|id| held.speaker.check(*id).is_err()).collect();
        for conversation in out {
            self.leave(conversation)?;
            let detail = "The token is bound to another conversation.";
            self.say(&Fault::new(Code::Forbidden, detail).of(conversation));
        }
        Ok(())
    }

    /// Ends a membership, or the wish for one; what waited for that is answered.
    fn leave(&mut self, conversation: ConversationId) -> Result<(), End> {
        if self.joined.remove(&conversation).is_some() {
            self.whisper_as_one_who_was_there(conversation, Said::Presence { is_there: false });
        }
        let joining = self.joining.remove(&conversation);
        joining.map_or(Ok(()), |joining| self.deal_with_early(conversation, joining))
    }

    /// The connection ends. It says so in every conversation, because its tasks end with it.
    pub(super) async fn leave_all(&mut self) {
        self.joining.clear();
        let left: Vec<_> = std::mem::take(&mut self.joined).into_keys().collect();
        let hub = self.sockets.hub.clone();
        for conversation in left {
            let said = Said::Presence { is_there: false };
            if let Some(whisper) = self.whisper_of(conversation, said) {
                hub.whisper(&whisper).await;
            }
        }
    }

    /// A conversation turned out not to be there.
    pub(super) fn forget(&mut self, conversation: ConversationId) {
        self.joined.remove(&conversation);
        let fault = Fault::new(Code::ConversationNotFound, "There is no such conversation.");
        self.say(&fault.of(conversation));
    }

    pub(super) fn sync(
        &mut self,
        conversation: ConversationId,
        frame: &Incoming,
    ) -> Result<(), End> {
        match watermark(frame) {
            Ok(watermark) => self.with_session(conversation, |session, now, out| {
                session.on_sync(watermark.unwrap_or(0), now, out);
            }),
            Err(fault) => {
                self.say(&fault.of(conversation));
                Ok(())
            }
        }
    }

    /// How far somebody has read goes to the others, if it can be.
    fn read(&mut self, conversation: ConversationId, frame: &Incoming) {
        let known = self.joined.get(&conversation).map_or(0, |one| one.session.status().head);
        let head = known.max(self.sockets.hub.head(conversation).unwrap_or(0));
        match watermark(frame) {
            Ok(Some(watermark)) if watermark > head => self.say(&ahead(conversation, head)),
            Ok(watermark) => {
                let watermark = watermark.unwrap_or(0);
                self.whisper(conversation, Said::Read { watermark });
            }
            Err(fault) => self.say(&fault.of(conversation)),
        }
    }

    pub(super) fn whisper(&mut self, conversation: ConversationId, said: Said) {
        if self.joined.contains_key(&conversation) {
            self.whisper_as_one_who_was_there(conversation, said);
        }
    }

    pub(super) fn whisper_as_one_who_was_there(
        &mut self,
        conversation: ConversationId,
        said: Said,
    ) {
        let Some(whisper) = self.whisper_of(conversation, said) else { return };
        let hub = self.sockets.hub.clone();
        self.under_way.spawn(async move {
            hub.whisper(&whisper).await;
            Done::Whispered
        });
    }

    /// Who is nobody in particular is not seen to come and go.
    fn whisper_of(&self, conversation: ConversationId, said: Said) -> Option<Whisper> {
        let user = self.credential.as_ref().and_then(|held| held.speaker.user());
        let is_seen = user.is_some() || !matches!(said, Said::Presence { .. });
        let connection = Some(self.number);
        is_seen.then(|| Whisper { conversation, user: user.map(Into::into), connection, said })
    }

    /// The conversation that a frame names, or the only one that is joined or wished to be; within the token's bounds.
    fn conversation_of(&self, frame: &Incoming) -> Result<ConversationId, Fault> {
        let conversation = if let Some(text) = &frame.conversation_id {
            ConversationId::parse(text).map_err(|_no_id| {
                let detail = "The conversationId is no id: it is cnv_ and 32 hex digits.";
                Fault::new(Code::BadRequest, detail)
            })?
        } else {
            let only = only(self.joined.keys().chain(self.joining.keys()).copied());
            only.ok_or_else(|| Fault::new(Code::BadRequest, "Name the conversationId."))?
        };
        let held = self.credential.as_ref();
        let held =
            held.ok_or_else(|| Fault::new(Code::Unauthorized, "The credential is missing."))?;
        match held.speaker.check(conversation) {
            Ok(()) => Ok(conversation),
            Err(_bound) => {
                Err(Fault::new(Code::Forbidden, "The token is bound to another conversation.")
                    .of(conversation))
            }
        }
    }
}

/// The limits that `welcome` names.
pub(super) fn limits() -> serde_json::Value {
    json!({
        "frameBytes": FRAME_BYTES_MAX, "framesPerSecond": FRAMES_PER_SECOND, "frameBurst": FRAMES_BURST,
        "unackedSends": IN_FLIGHT_MAX, "outboundFrames": FRAMES_MAX, "outboundBytes": BYTES_MAX,
        "conversations": JOINED_MAX, "heartbeatMs": HEARTBEAT.as_millis(), "idleMs": 60_000,
    })
}

/// A watermark is a whole number from 0 on.
pub(super) fn watermark(frame: &Incoming) -> Result<Option<u64>, Fault> {
    match &frame.watermark {
        None | Some(serde_json::Value::Null) => Ok(None),
        Some(value) => value.as_u64().map(Some).ok_or_else(|| {
            Fault::new(Code::InvalidWatermark, "A watermark is a whole number from 0 on.")
        }),
    }
}
