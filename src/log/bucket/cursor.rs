//! Pure: where a watch is in its bucket, and what an attachment to the server may go on from.
//! Promises that a revision is delivered at most once between two restarts and that none is passed over.
//! Does not talk to a server; [`super::watch`] does.

/// What the server says of the bucket's stream when a watch attaches to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sight {
    /// When the stream was created, in nanoseconds: another value is another stream.
    pub(super) created: i128,
    /// The lowest revision that it holds.
    pub(super) first: u64,
    /// The highest revision that it ever gave out.
    pub(super) last: u64,
}

/// How an attachment begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Start {
    /// Everything again: there is nothing to go on from, or it cannot be trusted.
    Afresh,
    /// From this revision on.
    From(u64),
}

/// The position of a watch.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    created: Option<i128>,
    /// Every revision up to this one was delivered, or is known not to exist any more.
    last: u64,
    /// The revision at which the watch knows what the server knew when it attached.
    target: u64,
    level: bool,
}

impl Cursor {
    /// Every revision up to this one was delivered.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Where to go on, given what the server holds.
    ///
    /// A deletion is a revision like any other, so going on after the last one misses none, unless markers were purged
    /// meanwhile. That leaves the stream's first revision beyond the next expected one.
    pub(super) fn start(&self, sight: Sight) -> Start {
        let next = self.last.saturating_add(1);
        let same = self.created == Some(sight.created);
        if same && self.last <= sight.last && sight.first <= next {
            Start::From(next)
        } else {
            Start::Afresh
        }
    }

    /// The attachment stands. An attempt that failed before this point has changed nothing.
    pub(super) fn on_attached(&mut self, sight: Sight, start: Start) {
        self.level = false;
        self.target = sight.last;
        if start == Start::Afresh {
            self.created = Some(sight.created);
            self.last = 0;
        }
    }

    /// The server has nothing beyond what was delivered. True when that makes the watch level.
    pub(super) fn on_nothing_pending(&mut self) -> bool {
        self.last = self.last.max(self.target);
        self.become_level()
    }

    /// A revision arrived. False when it was delivered before.
    pub(super) fn on_revision(&mut self, revision: u64) -> bool {
        let new = revision > self.last;
        self.last = self.last.max(revision);
        new
    }

    /// Called after each delivery, with how many more are on the way. True when the watch becomes level by it.
    pub(super) fn on_delivered(&mut self, pending: u64) -> bool {
        let reached = pending == 0 || self.last >= self.target;
        reached && self.become_level()
    }

    /// The connection or the server's side of the watch is gone. True when the watch was level.
    pub(super) fn on_lost(&mut self) -> bool {
        std::mem::replace(&mut self.level, false)
    }

    /// Whether the server has given out revisions that never arrived.
    pub(super) fn is_behind(&self, last: u64) -> bool {
        last != self.last
    }

    fn become_level(&mut self) -> bool {
        !std::mem::replace(&mut self.level, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn sight(created: i128, first: u64, last: u64) -> Sight {
        Sight { created, first, last }
    }

    fn attach(cursor: &mut Cursor, sight: Sight) -> Start {
        let start = cursor.start(sight);
        cursor.on_attached(sight, start);
        start
    }

    fn level_at(last: u64) -> Cursor {
        let mut cursor = Cursor::default();
        assert_eq!(attach(&mut cursor, sight(1, 1, last)), Start::Afresh);
        for revision in 1..=last {
            assert!(cursor.on_revision(revision));
            assert_eq!(cursor.on_delivered(last - revision), revision == last);
        }
        cursor
    }

    #[test]
    fn the_first_attachment_starts_afresh_and_becomes_level_once() {
        let mut cursor = level_at(3);
        assert_eq!(cursor.last(), 3);
        assert!(cursor.on_revision(4));
        assert!(!cursor.on_delivered(0));
    }

    #[test]
    fn an_empty_bucket_is_level_at_once_even_if_it_was_purged() {
        let mut cursor = Cursor::default();
        assert_eq!(attach(&mut cursor, sight(1, 11, 10)), Start::Afresh);
        assert!(cursor.on_nothing_pending());
        assert_eq!(cursor.last(), 10);
        assert!(!cursor.is_behind(10));
    }

    #[test]
    fn a_later_attachment_goes_on_after_the_last_revision() {
        let mut cursor = level_at(3);
        assert!(cursor.on_lost());
        assert!(!cursor.on_lost());
        assert_eq!(attach(&mut cursor, sight(1, 2, 5)), Start::From(4));
        assert!(!cursor.on_revision(3));
        assert!(!cursor.on_delivered(2));
        assert!(cursor.on_revision(5));
        assert!(cursor.on_delivered(0));
    }

    #[test]
    fn what_cannot_be_continued_starts_afresh() {
        let cases = [
            ("another stream", sight(2, 1, 9)),
            ("a stream that went back", sight(1, 1, 2)),
            ("a stream that was purged beyond the position", sight(1, 5, 9)),
        ];
        for (case, seen) in cases {
            let mut cursor = level_at(3);
            assert_eq!(attach(&mut cursor, seen), Start::Afresh, "{case}");
            assert_eq!(cursor.last(), 0);
            assert!(cursor.on_revision(seen.first), "{case}");
        }
    }

    #[test]
    fn an_attempt_that_fails_changes_nothing() {
        let cursor = level_at(3);
        assert_eq!(cursor.start(sight(2, 1, 9)), Start::Afresh);
        assert_eq!(cursor.start(sight(2, 1, 9)), Start::Afresh);
        assert_eq!(cursor.last(), 3);
    }

    #[test]
    fn a_bucket_that_grows_while_it_is_read_still_becomes_level() {
        let mut cursor = Cursor::default();
        assert_eq!(attach(&mut cursor, sight(1, 1, 2)), Start::Afresh);
        assert!(cursor.on_revision(1));
        assert!(!cursor.on_delivered(7));
        assert!(cursor.on_revision(4));
        assert!(cursor.on_delivered(6));
    }
}
