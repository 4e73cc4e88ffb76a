//! Pure: which of the deliveries that a node holds is attempted next.
//! Promises that no channel and no tenant takes more than its cap, so that a delivery of somebody else finds a slot.
//! Does not attempt anything; what it cannot hold it gives back.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::directory::{Lane, Tier};
use crate::event::{ChannelId, TenantId};

/// Most deliveries of one class that wait in one lane. Bounds what one look for the next costs.
const LANE_QUEUE_MAX: usize = 256;

/// Most fresh deliveries of one channel, and of one tenant, that wait in a lane. More of them mean that it is busy.
const CHANNEL_LINE_MAX: usize = 32;
const TENANT_LINE_MAX: usize = 128;

/// Longest wait of a delivery out of a queue for its channel's or tenant's turn. Longer ones go to the channel's backlog: what
/// is held must be told of to the queue, and it may wait there as well.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Attempts at once on one node, by tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// See [`Tier::High`].
    pub high: usize,
    /// See [`Tier::Standard`].
    pub standard: usize,
    /// See [`Tier::Bulk`].
    pub bulk: usize,
}

impl Default for Sizes {
    /// 10, 20 and 5: what a tier is worth when all are busy.
    fn default() -> Self {
        Self { high: 10, standard: 20, bulk: 5 }
    }
}

/// Whose a delivery is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its lane.
    pub lane: Lane,
    /// Its tenant.
    pub tenant: TenantId,
    /// Its channel.
    pub channel: ChannelId,
}

/// Where a delivery comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// From its lane's queue.
    Fresh,
    /// From the schedule of retries. Fresh ones go first.
    Due,
    /// From its channel's backlog. It waits as long as it takes, because nobody else is waited for.
    Backlog,
}

impl Class {
    const ALL: [Self; 3] = [Self::Fresh, Self::Due, Self::Backlog];

    /// Those that a queue waits for, and that are moved to a backlog when they wait too long.
    const QUEUED: [Self; 2] = [Self::Fresh, Self::Due];
}

/// A delivery that there is no place for.
#[derive(Debug)]
pub struct Overflow<T>(pub T);

#[derive(Debug)]
struct Item<T> {
    key: Key,
    cap: usize,
    since: Instant,
    held: T,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    in_flight: usize,
    waiting: usize,
}

/// What a node holds, and what is under way.
#[derive(Debug)]
pub struct Slots<T> {
    sizes: [usize; 3],
    lanes: Vec<[VecDeque<Item<T>>; 3]>,
    in_flight: [usize; 3],
    /// Of these, those that are not fresh.
    older: [usize; 3],
    channels: HashMap<ChannelId, Count>,
    tenants: HashMap<(Tier, TenantId), Count>,
    /// The lane of each tier that is looked at first.
    turns: [usize; 3],
}

/// A delivery that is to be attempted now; its slot is held until [`Slots::finish`].
#[derive(Debug)]
pub struct Started<T> {
    /// Whose it is.
    pub key: Key,
    /// Where it comes from.
    pub class: Class,
    /// The delivery.
    pub item: T,
}

impl<T> Slots<T> {
    /// Empty slots.
    pub fn new(sizes: Sizes) -> Self {
        Self {
            sizes: [sizes.high, sizes.standard, sizes.bulk].map(|size| size.max(1)),
            lanes: (0..Lane::COUNT).map(|_| Default::default()).collect(),
            in_flight: [0; 3],
            older: [0; 3],
            channels: HashMap::new(),
            tenants: HashMap::new(),
            turns: [0; 3],
        }
    }

    /// How many more deliveries may be pulled for this lane.
    pub fn room(&self, lane: Lane) -> usize {
        LANE_QUEUE_MAX.saturating_sub(self.lanes[lane.index()][0].len())
    }

    /// Slots of a tier.
    pub fn size(&self, tier: Tier) -> usize {
        self.sizes[tier as usize]
    }

