//! The plugins of one hook, one after the other (bpf/plugin.bpf.h): linked and taken out by single stores, so that nobody who is on
//! the way through them misses one of the others.

use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};

use super::hooks::Hook;
use crate::cpus;
use crate::error::{Doing, Error, Result};
use crate::gate::{Gate, Lock};
use crate::mapping::Mapping;
use crate::process;
use crate::session::own_pid_namespace;
use crate::wire::{self, plugin_chain, plugin_slot};

/// That of a hook's plugins for all, whatever session a task is of.
pub const EVERYBODY: u32 = 0;
/// At a time, of one session or of all together.
pub const MOST_LINKED: usize = wire::PLUGINS_LINKED as usize;

/// The gate's maps of programs, in the order of `wire::plugin_hook`.
const GATE_PROGRAMS: [&str; wire::PLUGIN_HOOKS as usize] = [
    "plugin_enters",
    "plugin_exits",
    "plugin_forks",
    "plugin_execs",
    "plugin_ends",
    "plugin_guards",
    "plugin_verdicts",
];

pub struct Chain {
    words: Mapping<plugin_chain>,
    /// Among those that are in the same memory.
    index: u32,
    memory: MapHandle,
    programs: MapHandle,
    /// What the guard has said last, of the gate's.
    verdicts: Option<MapHandle>,
    /// Those that have lists of their own.
    sessions: Range<u32>,
}

/// A plugin's at a hook, until dropped.
pub struct Place {
    chain: Arc<Chain>,
    number: u32,
    /// `None`: it is on its way out.
    hook: Option<Arc<Hook>>,
}

type Slots = [plugin_slot; wire::PLUGIN_SLOTS as usize + 1];

/// What says who is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pointer {
    First(u32),
    Next(u32),
}

impl Chain {
    pub fn of_gate(gate: &Gate, hook: u32) -> Result<Self> {
        const HANDLE: &str = "opening the plugins of the gate";
        let clone = |name| MapHandle::try_from(gate.maps.get(name)).doing(HANDLE);
        let memory = clone(".bss.plugins")?;
        let programs = clone(GATE_PROGRAMS[hook as usize])?;
        let verdicts = Some(clone(".bss.verdicts")?);
        let words = Mapping::new(&memory, wire::PLUGIN_HOOKS)?;
        Ok(Self { words, index: hook, memory, programs, verdicts, sessions: 1..wire::SESSIONS })
    }

