//! Decides when the speed of a frequency domain is set, and to what.

use kernel::pace::Wanted;
use kernel::pace::speed_control::Setting;

/// How a domain's speed is set.
#[derive(Debug, Clone, Copy)]
pub struct SpeedTiming {
    /// The slowest and the fastest speed, in kHz.
    pub range: (u64, u64),
    /// After the last task, the domain is at its slowest speed for this long. Then the system's
    /// governor has it again. In ns.
    pub release_delay: u64,
    /// The minimum time between two changes, unless the second one makes the domain faster. In ns.
    pub min_interval: u64,
}

/// The speed of a domain.
pub struct DomainSpeed {
    timing: SpeedTiming,
    now: Setting,
    changed_ns: Option<u64>,
    /// When the last task ended, if none is unfinished.
    released_ns: Option<u64>,
}

/// What is to do with a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// The setting that it gets now.
    pub setting: Option<Setting>,
    /// When to check again at the latest, in ns, even if the wanted speed does not change.
    pub again_ns: Option<u64>,
}

impl DomainSpeed {
    pub fn new(timing: SpeedTiming) -> Self {
        Self { timing, now: Setting::System, changed_ns: None, released_ns: None }
    }

    /// Whether the system's governor has the domain.
    pub fn is_released(&self) -> bool {
        self.now == Setting::System
    }

    /// The setting for a wanted speed at this time.
    pub fn next(&mut self, wanted: Wanted, now_ns: u64) -> Due {
        let (slowest, fastest) = self.timing.range;
        let mut again_ns = None;
        let target = match wanted {
            Wanted::At(khz) => Setting::At(khz.unwrap_or(fastest)),
            Wanted::AtLeast(khz) => Setting::AtLeast(khz.unwrap_or(fastest)),
            Wanted::Released { .. } if self.is_released() => Setting::System,
            Wanted::Released { is_busy } => {
                let since = *self.released_ns.get_or_insert(now_ns);
                let end = since.saturating_add(self.timing.release_delay);
                if now_ns >= end {
                    Setting::System
                } else {
                    again_ns = Some(end);
                    if is_busy { Setting::AtLeast(slowest) } else { Setting::At(slowest) }
                }
            }
        };
        if !matches!(wanted, Wanted::Released { .. }) {
            self.released_ns = None;
        }
        if target == self.now {
            return Due { setting: None, again_ns };
        }
        let may_change = self.changed_ns.map(|at| at.saturating_add(self.timing.min_interval));
        if let Some(may_change) = may_change
            && now_ns < may_change
            && !is_faster(self.now, target)
        {
            return Due {
                setting: None,
                again_ns: Some(again_ns.unwrap_or(u64::MAX).min(may_change)),
            };
        }
        self.now = target;
        self.changed_ns = Some(now_ns);
        Due { setting: Some(target), again_ns }
    }
}

/// Whether a change can make a domain faster.
fn is_faster(from: Setting, to: Setting) -> bool {
    // The speed that is certain, and whether the governor may choose a faster one.
    let of = |setting| match setting {
        Setting::System => (0, true),
        Setting::At(khz) => (khz, false),
        Setting::AtLeast(khz) => (khz, true),
    };
    let (from, to) = (of(from), of(to));
    to.0 > from.0 || (to.1 && !from.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn domain() -> DomainSpeed {
        let range = (800, 3000);
        DomainSpeed::new(SpeedTiming { range, release_delay: 100 * MS, min_interval: 2 * MS })
    }

    fn now(setting: Setting) -> Due {
        Due { setting: Some(setting), again_ns: None }
    }

    const NOTHING: Due = Due { setting: None, again_ns: None };
    const IDLE: Wanted = Wanted::Released { is_busy: false };
    const BUSY: Wanted = Wanted::Released { is_busy: true };

    #[test]
    fn domain_without_a_task_is_left_alone() {
        let mut domain = domain();
        assert_eq!(domain.next(IDLE, 0), NOTHING);
        assert_eq!(domain.next(BUSY, 500 * MS), NOTHING);
        assert!(domain.is_released());
    }

    #[test]
    fn after_the_last_task_the_slowest_speed_follows_for_a_while() {
        let mut domain = domain();
        assert_eq!(domain.next(Wanted::At(None), 0), now(Setting::At(3000)));
        let slowest = |setting| Due { setting: Some(setting), again_ns: Some(110 * MS) };
        assert_eq!(domain.next(IDLE, 10 * MS), slowest(Setting::At(800)));
        // Other work gets at least the speed that the system's governor chooses.
        assert_eq!(domain.next(BUSY, 11 * MS), slowest(Setting::AtLeast(800)));
        assert_eq!(domain.next(BUSY, 110 * MS), now(Setting::System));
        assert_eq!(domain.next(Wanted::At(Some(1200)), 200 * MS), now(Setting::At(1200)));
    }

    #[test]
    fn faster_speeds_do_not_wait() {
        let mut domain = domain();
        assert_eq!(domain.next(Wanted::At(Some(2400)), 0), now(Setting::At(2400)));
        let later = Due { setting: None, again_ns: Some(2 * MS) };
        assert_eq!(domain.next(Wanted::At(Some(1200)), MS), later);
        assert_eq!(domain.next(Wanted::At(None), MS), now(Setting::At(3000)));
        assert_eq!(domain.next(Wanted::AtLeast(Some(800)), MS), now(Setting::AtLeast(800)));
        assert_eq!(domain.next(Wanted::At(Some(1200)), 3 * MS), now(Setting::At(1200)));
    }

    #[test]
    fn same_speed_is_not_set_again() {
        let mut domain = domain();
        assert_eq!(domain.next(Wanted::At(Some(1200)), 0), now(Setting::At(1200)));
        assert_eq!(domain.next(Wanted::At(Some(1200)), 50 * MS), NOTHING);
    }

    #[test]
    fn task_before_the_release_ends_the_delay() {
        let mut domain = domain();
        domain.next(Wanted::At(Some(1200)), 0);
        domain.next(IDLE, 10 * MS);
        assert_eq!(domain.next(Wanted::At(Some(1200)), 60 * MS), now(Setting::At(1200)));
        // The delay begins anew with the next end.
        let slowest = Due { setting: Some(Setting::At(800)), again_ns: Some(180 * MS) };
        assert_eq!(domain.next(IDLE, 80 * MS), slowest);
    }
}
