//! Pace in the cost lab.

use anyhow::Result;
use kernel::pace::{Tracking, TrackingRules};
use kernel::session::SessionOptions;
use kernel::wire;

use super::rules;
use crate::extension::{Extension, ExtensionSetup, SessionContext};
use crate::extension_arm::{ExtensionArm, KernelSideOnly};

pub const ARMS: [ExtensionArm; 2] = [
    ExtensionArm {
        name: "pace",
        description: "pace without rules, so that no task begins",
        setup: || Box::new(UnreadTasks { has_rules: false }),
    },
    ExtensionArm {
        name: "pace-rules",
        description: "pace with the built-in rules",
        setup: || Box::new(UnreadTasks { has_rules: true }),
    },
];

/// Tasks are followed, and their records are discarded.
struct UnreadTasks {
    has_rules: bool,
}

impl ExtensionSetup for UnreadTasks {
    fn configure(&self, options: &mut SessionOptions) {
        options.mask |= wire::PACE;
    }

    fn start(self: Box<Self>, context: &mut SessionContext<'_>) -> Result<Box<dyn Extension>> {
        let rules = match self.has_rules {
            true => rules::read(None)?.tracking_rules,
            false => TrackingRules::default(),
        };
        Tracking::open(context.gate)?.set_rules(context.session.index, &rules);
        Ok(Box::new(KernelSideOnly))
    }
}
