//! The chain of plugins at one hook (bpf/plugin/chain.bpf.h). Plugins are linked and unlinked by
//! single stores, so that a thread that runs through the chain misses no other plugin.

use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::sync::atomic::{Ordering, compiler_fence};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};

use super::gate_hooks::GATE_HOOKS;
use super::map::create_map;
use crate::cpus;
use crate::error::{Error, ErrorContext, HookUse, Result};
use crate::gate::{Gate, Lock};
use crate::mapped_array::{Field, MappedArray, field};
use crate::process::{self, own_pid_namespace};
use crate::wire::{self, plugin_chain, plugin_slot};

/// In place of a session's number: the plugin runs for the gated tasks of all sessions.
pub const ALL_SESSIONS: u32 = 0;
/// How many plugins one session can have linked at a hook. The plugins for all tasks count
/// separately.
pub const MAX_LINKED: usize = wire::PLUGINS_LINKED as usize;

/// The session of a plugin, and its position in the chain.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChainOrder {
    /// The number of the session, or [`ALL_SESSIONS`].
    pub session: u32,
    /// Outside of the gate, the plugin runs for the whole machine, even if it has a session.
    pub is_machine_wide: bool,
    /// Plugins with lower priorities run first. Plugins with equal priorities run in the order in
    /// which they were loaded.
    pub priority: i32,
}

/// The plugins at one hook.
pub struct Chain {
    words: MappedArray<plugin_chain>,
    /// The chain's index among those in `memory`.
    index: u32,
    memory: MapHandle,
    programs: MapHandle,
    /// The guard's latest verdicts; only for a chain of the gate.
    verdicts: Option<MapHandle>,
    /// The sessions for which the chain has a first plugin.
    sessions: Range<u32>,
}

/// The slots of a chain. Slot 0 is never used: its number means that there is no plugin.
pub type Slots = [plugin_slot; wire::PLUGIN_SLOTS as usize + 1];

/// An entry of the chain that names the plugin to run next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pointer {
    /// The first plugin of a session.
    First(u32),
    /// The plugin after the one in this slot.
    Next(u32),
}

impl Chain {
    /// The chain at one of the gate's hooks (`wire::plugin_hook`).
    pub fn of_gate(gate: &Gate, hook: u32) -> Result<Self> {
        const HANDLE: &str = "opening the plugins of the gate";
        let clone = |name| MapHandle::try_from(gate.maps.get(name)).doing(HANDLE);
        let memory = clone(".bss.plugins")?;
        let programs = clone(GATE_HOOKS[hook as usize].programs)?;
        let verdicts = Some(clone(".bss.verdicts")?);
        let words = MappedArray::new(&memory, wire::PLUGIN_HOOKS)?;
        Ok(Self { words, index: hook, memory, programs, verdicts, sessions: 1..wire::SESSIONS })
    }

    /// A new chain, for a hook outside of the gate. `sessions` are those for which it has a first
    /// plugin; number 0 is for tasks of no session.
    pub fn new(sessions: Range<u32>) -> Result<Self> {
        let flags = libbpf_rs::libbpf_sys::BPF_F_MMAPABLE;
        // libbpf finds these two by the names that bpf/plugin/entry.bpf.c gives them.
        let memory = create_map(
            MapType::Array,
            ".bss.chain",
            4,
            size_of::<plugin_chain>() as u32,
            1,
            flags,
        )?;
        let programs =
            create_map(MapType::ProgArray, "plugin_slots", 4, 4, wire::PLUGIN_SLOTS + 1, 0)?;
        Ok(Self {
            words: MappedArray::new(&memory, 1)?,
            index: 0,
            memory,
            programs,
            verdicts: None,
            sessions,
        })
    }

