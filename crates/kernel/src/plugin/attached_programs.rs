//! The programs of a loaded plugin, and how they leave their hooks.

use std::os::fd::OwnedFd;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::attach_point::AttachPoint;
use super::chain_slot::ChainSlot;
use crate::cpus;
use crate::error::Result;

/// The programs of a plugin. When dropped, they are unlinked from their hooks. They are freed when
/// no thread can be in them any more.
#[derive(Default)]
pub struct AttachedPrograms(pub Vec<AttachedProgram>);

/// One program of a plugin, and where it is attached.
pub struct AttachedProgram {
    /// `None` if it is not loaded.
    pub descriptor: Option<OwnedFd>,
    /// Where it is attached, or enters a chain.
    pub point: AttachPoint,
    /// The slot at its hook; `None` if it is not part of a chain.
    pub slot: Option<ChainSlot>,
}

impl AttachedPrograms {
    /// The slots that the programs have at their hooks.
    pub fn slots(&self) -> impl Iterator<Item = &ChainSlot> {
        self.0.iter().filter_map(|program| program.slot.as_ref())
    }

    /// Unlinks all programs. Returns how long these steps took.
    pub fn unlink(&self) -> Result<Duration> {
        self.slots().map(ChainSlot::unlink).sum()
    }

    /// Drops the programs in a new thread, because dropping waits. If no thread can be started,
    /// they are dropped here.
    pub fn retire(mut self) -> Option<JoinHandle<()>> {
        self.slots().next()?;
        // A network device has one XDP program at a time, and the next plugin may have to attach
        // its own soon. Other hooks can be detached later.
        let is_exclusive =
            |program: &&mut AttachedProgram| matches!(program.point, AttachPoint::Xdp(_));
        let exclusive = self.0.iter_mut().filter(is_exclusive);
        exclusive.filter_map(|program| program.slot.as_mut()).for_each(ChainSlot::detach);
        thread::Builder::new().spawn(move || drop(self)).ok()
    }
}

impl Drop for AttachedPrograms {
    fn drop(&mut self) {
        if self.slots().next().is_some() {
            // If this fails, each slot is unlinked when it is dropped.
            let _ = self.unlink();
            cpus::wait_for_all();
            for AttachedProgram { point, slot, .. } in &self.0 {
                slot.iter().for_each(|slot| slot.clear_program(point.empty_program()));
            }
        }
    }
}
