//! A program's profile in the kernel, read and changed while the gate uses it (`struct
//! guard_profile`).

use std::collections::BTreeMap;
use std::ops::BitOrAssign;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use identity::hash::GOLDEN_64;
use libbpf_rs::{MapFlags, MapHandle, MapType};
use zerocopy::FromBytes;

use crate::error::{ErrorContext, Result};
use crate::mapped_array::{Field, MappedArray, atomic_field, field};
use crate::wire;

/// pH's profile of one program.
pub struct KernelProfile {
    mapping: MappedArray<wire::guard_profile>,
    more: Vec<MappedArray<wire::guard_overflow>>,
}

/// A profile's contents, by its own symbols: 1 is the first of `calls`, 127 any call after the
/// first 126.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// One of [`wire::guard_state`].
    pub state: u32,
    /// Call indices in the order of their first use; none: two processors assigned a symbol at
    /// once.
    pub calls: Vec<Option<u32>>,
    pub pairs: Vec<ProfilePair>,
    pub windows: Vec<ProfileWindow>,
    pub trained: u64,
    pub changed_at: u64,
    pub anomalies: u64,
    /// All calls since the profile was made.
    pub made: u64,
}

/// A call that was seen before another one: a bit for each distance between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProfilePair {
    pub current: u8,
    pub earlier: u8,
    pub learned: u8,
    pub normal: u8,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileWindow {
    /// The oldest first.
    pub calls: Vec<u8>,
    pub learned: bool,
    pub normal: bool,
}

/// A window's symbols, the oldest first.
pub fn window_symbols(window: u64) -> Vec<u8> {
    let places = (0..wire::GUARD_LOOKAHEAD_MAX).rev();
    let symbol = |place| {
        (window >> (wire::GUARD_SYMBOL_BITS * place)) as u8 & wire::GUARD_SYMBOL_OTHER as u8
    };
    places.map(symbol).skip_while(|symbol| *symbol == 0).collect()
}

/// Merges entries with content by their keys: a key that two processors have learned at once may be
/// there twice.
fn merged_by_key<K: Ord, B: BitOrAssign + Default + PartialEq>(
    entries: impl Iterator<Item = (K, B)>,
) -> impl Iterator<Item = (K, B)> {
    let mut all: BTreeMap<K, B> = BTreeMap::new();
    for (key, bits) in entries.filter(|(_, bits)| *bits != B::default()) {
        *all.entry(key).or_default() |= bits;
    }
    all.into_iter()
}

/// As in bpf/guard/tables.bpf.h.
const GOLDEN_32: u32 = 0x9e37_79b1;

/// A map with one entry, which user space can map.
pub fn new_map<T: FromBytes>(name: &str) -> Result<MapHandle> {
    let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        map_flags: libbpf_rs::libbpf_sys::BPF_F_MMAPABLE,
        ..Default::default()
    };
    MapHandle::create(
        MapType::Array,
        Some(name),
        size_of::<u32>() as u32,
        size_of::<T>() as u32,
        1,
        &options,
    )
    .doing("making a program's profile")
}

impl KernelProfile {
    pub fn new(
        mapping: MappedArray<wire::guard_profile>,
        more: Vec<MappedArray<wire::guard_overflow>>,
    ) -> Self {
        Self { mapping, more }
    }

    /// One of [`wire::guard_state`].
    pub fn state(&self) -> u32 {
        atomic_field!(self.mapping, 0, state).load(Ordering::SeqCst)
    }

    /// How often it froze.
    pub fn freeze_count(&self) -> u32 {
        atomic_field!(self.mapping, 0, freezes_count).load(Ordering::SeqCst)
    }

    /// How often training data was wiped, or normal data set.
    pub fn wipe_count(&self) -> u32 {
        atomic_field!(self.mapping, 0, wipes).load(Ordering::SeqCst)
    }

    /// Windows that were not learned for lack of room.
    pub fn unlearned(&self) -> u64 {
        field!(self.mapping, 0, unlearned).read()
    }

