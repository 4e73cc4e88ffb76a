//! Brings every record of a partition to its writer, in order.
//! Promises that a record this build cannot understand stops the server instead of being skipped; bytes that are no
//! record at all are passed over, because nobody was ever acknowledged for them.
//! Does not fold; the writer does.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use tracing::error;

use super::Error;
use super::ring::Folded;
use super::tail::Tail;
use crate::event::record::CodecError;
use crate::event::{NodeId, Record, RecordId};
use crate::lifecycle::{Stop, chain};
use crate::log::Follow;

/// Records between the follower and the writer. More would only move the queue from the log into memory.
pub(super) const QUEUE_RECORDS_MAX: usize = 64;

/// What stands at a position.
#[derive(Debug)]
pub(super) enum Arrival {
    /// A record.
    Record(Arc<Folded>),
    /// A record of this node's own: it was decoded before it was written, and mostly is folded already.
    Own {
        /// Where it stands.
        position: u64,
        /// Its id.
        id: RecordId,
        /// The record, for the case that the writer has nothing of this id on its way.
        bytes: Bytes,
    },
    /// Bytes that are no record.
    Unreadable(u64),
}

/// Reads on and on until it is stopped.
pub(super) async fn run(
    mut follow: Follow,
    node: NodeId,
    (tail, arrivals): (Tail, mpsc::Sender<Arrival>),
    stop: Stop,
) -> Result<(), Error> {
    loop {
        let next = tokio::select! {
            () = stop.requested() => return Ok(()),
            next = follow.next() => next?,
        };
        // This node's own records are folded with their acknowledgement, mostly before they come this way.
        if next.0 <= tail.position() {
            continue;
        }
        let (position, bytes) = next;
        let arrival = match Record::peek(&bytes) {
            Some((id, writer)) if writer == node => Arrival::Own { position, id, bytes },
            Some(_) | None => arrival(tail.partition(), position, &bytes)?,
        };
        if arrivals.send(arrival).await.is_err() {
            return Ok(());
        }
    }
}

/// Decodes what stands at a position.
pub(super) fn arrival(
    partition: crate::event::Partition,
    position: u64,
    bytes: &[u8],
) -> Result<Arrival, Error> {
    match Record::decode(bytes) {
        Ok(record) => {
            Ok(Arrival::Record(Arc::new(Folded { position, bytes: bytes.len(), record })))
        }
        Err(source @ CodecError::Version(_)) => Err(Error::Newer { partition, position, source }),
        Err(other) => {
            error!(
                partition = partition.number(),
                position,
                error = %chain(&other),
                "position {position} of partition {partition} holds no record and is passed over"
            );
            Ok(Arrival::Unreadable(position))
        }
    }
}