    /// How many attempts at once a channel may have: what it asks for, at most its tier's slots; half of them if it
    /// does not say.
    pub fn cap(&self, tier: Tier, asked: Option<u64>) -> usize {
        let size = self.size(tier);
        match asked.map(usize::try_from) {
            Some(asked) => asked.unwrap_or(size).clamp(1, size),
            None => (size / 2).max(1),
        }
    }

    /// Attempts under way and deliveries that wait, of a tier.
    pub fn status(&self, tier: Tier) -> (usize, usize) {
        let lanes = Lane::all().filter(|lane| lane.tier == tier);
        let waiting = lanes.flat_map(|lane| &self.lanes[lane.index()]).map(VecDeque::len).sum();
        (self.in_flight[tier as usize], waiting)
    }

    /// Attempts of a channel that are under way.
    pub fn in_flight(&self, channel: ChannelId) -> usize {
        self.channels.get(&channel).map_or(0, |count| count.in_flight)
    }

    /// Takes a delivery in.
    ///
    /// # Errors
    /// [`Overflow`] when its channel's, its tenant's or its lane's line is full: the channel is to be set apart.
    pub fn push(
        &mut self,
        (key, class): (Key, Class),
        asked: Option<u64>,
        item: T,
        now: Instant,
    ) -> Result<(), Overflow<T>> {
        let queue = self.lanes[key.lane.index()][class as usize].len();
        let channel = self.channels.get(&key.channel).copied().unwrap_or_default();
        let tenant = self.tenants.get(&(key.lane.tier, key.tenant)).copied().unwrap_or_default();
        let lines = class == Class::Fresh
            && (channel.waiting >= CHANNEL_LINE_MAX || tenant.waiting >= TENANT_LINE_MAX);
        if queue >= LANE_QUEUE_MAX || lines {
            return Err(Overflow(item));
        }
        let cap = self.cap(key.lane.tier, asked);
        self.count(key, |count| count.waiting += 1);
        let item = Item { key, cap, since: now, held: item };
        self.lanes[key.lane.index()][class as usize].push_back(item);
        Ok(())
    }

    /// The next delivery to attempt, if one may be. Looks at no more than the lines of one tier after the other.
    pub fn start(&mut self) -> Option<Started<T>> {
        let mut tiers = [Tier::High, Tier::Standard, Tier::Bulk];
        // Whoever has least of its own goes first: compared as fractions, without dividing.
        tiers.sort_by(|a, b| {
            let (a, b) = (*a as usize, *b as usize);
            (self.in_flight[a] * self.sizes[b]).cmp(&(self.in_flight[b] * self.sizes[a]))
        });
        tiers.into_iter().find_map(|tier| self.has_room(tier).then(|| self.next_of(tier)).flatten())
    }

    /// Gives back the slot of a delivery that was started.
    pub fn finish(&mut self, key: Key, class: Class) {
        let tier = key.lane.tier as usize;
        self.in_flight[tier] = self.in_flight[tier].saturating_sub(1);
        if class != Class::Fresh {
            self.older[tier] = self.older[tier].saturating_sub(1);
        }
        self.count(key, |count| count.in_flight = count.in_flight.saturating_sub(1));
    }

    /// Deliveries out of queues that have waited too long.
    pub fn expired(&mut self, now: Instant) -> Vec<(Key, T)> {
        let is_old = |item: &Item<T>| now.saturating_duration_since(item.since) >= WAIT_MAX;
        let mut expired = Vec::new();
        for lane in &mut self.lanes {
            for class in Class::QUEUED {
                let line = &mut lane[class as usize];
                let old = line.iter().take_while(|item| is_old(item)).count();
                expired.extend(line.drain(..old));
            }
        }
        self.give_up(expired)
    }

    /// When the next delivery out of a queue will have waited too long.
    pub fn next_wake(&self) -> Option<Instant> {
        let fronts =
            |class: Class| self.lanes.iter().filter_map(move |l| l[class as usize].front());
        let fronts = Class::QUEUED.into_iter().flat_map(fronts);
        fronts.map(|item| item.since + WAIT_MAX).min()
    }

