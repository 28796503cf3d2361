//! The gate in the kernel: loaded by the first Tollgate process, joined by others, gone with the
//! last.
//!
//! Programs and links are not pinned. The programs stay attached as long as a process holds their
//! links, so a Tollgate that is killed leaves no program behind. A process finds an existing gate
//! by its header map, whose entries name the other maps and the links
//! (docs/decisions/0001-gate.md).

mod call_flags;
mod file_use;
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
use crate::process::own_pid_namespace;
use crate::wire;

pub use call_flags::call_flags;
pub(crate) use call_flags::{CallFlags, mark};
pub use load::LoadedGate;
pub use load::unreserved_cells;
pub(crate) use load::{IteratorKind, Iterators, TimerProgram, new_ring};
pub use lock::Lock;
pub(crate) use lock::open_lock_file;
pub use maps::{LazyMaps, Maps};
pub(crate) use maps::{enabled_by_gates, sum_over_cpus};

/// Whether a process uses a gate now. A gate that the kernel is about to free does not count.
pub fn is_loaded() -> bool {
    !matches!(Gate::join(&[]), Ok(None))
}

/// The maps that are made when one of these extensions is first enabled.
pub fn lazy_maps(extensions: &[&dyn KernelSide]) -> Vec<&'static LazyMaps> {
    extensions.iter().filter_map(|extension| extension.lazy_maps()).collect()
}

/// The gate as one process has it open: its maps, and the links of a generation. While a process
/// holds these links, the generation stays attached.
pub struct Gate {
    pub(crate) maps: Maps,
    /// One entry.
    pub(crate) header: MappedArray<wire::gate_header>,
    /// By thread slot. Slot 0 belongs to no thread.
    pub(crate) threads: MappedArray<wire::thread_state>,
    /// By thread slot: the part of a thread's guard state that normal calls do not need.
    pub(crate) guard_threads: MappedArray<wire::guard_cold>,
    /// By thread slot: the account of a thread.
    pub(crate) lens_lives: MappedArray<wire::lens_life>,
    /// By session number. No session has number 0.
    pub sessions: MappedArray<wire::session>,
    /// By row. Row 0 means none.
    pub(crate) rows: MappedArray<wire::row>,
    /// The cells of each row, by call index.
    pub(crate) cell_index: MappedArray<wire::cell_table>,
    /// By gate hook of plugins.
    pub(crate) plugin_chains: MappedArray<wire::plugin_chain>,
    /// All extensions that this process knows, even if the gate does not have them enabled.
    pub(crate) extensions: &'static [&'static dyn KernelSide],
    /// The programs, if this process loaded them.
    loaded: Option<LoadedGate>,
    /// Links that other processes made. Holding them keeps the programs attached.
    foreign_links: Vec<OwnedFd>,
    /// The generation whose links this process holds.
    active: ActiveGeneration,
    /// The header's count of rollbacks at the latest poll.
    rollbacks: u32,
    /// How many successive polls have found the active generation gone and have left the rollback
    /// to another process, because that process holds a later generation than this one.
    missed_polls: u32,
    /// Whether the present gap was reported. If so, its end is not reported again.
    gap_reported: bool,
    /// Whether the plugins of each thread are to be assigned once more, at the next poll.
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

/// Whether a gate that uses the map with this ID is attached. If that cannot be read, it counts as
/// attached.
pub(crate) fn is_gate_of_map_attached(id: u32) -> bool {
    maps::headers().flatten().any(|(map, header)| {
        header.map_ids.contains(&id) && maps::is_attached(&map).unwrap_or(true)
    })
}

const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// By the time this process has missed this many polls, another one that polls a few times a second
/// would have rolled back.
const MAX_MISSED_POLLS: u32 = 20;

