//! What a writer has under way outside of this process: one publish, or one look for records it lacks.
//! Promises to end by itself: a publish with an outcome, a look with what was found.
//! Does not decide what follows; the sequencer does.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use tracing::debug;

use super::Writer;
use crate::event::RecordId;
use crate::log::append::ACK_TIMEOUT;
use crate::log::{Outcome, Outgoing};

/// How long the follower may take to bring a conflicting record before it is fetched.
const FOLLOWER_PATIENCE: Duration = Duration::from_millis(100);

/// Most records that are fetched after a conflict; the follower brings the rest.
const FETCH_RECORDS_MAX: u64 = 64;

/// What the writer has under way outside of this process.
pub(super) enum Done {
    Published { id: RecordId, outcome: Outcome },
    Fetched(Vec<(u64, Bytes)>),
}

pub(super) type Operation = Pin<Box<dyn Future<Output = Done> + Send>>;

impl Writer {
    /// Publishes now, or after a pause that ends early when the connection comes back.
    pub(super) fn publish(&self, outgoing: Outgoing, pause: Option<Duration>) -> Operation {
        let (log, partition) = (self.log.clone(), self.tail.partition());
        let mut connects = log.write_connects();
        connects.mark_unchanged();
        Box::pin(async move {
            if let Some(pause) = pause {
                drop(tokio::time::timeout(pause, connects.changed()).await);
                connects.mark_unchanged();
            }
            let id = outgoing.id;
            if !log.is_connected() {
                // What is handed to the client library now would wait in there, and copies would pile up.
                drop(tokio::time::timeout(ACK_TIMEOUT, connects.changed()).await);
                connects.mark_unchanged();
                if !log.is_connected() {
                    let reason = "not connected to the log".to_owned();
                    return Done::Published { id, outcome: Outcome::Unknown { reason } };
                }
            }
            let outcome = tokio::select! {
                outcome = log.append(partition, outgoing) => outcome,
                // The answer went down with the old connection; waiting for it would only cost time.
                Ok(()) = connects.changed() => {
                    Outcome::Unknown { reason: "reconnected before the answer came".to_owned() }
                }
            };
            Done::Published { id, outcome }
        })
    }

    /// Waits for the follower and then fetches what it did not bring.
    pub(super) fn fetch(&self, last: u64) -> Operation {
        let (log, tail) = (self.log.clone(), self.tail.clone());
        let mut advanced = tail.advanced();
        Box::pin(async move {
            let reached = advanced.wait_for(|position| *position >= last);
            drop(tokio::time::timeout(FOLLOWER_PATIENCE, reached).await);
            let mut records = Vec::new();
            let first = tail.position() + 1;
            for position in first..=last.min(first + FETCH_RECORDS_MAX) {
                match log.get(tail.partition(), position).await {
                    Ok(stored) => records.push((position, stored.bytes)),
                    Err(error) => {
                        debug!(position, "a record could not be fetched: {error}");
                        break;
                    }
                }
            }
            Done::Fetched(records)
        })
    }
}

/// The end of what is under way; never, when nothing is.
pub(super) async fn under_way(operation: &mut Option<Operation>) -> Done {
    match operation {
        Some(operation) => operation.await,
        None => std::future::pending().await,
    }
}
