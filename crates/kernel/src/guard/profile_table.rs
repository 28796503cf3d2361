//! The programs that have a profile, and the empty profiles that wait for new programs.

use std::collections::BTreeSet;
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

/// The number of empty profiles that wait for new programs: a shell script starts some dozens of
/// programs within the tenth of a second after which more are made.
const READY_PROFILES: i32 = 64;

impl Gate {
    fn has_map(&self, maps: &str, place: u32) -> bool {
        matches!(self.maps.get(maps).lookup(&place.to_ne_bytes(), MapFlags::ANY), Ok(Some(_)))
    }

    fn free_profile_slot(&self, maps: &str, from: u32) -> Option<u32> {
        (from..wire::GUARD_PROFILES).find(|place| !self.has_map(maps, *place))
    }

    /// Puts new profiles into these slots. All at once, because the kernel waits for all running
    /// BPF programs each time.
    fn create_profiles(&self, places: &[u32]) -> Result<()> {
        let new = |_: &u32| new_map::<wire::guard_profile>("tollgate_profile");
        let maps: Vec<_> = places.iter().map(new).collect::<Result<_>>()?;
        let keys: Vec<_> = places.iter().map(|place| place.to_ne_bytes()).collect();
        let values: Vec<_> = maps.iter().map(|map| map.as_fd().as_raw_fd().to_ne_bytes()).collect();
        let (profiles, count) = (self.maps.get("guard_profiles"), places.len() as u32);
        let any = MapFlags::ANY;
        if profiles.update_batch(&keys.concat(), &values.concat(), count, any, any).is_ok() {
            return Ok(());
        }
        let mut each = keys.iter().zip(&values);
        each.try_for_each(|(key, value)| profiles.update(key, value, any))
            .doing("making profiles of programs")
    }

    /// Makes `count` new profiles in free slots; fewer, if all slots are taken.
    fn alloc_profile_slots(&self, count: usize) -> Result<Vec<u32>> {
        let mut places = Vec::new();
        while places.len() < count
            && let Some(place) =
                self.free_profile_slot("guard_profiles", places.last().map_or(1, |last| last + 1))
        {
            places.push(place);
        }
        if !places.is_empty() {
            self.create_profiles(&places)?;
        }
        Ok(places)
    }

