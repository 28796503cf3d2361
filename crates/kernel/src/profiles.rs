//! Which programs have a profile, and the empty ones that wait for new programs.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::atomic::{AtomicI32, Ordering};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

use crate::cpus;
use crate::error::{Doing, Result};
use crate::gate::{Gate, Lock};
use crate::mapping::Mapping;
use crate::profile::{Profile, new_map};
use crate::session::as_bytes;
use crate::wire;

/// How many empty profiles wait for new programs: a shell script begins some dozens within the tenth of a second
/// after which more are made.
const READY: i32 = 64;

impl Gate {
    fn has_map(&self, maps: &str, place: u32) -> bool {
        matches!(self.maps.get(maps).lookup(&place.to_ne_bytes(), MapFlags::ANY), Ok(Some(_)))
    }

    fn free_place(&self, maps: &str, from: u32) -> Option<u32> {
        (from..wire::GUARD_PROFILES).find(|place| !self.has_map(maps, *place))
    }

    /// Puts new profiles at these places. At once, as the kernel waits for all running programs each time.
    fn new_profiles(&self, places: &[u32]) -> Result<()> {
        let new = |_: &u32| new_map::<wire::guard_profile>("tollgate_profile");
        let maps: Vec<_> = places.iter().map(new).collect::<Result<_>>()?;
        let keys: Vec<_> = places.iter().map(|place| place.to_ne_bytes()).collect();
        let values: Vec<_> = maps.iter().map(|map| map.as_fd().as_raw_fd().to_ne_bytes()).collect();
        let (profiles, count) = (self.maps.get("profiles"), places.len() as u32);
        let any = MapFlags::ANY;
        if profiles.update_batch(&keys.concat(), &values.concat(), count, any, any).is_ok() {
            return Ok(());
        }
        let mut each = keys.iter().zip(&values);
        each.try_for_each(|(key, value)| profiles.update(key, value, any))
            .doing("making profiles of programs")
    }

    /// New profiles at so many free places; fewer, if all are taken.
    fn new_places(&self, count: usize) -> Result<Vec<u32>> {
        let mut places = Vec::new();
        while places.len() < count
            && let Some(place) = self.free_place("profiles", places.last().map_or(1, |last| last + 1))
        {
            places.push(place);
        }
        if !places.is_empty() {
            self.new_profiles(&places)?;
        }
        Ok(places)
    }

