//! In-band records: the memory that a process maps to read its own latest calls
//! (docs/decisions/0012-in-band.md).

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

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
    /// The thread is not gated.
    NotGated,
    /// The thread counts in another session.
    OtherSession,
    /// All entries for processes are in use.
    TooManyProcesses,
    /// All entries for threads of this process are in use.
    TooManyThreads,
    /// The kernel has refused something.
    Failed,
}

type OrUnavailable<T> = std::result::Result<T, Unavailable>;

impl From<Error> for Unavailable {
    fn from(_: Error) -> Self {
        Self::Failed
    }
}

/// A process while it executes one program. What it requests is given to this program only.
///
/// A process keeps its number when it executes another program, which may have the rights of
/// another user; and when it has ended, another process may get its number.
#[derive(Clone)]
pub struct InBandClient {
    process: Arc<ProcessRef>,
    /// Its number in the initial PID namespace.
    tgid: u32,
    /// Counts the programs that the process has executed, as the gate has noted it.
    image: u64,
}

impl InBandClient {
    /// The number of the process in this process's PID namespace.
    pub fn pid(&self) -> u32 {
        self.process.pid
    }

    fn owns(&self, memory: &ProcessMemory) -> bool {
        let Self { process, image, .. } = &memory.client;
        process.pid == self.process.pid && *image == self.image && process.lives()
    }
}

/// Memory that has a number in the gate.
struct NumberedMemory {
    /// The process's number in the gate.
    process: u32,
    map: MapHandle,
    /// The kernel's number of the map.
    number: u32,
}

/// The memory of one process.
struct ProcessMemory {
    client: InBandClient,
    memory: NumberedMemory,
    /// The entry that was given to a thread last. Entries are used in turn, so that a new thread
    /// seldom finds the records of one that has ended.
    latest: u32,
}

/// Which entry a thread has in the memory of which process. The gate clears it when the thread ends
/// or executes another program. User space exchanges it as a whole, so that no thread gets an entry
/// that was meant for the program before.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Assignment {
    /// 0: no process; `entry` is a token then, or 0.
    process: u8,
    entry: u16,
}

/// The assignment of a thread, and a byte beside it that the gate also changes.
struct AssignmentWord<'a>(&'a AtomicU32);

impl<'a> AssignmentWord<'a> {
    fn of(threads: &'a MappedArray<wire::thread_state>, slot: u32) -> Self {
        Self(field!(threads, slot, lens).at::<u32>(ASSIGNMENT).atomic())
    }

    fn split(word: u32) -> (Assignment, u8) {
        let [low, high, process, beside] = word.to_ne_bytes();
        (Assignment { process, entry: u16::from_ne_bytes([low, high]) }, beside)
    }

    fn read(&self) -> Assignment {
        Self::split(self.0.load(Ordering::SeqCst)).0
    }

    /// Returns whether the assignment was the expected one, and is the new one now.
    fn exchange(&self, expected: Assignment, new: Assignment) -> bool {
        let [low, high] = new.entry.to_ne_bytes();
        let exchanged = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |word| {
            let (now, beside) = Self::split(word);
            let word = u32::from_ne_bytes([low, high, new.process, beside]);
            (now == expected).then_some(word)
        });
        exchanged.is_ok()
    }
}

/// Where the word begins in a thread's state.
const ASSIGNMENT: usize = offset_of!(wire::lens_hot, in_band_entry);

const _: () = assert!(
    ASSIGNMENT.is_multiple_of(size_of::<u32>())
        && offset_of!(wire::lens_hot, in_band_process) == ASSIGNMENT + 2
);

