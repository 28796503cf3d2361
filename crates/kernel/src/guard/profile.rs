//! A program's profile in the kernel (`struct guard_profile`), which is read and changed while the
//! gate uses it.

use std::collections::BTreeMap;
use std::ops::BitOrAssign;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use identity::hash::GOLDEN_64;
use libbpf_rs::{MapFlags, MapHandle};
use zerocopy::FromBytes;

use crate::error::{ErrorContext, Result};
use crate::mapped_array::{Field, MappedArray, atomic_field, field, new_mappable};
use crate::wire;

/// pH's profile of one program, mapped into memory.
pub struct KernelProfile {
    /// One entry.
    mapping: MappedArray<wire::guard_profile>,
    /// More room for windows, in arrays of one entry each.
    overflow: Vec<MappedArray<wire::guard_overflow>>,
}

/// What a profile has learned. A call is identified by the profile's own symbol for it: 1 is the
/// first of `calls`, and 127 is any call after the first 126.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// One of [`wire::guard_state`].
    pub state: u32,
    /// Call indices by symbol, in the order of their first use. A symbol has no call if two
    /// processors assigned symbols to the same call at the same time.
    pub calls: Vec<Option<u32>>,
    /// Each pair of calls once.
    pub pairs: Vec<ProfilePair>,
    /// Each window once.
    pub windows: Vec<ProfileWindow>,
    /// Calls since training began.
    pub trained: u64,
    /// The value of `trained` at the latest change of the training data.
    pub changed_at: u64,
    /// Anomalous calls since the program became normal.
    pub anomalies: u64,
    /// All calls since the profile was made.
    pub made: u64,
}

/// A lookahead pair: a call that was made before another one. In the bits, position `n` stands for
/// a distance of `n + 1` calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProfilePair {
    /// The symbol of the later call.
    pub current: u8,
    /// The symbol of the earlier call.
    pub earlier: u8,
    /// Bits of the distances that are in the training data.
    pub learned: u8,
    /// Bits of the distances that are normal.
    pub normal: u8,
}

/// A window of successive calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileWindow {
    /// Symbols, the oldest call first.
    pub calls: Vec<u8>,
    /// Whether the window is in the training data.
    pub learned: bool,
    /// Whether the window is normal.
    pub normal: bool,
}

/// The symbols of a thread's window or of a window's key, the oldest call first.
pub fn window_symbols(window: u64) -> Vec<u8> {
    let positions = (0..wire::GUARD_LOOKAHEAD_MAX).rev();
    let symbol = |position| {
        (window >> (wire::GUARD_SYMBOL_BITS * position)) as u8 & wire::GUARD_SYMBOL_OTHER as u8
    };
    positions.map(symbol).skip_while(|symbol| *symbol == 0).collect()
}

/// Merges entries of the same key, and drops empty ones. A key that two processors learned at the
/// same time may have two entries.
fn merged_by_key<K: Ord, B: BitOrAssign + Default + PartialEq>(
    entries: impl Iterator<Item = (K, B)>,
) -> impl Iterator<Item = (K, B)> {
    let mut all: BTreeMap<K, B> = BTreeMap::new();
    for (key, bits) in entries.filter(|(_, bits)| *bits != B::default()) {
        *all.entry(key).or_default() |= bits;
    }
    all.into_iter()
}

/// The factor of the hash of pairs, as in bpf/guard/tables.bpf.h.
const GOLDEN_32: u32 = 0x9e37_79b1;

/// Makes a BPF array with one entry, which user space can map into memory.
pub(crate) fn new_map<T: FromBytes>(name: &str) -> Result<MapHandle> {
    new_mappable(name, size_of::<T>() as u32, 1).doing("making a program's profile")
}

impl KernelProfile {
    /// A profile with the arrays that are its additional room for windows, in the order of
    /// `guard_profile.overflow`. Each array has one entry.
    pub fn new(
        mapping: MappedArray<wire::guard_profile>,
        overflow: Vec<MappedArray<wire::guard_overflow>>,
    ) -> Self {
        Self { mapping, overflow }
    }

    /// One of [`wire::guard_state`].
    pub fn state(&self) -> u32 {
        atomic_field!(self.mapping, 0, state).load(Ordering::SeqCst)
    }

    /// How often training has frozen the profile.
    pub fn freeze_count(&self) -> u32 {
        atomic_field!(self.mapping, 0, freezes_count).load(Ordering::SeqCst)
    }

    /// How often training data was wiped or normal data changed.
    pub fn wipe_count(&self) -> u32 {
        atomic_field!(self.mapping, 0, wipes).load(Ordering::SeqCst)
    }

