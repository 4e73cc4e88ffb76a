//! What is said between connections and kept nowhere: who types, who has read how far, who is there.
//! Promises that a whisper that is lost does no harm: nothing depends on it.
//! Does not carry whispers; the log's server does, from node to node.

use serde::{Deserialize, Serialize};

use crate::event::{ConversationId, Outcome};

/// Longest whisper, in bytes: ids, a name and a few words.
pub const WHISPER_BYTES_MAX: usize = 2_048;

/// One whisper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whisper {
    /// In which conversation.
    pub conversation: ConversationId,
    /// Who says it; `None` for the tenant's own software.
    pub user: Option<Box<str>>,
    /// The number of the connection over which it is said.
    #[serde(default)]
    pub connection: Option<u64>,
    /// What is said.
    pub said: Said,
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Said {
    /// Somebody types, or has stopped.
    Typing {
        /// Whether he types.
        is_typing: bool,
    },
    /// Somebody has read everything up to here.
    Read {
        /// Up to where.
        watermark: u64,
    },
    /// Somebody has come or gone.
    Presence {
        /// Whether he is there.
        is_there: bool,
    },
    /// A webhook delivery was attempted. It does not travel: every node reads it in the log.
    Delivery(Box<Outcome>),
}

impl Whisper {
    /// Whether this user, or this connection of nobody in particular, has said it himself: nobody is told of himself.
    pub fn is_of(&self, user: Option<&str>, connection: u64) -> bool {
        self.connection == Some(connection) || (user.is_some() && user == self.user.as_deref())
    }

    /// As it travels; `None` when it is too long to.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let bytes = rmp_serde::to_vec_named(self).ok()?;
        (bytes.len() <= WHISPER_BYTES_MAX).then_some(bytes)
    }

    /// From another node; `None` for what this version does not know.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        (bytes.len() <= WHISPER_BYTES_MAX).then(|| rmp_serde::from_slice(bytes).ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whisper_survives_the_way() {
        let conversation = ConversationId::derive([7; 16]);
        for said in [
            Said::Typing { is_typing: true },
            Said::Read { watermark: u64::MAX },
            Said::Presence { is_there: false },
        ] {
            let whisper = Whisper {
                conversation,
                user: Some("ann".into()),
                connection: Some(u64::MAX),
                said,
            };
            let bytes = whisper.encode().unwrap();
            assert_eq!(Whisper::decode(&bytes), Some(whisper));
        }
        assert_eq!(Whisper::decode(b"nonsense"), None);
        let long = Whisper {
            conversation,
            user: Some("x".repeat(WHISPER_BYTES_MAX).into()),
            connection: None,
            said: Said::Read { watermark: 1 },
        };
        assert_eq!(long.encode(), None);
    }

    #[test]
    fn nobody_is_told_of_himself() {
        for (user, connection, listener, number, wanted) in [
            (Some("ann"), Some(1), Some("ann"), 1, true),
            (Some("ann"), Some(1), Some("ann"), 2, true),
            (Some("ann"), Some(1), Some("bob"), 2, false),
            (Some("ann"), Some(1), None, 2, false),
            (None, Some(1), Some("ann"), 2, false),
            (None, Some(1), None, 1, true),
            (None, Some(1), None, 2, false),
            (None, None, None, 1, false),
        ] {
            let whisper = Whisper {
                conversation: ConversationId::derive([7; 16]),
                user: user.map(Into::into),
                connection,
                said: Said::Typing { is_typing: true },
            };
            assert_eq!(
                whisper.is_of(listener, number),
                wanted,
                "{whisper:?} {listener:?} {number}"
            );
        }
    }
}
