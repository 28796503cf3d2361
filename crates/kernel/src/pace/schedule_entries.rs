//! Which entry of the gate's schedules each type of tasks has.

use std::collections::{BTreeMap, VecDeque};

use super::type_key::TypeKey;
use crate::wire;

/// Entries beyond those of the types, with entry 0, which stands for none. An unfinished task keeps
/// the entry of its type, so an entry that becomes free is used again only after the spare ones.
const SPARE_ENTRIES: usize = 96;
/// The maximum number of types that have a schedule at the same time.
pub const MAX_TYPES: usize = wire::PACE_SCHEDULES as usize - SPARE_ENTRIES;

/// The entries of the types that have a schedule.
pub struct ScheduleEntries {
    by_type: BTreeMap<TypeKey, u32>,
    /// The entry that has been free the longest comes first.
    free: VecDeque<u32>,
}

impl Default for ScheduleEntries {
    fn default() -> Self {
        Self { by_type: BTreeMap::new(), free: (1..wire::PACE_SCHEDULES).collect() }
    }
}

impl ScheduleEntries {
    /// The entry of a type that has one.
    pub fn of(&self, key: &TypeKey) -> Option<u32> {
        self.by_type.get(key).copied()
    }

    /// The entry for the next type.
    ///
    /// # Panics
    /// If there are [`MAX_TYPES`] types.
    pub fn next(&self) -> u32 {
        assert!(self.by_type.len() < MAX_TYPES, "there are too many types");
        self.free[0]
    }

    /// Gives a type the entry of [`Self::next`].
    pub fn take_next(&mut self, key: TypeKey) {
        let entry = self.free.pop_front().expect("there are more entries than types");
        self.by_type.insert(key, entry);
    }

    /// Frees the entry of a type, if it has one.
    pub fn release(&mut self, key: &TypeKey) {
        self.free.extend(self.by_type.remove(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(type_id: u64) -> TypeKey {
        TypeKey { program: [0; 16], type_id, rule: 0, descriptor: 0, detail: 0 }
    }

    #[test]
    fn entries_are_used_again_last() {
        let mut entries = ScheduleEntries::default();
        let mut of = Vec::new();
        for id in 1..=10_000_u64 {
            if let Some(old) = id.checked_sub(MAX_TYPES as u64).filter(|old| *old > 0) {
                entries.release(&key(old));
                assert_eq!(entries.of(&key(old)), None);
            }
            let entry = entries.next();
            entries.take_next(key(id));
            assert_eq!(entries.of(&key(id)), Some(entry));
            of.push(entry);
        }
        let again = of[1..].iter().position(|entry| *entry == of[0]).unwrap() + 1;
        assert_eq!(again, wire::PACE_SCHEDULES as usize - 1);
        assert!(of.iter().all(|entry| (1..wire::PACE_SCHEDULES).contains(entry)));
        // The latest types have different ones.
        let latest: std::collections::BTreeSet<_> = of[10_000 - MAX_TYPES..].iter().collect();
        assert_eq!(latest.len(), MAX_TYPES);
    }
}
