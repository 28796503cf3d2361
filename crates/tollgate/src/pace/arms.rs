//! Pace in the cost lab.

use ::pace::CycleCounter;
use anyhow::Result;
use kernel::pace::{CycleEvent, Tracking, TrackingRules};
use kernel::session::SessionOptions;
use kernel::wire;

use super::cycle_counter::count_cycles;
use super::rules;
use crate::extension::{Extension, ExtensionSetup, SessionContext};
use crate::extension_arm::{ExtensionArm, KernelSideOnly};

pub const ARMS: [ExtensionArm; 3] = [
    ExtensionArm {
        name: "pace",
        description: "pace without rules and without a counter of cycles",
        setup: || Box::new(UnreadTasks { has_rules: false, has_counter: false }),
    },
    ExtensionArm {
        name: "pace-rules",
        description: "pace with the built-in rules, without a counter of cycles",
        setup: || Box::new(UnreadTasks { has_rules: true, has_counter: false }),
    },
    ExtensionArm {
        name: "pace-counter",
        description: "pace without rules, with a counter of cycles: cpu-cycles, or msr/tsc",
        setup: || Box::new(UnreadTasks { has_rules: false, has_counter: true }),
    },
];

/// Tasks are followed, and their records are discarded.
struct UnreadTasks {
    has_rules: bool,
    /// A counter counts cycles, also on a machine without the event `cpu-cycles`.
    has_counter: bool,
}

impl ExtensionSetup for UnreadTasks {
    fn configure(&self, options: &mut SessionOptions) {
        options.mask |= wire::PACE;
    }

    fn start(self: Box<Self>, context: &mut SessionContext<'_>) -> Result<Box<dyn Extension>> {
        let rules = match self.has_rules {
            true => rules::read(None)?.0.tracking_rules,
            false => TrackingRules::default(),
        };
        let tracking = Tracking::open(context.gate)?;
        let counter = match (self.has_counter, CycleEvent::CPU_CYCLES.is_available()) {
            (false, _) => CycleCounter::None,
            (true, true) => CycleCounter::CpuCycles,
            // arch/x86/events/msr.c: the time stamp counter, which virtual machines have, too.
            (true, false) => CycleCounter::Event { pmu: "msr".into(), config: 0 },
        };
        count_cycles(context, &tracking, Some(&counter))?;
        tracking.set_rules(context.session.index, &rules);
        Ok(Box::new(KernelSideOnly))
    }
}
