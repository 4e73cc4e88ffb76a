//! Joins of a socket: where a conversation ends is found out, and a session begins.
//! Promises that nothing is missed between the look and the session, and that an undecided join waits in a bounded room.
//! Does not replay; the session says what is to be sent.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;

use super::Sockets;
use super::desk::{Done, limits, watermark};
use super::early::Joining;
use super::frame::{Code, Fault, time};
use super::incoming::Incoming;
use super::joined::{Joined, LOOK_AGAIN};
use super::talk::{End, Talk};
use crate::admission::Source;
use crate::event::{ConversationId, RequestId};
use crate::history::{self, Reader};
use crate::live::hub::{Known, Membership};
use crate::live::whisper::Said;
use crate::live::{Join, Session};

/// Most conversations of one connection: each takes memory, and a page when it is joined.
pub(super) const JOINED_MAX: usize = 100;

/// Most connections of a node that wait for their join to be decided. One more is told to come back.
const WAITING_MAX: usize = 1_000;

/// How a client wants to join.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    number: u64,
    conversation: ConversationId,
    watermark: Option<u64>,
    epoch: Option<String>,
    has_gaps: bool,
}

pub(super) struct Looked {
    wish: Wish,
    membership: Membership,
    /// The head; `None` when there is no such conversation.
    found: Result<Option<u64>, history::Error>,
    /// Since it could not be decided at first.
    place: Option<Place>,
}

/// A place among the joins of this node that could not be decided yet, given up on drop.
pub(super) struct Place(Arc<Sockets>);

impl Place {
    /// `None` when too many wait.
    fn take(sockets: &Arc<Sockets>) -> Option<Self> {
        let place = Self(Arc::clone(sockets));
        (sockets.waiting.fetch_add(1, Ordering::Relaxed) < WAITING_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Talk {
    pub(super) fn join(
        &mut self,
        conversation: ConversationId,
        frame: &Incoming,
    ) -> Result<(), End> {
        let watermark = match watermark(frame) {
            Ok(watermark) => watermark,
            Err(fault) => {
                self.say(&fault.of(conversation));
                return Ok(());
            }
        };
        if self.joined.contains_key(&conversation) {
            return match watermark {
                Some(_) => self.sync(conversation, frame),
                None => Ok(()),
            };
        }
        // One that is being looked at is welcomed when that is done.
        if self.joining.contains_key(&conversation) {
            return Ok(());
        }
        if self.joined.len() + self.joining.len() >= JOINED_MAX {
            let detail = format!("The limit conversations = {JOINED_MAX} is reached.");
            self.say(&Fault::new(Code::BadRequest, detail).of(conversation));
            return Ok(());
        }
        self.note_capabilities(frame);
        self.joins += 1;
        self.joining.insert(conversation, Joining::new(self.joins));
        let (number, epoch, has_gaps) = (self.joins, frame.epoch.clone(), self.has_gaps);
        let wish = Wish { number, conversation, watermark, epoch, has_gaps };
        let membership = self.sockets.hub.join(conversation, &self.inbox);
        self.look(wish, membership, None);
        Ok(())
    }

    /// Finds out where the conversation ends and whether it is this tenant's: from memory, else from Postgres.
    pub(super) fn look(&mut self, wish: Wish, membership: Membership, place: Option<Place>) {
        let Some(held) = &self.credential else { return };
        let reader = Reader::of(&held.speaker.tenant, Source::Socket);
        let history = self.sockets.history.clone();
        let pause = place.as_ref().map_or(Duration::ZERO, |_| LOOK_AGAIN + self.wait());
        let known = self.sockets.hub.look(held.speaker.tenant.id, wish.conversation);
        self.under_way.spawn(async move {
            tokio::time::sleep(pause).await;
            let found = match known {
                Known::EndsAt(head) => Ok(Some(head)),
                Known::Foreign => Ok(None),
                Known::Nothing => {
                    let found = history.conversation(reader, wish.conversation).await;
                    found.map(|view| view.map(|view| view.head_seq))
                }
            };
            Done::Looked(Looked { wish, membership, found, place })
        });
    }

    pub(super) fn on_looked(&mut self, looked: Looked) -> Result<(), End> {
        let Looked { wish, membership, found, place } = looked;
        let conversation = wish.conversation;
        // It was left meanwhile.
        if self.joining.get(&conversation).is_none_or(|one| one.number != wish.number) {
            return Ok(());
        }
        let found = match found {
            Ok(found) => found,
            Err(_pressure) => {
                let fault =
                    Fault::new(Code::Unavailable, "Whether this can be joined is not known now.");
                let fault = fault.of(conversation).after(self.wait());
                let was_waiting = place.is_some();
                let Some(place) = place.or_else(|| Place::take(&self.sockets)) else {
                    return self.refuse_to_wait(conversation, fault);
                };
                if !was_waiting {
                    self.say(&fault);
                }
                self.refuse_early_sends(conversation, &fault);
                self.look(wish, membership, Some(place));
                return Ok(());
            }
        };
        let Some(joining) = self.joining.remove(&conversation) else { return Ok(()) };
        let Some(found) = found else {
            let fault = Fault::new(Code::ConversationNotFound, "There is no such conversation.");
            self.say(&fault.of(conversation));
            return self.deal_with_early(conversation, joining);
        };
        // Read again: what was told since then went past, because there was no session yet.
        let head = found.max(self.sockets.hub.head(conversation).unwrap_or(0));
        self.welcome(conversation, head);
        let join = Join {
            watermark: wish.watermark.unwrap_or(head),
            has_gaps: wish.has_gaps,
            head,
            oldest: 1,
            epoch_matches: wish.epoch.is_none_or(|epoch| epoch == self.sockets.epoch),
        };
        let (now, mut commands) = (self.sockets.clock.now(), Vec::new());
        let session = Session::join(join, now, &mut commands);
        self.joined.insert(
            conversation,
            Box::new(Joined { session, head_at_beat: 0, _membership: membership }),
        );
        self.carry_out(conversation, commands)?;
        self.whisper(conversation, Said::Presence { is_there: true });
        self.deal_with_early(conversation, joining)
    }

    /// The waiting room is full. Who has joined something else keeps that.
    fn refuse_to_wait(&mut self, conversation: ConversationId, fault: Fault) -> Result<(), End> {
        let joining = self.joining.remove(&conversation);
        if self.joined.is_empty() && self.joining.is_empty() {
            return Err(End::Close(1013, fault));
        }
        self.say(&fault);
        joining.map_or(Ok(()), |joining| self.deal_with_early(conversation, joining))
    }

    pub(super) fn welcome(&mut self, conversation: ConversationId, head: u64) {
        let grant = self.credential.as_ref().and_then(|held| held.speaker.grant.as_ref());
        let expires = grant.map(|grant| time(grant.expires_at));
        let welcome = json!({
            "frame": "welcome", "connectionId": self.connection_id(), "conversationId": conversation,
            "epoch": self.sockets.epoch, "watermark": head, "liveFrom": head + 1, "oldestSeq": 1,
            "limits": limits(), "expiresAt": expires,
        });
        self.say(&welcome);
    }

    pub(super) fn connection_id(&self) -> String {
        let now = self.sockets.clock.timestamp();
        RequestId::generate(now, &mut self.sockets.dice.clone()).to_string()
    }
}
