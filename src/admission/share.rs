//! Pure: weighted max-min fair shares over a tree: root, class, tenant, source.
//! Promises that a free permit goes to whoever has least of what it is due, on every level, within caps and reservations.
//! Does not know how long anybody waits; below a leaf that is the queue's matter.
//!
//! Shares are not computed when a permit is given. Whoever is most deprived gets it: among the children that have
//! waiters the one with the least `(in use + 1/2) / weight`. As permits turn over, that is progressive filling, one
//! permit at a time. With fewer permits than leaves it is taking turns.

mod leaves;
mod level;

use std::cmp::Ordering;

pub(super) use self::leaves::{Leaf, LeafId, Leaves};
pub(super) use self::level::{Demand, water_level};
use super::debt::real;
use super::{CLASSES, Class, TIERS};

/// A node of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NodeId(u32);

const ROOT: NodeId = NodeId(0);

impl NodeId {
    fn at(self) -> usize {
        self.0 as usize
    }

    fn of(at: usize) -> Self {
        Self(u32::try_from(at).expect("leaves are bounded, and with them the nodes"))
    }
}

/// The tree. The root and the classes are always there; tenants and sources come and go.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    free: Vec<NodeId>,
    /// Counts grants; each node keeps the count of its last one.
    grants: u64,
    /// The permits kept for one class, as wished and as the capacity allows.
    wished: Option<(Class, usize)>,
    reserved: Option<(NodeId, usize)>,
}

#[derive(Debug)]
struct Node {
    parent: NodeId,
    weight: u32,
    /// The most permits it may have. The root's is the capacity.
    cap: usize,
    /// Invariant: the sum over the children; so is `waiting`.
    in_use: usize,
    queued: usize,
    /// The weights of the children that use something or wait.
    busy: u64,
    served: u64,
    children: usize,
    /// What hangs here instead of children.
    leaf: Option<LeafId>,
    waiting: [u32; TIERS],
    /// Invariant: this node's place in its parent's list, for each tier in which it has waiters.
    place: [u32; TIERS],
    /// The children with waiters, for each tier.
    active: [Vec<NodeId>; TIERS],
}

/// The order in which children are served: the most deprived first, then the one that was served longest ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    /// `(in use + 1/2) / weight`, both doubled. A half is without favour; a whole would favour great weights.
    used: u64,
    weight: u64,
    served: u64,
    node: NodeId,
}

