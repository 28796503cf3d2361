//! The gate in the kernel: loaded by the first Tollgate process, joined by others, gone with the last.
//!
//! Nothing is pinned. The programs stay attached as long as some process holds their links, so a
//! Tollgate that is killed leaves nothing behind. A process finds a gate that is already there by its
//! header map, whose entries name the other maps and the links (docs/decisions/0001-gate.md).

mod load;
mod lock;
mod maps;

use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crate::cpus;
use crate::error::{Error, Result};
use crate::mapping::{Mapping, atomic_field};
use crate::wire;

pub(crate) use load::reuse;
pub use load::{Iterators, Loaded, Over, cells_for_all, new_ring};
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
    pub plugin_chains: Mapping<wire::plugin_chain>,
    /// The programs, if this process loaded them.
    loaded: Option<Loaded>,
    /// Links that this process did not make, held so that they stay.
    joined: Vec<OwnedFd>,
    held: Charge,
    /// The header's, when it was looked at last.
    put_back: u32,
    /// Looks at a generation that is gone while somebody is to put back a later one than this process's.
    waits: u32,
    /// That it is gone was told, and that it was put back is no news.
    is_told: bool,
    /// Who has which plugins is to be found once more, at the next look.
    pub(crate) gives_again: bool,
}

/// A generation of the programs, as the header names it while it is in charge.
#[derive(Clone, Copy)]
struct Charge {
    generation: u32,
    enabled: u32,
    link_ids: maps::LinkIds,
    map_ids: maps::MapIds,
}

impl Charge {
    const NONE: Self = Self {
        generation: 0,
        enabled: 0,
        link_ids: [0; wire::GATE_LINKS as usize],
        map_ids: [0; wire::GATE_MAPS as usize],
    };
}

