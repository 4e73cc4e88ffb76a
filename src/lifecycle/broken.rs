//! Three promises that a build with the feature `broken` can be told to break, so that the chaos run can prove it would see it.
//! Promises that a release build with it does not compile, and that nothing is broken unless one is chosen.
//! Does not exist in any other build.

use std::sync::OnceLock;

/// A promise that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// A receipt is sent before the log's ack.
    EarlyReceipt,
    /// A checkpoint is written outside of the transaction of its rows.
    LooseCheckpoint,
    /// A live watermark passes a hole.
    PassedHole,
}

/// Every how many seqs a hole is passed: seldom enough to look like a fault that nobody sees.
const HOLE_EVERY: u64 = 50;

static CHOSEN: OnceLock<Break> = OnceLock::new();

impl Break {
    /// All of them, by the names under which they are chosen.
    pub const ALL: [(&'static str, Self); 3] = [
        ("early_receipt", Self::EarlyReceipt),
        ("loose_checkpoint", Self::LooseCheckpoint),
        ("passed_hole", Self::PassedHole),
    ];

    /// Chooses one for this process; the first choice stays.
    pub fn choose(self) {
        CHOSEN.get_or_init(|| self);
    }

    /// Whether it is the chosen one.
    pub fn is_chosen(self) -> bool {
        CHOSEN.get() == Some(&self)
    }
}

/// Whether the event of this seq is to be left out.
pub fn passes_over(seq: u64) -> bool {
    Break::PassedHole.is_chosen() && seq.is_multiple_of(HOLE_EVERY)
}
