//! Sends of a socket: from a frame to a draft, and from its verdict to an `ack` or an error.
//! Promises an answer to every send that carries its client id, and at most so many under way.
//! Does not wait for the log: a task does, and its result comes back to the desk.

use bytes::Bytes;
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use super::desk::Done;
use super::frame::{Code, Fault, time};
use super::incoming::Incoming;
use super::joined::whole;
use super::talk::Talk;
use crate::admission::Source;
use crate::api::messages::SEND_DEADLINE;
use crate::api::messages::refusal::busy_detail;
use crate::event::{ConversationId, MessageId};
use crate::ingest::{self, draft, quota};
use crate::journal::{Busy, Intent, Receipt, Verdict};

/// Most sends of one connection that are under way (API).
pub(super) const IN_FLIGHT_MAX: usize = 32;

pub(super) struct Sent {
    pub(super) conversation: ConversationId,
    pub(super) client_id: String,
    pub(super) id: MessageId,
    pub(super) outcome: Result<Verdict, ingest::Error>,
}

impl Sent {
    /// Of the message.
    pub(super) const fn id(&self) -> MessageId {
        self.id
    }
}

impl Talk {
    pub(super) fn send(&mut self, conversation: ConversationId, frame: Incoming, text: &Bytes) {
        let client_id = frame.client_id;
        match self.try_send(conversation, client_id.clone(), text) {
            Ok(()) => {}
            Err(fault) => self.say(&fault.of(conversation).for_send(client_id)),
        }
    }

    fn try_send(
        &mut self,
        conversation: ConversationId,
        client_id: Option<String>,
        text: &Bytes,
    ) -> Result<(), Fault> {
        if !self.joined.contains_key(&conversation) {
            return Err(Fault::new(Code::NoSession, "Join the conversation first."));
        }
        let Some(client_id) = client_id else {
            return Err(Fault::new(Code::InvalidMessage, "A message needs a clientId."));
        };
        if self.own.len() >= IN_FLIGHT_MAX {
            let detail = format!("The limit unackedSends = {IN_FLIGHT_MAX} is reached.");
            return Err(Fault::new(Code::TooManyInFlight, detail).after(self.wait()));
        }
        let Some(held) = &self.credential else {
            return Err(Fault::new(Code::Unauthorized, "The credential is missing."));
        };
        let speaker = held.speaker.clone();
        let ingest = self.sockets.ingest.clone();
        let now = self.sockets.clock.timestamp();
        let asked = ingest::Request {
            tenant: speaker.tenant.id,
            conversation,
            user: speaker.user(),
            key: None,
            trace: None,
            now,
        };
        let checked = draft::send(text, &asked).map_err(|rejected| invalid(&rejected))?;
        if let (_, quota::Decision::Refused { retry_after, .. }) =
            ingest.take_quota(&speaker.tenant, 1)
        {
            let fault = Fault::new(Code::RateLimited, "The tenant's send quota is used up.");
            return Err(fault.after(retry_after));
        }
        let place = ingest.admit(conversation, text.len()).map_err(|busy| self.busy(busy))?;
        let draft = checked.into_draft(&asked, Intent::Send, || ingest.make_id(now));
        let (id, origin) = (draft.id, speaker.tenant.origin(Source::Socket));
        let deadline = self.sockets.clock.now() + SEND_DEADLINE;
        self.own.insert(id, client_id.clone());
        self.under_way.spawn(async move {
            let appending = ingest.append(place, vec![draft], origin, deadline);
            let verdicts = whole(appending, || Err(ingest::Error::Cold)).await;
            let outcome =
                verdicts.and_then(|all| all.into_iter().next().ok_or(ingest::Error::Cold));
            Done::Sent(Sent { conversation, client_id, id, outcome })
        });
        Ok(())
    }

    fn busy(&self, busy: Busy) -> Fault {
        Fault::new(Code::Unavailable, busy_detail(busy)).after(self.wait())
    }

    /// The answer to a send.
    pub(super) fn answer(&self, sent: Sent) -> Message {
        let Sent { conversation, client_id, id: _, outcome } = sent;
        let refused = |code, detail: &str| {
            self.protocol.encode(
                &Fault::new(code, detail).of(conversation).for_send(Some(client_id.clone())),
            )
        };
        let acked = |receipt: Receipt, duplicate: Option<bool>| {
            let mut ack = json!({
                "frame": "ack", "conversationId": conversation, "clientId": client_id,
                "id": receipt.id, "seq": receipt.seq, "at": time(receipt.at),
            });
            if let Some(duplicate) = duplicate {
                ack["duplicate"] = duplicate.into();
            }
            self.protocol.encode(&ack)
        };
        match outcome {
            Ok(Verdict::Stored(receipt)) => acked(receipt, None),
            Ok(Verdict::Duplicate(receipt)) => acked(receipt, Some(true)),
            Ok(Verdict::KeyConflict) => refused(
                Code::InvalidMessage,
                "A message with this clientId was stored before, with another payload.",
            ),
            Ok(Verdict::Closed) => refused(Code::ConversationClosed, "The conversation is closed."),
            Ok(Verdict::NotFound) => {
                refused(Code::ConversationNotFound, "There is no such conversation.")
            }
            Err(_) => {
                let fault = Fault::new(
                    Code::Unavailable,
                    "It is not known whether it is stored. Send it again with the same clientId.",
                );
                let fault = fault.of(conversation).for_send(Some(client_id)).after(self.wait());
                self.protocol.encode(&fault)
            }
        }
    }
}

/// A message that breaks a rule.
fn invalid(rejected: &draft::Rejected) -> Fault {
    let errors: Vec<_> = rejected
        .errors
        .iter()
        .map(|error| json!({ "pointer": error.pointer, "detail": error.detail }))
        .collect();
    let fault = match rejected.code {
        draft::Code::BadRequest => Fault::new(Code::BadRequest, "The message cannot be read."),
        draft::Code::TooLarge { limit, max } => {
            Fault::new(Code::PayloadTooLarge, format!("The limit {limit} = {max} is exceeded."))
        }
        draft::Code::Invalid => Fault::new(Code::InvalidMessage, "A field breaks a rule."),
    };
    if errors.is_empty() { fault } else { fault.with(json!({ "errors": errors })) }
}