    /// For a hook outside of the gate.
    pub fn new() -> Result<Self> {
        let flags = libbpf_rs::libbpf_sys::BPF_F_MMAPABLE;
        let memory =
            super::memory(MapType::Array, "plugin_chain", 4, size_of::<plugin_chain>() as u32, 1, flags)?;
        let programs = super::memory(MapType::ProgArray, "plugin_slots", 4, 4, wire::PLUGIN_SLOTS + 1, 0)?;
        Ok(Self {
            words: Mapping::new(&memory, 1)?,
            index: 0,
            memory,
            programs,
            verdicts: None,
            sessions: 0..1,
        })
    }

    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    pub fn programs(&self) -> BorrowedFd<'_> {
        self.programs.as_fd()
    }

    pub fn verdicts(&self) -> BorrowedFd<'_> {
        self.verdicts.as_ref().expect("only hooks of the gate ask for it").as_fd()
    }

    /// Where in the memory the first plugin for all is named.
    pub fn first_offset(&self) -> u32 {
        self.offset() + offset_of!(plugin_chain, first) as u32
    }

    fn offset(&self) -> u32 {
        self.index * size_of::<plugin_chain>() as u32
    }

    fn slots(&self) -> Slots {
        self.words.read(self.index).slots
    }

    fn write_slot(&self, number: u32, slot: plugin_slot) {
        let chain = self.words.entry(self.index);
        // SAFETY: a slot of the mapped chain, which only Tollgate processes write, one at a time (Lock).
        unsafe { (&raw mut (*chain).slots[number as usize]).write_volatile(slot) };
    }

    fn store(&self, pointer: Pointer, value: u8) {
        let chain = self.words.entry(self.index);
        // SAFETY: a byte of the mapped chain, which is read and written as a whole.
        unsafe {
            match pointer {
                Pointer::First(session) => (&raw mut (*chain).first[session as usize]).write_volatile(value),
                Pointer::Next(number) => (&raw mut (*chain).next[number as usize]).write_volatile(value),
            }
        }
    }

    /// The number of a place for a plugin of a session's tasks, or of everybody's.
    fn reserve(&self, session: u32, priority: i32) -> Result<u32> {
        let _lock = Lock::of_plugins()?;
        self.sweep();
        let slots = self.slots();
        let number = (1..=wire::PLUGIN_SLOTS).find(|number| slots[*number as usize].owner_pid == 0);
        let number = number.ok_or(Error::NoPlaceAtHook(wire::PLUGIN_SLOTS))?;
        let since = slots.iter().map(|slot| slot.since).max().unwrap_or(0) + 1;
        let slot = plugin_slot {
            session,
            priority,
            owner_pid: std::process::id(),
            owner_namespace: own_pid_namespace(),
            since,
            is_linked: 0,
            unused: 0,
        };
        self.write_slot(number, slot);
        Ok(number)
    }

    /// Takes out what belongs to processes that were killed.
    fn sweep(&self) {
        let slots = self.slots();
        let left = (1..=wire::PLUGIN_SLOTS).filter(|number| is_left(&slots[*number as usize]));
        for number in left.collect::<Vec<_>>() {
            self.take_out(number);
            self.delete(number);
            self.write_slot(number, plugin_slot::default());
        }
    }

    fn take_out(&self, number: u32) {
        if self.slots()[number as usize].is_linked != 0 {
            self.change(|slots| slots[number as usize].is_linked = 0);
            // Who read its number before still comes by it, and must find it, or would miss those behind.
            cpus::wait_for_all();
        }
    }

    fn delete(&self, number: u32) {
        // What was never put there is not there to be deleted.
        let _ = self.programs.delete(&number.to_ne_bytes());
    }

    /// Links some and takes others out, and says how long that took: first what nobody comes by yet, then what makes the difference.
    fn change(&self, change: impl FnOnce(&mut Slots)) -> Duration {
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
        // Whoever is in one that was taken out goes on to those that are linked.
        for number in (1..=wire::PLUGIN_SLOTS).filter(|number| after[*number as usize].is_linked == 0) {
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
        let chain = self.words.read(self.index);
        match pointer {
            Pointer::First(session) => chain.first[session as usize],
            Pointer::Next(number) => chain.next[number as usize],
        }
    }
}

/// Somebody's who is not there any more; of other PID namespaces nobody can say.
fn is_left(slot: &plugin_slot) -> bool {
    slot.owner_pid != 0
        && slot.owner_pid != std::process::id()
        && slot.owner_namespace == own_pid_namespace()
        && !process::exists(slot.owner_pid)
}

/// Of all chains of the gate: whoever looks after a session calls it a few times a second.
pub fn sweep(gate: &Gate) -> Result<()> {
    let has_left = |hook: &u32| gate.plugin_chains.read(*hook).slots.iter().any(is_left);
    for hook in (0..wire::PLUGIN_HOOKS).filter(has_left) {
        let chain = Chain::of_gate(gate, hook)?;
        let _lock = Lock::of_plugins()?;
        chain.sweep();
    }
    Ok(())
}

/// Those that are linked of a session, in their order.
fn linked(slots: &Slots, session: u32) -> Vec<u8> {
    let is_its = |number: &usize| slots[*number].is_linked != 0 && slots[*number].session == session;
    let mut numbers: Vec<_> = (1..slots.len()).filter(is_its).collect();
    numbers.sort_by_key(|number| (slots[*number].priority, slots[*number].since));
    numbers.into_iter().map(|number| number as u8).collect()
}

/// Who is first and next: a session's own ones come before everybody's.
fn pointers(slots: &Slots, sessions: &Range<u32>) -> Vec<(Pointer, u8)> {
    let everybody = linked(slots, EVERYBODY);
    let first_of_all = everybody.first().copied().unwrap_or(0);
    let mut pointers = Vec::new();
    let mut list = |list: &[u8], end: u8| {
        for (place, number) in list.iter().enumerate() {
            let next = list.get(place + 1).copied().unwrap_or(end);
            pointers.push((Pointer::Next((*number).into()), next));
        }
    };
    list(&everybody, 0);
    let mut firsts = Vec::new();
    for session in sessions.clone() {
        let own = if session == EVERYBODY { Vec::new() } else { linked(slots, session) };
        list(&own, first_of_all);
        firsts.push((Pointer::First(session), own.first().copied().unwrap_or(first_of_all)));
    }
    pointers.extend(firsts);
    pointers
}

