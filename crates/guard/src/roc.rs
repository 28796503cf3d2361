//! How well scores separate attacks from normal runs.

/// The fraction of the scores that are at least `least`.
pub fn rate_at_least(scores: &[u32], least: u32) -> f64 {
    if scores.is_empty() {
        return 0.0;
    }
    scores.iter().filter(|score| **score >= least).count() as f64 / scores.len() as f64
}

/// The area under the receiver operating characteristic: the probability that an attack scores
/// higher than a normal run, where a tie counts half. `None` unless there are scores of both kinds.
///
/// Source: Hanley and McNeil, "The meaning and use of the area under a receiver operating
/// characteristic (ROC) curve", Radiology 143 (1982).
pub fn auc(normal: &[u32], attacks: &[u32]) -> Option<f64> {
    let pairs = normal.len() * attacks.len();
    let half_wins =
        |attack: u32, score: u32| usize::from(attack > score) + usize::from(attack >= score);
    let wins: usize = attacks
        .iter()
        .flat_map(|attack| normal.iter().map(|score| half_wins(*attack, *score)))
        .sum();
    (pairs > 0).then(|| wins as f64 / (2 * pairs) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas() {
        assert_eq!(auc(&[0, 1], &[2, 3]), Some(1.0));
        assert_eq!(auc(&[2, 3], &[0, 1]), Some(0.0));
        assert_eq!(auc(&[1, 1], &[1]), Some(0.5));
        assert_eq!(auc(&[0, 2], &[1, 2]), Some(0.625));
        assert_eq!(auc(&[], &[1]), None);
    }

    #[test]
    fn rates() {
        assert_eq!(rate_at_least(&[0, 1, 2, 3], 2), 0.5);
        assert_eq!(rate_at_least(&[], 2), 0.0);
    }
}
