//! In-band records: the memory that a process maps to read its own latest calls
//! (docs/decisions/0012-in-band.md).

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::atomic::Ordering;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use zerocopy::{FromBytes as _, FromZeros as _, IntoBytes as _};

use crate::cpus;
use crate::error::{Error, ErrorContext as _, Result};
use crate::gate::{Gate, KernelSide, LazyMaps, Lock};
use crate::mapped_array::{MappedArray, atomic_field, field, new_mappable};
use crate::process::{self, ProcessRef};
use crate::skeletons::gate::OpenGateMaps;
use crate::wire;

/// Why a thread cannot have in-band records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// The thread is not gated by this session.
    NotGated,
    /// All entries for processes, or for threads of this process, are in use.
    Full,
    /// The kernel has refused something.
    Failed,
}

impl From<Error> for Unavailable {
    fn from(_: Error) -> Self {
        Self::Failed
    }
}

/// The memory of one process.
struct ProcessMemory {
    process: ProcessRef,
    map: MapHandle,
    /// The kernel's number of the map.
    number: u32,
    /// The entry that was given to a thread last. Entries are used in turn, so that a new thread
    /// seldom finds the records of one that has ended.
    latest: u32,
}

/// The processes of a session that have in-band records.
pub struct InBandTable {
    session: u32,
    /// The session is about to end.
    is_closed: bool,
    tables: Tables,
    threads: MappedArray<wire::thread_state>,
    /// By the numbers of the processes in the gate.
    processes: BTreeMap<u32, ProcessMemory>,
}

/// An entry for a thread's records.
pub struct GrantedEntry {
    /// The memory of the process, which can be mapped for reading only.
    pub memory: OwnedFd,
    /// Its number. No other memory has had it since the machine started, unless the numbers have
    /// wrapped around.
    pub memory_number: u32,
    /// The entry of the thread in it.
    pub entry: u32,
}

impl InBandTable {
    /// Without processes. The gate must have been loaded with in-band records.
    pub fn new(gate: &Gate, session: u32) -> Result<Self> {
        Ok(Self {
            session,
            is_closed: false,
            tables: Tables::open(gate)?,
            threads: MappedArray::new(gate.maps.get(".bss.threads"), wire::THREADS)?,
            processes: BTreeMap::new(),
        })
    }

    /// From now on, no thread gets an entry: the session's number may soon be another one's.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// Gives a thread an entry for its records. `tid` is its number in its own PID namespace. The
    /// thread must wait meanwhile.
    pub fn add_thread(
        &mut self,
        pid: u32,
        tid: u32,
    ) -> std::result::Result<GrantedEntry, Unavailable> {
        let slot = process::thread_of_own_number(pid, tid).and_then(|tid| self.slot_of(tid));
        let slot = slot.filter(|_| !self.is_closed).ok_or(Unavailable::NotGated)?;
        self.remove_ended()?;
        let process = match self.processes.iter().find(|(_, memory)| memory.process.pid == pid) {
            Some((number, _)) => *number,
            None => self.add_process(pid)?.ok_or(Unavailable::Full)?,
        };
        let entry_of = |slot: u32| {
            let thread = self.threads.read(slot);
            // A slot that a thread has left keeps its content.
            let is_its = thread.task != 0 && u32::from(thread.lens.in_band_process) == process;
            is_its.then_some(u32::from(thread.lens.in_band_entry))
        };
        let memory = self.processes.get_mut(&process).expect("found or added above");
        let descriptor = memory.map.as_fd().try_clone_to_owned().doing("copy a descriptor")?;
        let granted = GrantedEntry { memory: descriptor, memory_number: memory.number, entry: 0 };
        // A thread that asks again keeps its entry.
        if let Some(entry) = entry_of(slot) {
            return Ok(GrantedEntry { entry, ..granted });
        }
        let used: BTreeSet<_> = (1..self.threads.entries()).filter_map(entry_of).collect();
        let mut entries = (memory.latest + 1..wire::IN_BAND_ENTRIES).chain(1..=memory.latest);
        let entry = entries.find(|entry| !used.contains(entry)).ok_or(Unavailable::Full)?;
        memory.latest = entry;
        field!(self.threads, slot, lens.in_band_entry).write(entry as u16);
        field!(self.threads, slot, lens.in_band_process).write(process as u8);
        Ok(GrantedEntry { entry, ..granted })
    }

