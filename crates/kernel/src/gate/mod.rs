//! The gate in the kernel: loaded by the first Tollgate process, joined by others, gone with the
//! last.
//!
//! Nothing is pinned. The programs stay attached as long as a process holds their links, so a
//! Tollgate that is killed leaves nothing behind. A process finds an existing gate by its header
//! map, whose entries name the other maps and the links (docs/decisions/0001-gate.md).

mod call_flags;
mod load;
mod lock;
mod maps;

use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use libbpf_rs::OpenObject;

use crate::cpus;
use crate::error::{Error, Result};
use crate::mapped_array::{MappedArray, atomic_field, field};
use crate::wire;

pub use call_flags::call_flags;
pub(crate) use call_flags::{CallFlags, mark};
pub use load::{IteratorKind, Iterators, LoadedGate, new_ring, unreserved_cells};
pub use lock::Lock;
pub use maps::{LazyMaps, Maps, sum_over_cpus};

/// Whether a process uses a gate now. A gate that the kernel is about to free does not count.
pub fn is_loaded() -> bool {
    !matches!(Gate::join(&[]), Ok(None))
}

/// The maps that are made when one of these extensions is first enabled.
pub fn lazy_maps(extensions: &[&dyn KernelSide]) -> Vec<&'static LazyMaps> {
    extensions.iter().filter_map(|extension| extension.lazy_maps()).collect()
}

/// A process's hold on the gate.
pub struct Gate {
    pub maps: Maps,
    pub header: MappedArray<wire::gate_header>,
    pub threads: MappedArray<wire::thread_state>,
    /// The guard's part of the threads' states that normal calls do not need.
    pub(crate) guard_threads: MappedArray<wire::guard_cold>,
    pub sessions: MappedArray<wire::session>,
    pub groups: MappedArray<wire::row>,
    pub cell_of: MappedArray<wire::cell_table>,
    pub plugin_chains: MappedArray<wire::plugin_chain>,
    /// What is to be done for each extension when sessions end.
    pub(crate) extensions: &'static [&'static dyn KernelSide],
    /// The programs, if this process loaded them.
    loaded: Option<LoadedGate>,
    /// Links that other processes made, held so that they stay.
    foreign_links: Vec<OwnedFd>,
    active: ActiveGeneration,
    /// The header's count at the latest poll.
    rollbacks: u32,
    /// Polls that found the active generation gone, while another process is to roll back to a
    /// later one than this process's.
    missed_looks: u32,
    /// The gap was reported, so that its end is no news.
    gap_reported: bool,
    /// The plugins of each thread are to be assigned once more, at the next poll.
    pub(crate) reassigns_plugins: bool,
}

/// A generation of the programs, as the header names it while it is active.
#[derive(Clone, Copy)]
struct ActiveGeneration {
    generation: u32,
    enabled: u32,
    link_ids: maps::LinkIds,
    map_ids: maps::MapIds,
}

impl ActiveGeneration {
    const NONE: Self = Self {
        generation: 0,
        enabled: 0,
        link_ids: [0; wire::GATE_LINKS as usize],
        map_ids: [0; wire::GATE_MAPS as usize],
    };
}

const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// A process that polls a few times a second has done so by then.
const MAX_MISSED_POLLS: u32 = 20;