/// A few times a second.
const LOOK: Duration = Duration::from_millis(100);
/// A process that looks a few times a second has looked by then.
const MOST_WAITS: u32 = 20;

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
        let mut gate = Self::over(maps, Charge::NONE)?;
        gate.header.write(
            0,
            wire::gate_header {
                magic: wire::GATE_MAGIC,
                salt: RandomState::new().hash_one(generation),
                build: wire::BUILD,
                // 0 means none everywhere.
                next_thread: 1,
                next_group: 1,
                next_cell: 1,
                ..Default::default()
            },
        );
        gate.put_in_charge(loaded, mask, generation)?;
        Ok(gate)
    }

    fn over(maps: Maps, held: Charge) -> Result<Self> {
        let header = Mapping::<wire::gate_header>::new(maps.get(".bss.tollgate"), 1)?;
        Ok(Self {
            put_back: header.read(0).put_back,
            header,
            threads: Mapping::new(maps.get(".bss.threads"), wire::THREADS)?,
            sessions: Mapping::new(maps.get("sessions"), wire::SESSIONS)?,
            groups: Mapping::new(maps.get("groups"), wire::GROUPS)?,
            cell_of: Mapping::new(maps.get(".bss.cell_of"), wire::GROUPS)?,
            plugin_chains: Mapping::new(maps.get(".bss.plugins"), wire::PLUGIN_HOOKS)?,
            maps,
            loaded: None,
            joined: Vec::new(),
            held,
            waits: 0,
            is_told: false,
            gives_again: false,
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
            let wire::gate_header { generation, enabled, link_ids, map_ids, .. } = seen;
            let mut gate = Self::over(maps, Charge { generation, enabled, link_ids, map_ids })?;
            gate.joined = links;
            // The kernel frees what a dead process held a moment later.
            if gate.in_use() {
                return Ok(Some(gate));
            }
        }
        Ok(None)
    }

    /// It does all that `mask` asks for besides, from now on.
    pub fn extend(&mut self, mask: u32) -> Result<()> {
        loop {
            let lock = Lock::take()?;
            if self.follow() {
                return self.require(mask);
            }
            drop(lock);
            // The keeper of a later generation has died, and somebody is to put one back.
            self.tend()?;
            thread::sleep(LOOK);
        }
    }

    /// Loads a new generation over the same maps, if the one in charge lacks something.
    fn require(&mut self, mask: u32) -> Result<()> {
        let enabled = self.header.read(0).enabled;
        if enabled & mask == mask {
            return Ok(());
        }
        let generation = self.held.generation + 1;
        let loaded = Loaded::new(Some((&self.maps, enabled)), enabled | mask, generation)?;
        self.maps = Maps::open_ids(&loaded.map_ids()?)?;
        self.put_in_charge(loaded, enabled | mask, generation)
    }

    fn put_in_charge(&mut self, mut loaded: Loaded, enabled: u32, generation: u32) -> Result<()> {
        let link_ids = loaded.attach()?;
        if self.header.read(0).generation != 0 {
            // A crossing that began before may know the older programs only: they must act on it.
            cpus::wait_for_all();
        }
        self.held = Charge { generation, enabled, link_ids, map_ids: loaded.map_ids()? };
        self.charge();
        self.joined.clear();
        self.loaded = Some(loaded);
        Ok(())
    }

    /// Puts the generation in charge that this process holds.
    fn charge(&self) {
        // The gate changes only its counters meanwhile, and those by atomic operations: write around them.
        let place = self.header.entry(0);
        // SAFETY: fields of the mapped header that only Tollgate processes write, one at a time (Lock).
        unsafe {
            (&raw mut (*place).enabled).write_volatile(self.held.enabled);
            (&raw mut (*place).link_ids).write_volatile(self.held.link_ids);
            (&raw mut (*place).map_ids).write_volatile(self.held.map_ids);
        }
        atomic_field!(self.header, 0, generation).store(self.held.generation, Ordering::SeqCst);
    }

    /// Follows a change of generation: call it a few times a second; where the keeper of the one in charge died before
    /// others could follow, an older one is put back. `false`, once a gap: none acted for some time since the last call.
    pub fn tend(&mut self) -> Result<bool> {
        // Without the lock first: whoever has it may load a gate for longer than the keeper lives.
        if !self.follow() {
            let _lock = Lock::take()?;
            if !self.follow() {
                self.waits += 1;
                if self.waits > MOST_WAITS || !self.is_later_held() {
                    self.charge();
                    atomic_field!(self.header, 0, put_back).fetch_add(1, Ordering::SeqCst);
                    self.waits = 0;
                }
            }
        }
        let put_back = atomic_field!(self.header, 0, put_back).load(Ordering::SeqCst);
        let was_put_back = std::mem::replace(&mut self.put_back, put_back) != put_back;
        let is_gone = self.waits > 0;
        let was_told = std::mem::replace(&mut self.is_told, is_gone);
        Ok(was_told || !(is_gone || was_put_back))
    }

    /// Holds the links of the generation in charge; `false`: there are none.
    fn follow(&mut self) -> bool {
        let in_charge = || atomic_field!(self.header, 0, generation).load(Ordering::SeqCst);
        let generation = in_charge();
        if generation != self.held.generation {
            let wire::gate_header { enabled, link_ids, map_ids, .. } = self.header.read(0);
            let Some(links) = maps::open_links(&link_ids) else { return false };
            let Ok(maps) = Maps::open_ids(&map_ids) else { return false };
            // Links are written before their generation: these are its, or the next one's, whose loader holds both.
            if in_charge() != generation {
                return false;
            }
            self.held = Charge { generation, enabled, link_ids, map_ids };
            self.joined = links;
            self.maps = maps;
            self.loaded = None;
        }
        self.waits = 0;
        true
    }

    /// What the generation does that this process follows.
    pub fn enabled(&self) -> u32 {
        self.held.enabled
    }

    pub fn generation(&self) -> u32 {
        self.held.generation
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
