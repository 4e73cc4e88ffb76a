//! Pure: which of the P logs a conversation lives in.
//! Promises that a conversation stays in its partition for ever, on every node and in every version.
//! Does not know how many partitions an installation has; the streams' metadata says so.

use std::fmt;

use super::id::ConversationId;

/// Most partitions of an installation. Each is a stream with a writer task on every node.
pub const PARTITIONS_MAX: u16 = 64;

/// One of the P independent logs, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(u16);

/// How many partitions an installation has: 1 to [`PARTITIONS_MAX`], fixed when its log is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partitions(u16);

impl Partition {
    /// The number, as it stands in stream names and checkpoint rows.
    pub const fn number(self) -> u16 {
        self.0
    }

    /// The number as an index into a list that has one entry a partition.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Partitions {
    /// `None` when the count is 0 or above [`PARTITIONS_MAX`].
    pub const fn new(count: u16) -> Option<Self> {
        if count == 0 || count > PARTITIONS_MAX { None } else { Some(Self(count)) }
    }

    /// How many there are.
    pub const fn count(self) -> u16 {
        self.0
    }

    /// All of them, from 0 up.
    pub fn all(self) -> impl Iterator<Item = Partition> {
        (0..self.0).map(Partition)
    }

    /// The partition of that number, if there is one.
    pub fn get(self, number: u16) -> Option<Partition> {
        (number < self.0).then_some(Partition(number))
    }

    /// Where this conversation lives: the finished FNV-1a hash of its id, modulo the count.
    ///
    /// Invariant: this function never changes; a conversation that moved would start at seq 1 again.
    pub fn of(self, conversation: ConversationId) -> Partition {
        let bytes = conversation.uuid().into_bytes();
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let mixed = (hash ^ (hash >> 32)) & 0xffff_ffff;
        let number = mixed % u64::from(self.0);
        Partition(u16::try_from(number).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;
    use crate::clock::Timestamp;

    #[test]
    fn a_conversation_keeps_its_partition_in_every_version() {
        let four = Partitions::new(4).unwrap();
        let place = |text| four.of(ConversationId::parse(text).unwrap()).number();
        assert_eq!(place("cnv_00000000000000000000000000000000"), PINNED[0]);
        assert_eq!(place("cnv_01900000000070008000000000000001"), PINNED[1]);
        assert_eq!(place("cnv_01900000000070008000000000000002"), PINNED[2]);
    }

    /// Written down once; a change of these numbers is a change of where conversations live.
    const PINNED: [u16; 3] = [0, 2, 3];

    #[test]
    fn conversations_spread_evenly() {
        let mut rng = SmallRng::seed_from_u64(3);
        let parts = Partitions::new(8).unwrap();
        let mut counts = [0_u32; 8];
        for _ in 0..8_000 {
            let id = ConversationId::generate(Timestamp::default(), &mut rng);
            counts[parts.of(id).index()] += 1;
        }
        assert!(counts.iter().all(|count| (850..1_150).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_count_of_none_or_too_many_is_refused() {
        assert_eq!(Partitions::new(0), None);
        assert_eq!(Partitions::new(PARTITIONS_MAX + 1), None);
        assert_eq!(Partitions::new(1).unwrap().get(1), None);
    }
}
