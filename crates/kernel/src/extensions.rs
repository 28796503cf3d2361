//! The extensions' kernel sides. Every process of a gate knows all of them, because it may have to
//! clean up after extensions that it does not use itself.

use crate::gate::KernelSide;

/// All kernel sides, in the order in which they release what a session holds.
pub static ALL: [&dyn KernelSide; 8] = [
    &crate::service::ServicesKernelSide,
    &crate::guard::GuardKernelSide,
    &crate::pace::PaceKernelSide,
    &crate::plugin::PluginsKernelSide,
    &crate::lens::in_band::InBandKernelSide,
    &crate::lens::files::FilesKernelSide,
    &crate::lens::trace::TracesKernelSide,
    &crate::lens::why::WhyKernelSide,
];