impl Place {
    /// Of a plugin of a session's tasks, or of everybody's.
    pub fn reserve(hook: &Arc<Hook>, session: u32, priority: i32) -> Result<Self> {
        let number = hook.chain.reserve(session, priority)?;
        Ok(Self { chain: Arc::clone(&hook.chain), number, hook: Some(Arc::clone(hook)) })
    }

    /// Of one that was taken out: what is attached for it may go before it does.
    pub fn detach(&mut self) {
        self.hook = None;
    }

    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Where in the chain's memory its next one is named.
    pub fn next_offset(&self) -> u32 {
        self.chain.offset() + offset_of!(plugin_chain, next) as u32 + self.number
    }

    /// From now on the hook has the program, but nobody comes by it.
    pub fn put(&self, program: BorrowedFd<'_>) -> Result<()> {
        let number = self.number.to_ne_bytes();
        let descriptor = program.as_raw_fd().to_ne_bytes();
        self.chain.programs.update(&number, &descriptor, MapFlags::ANY).doing("putting a plugin at its hook")
    }

    /// When nobody can be on the way there; one that is linked still is left. What is there then does nothing: to delete one of the gate's, the kernel waits for one more
    /// grace period, and so does who puts one there meanwhile (v6.18 bpf_arch_poke_desc_update).
    pub fn empty(&self, nothing: Result<OwnedFd>) {
        if !self.is_linked() && nothing.and_then(|program| self.put(program.as_fd())).is_err() {
            self.chain.delete(self.number);
        }
    }

    /// See [`Hook::is_lost`].
    pub fn is_lost(&self) -> bool {
        self.hook.as_ref().is_some_and(|hook| hook.is_lost())
    }

    pub fn is_linked(&self) -> bool {
        self.chain.slots()[self.number as usize].is_linked != 0
    }

    /// From now on it runs. In place of another one, of which nobody misses a call.
    pub fn link(&self, instead_of: Option<&Self>) -> Result<Duration> {
        let _lock = Lock::of_plugins()?;
        let (number, slots) = (self.number as usize, self.chain.slots());
        let others = linked(&slots, slots[number].session);
        let is_replaced = instead_of.is_some_and(Self::is_linked);
        if others.len() >= MOST_LINKED && !is_replaced {
            return Err(Error::HookFull(MOST_LINKED));
        }
        Ok(self.chain.change(|slots| {
            if let Some(other) = instead_of {
                slots[other.number as usize].is_linked = 0;
                // It comes where the other one was.
                slots[number].since = slots[other.number as usize].since;
            }
            slots[number].is_linked = 1;
        }))
    }

    /// Nobody comes by it any more, but for those who are on their way there: [`cpus::wait_for_all`].
    pub fn unlink(&self) -> Result<Duration> {
        let _lock = Lock::of_plugins()?;
        Ok(self.chain.change(|slots| slots[self.number as usize].is_linked = 0))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Without the lock, whoever sweeps next takes it out.
        if let Ok(_lock) = Lock::of_plugins() {
            if self.is_linked() {
                self.chain.take_out(self.number);
                self.chain.delete(self.number);
            }
            self.chain.write_slot(self.number, plugin_slot::default());
        }
    }
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

    fn way(slots: &Slots, session: u32) -> Vec<u8> {
        let pointers = pointers(slots, &(1..4));
        let to = |wanted| pointers.iter().find(|(pointer, _)| *pointer == wanted).map_or(0, |(_, to)| *to);
        let mut way = Vec::new();
        let mut at = to(Pointer::First(session));
        while at != 0 {
            way.push(at);
            at = to(Pointer::Next(at.into()));
        }
        way
    }

    #[test]
    fn priority_decides_and_then_who_came_first() {
        let slots = slots(&[(4, 0, 0), (2, 0, -1), (9, 0, 0), (1, 0, 5)]);
        assert_eq!(way(&slots, 3), [2, 4, 9, 1]);
    }

    #[test]
    fn a_sessions_own_come_before_everybodys() {
        let slots = slots(&[(1, 0, -9), (2, 2, 0), (3, 2, -1), (4, 3, 0)]);
        assert_eq!(way(&slots, 1), [1]);
        assert_eq!(way(&slots, 2), [3, 2, 1]);
        assert_eq!(way(&slots, 3), [4, 1]);
    }
}
