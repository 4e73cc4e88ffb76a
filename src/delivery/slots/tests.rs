use proptest::prelude::*;

use super::*;
use crate::clock::test_start;

/// One moment for the whole of a test run.
fn start() -> Instant {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *START.get_or_init(test_start)
}

fn key(tier: Tier, tenant: u8, channel: u16) -> Key {
    let tenant = TenantId::derive([tenant; 16]);
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&channel.to_be_bytes());
    // One lane for all: tenants of one lane are those who can disturb each other.
    Key { lane: Lane { tier, shard: 0 }, tenant, channel: ChannelId::derive(bytes) }
}

fn fresh(slots: &mut Slots<u32>, key: Key, item: u32) -> bool {
    slots.push((key, Class::Fresh), None, item, start()).is_ok()
}

#[test]
fn a_fresh_delivery_of_a_stranger_finds_a_slot_whatever_one_tenant_does() {
    let mut slots = Slots::new(Sizes::default());
    for channel in 0..100 {
        fresh(&mut slots, key(Tier::Standard, 1, channel), 1);
        fresh(&mut slots, key(Tier::Standard, 1, 0), 1);
    }
    let mut started = 0;
    while slots.start().is_some() {
        started += 1;
    }
    assert_eq!(started, 10, "half of the tier's twenty, over however many channels");
    assert!(fresh(&mut slots, key(Tier::Standard, 2, 500), 7), "its line is its own");
    assert_eq!(slots.start().map(|next| next.item), Some(7));
}

#[test]
fn a_full_line_overflows_and_what_waits_too_long_comes_back() {
    let mut slots = Slots::new(Sizes::default());
    let own = key(Tier::Bulk, 1, 1);
    let taken = (0..100).filter(|item| fresh(&mut slots, own, *item)).count();
    assert_eq!(taken, CHANNEL_LINE_MAX);
    assert_eq!(slots.next_wake(), Some(start() + WAIT_MAX));
    let early = start() + WAIT_MAX / 2;
    assert!(slots.expired(early).is_empty());
    let items: Vec<_> = slots.expired(start() + WAIT_MAX).into_iter().map(|e| e.1).collect();
    assert_eq!(items, (0..32).collect::<Vec<_>>());
    assert!(slots.channels.is_empty() && slots.tenants.is_empty());
}

#[test]
fn a_due_retry_waits_no_longer_than_a_fresh_one_and_a_backlog_as_long_as_it_takes() {
    let mut slots = Slots::new(Sizes::default());
    let own = key(Tier::Standard, 1, 1);
    for (class, item) in [(Class::Fresh, 1), (Class::Due, 2), (Class::Backlog, 3)] {
        slots.push((own, class), None, item, start()).unwrap();
    }
    let items: Vec<_> = slots.expired(start() + WAIT_MAX).into_iter().map(|e| e.1).collect();
    assert_eq!(items, [1, 2]);
    assert!(slots.next_wake().is_none());
    slots.push((own, Class::Due), None, 4, start()).unwrap();
    let taken = slots.take_channel(own.lane, own.channel);
    assert_eq!(taken.len(), 1, "the backlog's own is where it belongs");
    assert_eq!(slots.start().map(|next| next.item), Some(3));
}

#[test]
fn a_channel_that_is_set_apart_gives_up_its_line_in_order() {
    let mut slots = Slots::new(Sizes::default());
    for item in 0..6 {
        fresh(&mut slots, key(Tier::High, 1, u16::try_from(item % 2).unwrap()), item);
    }
    let own = key(Tier::High, 1, 0);
    let taken: Vec<_> =
        slots.take_channel(own.lane, own.channel).into_iter().map(|t| t.1).collect();
    assert_eq!(taken, [0, 2, 4]);
    assert_eq!(slots.status(Tier::High), (0, 3));
}

#[test]
fn fresh_ones_go_first_and_a_backlog_takes_half_at_most() {
    let mut slots = Slots::new(Sizes { high: 1, standard: 8, bulk: 1 });
    for tenant in 0..6 {
        let own = key(Tier::Standard, tenant, u16::from(tenant));
        for _ in 0..2 {
            slots.push((own, Class::Backlog), None, 9, start()).unwrap();
        }
    }
    fresh(&mut slots, key(Tier::Standard, 9, 9), 1);
    let started: Vec<_> = std::iter::from_fn(|| slots.start()).map(|next| next.item).collect();
    assert_eq!(started, [1, 9, 9, 9, 9]);
}

