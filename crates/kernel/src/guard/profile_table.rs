//! The programs that have a profile, and the empty profiles that wait for new programs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::atomic::{AtomicI32, Ordering};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use zerocopy::{FromBytes, IntoBytes as _};

use crate::cpus;
use crate::error::{ErrorContext, Result};
use crate::gate::{Gate, Lock};
use crate::guard::profile::{KernelProfile, new_map};
use crate::mapped_array::{MappedArray, atomic_field, field};
use crate::wire;

/// The number of empty profiles that wait for new programs.
const READY_PROFILES: i32 = wire::GUARD_READY_PROFILES as i32;
/// With fewer than this, more are made: before the programs of any user lack them.
const MIN_READY_PROFILES: i32 =
    (wire::GUARD_READY_FOR_OTHERS + wire::GUARD_READY_PROFILES) as i32 / 2;

/// The profiles of a gate's programs, in profile slots. Slot 0 belongs to no program.
pub struct ProfileTable<'a> {
    gate: &'a Gate,
}

impl<'a> ProfileTable<'a> {
    /// The profiles of this gate, which all sessions share.
    pub fn new(gate: &'a Gate) -> Self {
        Self { gate }
    }

    fn map(&self, name: &str) -> &'a MapHandle {
        self.gate.maps.get(name)
    }

    /// The lowest free slot, from this one on, of a map that contains maps.
    fn free_slot(&self, map: &str, from: u32) -> Option<u32> {
        let map = self.map(map);
        let is_free =
            |slot: &u32| !matches!(map.lookup(&slot.to_ne_bytes(), MapFlags::ANY), Ok(Some(_)));
        (from..wire::GUARD_PROFILES).find(is_free)
    }

    /// Puts new profiles into these slots. The kernel waits for all running BPF programs at each
    /// update, so all slots are filled by one update if possible.
    fn create_profiles(&self, slots: &[u32]) -> Result<()> {
        let new = |_: &u32| new_map::<wire::guard_profile>("tollgate_profile");
        let maps: Vec<_> = slots.iter().map(new).collect::<Result<_>>()?;
        let keys: Vec<_> = slots.iter().map(|slot| slot.to_ne_bytes()).collect();
        let values: Vec<_> = maps.iter().map(|map| map.as_fd().as_raw_fd().to_ne_bytes()).collect();
        let (profiles, count) = (self.map("guard_profiles"), slots.len() as u32);
        let any = MapFlags::ANY;
        if profiles.update_batch(&keys.concat(), &values.concat(), count, any, any).is_ok() {
            return Ok(());
        }
        let mut each = keys.iter().zip(&values);
        each.try_for_each(|(key, value)| profiles.update(key, value, any))
            .doing("making profiles of programs")
    }

    /// Makes `count` new profiles in free slots, or fewer if all slots are in use.
    fn alloc_profile_slots(&self, count: usize) -> Result<Vec<u32>> {
        let mut slots = Vec::new();
        while slots.len() < count
            && let Some(slot) =
                self.free_slot("guard_profiles", slots.last().map_or(1, |last| last + 1))
        {
            slots.push(slot);
        }
        if !slots.is_empty() {
            self.create_profiles(&slots)?;
        }
        Ok(slots)
    }

    fn enqueue_profile(&self, slot: u32) -> Result<()> {
        self.map("guard_ready_profiles")
            .update(&[], &slot.to_ne_bytes(), MapFlags::ANY)
            .doing("storing an empty profile for new programs")?;
        self.ready_count().fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn ready_count(&self) -> &AtomicI32 {
        atomic_field!(self.gate.header, 0, ready_profiles)
    }

    /// Whether so few empty profiles wait for new programs that more are to be made.
    pub fn needs_profiles(&self) -> bool {
        self.ready_count().load(Ordering::SeqCst) < MIN_READY_PROFILES
    }

    /// Makes empty profiles for programs that start from now on. If all slots are in use, there are
    /// fewer than there should be.
    pub fn make_profiles(&self, _lock: &Lock) -> Result<()> {
        let missing = READY_PROFILES - self.ready_count().load(Ordering::SeqCst);
        let slots = self.alloc_profile_slots(missing.max(0) as usize)?;
        slots.into_iter().try_for_each(|slot| self.enqueue_profile(slot))
    }

    /// Assigns a new profile to each of these programs, which have none yet. Returns the slots of
    /// the profiles. If all slots are in use, there are fewer slots than programs.
    pub fn assign_profiles(
        &self,
        _lock: &Lock,
        programs: &[wire::guard_program],
    ) -> Result<Vec<u32>> {
        let slots = self.alloc_profile_slots(programs.len())?;
        for (program, slot) in programs.iter().zip(&slots) {
            self.insert_program_key(program, *slot)?;
        }
        Ok(slots)
    }

    fn insert_program_key(&self, program: &wire::guard_program, slot: u32) -> Result<()> {
        let programs = self.map("guard_programs");
        let mut key = *program;
        if key.execution != 0 {
            // Another execution may get the same address.
            let _ = programs.delete(key.as_bytes());
            key.execution = slot.into();
        }
        programs
            .update(key.as_bytes(), &slot.to_ne_bytes(), MapFlags::ANY)
            .doing("assigning a profile to a program")
    }

    /// After the program in this slot was identified: if its file may change unseen, the next
    /// execution is identified anew.
    pub fn settle(&self, _lock: &Lock, program: &wire::guard_program, slot: u32) -> Result<()> {
        match program.execution {
            0 => Ok(()),
            _ => self.insert_program_key(program, slot),
        }
    }

    /// If most entries for programs are in use, removes all but one entry of each profile, and all
    /// entries of programs that are not selected. A program gets a removed entry again when it
    /// starts.
    pub fn prune_program_keys(&self) -> Result<()> {
        let programs = self.map("guard_programs");
        if programs.keys().count() < programs.max_entries() as usize / 4 * 3 {
            return Ok(());
        }
        let _lock = Lock::take()?;
        let keys: Vec<_> = programs.keys().collect();
        let mut seen = BTreeSet::from([wire::GUARD_PROFILE_UNSELECTED.to_ne_bytes().to_vec()]);
        for key in keys {
            let slot = programs.lookup(&key, MapFlags::ANY).doing("finding a program")?;
            if slot.is_some_and(|slot| !seen.insert(slot)) {
                programs.delete(&key).doing("removing a program's entry")?;
            }
        }
        Ok(())
    }

    /// Assigns a profile to a program in all scopes in which the program has no entry of its own.
    pub fn insert_any_scope_key(
        &self,
        _lock: &Lock,
        program: &wire::guard_program,
        slot: u32,
    ) -> Result<()> {
        let any = wire::guard_program { scope: wire::IDENTITY_ANY.into(), ..*program };
        self.insert_program_key(&any, slot)
    }

    /// The slots of the profiles that threads use now.
    pub fn profiles_in_use(&self) -> BTreeSet<u32> {
        let threads = &self.gate.threads;
        let threads = (1..threads.entries()).map(|slot| threads.read(slot));
        threads
            .filter(|thread| thread.task != 0)
            .map(|thread| thread.guard.profile_slot.into())
            .collect()
    }

    /// Frees those of the profiles that no thread uses, and returns how many calls were made with
    /// each. A profile stays as it is if a thread has begun to use it.
    pub fn retire_profiles(
        &self,
        _lock: &Lock,
        slots: &BTreeSet<u32>,
    ) -> Result<BTreeMap<u32, u64>> {
        let programs = self.map("guard_programs");
        let mut removed = Vec::new();
        for key in programs.keys() {
            let found = programs.lookup(&key, MapFlags::ANY).doing("finding a program")?;
            let slot = found.and_then(|slot| u32::read_from_bytes(&slot).ok());
            if let Some(slot) = slot.filter(|slot| slots.contains(slot)) {
                programs.delete(&key).doing("removing a program's entry")?;
                removed.push((key, slot));
            }
        }
        // After this, every thread that has found the slot in a removed entry has recorded the
        // slot.
        cpus::wait_for_all();
        let in_use = self.profiles_in_use();
        for (key, slot) in removed.iter().filter(|(_, slot)| in_use.contains(slot)) {
            programs
                .update(key, &slot.to_ne_bytes(), MapFlags::ANY)
                .doing("restoring a program's entry")?;
        }
        let mut retired = BTreeMap::new();
        for slot in slots.difference(&in_use) {
            retired.insert(*slot, self.profile(*slot)?.read().calls);
            self.recycle(*slot)?;
        }
        Ok(retired)
    }

    /// The users whose programs have many of the profiles that they may have, by the numbers that
    /// [`KernelProfile::user`] returns.
    pub fn crowding_users(&self) -> Result<BTreeSet<u32>> {
        /// From here on, unused profiles are freed for further programs of the user.
        const MANY: u64 = wire::GUARD_USER_PROFILES as u64 / 4 * 3;
        let profiles = self.user_profiles()?;
        Ok((0..profiles.entries())
            .filter(|index| profiles.read(*index) >= MANY)
            .map(|index| index + 1)
            .collect())
    }

    fn user_profiles(&self) -> Result<MappedArray<u64>> {
        MappedArray::new(self.map("guard_user_profiles"), wire::GUARD_USERS)
    }

    /// Makes the threads that use a profile begin new windows. This is needed after other data was
    /// loaded into the profile, because its symbols have changed.
    pub fn restart_windows(&self, slot: u32) {
        self.switch_threads_profile(slot, slot);
    }

    fn switch_threads_profile(&self, from: u32, to: u32) {
        let threads = &self.gate.threads;
        for slot in 1..threads.entries() {
            if u32::from(threads.read(slot).guard.profile_slot) == from {
                field!(threads, slot, guard.profile_slot).write(to as u16);
                // The windows consist of the other profile's symbols.
                field!(threads, slot, guard.window).write(0);
                field!(self.gate.guard_threads, slot, interrupted).write(Default::default());
            }
        }
    }

    /// Empties a profile that no thread uses any more, and enqueues it for another program.
    fn recycle(&self, slot: u32) -> Result<()> {
        let profile = self.profile(slot)?;
        for overflow in profile.read().overflow.into_iter().filter(|overflow| *overflow != 0) {
            self.map("guard_overflow_windows")
                .delete(&overflow.to_ne_bytes())
                .doing("releasing a profile")?;
        }
        if let Some(index) = profile.user().checked_sub(1) {
            self.user_profiles()?.whole(index).atomic().fetch_sub(1, Ordering::SeqCst);
        }
        profile.reset();
        self.enqueue_profile(slot)
    }

    fn open_map<T: FromBytes>(&self, map: &str, slot: u32) -> Result<MappedArray<T>> {
        let id =
            self.map(map).lookup(&slot.to_ne_bytes(), MapFlags::ANY).doing("finding a profile")?;
        let id = id.and_then(|id| u32::read_from_bytes(&id).ok());
        let absent = || io::Error::from(io::ErrorKind::NotFound);
        let id = id.ok_or_else(absent).doing(format!("find profile {slot}"))?;
        MappedArray::new(&MapHandle::from_map_id(id).doing("opening a profile")?, 1)
    }

    /// Maps a profile into memory.
    ///
    /// # Errors
    /// If the slot has no profile.
    pub fn profile(&self, slot: u32) -> Result<KernelProfile> {
        let own = self.open_map::<wire::guard_profile>("guard_profiles", slot)?;
        let overflow = own.read(0).overflow.into_iter().filter(|overflow| *overflow != 0);
        let overflow = overflow
            .map(|overflow| self.open_map("guard_overflow_windows", overflow))
            .collect::<Result<_>>()?;
        Ok(KernelProfile::new(own, overflow))
    }

    /// Makes `program`, whose threads use the profile in slot `from`, use the profile in slot `to`
    /// from now on, because user space has found that both are the same program. If `to` is
    /// [`wire::GUARD_PROFILE_UNSELECTED`], the program is not guarded any more. Frees the profile
    /// `from`, and discards what was learned with it. Returns how many calls were made with it.
    pub fn share_profile(
        &self,
        _lock: &Lock,
        program: &wire::guard_program,
        from: u32,
        to: u32,
    ) -> Result<u64> {
        self.insert_program_key(program, to)?;
        self.switch_threads_profile(from, to);
        cpus::wait_for_all();
        let calls = self.profile(from)?.read().calls;
        self.recycle(from)?;
        Ok(calls)
    }

    /// Adds room for a program's windows. Returns `false` if the profile has all the room that it
    /// may have, or if the table of windows is full.
    pub fn add_overflow(&self, _lock: &Lock, profile: &mut KernelProfile) -> Result<bool> {
        const OVERFLOW: &str = "guard_overflow_windows";
        let Some(slot) = self.free_slot(OVERFLOW, 1) else {
            return Ok(false);
        };
        profile.add_overflow(self.map(OVERFLOW), slot)
    }

    /// Removes the profiles of a session's programs.
    pub(crate) fn drop_profiles(&self, session: u32) {
        let programs = self.map("guard_programs");
        let keys: Vec<_> = programs.keys().collect();
        // Copies of a program share a profile.
        let mut slots = BTreeSet::new();
        for key in keys {
            let program = wire::guard_program::read_from_bytes(&key);
            if !program.is_ok_and(|program| program.session == session) {
                continue;
            }
            let Ok(Some(slot)) = programs.lookup(&key, MapFlags::ANY) else { continue };
            let Ok(slot) = u32::read_from_bytes(&slot) else { continue };
            // If a map refuses this, the slot stays in use as long as the gate exists.
            let _ = programs.delete(&key);
            slots.insert(slot);
        }
        for slot in slots.into_iter().filter(|slot| *slot < wire::GUARD_PROFILES) {
            let _ = self.recycle(slot);
        }
    }
}
