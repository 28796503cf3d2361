//! Ends the guard of a session: releases the processes that it holds, and drops the profiles of the
//! session's programs.

use super::exempt_files::ExemptFiles;
use super::holds::Holds;
use super::profile_table::ProfileTable;
use super::selected_files::SelectedFiles;
use crate::gate::{Gate, KernelSide};
use crate::wire;

/// Ends the guards of sessions.
pub struct GuardKernelSide;

impl KernelSide for GuardKernelSide {
    fn release(&self, gate: &Gate, session: u32) {
        // This waits for all processors, which a session without a guard need not do.
        if gate.sessions.read(session).mask & wire::GUARD != 0 {
            Holds::new(gate, session).release_all();
            ProfileTable::new(gate).drop_profiles(session);
            ExemptFiles::new(gate, session).clear();
            SelectedFiles::new(gate, session).clear();
        }
    }
}
