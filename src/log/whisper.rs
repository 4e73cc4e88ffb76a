//! Core NATS beside JetStream: messages that are kept nowhere, from every node to every node.
//! Promises nothing: what is lost is lost.
//! Does not know what is said.

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use tracing::debug;

use super::{Error, Log};

impl Log {
    /// Says something to every node, this one among them.
    pub async fn whisper(&self, bytes: Bytes) {
        if let Err(error) = self.writes.publish(self.whisper_subject(), bytes).await {
            debug!(%error, "a whisper was not sent");
        }
    }

    /// What all nodes say from here on.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the server cannot be asked.
    pub async fn whispers(&self) -> Result<impl Stream<Item = Bytes> + Unpin + use<>, Error> {
        let subscribed = self.reads.client().subscribe(self.whisper_subject()).await;
        let unavailable = |source| Error::Unavailable {
            doing: "listening to whispers",
            source: Box::new(source),
        };
        Ok(subscribed.map_err(unavailable)?.map(|message| message.payload))
    }

    fn whisper_subject(&self) -> String {
        format!("{}.whisper", self.namespace().as_str())
    }
}
