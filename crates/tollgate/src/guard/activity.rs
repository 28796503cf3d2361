//! What a program did in a session.

use kernel::wire;

use super::report::GuardedProgram;

/// The sums over a program's events.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Activity {
    pub anomalies: u64,
    /// The highest LFC, which is the number of anomalies among a thread's latest 128 calls.
    pub max_lfc: u32,
    pub holds: u64,
    /// The requested time of all holds; a hold without an end counts as 0.
    pub held_ns: u64,
    pub killed: u64,
    pub refused: u64,
    /// Calls that were not held because of `--max-held`.
    pub unheld: u64,
    /// How often its baseline returned to training because of the anomaly limit.
    pub retrained: u64,
}

impl Activity {
    /// Adds an event of the program.
    pub fn add(&mut self, event: &wire::guard_event) {
        let is_held = event.held_until_ns != 0;
        let is_refused = event.precall & wire::PRECALL_DENY != 0;
        let kills = matches!(u32::from(event.action), wire::GUARD_DENY | wire::GUARD_KILL);
        self.anomalies += u64::from(event.mismatches > 0);
        self.max_lfc = self.max_lfc.max(event.lfc.into());
        self.holds += u64::from(is_held);
        self.held_ns = self.held_ns.saturating_add(held_ns(event));
        self.killed += u64::from(kills && !is_held && !is_refused);
        self.refused += u64::from(is_refused);
        self.unheld += u64::from(event.restraint == wire::GUARD_MAX_HELD);
    }
}

impl Activity {
    /// Adds what was done under another profile.
    pub fn merge(&mut self, other: &Self) {
        self.anomalies += other.anomalies;
        self.max_lfc = self.max_lfc.max(other.max_lfc);
        self.holds += other.holds;
        self.held_ns = self.held_ns.saturating_add(other.held_ns);
        self.killed += other.killed;
        self.refused += other.refused;
        self.unheld += other.unheld;
    }

    /// A row of a report without the program.
    pub fn report(&self) -> GuardedProgram {
        GuardedProgram {
            anomalies: self.anomalies,
            max_lfc: self.max_lfc,
            holds: self.holds,
            held_ns: self.held_ns,
            killed: self.killed,
            refused: self.refused,
            unheld: self.unheld,
            retrained: self.retrained,
            ..GuardedProgram::default()
        }
    }
}

/// The requested time of the hold that an event reports; 0 for no hold, and for a hold without an
/// end.
pub fn held_ns(event: &wire::guard_event) -> u64 {
    match event.held_until_ns {
        u64::MAX => 0,
        until => until.saturating_sub(event.time_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_and_kills_are_counted_apart() {
        let event = |action: u32, held_until_ns| wire::guard_event {
            time_ns: 100,
            held_until_ns,
            mismatches: 1,
            lfc: 3,
            action: action as u8,
            ..wire::guard_event::default()
        };
        let mut activity = Activity::default();
        activity.add(&event(wire::GUARD_DELAY, 150));
        activity.add(&event(wire::GUARD_STOP, u64::MAX));
        activity.add(&event(wire::GUARD_KILL, 0));
        let sums = Activity {
            anomalies: 3,
            max_lfc: 3,
            holds: 2,
            held_ns: 50,
            killed: 1,
            ..Activity::default()
        };
        assert_eq!(activity, sums);
    }

    #[test]
    fn only_what_takes_place_is_counted() {
        let mut activity = Activity::default();
        for (action, restraint) in [
            (wire::GUARD_OBSERVE, wire::GUARD_TERMINATING),
            (wire::GUARD_OBSERVE, wire::GUARD_NEVER_RETURNS),
            (wire::GUARD_DELAY, wire::GUARD_TRACED),
        ] {
            activity.add(&wire::guard_event {
                time_ns: 100,
                mismatches: 1,
                action: action as u8,
                restraint,
                ..wire::guard_event::default()
            });
        }
        assert_eq!(activity, Activity { anomalies: 3, ..Activity::default() });
    }
}