impl Gate {
    /// Joins the gate, or loads it. In both cases, everything in `mask` (bits of
    /// [`wire::gate_mask`]) is enabled afterwards. The caller holds the lock until it has started a
    /// session, because other processes see by the sessions alone that the gate is in use.
    ///
    /// # Errors
    /// If the kernel has no BTF or refuses the programs, or if a gate of another build is loaded.
    /// Also if /proc is missing: without the number of its PID namespace, a session would gate
    /// nothing.
    pub fn open(
        _lock: &Lock,
        mask: u32,
        extensions: &'static [&'static dyn KernelSide],
    ) -> Result<Self> {
        own_pid_namespace()?;
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
        active: ActiveGeneration,
        extensions: &'static [&'static dyn KernelSide],
    ) -> Result<Self> {
        let header = MappedArray::<wire::gate_header>::new(maps.get(".bss.tollgate"), 1)?;
        Ok(Self {
            rollbacks: header.read(0).rollbacks,
            header,
            threads: MappedArray::new(maps.get(".bss.threads"), wire::THREADS)?,
            guard_threads: MappedArray::new(maps.get(".bss.guard"), wire::THREADS)?,
            lens_lives: MappedArray::new(maps.get(".bss.lens_lives"), wire::THREADS)?,
            sessions: MappedArray::new(maps.get("sessions"), wire::SESSIONS)?,
            rows: MappedArray::new(maps.get("rows"), wire::ROWS)?,
            cell_index: MappedArray::new(maps.get(".bss.cell_index"), wire::ROWS)?,
            plugin_chains: MappedArray::new(maps.get(".bss.plugins"), wire::PLUGIN_HOOKS)?,
            maps,
            extensions,
            loaded: None,
            foreign_links: Vec::new(),
            active,
            missed_polls: 0,
            gap_reported: false,
            reassigns_plugins: false,
        })
    }

    /// The gate of another living process, if there is one.
    fn join(extensions: &'static [&'static dyn KernelSide]) -> Result<Option<Self>> {
        for found in maps::headers() {
            let (map, header) = found?;
            if header.magic != wire::GATE_MAGIC {
                continue;
            }
            if header.build != wire::BUILD {
                if maps::is_attached(&map)? {
                    return Err(Error::OtherVersion);
                }
                continue;
            }
            // If the last holder is just ending, its links or maps are gone, and there is no gate
            // to join.
            let Some(links) = maps::open_links(&header.link_ids) else { continue };
            let Ok(maps) = Maps::open_ids(&header.map_ids) else { continue };
            let wire::gate_header { generation, enabled, link_ids, map_ids, .. } = header;
            let active = ActiveGeneration { generation, enabled, link_ids, map_ids };
            let mut gate = Self::from_maps(maps, active, extensions)?;
            gate.foreign_links = links;
            // The kernel may not have freed yet what a dead process held.
            if gate.in_use() {
                return Ok(Some(gate));
            }
        }
        Ok(None)
    }

    /// Also enables everything in `mask` (bits of [`wire::gate_mask`]). This may load a new
    /// generation. It waits while another process has the lock, or is to roll back.
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

    /// Loads a new generation over the same maps, if something in `mask` is not enabled.
    fn require(&mut self, mask: u32) -> Result<()> {
        let enabled = self.header.read(0).enabled;
        if enabled & mask == mask {
            return Ok(());
        }
        let generation = self.active.generation + 1;
        let previous = Some((&self.maps, enabled));
        let lazy = lazy_maps(self.extensions);
        let loaded = LoadedGate::new(previous, enabled | mask, generation, &lazy)?;
        self.maps = Maps::open_ids(&loaded.map_ids()?)?;
        self.activate(loaded, enabled | mask, generation)
    }

    fn activate(&mut self, mut loaded: LoadedGate, enabled: u32, generation: u32) -> Result<()> {
        let link_ids = loaded.attach()?;
        if self.header.read(0).generation != 0 {
            // A pass through a hook that began before the attachment runs only the older programs.
            // Their generation must stay active until that pass ends.
            cpus::wait_for_all();
        }
        self.active =
            ActiveGeneration { generation, enabled, link_ids, map_ids: loaded.map_ids()? };
        self.publish_active();
        self.foreign_links.clear();
        self.loaded = Some(loaded);
        Ok(())
    }

    /// Activates the generation that this process holds.
    fn publish_active(&self) {
        // The gate changes counters in the header meanwhile, by atomic operations. So the header is
        // not written as a whole. These fields are written only by the process that has the lock.
        field!(self.header, 0, enabled).write(self.active.enabled);
        field!(self.header, 0, link_ids).write(self.active.link_ids);
        field!(self.header, 0, map_ids).write(self.active.map_ids);
        atomic_field!(self.header, 0, generation).store(self.active.generation, Ordering::SeqCst);
    }

    /// Follows a change of generation; to be called a few times a second. If the holder of the
    /// active generation died before others could follow, an older generation becomes active again.
    /// Returns `false` once for each gap, that is, a time in which no generation was active.
    pub fn tend(&mut self) -> Result<bool> {
        // The first try takes no lock. A process that loads a generation has the lock for some
        // time, and in that time the holder of the active generation may end.
        if !self.follow_active() {
            let _lock = Lock::take()?;
            if !self.follow_active() {
                self.missed_polls += 1;
                if self.missed_polls > MAX_MISSED_POLLS || !self.is_newer_generation_held() {
                    self.publish_active();
                    atomic_field!(self.header, 0, rollbacks).fetch_add(1, Ordering::SeqCst);
                    self.missed_polls = 0;
                }
            }
        }
        let rollbacks = atomic_field!(self.header, 0, rollbacks).load(Ordering::SeqCst);
        let was_rolled_back = std::mem::replace(&mut self.rollbacks, rollbacks) != rollbacks;
        let is_gone = self.missed_polls > 0;
        let was_reported = std::mem::replace(&mut self.gap_reported, is_gone);
        Ok(was_reported || !(is_gone || was_rolled_back))
    }

    /// Opens the links and maps of the active generation, if this process does not hold them yet.
    /// Returns `false` if they are gone.
    fn follow_active(&mut self) -> bool {
        let active = || atomic_field!(self.header, 0, generation).load(Ordering::SeqCst);
        let generation = active();
        if generation != self.active.generation {
            let wire::gate_header { enabled, link_ids, map_ids, .. } = self.header.read(0);
            let Some(links) = maps::open_links(&link_ids) else { return false };
            let Ok(maps) = Maps::open_ids(&map_ids) else { return false };
            // The header's links are written before its generation. So the links that were read may
            // already be those of the next generation.
            if active() != generation {
                return false;
            }
            self.active = ActiveGeneration { generation, enabled, link_ids, map_ids };
            self.foreign_links = links;
            self.maps = maps;
            self.loaded = None;
        }
        self.missed_polls = 0;
        true
    }

    /// What is compiled into the generation that this process holds: bits of [`wire::gate_mask`].
    pub fn enabled(&self) -> u32 {
        self.active.enabled
    }

    /// The number of the generation that this process holds. The first one is 1.
    pub(crate) fn generation(&self) -> u32 {
        self.active.generation
    }

    /// Loads programs of these kinds, which iterate over all tasks or sockets.
    pub(crate) fn load_iterators(&self, kinds: &[IteratorKind]) -> Result<Iterators> {
        let lazy = lazy_maps(self.extensions);
        Iterators::new(&self.maps, self.enabled(), self.generation(), &lazy, kinds)
    }

    /// Loads the program of the timers that sample processor time.
    pub(crate) fn load_timer(&self) -> Result<TimerProgram> {
        let lazy = lazy_maps(self.extensions);
        TimerProgram::new(&self.maps, self.enabled(), self.generation(), &lazy)
    }

    /// Makes an object, which is not loaded yet, use the gate's maps in place of its own maps of
    /// the same names.
    pub(crate) fn share_maps(&self, object: &mut OpenObject) -> Result<()> {
        load::reuse(object, &self.maps, self.enabled(), &lazy_maps(self.extensions))
    }

    /// The programs, to detach and attach them for a measurement of their cost. `None` if another
    /// process has loaded them.
    pub fn toggle(&mut self) -> Option<&mut LoadedGate> {
        self.loaded.as_mut()
    }

    /// Keeps other processes from joining. This is called before the last holder closes its links.
    pub fn close(&self, _lock: &Lock) {
        // Only Tollgate processes write this field, one at a time.
        field!(self.header, 0, magic).write(0);
    }
}

/// The part of an extension that cleans up in the gate. Every Tollgate process does this for all
/// extensions, and not only for those that it uses, because the process that used an extension may
/// have been killed. The default methods do nothing.
pub trait KernelSide: Sync {
    /// Maps that are made when the extension is first enabled.
    fn lazy_maps(&self) -> Option<&'static LazyMaps> {
        None
    }

    /// Undoes what the extension does to the tasks of a session. This is called before they are
    /// detached, at the end of the session or after its owner was killed.
    fn release(&self, _gate: &Gate, _session: u32) {}

    /// Removes what killed processes have left. This is called before a session ends, so that
    /// nothing of its owner remains for the next session of this number.
    fn clear(&self, _gate: &Gate) {}

    /// Removes what killed processes have left. Each process that has a session calls this a few
    /// times a second.
    fn tend(&self, _gate: &Gate, _session: u32) -> Result<()> {
        Ok(())
    }
}
