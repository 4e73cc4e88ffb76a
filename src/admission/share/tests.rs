use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::admission::{Origin, Source};
use crate::clock::test_start;
use crate::event::TenantId;

const OPEN: [usize; CLASSES] = [usize::MAX; CLASSES];

fn origin(class: Class, n: u128) -> Origin {
    let tenant = Some(TenantId::from_uuid(uuid::Uuid::from_u128(n)));
    Origin { class, tenant, source: Source::Rest }
}

/// A tree with its leaves.
struct Wood {
    tree: Tree,
    leaves: Leaves,
    now: Instant,
}

impl Wood {
    fn new(capacity: usize, caps: [usize; CLASSES], reserved: Option<(Class, usize)>) -> Self {
        let tree = Tree::new(capacity, caps, reserved);
        Self { tree, leaves: Leaves::new(usize::MAX), now: test_start() }
    }

    fn leaf(&mut self, origin: Origin) -> NodeId {
        let leaf = self.leaves.of(origin, self.now, &mut self.tree);
        self.leaves.get(leaf).node
    }

    /// Enters many waiters of one tier.
    fn enter(&mut self, leaf: NodeId, waiters: usize) {
        for _ in 0..waiters {
            self.tree.enter(leaf, 1);
        }
    }

    /// Gives a permit to whose turn it is.
    fn grant(&mut self) -> Option<NodeId> {
        let node = self.leaves.get(self.tree.pick(1)?).node;
        self.tree.leave(node, 1);
        self.tree.take(node);
        Some(node)
    }

    fn in_use(&self, node: NodeId) -> usize {
        self.tree.counts(node).0
    }
}

#[test]
fn the_most_deprived_by_weight_is_next_and_ties_go_to_the_longest_unserved() {
    let mut wood = Wood::new(14, OPEN, None);
    let classes = [Class::High, Class::Standard, Class::Bulk];
    let leaves = classes.map(|class| wood.leaf(origin(class, 1)));
    for leaf in leaves {
        wood.enter(leaf, 20);
    }
    for _ in 0..14 {
        wood.grant();
    }
    assert_eq!(leaves.map(|leaf| wood.in_use(leaf)), [8, 4, 2]);
}

#[test]
fn with_fewer_permits_than_tenants_they_take_turns() {
    let mut wood = Wood::new(1, OPEN, None);
    let leaves: Vec<_> = (0..4).map(|n| wood.leaf(origin(Class::High, n))).collect();
    for &leaf in &leaves {
        wood.enter(leaf, 3);
    }
    for _ in 0..3 {
        let mut served: Vec<_> = (0..4)
            .map(|_| {
                let leaf = wood.grant().unwrap();
                wood.tree.give(leaf);
                leaf
            })
            .collect();
        served.sort();
        assert_eq!(served, leaves);
    }
}

#[test]
fn a_tenant_gains_nothing_by_coming_through_many_doors() {
    let mut wood = Wood::new(12, OPEN, None);
    let doors = [Source::Rest, Source::Socket, Source::Sse]
        .map(|source| wood.leaf(Origin { source, ..origin(Class::High, 1) }));
    let other = wood.leaf(origin(Class::High, 2));
    for leaf in doors.into_iter().chain([other]) {
        wood.enter(leaf, 12);
    }
    for _ in 0..12 {
        wood.grant();
    }
    assert_eq!(doors.map(|leaf| wood.in_use(leaf)), [2, 2, 2]);
    assert_eq!(wood.in_use(other), 6);
}

#[test]
fn a_capped_branch_is_passed_over_and_the_next_one_is_served() {
    let mut wood = Wood::new(10, [usize::MAX, 2, usize::MAX, usize::MAX], None);
    wood.leaves = Leaves::new(3);
    let (high, bulk) = (wood.leaf(origin(Class::High, 1)), wood.leaf(origin(Class::Bulk, 1)));
    let other = wood.leaf(origin(Class::Bulk, 2));
    for leaf in [high, bulk, other] {
        wood.enter(leaf, 10);
    }
    while wood.grant().is_some() {}
    assert_eq!([high, bulk, other].map(|leaf| wood.in_use(leaf)), [2, 3, 3], "class, tenant");
    assert!(!wood.tree.is_within_caps(high) && !wood.tree.fits(bulk));
}

#[test]
fn a_branch_whose_children_are_all_capped_does_not_block_its_sibling() {
    let mut wood = Wood::new(10, OPEN, None);
    wood.leaves = Leaves::new(1);
    let (high, bulk) = (wood.leaf(origin(Class::High, 1)), wood.leaf(origin(Class::Bulk, 1)));
    wood.enter(high, 5);
    wood.enter(bulk, 5);
    assert_eq!(wood.grant(), Some(high));
    // High is still the most deprived, but its only tenant is at its cap.
    assert_eq!(wood.grant(), Some(bulk));
    assert_eq!(wood.grant(), None);
}

#[test]
fn reserved_permits_are_left_to_their_class_until_it_uses_them() {
    let mut wood = Wood::new(5, OPEN, Some((Class::System, 2)));
    let (system, bulk) =
        (wood.leaf(Origin::system(Source::Projector)), wood.leaf(origin(Class::Bulk, 1)));
    wood.enter(bulk, 9);
    while wood.grant().is_some() {}
    assert_eq!(wood.in_use(bulk), 3);
    assert!(wood.tree.fits(system) && !wood.tree.fits(bulk));
    wood.tree.take(system);
    assert!(!wood.tree.fits(bulk), "one of the two is still kept");
    wood.tree.give(bulk);
    assert!(wood.tree.fits(bulk), "and one is free for everybody");
    wood.tree.take(system);
    assert!(wood.tree.fits(bulk), "none is kept");
    wood.tree.take(system);
    assert!(!wood.tree.fits(bulk) && !wood.tree.fits(system), "none is free");
}

