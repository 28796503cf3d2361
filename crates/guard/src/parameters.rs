//! pH's parameters, with the defaults of its source (`pH_default_*`, version 0.18).

use std::time::Duration;

/// The parameters of pH.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// The time from freezing until the profile becomes normal, if it sees nothing new meanwhile.
    pub normal_wait: Duration,
    /// A fraction a / b. A profile freezes when the calls since training began are more than a / b
    /// times the calls up to the last change. The default, 128 / 32, is four.
    pub normal_factor: (u64, u64),
    /// After more anomalies than this that count, the profile is no longer normal and trains again:
    /// pH concludes that the program has changed and was not attacked ([`crate::AnomalyLimit`]).
    pub anomaly_limit: u32,
    /// At a locality frame count (LFC, the number of anomalies in the frame) above this, the
    /// profile wipes its training data: pH concludes that the latest calls are an attack and not a
    /// change.
    pub tolerize_limit: u32,
    /// The base of the delay: each anomaly in the frame doubles the delay. Zero, as in the source,
    /// means no delays. The paper's experiments use four ticks of 10 ms.
    pub delay_factor: Duration,
    /// The longest delay of one call; the default is the time for which pH suspends an execve
    /// (`suspend_execve_time`).
    pub delay_cap: Duration,
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl Default for Parameters {
    fn default() -> Self {
        Self {
            normal_wait: DAY * 7,
            normal_factor: (128, 32),
            anomaly_limit: 30,
            tolerize_limit: 12,
            delay_factor: Duration::ZERO,
            delay_cap: DAY * 2,
        }
    }
}

impl Parameters {
    /// The delay of every call at this LFC.
    pub fn delay(&self, lfc: u32) -> Duration {
        if lfc == 0 {
            return Duration::ZERO;
        }
        let doubled = 1_u32.checked_shl(lfc).and_then(|times| self.delay_factor.checked_mul(times));
        if self.delay_factor.is_zero() {
            return Duration::ZERO;
        }
        doubled.unwrap_or(self.delay_cap).min(self.delay_cap)
    }

    /// Whether a profile freezes after `trained` calls, of which the last `since_change` changed
    /// nothing.
    pub fn freezes(&self, trained: u64, since_change: u64) -> bool {
        let until_change = trained.saturating_sub(since_change);
        let (factor, denominator) = self.normal_factor;
        until_change > 0
            && u128::from(trained) * u128::from(denominator)
                > u128::from(until_change) * u128::from(factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double() {
        let parameters =
            Parameters { delay_factor: Duration::from_millis(40), ..Parameters::default() };
        // The paper's backdoor: delays of 8, 16 and 32 ticks of 10 ms (section 6).
        let delays: Vec<_> = (0..4).map(|lfc| parameters.delay(lfc).as_millis()).collect();
        assert_eq!(delays, [0, 80, 160, 320]);
        for lfc in [23, 31, 32, 64, 128] {
            assert_eq!(parameters.delay(lfc), DAY * 2, "{lfc}");
        }
        assert_eq!(Parameters::default().delay(128), Duration::ZERO);
    }

    #[test]
    fn profiles_freeze_at_a_ratio_of_four() {
        let parameters = Parameters::default();
        assert!(!parameters.freezes(400, 300));
        assert!(parameters.freezes(401, 301));
        assert!(!parameters.freezes(10, 10));
    }
}
