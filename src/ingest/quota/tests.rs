use proptest::prelude::*;

use super::*;
use crate::clock::test_start;

fn tenant(n: u16) -> TenantId {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&n.to_be_bytes());
    TenantId::derive(bytes)
}

fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn a_burst_is_spent_and_comes_back_at_the_rate() {
    let mut quota = Quota::new(Policy::new(10, 5));
    let start = test_start();
    // (milliseconds, messages, left when allowed or wait in milliseconds when refused)
    let steps: [(u64, u32, Result<u32, u64>); 9] = [
        (0, 3, Ok(2)),
        (0, 3, Err(100)),
        (0, 2, Ok(0)),
        (0, 1, Err(100)),
        (99, 1, Err(1)),
        (100, 1, Ok(0)),
        (350, 2, Ok(0)),
        (350, 5, Err(450)),
        (5_000, 5, Ok(0)),
    ];
    for (at, messages, expected) in steps {
        let got = match quota.on_send(tenant(1), messages, start + millis(at)) {
            Decision::Allowed(left) => Ok(left.remaining),
            Decision::Refused { retry_after, .. } => Err(retry_after),
            Decision::Unlimited | Decision::BeyondBurst { .. } => panic!("at {at} ms"),
        };
        assert_eq!(got, expected.map_err(millis), "{messages} at {at} ms");
    }
}

#[test]
fn a_batch_beyond_the_burst_is_refused_for_good() {
    let mut quota = Quota::new(Policy::new(10, 5));
    let now = test_start();
    let verdict = quota.on_send(tenant(1), 6, now);
    assert_eq!(verdict, Decision::BeyondBurst { burst: 5 });
    assert!(matches!(quota.on_send(tenant(1), 5, now), Decision::Allowed(_)));
}

#[test]
fn a_rate_of_nothing_is_no_quota() {
    let mut quota = Quota::new(Policy::new(0, 5));
    assert_eq!(quota.policy(), None);
    for _ in 0..100 {
        let verdict = quota.on_send(tenant(1), 500, test_start());
        assert_eq!(verdict, Decision::Unlimited);
    }
    assert_eq!(quota.tenants(), 0);
}

#[test]
fn the_headers_say_what_the_draft_of_the_http_group_asks_for() {
    let mut quota = Quota::new(Policy::new(100, 250));
    assert_eq!(quota.policy().unwrap().to_string(), "\"sends\";q=250;w=3");
    let Decision::Allowed(left) = quota.on_send(tenant(1), 101, test_start()) else {
        panic!("refused");
    };
    assert_eq!(left.to_string(), "\"sends\";r=149;t=2");
}

#[test]
fn tenants_do_not_share_a_quota() {
    let mut quota = Quota::new(Policy::new(1, 1));
    let now = test_start();
    assert!(matches!(quota.on_send(tenant(1), 1, now), Decision::Allowed(_)));
    assert!(matches!(quota.on_send(tenant(1), 1, now), Decision::Refused { .. }));
    assert!(matches!(quota.on_send(tenant(2), 1, now), Decision::Allowed(_)));
}

#[test]
fn tenants_at_rest_are_forgotten_and_those_at_work_are_not() {
    let mut quota = Quota::new(Policy::new(1, 10));
    let start = test_start();
    assert!(matches!(quota.on_send(tenant(0), 10, start + millis(9_000)), Decision::Allowed(_)));
    for n in 1..=u16::MAX {
        let at = start + Duration::from_micros(u64::from(n) * 150);
        assert!(matches!(quota.on_send(tenant(n), 1, at), Decision::Allowed(_)));
        // 6 667 tenants send within the second that their message takes to come back.
        assert!(quota.tenants() <= 2 * 6_668, "{}", quota.tenants());
    }
    let late = start + millis(9_900);
    assert!(matches!(quota.on_send(tenant(0), 1, late), Decision::Refused { .. }));
}

#[test]
fn extreme_policies_do_not_overflow() {
    let now = test_start();
    for (rate, burst) in [(u32::MAX, u32::MAX), (1, u32::MAX), (u32::MAX, 0), (1, 1)] {
        let mut quota = Quota::new(Policy::new(rate, burst));
        let policy = quota.policy().unwrap();
        assert!(matches!(quota.on_send(tenant(1), policy.burst, now), Decision::Allowed(_)));
        assert!(matches!(quota.on_send(tenant(1), 1, now), Decision::Refused { .. }));
    }
}

proptest! {
    /// The law of the token bucket, seen from every start: no window holds more than burst + rate x length.
    #[test]
    fn no_window_holds_more_than_burst_and_rate(
        rate in 1_u32..50, burst in 1_u32..20,
        sends in prop::collection::vec((0_u64..300, 1_u32..25), 1..60),
    ) {
        let mut quota = Quota::new(Policy::new(rate, burst));
        let start = test_start();
        let mut now = millis(0);
        let mut allowed: Vec<(Duration, u32)> = Vec::new();
        for (pause, messages) in sends {
            now += millis(pause);
            match quota.on_send(tenant(1), messages, start + now) {
                Decision::Allowed(left) => {
                    allowed.push((now, messages));
                    prop_assert!(left.remaining <= burst);
                }
                Decision::Refused { left, retry_after } => {
                    prop_assert!(left.remaining < messages);
                    prop_assert!(!retry_after.is_zero());
                    // Who waits as told is let through, on a copy so that the walk is not disturbed.
                    let mut later = Quota { full_at: quota.full_at.clone(), ..Quota::new(quota.policy()) };
                    let early = later.on_send(tenant(1), messages, start + now + retry_after.saturating_sub(Duration::from_nanos(1)));
                    let refused = matches!(early, Decision::Refused { .. });
                    prop_assert!(refused);
                    let then = later.on_send(tenant(1), messages, start + now + retry_after);
                    let passed = matches!(then, Decision::Allowed(_));
                    prop_assert!(passed);
                }
                Decision::BeyondBurst { .. } => prop_assert!(messages > burst),
                Decision::Unlimited => prop_assert!(false),
            }
        }
        for first in 0..allowed.len() {
            let mut sum = 0;
            for (at, messages) in &allowed[first..] {
                sum += messages;
                let length = at.saturating_sub(allowed[first].0).as_secs_f64();
                // The interval is cut to nanoseconds, which gives away less than a millionth.
                let most = f64::from(burst) + f64::from(rate) * length * 1.000_001;
                prop_assert!(f64::from(sum) <= most + 1e-6, "{} > {}", sum, most);
            }
        }
    }
}
