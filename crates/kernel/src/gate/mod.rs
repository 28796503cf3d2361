//! The gate in the kernel: loaded by the first Tollgate process, joined by others, gone with the last.
//!
//! Nothing is pinned. The programs stay attached as long as some process holds their links, so a
//! Tollgate that is killed leaves nothing behind. A process finds a gate that is already there by its
//! header map, whose entries name the other maps and the links (docs/decisions/0001-gate.md).

mod load;
mod lock;
mod maps;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering;

use crate::cpus;
use crate::error::{Error, Result};
use crate::mapping::{Mapping, atomic_field};
use crate::wire;

pub use load::{Adopter, Loaded, cells_for_all, new_ring};
pub use lock::Lock;
pub use maps::{Maps, sum_over_cpus};

/// Whether some process uses a gate now. One that the kernel is about to free does not count.
pub fn is_loaded() -> bool {
    !matches!(Gate::join(), Ok(None))
}

/// This process's hold on the gate.
pub struct Gate {
    pub maps: Maps,
    pub header: Mapping<wire::gate_header>,
    pub threads: Mapping<wire::thread_state>,
    pub sessions: Mapping<wire::session>,
    pub groups: Mapping<wire::group>,
    pub cell_of: Mapping<wire::cell_table>,
    /// The programs, if this process loaded them.
    loaded: Option<Loaded>,
    /// Links that this process did not make, held so that they stay.
    joined: Vec<OwnedFd>,
    generation: u32,
}

impl Gate {
    /// Joins the gate, or loads it; either way it does all that `mask` asks for. The lock is to be kept until a
    /// session has begun: only sessions show the others that the gate is in use.
    pub fn open(_lock: &Lock, mask: u32) -> Result<Self> {
        if !Path::new("/sys/kernel/btf/vmlinux").exists() {
            return Err(Error::NoBtf);
        }
        match Self::join()? {
            Some(mut gate) => {
                gate.require(mask)?;
                Ok(gate)
            }
            None => Self::load_first(mask),
        }
    }

    fn load_first(mask: u32) -> Result<Self> {
        let generation = 1;
        let loaded = Loaded::new(None, mask, generation)?;
        let maps = Maps::open_ids(&loaded.map_ids()?)?;
        let mut gate = Self::over(maps, generation)?;
        gate.header.write(
            0,
            wire::gate_header {
                magic: wire::GATE_MAGIC,
                build: wire::BUILD,
                // 0 means none everywhere.
                next_thread: 1,
                next_group: 1,
                next_cell: 1,
                map_ids: loaded.map_ids()?,
                ..Default::default()
            },
        );
        gate.put_in_charge(loaded, mask, generation)?;
        Ok(gate)
    }

    fn over(maps: Maps, generation: u32) -> Result<Self> {
        Ok(Self {
            header: Mapping::new(maps.get(".bss.tollgate"), 1)?,
            threads: Mapping::new(maps.get(".bss.threads"), wire::THREADS)?,
            sessions: Mapping::new(maps.get("sessions"), wire::SESSIONS)?,
            groups: Mapping::new(maps.get("groups"), wire::GROUPS)?,
            cell_of: Mapping::new(maps.get(".bss.cell_of"), wire::GROUPS)?,
            maps,
            loaded: None,
            joined: Vec::new(),
            generation,
        })
    }

    /// The gate of another process, if there is one that lives.
    fn join() -> Result<Option<Self>> {
        for header in maps::headers() {
            let seen = Mapping::<wire::gate_header>::new(&header, 1)?.read(0);
            if seen.magic != wire::GATE_MAGIC {
                continue;
            }
            if seen.build != wire::BUILD {
                return Err(Error::OtherVersion);
            }
            // Its owner may be going right now: without its links or maps there is no gate to join.
            let Some(links) = maps::open_links(&seen.link_ids) else { continue };
            let Ok(maps) = Maps::open_ids(&seen.map_ids) else { continue };
            let mut gate = Self::over(maps, seen.generation)?;
            gate.joined = links;
            // The kernel frees what a dead process held a moment later.
            if gate.in_use() {
                return Ok(Some(gate));
            }
        }
        Ok(None)
    }

    /// Loads a new generation over the same maps, if the one in charge lacks something.
    fn require(&mut self, mask: u32) -> Result<()> {
        let enabled = self.header.read(0).enabled;
        if enabled & mask == mask {
            return Ok(());
        }
        let generation = self.generation + 1;
        let loaded = Loaded::new(Some(&self.maps), enabled | mask, generation)?;
        self.put_in_charge(loaded, enabled | mask, generation)
    }

    fn put_in_charge(&mut self, mut loaded: Loaded, enabled: u32, generation: u32) -> Result<()> {
        let link_ids = loaded.attach()?;
        if self.header.read(0).generation != 0 {
            // A crossing that began before may know the older programs only: they must act on it.
            cpus::wait_for_all();
        }
        let header = wire::gate_header { enabled, link_ids, ..self.header.read(0) };
        // The gate changes only its counters meanwhile, and those by atomic operations: write around them.
        let place = self.header.entry(0);
        // SAFETY: fields of the mapped header that only Tollgate processes write, one at a time (Lock).
        unsafe {
            (&raw mut (*place).enabled).write_volatile(header.enabled);
            (&raw mut (*place).link_ids).write_volatile(header.link_ids);
        }
        atomic_field!(self.header, 0, generation).store(generation, Ordering::SeqCst);
        self.generation = generation;
        self.joined.clear();
        self.loaded = Some(loaded);
        Ok(())
    }

    /// Follows a change of generation: call it a few times a second. Tells whether the gate still acts;
    /// where its new keeper died before this process could follow, the old programs act again.
    pub fn tend(&mut self) -> Result<bool> {
        // Without the lock: whoever has it may load a gate for longer than the keeper lives.
        if self.follow() {
            return Ok(true);
        }
        let _lock = Lock::take()?;
        if self.follow() {
            return Ok(true);
        }
        atomic_field!(self.header, 0, generation).store(self.generation, Ordering::SeqCst);
        Ok(false)
    }

    /// Holds the links of the generation in charge. Where they change meanwhile, those of the one before are held
    /// by who changes them, so that it acts until then; the next look finds the new ones.
    fn follow(&mut self) -> bool {
        let header = self.header.read(0);
        if header.generation == self.generation {
            return true;
        }
        let Some(links) = maps::open_links(&header.link_ids) else { return false };
        self.generation = header.generation;
        self.joined = links;
        self.loaded = None;
        true
    }

    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Detaches and attaches the programs, to measure what they cost; only their loader can.
    pub fn toggle(&mut self) -> Option<&mut Loaded> {
        self.loaded.as_mut()
    }

    /// Says that nobody may join any more: the gate is about to go.
    pub fn close(&self, _lock: &Lock) {
        let place = self.header.entry(0);
        // SAFETY: a field of the mapped header that only Tollgate processes write, one at a time.
        unsafe { (&raw mut (*place).magic).write_volatile(0) };
    }
}
