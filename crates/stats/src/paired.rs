//! Paired comparison of two arms whose runs are interleaved, so that a drift of the machine affects
//! both alike.

/// What a run measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairedArm {
    /// Without the feature whose cost is measured.
    Off,
    /// With the feature.
    On,
}

/// Runs in a quad.
const QUAD: usize = 4;

/// The order of the runs of `quads` quads: Off On On Off and On Off Off On alternately.
///
/// A drift that is linear over a quad cancels in its difference. The alternation cancels, over two
/// quads, an effect that favours the outer or the inner runs.
pub fn abba_order(quads: usize) -> Vec<PairedArm> {
    use PairedArm::{Off, On};
    [[Off, On, On, Off], [On, Off, Off, On]].into_iter().cycle().take(quads).flatten().collect()
}

/// One difference for each quad, in the unit of `times`: the mean of its On runs minus the mean of
/// its Off runs.
///
/// `times[i]` is the time of a run of arm `order[i]`. An unfinished last quad is left out.
///
/// # Panics
///
/// If there are more times than the order has runs, or if a quad lacks one of the arms.
pub fn quad_differences(times: &[f64], order: &[PairedArm]) -> Vec<f64> {
    assert!(times.len() <= order.len(), "{} times for {} runs", times.len(), order.len());
    times
        .chunks_exact(QUAD)
        .zip(order.chunks_exact(QUAD))
        .map(|(times, order)| {
            arm_mean(times, order, PairedArm::On) - arm_mean(times, order, PairedArm::Off)
        })
        .collect()
}

fn arm_mean(times: &[f64], order: &[PairedArm], arm: PairedArm) -> f64 {
    let runs = || times.iter().zip(order).filter(|&(_, &of)| of == arm).map(|(time, _)| time);
    let count = runs().count();
    assert!(count > 0, "a quad without a run of arm {arm:?}");
    runs().sum::<f64>() / count as f64
}

#[cfg(test)]
mod tests {
    use super::PairedArm::{Off, On};
    use super::*;

    #[test]
    fn order_alternates_abba_and_baab() {
        assert_eq!(abba_order(3), [Off, On, On, Off, On, Off, Off, On, Off, On, On, Off]);
        assert!(abba_order(0).is_empty());
    }

    #[test]
    fn linear_drift_cancels() {
        let order = abba_order(5);
        let time = |(i, arm): (usize, &PairedArm)| {
            100.0 + 8.0 * i as f64 + if *arm == On { 3.0 } else { 0.0 }
        };
        let times: Vec<f64> = order.iter().enumerate().map(time).collect();
        assert_eq!(quad_differences(&times, &order), [3.0; 5]);
    }

    #[test]
    fn curvature_cancels_over_two_quads() {
        let order = abba_order(2);
        let times = [4.0, 1.0, 1.0, 4.0, 4.0, 1.0, 1.0, 4.0];
        assert_eq!(quad_differences(&times, &order), [-3.0, 3.0]);
    }

    #[test]
    fn unfinished_quad_is_left_out() {
        let order = abba_order(2);
        assert_eq!(quad_differences(&[1.0, 2.0, 4.0, 1.0, 9.0, 9.0, 9.0], &order), [2.0]);
        assert!(quad_differences(&[1.0, 2.0, 3.0], &order).is_empty());
    }

    #[test]
    #[should_panic(expected = "5 times for 4 runs")]
    fn times_without_a_position_are_refused() {
        quad_differences(&[1.0; 5], &abba_order(1));
    }

    #[test]
    #[should_panic(expected = "without a run of arm On")]
    fn quads_need_both_arms() {
        quad_differences(&[1.0; 4], &[Off; 4]);
    }
}