    /// Adds room for windows, in a free slot of `guard_overflow_windows`; false: it has all that it
    /// may have.
    pub fn add_overflow(
        &mut self,
        more_windows: &impl libbpf_rs::MapCore,
        place: u32,
    ) -> Result<bool> {
        let Some(free) = self.mapping.read(0).overflow.iter().position(|place| *place == 0) else {
            return Ok(false);
        };
        let map = new_map::<wire::guard_overflow>("tollgate_more")?;
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&map));
        more_windows
            .update(&place.to_ne_bytes(), &descriptor.to_ne_bytes(), MapFlags::ANY)
            .doing("making a profile larger")?;
        self.more.push(MappedArray::new(&map, 1)?);
        // Only its one owner writes these.
        field!(self.mapping, 0, overflow[free]).write(place);
        field!(self.mapping, 0, unlearned).write(0);
        Ok(true)
    }

    /// A copy; what the gate writes meanwhile may be of different moments.
    pub fn read(&self) -> Box<wire::guard_profile> {
        Box::new(self.mapping.read(0))
    }

    fn pairs(&self) -> impl Iterator<Item = &AtomicU32> {
        field!(self.mapping, 0, pairs).elements().map(Field::atomic)
    }

    fn windows(&self) -> impl Iterator<Item = &AtomicU64> {
        let own = field!(self.mapping, 0, windows).elements();
        let more = self.more.iter().flat_map(|more| field!(more, 0, windows).elements());
        own.chain(more).map(Field::atomic)
    }

    /// Whether something was not learned, and the profile may have more room.
    pub fn needs_overflow(&self) -> bool {
        self.unlearned() > 0 && self.more.len() < wire::GUARD_OVERFLOW_MAX as usize
    }

    /// How many windows the profile has room for: with more than three quarters of the entries in
    /// use, a search becomes long.
    pub fn window_capacity(&self) -> usize {
        (wire::GUARD_WINDOWS as usize + self.more.len() * wire::GUARD_OVERFLOW as usize) / 4 * 3
    }

    /// The profile's kernel memory: maps consist of whole pages.
    pub fn bytes(&self) -> usize {
        const PAGE: usize = 4096;
        size_of::<wire::guard_profile>().next_multiple_of(PAGE)
            + self.more.len() * size_of::<wire::guard_overflow>().next_multiple_of(PAGE)
    }

    /// Resets the profile to what it was when it was made.
    pub(crate) fn reset(&self) {
        self.mapping.write(0, wire::guard_profile::default());
    }

    /// Empties the profile, but keeps its room.
    pub fn empty(&self) {
        let wire::guard_profile { overflow, is_exempt, calls, freezes_count, wipes, .. } =
            self.mapping.read(0);
        self.mapping.write(
            0,
            wire::guard_profile {
                overflow,
                is_exempt,
                calls,
                freezes_count,
                wipes,
                ..Default::default()
            },
        );
        for more in &self.more {
            more.write(0, wire::guard_overflow::default());
        }
    }

    /// All that the profile has learned.
    pub fn contents(&self) -> Contents {
        let profile = self.read();
        let mut calls = vec![None; wire::GUARD_SYMBOL_OTHER as usize - 1];
        for (call, symbol) in (0..).zip(profile.symbol_of) {
            if let Some(place) =
                usize::from(symbol).checked_sub(1).and_then(|place| calls.get_mut(place))
            {
                *place = Some(call);
            }
        }
        calls.truncate(profile.symbols as usize);
        let pair = |(key, bits): (u32, u16)| ProfilePair {
            current: (key >> wire::GUARD_SYMBOL_BITS) as u8,
            earlier: (key & wire::GUARD_SYMBOL_OTHER) as u8,
            learned: bits as u8,
            normal: (bits >> wire::GUARD_PAIR_NORMAL_SHIFT) as u8,
        };
        let window = |(key, bits): (u64, u32)| ProfileWindow {
            calls: window_symbols(key),
            learned: bits & wire::GUARD_WINDOW_LEARNED != 0,
            normal: bits & wire::GUARD_WINDOW_NORMAL != 0,
        };
        let pairs = self.pairs().map(|pair| pair.load(Ordering::Relaxed));
        let pairs = pairs.map(|entry| (entry >> wire::GUARD_PAIR_KEY_SHIFT, entry as u16));
        let windows = self.windows().map(|window| window.load(Ordering::Relaxed));
        let known = wire::GUARD_WINDOW_LEARNED | wire::GUARD_WINDOW_NORMAL;
        let windows =
            windows.map(|entry| (entry >> wire::GUARD_WINDOW_KEY_SHIFT, entry as u32 & known));
        Contents {
            state: profile.state,
            calls,
            pairs: merged_by_key(pairs).map(pair).collect(),
            windows: merged_by_key(windows).map(window).collect(),
            trained: profile.trained,
            changed_at: profile.changed_at,
            anomalies: profile.anomalies,
            made: profile.calls,
        }
    }

    /// Adds stored data to the profile, while its program runs. Returns for how many pairs and
    /// windows there was no room.
    pub fn add(&self, contents: &Contents) -> usize {
        let symbols: Vec<_> =
            contents.calls.iter().map(|call| call.map_or(0, |call| self.symbol(call))).collect();
        let own = |symbol: u8| match u32::from(symbol) {
            wire::GUARD_SYMBOL_OTHER => wire::GUARD_SYMBOL_OTHER,
            symbol => symbols.get(symbol as usize - 1).copied().unwrap_or(0),
        };
        let mut unfit = 0;
        for pair in &contents.pairs {
            let key = own(pair.current) << wire::GUARD_SYMBOL_BITS | own(pair.earlier);
            let bits =
                u32::from(pair.learned) | u32::from(pair.normal) << wire::GUARD_PAIR_NORMAL_SHIFT;
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
        self.init_counters(contents);
        atomic_field!(self.mapping, 0, state).store(contents.state, Ordering::SeqCst);
        self.clear_known_cache();
        unfit
    }

    /// As `take_symbol` on the kernel side.
    fn symbol(&self, call: u32) -> u32 {
        let shift = call % 4 * 8;
        // Both sides change four symbols as one word.
        let word = field!(self.mapping, 0, symbol_of).at::<u32>(call as usize / 4 * 4).atomic();
        let given = |word: u32| word >> shift & 0xff;
        if given(word.load(Ordering::SeqCst)) != 0 {
            return given(word.load(Ordering::SeqCst));
        }
        let new = (atomic_field!(self.mapping, 0, symbols).fetch_add(1, Ordering::SeqCst) + 1)
            .min(wire::GUARD_SYMBOL_OTHER);
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
        let claim =
            |entry: u32| (entry & 0xffff == 0).then_some(key << wire::GUARD_PAIR_KEY_SHIFT | bits);
        places().any(|place| place.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).is_ok())
            || places()
                .any(|place| place.fetch_update(Ordering::SeqCst, Ordering::SeqCst, claim).is_ok())
    }

    fn add_window(&self, key: u64, bits: u64) -> bool {
        let product = key.wrapping_mul(GOLDEN_64);
        let windows: Vec<_> = self.windows().collect();
        let (own, more) = windows.split_at(wire::GUARD_WINDOWS as usize);
        let tables = std::iter::once(own).chain(more.chunks(wire::GUARD_OVERFLOW as usize));
        let mut shift = u64::BITS;
        let mut places = Vec::new();
        for table in tables {
            shift -= table.len().ilog2();
            let first = (product >> shift) as usize;
            places
                .extend((0..wire::GUARD_PROBES as usize).map(|n| table[(first + n) % table.len()]));
        }
        let is_own = |entry: u64| entry >> wire::GUARD_WINDOW_KEY_SHIFT == key;
        let add = |entry: u64| is_own(entry).then_some(entry | bits);
        let claim =
            |entry: u64| (entry & 3 == 0).then_some(key << wire::GUARD_WINDOW_KEY_SHIFT | bits);
        places
            .iter()
            .any(|place| place.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).is_ok())
            || places
                .iter()
                .any(|place| place.fetch_update(Ordering::SeqCst, Ordering::SeqCst, claim).is_ok())
    }

    /// Windows in the cache may not be normal now.
    fn clear_known_cache(&self) {
        atomic_field!(self.mapping, 0, wipes).fetch_add(1, Ordering::SeqCst);
        field!(self.mapping, 0, known_cache).write([0; wire::GUARD_CACHE as usize]);
    }

    fn init_counters(&self, contents: &Contents) {
        // The gate adds to these by atomic operations.
        field!(self.mapping, 0, trained).write(contents.trained);
        field!(self.mapping, 0, changed_at).write(contents.changed_at);
        field!(self.mapping, 0, anomalies).write(contents.anomalies);
    }

    /// From now on its processes are only observed.
    pub fn set_exempt(&self) {
        atomic_field!(self.mapping, 0, is_exempt).store(1, Ordering::SeqCst);
    }

    pub fn is_exempt(&self) -> bool {
        atomic_field!(self.mapping, 0, is_exempt).load(Ordering::SeqCst) != 0
    }

    /// From now on, what was learned is normal.
    pub fn normalize(&self) {
        let (learned, shift) = (wire::GUARD_PAIR_LEARNED, wire::GUARD_PAIR_NORMAL_SHIFT);
        for pair in self.pairs() {
            let _ = pair.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
                Some(old & !(learned << shift) | (old & learned) << shift)
            });
        }
        let (learned, normal) =
            (u64::from(wire::GUARD_WINDOW_LEARNED), u64::from(wire::GUARD_WINDOW_NORMAL));
        for window in self.windows() {
            let _ = window.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
                Some(if old & learned != 0 { old | normal } else { old & !normal })
            });
        }
        self.init_counters(&Contents::default());
        self.clear_known_cache();
        atomic_field!(self.mapping, 0, state).store(wire::GUARD_NORMAL, Ordering::SeqCst);
    }

    /// The program's present calls are to become normal: it trains until it freezes again (pH's
    /// `stop_normal`).
    pub fn tolerize(&self) {
        atomic_field!(self.mapping, 0, state).store(wire::GUARD_TRAINING, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_inserts_are_merged() {
        let entries = [(7, 0b01), (3, 0), (5, 0b10), (7, 0b10), (7, 0)];
        assert_eq!(merged_by_key(entries.into_iter()).collect::<Vec<_>>(), [(5, 0b10), (7, 0b11)]);
    }
}