    /// The map that contains the chain. In the gate, this map contains the chains of all hooks.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// The map of the programs in the slots, for tail calls.
    pub fn programs(&self) -> BorrowedFd<'_> {
        self.programs.as_fd()
    }

    /// The map with the guard's latest verdict on each processor.
    ///
    /// # Panics
    /// If the chain is outside of the gate.
    pub fn verdicts(&self) -> BorrowedFd<'_> {
        self.verdicts.as_ref().expect("only programs of gate hooks use verdicts").as_fd()
    }

    /// The offset in `memory`, in bytes, of the number of the first plugin for all tasks.
    pub fn first_offset(&self) -> u32 {
        self.offset() + offset_of!(plugin_chain, first) as u32
    }

    fn offset(&self) -> u32 {
        self.index * size_of::<plugin_chain>() as u32
    }

    /// A copy of all slots.
    pub fn slots(&self) -> Slots {
        self.words.read(self.index).slots
    }

    /// Writes a slot. The caller holds the lock of the chains.
    pub fn write_slot(&self, number: u32, slot: plugin_slot) {
        field!(self.words, self.index, slots[number as usize]).write(slot);
    }

    fn store(&self, pointer: Pointer, value: u8) {
        self.pointer(pointer).write(value);
    }

    /// Reserves a slot for a plugin of a session's tasks, or of all tasks. Returns its number.
    pub fn reserve(&self, session: u32, priority: i32) -> Result<u32> {
        let _lock = Lock::take_chain_lock()?;
        self.sweep();
        let slots = self.slots();
        let number = (1..=wire::PLUGIN_SLOTS).find(|number| slots[*number as usize].owner_pid == 0);
        let number = number.ok_or_else(|| {
            let owners = slots[1..].iter().map(|slot| slot.owner_pid).collect();
            Error::NoSlotAtHook(HookUse { owners, ..HookUse::default() })
        })?;
        let since = slots.iter().map(|slot| slot.since).max().unwrap_or(0) + 1;
        let slot = plugin_slot {
            session,
            priority,
            owner_pid: std::process::id(),
            owner_namespace: own_pid_namespace()?,
            since,
            is_linked: 0,
            unused: 0,
        };
        self.write_slot(number, slot);
        Ok(number)
    }

    /// Removes the plugins of processes that were killed. The caller holds the lock of the chains.
    fn sweep(&self) {
        let slots = self.slots();
        let left =
            (1..=wire::PLUGIN_SLOTS).filter(|number| is_owner_dead(&slots[*number as usize]));
        for number in left.collect::<Vec<_>>() {
            self.unlink_slot(number);
            self.delete(number);
            self.write_slot(number, plugin_slot::default());
        }
    }

    /// Unlinks a plugin, and waits until no thread can enter it any more.
    pub fn unlink_slot(&self, number: u32) {
        if self.slots()[number as usize].is_linked != 0 {
            self.change(|slots| slots[number as usize].is_linked = 0);
            // A thread that has already read the plugin's number still enters the plugin. Without
            // the program, that thread would miss the plugins that follow.
            cpus::wait_for_all();
        }
    }

    /// The offset in `memory`, in bytes, of the number of the plugin after this one.
    pub fn next_offset(&self, number: u32) -> u32 {
        self.offset() + offset_of!(plugin_chain, next) as u32 + number
    }

    /// Stores a program in a slot that is not linked yet.
    pub fn set_program(&self, number: u32, program: BorrowedFd<'_>) -> Result<()> {
        self.programs
            .update(&number.to_ne_bytes(), &program.as_raw_fd().to_ne_bytes(), MapFlags::ANY)
            .doing("storing a plugin's program for its hook")
    }

    /// Deletes the program in a slot, if there is one.
    pub fn delete(&self, number: u32) {
        // This fails for a slot that was never filled.
        let _ = self.programs.delete(&number.to_ne_bytes());
    }

    /// Links some plugins and unlinks others. The entries that no thread can read yet are stored
    /// first, then those that take effect. Returns how long it took to store the latter.
    pub fn change(&self, change: impl FnOnce(&mut Slots)) -> Duration {
        let before = self.slots();
        let mut after = before;
        change(&mut after);
        let (mut early, mut late) = (Vec::new(), Vec::new());
        for (pointer, value) in pointers(&after, &self.sessions) {
            match pointer {
                Pointer::Next(number) if before[number as usize].is_linked == 0 => {
                    early.push((pointer, value))
                }
                _ if self.load(pointer) != value => late.push((pointer, value)),
                _ => {}
            }
        }
        // A thread in an unlinked plugin has to continue with a linked one.
        for number in
            (1..=wire::PLUGIN_SLOTS).filter(|number| after[*number as usize].is_linked == 0)
        {
            let mut next = self.load(Pointer::Next(number));
            while next != 0 && after[usize::from(next)].is_linked == 0 {
                next = self.load(Pointer::Next(next.into()));
            }
            if next != self.load(Pointer::Next(number)) {
                late.push((Pointer::Next(number), next));
            }
        }
        early.into_iter().for_each(|(pointer, value)| self.store(pointer, value));
        compiler_fence(Ordering::SeqCst);
        let began = Instant::now();
        late.iter().for_each(|(pointer, value)| self.store(*pointer, *value));
        let took = began.elapsed();
        for number in 1..=wire::PLUGIN_SLOTS {
            let (was, is) = (&before[number as usize], &after[number as usize]);
            if was.is_linked != is.is_linked {
                self.write_slot(number, *is);
            }
        }
        took
    }

    fn load(&self, pointer: Pointer) -> u8 {
        self.pointer(pointer).read()
    }

    fn pointer(&self, pointer: Pointer) -> Field<'_, u8> {
        match pointer {
            Pointer::First(session) => field!(self.words, self.index, first[session as usize]),
            Pointer::Next(number) => field!(self.words, self.index, next[number as usize]),
        }
    }
}

