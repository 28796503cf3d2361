//! The guard in the cost lab.

use anyhow::Result;
use kernel::gate::Lock;
use kernel::guard::profile_table::ProfileTable;
use kernel::session::SessionOptions;
use kernel::wire;

use super::policy::observing_parameters;
use crate::extension::{Extension, ExtensionSetup, SessionContext};
use crate::extension_arm::{ExtensionArm, KernelSideOnly};

pub const ARMS: [ExtensionArm; 1] = [ExtensionArm {
    name: "guard",
    description: "guard with both models, which learns the workload",
    setup: || Box::new(StorelessGuard),
}];

/// A guard that has no store: each program begins to learn in an empty profile, and what it has
/// learned is dropped.
struct StorelessGuard;

impl ExtensionSetup for StorelessGuard {
    fn configure(&self, options: &mut SessionOptions) {
        options.mask |= wire::GUARD;
        options.guard = observing_parameters();
    }

    fn start(self: Box<Self>, context: &mut SessionContext<'_>) -> Result<Box<dyn Extension>> {
        ProfileTable::new(context.gate).make_profiles(&Lock::take()?)?;
        Ok(Box::new(KernelSideOnly))
    }
}
