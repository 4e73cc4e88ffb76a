//! Why nothing can be routed now.
//! Promises that whoever meets one may begin anew from the markers.
//! Does not log.

use crate::directory;
use crate::event::record::CodecError;
use crate::log::{self, bucket};

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log or the markers cannot be read, or the queue not be written.
    #[error("reading the log, or where its partition is routed")]
    Log(#[from] log::Error),
    /// It is not known whether the directory has every channel.
    #[error("who hears of what")]
    Directory(#[from] directory::Error),
    /// The bucket of links does not answer.
    #[error("what conversations name")]
    Links(#[from] bucket::Error),
    /// A newer version of this program wrote to the log.
    #[error("position {position} needs a newer version of this program")]
    Newer {
        /// Which position.
        position: u64,
        /// What the codec says.
        #[source]
        source: CodecError,
    },
    /// A value of the router's own is damaged, or a newer version of this program wrote it. Taken for nothing, everything would
    /// be routed anew, or nobody hear of it.
    #[error("{what} cannot be read; it may need a newer version of this program")]
    Unreadable {
        /// Which value.
        what: String,
        /// What the codec says.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It is not known whether a batch was stored.
    #[error("a batch of deliveries was not acknowledged: {0}")]
    Unknown(String),
    /// The queue has no room.
    #[error("the queue of deliveries is full")]
    Full,
    /// The stream of backlogs has no room.
    #[error("the stream of backlogs is full")]
    BacklogsFull,
}