/// Whether the slot's owner has ended. For an owner in another PID namespace this is not known, and
/// the result is `false`.
fn is_owner_dead(slot: &plugin_slot) -> bool {
    slot.owner_pid != 0
        && slot.owner_pid != std::process::id()
        && process::is_own_pid_namespace(slot.owner_namespace)
        && !process::is_alive(slot.owner_pid)
}

/// Removes the plugins of killed processes from all chains of the gate. A process that tends a
/// session calls this a few times a second.
pub fn sweep(gate: &Gate) -> Result<()> {
    let has_dead_owner =
        |hook: &u32| gate.plugin_chains.read(*hook).slots.iter().any(is_owner_dead);
    for hook in (0..wire::PLUGIN_HOOKS).filter(has_dead_owner) {
        let chain = Chain::of_gate(gate, hook)?;
        let _lock = Lock::take_chain_lock()?;
        chain.sweep();
    }
    Ok(())
}

/// The slots of a session's linked plugins, in the order of the chain.
pub fn linked(slots: &Slots, session: u32) -> Vec<u8> {
    let is_in_session =
        |number: &usize| slots[*number].is_linked != 0 && slots[*number].session == session;
    let mut numbers: Vec<_> = (1..slots.len()).filter(is_in_session).collect();
    numbers.sort_by_key(|number| (slots[*number].priority, slots[*number].since));
    numbers.into_iter().map(|number| number as u8).collect()
}

/// The values of all entries. A session's own plugins come before those for all tasks.
fn pointers(slots: &Slots, sessions: &Range<u32>) -> Vec<(Pointer, u8)> {
    let global = linked(slots, ALL_SESSIONS);
    let first_global = global.first().copied().unwrap_or(0);
    let mut pointers = Vec::new();
    let mut list = |list: &[u8], end: u8| {
        for (position, number) in list.iter().enumerate() {
            let next = list.get(position + 1).copied().unwrap_or(end);
            pointers.push((Pointer::Next((*number).into()), next));
        }
    };
    list(&global, 0);
    let mut firsts = Vec::new();
    for session in sessions.clone() {
        let own = if session == ALL_SESSIONS { Vec::new() } else { linked(slots, session) };
        list(&own, first_global);
        firsts.push((Pointer::First(session), own.first().copied().unwrap_or(first_global)));
    }
    pointers.extend(firsts);
    pointers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(of: &[(u32, u32, i32)]) -> Slots {
        let mut slots: Slots = std::array::from_fn(|_| plugin_slot::default());
        for (since, (number, session, priority)) in of.iter().enumerate() {
            slots[*number as usize] = plugin_slot {
                session: *session,
                priority: *priority,
                is_linked: 1,
                since: since as u64,
                ..Default::default()
            };
        }
        slots
    }

    fn order(slots: &Slots, session: u32) -> Vec<u8> {
        let pointers = pointers(slots, &(1..4));
        let to = |wanted| {
            pointers.iter().find(|(pointer, _)| *pointer == wanted).map_or(0, |(_, to)| *to)
        };
        let mut order = Vec::new();
        let mut at = to(Pointer::First(session));
        while at != 0 {
            order.push(at);
            at = to(Pointer::Next(at.into()));
        }
        order
    }

    #[test]
    fn chain_order_by_priority_then_age() {
        let slots = slots(&[(4, 0, 0), (2, 0, -1), (9, 0, 0), (1, 0, 5)]);
        assert_eq!(order(&slots, 3), [2, 4, 9, 1]);
    }

    #[test]
    fn session_plugins_precede_global_ones() {
        let slots = slots(&[(1, 0, -9), (2, 2, 0), (3, 2, -1), (4, 3, 0)]);
        assert_eq!(order(&slots, 1), [1]);
        assert_eq!(order(&slots, 2), [3, 2, 1]);
        assert_eq!(order(&slots, 3), [4, 1]);
    }
}
