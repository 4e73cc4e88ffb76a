//! What an endpoint of the receiver was sent, request by request.
//! Promises exact counts, and memory within bounds: what is beyond them is counted and not kept.
//! Does not decide what is answered.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use bytes::Bytes;
use hyper::HeaderMap;

use crate::clock::Timestamp;

/// Most requests that a receiver keeps, over all endpoints, unless told otherwise.
pub const ENTRIES_MAX: usize = 1_000_000;

/// Most bytes of bodies that a receiver keeps, over all endpoints.
pub const BODY_BYTES_KEPT_MAX: usize = 256 * 1024 * 1024;

/// Longest header value that is kept; the rest is cut off.
const HEADER_BYTES_MAX: usize = 1_024;

/// A request that was read to its end. Headers that were not sent are empty or `None`.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// `webhook-id`.
    pub id: Arc<str>,
    /// `webhook-timestamp`.
    pub timestamp: Box<str>,
    /// `webhook-signature`.
    pub signature: Box<str>,
    /// `forebay-attempt`.
    pub attempt: Option<u32>,
    /// `forebay-seq`.
    pub seq: Option<u64>,
    /// Whether a signature was of this body and the endpoint's secret; `None` without a secret.
    pub verified: Option<bool>,
    /// The status that it was answered, or is about to be; `None` when the mode does not answer.
    pub status: Option<u16>,
    /// When its head had arrived, for measuring.
    pub at: Instant,
    /// The same as a time of day.
    pub arrived: Timestamp,
    /// The body, if it was asked for and there was room.
    pub body: Option<Bytes>,
}

impl Receipt {
    /// The receipt of a request that is not answered yet.
    pub(super) fn new(
        headers: &HeaderMap,
        body: Bytes,
        (at, arrived): (Instant, Timestamp),
    ) -> Self {
        Self {
            id: header(headers, "webhook-id").into(),
            timestamp: header(headers, "webhook-timestamp").into(),
            signature: header(headers, "webhook-signature").into(),
            attempt: header(headers, "forebay-attempt").parse().ok(),
            seq: header(headers, "forebay-seq").parse().ok(),
            verified: None,
            status: None,
            at,
            arrived,
            body: Some(body),
        }
    }
}

/// The value of a header, empty when it is not there or not in visible ASCII, which makes every cut a valid one.
fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    let text = headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    &text[..text.len().min(HEADER_BYTES_MAX)]
}

/// What all endpoints of a receiver may keep together, and what they do.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) entries_max: usize,
    pub(super) keep_bodies: AtomicBool,
    entries: AtomicUsize,
    body_bytes: AtomicUsize,
}

impl Room {
    pub(super) fn new(entries_max: usize) -> Self {
        Self {
            entries_max,
            keep_bodies: AtomicBool::new(false),
            entries: AtomicUsize::new(0),
            body_bytes: AtomicUsize::new(0),
        }
    }

    /// Takes so much of what is there up to `max`, if it fits.
    fn take(counter: &AtomicUsize, amount: usize, max: usize) -> bool {
        let fits = |held: usize| held.checked_add(amount).filter(|held| *held <= max);
        counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }
}

/// The receipts of one endpoint.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) receipts: Vec<Receipt>,
    /// Of the receipts that are kept.
    pub(super) ids: HashSet<Arc<str>>,
    pub(super) count: usize,
    pub(super) unverified: usize,
    pub(super) dropped: usize,
}

impl Ledger {
    /// Counts a receipt and keeps it if there is room.
    pub(super) fn put(&mut self, mut receipt: Receipt, room: &Room) {
        self.count += 1;
        if receipt.verified == Some(false) {
            self.unverified += 1;
        }
        if !Room::take(&room.entries, 1, room.entries_max) {
            self.dropped += 1;
            return;
        }
        let wanted = room.keep_bodies.load(Ordering::Relaxed);
        receipt.body = receipt
            .body
            .filter(|body| wanted && Room::take(&room.body_bytes, body.len(), BODY_BYTES_KEPT_MAX));
        if !receipt.id.is_empty() {
            self.ids.insert(Arc::clone(&receipt.id));
        }
        self.receipts.push(receipt);
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self, room: &Room) {
        let bodies = self.receipts.iter().filter_map(|receipt| receipt.body.as_ref());
        room.body_bytes.fetch_sub(bodies.map(Bytes::len).sum(), Ordering::Relaxed);
        room.entries.fetch_sub(self.receipts.len(), Ordering::Relaxed);
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::test_start;

    fn receipt(id: &str, body: &'static str) -> Receipt {
        let mut headers = HeaderMap::new();
        headers.insert("webhook-id", id.parse().unwrap());
        headers.insert("forebay-attempt", "3".parse().unwrap());
        headers.insert("forebay-seq", "many".parse().unwrap());
        let now = (test_start(), Timestamp::default());
        Receipt::new(&headers, Bytes::from_static(body.as_bytes()), now)
    }

    #[test]
    fn what_does_not_fit_is_counted_and_room_comes_back() {
        let (mut one, mut other) = (Ledger::default(), Ledger::default());
        let room = Room::new(3);
        for (ledger, id) in [(0, "a"), (1, "a"), (0, "a"), (1, "b"), (0, "c")] {
            [&mut one, &mut other][ledger].put(receipt(id, "{}"), &room);
        }
        assert_eq!((one.count, one.receipts.len(), one.ids.len(), one.dropped), (3, 2, 1, 1));
        assert_eq!((other.count, other.receipts.len(), other.dropped), (2, 1, 1));
        one.clear(&room);
        other.put(receipt("d", "{}"), &room);
        assert_eq!((one.count, one.dropped, other.receipts.len()), (0, 0, 2));
    }

    #[test]
    fn a_body_is_kept_when_it_is_asked_for() {
        let (mut ledger, room) = (Ledger::default(), Room::new(9));
        ledger.put(receipt("a", "first"), &room);
        room.keep_bodies.store(true, Ordering::Relaxed);
        ledger.put(receipt("b", "second"), &room);
        let bodies: Vec<_> = ledger.receipts.iter().map(|receipt| receipt.body.clone()).collect();
        assert_eq!(bodies, [None, Some(Bytes::from_static(b"second"))]);
        ledger.clear(&room);
        assert_eq!(room.body_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_header_is_read_in_its_form_and_cut_at_its_bound() {
        let read = receipt(&"x".repeat(HEADER_BYTES_MAX + 1), "");
        assert_eq!(read.id.len(), HEADER_BYTES_MAX);
        assert_eq!((read.attempt, read.seq, &*read.signature), (Some(3), None, ""));
    }
}