    /// The address of the kernel's code that is a site of a process. `None`: it has no such site.
    pub fn site_address(&self, pid: u32, site: u32) -> Option<u64> {
        let (process, _) = self.processes.iter().find(|(_, memory)| memory.process.pid == pid)?;
        let is_site = |key: &wire::in_band_site_key| {
            let found = self.tables.sites.lookup(key.as_bytes(), MapFlags::ANY);
            key.process == *process
                && matches!(found, Ok(Some(number)) if number == site.to_ne_bytes())
        };
        let keys = self.tables.sites.keys();
        let mut keys = keys.filter_map(|key| wire::in_band_site_key::read_from_bytes(&key).ok());
        keys.find(is_site).map(|key| key.address)
    }

    /// The slot of a thread of the session. `tid` is its number in this PID namespace.
    fn slot_of(&self, tid: u32) -> Option<u32> {
        (1..self.threads.entries()).find(|slot| {
            let thread = self.threads.read(*slot);
            thread.task != 0
                && thread.visible_pid == tid
                && u32::from(thread.session) == self.session
                && thread.mask & wire::LENS != 0
        })
    }

    /// `None`: all numbers are in use.
    fn add_process(&mut self, pid: u32) -> Result<Option<u32>> {
        let process = ProcessRef::open(pid).doing(format!("find process {pid}"))?;
        let map = new_memory()?;
        let information = map.info().doing("finding memory for in-band records")?;
        let memory = ProcessMemory { process, map, number: information.info.id, latest: 0 };
        let _lock = Lock::take()?;
        let is_free = |number: &u32| self.tables.owners.read(*number).session == 0;
        let Some(number) = (1..wire::IN_BAND_PROCESSES).find(is_free) else { return Ok(None) };
        self.tables
            .memory
            .update(
                &number.to_ne_bytes(),
                &memory.map.as_fd().as_raw_fd().to_ne_bytes(),
                MapFlags::ANY,
            )
            .doing("giving a process memory for in-band records")?;
        self.tables.owners.write(number, wire::in_band_owner { session: self.session, sites: 0 });
        self.processes.insert(number, memory);
        Ok(Some(number))
    }

    /// Frees the memory of processes that have ended.
    fn remove_ended(&mut self) -> Result<()> {
        let ended: Vec<_> = self
            .processes
            .iter()
            .filter(|(_, memory)| !memory.process.lives())
            .map(|(number, _)| *number)
            .collect();
        if !ended.is_empty() {
            let _lock = Lock::take()?;
            self.tables.remove(&self.threads, &ended);
            self.processes.retain(|number, _| !ended.contains(number));
        }
        Ok(())
    }
}

fn owners(gate: &Gate) -> Result<MappedArray<wire::in_band_owner>> {
    MappedArray::new(gate.maps.get(".bss.in_band"), wire::IN_BAND_PROCESSES)
}

/// Makes the memory of a process. From then on, only BPF programs can write to it: a process that
/// has its descriptor cannot (v6.18 kernel/bpf/syscall.c, map_freeze and bpf_map_mmap).
fn new_memory() -> Result<MapHandle> {
    let map = new_mappable("tollgate_inband", wire::IN_BAND_PAGE, wire::IN_BAND_ENTRIES)
        .doing("making memory for in-band records")?;
    let mut own = wire::in_band_process::new_zeroed();
    own.version = wire::IN_BAND_VERSION;
    map.update(&0_u32.to_ne_bytes(), own.as_bytes(), MapFlags::ANY)
        .and_then(|()| map.freeze())
        .doing("protecting memory for in-band records")?;
    Ok(map)
}

/// The maps of in-band records.
struct Tables {
    owners: MappedArray<wire::in_band_owner>,
    waits: MappedArray<wire::in_band_wait>,
    counters: MappedArray<wire::in_band_counters>,
    counter_of: MapHandle,
    memory: MapHandle,
    sites: MapHandle,
}

impl Tables {
    fn open(gate: &Gate) -> Result<Self> {
        let copy = |name| {
            MapHandle::from_map_id(gate.maps.id(name)?).doing("opening the maps of in-band records")
        };
        Ok(Self {
            owners: owners(gate)?,
            waits: MappedArray::new(gate.maps.get("in_band_waits"), wire::THREADS)?,
            counters: MappedArray::new(gate.maps.get("in_band_counters"), 1)?,
            counter_of: copy("in_band_counter_of")?,
            memory: copy("in_band_memory")?,
            sites: copy("in_band_sites")?,
        })
    }