impl Gate {
    /// Joins the gate, or loads it; in both cases it does all that `mask` asks for. The lock is to
    /// be held until a session has begun: only sessions show other processes that the gate is in
    /// use.
    pub fn open(
        _lock: &Lock,
        mask: u32,
        extensions: &'static [&'static dyn KernelSide],
    ) -> Result<Self> {
        if !Path::new("/sys/kernel/btf/vmlinux").exists() {
            return Err(Error::NoBtf);
        }
        match Self::join(extensions)? {
            Some(mut gate) => {
                gate.require(mask)?;
                Ok(gate)
            }
            None => Self::load_own(mask, extensions),
        }
    }

    fn load_own(mask: u32, extensions: &'static [&'static dyn KernelSide]) -> Result<Self> {
        let generation = 1;
        let loaded = LoadedGate::new(None, mask, generation, &lazy_maps(extensions))?;
        let maps = Maps::open_ids(&loaded.map_ids()?)?;
        let mut gate = Self::from_maps(maps, ActiveGeneration::NONE, extensions)?;
        gate.header.write(
            0,
            wire::gate_header {
                magic: wire::GATE_MAGIC,
                salt: RandomState::new().hash_one(generation),
                build: wire::BUILD,
                // 0 means none everywhere.
                next_thread: 1,
                next_row: 1,
                next_cell: 1,
                ..Default::default()
            },
        );
        gate.activate(loaded, mask, generation)?;
        Ok(gate)
    }

    fn from_maps(
        maps: Maps,
        held: ActiveGeneration,
        extensions: &'static [&'static dyn KernelSide],
    ) -> Result<Self> {
        let header = MappedArray::<wire::gate_header>::new(maps.get(".bss.tollgate"), 1)?;
        Ok(Self {
            rollbacks: header.read(0).rollbacks,
            header,
            threads: MappedArray::new(maps.get(".bss.threads"), wire::THREADS)?,
            guard_threads: MappedArray::new(maps.get(".bss.guard"), wire::THREADS)?,
            sessions: MappedArray::new(maps.get("sessions"), wire::SESSIONS)?,
            groups: MappedArray::new(maps.get("rows"), wire::ROWS)?,
            cell_of: MappedArray::new(maps.get(".bss.cell_index"), wire::ROWS)?,
            plugin_chains: MappedArray::new(maps.get(".bss.plugins"), wire::PLUGIN_HOOKS)?,
            maps,
            extensions,
            loaded: None,
            foreign_links: Vec::new(),
            active: held,
            missed_looks: 0,
            gap_reported: false,
            reassigns_plugins: false,
        })
    }

    /// The gate of another process that lives, if there is one.
    fn join(extensions: &'static [&'static dyn KernelSide]) -> Result<Option<Self>> {
        for header in maps::headers() {
            let seen = MappedArray::<wire::gate_header>::new(&header, 1)?.read(0);
            if seen.magic != wire::GATE_MAGIC {
                continue;
            }
            if seen.build != wire::BUILD {
                return Err(Error::OtherVersion);
            }
            // Its owner may be ending right now: without its links or maps there is no gate to
            // join.
            let Some(links) = maps::open_links(&seen.link_ids) else { continue };
            let Ok(maps) = Maps::open_ids(&seen.map_ids) else { continue };
            let wire::gate_header { generation, enabled, link_ids, map_ids, .. } = seen;
            let held = ActiveGeneration { generation, enabled, link_ids, map_ids };
            let mut gate = Self::from_maps(maps, held, extensions)?;
            gate.foreign_links = links;
            // The kernel frees what a dead process held a moment later.
            if gate.in_use() {
                return Ok(Some(gate));
            }
        }
        Ok(None)
    }

    /// Makes the gate do all that `mask` asks for as well.
    pub fn extend(&mut self, mask: u32) -> Result<()> {
        loop {
            let lock = Lock::take()?;
            if self.follow_active() {
                return self.require(mask);
            }
            drop(lock);
            // The holder of a later generation has died, and another process is to roll back.
            self.tend()?;
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Loads a new generation over the same maps, if the active one lacks something.
    fn require(&mut self, mask: u32) -> Result<()> {
        let enabled = self.header.read(0).enabled;
        if enabled & mask == mask {
            return Ok(());
        }
        let generation = self.active.generation + 1;
        let before = Some((&self.maps, enabled));
        let lazy = lazy_maps(self.extensions);
        let loaded = LoadedGate::new(before, enabled | mask, generation, &lazy)?;
        self.maps = Maps::open_ids(&loaded.map_ids()?)?;
        self.activate(loaded, enabled | mask, generation)
    }

    fn activate(&mut self, mut loaded: LoadedGate, enabled: u32, generation: u32) -> Result<()> {
        let link_ids = loaded.attach()?;
        if self.header.read(0).generation != 0 {
            // A hook that ran just before may have seen the older programs only: they must act on
            // it.
            cpus::wait_for_all();
        }
        self.active =
            ActiveGeneration { generation, enabled, link_ids, map_ids: loaded.map_ids()? };
        self.publish_active();
        self.foreign_links.clear();
        self.loaded = Some(loaded);
        Ok(())
    }

    /// Makes the generation active that this process holds.
    fn publish_active(&self) {
        // Meanwhile the gate changes only its counters, by atomic operations: write around them.
        // Only Tollgate processes write these, one at a time (Lock).
        field!(self.header, 0, enabled).write(self.active.enabled);
        field!(self.header, 0, link_ids).write(self.active.link_ids);
        field!(self.header, 0, map_ids).write(self.active.map_ids);
        atomic_field!(self.header, 0, generation).store(self.active.generation, Ordering::SeqCst);
    }

    /// Follows a change of generation; to be called a few times a second. If the holder of the
    /// active generation died before others could follow, an older one becomes active again.
    /// Returns `false` once for a gap: no generation acted for some time since the last call.
    pub fn tend(&mut self) -> Result<bool> {
        // First without the lock: the process that has it may load a gate for longer than the
        // holder lives.
        if !self.follow_active() {
            let _lock = Lock::take()?;
            if !self.follow_active() {
                self.missed_looks += 1;
                if self.missed_looks > MAX_MISSED_POLLS || !self.is_newer_generation_held() {
                    self.publish_active();
                    atomic_field!(self.header, 0, rollbacks).fetch_add(1, Ordering::SeqCst);
                    self.missed_looks = 0;
                }
            }
        }
        let put_back = atomic_field!(self.header, 0, rollbacks).load(Ordering::SeqCst);
        let was_put_back = std::mem::replace(&mut self.rollbacks, put_back) != put_back;
        let is_gone = self.missed_looks > 0;
        let was_told = std::mem::replace(&mut self.gap_reported, is_gone);
        Ok(was_told || !(is_gone || was_put_back))
    }

    /// Holds the links of the active generation; `false`: there are none.
    fn follow_active(&mut self) -> bool {
        let in_charge = || atomic_field!(self.header, 0, generation).load(Ordering::SeqCst);
        let generation = in_charge();
        if generation != self.active.generation {
            let wire::gate_header { enabled, link_ids, map_ids, .. } = self.header.read(0);
            let Some(links) = maps::open_links(&link_ids) else { return false };
            let Ok(maps) = Maps::open_ids(&map_ids) else { return false };
            // Links are written before their generation: these belong to it or to the next one,
            // whose loader holds both.
            if in_charge() != generation {
                return false;
            }
            self.active = ActiveGeneration { generation, enabled, link_ids, map_ids };
            self.foreign_links = links;
            self.maps = maps;
            self.loaded = None;
        }
        self.missed_looks = 0;
        true
    }

    /// The extensions of the generation that this process holds.
    pub fn enabled(&self) -> u32 {
        self.active.enabled
    }

    pub fn generation(&self) -> u32 {
        self.active.generation
    }

    /// Loads these programs that iterate over all tasks or sockets.
    pub fn load_iterators(&self, kinds: &[IteratorKind]) -> Result<Iterators> {
        let lazy = lazy_maps(self.extensions);
        Iterators::new(&self.maps, self.enabled(), self.generation(), &lazy, kinds)
    }

    /// Has an object that is not loaded yet use the gate's maps in place of those of the same
    /// names.
    pub(crate) fn share_maps(&self, object: &mut OpenObject) -> Result<()> {
        load::reuse(object, &self.maps, self.enabled(), &lazy_maps(self.extensions))
    }

    /// For detaching and attaching the programs, to measure their cost; only their loader can.
    pub fn toggle(&mut self) -> Option<&mut LoadedGate> {
        self.loaded.as_mut()
    }

    /// Keeps other processes from joining: the gate is about to go.
    pub fn close(&self, _lock: &Lock) {
        // Only Tollgate processes write it, one at a time.
        field!(self.header, 0, magic).write(0);
    }
}

/// What every process can do for an extension in the gate, also a process that does not use it: the
/// process that used it may have been killed. By default it does nothing.
pub trait KernelSide: Sync {
    /// Maps that are made when the extension is first enabled.
    fn lazy_maps(&self) -> Option<&'static LazyMaps> {
        None
    }

    /// The tasks of a session are about to be detached, or its owner was killed.
    fn release(&self, _gate: &Gate, _session: u32) {}

    /// A session is about to end: nothing of its owner may be left for the next one.
    fn clear(&self, _gate: &Gate) {}

    /// Removes what killed processes have left; each session calls it a few times a second.
    fn tend(&self, _gate: &Gate, _session: u32) -> Result<()> {
        Ok(())
    }
}
