//! The extensions, as every process knows them.

use crate::gate::KernelSide;

/// In the order in which they release what a session has.
pub static ALL: [&dyn KernelSide; 3] = [
    &crate::service::ServicesKernelSide,
    &crate::guard::GuardKernelSide,
    &crate::plugin::PluginsKernelSide,
];
