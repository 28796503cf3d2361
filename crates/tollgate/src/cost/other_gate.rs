//! The gate of another process, which would falsify the figures.

use anyhow::{Result, bail};

/// Whether a gate is loaded. False without root, because only root can find out.
pub fn is_gated() -> bool {
    kernel::process::is_root() && kernel::gate::is_loaded()
}

/// Fails if `is_there`. The gate of another process slows every arm down, and an arm that shared
/// that gate would cost less than by itself.
pub fn ensure_no_other_gate(is_there: bool) -> Result<()> {
    if is_there {
        bail!(
            "another Tollgate process has loaded a gate, whose cost would be in the figures: end \
            it, and start the run again"
        );
    }
    Ok(())
}
