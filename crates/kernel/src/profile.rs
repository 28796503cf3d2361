//! A program's profile in the kernel, read and changed while the gate uses it (`struct guard_profile`).

use std::collections::BTreeMap;
use std::ops::BitOrAssign;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libbpf_rs::{MapFlags, MapHandle, MapType};

use crate::error::{Doing, Result};
use crate::mapping::{Mapping, atomic_field};
use crate::wire;

/// pH's profile of one program.
pub struct Profile {
    mapping: Mapping<wire::guard_profile>,
    more: Vec<Mapping<wire::guard_more>>,
}

/// A profile's contents, by its own symbols: 1 is the first of `calls`, 127 any call after the first 126.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// One of [`wire::guard_state`].
    pub state: u32,
    /// Call slots in the order in which they were first made; none: a number that two processors took at once.
    pub calls: Vec<Option<u32>>,
    pub pairs: Vec<Pair>,
    pub windows: Vec<Window>,
    pub trained: u64,
    pub changed_at: u64,
    pub anomalies: u64,
    /// All calls since the profile was made.
    pub made: u64,
}

/// Which calls were seen how many calls before which: a bit for each distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    pub current: u8,
    pub earlier: u8,
    pub learned: u8,
    pub normal: u8,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// The oldest first.
    pub calls: Vec<u8>,
    pub learned: bool,
    pub normal: bool,
}

/// A window's symbols, the oldest first.
pub fn symbols(window: u64) -> Vec<u8> {
    let places = (0..wire::GUARD_LOOKAHEAD_MAX).rev();
    let symbol = |place| (window >> (wire::GUARD_SYMBOL_BITS * place)) as u8 & wire::GUARD_OTHER as u8;
    places.map(symbol).skip_while(|symbol| *symbol == 0).collect()
}

/// Entries of which something is known, by their keys: one that two processors have learned at once may be there twice.
fn each_once<K: Ord, B: BitOrAssign + Default + PartialEq>(
    entries: impl Iterator<Item = (K, B)>,
) -> impl Iterator<Item = (K, B)> {
    let mut all: BTreeMap<K, B> = BTreeMap::new();
    for (key, bits) in entries.filter(|(_, bits)| *bits != B::default()) {
        *all.entry(key).or_default() |= bits;
    }
    all.into_iter()
}

/// As in bpf/guard.bpf.h.
const GOLDEN_32: u32 = 0x9e37_79b1;
const GOLDEN_64: u64 = 0x9e37_79b9_7f4a_7c15;

/// A map with one entry, which user space can map.
pub fn new_map<T: Copy>(name: &str) -> Result<MapHandle> {
    let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        map_flags: libbpf_rs::libbpf_sys::BPF_F_MMAPABLE,
        ..Default::default()
    };
    MapHandle::create(MapType::Array, Some(name), size_of::<u32>() as u32, size_of::<T>() as u32, 1, &options)
        .doing("making a program's profile")
}

impl Profile {
    pub fn new(mapping: Mapping<wire::guard_profile>, more: Vec<Mapping<wire::guard_more>>) -> Self {
        Self { mapping, more }
    }

    /// One of [`wire::guard_state`].
    pub fn state(&self) -> u32 {
        atomic_field!(self.mapping, 0, state).load(Ordering::SeqCst)
    }

    /// How often it froze.
    pub fn freezings(&self) -> u32 {
        atomic_field!(self.mapping, 0, freezings).load(Ordering::SeqCst)
    }

    /// How often training data was forgotten, or normal data set.
    pub fn forgettings(&self) -> u32 {
        atomic_field!(self.mapping, 0, forgettings).load(Ordering::SeqCst)
    }

    /// Windows that were not learned for want of room.
    pub fn unlearned(&self) -> u64 {
        let place = self.mapping.entry(0);
        // SAFETY: an aligned field of the mapping.
        unsafe { (&raw const (*place).unlearned).read_volatile() }
    }

