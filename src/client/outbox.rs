//! Sends without an answer: which are to be sent now, and what becomes of each.
//! Promises that a send leaves only with its answer, goes out in order, and always under the same client id.
//! Does not write to a socket.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};

use super::frame::{Frame, Limits};
use super::{Receipt, SendError};
use crate::admission::bucket::{Bucket, Decision};
use crate::event::ConversationId;

/// A wait before a send is repeated whose refusal names none.
const REPEAT_AFTER: Duration = Duration::from_secs(1);

/// A send on its way from the handle.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) client_id: String,
    pub(super) body: Map<String, Value>,
    pub(super) answer: oneshot::Sender<Result<Receipt, SendError>>,
}

#[derive(Debug)]
struct Pending {
    client_id: String,
    text: String,
    answer: oneshot::Sender<Result<Receipt, SendError>>,
    /// When it is to be sent; `None` while its answer is waited for.
    due: Option<Instant>,
}

/// Sends without an answer, in order.
#[derive(Debug)]
pub(super) struct Outbox {
    conversation: ConversationId,
    orders: mpsc::Receiver<Order>,
    /// Bounded by what `welcome` allows without an answer.
    pending: VecDeque<Pending>,
    limits: Limits,
    rate: Bucket,
}

impl Outbox {
    pub(super) fn new(id: ConversationId, orders: mpsc::Receiver<Order>, now: Instant) -> Self {
        let limits = Limits::default();
        Self { conversation: id, orders, pending: VecDeque::new(), limits, rate: rate(limits, now) }
    }

    /// A new connection with these limits: everything that has no answer is to be sent again.
    pub(super) fn on_welcome(&mut self, limits: Limits, now: Instant) {
        (self.limits, self.rate) = (limits, rate(limits, now));
        self.repeat_all(now);
    }

    pub(super) fn repeat_all(&mut self, at: Instant) {
        for pending in &mut self.pending {
            pending.due = Some(at);
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.pending.len() < self.limits.unacked_sends
    }

    /// Waits for a send to take over; `None` when the handles are gone. Cancel safe.
    pub(super) async fn take(&mut self, now: Instant) -> Option<()> {
        let Order { client_id, mut body, answer } = self.orders.recv().await?;
        body.insert("frame".to_owned(), "message".into());
        body.insert("conversationId".to_owned(), self.conversation.to_string().into());
        body.insert("clientId".to_owned(), client_id.clone().into());
        let text = Value::Object(body).to_string();
        self.pending.push_back(Pending { client_id, text, answer, due: Some(now) });
        Some(())
    }

    /// The next frame to be sent now. What waits holds back what is behind it, so that the order stays.
    pub(super) fn next(&mut self, now: Instant) -> Option<String> {
        let next = self.pending.iter_mut().find(|pending| pending.due.is_some())?;
        let due = next.due.filter(|due| *due <= now)?;
        match self.rate.try_take(now) {
            Decision::Taken => {
                next.due = None;
                Some(next.text.clone())
            }
            Decision::Wait(wait) => {
                next.due = Some(due.max(now + wait));
                None
            }
        }
    }

    /// When [`Self::next`] has something.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.pending.iter().find_map(|pending| pending.due)
    }

    /// An ack.
    pub(super) fn on_ack(&mut self, frame: &Frame) {
        let (Some(pending), Some(seq)) = (self.remove(frame.client_id.as_deref()), frame.seq)
        else {
            return;
        };
        let id = frame.id.clone().unwrap_or_default();
        // Nobody may be waiting any more.
        drop(pending.answer.send(Ok(Receipt { id, seq, is_duplicate: frame.duplicate })));
    }

    /// An error that answers a send, or says that some frame was not read.
    pub(super) fn on_error(&mut self, frame: &Frame, now: Instant) {
        let wait = frame.retry_after().unwrap_or(REPEAT_AFTER);
        if frame.client_id.is_none() {
            if frame.number == 3_000 {
                self.repeat_all(now + wait);
            }
        } else if frame.retryable {
            let id = frame.client_id.as_deref();
            if let Some(place) = self.place(id) {
                self.pending[place].due = Some(now + wait);
            }
        } else if let Some(pending) = self.remove(frame.client_id.as_deref()) {
            let message = frame.message.clone().unwrap_or_default();
            drop(pending.answer.send(Err(SendError::Refused { number: frame.number, message })));
        }
    }

    fn place(&self, client_id: Option<&str>) -> Option<usize> {
        self.pending.iter().position(|pending| Some(&*pending.client_id) == client_id)
    }

    fn remove(&mut self, client_id: Option<&str>) -> Option<Pending> {
        self.pending.remove(self.place(client_id)?)
    }
}

/// One frame in ten is left for what is no send.
fn rate(limits: Limits, now: Instant) -> Bucket {
    let part = |of: u32| (of - of / 10).max(1);
    Bucket::new(part(limits.frames_per_second), part(limits.frame_burst), now)
}
