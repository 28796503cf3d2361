//! Plugins whose process was killed.

use super::chain::sweep;
use crate::error::Result;
use crate::gate::{Gate, KernelSide};
use crate::wire;

/// The plugins' part of the life of sessions.
pub struct PluginsKernelSide;

impl KernelSide for PluginsKernelSide {
    fn clear(&self, gate: &Gate) {
        // If the map refuses, there is no process to report that to. The plugins of a killed owner
        // must not become those of the next one.
        let _ = sweep(gate);
    }

    fn tend(&self, gate: &Gate, _session: u32) -> Result<()> {
        if gate.enabled() & wire::PLUGIN != 0 { sweep(gate) } else { Ok(()) }
    }
}