    fn enqueue_profile(&self, place: u32) -> Result<()> {
        self.maps
            .get("guard_ready_profiles")
            .update(&[], &place.to_ne_bytes(), MapFlags::ANY)
            .doing("storing an empty profile for new programs")?;
        self.ready_count().fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn ready_count(&self) -> &AtomicI32 {
        atomic_field!(self.header, 0, ready_profiles)
    }

    /// Whether so few empty profiles wait for new programs that more are to be made.
    pub fn needs_profiles(&self) -> bool {
        self.ready_count().load(Ordering::SeqCst) < READY_PROFILES / 2
    }

    /// Makes empty profiles for programs that start from now on; fewer than usual if all slots are
    /// taken.
    pub fn make_profiles(&self, _lock: &Lock) -> Result<()> {
        let missing = READY_PROFILES - self.ready_count().load(Ordering::SeqCst);
        let places = self.alloc_profile_slots(missing.max(0) as usize)?;
        places.into_iter().try_for_each(|place| self.enqueue_profile(place))
    }

    /// Assigns a profile to each program that has none yet; to fewer, if all slots are taken.
    pub fn assign_profiles(
        &self,
        _lock: &Lock,
        programs: &[wire::guard_program],
    ) -> Result<Vec<u32>> {
        let places = self.alloc_profile_slots(programs.len())?;
        for (program, place) in programs.iter().zip(&places) {
            self.insert_program_key(program, *place)?;
        }
        Ok(places)
    }

    fn insert_program_key(&self, program: &wire::guard_program, place: u32) -> Result<()> {
        self.maps
            .get("guard_programs")
            .update(program.as_bytes(), &place.to_ne_bytes(), MapFlags::ANY)
            .doing("assigning a profile to a program")
    }

    /// If most entries for programs are in use, removes all but one of each profile. A program that
    /// is the same as another one, or is not selected, gets its entry again.
    pub fn prune_program_keys(&self) -> Result<()> {
        let programs = self.maps.get("guard_programs");
        if programs.keys().count() < programs.max_entries() as usize / 4 * 3 {
            return Ok(());
        }
        let _lock = Lock::take()?;
        let keys: Vec<_> = programs.keys().collect();
        let mut named = BTreeSet::from([wire::GUARD_PROFILE_UNSELECTED.to_ne_bytes().to_vec()]);
        for key in keys {
            let place = programs.lookup(&key, MapFlags::ANY).doing("finding a program")?;
            if place.is_some_and(|place| !named.insert(place)) {
                programs.delete(&key).doing("removing a program's entry")?;
            }
        }
        Ok(())
    }

    /// Gives this profile to the program in each scope without an entry of its own.
    pub fn insert_any_scope_key(
        &self,
        _lock: &Lock,
        program: &wire::guard_program,
        place: u32,
    ) -> Result<()> {
        let any = wire::guard_program { scope: wire::SCOPE_ANY.into(), ..*program };
        self.insert_program_key(&any, place)
    }

    /// The profiles that threads use now.
    pub fn profiles_in_use(&self) -> BTreeSet<u32> {
        let threads = (1..self.threads.entries()).map(|slot| self.threads.read(slot));
        threads
            .filter(|thread| thread.task != 0)
            .map(|thread| thread.guard.profile_slot.into())
            .collect()
    }

    /// Retires a profile that no thread uses; false: a thread began to use it meanwhile.
    pub fn retire_profile(&self, _lock: &Lock, place: u32) -> Result<bool> {
        let programs = self.maps.get("guard_programs");
        let names: Vec<_> = programs
            .keys()
            .filter(|key| {
                let named = programs.lookup(key, MapFlags::ANY);
                named.is_ok_and(|value| value.is_some_and(|value| value == place.to_ne_bytes()))
            })
            .collect();
        for name in &names {
            programs.delete(name).doing("forgetting a program")?;
        }
        // A thread that found it before has recorded it by now.
        cpus::wait_for_all();
        if self.profiles_in_use().contains(&place) {
            for name in &names {
                programs
                    .update(name, &place.to_ne_bytes(), MapFlags::ANY)
                    .doing("naming a program")?;
            }
            return Ok(false);
        }
        self.recycle(place)?;
        Ok(true)
    }

    /// The profile has other contents: threads that use it begin new windows, because its symbols
    /// have changed.
    pub fn restart_windows(&self, profile: u32) {
        self.switch_threads_profile(profile, profile);
    }

    fn switch_threads_profile(&self, from: u32, to: u32) {
        for slot in 1..self.threads.entries() {
            if u32::from(self.threads.read(slot).guard.profile_slot) == from {
                // The windows have other symbols: the thread begins a new one.
                field!(self.threads, slot, guard.profile_slot).write(to as u16);
                field!(self.threads, slot, guard.window).write(0);
                field!(self.guard_threads, slot, interrupted).write(Default::default());
            }
        }
    }

    /// Enqueues a profile that no thread uses any more, empty, for another program.
    fn recycle(&self, place: u32) -> Result<()> {
        let profile = self.profile(place)?;
        for more in profile.read().overflow.into_iter().filter(|more| *more != 0) {
            self.maps
                .get("guard_overflow_windows")
                .delete(&more.to_ne_bytes())
                .doing("releasing a profile")?;
        }
        profile.reset();
        self.enqueue_profile(place)
    }

    fn open_map<T: FromBytes>(&self, maps: &str, place: u32) -> Result<MappedArray<T>> {
        let id = self
            .maps
            .get(maps)
            .lookup(&place.to_ne_bytes(), MapFlags::ANY)
            .doing("finding a profile")?;
        let id = id.and_then(|id| u32::read_from_bytes(&id).ok());
        let absent = || io::Error::from(io::ErrorKind::NotFound);
        let id = id.ok_or_else(absent).doing(format!("find profile {place}"))?;
        MappedArray::new(&MapHandle::from_map_id(id).doing("opening a profile")?, 1)
    }

    pub fn profile(&self, place: u32) -> Result<KernelProfile> {
        let own = self.open_map::<wire::guard_profile>("guard_profiles", place)?;
        let more = own.read(0).overflow.into_iter().filter(|more| *more != 0);
        let more = more
            .map(|more| self.open_map("guard_overflow_windows", more))
            .collect::<Result<_>>()?;
        Ok(KernelProfile::new(own, more))
    }

    /// Two files are the same program, as far as user space knows: the threads of the second one
    /// use the profile of the first from now on, or none if that is
    /// [`wire::GUARD_PROFILE_UNSELECTED`]. Returns how many calls they made before; what was
    /// learned from these is discarded.
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

    /// Adds room for a program's windows; false: it has all that it may have.
    pub fn add_overflow(&self, _lock: &Lock, profile: &mut KernelProfile) -> Result<bool> {
        let Some(place) = self.free_profile_slot("guard_overflow_windows", 1) else {
            return Ok(false);
        };
        profile.add_overflow(self.maps.get("guard_overflow_windows"), place)
    }

    /// Removes the profiles of the session's programs.
    pub(crate) fn drop_profiles(&self, session: u32) {
        let programs = self.maps.get("guard_programs");
        let keys: Vec<_> = programs.keys().collect();
        // Copies of a program share one.
        let mut places = BTreeSet::new();
        for key in keys {
            let program = wire::guard_program::read_from_bytes(&key);
            if !program.is_ok_and(|program| program.session == session) {
                continue;
            }
            let Ok(Some(place)) = programs.lookup(&key, MapFlags::ANY) else { continue };
            let Ok(place) = u32::read_from_bytes(&place) else { continue };
            // Nothing can be done about a map that refuses; the slot goes with the gate.
            let _ = programs.delete(&key);
            places.insert(place);
        }
        for place in places.into_iter().filter(|place| *place < wire::GUARD_PROFILES) {
            let _ = self.recycle(place);
        }
    }
}