    /// Adds room for windows, at a free place of `more_windows`; false: it has all that it may have.
    pub fn make_room(&mut self, more_windows: &impl libbpf_rs::MapCore, place: u32) -> Result<bool> {
        let Some(free) = self.mapping.read(0).more.iter().position(|place| *place == 0) else {
            return Ok(false);
        };
        let map = new_map::<wire::guard_more>("tollgate_more")?;
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&map));
        more_windows
            .update(&place.to_ne_bytes(), &descriptor.to_ne_bytes(), MapFlags::ANY)
            .doing("making a profile larger")?;
        self.more.push(Mapping::new(&map, 1)?);
        let first = self.mapping.entry(0);
        // SAFETY: an aligned field of the mapped entry, which only its one owner writes.
        unsafe {
            (&raw mut (*first).more[free]).write_volatile(place);
            (&raw mut (*first).unlearned).write_volatile(0);
        }
        Ok(true)
    }

    /// A copy; what the gate writes meanwhile may be of different moments.
    pub fn read(&self) -> Box<wire::guard_profile> {
        Box::new(self.mapping.read(0))
    }

    fn pairs(&self) -> impl Iterator<Item = &AtomicU32> {
        let first = self.mapping.entry(0);
        // SAFETY: the array is within the mapping, and both sides change its entries as a whole.
        (0..wire::GUARD_PAIRS as usize).map(move |index| unsafe {
            AtomicU32::from_ptr((&raw mut (*first).pairs).cast::<u32>().add(index))
        })
    }

    fn windows(&self) -> impl Iterator<Item = &AtomicU64> {
        let first = self.mapping.entry(0);
        // SAFETY: as above.
        let own = (0..wire::GUARD_WINDOWS as usize).map(move |index| unsafe {
            AtomicU64::from_ptr((&raw mut (*first).windows).cast::<u64>().add(index))
        });
        let more = self.more.iter().flat_map(|more| {
            let first = more.entry(0);
            // SAFETY: as above.
            (0..wire::GUARD_MORE as usize).map(move |index| unsafe {
                AtomicU64::from_ptr((&raw mut (*first).windows).cast::<u64>().add(index))
            })
        });
        own.chain(more)
    }

    /// It could not learn something, and may have more room.
    pub fn wants_room(&self) -> bool {
        self.unlearned() > 0 && self.more.len() < wire::GUARD_MORE_TIMES as usize
    }

    /// How many windows there is room for; above three quarters of the places a search becomes long.
    pub fn room_for_windows(&self) -> usize {
        (wire::GUARD_WINDOWS as usize + self.more.len() * wire::GUARD_MORE as usize) / 4 * 3
    }

    /// Kernel memory for it: maps are of whole pages.
    pub fn bytes(&self) -> usize {
        const PAGE: usize = 4096;
        size_of::<wire::guard_profile>().next_multiple_of(PAGE)
            + self.more.len() * size_of::<wire::guard_more>().next_multiple_of(PAGE)
    }

    /// As when it was made.
    pub(crate) fn start_anew(&self) {
        self.mapping.write(0, wire::guard_profile::default());
    }

    /// Knows nothing, as when it was made, but keeps its room.
    pub fn empty(&self) {
        let wire::guard_profile { more, is_spared, calls, freezings, forgettings, .. } = self.mapping.read(0);
        self.mapping.write(
            0,
            wire::guard_profile { more, is_spared, calls, freezings, forgettings, ..Default::default() },
        );
        for more in &self.more {
            more.write(0, wire::guard_more::default());
        }
    }

    /// All that it knows.
    pub fn contents(&self) -> Contents {
        let profile = self.read();
        let mut calls = vec![None; wire::GUARD_OTHER as usize - 1];
        for (call, symbol) in (0..).zip(profile.symbol_of) {
            if let Some(place) = usize::from(symbol).checked_sub(1).and_then(|place| calls.get_mut(place)) {
                *place = Some(call);
            }
        }
        calls.truncate(profile.symbols as usize);
        let pair = |(key, bits): (u32, u16)| Pair {
            current: (key >> wire::GUARD_SYMBOL_BITS) as u8,
            earlier: (key & wire::GUARD_OTHER) as u8,
            learned: bits as u8,
            normal: (bits >> wire::GUARD_PAIR_NORMAL_SHIFT) as u8,
        };
        let window = |(key, bits): (u64, u32)| Window {
            calls: symbols(key),
            learned: bits & wire::GUARD_WINDOW_LEARNED != 0,
            normal: bits & wire::GUARD_WINDOW_NORMAL != 0,
        };
        let pairs = self.pairs().map(|pair| pair.load(Ordering::Relaxed));
        let pairs = pairs.map(|entry| (entry >> wire::GUARD_PAIR_KEY_SHIFT, entry as u16));
        let windows = self.windows().map(|window| window.load(Ordering::Relaxed));
        let known = wire::GUARD_WINDOW_LEARNED | wire::GUARD_WINDOW_NORMAL;
        let windows = windows.map(|entry| (entry >> wire::GUARD_WINDOW_KEY_SHIFT, entry as u32 & known));
        Contents {
            state: profile.state,
            calls,
            pairs: each_once(pairs).map(pair).collect(),
            windows: each_once(windows).map(window).collect(),
            trained: profile.trained,
            changed_at: profile.changed_at,
            anomalies: profile.anomalies,
            made: profile.calls,
        }
    }

    /// Adds what is known of the program from before, while it runs. Returns for how many pairs and windows there was
    /// no room.
    pub fn add(&self, contents: &Contents) -> usize {
        let symbols: Vec<_> =
            contents.calls.iter().map(|call| call.map_or(0, |call| self.symbol(call))).collect();
        let own = |symbol: u8| match u32::from(symbol) {
            wire::GUARD_OTHER => wire::GUARD_OTHER,
            symbol => symbols.get(symbol as usize - 1).copied().unwrap_or(0),
        };
        let mut unfit = 0;
        for pair in &contents.pairs {
            let key = own(pair.current) << wire::GUARD_SYMBOL_BITS | own(pair.earlier);
            let bits = u32::from(pair.learned) | u32::from(pair.normal) << wire::GUARD_PAIR_NORMAL_SHIFT;
            unfit += usize::from(!self.add_pair(key, bits));
        }
        for window in &contents.windows {
            let key = window
                .calls
                .iter()
                .fold(0, |key, symbol| key << wire::GUARD_SYMBOL_BITS | u64::from(own(*symbol)));
            let bit = |is_set: bool, bit: u32| if is_set { u64::from(bit) } else { 0 };
            let bits = bit(window.learned, wire::GUARD_WINDOW_LEARNED)
                | bit(window.normal, wire::GUARD_WINDOW_NORMAL);
            unfit += usize::from(!self.add_window(key, bits));
        }
        self.start_counting_from(contents);
        atomic_field!(self.mapping, 0, state).store(contents.state, Ordering::SeqCst);
        self.forget_recent();
        unfit
    }

    /// As `take_symbol` of the kernel side.
    fn symbol(&self, call: u32) -> u32 {
        let first = self.mapping.entry(0);
        let shift = call % 4 * 8;
        // SAFETY: four aligned bytes of the array, which both sides change as one word.
        let word = unsafe {
            AtomicU32::from_ptr((&raw mut (*first).symbol_of).cast::<u32>().add(call as usize / 4))
        };
        let given = |word: u32| word >> shift & 0xff;
        if given(word.load(Ordering::SeqCst)) != 0 {
            return given(word.load(Ordering::SeqCst));
        }
        let new = (atomic_field!(self.mapping, 0, symbols).fetch_add(1, Ordering::SeqCst) + 1)
            .min(wire::GUARD_OTHER);
        let put = |old: u32| (given(old) == 0).then_some(old | new << shift);
        match word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, put) {
            Ok(_) => new,
            Err(old) => given(old),
        }
    }

    fn add_pair(&self, key: u32, bits: u32) -> bool {
        let pairs: Vec<_> = self.pairs().collect();
        let first = (key.wrapping_mul(GOLDEN_32) >> (32 - wire::GUARD_PAIRS_LOG2)) as usize;
        let places = || (0..wire::GUARD_PROBES as usize).map(|n| pairs[(first + n) % pairs.len()]);
        let is_own = |entry: u32| entry >> wire::GUARD_PAIR_KEY_SHIFT == key;
        let add = |entry: u32| is_own(entry).then_some(entry | bits);
        let claim = |entry: u32| (entry & 0xffff == 0).then_some(key << wire::GUARD_PAIR_KEY_SHIFT | bits);
        places().any(|place| place.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).is_ok())
            || places().any(|place| place.fetch_update(Ordering::SeqCst, Ordering::SeqCst, claim).is_ok())
    }

    fn add_window(&self, key: u64, bits: u64) -> bool {
        let product = key.wrapping_mul(GOLDEN_64);
        let windows: Vec<_> = self.windows().collect();
        let (own, more) = windows.split_at(wire::GUARD_WINDOWS as usize);
        let tables = std::iter::once(own).chain(more.chunks(wire::GUARD_MORE as usize));
        let mut shift = u64::BITS;
        let mut places = Vec::new();
        for table in tables {
            shift -= table.len().ilog2();
            let first = (product >> shift) as usize;
            places.extend((0..wire::GUARD_PROBES as usize).map(|n| table[(first + n) % table.len()]));
        }
        let is_own = |entry: u64| entry >> wire::GUARD_WINDOW_KEY_SHIFT == key;
        let add = |entry: u64| is_own(entry).then_some(entry | bits);
        let claim = |entry: u64| (entry & 3 == 0).then_some(key << wire::GUARD_WINDOW_KEY_SHIFT | bits);
        places.iter().any(|place| place.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).is_ok())
            || places
                .iter()
                .any(|place| place.fetch_update(Ordering::SeqCst, Ordering::SeqCst, claim).is_ok())
    }

    /// What was taken as known may not be normal.
    fn forget_recent(&self) {
        atomic_field!(self.mapping, 0, forgettings).fetch_add(1, Ordering::SeqCst);
        let place = self.mapping.entry(0);
        // SAFETY: aligned words of the mapped entry, each changed as a whole.
        unsafe { (&raw mut (*place).recent).write_volatile([0; wire::GUARD_RECENT as usize]) };
    }

    fn start_counting_from(&self, contents: &Contents) {
        let place = self.mapping.entry(0);
        // SAFETY: aligned fields of the mapped entry, which the gate adds to by atomic operations.
        unsafe {
            (&raw mut (*place).trained).write_volatile(contents.trained);
            (&raw mut (*place).changed_at).write_volatile(contents.changed_at);
            (&raw mut (*place).anomalies).write_volatile(contents.anomalies);
        }
    }

    /// Its processes are only observed from now on.
    pub fn spare(&self) {
        atomic_field!(self.mapping, 0, is_spared).store(1, Ordering::SeqCst);
    }

    pub fn is_spared(&self) -> bool {
        atomic_field!(self.mapping, 0, is_spared).load(Ordering::SeqCst) != 0
    }

    /// What was learned is normal from now on.
    pub fn normalize(&self) {
        let (learned, shift) = (wire::GUARD_PAIR_LEARNED, wire::GUARD_PAIR_NORMAL_SHIFT);
        for pair in self.pairs() {
            let _ = pair.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
                Some(old & !(learned << shift) | (old & learned) << shift)
            });
        }
        let (learned, normal) = (u64::from(wire::GUARD_WINDOW_LEARNED), u64::from(wire::GUARD_WINDOW_NORMAL));
        for window in self.windows() {
            let _ = window.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
                Some(if old & learned != 0 { old | normal } else { old & !normal })
            });
        }
        self.start_counting_from(&Contents::default());
        self.forget_recent();
        atomic_field!(self.mapping, 0, state).store(wire::GUARD_NORMAL, Ordering::SeqCst);
    }

    /// What it does now is to become normal: it learns until it freezes again (pH's `stop_normal`).
    pub fn tolerize(&self) {
        atomic_field!(self.mapping, 0, state).store(wire::GUARD_TRAINING, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_processors_have_learned_at_once_is_there_once() {
        let entries = [(7, 0b01), (3, 0), (5, 0b10), (7, 0b10), (7, 0)];
        assert_eq!(each_once(entries.into_iter()).collect::<Vec<_>>(), [(5, 0b10), (7, 0b11)]);
    }
}
