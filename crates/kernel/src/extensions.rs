//! The extensions' kernel sides, which every process of a gate knows: it may have to clean up after
//! extensions that it does not use itself.

use crate::gate::KernelSide;

/// All of them, in the order in which they release what a session holds.
pub static ALL: [&dyn KernelSide; 3] = [
    &crate::service::ServicesKernelSide,
    &crate::guard::GuardKernelSide,
    &crate::plugin::PluginsKernelSide,
];