    /// Everything of a channel that waits out of queues, each in order: the channel was set apart.
    pub fn take_channel(&mut self, lane: Lane, channel: ChannelId) -> Vec<(Key, T)> {
        if self.channels.get(&channel).is_none_or(|count| count.waiting == 0) {
            return Vec::new();
        }
        let mut taken = Vec::new();
        for class in Class::QUEUED {
            let line = &mut self.lanes[lane.index()][class as usize];
            let (own, rest): (VecDeque<_>, VecDeque<_>) =
                std::mem::take(line).into_iter().partition(|item| item.key.channel == channel);
            *line = rest;
            taken.extend(own);
        }
        self.give_up(taken)
    }

    fn give_up(&mut self, items: Vec<Item<T>>) -> Vec<(Key, T)> {
        for item in &items {
            self.count(item.key, |count| count.waiting = count.waiting.saturating_sub(1));
        }
        items.into_iter().map(|item| (item.key, item.held)).collect()
    }

    /// Whether a tier may have one more: of its own slots, or of others' idle ones while half of each other's own stay
    /// free for it.
    fn has_room(&self, tier: Tier) -> bool {
        let own = tier as usize;
        let kept: usize = (0..3)
            .filter(|other| *other != own)
            .map(|other| self.sizes[other].div_ceil(2).max(self.in_flight[other]))
            .sum();
        let total: usize = self.sizes.iter().sum();
        self.in_flight[own] < self.sizes[own].max(total.saturating_sub(kept))
            && self.in_flight.iter().sum::<usize>() < total
    }

    fn next_of(&mut self, tier: Tier) -> Option<Started<T>> {
        let lanes: Vec<usize> =
            Lane::all().filter(|lane| lane.tier == tier).map(Lane::index).collect();
        let half = (self.size(tier) / 2).max(1);
        for class in Class::ALL {
            if class != Class::Fresh && self.older[tier as usize] >= half {
                return None;
            }
            for step in 0..lanes.len() {
                let turn = (self.turns[tier as usize] + step) % lanes.len();
                let lane = lanes[turn];
                let place = self.lanes[lane][class as usize].iter().position(|i| self.may_start(i));
                if let Some(item) =
                    place.and_then(|place| self.lanes[lane][class as usize].remove(place))
                {
                    self.turns[tier as usize] = turn + 1;
                    return Some(self.take(item, class));
                }
            }
        }
        None
    }

    fn may_start(&self, item: &Item<T>) -> bool {
        let tier = item.key.lane.tier;
        let tenants = self.tenants.get(&(tier, item.key.tenant)).map_or(0, |count| count.in_flight);
        self.in_flight(item.key.channel) < item.cap && tenants < self.tenant_cap(tier, item.cap)
    }

    /// Half of the tier's slots; a channel that asks for more by name has more.
    fn tenant_cap(&self, tier: Tier, cap: usize) -> usize {
        (self.size(tier) / 2).max(1).max(cap)
    }

    fn take(&mut self, item: Item<T>, class: Class) -> Started<T> {
        let tier = item.key.lane.tier as usize;
        self.in_flight[tier] += 1;
        self.older[tier] += usize::from(class != Class::Fresh);
        self.count(item.key, |count| {
            count.in_flight += 1;
            count.waiting = count.waiting.saturating_sub(1);
        });
        Started { key: item.key, class, item: item.held }
    }

    /// Changes what is counted of a channel and its tenant, and forgets what is zero.
    fn count(&mut self, key: Key, change: impl Fn(&mut Count)) {
        let is_zero = |count: &Count| count.in_flight == 0 && count.waiting == 0;
        let channel = self.channels.entry(key.channel).or_default();
        change(channel);
        if is_zero(channel) {
            self.channels.remove(&key.channel);
        }
        let tenant = self.tenants.entry((key.lane.tier, key.tenant)).or_default();
        change(tenant);
        if is_zero(tenant) {
            self.tenants.remove(&(key.lane.tier, key.tenant));
        }
    }
}

#[cfg(test)]
mod tests;
