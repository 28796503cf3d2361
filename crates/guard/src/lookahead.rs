//! pH's model: the pairs of calls that were seen, with their distances.

use std::collections::{HashMap, HashSet};

use crate::{CallNumber, Window};

/// The maximum number of calls in a window. As in pH, a byte has one bit for each distance, so at
/// most eight calls precede the current one.
const MAX_LOOKAHEAD_LEN: usize = 9;

/// Lookahead pairs. Despite their name they look behind the current call (paper, footnote 1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookahead {
    length: usize,
    /// By the current and the earlier call. Bit i - 1 is set if the earlier call was seen i calls
    /// before the current one.
    pairs: HashMap<(CallNumber, CallNumber), u8>,
    seen: HashSet<CallNumber>,
}

impl Lookahead {
    /// A model without pairs, for windows of this length.
    pub fn new(length: usize) -> Self {
        assert!(
            (2..=MAX_LOOKAHEAD_LEN).contains(&length),
            "a lookahead window has 2 to {MAX_LOOKAHEAD_LEN} calls, not {length}"
        );
        Self { length, pairs: HashMap::new(), seen: HashSet::new() }
    }

    fn predecessors<'a>(
        &self,
        window: &'a Window,
    ) -> impl Iterator<Item = (usize, CallNumber)> + 'a {
        window.previous().take(self.length - 1).enumerate()
    }

    /// The number of earlier calls in the window that were never seen at their distance before the
    /// current call. If the current call was never seen, all of them count.
    pub fn mismatches(&self, window: &Window) -> usize {
        let Some(current) = window.current() else { return 0 };
        if !self.seen.contains(&current) {
            return self.predecessors(window).count();
        }
        let is_new = |(distance, call): &(usize, CallNumber)| {
            self.pairs.get(&(current, *call)).is_none_or(|bits| bits & (1 << distance) == 0)
        };
        self.predecessors(window).filter(is_new).count()
    }

    /// Adds the pairs of the newest call in the window.
    pub fn add(&mut self, window: &Window) {
        let Some(current) = window.current() else { return };
        self.seen.insert(current);
        for (distance, call) in self.predecessors(window) {
            *self.pairs.entry((current, call)).or_default() |= 1 << distance;
        }
    }

    /// The number of pairs, without regard to distance.
    pub fn size(&self) -> usize {
        self.pairs.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(calls: &[CallNumber]) -> Vec<Window> {
        let mut window = Window::default();
        let after = |call: &CallNumber| {
            window.push(*call);
            window.clone()
        };
        calls.iter().map(after).collect()
    }

    fn trained(length: usize, calls: &[CallNumber]) -> Lookahead {
        let mut model = Lookahead::new(length);
        windows(calls).iter().for_each(|window| model.add(window));
        model
    }

    fn mismatches(model: &Lookahead, calls: &[CallNumber]) -> Vec<usize> {
        windows(calls).iter().map(|window| model.mismatches(window)).collect()
    }

    /// The example of Somayaji and Forrest, section 3: open read mmap mmap open getrlimit mmap
    /// close, with windows of 4.
    #[test]
    fn pairs_depend_on_distance() {
        let [open, read, mmap, getrlimit, close] = [0, 1, 2, 3, 4];
        let model = trained(4, &[open, read, mmap, mmap, open, getrlimit, mmap, close]);
        assert!(
            mismatches(&model, &[open, read, mmap, mmap, open, getrlimit, mmap, close])
                .iter()
                .all(|n| *n == 0)
        );
        // A read replaces the first mmap. No read was seen directly after a read, and none two
        // calls after an open.
        let all = mismatches(&model, &[open, read, read, mmap, open, getrlimit, mmap, close]);
        assert_eq!(all[2], 2);
        assert_eq!(all.iter().sum::<usize>(), 4);
    }

    #[test]
    fn pairs_generalise_where_windows_do_not() {
        // In a model of 1 2 3 and 4 2 5, only one pair of 1 2 5 is new: 1 and 5, at distance two.
        let model = trained(3, &[1, 2, 3]);
        let mut model = model;
        windows(&[4, 2, 5]).iter().for_each(|window| model.add(window));
        assert_eq!(mismatches(&model, &[1, 2, 5]), [0, 0, 1]);
        assert_eq!(mismatches(&model, &[9, 2, 9]), [0, 1, 2]);
    }

    #[test]
    #[should_panic(expected = "2 to 9 calls, not 10")]
    fn longer_windows_do_not_fit() {
        Lookahead::new(10);
    }
}