    /// Removes processes. The caller has the lock.
    fn remove(&self, threads: &MappedArray<wire::thread_state>, processes: &[u32]) {
        let is_removed = |process: u32| processes.contains(&process);
        let process_of = |slot: &u32| u32::from(threads.read(*slot).lens.in_band_process);
        let slots: Vec<_> =
            (1..threads.entries()).filter(|slot| is_removed(process_of(slot))).collect();
        for slot in &slots {
            field!(threads, *slot, lens.in_band_process).write(0);
        }
        // From now on, no record is written to the memory, and no sleep of these threads begins.
        cpus::wait_for_all();
        slots.iter().for_each(|slot| self.end_wait(*slot));
        for process in processes {
            // A failure leaves memory that the next process with this number replaces.
            let _ = self.memory.delete(&process.to_ne_bytes());
        }
        let keys: Vec<_> = self.sites.keys().collect();
        for key in keys {
            let site = wire::in_band_site_key::read_from_bytes(&key);
            if site.is_ok_and(|site| is_removed(site.process)) {
                let _ = self.sites.delete(&key);
            }
        }
        for process in processes {
            field!(self.owners, *process, sites).write(0);
            atomic_field!(self.owners, *process, session).store(0, Ordering::SeqCst);
        }
        if (1..wire::IN_BAND_PROCESSES).all(|number| self.owners.read(number).session == 0) {
            self.free_counters();
        }
    }

    /// A thread that sleeps does not count as one any more.
    fn end_wait(&self, slot: u32) {
        let both = atomic_field!(self.waits, slot, counters).swap(0, Ordering::SeqCst);
        for counter in [both & 0xffff, both >> 16].into_iter().filter(|counter| *counter != 0) {
            let waiting = atomic_field!(self.counters, 0, waiting[counter as usize]);
            waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Makes room for other sites. Nobody has records.
    fn free_counters(&self) {
        let keys: Vec<_> = self.counter_of.keys().collect();
        for key in keys {
            let _ = self.counter_of.delete(&key);
        }
        field!(self.counters, 0, used).write(0);
    }
}

/// Removes the processes of sessions. The caller has the lock.
fn remove_of_sessions(
    gate: &Gate,
    owners: &MappedArray<wire::in_band_owner>,
    is_removed: impl Fn(u32) -> bool,
) -> Result<()> {
    let is_its = |number: &u32| {
        let owner = owners.read(*number).session;
        owner != 0 && is_removed(owner)
    };
    let processes: Vec<_> = (1..wire::IN_BAND_PROCESSES).filter(is_its).collect();
    if !processes.is_empty() {
        Tables::open(gate)?.remove(&gate.threads, &processes);
    }
    Ok(())
}

fn shrink_maps(maps: &mut OpenGateMaps) -> Result<()> {
    const SIZING: &str = "shrinking the maps of in-band records, which are not used";
    maps.in_band_memory.set_max_entries(1).doing(SIZING)?;
    maps.in_band_waits.set_max_entries(1).doing(SIZING)?;
    maps.in_band_counter_of.set_max_entries(1).doing(SIZING)?;
    maps.in_band_sites.set_max_entries(1).doing(SIZING)
}

/// Ends the in-band records of sessions.
pub struct InBandKernelSide;

impl KernelSide for InBandKernelSide {
    fn lazy_maps(&self) -> Option<&'static LazyMaps> {
        Some(&LazyMaps {
            prefixes: &["in_band_"],
            bit: wire::LENS_IN_BAND,
            shrink: shrink_maps,
            fit: None,
        })
    }

    fn release(&self, gate: &Gate, session: u32) {
        if gate.sessions.read(session).mask & wire::LENS_IN_BAND == 0 {
            return;
        }
        if let Ok(owners) = owners(gate) {
            let _ = remove_of_sessions(gate, &owners, |owner| owner == session);
        }
    }

    fn tend(&self, gate: &Gate, _session: u32) -> Result<()> {
        if gate.enabled() & wire::LENS_IN_BAND == 0 {
            return Ok(());
        }
        let owners = owners(gate)?;
        // The parent of a killed Tollgate may wait long before it asks for its status.
        let is_left = |owner: u32| {
            let session = gate.sessions.read(owner);
            session.used == 0
                || process::is_own_pid_namespace(session.owner_namespace)
                    && !process::is_alive(session.owner_pid)
        };
        let has_left = |number: u32| {
            let owner = owners.read(number).session;
            owner != 0 && is_left(owner)
        };
        if (1..wire::IN_BAND_PROCESSES).any(has_left)
            && let Some(_lock) = Lock::try_take()?
        {
            remove_of_sessions(gate, &owners, is_left)?;
        }
        Ok(())
    }
}
