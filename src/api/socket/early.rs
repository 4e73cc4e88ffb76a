//! Frames about a conversation whose join is not decided yet: kept, and dealt with once it is.
//! Promises that each is dealt with in its turn or answered, and that what waits of one connection is bounded.
//! Does not join; `join` does.

use std::collections::HashMap;

use bytes::Bytes;

use super::desk::FRAME_BYTES_MAX;
use super::frame::{Code, Fault};
use super::incoming::Incoming;
use super::send::IN_FLIGHT_MAX;
use super::talk::{End, Talk};
use crate::event::ConversationId;

/// Most frames of one connection that wait for joins: as many as sends may be under way. One more is refused.
const EARLY_FRAMES_MAX: usize = IN_FLIGHT_MAX;

/// Most bytes of them: two frames of the largest kind.
const EARLY_BYTES_MAX: usize = 2 * FRAME_BYTES_MAX;

/// A join that is not decided yet.
pub(super) struct Joining {
    /// Which wish it is.
    pub(super) number: u64,
    /// What came meanwhile, in order. Invariant: of all joins together within the bounds above.
    early: Vec<Early>,
}

impl Joining {
    pub(super) const fn new(number: u64) -> Self {
        Self { number, early: Vec::new() }
    }
}

/// A frame that waits.
struct Early {
    frame: Incoming,
    text: Bytes,
}

/// What is done with a frame about a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It is dealt with now.
    Now,
    /// It waits until the join is decided.
    Later,
    /// It is refused: more wait than may.
    Refused,
}

/// Joins and leaves are wishes about the join itself. The rest waits for it, within the bounds.
fn way(name: &str, is_joining: bool, (frames, bytes): (usize, usize)) -> Way {
    if !is_joining || matches!(name, "join" | "leave") {
        Way::Now
    } else if frames < EARLY_FRAMES_MAX && bytes <= EARLY_BYTES_MAX {
        Way::Later
    } else {
        Way::Refused
    }
}

/// The one that a frame means which names none.
pub(super) fn only(mut all: impl Iterator<Item = ConversationId>) -> Option<ConversationId> {
    let first = all.next();
    first.filter(|_| all.next().is_none())
}

impl Talk {
    /// Deals with a frame about a conversation, or keeps it until the conversation is joined.
    pub(super) fn on_frame_of(
        &mut self,
        conversation: ConversationId,
        frame: Incoming,
        text: &Bytes,
    ) -> Result<(), End> {
        let is_joining = self.joining.contains_key(&conversation);
        match way(&frame.frame, is_joining, load(&self.joining, text.len())) {
            Way::Now => return self.deal(conversation, frame, text),
            Way::Later => {
                if let Some(joining) = self.joining.get_mut(&conversation) {
                    joining.early.push(Early { frame, text: text.clone() });
                }
            }
            Way::Refused => {
                let detail = "More frames wait for the conversation to be joined than may.";
                let is_send = frame.frame == "message";
                let code = if is_send { Code::TooManyInFlight } else { Code::RateLimited };
                let fault = Fault::new(code, detail).of(conversation).after(self.wait());
                self.say(&fault.for_send(frame.client_id));
            }
        }
        Ok(())
    }

    /// The join is decided: what waited for it is dealt with. Where it failed, each is answered as not joined.
    pub(super) fn deal_with_early(
        &mut self,
        conversation: ConversationId,
        joining: Joining,
    ) -> Result<(), End> {
        for Early { frame, text } in joining.early {
            self.deal(conversation, frame, &text)?;
        }
        Ok(())
    }

    /// The join cannot be decided now, and a send is not left without an answer for so long.
    pub(super) fn refuse_early_sends(&mut self, conversation: ConversationId, fault: &Fault) {
        let Some(joining) = self.joining.get_mut(&conversation) else { return };
        let is_send = |early: &mut Early| early.frame.frame == "message";
        for send in joining.early.extract_if(.., is_send).collect::<Vec<_>>() {
            self.say(&fault.clone().for_send(send.frame.client_id));
        }
    }
}

/// What waits, with one more frame of so many bytes.
fn load(joining: &HashMap<ConversationId, Joining>, more: usize) -> (usize, usize) {
    let all = || joining.values().flat_map(|one| &one.early);
    (all().count(), all().map(|early| early.text.len()).sum::<usize>() + more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_about_a_join_passes_and_the_rest_waits_for_it_within_bounds() {
        let (full, heavy) = ((EARLY_FRAMES_MAX, 1), (1, EARLY_BYTES_MAX + 1));
        let last = (EARLY_FRAMES_MAX - 1, EARLY_BYTES_MAX);
        for (name, is_joining, load, wanted) in [
            ("message", false, full, Way::Now),
            ("typing", false, heavy, Way::Now),
            ("join", true, full, Way::Now),
            ("leave", true, heavy, Way::Now),
            ("message", true, (0, 1), Way::Later),
            ("sync", true, last, Way::Later),
            ("typing", true, last, Way::Later),
            ("read", true, full, Way::Refused),
            ("message", true, full, Way::Refused),
            ("message", true, heavy, Way::Refused),
        ] {
            assert_eq!(way(name, is_joining, load), wanted, "{name} {is_joining} {load:?}");
        }
    }

    #[test]
    fn a_frame_without_a_name_means_the_only_one() {
        let [one, two] = [1, 2].map(|n| ConversationId::derive([n; 16]));
        assert_eq!(only([].into_iter()), None);
        assert_eq!(only([one].into_iter()), Some(one));
        assert_eq!(only([one, two].into_iter()), None);
    }
}
