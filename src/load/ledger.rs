//! Pure: what was acknowledged to a load generator, and the audit of it against what is stored.
//! Promises a fixed size an entry, a bound on entries, and that every entry is either audited or counted as left out.
//! Does not read the log or Postgres; the caller hands in what they hold.

use serde::Serialize;

use crate::event::{ConversationId, MessageId, Record};

/// An event's place, as a receipt promised it or as a store holds it: 40 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// Names the message; stands for its idempotency key, from which it is derived.
    pub message: MessageId,
    /// The conversation that it is in.
    pub conversation: ConversationId,
    /// Its place in there.
    pub seq: u64,
}

/// Entries that a ledger keeps unless told otherwise: 800 MB at most, a quarter of an hour at 20 000 a second.
pub const ENTRIES_MAX: usize = 20_000_000;

/// Receipts in the order in which they came. Equal receipts may come several times.
#[derive(Clone, Debug)]
pub struct Ledger {
    entries: Vec<Entry>,
    entries_max: usize,
    left_out: u64,
}

impl Default for Ledger {
    fn default() -> Self {
        Self::bounded(ENTRIES_MAX)
    }
}

impl Ledger {
    /// An empty ledger that keeps `entries_max` entries; later ones are only counted.
    pub const fn bounded(entries_max: usize) -> Self {
        Self { entries: Vec::new(), entries_max, left_out: 0 }
    }

    /// Notes a receipt.
    pub fn acknowledge(&mut self, entry: Entry) {
        if self.entries.len() < self.entries_max {
            self.entries.push(entry);
        } else {
            self.left_out += 1;
        }
    }

    /// Takes over what another ledger holds, as far as the bound allows.
    pub fn absorb(&mut self, other: Self) {
        self.left_out += other.left_out;
        for entry in other.entries {
            self.acknowledge(entry);
        }
    }

    /// How many receipts it keeps.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it keeps none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The receipts, in the order in which they came until the first audit sorts them.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Compares the receipts with everything that is stored in their conversations, from seq 1 on.
    ///
    /// Sorts both; needs 40 bytes for each stored event beside the ledger itself.
    pub fn audit(&mut self, stored: impl IntoIterator<Item = Entry>) -> Audit {
        let mut stored: Vec<Entry> = stored.into_iter().collect();
        let mut audit =
            Audit { stored: stored.len() as u64, left_out: self.left_out, ..Audit::default() };
        self.entries.sort_unstable();
        self.entries.dedup();
        stored.sort_unstable();
        audit.compare(&self.entries, &stored);
        stored.sort_unstable_by_key(|e| (e.conversation, e.seq, e.message));
        audit.count_holes(&stored);
        audit
    }
}

/// What an audit found. The counts of faults are zero when the promises were kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Audit {
    /// Messages that have a receipt.
    pub acknowledged: u64,
    /// Events that are stored.
    pub stored: u64,
    /// Stored events without a receipt: openings, and sends whose answer never came. No fault.
    pub unacknowledged: u64,
    /// Receipts beyond the ledger's bound, which were not audited. No fault, but a hole in the proof.
    pub left_out: u64,
    /// Messages with a receipt that are not stored.
    pub lost: u64,
    /// Stored events whose message is stored once already.
    pub duplicated: u64,
    /// Seqs below a conversation's last one at which nothing is stored.
    pub gaps: u64,
    /// Seqs at which a second message is stored.
    pub clashes: u64,
    /// Receipts of stored messages that name another place than the one where they are stored.
    pub misplaced: u64,
}

impl Audit {
    /// Whether nothing is lost, doubled, missing or elsewhere.
    pub fn is_clean(&self) -> bool {
        self.lost + self.duplicated + self.gaps + self.clashes + self.misplaced == 0
    }

    /// Both slices are sorted by message; the receipts are without repeats.
    fn compare(&mut self, receipts: &[Entry], stored: &[Entry]) {
        let mut rest = stored;
        for of_message in receipts.chunk_by(|a, b| a.message == b.message) {
            let message = of_message[0].message;
            let before = rest.partition_point(|e| e.message < message);
            self.pass_unacknowledged(&rest[..before]);
            rest = &rest[before..];
            let (held, after) = rest.split_at(rest.partition_point(|e| e.message == message));
            rest = after;
            self.acknowledged += 1;
            self.duplicated += (held.len() as u64).saturating_sub(1);
            if held.is_empty() {
                self.lost += 1;
            } else {
                let elsewhere = of_message.iter().filter(|r| !held.contains(r));
                self.misplaced += elsewhere.count() as u64;
            }
        }
        self.pass_unacknowledged(rest);
    }

    fn pass_unacknowledged(&mut self, stored: &[Entry]) {
        for of_message in stored.chunk_by(|a, b| a.message == b.message) {
            self.unacknowledged += 1;
            self.duplicated += of_message.len() as u64 - 1;
        }
    }

    /// The slice is sorted by conversation, then seq, then message.
    fn count_holes(&mut self, stored: &[Entry]) {
        for of_conversation in stored.chunk_by(|a, b| a.conversation == b.conversation) {
            let mut expected = 1;
            for at_seq in of_conversation.chunk_by(|a, b| a.seq == b.seq) {
                let seq = at_seq[0].seq;
                self.gaps += seq.saturating_sub(expected);
                expected = seq.saturating_add(1);
                let others = at_seq.windows(2).filter(|w| w[0].message != w[1].message);
                self.clashes += others.count() as u64;
            }
        }
    }
}

/// A record's events, as an audit takes them.
pub fn entries_of(record: &Record) -> impl Iterator<Item = Entry> + '_ {
    record.events.iter().map(|event| Entry {
        message: event.id,
        conversation: event.conversation,
        seq: event.seq,
    })
}

#[cfg(test)]
mod tests;