    /// How often a window was not learned for lack of room.
    pub fn unlearned(&self) -> u64 {
        field!(self.mapping, 0, unlearned).read()
    }

    /// Adds room for windows, in a free slot of the map `guard_overflow_windows`. Returns `false`
    /// if the profile has all the room that it may have.
    pub fn add_overflow(
        &mut self,
        overflow_windows: &impl libbpf_rs::MapCore,
        slot: u32,
    ) -> Result<bool> {
        let Some(free) = self.mapping.read(0).overflow.iter().position(|slot| *slot == 0) else {
            return Ok(false);
        };
        let map = new_map::<wire::guard_overflow>("tollgate_more")?;
        overflow_windows
            .update(&slot.to_ne_bytes(), &map.as_fd().as_raw_fd().to_ne_bytes(), MapFlags::ANY)
            .doing("making a profile larger")?;
        self.overflow.push(MappedArray::new(&map, 1)?);
        // Only the process that guards the program writes these.
        field!(self.mapping, 0, overflow[free]).write(slot);
        field!(self.mapping, 0, unlearned).write(0);
        Ok(true)
    }

    /// A copy of the profile. It may be inconsistent, because the gate writes meanwhile.
    pub fn read(&self) -> Box<wire::guard_profile> {
        Box::new(self.mapping.read(0))
    }

    fn pairs(&self) -> impl Iterator<Item = &AtomicU32> {
        field!(self.mapping, 0, pairs).elements().map(Field::atomic)
    }

    fn windows(&self) -> impl Iterator<Item = &AtomicU64> {
        let own = field!(self.mapping, 0, windows).elements();
        let overflow =
            self.overflow.iter().flat_map(|overflow| field!(overflow, 0, windows).elements());
        own.chain(overflow).map(Field::atomic)
    }

    /// Whether a window was not learned for lack of room, and the profile may get more.
    pub fn needs_overflow(&self) -> bool {
        self.unlearned() > 0 && self.overflow.len() < wire::GUARD_OVERFLOW_MAX as usize
    }

    /// How many windows the profile has room for. This is three quarters of the entries, because
    /// searches become long when more are in use.
    pub fn window_capacity(&self) -> usize {
        (wire::GUARD_WINDOWS as usize + self.overflow.len() * wire::GUARD_OVERFLOW as usize) / 4 * 3
    }

    /// The size of the profile in kernel memory, where maps consist of whole pages.
    pub fn bytes(&self) -> usize {
        const PAGE: usize = 4096;
        size_of::<wire::guard_profile>().next_multiple_of(PAGE)
            + self.overflow.len() * size_of::<wire::guard_overflow>().next_multiple_of(PAGE)
    }

    /// Resets the profile for another program.
    pub(crate) fn reset(&self) {
        self.mapping.write(0, wire::guard_profile::default());
    }

    /// Discards all that the profile has learned. Its room and its counts of calls, freezes and
    /// wipes remain, and it stays identified.
    pub fn empty(&self) {
        let wire::guard_profile {
            overflow, is_identified, user, calls, freezes_count, wipes, ..
        } = self.mapping.read(0);
        self.mapping.write(
            0,
            wire::guard_profile {
                overflow,
                is_identified,
                user,
                calls,
                freezes_count,
                wipes,
                ..Default::default()
            },
        );
        for overflow in &self.overflow {
            overflow.write(0, wire::guard_overflow::default());
        }
    }