    fn offer_profile(&self, place: u32) -> Result<()> {
        self.maps
            .get("ready_profiles")
            .update(&[], &place.to_ne_bytes(), MapFlags::ANY)
            .doing("offering a profile to new programs")?;
        self.ready_count().fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn ready_count(&self) -> &AtomicI32 {
        let header = self.header.entry(0);
        // SAFETY: an aligned field of the mapping, which both sides change by atomic operations.
        unsafe { AtomicI32::from_ptr(&raw mut (*header).ready_profiles) }
    }

    /// Whether so few empty profiles wait for new programs that more are to be made.
    pub fn wants_profiles(&self) -> bool {
        self.ready_count().load(Ordering::SeqCst) < READY / 2
    }

    /// Makes empty profiles for programs that begin from now on; fewer than usual if all places are taken.
    pub fn make_profiles(&self, _lock: &Lock) -> Result<()> {
        let missing = READY - self.ready_count().load(Ordering::SeqCst);
        let places = self.new_places(missing.max(0) as usize)?;
        places.into_iter().try_for_each(|place| self.offer_profile(place))
    }

    /// Gives programs that are not known yet a profile each; fewer, if all places are taken.
    pub fn give_profiles(&self, _lock: &Lock, programs: &[wire::guard_program]) -> Result<Vec<u32>> {
        let places = self.new_places(programs.len())?;
        for (program, place) in programs.iter().zip(&places) {
            self.name_program(program, *place)?;
        }
        Ok(places)
    }

    fn name_program(&self, program: &wire::guard_program, place: u32) -> Result<()> {
        self.maps
            .get("programs")
            .update(as_bytes(program), &place.to_ne_bytes(), MapFlags::ANY)
            .doing("naming a program")
    }

    /// If most names that there may be are in use, all go but one of each profile: a program that is met by
    /// another one, or is not chosen, is so again.
    pub fn forget_names(&self) -> Result<()> {
        let programs = self.maps.get("programs");
        if programs.keys().count() < programs.max_entries() as usize / 4 * 3 {
            return Ok(());
        }
        let _lock = Lock::take()?;
        let keys: Vec<_> = programs.keys().collect();
        let mut named = BTreeSet::from([wire::GUARD_NOT_CHOSEN.to_ne_bytes().to_vec()]);
        for key in keys {
            let place = programs.lookup(&key, MapFlags::ANY).doing("finding a program")?;
            if place.is_some_and(|place| !named.insert(place)) {
                programs.delete(&key).doing("forgetting a program")?;
            }
        }
        Ok(())
    }

    /// Whatever the scope that this program is met in next, if it has no name with that, it uses this profile.
    pub fn name_any_scope(&self, _lock: &Lock, program: &wire::guard_program, place: u32) -> Result<()> {
        let any = wire::guard_program { scope: wire::GUARD_ANY_SCOPE.into(), ..*program };
        self.name_program(&any, place)
    }

    /// The profiles that threads use now.
    pub fn profiles_in_use(&self) -> BTreeSet<u32> {
        let threads = (1..self.threads.entries()).map(|slot| self.threads.read(slot));
        threads.filter(|thread| thread.task != 0).map(|thread| thread.profile.into()).collect()
    }

    /// Takes a profile back that no thread uses; false: one began to use it meanwhile.
    pub fn retire_profile(&self, _lock: &Lock, place: u32) -> Result<bool> {
        let programs = self.maps.get("programs");
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
        // Who found it before has noted it by then.
        cpus::wait_for_all();
        if self.profiles_in_use().contains(&place) {
            for name in &names {
                programs.update(name, &place.to_ne_bytes(), MapFlags::ANY).doing("naming a program")?;
            }
            return Ok(false);
        }
        self.recycle(place)?;
        Ok(true)
    }

    /// The profile has other contents: threads that use it begin new windows, as its symbols have changed.
    pub fn begin_windows_anew(&self, profile: u32) {
        self.move_threads(profile, profile);
    }

    fn move_threads(&self, from: u32, to: u32) {
        for slot in 1..self.threads.entries() {
            let place = self.threads.entry(slot);
            if u32::from(self.threads.read(slot).profile) == from {
                // SAFETY: aligned fields of the mapped entry, each written as a whole. Its windows are of other
                // symbols: it begins a new one.
                unsafe {
                    (&raw mut (*place).profile).write_volatile(to as u16);
                    (&raw mut (*place).window).write_volatile(0);
                    (&raw mut (*place).interrupted).write_volatile(Default::default());
                }
            }
        }
    }

    /// Nobody uses the profile any more: it waits, empty, for another program.
    fn recycle(&self, place: u32) -> Result<()> {
        let profile = self.profile(place)?;
        for more in profile.read().more.into_iter().filter(|more| *more != 0) {
            self.maps.get("more_windows").delete(&more.to_ne_bytes()).doing("giving a profile back")?;
        }
        profile.start_anew();
        self.offer_profile(place)
    }

    fn open_map<T: Copy>(&self, maps: &str, place: u32) -> Result<Mapping<T>> {
        let id =
            self.maps.get(maps).lookup(&place.to_ne_bytes(), MapFlags::ANY).doing("finding a profile")?;
        let id = id.and_then(|id| id.try_into().ok()).map_or(0, u32::from_ne_bytes);
        Mapping::new(&MapHandle::from_map_id(id).doing("opening a profile")?, 1)
    }

    pub fn profile(&self, place: u32) -> Result<Profile> {
        let own = self.open_map::<wire::guard_profile>("profiles", place)?;
        let more = own.read(0).more.into_iter().filter(|more| *more != 0);
        let more = more.map(|more| self.open_map("more_windows", more)).collect::<Result<_>>()?;
        Ok(Profile::new(own, more))
    }

    /// Two files are the same program, by what user space knows of them: the second's threads use the first's profile
    /// from now on. Or none, where that is [`wire::GUARD_NOT_CHOSEN`]. Returns how many calls they made before; what was learned of them is forgotten.
    pub fn share_profile(
        &self,
        _lock: &Lock,
        program: &wire::guard_program,
        from: u32,
        to: u32,
    ) -> Result<u64> {
        self.name_program(program, to)?;
        self.move_threads(from, to);
        cpus::wait_for_all();
        let calls = self.profile(from)?.read().calls;
        self.recycle(from)?;
        Ok(calls)
    }

    /// More room for a program's windows; false: it has all that it may have.
    pub fn make_room(&self, _lock: &Lock, profile: &mut Profile) -> Result<bool> {
        let Some(place) = self.free_place("more_windows", 1) else { return Ok(false) };
        profile.make_room(self.maps.get("more_windows"), place)
    }

    /// The session's programs have no profiles any more.
    pub(crate) fn drop_profiles(&self, session: u32) {
        let programs = self.maps.get("programs");
        let keys: Vec<_> = programs.keys().collect();
        // Copies of a program share one.
        let mut places = BTreeSet::new();
        for key in keys {
            let of_session = key[size_of::<wire::guard_program>() - 4..] == session.to_ne_bytes();
            let Ok(Some(place)) = programs.lookup(&key, MapFlags::ANY) else { continue };
            if !of_session {
                continue;
            }
            // Nothing can be done about a map that refuses; its place is gone with the gate.
            let _ = programs.delete(&key);
            places.insert(u32::from_ne_bytes(place.try_into().unwrap_or_default()));
        }
        for place in places.into_iter().filter(|place| *place < wire::GUARD_PROFILES) {
            let _ = self.recycle(place);
        }
    }
}
