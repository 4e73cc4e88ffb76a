//! Pure: what a drain has read of its backlog and not settled, and which of it goes next.
//! Promises that of an ordered channel only the head of a conversation is under way, and that nothing is purged that is not settled.
//! Does not read the backlog; who drains it does.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::clock::Timestamp;
use crate::event::{ConversationId, Delivery};

/// Most deliveries of an ordered channel that wait behind the heads of their conversations. At the bound nothing more is
/// read until one of them is settled.
const BEHIND_MAX: usize = 1_000;

/// A delivery and its sequence in the stream of backlogs.
pub(super) type Placed = (u64, Delivery);

/// What may go next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// This one.
    Go(Placed),
    /// Unknown before more was read.
    Read,
    /// Nothing, until something that is under way is settled.
    Nothing,
}

/// What was read of a backlog.
#[derive(Debug)]
pub(super) struct Line {
    /// Where the next page begins.
    cursor: u64,
    page: VecDeque<Placed>,
    /// What is not settled, by sequence.
    open: BTreeMap<u64, Delivery>,
    /// What waits for the head of its conversation, in order (ordered channels). An entry, also an empty one, says that
    /// the head is under way.
    behind: BTreeMap<ConversationId, VecDeque<Placed>>,
    /// How many these are.
    waiting: usize,
    /// What is tried again at a time.
    again: BTreeMap<(Timestamp, u64), Delivery>,
}

impl Line {
    /// Nothing was read.
    pub(super) const fn new() -> Self {
        Self {
            cursor: 1,
            page: VecDeque::new(),
            open: BTreeMap::new(),
            behind: BTreeMap::new(),
            waiting: 0,
            again: BTreeMap::new(),
        }
    }

    /// Where to read on.
    pub(super) const fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Whether everything that was read has gone.
    pub(super) fn is_read(&self) -> bool {
        self.page.is_empty()
    }

    /// Whether something is not settled.
    pub(super) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Any delivery of it.
    pub(super) fn sample(&self) -> Option<&Delivery> {
        self.page.front().map(|(_, delivery)| delivery).or_else(|| self.open.values().next())
    }

    /// Takes in what was read; `None` is a message that is no delivery.
    pub(super) fn take_in(&mut self, sequence: u64, delivery: Option<Delivery>) {
        self.cursor = sequence + 1;
        self.page.extend(delivery.map(|delivery| (sequence, delivery)));
    }

    /// The next that may go: what is due again, or the next of the backlog whose conversation is free.
    pub(super) fn next(&mut self, ordered: bool, now: Timestamp) -> Next {
        if let Some(entry) = self.again.first_entry()
            && entry.key().0 <= now
        {
            let ((_, sequence), delivery) = entry.remove_entry();
            return Next::Go((sequence, delivery));
        }
        while self.waiting < BEHIND_MAX {
            let Some((sequence, delivery)) = self.page.pop_front() else { return Next::Read };
            if !ordered {
                return Next::Go((sequence, delivery));
            }
            let Some(line) = self.behind.get_mut(&delivery.conversation) else {
                self.behind.insert(delivery.conversation, VecDeque::new());
                return Next::Go((sequence, delivery));
            };
            self.open.insert(sequence, delivery.clone());
            line.push_back((sequence, delivery));
            self.waiting += 1;
        }
        Next::Nothing
    }

    /// A delivery is under way.
    pub(super) fn went(&mut self, (sequence, delivery): Placed) {
        self.open.insert(sequence, delivery);
    }

    /// A delivery did not go, or is to be tried again at a time.
    pub(super) fn put_back(&mut self, (sequence, delivery): Placed, at: Timestamp) {
        self.open.insert(sequence, delivery.clone());
        self.again.insert((at, sequence), delivery);
    }

    /// A delivery that is not settled.
    pub(super) fn get(&self, sequence: u64) -> Option<&Delivery> {
        self.open.get(&sequence)
    }

    /// Whether others of its conversation wait for it, or would.
    pub(super) fn is_head(&self, delivery: &Delivery) -> bool {
        self.behind.contains_key(&delivery.conversation)
    }

    /// A delivery is done with; the next of its conversation may go.
    pub(super) fn settle(&mut self, sequence: u64, delivery: &Delivery) {
        self.open.remove(&sequence);
        let Some(line) = self.behind.get_mut(&delivery.conversation) else { return };
        match line.pop_front() {
            Some((next, delivery)) => {
                self.waiting -= 1;
                self.again.insert((Timestamp::default(), next), delivery);
            }
            None => drop(self.behind.remove(&delivery.conversation)),
        }
    }

    /// How long until something is to be tried again.
    pub(super) fn until_again(&self, now: Timestamp) -> Option<Duration> {
        self.again.first_key_value().map(|((at, _), _)| at.since(now))
    }

    /// The sequence below which everything is settled.
    pub(super) fn settled_below(&self) -> u64 {
        let unread = self.page.front().map_or(self.cursor, |(sequence, _)| *sequence);
        self.open.keys().next().copied().unwrap_or(unread).min(unread)
    }
}

#[cfg(test)]
mod tests;