#[test]
fn idle_slots_are_lent_while_half_of_each_tier_stays() {
    let mut slots = Slots::new(Sizes::default());
    for tenant in 0..8 {
        for channel in 0..10 {
            fresh(&mut slots, key(Tier::Bulk, tenant, u16::from(tenant) * 100 + channel), 1);
        }
    }
    let started = std::iter::from_fn(|| slots.start()).count();
    // 35 in all, less 5 and 10 that are kept; a tenant's cap is 2 of the tier's own 5.
    assert_eq!(started, 16);
    for n in 0..5 {
        assert!(fresh(&mut slots, key(Tier::High, 20 + n, 5_000 + u16::from(n)), 2));
    }
    let started = std::iter::from_fn(|| slots.start()).filter(|next| next.item == 2).count();
    assert_eq!(started, 5, "what was kept is there");
}

#[test]
fn busy_tiers_share_by_their_sizes() {
    let mut slots = Slots::new(Sizes::default());
    let mut counts = [0; 3];
    let mut running = VecDeque::new();
    for round in 0..2_000_u32 {
        for tier in [Tier::High, Tier::Standard, Tier::Bulk] {
            for tenant in 0..4 {
                fresh(&mut slots, key(tier, tenant, tier as u16 * 10 + u16::from(tenant)), round);
            }
        }
        while let Some(next) = slots.start() {
            counts[next.key.lane.tier as usize] += 1;
            running.push_back((next.key, next.class));
        }
        for _ in 0..5 {
            if let Some((key, class)) = running.pop_front() {
                slots.finish(key, class);
            }
        }
    }
    let share = f64::from(counts[1]) / f64::from(counts[0]);
    assert!((1.7..2.3).contains(&share), "{counts:?}");
    let share = f64::from(counts[0]) / f64::from(counts[2]);
    assert!((1.6..2.5).contains(&share), "{counts:?}");
}

proptest! {
    #[test]
    fn no_cap_is_ever_passed_and_everything_comes_out_once(
        steps in prop::collection::vec((0_u8..4, 0_u8..3, 0_u8..5, 0_u16..12, 0_usize..3), 1..400),
    ) {
        let mut slots = Slots::new(Sizes::default());
        let (mut running, mut given, mut seen) = (Vec::new(), 0_u32, std::collections::BTreeSet::new());
        let mut now = start();
        for (step, tier, tenant, channel, class) in steps {
            let tier = [Tier::High, Tier::Standard, Tier::Bulk][usize::from(tier)];
            let key = key(tier, tenant, channel + u16::from(tenant) * 100 + tier as u16 * 1_000);
            let class = Class::ALL[class];
            match step {
                0 | 1 => if slots.push((key, class), None, given, now).is_ok() { given += 1 },
                2 => while let Some(next) = slots.start() {
                    prop_assert!(seen.insert(next.item));
                    running.push(next);
                },
                _ => {
                    now += Duration::from_millis(300);
                    for (_, item) in slots.expired(now) {
                        prop_assert!(seen.insert(item));
                    }
                    if let Some(next) = running.pop() {
                        slots.finish(next.key, next.class);
                    }
                }
            }
            prop_assert!(slots.in_flight.iter().sum::<usize>() <= 35);
            for tier in [Tier::High, Tier::Standard, Tier::Bulk] {
                let half = slots.size(tier) / 2;
                prop_assert!(slots.older[tier as usize] <= half);
                let own = |(of, _): &&(Tier, TenantId)| *of == tier;
                prop_assert!(slots.tenants.keys().filter(own).all(|k| slots.tenants[k].in_flight <= half));
            }
        }
        loop {
            while let Some(next) = slots.start() {
                prop_assert!(seen.insert(next.item));
                running.push(next);
            }
            let Some(next) = running.pop() else { break };
            slots.finish(next.key, next.class);
        }
        prop_assert_eq!(seen.len(), given as usize);
        prop_assert!(slots.channels.is_empty() && slots.tenants.is_empty());
    }
}