/// The processes of a session that have in-band records.
pub struct InBandTable {
    session: u32,
    /// The session is about to end.
    is_closed: bool,
    tables: Tables,
    header: MappedArray<wire::gate_header>,
    sessions: MappedArray<wire::session>,
    threads: MappedArray<wire::thread_state>,
    images: MappedArray<u64>,
    /// By the numbers of the processes in the gate.
    processes: BTreeMap<u32, ProcessMemory>,
    /// The memory of the next process. The kernel takes some 20 ms to put memory into a map of maps
    /// (v6.18 kernel/bpf/syscall.c, maybe_wait_bpf_programs).
    spare: Option<NumberedMemory>,
    /// The latest token.
    token: u16,
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
            header: MappedArray::new(gate.maps.get(".bss.tollgate"), 1)?,
            sessions: MappedArray::new(gate.maps.get("sessions"), wire::SESSIONS)?,
            threads: MappedArray::new(gate.maps.get(".bss.threads"), wire::THREADS)?,
            images: MappedArray::new(gate.maps.get(".bss.images"), wire::THREADS)?,
            processes: BTreeMap::new(),
            spare: None,
            token: 0,
        })
    }

    /// From now on, no thread gets an entry: the session's number may soon be another one's.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// The process, with the program that it executes now.
    pub fn client(&self, process: ProcessRef) -> OrUnavailable<InBandClient> {
        let slot = self.slot_of_process(process.pid)?;
        let (tgid, image) = (self.threads.read(slot).tgid, self.images.read(slot));
        Ok(InBandClient { process: Arc::new(process), tgid, image })
    }

    fn slot_of_process(&self, pid: u32) -> OrUnavailable<u32> {
        let tids: BTreeSet<_> = process::threads(pid).into_iter().collect();
        self.slot_of(|tid| tids.contains(&tid))
    }

    /// Whether the process still executes the program.
    fn is_unchanged(&self, client: &InBandClient) -> bool {
        self.slot_of_process(client.pid()).is_ok_and(|slot| self.is_at(slot, client))
    }

    /// Gives a thread an entry for its records. `tid` is its number in its own PID namespace.
    ///
    /// The thread first gets a token, which the gate clears if the thread ends or executes another
    /// program, as when another one gets its slot. It gets an entry only in place of the token. So
    /// it is still the thread, and executes the program, that was found between the two, which must
    /// be those of the client; and so does its process, because its other threads end when one
    /// executes a program.
    pub fn add_thread(&mut self, client: &InBandClient, tid: u32) -> OrUnavailable<GrantedEntry> {
        if self.is_closed {
            return Err(Unavailable::NotGated);
        }
        let tid = process::thread_of_own_number(client.pid(), tid).ok_or(Unavailable::NotGated)?;
        let slot = self.slot_of(|visible| visible == tid)?;
        let own = self.processes.iter().find(|(_, memory)| client.owns(memory));
        let own = own.map(|(number, _)| *number);
        let before = AssignmentWord::of(&self.threads, slot).read();
        // A thread that requests again keeps its entry.
        if own == Some(u32::from(before.process)) && self.is_at(slot, client) {
            return self.grant(u32::from(before.process), u32::from(before.entry));
        }
        self.token = self.token.checked_add(1).unwrap_or(1);
        let token = Assignment { process: 0, entry: self.token };
        let granted = AssignmentWord::of(&self.threads, slot).exchange(before, token)
            && self.is_at(slot, client);
        if !granted {
            return Err(Unavailable::NotGated);
        }
        let process = match own {
            Some(process) => process,
            None => self.add_process(client)?,
        };
        let entry = self.free_entry(process).ok_or(Unavailable::TooManyThreads)?;
        let assignment = Assignment { process: process as u8, entry: entry as u16 };
        match AssignmentWord::of(&self.threads, slot).exchange(token, assignment) {
            true => self.grant(process, entry),
            false => Err(Unavailable::NotGated),
        }
    }

    /// Whether a slot has a thread of the client's process, which executes its program.
    fn is_at(&self, slot: u32, client: &InBandClient) -> bool {
        let thread = self.threads.read(slot);
        let is_its = thread.task != 0 && thread.tgid == client.tgid;
        is_its && self.images.read(slot) == client.image && client.process.lives()
    }

    fn grant(&self, process: u32, entry: u32) -> OrUnavailable<GrantedEntry> {
        let memory = &self.processes[&process].memory;
        let descriptor = memory.map.as_fd().try_clone_to_owned().doing("copy a descriptor")?;
        Ok(GrantedEntry { memory: descriptor, memory_number: memory.number, entry })
    }

    /// An entry that no living thread has.
    fn free_entry(&mut self, process: u32) -> Option<u32> {
        let assignments = self.slots().map(|slot| AssignmentWord::of(&self.threads, slot).read());
        let used: BTreeSet<_> = assignments
            .filter(|assignment| u32::from(assignment.process) == process)
            .map(|assignment| u32::from(assignment.entry))
            .collect();
        let memory = self.processes.get_mut(&process)?;
        let mut entries = (memory.latest + 1..wire::IN_BAND_ENTRIES).chain(1..=memory.latest);
        memory.latest = entries.find(|entry| !used.contains(entry))?;
        Some(memory.latest)
    }

    /// The address of the kernel's code that is a site of a process. `None`: it has no such site.
    pub fn site_address(&self, client: &InBandClient, site: u32) -> Option<u64> {
        let (process, _) = self.processes.iter().find(|(_, memory)| client.owns(memory))?;
        if !self.is_unchanged(client) {
            return None;
        }
        let is_site = |key: &wire::in_band_site_key| {
            let found = self.tables.sites.lookup(key.as_bytes(), MapFlags::ANY);
            key.process == *process
                && matches!(found, Ok(Some(number)) if number == site.to_ne_bytes())
        };
        let keys = self.tables.sites.keys();
        let mut keys = keys.filter_map(|key| wire::in_band_site_key::read_from_bytes(&key).ok());
        keys.find(is_site).map(|key| key.address)
    }

    /// The slots that have a thread.
    fn slots(&self) -> impl Iterator<Item = u32> {
        // Slots from this one on have never been used.
        let end = field!(self.header, 0, next_thread).read().min(self.threads.entries());
        (1..end).filter(|slot| field!(self.threads, *slot, task).read() != 0)
    }

    /// The slot of the first thread of the session whose number in this PID namespace is wanted.
    fn slot_of(&self, is_wanted: impl Fn(u32) -> bool) -> OrUnavailable<u32> {
        let mut reason = Unavailable::NotGated;
        for slot in self.slots() {
            if !is_wanted(field!(self.threads, slot, visible_pid).read()) {
                continue;
            }
            let thread = self.threads.read(slot);
            let session = u32::from(thread.session);
            let is_gated = thread.task != 0 && thread.mask & wire::LENS != 0;
            if is_gated && session == self.session {
                return Ok(slot);
            }
            let owner = self.sessions.read(session);
            if session != 0
                && owner.used != 0
                && process::is_own_pid_namespace(owner.owner_namespace)
            {
                reason = Unavailable::OtherSession;
            }
        }
        Err(reason)
    }

    fn add_process(&mut self, client: &InBandClient) -> OrUnavailable<u32> {
        let memory = match self.spare.take() {
            Some(memory) => memory,
            None => match self.new_memory() {
                Err(Unavailable::TooManyProcesses) => {
                    self.remove_ended()?;
                    self.new_memory()?
                }
                memory => memory?,
            },
        };
        let (client, number) = (client.clone(), memory.process);
        self.processes.insert(number, ProcessMemory { client, memory, latest: 0 });
        Ok(number)
    }

    fn new_memory(&mut self) -> OrUnavailable<NumberedMemory> {
        let map = new_memory()?;
        let number = map.info().doing("finding memory for in-band records")?.info.id;
        let _lock = Lock::take()?;
        let is_free = |number: &u32| self.tables.owners.read(*number).session == 0;
        let process = (1..wire::IN_BAND_PROCESSES).find(is_free);
        let process = process.ok_or(Unavailable::TooManyProcesses)?;
        self.tables
            .memory
            .update(&process.to_ne_bytes(), &map.as_fd().as_raw_fd().to_ne_bytes(), MapFlags::ANY)
            .doing("giving a process memory for in-band records")?;
        self.tables.owners.write(process, wire::in_band_owner { session: self.session, sites: 0 });
        Ok(NumberedMemory { process, map, number })
    }

    /// Frees the memory of programs that have ended, and makes that of the next process. Both take
    /// the kernel some time, so this is called when no request waits.
    pub fn tend(&mut self) -> Result<()> {
        if self.is_closed {
            return Ok(());
        }
        self.remove_ended()?;
        if self.spare.is_none() {
            // If all numbers are in use, the next request fails and gets the reason.
            self.spare = self.new_memory().ok();
        }
        Ok(())
    }

    fn remove_ended(&mut self) -> Result<()> {
        let ended: Vec<_> = self
            .processes
            .iter()
            .filter(|(_, memory)| self.has_ended(&memory.client))
            .map(|(number, _)| *number)
            .collect();
        if !ended.is_empty() {
            let _lock = Lock::take()?;
            self.tables.remove(&self.threads, &ended);
            self.processes.retain(|number, _| !ended.contains(number));
        }
        Ok(())
    }

    /// Whether the process has ended, or has requested records for a later program.
    fn has_ended(&self, client: &InBandClient) -> bool {
        let is_later = |other: &ProcessMemory| {
            other.client.pid() == client.pid() && other.client.image > client.image
        };
        !client.process.lives() || self.processes.values().any(is_later)
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
        let mut slots = Vec::new();
        for slot in 1..threads.entries() {
            let word = AssignmentWord::of(threads, slot);
            let now = word.read();
            if now.process != 0 && is_removed(u32::from(now.process)) {
                word.exchange(now, Assignment { process: 0, entry: 0 });
                slots.push(slot);
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_replaces_its_token_only() {
        let none = Assignment { process: 0, entry: 0 };
        let (token, own) =
            (Assignment { process: 0, entry: 515 }, Assignment { process: 7, entry: 256 });
        // The byte beside is the gate's.
        let memory = AtomicU32::new(u32::from_ne_bytes([0, 0, 0, 9]));
        let word = AssignmentWord(&memory);
        assert!(word.exchange(none, token) && word.read() == token);
        assert!(!word.exchange(none, own), "another token is there");
        assert!(word.exchange(token, own) && word.read() == own);
        assert_eq!(memory.load(Ordering::SeqCst).to_ne_bytes(), [0, 1, 7, 9]);
        // The gate has cleared the token.
        memory.store(0, Ordering::SeqCst);
        assert!(!word.exchange(token, own) && word.read() == none);
    }
}
