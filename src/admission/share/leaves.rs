//! Pure: the leaves of the tree of shares: which origin waits and uses where.
//! Promises a bounded number of them, whatever origins come: idle ones go, and beyond the bound they are shared.
//! Does not decide anything; a leaf is where the tree's counts and the queues meet.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::{Duration, Instant};

use super::{NodeId, Tree};
use crate::admission::queue::Queue;
use crate::admission::{CLASSES, Class, Origin, TIERS};
use crate::event::TenantId;

/// How many leaves there are at most; at some 600 bytes each that is 6 MB.
pub(super) const LEAVES_MAX: usize = 10_000;

/// How long a leaf is kept without use. It remembers nothing that matters after a few turnovers.
const IDLE_MAX: Duration = Duration::from_mins(1);

/// Leaves that are shared, in each class, by those origins that come when there are too many.
const SHARED: usize = 64;

/// How many leaves are looked at for idle ones when a new one is made.
const LOOKED_AT: usize = 64;

/// Ids are ours and not chosen by clients, so fixed keys do no harm, and make a run repeatable.
type Hashes = BuildHasherDefault<DefaultHasher>;

/// A leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::admission) struct LeafId(u32);

impl LeafId {
    fn of(place: usize) -> Self {
        Self(u32::try_from(place).expect("leaves are bounded"))
    }
}

/// All leaves.
#[derive(Debug)]
pub(in crate::admission) struct Leaves {
    slots: Vec<Leaf>,
    free: Vec<LeafId>,
    known: HashMap<Origin, LeafId, Hashes>,
    tenants: HashMap<(Class, Option<TenantId>), NodeId, Hashes>,
    shared: [[Option<LeafId>; SHARED]; CLASSES],
    tenant_cap: usize,
    /// Where the search for idle leaves goes on.
    hand: usize,
}

#[derive(Debug)]
pub(in crate::admission) struct Leaf {
    pub(in crate::admission) node: NodeId,
    /// One for each tier.
    pub(in crate::admission) queues: [Queue; TIERS],
    /// Whose it is; `None` when it is shared or free.
    origin: Option<Origin>,
    /// When it was last used.
    pub(in crate::admission) touched: Instant,
}

impl Leaves {
    /// No leaves; a tenant will have so many permits at most.
    pub(in crate::admission) fn new(tenant_cap: usize) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            known: HashMap::default(),
            tenants: HashMap::default(),
            shared: [[None; SHARED]; CLASSES],
            tenant_cap,
            hand: 0,
        }
    }

    /// The leaf of an origin, made if there is none.
    pub(in crate::admission) fn of(
        &mut self,
        origin: Origin,
        now: Instant,
        tree: &mut Tree,
    ) -> LeafId {
        if let Some(&known) = self.known.get(&origin) {
            return known;
        }
        self.sweep(now, tree);
        if self.known.len() >= LEAVES_MAX {
            return self.shared(origin, now, tree);
        }
        let tenant = *self
            .tenants
            .entry((origin.class, origin.tenant))
            .or_insert_with(|| tree.insert(Tree::class(origin.class), 1, self.tenant_cap));
        let id = self.insert((tree, tenant), Some(origin), now);
        self.known.insert(origin, id);
        id
    }

    pub(in crate::admission) fn get(&self, id: LeafId) -> &Leaf {
        &self.slots[id.0 as usize]
    }

    pub(in crate::admission) fn get_mut(&mut self, id: LeafId) -> &mut Leaf {
        &mut self.slots[id.0 as usize]
    }

    /// How many origins have a leaf of their own.
    pub(in crate::admission) fn count(&self) -> usize {
        self.known.len()
    }

    fn shared(&mut self, origin: Origin, now: Instant, tree: &mut Tree) -> LeafId {
        let hash = self.known.hasher().hash_one(origin);
        let place = usize::try_from(hash % SHARED as u64).unwrap_or(0);
        let class = origin.class.index();
        if let Some(made) = self.shared[class][place] {
            return made;
        }
        let id = self.insert((tree, Tree::class(origin.class)), None, now);
        self.shared[class][place] = Some(id);
        id
    }

    fn insert(
        &mut self,
        (tree, parent): (&mut Tree, NodeId),
        origin: Option<Origin>,
        now: Instant,
    ) -> LeafId {
        let free = self.free.pop();
        let id = free.unwrap_or_else(|| LeafId::of(self.slots.len()));
        let queues = std::array::from_fn(|_| Queue::new(now));
        let leaf = Leaf { node: tree.insert_leaf(parent, id), queues, origin, touched: now };
        match free {
            Some(id) => *self.get_mut(id) = leaf,
            None => self.slots.push(leaf),
        }
        id
    }

    /// Looks at some leaves and takes out those that were not used for long.
    fn sweep(&mut self, now: Instant, tree: &mut Tree) {
        for _ in 0..LOOKED_AT.min(self.slots.len()) {
            self.hand = (self.hand + 1) % self.slots.len();
            let leaf = &mut self.slots[self.hand];
            let unused = now.saturating_duration_since(leaf.touched) >= IDLE_MAX;
            if !unused || !tree.is_idle(leaf.node) {
                continue;
            }
            let Some(origin) = leaf.origin.take() else {
                continue;
            };
            let node = leaf.node;
            self.known.remove(&origin);
            self.free.push(LeafId::of(self.hand));
            if let Some(tenant) = tree.remove(node) {
                self.tenants.remove(&(origin.class, origin.tenant));
                // A class keeps its node, however empty.
                tree.remove(tenant);
            }
        }
    }
}
