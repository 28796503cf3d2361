//! What an extension contributes to the cost lab (`cost/`).

use crate::extension::{Extension, ExtensionSetup};

/// An arm that has one extension.
pub struct ExtensionArm {
    pub name: &'static str,
    pub description: &'static str,
    /// Makes the setup for one block.
    pub setup: fn() -> Box<dyn ExtensionSetup>,
}

/// An extension that works only on the kernel side.
pub struct KernelSideOnly;

impl Extension for KernelSideOnly {}