#[test]
fn a_reservation_never_takes_the_last_permit_from_everybody() {
    let mut wood = Wood::new(5, OPEN, Some((Class::System, 9)));
    let bulk = wood.leaf(origin(Class::Bulk, 1));
    assert_eq!(wood.tree.kept_for(Class::System), 4);
    assert!(wood.tree.fits(bulk));
    wood.tree.on_resize(1);
    assert!(wood.tree.fits(bulk), "shrunk to one");
    wood.tree.on_resize(0);
    assert!(!wood.tree.fits(bulk));
}

#[test]
fn whoever_has_more_than_a_fair_share_is_not_entitled() {
    let mut wood = Wood::new(4, OPEN, None);
    let (hog, light) = (wood.leaf(origin(Class::High, 1)), wood.leaf(origin(Class::High, 2)));
    for _ in 0..4 {
        wood.tree.take(hog);
    }
    assert!(wood.tree.is_entitled(hog), "alone it may have everything");
    wood.enter(light, 1);
    assert!(!wood.tree.is_entitled(hog) && wood.tree.is_entitled(light));
    wood.tree.leave(light, 1);
    assert!(wood.tree.is_entitled(hog));
    let system = wood.leaf(Origin::system(Source::Projector));
    wood.enter(system, 1);
    assert!(!wood.tree.is_entitled(hog), "a class has a fair share too");
}

#[test]
fn an_idle_leaf_goes_after_a_minute_and_takes_its_tenant_along() {
    let mut wood = Wood::new(5, OPEN, None);
    let (idle, used) = (wood.leaf(origin(Class::High, 1)), wood.leaf(origin(Class::High, 2)));
    wood.tree.take(used);
    wood.now += Duration::from_mins(1);
    wood.leaf(origin(Class::High, 3));
    assert_eq!(wood.leaves.count(), 2, "one went, one came");
    let again = wood.leaf(origin(Class::High, 1));
    assert_eq!(wood.leaves.count(), 3);
    assert!(!wood.tree.is_idle(used) && wood.tree.is_idle(again) && idle != used);
    wood.tree.give(used);
    wood.now += Duration::from_mins(1);
    wood.leaf(origin(Class::Bulk, 9));
    assert_eq!(wood.leaves.count(), 1);
    assert_eq!(wood.tree.nodes.len() - wood.tree.free.len(), 1 + CLASSES + 2, "no node is lost");
}

#[test]
fn beyond_the_bound_leaves_are_shared_and_their_number_stays_bounded() {
    let mut wood = Wood::new(5, OPEN, None);
    for n in 0..30_000 {
        wood.leaf(origin(Class::Bulk, n));
    }
    assert_eq!(wood.leaves.count(), leaves::LEAVES_MAX);
    let nodes = wood.tree.nodes.len();
    assert_eq!(nodes, 1 + CLASSES + 2 * leaves::LEAVES_MAX + 64);
    let late = wood.leaf(origin(Class::Bulk, 29_999));
    assert_eq!(late, wood.leaf(origin(Class::Bulk, 29_999)), "the same origin, the same leaf");
    assert_eq!(wood.tree.nodes.len(), nodes);
    wood.now += Duration::from_mins(1);
    let mut made = wood.leaf(origin(Class::Bulk, 29_999));
    for n in 30_000..30_200 {
        made = made.max(wood.leaf(origin(Class::Bulk, n)));
    }
    assert!(wood.leaves.count() < leaves::LEAVES_MAX, "room is found again");
    assert_eq!(wood.tree.nodes.len(), nodes);
}

proptest! {
    #[test]
    fn permits_that_turn_over_come_to_within_one_of_the_water_level(
        capacity in 4usize..24,
        wants in prop::collection::vec(0usize..20, CLASSES),
        start in prop::collection::vec(0usize..CLASSES, 24),
    ) {
        let mut wood = Wood::new(capacity, OPEN, None);
        let leaves: Vec<_> =
            Class::ALL.iter().map(|&class| wood.leaf(origin(class, 1))).collect();
        for (&leaf, &want) in leaves.iter().zip(&wants) {
            wood.enter(leaf, want);
        }
        // Somebody got in first, unfairly.
        for &class in start.iter().take(capacity) {
            if wood.tree.counts(leaves[class]).1 > 0 {
                wood.tree.leave(leaves[class], 1);
                wood.tree.take(leaves[class]);
            }
        }
        // Then every permit comes back in turn, and its owner waits again.
        for turn in 0..CLASSES * 4 * capacity {
            while wood.tree.fits(leaves[0]) && wood.grant().is_some() {}
            let leaf = leaves[turn % CLASSES];
            if wood.in_use(leaf) > 0 {
                wood.tree.give(leaf);
                wood.tree.enter(leaf, 1);
                wood.grant();
            }
        }
        let demands: Vec<Demand> = Class::ALL.iter().zip(&wants).map(|(class, &want)| Demand {
            weight: f64::from(class.weight()), wanted: real(want), kept: 0.0,
        }).collect();
        let level = water_level(real(capacity), &demands);
        for (&leaf, due) in leaves.iter().zip(&level) {
            let has = real(wood.in_use(leaf));
            prop_assert!((has - due).abs() <= 1.0 + 1e-9, "has {has}, due {due}: {level:?}");
        }
    }
}
