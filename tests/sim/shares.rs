//! Who gets how much when all of them want more than there is.

use std::time::Duration;

use forebay::admission::{Class, Priority};

use crate::pool::{Load, Outcome, gate, high, interactive, origin};

fn load(tag: forebay::admission::Tag, rate: f64) -> Load {
    Load { tag, rate, held: Duration::from_millis(10), patience: Duration::from_millis(500) }
}

fn permits(outcomes: &[Outcome]) -> Vec<f64> {
    outcomes.iter().map(|outcome| (outcome.permits * 1000.0).round() / 1000.0).collect()
}

#[test]
fn a_light_tenant_does_not_feel_a_hog() {
    let loads: Vec<_> =
        (0..4).map(|n| load(high(n), if n == 0 { 3000.0 } else { 100.0 })).collect();
    let outcomes = gate(&interactive(10), &loads, 30);
    let light: Vec<f64> = outcomes[1..].iter().map(Outcome::success).collect();
    let hog = outcomes[0].good as f64 / 30.0;
    println!("a hog at 3x: it gets {hog:.0}/s, light tenants succeed {light:.3?}");
    assert!(light.iter().all(|&success| success >= 0.97), "{light:?}");
    assert!(hog >= 600.0, "what the light ones leave is the hog's: {hog}");
}

#[test]
fn a_light_tenant_does_not_feel_a_hog_with_long_queries() {
    let mut loads = vec![load(high(0), 300.0)];
    loads[0].held = Duration::from_millis(100);
    loads.extend((1..4).map(|n| load(high(n), 100.0)));
    let outcomes = gate(&interactive(10), &loads, 30);
    let light: Vec<f64> = outcomes[1..].iter().map(Outcome::success).collect();
    println!("a hog with queries of 100 ms at 3x: light tenants succeed {light:.3?}");
    assert!(light.iter().all(|&success| success >= 0.97), "{light:?}");
}

#[test]
fn classes_that_want_everything_get_shares_by_weight() {
    let classes = [Class::High, Class::Standard, Class::Bulk];
    let loads = classes.map(|class| load(origin(class, 1).at(Priority::High), 4000.0));
    let got = permits(&gate(&interactive(14), &loads, 30));
    println!("weights 4:2:1 on 14 permits: {got:?}");
    for (got, due) in got.iter().zip([8.0, 4.0, 2.0]) {
        assert!((got / due - 1.0).abs() <= 0.05, "{got} of {due}");
    }
}

#[test]
fn six_tenants_on_three_permits_get_half_a_permit_each() {
    let loads: Vec<_> = (0..6).map(|n| load(high(n), 1000.0)).collect();
    let got = permits(&gate(&interactive(3), &loads, 60));
    println!("six tenants on three permits: {got:?}");
    assert!(got.iter().all(|got| (got - 0.5).abs() <= 0.05), "{got:?}");
}

#[test]
fn equal_tenants_that_want_everything_get_equal_shares() {
    let loads: Vec<_> = (0..8).map(|n| load(high(n), 400.0 + 300.0 * n as f64)).collect();
    let got = permits(&gate(&interactive(10), &loads, 30));
    let (sum, squares) = (got.iter().sum::<f64>(), got.iter().map(|got| got * got).sum::<f64>());
    let jain = sum * sum / (got.len() as f64 * squares);
    println!("eight tenants at 400 to 2500/s: {got:?}, Jain's index {jain:.4}");
    assert!(jain >= 0.98, "{jain}");
}