impl Ord for Turn {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.used * other.weight)
            .cmp(&(other.used * self.weight))
            .then(self.served.cmp(&other.served))
            .then(self.node.cmp(&other.node))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Tree {
    /// The root and the classes, with the most permits that each class may have.
    pub(super) fn new(
        capacity: usize,
        caps: [usize; CLASSES],
        reserved: Option<(Class, usize)>,
    ) -> Self {
        let mut tree = Self {
            nodes: Vec::with_capacity(1 + CLASSES),
            free: Vec::new(),
            grants: 0,
            wished: reserved,
            reserved: None,
        };
        tree.nodes.push(Node::new(ROOT, 1, capacity));
        for class in Class::ALL {
            tree.insert(ROOT, class.weight(), caps[class.index()]);
        }
        tree.on_resize(capacity);
        tree
    }

    /// The node of a class.
    pub(super) fn class(class: Class) -> NodeId {
        NodeId::of(1 + class.index())
    }

    /// A new child.
    pub(super) fn insert(&mut self, parent: NodeId, weight: u32, cap: usize) -> NodeId {
        let node = Node::new(parent, weight, cap);
        self.nodes[parent.at()].children += 1;
        if let Some(id) = self.free.pop() {
            self.nodes[id.at()] = node;
            return id;
        }
        self.nodes.push(node);
        NodeId::of(self.nodes.len() - 1)
    }

    /// A new child that has a queue instead of children.
    pub(super) fn insert_leaf(&mut self, parent: NodeId, leaf: LeafId) -> NodeId {
        let id = self.insert(parent, 1, usize::MAX);
        self.nodes[id.at()].leaf = Some(leaf);
        id
    }

    /// Takes out a node that nobody uses; gives back its parent if that has no child now.
    pub(super) fn remove(&mut self, id: NodeId) -> Option<NodeId> {
        debug_assert!(self.is_idle(id) && self.nodes[id.at()].children == 0);
        let parent = self.nodes[id.at()].parent;
        self.free.push(id);
        let left = &mut self.nodes[parent.at()].children;
        *left -= 1;
        (*left == 0).then_some(parent)
    }

    /// There are so many permits. A reservation leaves at least one of them to everybody.
    pub(super) fn on_resize(&mut self, capacity: usize) {
        self.nodes[ROOT.at()].cap = capacity;
        self.reserved = self
            .wished
            .map(|(class, kept)| (Self::class(class), kept.min(capacity.saturating_sub(1))))
            .filter(|&(_, kept)| kept > 0);
    }

    /// A permit goes to this leaf.
    pub(super) fn take(&mut self, leaf: NodeId) {
        self.grants += 1;
        self.climb(leaf, |node, grants| {
            node.in_use += 1;
            node.served = grants;
        });
    }

    /// A permit comes back from this leaf.
    pub(super) fn give(&mut self, leaf: NodeId) {
        self.climb(leaf, |node, _| node.in_use -= 1);
    }

    /// Somebody waits at this leaf.
    pub(super) fn enter(&mut self, leaf: NodeId, tier: usize) {
        self.climb(leaf, |node, _| {
            node.queued += 1;
            node.waiting[tier] += 1;
        });
        self.list(leaf, tier);
    }

    /// Somebody waits no more at this leaf.
    pub(super) fn leave(&mut self, leaf: NodeId, tier: usize) {
        self.climb(leaf, |node, _| {
            node.queued -= 1;
            node.waiting[tier] -= 1;
        });
        self.unlist(leaf, tier);
    }

    /// Whether one more permit is within every cap on the way to this leaf, the capacity among them, and leaves what
    /// is kept for others.
    pub(super) fn fits(&self, leaf: NodeId) -> bool {
        self.way(leaf).all(|node| self.allows(node)) && self.is_below_cap(ROOT)
    }

    /// Whether one more permit is within the caps of this leaf, its tenant and its class.
    pub(super) fn is_within_caps(&self, leaf: NodeId) -> bool {
        self.way(leaf).all(|node| self.is_below_cap(node))
    }

    /// The leaf whose turn it is among those with waiters of this tier; `None` when every one of them is at a cap of
    /// its own, or before a reservation of others.
    pub(super) fn pick(&self, tier: usize) -> Option<LeafId> {
        self.pick_below(ROOT, tier)
    }

    /// Whether what this leaf has is within its fair share on every level. Only then may its waiting be held against
    /// lower tiers: one that has more than its share already is its own trouble.
    pub(super) fn is_entitled(&self, leaf: NodeId) -> bool {
        self.share(leaf).is_some()
    }

    /// Whether nobody below this node uses anything or waits.
    pub(super) fn is_idle(&self, id: NodeId) -> bool {
        self.nodes[id.at()].is_idle()
    }

    /// What a node uses, how many wait in it, and the most it may have.
    pub(super) fn counts(&self, id: NodeId) -> (usize, usize, usize) {
        let node = &self.nodes[id.at()];
        (node.in_use, node.queued, node.cap)
    }

    /// What is kept for one class.
    pub(super) fn kept_for(&self, class: Class) -> usize {
        self.reserved.filter(|&(node, _)| node == Self::class(class)).map_or(0, |(_, kept)| kept)
    }

    /// From a leaf up to its class.
    fn way(&self, leaf: NodeId) -> impl Iterator<Item = NodeId> {
        let on_the_way = |id: NodeId| (id != ROOT).then_some(id);
        std::iter::successors(Some(leaf), move |id| on_the_way(self.nodes[id.at()].parent))
    }

    fn allows(&self, id: NodeId) -> bool {
        let at_top = self.nodes[id.at()].parent == ROOT;
        self.is_below_cap(id) && (!at_top || self.leaves_what_is_kept(id))
    }

    fn is_below_cap(&self, id: NodeId) -> bool {
        self.nodes[id.at()].in_use < self.nodes[id.at()].cap
    }

    /// The test of reservations: what is free beyond what others have not yet used of theirs.
    fn leaves_what_is_kept(&self, class: NodeId) -> bool {
        let root = &self.nodes[ROOT.at()];
        let kept = match self.reserved {
            Some((owner, kept)) if owner != class => {
                kept.saturating_sub(self.nodes[owner.at()].in_use)
            }
            Some(_) | None => 0,
        };
        root.cap.saturating_sub(root.in_use) > kept
    }

    fn pick_below(&self, id: NodeId, tier: usize) -> Option<LeafId> {
        let node = &self.nodes[id.at()];
        if node.leaf.is_some() {
            return node.leaf;
        }
        let mut passed = None;
        loop {
            let children = node.active[tier].iter().filter(|&&child| self.allows(child));
            let turns = children.map(|&child| self.turn(child));
            let next = turns.filter(|turn| passed.as_ref().is_none_or(|past| turn > past)).min()?;
            // Everybody below may be at a cap; then it is the next one's turn.
            if let Some(leaf) = self.pick_below(next.node, tier) {
                return Some(leaf);
            }
            passed = Some(next);
        }
    }

    fn turn(&self, id: NodeId) -> Turn {
        let node = &self.nodes[id.at()];
        let (used, weight) = (2 * node.in_use as u64 + 1, u64::from(node.weight));
        Turn { used, weight, served: node.served, node: id }
    }

    /// The simple fair share of a node: its part, by weight, of its parent's among those who want something. `None`
    /// when it or a node above has more.
    fn share(&self, id: NodeId) -> Option<f64> {
        let node = &self.nodes[id.at()];
        if id == ROOT {
            return Some(real(node.cap));
        }
        let parent = &self.nodes[node.parent.at()];
        let busy = f64::from(u32::try_from(parent.busy).unwrap_or(u32::MAX)).max(1.0);
        let share = self.share(node.parent)? * f64::from(node.weight) / busy;
        (real(node.in_use) <= share).then_some(share)
    }

    /// Changes every node from a leaf to the root, and what their parents know of them.
    fn climb(&mut self, leaf: NodeId, change: impl Fn(&mut Node, u64)) {
        let mut at = leaf;
        loop {
            let node = &mut self.nodes[at.at()];
            let before = node.is_idle();
            change(node, self.grants);
            let (after, weight, parent) = (node.is_idle(), u64::from(node.weight), node.parent);
            if at == ROOT {
                return;
            }
            match (before, after) {
                (true, false) => self.nodes[parent.at()].busy += weight,
                (false, true) => self.nodes[parent.at()].busy -= weight,
                (true, true) | (false, false) => {}
            }
            at = parent;
        }
    }

    /// Enters the first waiter's path into the lists of active children.
    fn list(&mut self, leaf: NodeId, tier: usize) {
        let mut at = leaf;
        while at != ROOT && self.nodes[at.at()].waiting[tier] == 1 {
            let parent = self.nodes[at.at()].parent;
            let siblings = &mut self.nodes[parent.at()].active[tier];
            let place = u32::try_from(siblings.len()).expect("as many as nodes at most");
            siblings.push(at);
            self.nodes[at.at()].place[tier] = place;
            at = parent;
        }
    }

    /// Takes the last waiter's path out of the lists of active children.
    fn unlist(&mut self, leaf: NodeId, tier: usize) {
        let mut at = leaf;
        while at != ROOT && self.nodes[at.at()].waiting[tier] == 0 {
            let (parent, place) = (self.nodes[at.at()].parent, self.nodes[at.at()].place[tier]);
            let siblings = &mut self.nodes[parent.at()].active[tier];
            siblings.swap_remove(place as usize);
            if let Some(&moved) = siblings.get(place as usize) {
                self.nodes[moved.at()].place[tier] = place;
            }
            at = parent;
        }
    }
}

impl Node {
    fn new(parent: NodeId, weight: u32, cap: usize) -> Self {
        Self {
            parent,
            weight,
            cap,
            in_use: 0,
            queued: 0,
            busy: 0,
            served: 0,
            children: 0,
            leaf: None,
            waiting: [0; TIERS],
            place: [0; TIERS],
            active: Default::default(),
        }
    }

    fn is_idle(&self) -> bool {
        self.in_use == 0 && self.queued == 0
    }
}

#[cfg(test)]
mod tests;
