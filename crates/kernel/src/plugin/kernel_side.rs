//! Removes the plugins of processes that were killed.

use super::chain::sweep;
use crate::error::Result;
use crate::gate::{Gate, KernelSide};
use crate::wire;

/// Removes the plugins of killed processes before a session ends, and at each poll.
pub struct PluginsKernelSide;

impl KernelSide for PluginsKernelSide {
    fn clear(&self, gate: &Gate) {
        // The next session must not get the plugins of a killed owner. A failure cannot be reported
        // to anyone here.
        let _ = sweep(gate);
    }

    fn tend(&self, gate: &Gate, _session: u32) -> Result<()> {
        if gate.enabled() & wire::PLUGIN != 0 { sweep(gate) } else { Ok(()) }
    }
}
