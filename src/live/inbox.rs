//! What waits to be written to one connection.
//! Promises that putting something in never waits, and that a reader who is too slow is found out by a bound, not by memory.
//! Does not write; the door does.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::frame::Frame;
use crate::event::ConversationId;

/// Most frames that wait for one connection (API).
pub const FRAMES_MAX: usize = 1_000;

/// Most bytes of them (API).
pub const BYTES_MAX: usize = 1024 * 1024;

/// From so many on whispers are dropped: they may be lost, and must not cost anybody the connection.
pub const WHISPERS_MAX: usize = FRAMES_MAX / 10;

/// Something for a connection.
#[derive(Clone, Debug)]
pub struct Notice {
    /// In which conversation.
    pub conversation: ConversationId,
    /// What happened.
    pub news: News,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum News {
    /// An event of the log.
    Event(Frame),
    /// Something that is not kept, as it came.
    Whisper(Arc<super::whisper::Whisper>),
}

/// More waited than may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;

/// The inbox of one connection. Clones are the same inbox. It takes no memory while nothing waits.
#[derive(Clone, Debug, Default)]
pub struct Inbox(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Notice>,
    bytes: usize,
    overflowed: bool,
}

impl Inbox {
    /// Puts something in. At the bound all of it is thrown away and the reader is told that it is too slow.
    pub fn push(&self, notice: Notice) {
        let bytes = notice.news.weight();
        {
            let mut state = self.state();
            if state.overflowed {
                return;
            }
            let may_be_lost = matches!(notice.news, News::Whisper(_));
            if may_be_lost && state.queue.len() >= WHISPERS_MAX {
                return;
            }
            if state.queue.len() >= FRAMES_MAX || state.bytes + bytes > BYTES_MAX {
                *state = State { overflowed: true, ..State::default() };
            } else {
                state.bytes += bytes;
                state.queue.push_back(notice);
            }
        }
        self.0.filled.notify_one();
    }

    /// Takes everything that waits.
    ///
    /// # Errors
    /// [`Overflow`], from the first bound that was hit on.
    pub fn take(&self) -> Result<VecDeque<Notice>, Overflow> {
        let mut state = self.state();
        if state.overflowed {
            return Err(Overflow);
        }
        state.bytes = 0;
        Ok(std::mem::take(&mut state.queue))
    }

    /// Waits until there may be something to take.
    ///
    /// Cancel safe: it takes nothing.
    pub async fn filled(&self) {
        self.0.filled.notified().await;
    }

    /// Whether the bound was hit.
    pub fn has_overflowed(&self) -> bool {
        self.state().overflowed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl News {
    fn weight(&self) -> usize {
        match self {
            Self::Event(frame) => frame.weight(),
            Self::Whisper(_) => 256,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::frame::Content;
    use crate::live::whisper::{Said, Whisper};

    fn event(seq: u64) -> Notice {
        let conversation = ConversationId::derive([1; 16]);
        let frame = Frame::new(Content::Tombstone { seq, duplicate_of: None });
        Notice { conversation, news: News::Event(frame) }
    }

    fn whisper() -> Notice {
        let conversation = ConversationId::derive([1; 16]);
        let said = Said::Typing { is_typing: true };
        let whisper = Whisper { conversation, user: None, connection: None, said };
        Notice { conversation, news: News::Whisper(Arc::new(whisper)) }
    }

    #[test]
    fn at_the_bound_the_reader_is_told_and_nothing_is_kept() {
        let inbox = Inbox::default();
        for seq in 1..=1_000 {
            inbox.push(event(seq));
        }
        assert_eq!(inbox.take().map(|all| all.len()), Ok(FRAMES_MAX));
        for seq in 1..=1_001 {
            inbox.push(event(seq));
        }
        assert!(inbox.has_overflowed());
        assert!(inbox.take().is_err());
        inbox.push(event(1));
        assert!(inbox.take().is_err());
    }

    #[test]
    fn whispers_are_dropped_long_before_they_cost_the_connection() {
        let inbox = Inbox::default();
        for _ in 0..2 * FRAMES_MAX {
            inbox.push(whisper());
        }
        inbox.push(event(1));
        inbox.push(whisper());
        assert_eq!(inbox.take().map(|all| all.len()), Ok(WHISPERS_MAX + 1));
    }

    #[tokio::test]
    async fn a_push_before_the_wait_is_not_missed() {
        let inbox = Inbox::default();
        inbox.push(whisper());
        inbox.filled().await;
        assert_eq!(inbox.take().unwrap().len(), 1);
        assert!(inbox.take().unwrap().is_empty());
    }
}
