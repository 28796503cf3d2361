//! A program's profile in the kernel, read and changed while the gate uses it (`struct guard_profile`).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};

use crate::error::{Doing, Result};
use crate::mapping::{Mapping, atomic_field};
use crate::wire;

/// pH's profile of one program.
pub struct Profile {
    mapping: Mapping<wire::guard_profile>,
    more: Vec<Mapping<wire::guard_more>>,
}

/// A map with one entry, which user space can map.
pub fn new_map<T: Copy>(name: &str) -> Result<MapHandle> {
    let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        map_flags: libbpf_rs::libbpf_sys::BPF_F_MMAPABLE,
        ..Default::default()
    };
    MapHandle::create(MapType::Array, Some(name), size_of::<u32>() as u32, size_of::<T>() as u32, 1, &options)
        .doing("making a program's profile")
}

impl Profile {
    pub fn new(mapping: Mapping<wire::guard_profile>) -> Self {
        Self { mapping, more: Vec::new() }
    }

    /// Adds room for windows, at a free place of `more_windows`; false: it has all that it may have.
    pub fn make_room(&mut self, more_windows: &impl libbpf_rs::MapCore, place: u32) -> Result<bool> {
        let Some(free) = self.mapping.read(0).more.iter().position(|place| *place == 0) else {
            return Ok(false);
        };
        let map = new_map::<wire::guard_more>("tollgate_more")?;
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&map));
        more_windows
            .update(&place.to_ne_bytes(), &descriptor.to_ne_bytes(), MapFlags::ANY)
            .doing("making a profile larger")?;
        self.more.push(Mapping::new(&map, 1)?);
        let first = self.mapping.entry(0);
        // SAFETY: an aligned field of the mapped entry, which only its one owner writes.
        unsafe { (&raw mut (*first).more[free]).write_volatile(place) };
        Ok(true)
    }

    /// A copy; what the gate writes meanwhile may be of different moments.
    pub fn read(&self) -> Box<wire::guard_profile> {
        Box::new(self.mapping.read(0))
    }

    fn pairs(&self) -> impl Iterator<Item = &AtomicU32> {
        let first = self.mapping.entry(0);
        // SAFETY: the array is within the mapping, and both sides change its entries as a whole.
        (0..wire::GUARD_PAIRS as usize).map(move |index| unsafe {
            AtomicU32::from_ptr((&raw mut (*first).pairs).cast::<u32>().add(index))
        })
    }

    fn windows(&self) -> impl Iterator<Item = &AtomicU64> {
        let first = self.mapping.entry(0);
        // SAFETY: as above.
        let own = (0..wire::GUARD_WINDOWS as usize).map(move |index| unsafe {
            AtomicU64::from_ptr((&raw mut (*first).windows).cast::<u64>().add(index))
        });
        let more = self.more.iter().flat_map(|more| {
            let first = more.entry(0);
            // SAFETY: as above.
            (0..wire::GUARD_MORE as usize).map(move |index| unsafe {
                AtomicU64::from_ptr((&raw mut (*first).windows).cast::<u64>().add(index))
            })
        });
        own.chain(more)
    }

    /// Knows nothing, as when it was made, but keeps its room.
    pub fn empty(&self) {
        let wire::guard_profile { more, slot, session, .. } = self.mapping.read(0);
        self.mapping.write(0, wire::guard_profile { more, slot, session, ..Default::default() });
        for more in &self.more {
            more.write(0, wire::guard_more::default());
        }
    }

    /// What was learned is normal from now on.
    pub fn normalize(&self) {
        let (learned, shift) = (wire::GUARD_PAIR_LEARNED, wire::GUARD_PAIR_NORMAL_SHIFT);
        for pair in self.pairs() {
            let _ = pair.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
                Some(old & !(learned << shift) | (old & learned) << shift)
            });
        }
        let (learned, normal) = (u64::from(wire::GUARD_WINDOW_LEARNED), u64::from(wire::GUARD_WINDOW_NORMAL));
        for window in self.windows() {
            let _ = window.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
                Some(if old & learned != 0 { old | normal } else { old & !normal })
            });
        }
        self.start_counting();
        atomic_field!(self.mapping, 0, state).store(wire::GUARD_NORMAL, Ordering::SeqCst);
    }

    fn start_counting(&self) {
        let place = self.mapping.entry(0);
        // SAFETY: aligned fields of the mapped entry, which the gate adds to by atomic operations.
        unsafe {
            (&raw mut (*place).trained).write_volatile(0);
            (&raw mut (*place).changed_at).write_volatile(0);
            (&raw mut (*place).anomalies).write_volatile(0);
        }
    }

    /// What it does now is to become normal: it learns until it freezes again (pH's `stop_normal`).
    pub fn tolerize(&self) {
        atomic_field!(self.mapping, 0, state).store(wire::GUARD_TRAINING, Ordering::SeqCst);
    }
}
