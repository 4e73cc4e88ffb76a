//! Pure: the water level, the exact fair shares of children that want so much each.
//! Promises that nobody gets more than it wants or less than is kept for it, and that the rest is shared by weight.
//! Does not decide who is served next; tests and the status compare that with this.

/// What one child wants and is due.
#[derive(Clone, Copy, Debug)]
pub(in crate::admission) struct Demand {
    pub(in crate::admission) weight: f64,
    /// What it would use if nobody else were there.
    pub(in crate::admission) wanted: f64,
    /// What is kept for it.
    pub(in crate::admission) kept: f64,
}

impl Demand {
    fn at(&self, level: f64) -> f64 {
        self.wanted.min(self.kept.max(self.weight * level))
    }
}

/// The share of each child of what there is.
///
/// Water is poured in until nothing is left: a child gets its weight times the level, at most what it wants, at least
/// what is kept for it. Between two points at which a child begins or ceases to take, the sum grows in a straight line.
pub(in crate::admission) fn water_level(available: f64, demands: &[Demand]) -> Vec<f64> {
    let poured = |level: f64| demands.iter().map(|demand| demand.at(level)).sum::<f64>();
    let bends = demands.iter().flat_map(|d| [d.kept.min(d.wanted) / d.weight, d.wanted / d.weight]);
    let mut bends: Vec<f64> = bends.collect();
    bends.sort_by(f64::total_cmp);
    let (mut below, mut level) = (0.0, 0.0);
    for bend in bends {
        level = bend;
        if poured(bend) >= available {
            let (low, high) = (poured(below), poured(bend));
            let part = if high > low { (available - low) / (high - low) } else { 0.0 };
            level = below + (bend - below) * part.clamp(0.0, 1.0);
            break;
        }
        below = bend;
    }
    demands.iter().map(|demand| demand.at(level)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shares(available: f64, demands: &[(f64, f64, f64)]) -> Vec<f64> {
        let all = demands.iter().map(|&(weight, wanted, kept)| Demand { weight, wanted, kept });
        water_level(available, &all.collect::<Vec<_>>())
    }

    fn near(left: &[f64], right: &[f64]) -> bool {
        left.len() == right.len() && left.iter().zip(right).all(|(l, r)| (l - r).abs() < 1e-9)
    }

    #[test]
    fn what_one_does_not_want_is_shared_by_the_others() {
        assert!(near(
            &shares(12.0, &[(1.0, 9.0, 0.0), (1.0, 2.0, 0.0), (1.0, 9.0, 0.0)]),
            &[5.0, 2.0, 5.0]
        ));
        assert!(near(
            &shares(14.0, &[(4.0, 99.0, 0.0), (2.0, 99.0, 0.0), (1.0, 99.0, 0.0)]),
            &[8.0, 4.0, 2.0]
        ));
        assert!(near(&shares(9.0, &[(1.0, 2.0, 0.0), (1.0, 3.0, 0.0)]), &[2.0, 3.0]), "enough");
        assert!(near(&shares(9.0, &[]), &[]));
    }

    #[test]
    fn what_is_kept_is_given_first_and_only_if_it_is_wanted() {
        assert!(near(&shares(10.0, &[(1.0, 9.0, 6.0), (1.0, 9.0, 0.0)]), &[6.0, 4.0]));
        assert!(near(&shares(10.0, &[(1.0, 1.0, 6.0), (1.0, 9.0, 0.0)]), &[1.0, 9.0]));
    }

    proptest! {
        #[test]
        fn water_finds_one_level(
            available in 0.0..50.0f64,
            demands in prop::collection::vec((1.0..5.0f64, 0.0..20.0f64, 0.0..3.0f64), 1..6),
        ) {
            let kept: f64 = demands.iter().map(|d| d.1.min(d.2)).sum();
            prop_assume!(kept <= available);
            let got = shares(available, &demands);
            let wanted: f64 = demands.iter().map(|d| d.1).sum();
            prop_assert!((got.iter().sum::<f64>() - available.min(wanted)).abs() < 1e-6);
            for (share, (weight, wanted, kept)) in got.iter().zip(&demands) {
                prop_assert!(*share <= wanted + 1e-9 && *share >= kept.min(*wanted) - 1e-9);
                // Who wants more than he has does not have less, by weight, than anybody above his reservation.
                for (other, (its_weight, _, its_kept)) in got.iter().zip(&demands) {
                    if *share < wanted - 1e-6 && *other > its_kept + 1e-6 {
                        prop_assert!(share / weight >= other / its_weight - 1e-6);
                    }
                }
            }
        }
    }
}
