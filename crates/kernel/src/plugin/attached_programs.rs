//! The programs of a loaded plugin, and how they leave their hooks.

use std::os::fd::OwnedFd;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::attach_point::AttachPoint;
use super::chain_slot::ChainSlot;
use crate::cpus;
use crate::error::Result;

/// The programs of a plugin. When dropped, they are unlinked from their hooks, and freed when no
/// thread can be in them any more.
#[derive(Default)]
pub struct AttachedPrograms(pub Vec<AttachedProgram>);

/// One program of a plugin, and where it is attached.
pub struct AttachedProgram {
    /// `None`: it is not loaded.
    pub descriptor: Option<OwnedFd>,
    pub site: AttachPoint,
    /// Its slot at the hook.
    pub place: Option<ChainSlot>,
}

impl AttachedPrograms {
    /// The slots at hooks.
    pub fn places(&self) -> impl Iterator<Item = &ChainSlot> {
        self.0.iter().filter_map(|program| program.place.as_ref())
    }

    /// Unlinks them all. Returns how long these steps took.
    pub fn unlink(&self) -> Result<Duration> {
        self.places().map(ChainSlot::unlink).sum()
    }

    /// Drops them in a thread of its own, because that waits. If no thread can be started, it waits
    /// here.
    pub fn retire(mut self) -> Option<JoinHandle<()>> {
        self.places().next()?;
        // A network device has one XDP program at a time, and the next plugin may attach another
        // one; the other hooks may wait as long as the kernel does.
        let is_alone = |program: &&mut AttachedProgram| matches!(program.site, AttachPoint::Xdp(_));
        let alone = self.0.iter_mut().filter(is_alone);
        alone.filter_map(|program| program.place.as_mut()).for_each(ChainSlot::detach);
        thread::Builder::new().spawn(move || drop(self)).ok()
    }
}

impl Drop for AttachedPrograms {
    fn drop(&mut self) {
        if self.places().next().is_some() {
            // Without the lock, each slot is unlinked by itself.
            let _ = self.unlink();
            cpus::wait_for_all();
            for AttachedProgram { site, place, .. } in &self.0 {
                place.iter().for_each(|place| place.clear_program(site.empty_program()));
            }
        }
    }
}
