//! Pure: how long what nobody waits for is gathered before it becomes a record.
//! Promises that a draft of this node never waits for it, and that nothing rests longer than [`GATHER`].
//! Does not wait; it says until when. A turn may come on top of it.

use std::time::{Duration, Instant};

use super::Sequencer;
use crate::journal::draft::Haste;

/// From one record to the next that holds nothing that is wanted now: twenty records a second, where a busy channel would make
/// hundreds, each with a sync that everybody's sends and deliveries wait behind. A server that crashes forgets the
/// acknowledgements of its last 100 ms anyway, so what this may repeat after a crash is little.
const GATHER: Duration = Duration::from_millis(50);

/// Requests that are a record whenever the last one was.
const GATHER_MAX: usize = 256;

impl<T> Sequencer<T> {
    /// Until when the queue may rest, if nobody waits for anything in it; `last` is when the last record was made.
    pub fn rests_until(&self, last: Option<Instant>, now: Instant) -> Option<Instant> {
        let until = last? + GATHER;
        let rests = now < until && self.queue.len() < GATHER_MAX;
        (rests && self.queue.iter().all(|request| request.haste == Haste::Soon)).then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::test_start;
    use crate::event::NodeId;
    use crate::journal::draft::Request;

    fn request(haste: Haste) -> Request<()> {
        let (ticket, drafts, outcomes, seed) = ((), Vec::new(), Vec::new(), None);
        let (deadline, is_level) = (test_start() + Duration::from_secs(9), false);
        Request { ticket, drafts, outcomes, seed, deadline, is_level, haste }
    }

    #[test]
    fn only_a_queue_that_nobody_waits_for_rests_and_not_for_long() {
        let (last, node) = (test_start(), NodeId::derive([1; 16]));
        let soon = last + GATHER / 2;
        let mut sequencer = Sequencer::new(node);
        sequencer.push(request(Haste::Soon));
        assert_eq!(sequencer.rests_until(None, soon), None, "the first record is made at once");
        assert_eq!(sequencer.rests_until(Some(last), soon), Some(last + GATHER));
        assert_eq!(sequencer.rests_until(Some(last), last + GATHER), None);
        (1..GATHER_MAX).for_each(|_| sequencer.push(request(Haste::Soon)));
        assert_eq!(sequencer.rests_until(Some(last), soon), None, "enough for a record");
        let mut sequencer = Sequencer::new(node);
        sequencer.push(request(Haste::Soon));
        sequencer.push(request(Haste::Now));
        assert_eq!(sequencer.rests_until(Some(last), soon), None, "somebody waits");
    }
}
