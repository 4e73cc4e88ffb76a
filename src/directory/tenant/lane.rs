//! Pure: lanes, the shards by which deliveries queue fairly: a tier and a hash of the tenant.
//! Promises that a tenant is always in the same lane of its tier, on every node and in every version.
//! Does not queue anything.

use super::Tier;
use crate::event::TenantId;

/// Lanes of a tier: enough that two busy tenants seldom share one, few enough that each can be pulled from at once.
pub(in crate::directory) const SHARDS: u8 = 8;

/// One of the lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    /// The tier of its tenants.
    pub tier: Tier,
    /// Which of the tier's lanes, below [`SHARDS`].
    pub shard: u8,
}

/// The tiers, in the order of their lanes.
const TIERS: [Tier; 3] = [Tier::High, Tier::Standard, Tier::Bulk];

impl Lane {
    /// How many there are.
    pub const COUNT: usize = TIERS.len() * SHARDS as usize;

    /// The lane of a tenant.
    pub fn of(tier: Tier, tenant: TenantId) -> Self {
        // FNV-1a, written out: its values are in subjects, so they must never change.
        let fold = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        let hash = tenant.uuid().as_bytes().iter().fold(0x811c_9dc5, fold);
        // Its low bits depend on the low bits of the bytes only.
        let folded = (hash ^ (hash >> 16) ^ (hash >> 8)) % u32::from(SHARDS);
        let shard = u8::try_from(folded).unwrap_or(0);
        Self { tier, shard }
    }

    /// All of them, in the order of [`Self::index`].
    pub fn all() -> impl Iterator<Item = Self> {
        TIERS.into_iter().flat_map(|tier| (0..SHARDS).map(move |shard| Self { tier, shard }))
    }

    /// Its number, below [`Self::COUNT`].
    pub fn index(self) -> usize {
        let tier = TIERS.iter().position(|tier| *tier == self.tier).unwrap_or(0);
        tier * usize::from(SHARDS) + usize::from(self.shard)
    }

    /// Its name in subjects and metrics, for example `standard3`.
    pub fn name(self) -> String {
        format!("{}{}", self.tier.as_str(), self.shard)
    }

    /// The lane of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::all().find(|lane| lane.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lane_has_its_own_place_and_name() {
        for (index, lane) in Lane::all().enumerate() {
            assert_eq!(lane.index(), index);
            assert_eq!(Lane::parse(&lane.name()), Some(lane));
        }
        assert_eq!(Lane::all().count(), Lane::COUNT);
        assert_eq!(Lane::parse("standard8"), None);
    }

    #[test]
    fn a_tenants_lane_never_changes_and_tenants_spread() {
        let lane = |n: u8| Lane::of(Tier::Standard, TenantId::derive([n; 16])).shard;
        assert_eq!([lane(1), lane(2), lane(3)].map(|shard| shard < SHARDS), [true; 3]);
        let mut counts = [0; SHARDS as usize];
        (0..=255).for_each(|n| counts[usize::from(lane(n))] += 1);
        assert!(counts.iter().all(|count| (10..=80).contains(count)), "{counts:?}");
    }
}
