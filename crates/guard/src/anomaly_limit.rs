//! pH's anomaly limit: when a program that has changed for good returns to training.

use std::time::Duration;

/// The anomalies of a profile that count towards the limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CountedAnomalies {
    /// Their number.
    pub count: u64,
    /// When the latest of them was made.
    pub latest: Duration,
}

/// pH's `anomaly_limit`. In pH, every anomaly counts, so a user who may start a program could end
/// its tests within a second. Here, anomalies count at most once in `interval`, so that new
/// behaviour becomes tolerated no sooner than it could become normal in training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnomalyLimit {
    limit: u64,
    interval: Duration,
}

impl AnomalyLimit {
    /// The profile returns to training at an anomaly that counts, if more than `limit` have counted
    /// before it: at the earliest `normal_wait` after the first one.
    pub fn new(limit: u32, normal_wait: Duration) -> Self {
        Self { limit: limit.into(), interval: normal_wait / limit.saturating_add(1) }
    }

    /// More anomalies than this have to count.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The shortest time between two anomalies that count.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Counts an anomaly, if it counts. Returns whether the profile is to return to training.
    pub fn count(&self, counted: &mut CountedAnomalies, now: Duration) -> bool {
        // The clock may have been set back.
        counted.latest = counted.latest.min(now);
        if counted.count > 0 && now - counted.latest < self.interval {
            return false;
        }
        if counted.count > self.limit {
            *counted = CountedAnomalies::default();
            return true;
        }
        *counted = CountedAnomalies { count: counted.count + 1, latest: now };
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Parameters;

    const START: Duration = Duration::from_secs(1_700_000_000);

    fn default_limit() -> AnomalyLimit {
        let Parameters { anomaly_limit, normal_wait, .. } = Parameters::default();
        AnomalyLimit::new(anomaly_limit, normal_wait)
    }

    /// The number of anomalies, one in each period, after which the profile returns to training.
    fn anomalies_until_training(limit: AnomalyLimit, period: Duration, most: u32) -> Option<u32> {
        let mut counted = CountedAnomalies::default();
        (0..most).find(|n| limit.count(&mut counted, START + period * *n)).map(|n| n + 1)
    }

    #[test]
    fn a_burst_of_anomalies_counts_once() {
        let mut counted = CountedAnomalies::default();
        assert!((0..100_000).all(|_| !default_limit().count(&mut counted, START)));
        assert_eq!(counted, CountedAnomalies { count: 1, latest: START });
    }

    #[test]
    fn a_changed_program_returns_to_training_after_normal_wait() {
        let normal_wait = Parameters::default().normal_wait;
        let minute = Duration::from_secs(60);
        let anomalies = anomalies_until_training(default_limit(), minute, 1_000_000);
        let until = minute * anomalies.expect("it has changed for good");
        // Each interval may begin up to a minute late.
        assert!((normal_wait..normal_wait + minute * 33).contains(&until), "{until:?}");
        // Seldom anomalies all count, as in pH.
        assert_eq!(anomalies_until_training(default_limit(), normal_wait, 100), Some(32));
    }

    #[test]
    fn without_a_wait_every_anomaly_counts() {
        let at_once = |limit| {
            let limit = AnomalyLimit::new(limit, Duration::ZERO);
            anomalies_until_training(limit, Duration::ZERO, 100)
        };
        assert_eq!((at_once(0), at_once(30)), (Some(2), Some(32)));
    }

    #[test]
    fn a_clock_that_was_set_back_delays_nothing_for_ever() {
        let limit = default_limit();
        let mut counted = CountedAnomalies { count: 5, latest: START * 2 };
        assert!(!limit.count(&mut counted, START));
        limit.count(&mut counted, START + limit.interval());
        assert_eq!(counted.count, 6);
    }
}
