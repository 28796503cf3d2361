//! Tests properties of orders, verdicts and looks for arbitrary samples.

use proptest::collection::vec;
use proptest::prelude::*;
use stats::order::Quads;
use stats::sequential::is_precise;
use stats::sign::{Verdict, holm, p_value, verdicts};

/// Values with many ties.
fn samples() -> impl Strategy<Value = Vec<f64>> {
    vec((-5..6_i32).prop_map(f64::from), 0..60)
}

proptest! {
    #[test]
    fn each_arm_is_twice_in_a_quad_at_the_same_mean_position(
        arms in 2..16_usize,
        seed: u64,
        quads in 1..20_usize,
    ) {
        let mut order = Quads::new(arms, seed);
        for _ in 0..quads {
            let quad = order.next_quad();
            prop_assert_eq!(quad.len(), 2 * arms);
            for arm in 0..arms {
                let positions: Vec<_> =
                    (0..quad.len()).filter(|position| quad[*position] == arm).collect();
                prop_assert_eq!(positions.len(), 2);
                prop_assert_eq!(positions.iter().sum::<usize>(), 2 * arms - 1);
            }
        }
    }

    #[test]
    fn p_values_are_two_sided(samples in samples(), limit in -6..7_i32) {
        let limit = f64::from(limit);
        let p = p_value(&samples, limit);
        prop_assert!(p > 0.0 && p <= 1.0, "{}", p);
        let mirrored: Vec<_> = samples.iter().map(|sample| -sample).collect();
        prop_assert_eq!(p, p_value(&mirrored, -limit));
        // Another tie never makes the difference more significant.
        let tied: Vec<_> = samples.iter().copied().chain([limit]).collect();
        prop_assert!(p_value(&tied, limit) >= p);
    }

    #[test]
    fn holm_rejects_what_bonferroni_does_and_nothing_above_the_error(
        p_values in vec(0.0..1.0_f64, 1..30),
        error in 0.001..0.2_f64,
    ) {
        let rejected = holm(&p_values, error);
        for (p, rejected) in p_values.iter().zip(&rejected) {
            prop_assert!(*rejected || *p > error / p_values.len() as f64);
            prop_assert!(!*rejected || *p <= error);
        }
        // The rejected hypotheses have the smallest p values.
        let rejected_values = p_values.iter().zip(&rejected).filter(|(_, is)| **is);
        let most = rejected_values.map(|(p, _)| *p).fold(0.0, f64::max);
        prop_assert!(p_values.iter().zip(&rejected).all(|(p, is)| *is || *p >= most));
    }

    #[test]
    fn verdicts_are_on_the_side_of_the_samples(rows in vec(samples(), 1..8), limit in -4..5_i32) {
        let limit = f64::from(limit);
        let slices: Vec<_> = rows.iter().map(Vec::as_slice).collect();
        for (samples, verdict) in rows.iter().zip(verdicts(&slices, limit, 0.05)) {
            let below = samples.iter().filter(|sample| **sample < limit).count();
            let above = samples.iter().filter(|sample| **sample > limit).count();
            match verdict {
                Verdict::Within => prop_assert!(below > above),
                Verdict::Dearer => prop_assert!(above > below),
                Verdict::Inconclusive => {}
            }
        }
    }

    #[test]
    fn precision_is_monotonic(samples in samples(), half in 0.1..5.0_f64, more in 0.0..5.0_f64) {
        prop_assert!(!is_precise(&samples, half, 0.95) || is_precise(&samples, half + more, 0.95));
        prop_assert!(!is_precise(&samples, half, 0.99) || is_precise(&samples, half, 0.95));
    }
}