    /// All that the profile has learned.
    pub fn contents(&self) -> Contents {
        let profile = self.read();
        let mut calls = vec![None; wire::GUARD_SYMBOL_OTHER as usize - 1];
        for (call, symbol) in (0..).zip(profile.symbol_of) {
            if let Some(entry) =
                usize::from(symbol).checked_sub(1).and_then(|index| calls.get_mut(index))
            {
                *entry = Some(call);
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

    /// Adds stored data to the profile, and sets its state and counts. Its program may run
    /// meanwhile. Returns the number of pairs and windows for which there was no room.
    pub fn add(&self, contents: &Contents) -> usize {
        let symbols: Vec<_> =
            contents.calls.iter().map(|call| call.map_or(0, |call| self.symbol(call))).collect();
        let own_symbol = |symbol: u8| match u32::from(symbol) {
            wire::GUARD_SYMBOL_OTHER => wire::GUARD_SYMBOL_OTHER,
            symbol => symbols.get(symbol as usize - 1).copied().unwrap_or(0),
        };
        let mut unfit = 0;
        for pair in &contents.pairs {
            let key =
                own_symbol(pair.current) << wire::GUARD_SYMBOL_BITS | own_symbol(pair.earlier);
            let bits =
                u32::from(pair.learned) | u32::from(pair.normal) << wire::GUARD_PAIR_NORMAL_SHIFT;
            unfit += usize::from(!self.add_pair(key, bits));
        }
        for window in &contents.windows {
            let key = window.calls.iter().fold(0, |key, symbol| {
                key << wire::GUARD_SYMBOL_BITS | u64::from(own_symbol(*symbol))
            });
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

    /// The profile's symbol for a call. If the call has none yet, this assigns one. The kernel side
    /// does the same in `take_symbol`.
    fn symbol(&self, call: u32) -> u32 {
        let shift = call % 4 * 8;
        // Both sides change four symbols as one word.
        let word = field!(self.mapping, 0, symbol_of).at::<u32>(call as usize / 4 * 4).atomic();
        let assigned = |word: u32| word >> shift & 0xff;
        if assigned(word.load(Ordering::SeqCst)) != 0 {
            return assigned(word.load(Ordering::SeqCst));
        }
        let new = (atomic_field!(self.mapping, 0, symbols).fetch_add(1, Ordering::SeqCst) + 1)
            .min(wire::GUARD_SYMBOL_OTHER);
        let assign = |old: u32| (assigned(old) == 0).then_some(old | new << shift);
        match word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, assign) {
            Ok(_) => new,
            Err(old) => assigned(old),
        }
    }

    /// Adds bits to a pair. Returns `false` if there was no room for it.
    fn add_pair(&self, key: u32, bits: u32) -> bool {
        let pairs: Vec<_> = self.pairs().collect();
        let first = (key.wrapping_mul(GOLDEN_32) >> (32 - wire::GUARD_PAIRS_LOG2)) as usize;
        let probes = || (0..wire::GUARD_PROBES as usize).map(|n| pairs[(first + n) % pairs.len()]);
        let is_own = |entry: u32| entry >> wire::GUARD_PAIR_KEY_SHIFT == key;
        let add = |entry: u32| is_own(entry).then_some(entry | bits);
        let claim =
            |entry: u32| (entry & 0xffff == 0).then_some(key << wire::GUARD_PAIR_KEY_SHIFT | bits);
        probes().any(|entry| entry.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).is_ok())
            || probes()
                .any(|entry| entry.fetch_update(Ordering::SeqCst, Ordering::SeqCst, claim).is_ok())
    }

    /// Adds bits to a window. Returns `false` if there was no room for it.
    fn add_window(&self, key: u64, bits: u64) -> bool {
        let product = key.wrapping_mul(GOLDEN_64);
        let windows: Vec<_> = self.windows().collect();
        let (own, overflow) = windows.split_at(wire::GUARD_WINDOWS as usize);
        let tables = std::iter::once(own).chain(overflow.chunks(wire::GUARD_OVERFLOW as usize));
        let mut shift = u64::BITS;
        let mut probes = Vec::new();
        for table in tables {
            shift -= table.len().ilog2();
            let first = (product >> shift) as usize;
            probes
                .extend((0..wire::GUARD_PROBES as usize).map(|n| table[(first + n) % table.len()]));
        }
        let is_own = |entry: u64| entry >> wire::GUARD_WINDOW_KEY_SHIFT == key;
        let add = |entry: u64| is_own(entry).then_some(entry | bits);
        let claim =
            |entry: u64| (entry & 3 == 0).then_some(key << wire::GUARD_WINDOW_KEY_SHIFT | bits);
        probes
            .iter()
            .any(|entry| entry.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).is_ok())
            || probes
                .iter()
                .any(|entry| entry.fetch_update(Ordering::SeqCst, Ordering::SeqCst, claim).is_ok())
    }

    /// Clears the cache of known windows, because they may not be normal any more.
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

    /// Records that [`super::exempt_files::ExemptFiles`] has the program's file if it is exempt. If
    /// it has not, the program may be held from now on.
    pub fn set_identified(&self) {
        atomic_field!(self.mapping, 0, is_identified).store(1, Ordering::SeqCst);
    }

    /// The user in whose share the profile counts (`guard_profile.user`); 0: it counts in none.
    pub fn user(&self) -> u32 {
        field!(self.mapping, 0, user).read()
    }

    /// Makes the training data the normal data. From then on, the program's calls are tested.
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

    /// Lets the program train again until its profile freezes, so that its present calls become
    /// normal (pH's `stop_normal`).
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
