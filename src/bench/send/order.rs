//! Pure: in which order the variants of a round are measured.
//! Promises that each is measured once a round, that no two rounds need be alike, and that a seed gives the same again.
//! Does not draw seeds; the command does.

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

/// The places of so many variants in their order in one round. A rotation would keep neighbours together, so that one
/// variant would always meet what the same other one leaves behind: a cache, a checkpoint, a compaction.
pub(super) fn order(count: usize, round: usize, seed: u32) -> Vec<usize> {
    let round = u64::try_from(round).unwrap_or(u64::MAX);
    let mut rng = SmallRng::seed_from_u64(round.rotate_left(32) ^ u64::from(seed));
    let mut places: Vec<usize> = (0..count).collect();
    places.shuffle(&mut rng);
    places
}

/// Rounds that are measured and forgotten before those that count. The first round of a process is slower than all
/// others: a median of several rounds leaves it out, a single one would be it.
pub(super) const fn forgotten(rounds: usize) -> usize {
    if rounds == 1 { 1 } else { 0 }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_variant_has_one_turn_a_round(count in 0..9_usize, round: usize, seed: u32) {
            let places = order(count, round, seed);
            let mut sorted = places.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..count).collect::<Vec<_>>());
            prop_assert_eq!(places, order(count, round, seed));
        }
    }

    #[test]
    fn neighbours_change_from_round_to_round() {
        let followers: BTreeSet<usize> = (0..40)
            .filter_map(|round| {
                let places = order(5, round, 7);
                let at = places.iter().position(|place| *place == 0)?;
                places.get(at + 1).copied()
            })
            .collect();
        assert_eq!(followers, (1..5).collect(), "each other one comes after the first some time");
    }

    #[test]
    fn only_a_single_round_has_one_before_it() {
        assert_eq!([0, 1, 2, 3].map(forgotten), [0, 1, 0, 0]);
    }
}
