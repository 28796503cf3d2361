//! pH's model: which calls were seen how many calls before which.

use std::collections::{HashMap, HashSet};

use crate::{Call, Window};

/// The most calls that a window may have: a bit for each distance in a byte, as in pH.
const LONGEST: usize = 9;

/// Lookahead pairs. Despite their name they look behind the current call (paper, footnote 1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookahead {
    length: usize,
    /// By current and earlier call: bit i - 1 is set if the earlier one was seen i calls before.
    pairs: HashMap<(Call, Call), u8>,
    seen: HashSet<Call>,
}

impl Lookahead {
    pub fn new(length: usize) -> Self {
        assert!((2..=LONGEST).contains(&length), "a lookahead window has 2 to {LONGEST} calls, not {length}");
        Self { length, pairs: HashMap::new(), seen: HashSet::new() }
    }

    fn earlier<'a>(&self, window: &'a Window) -> impl Iterator<Item = (usize, Call)> + 'a {
        window.before().take(self.length - 1).enumerate()
    }

    /// A call that was never seen mismatches at each distance.
    pub fn mismatches(&self, window: &Window) -> usize {
        let Some(current) = window.current() else { return 0 };
        if !self.seen.contains(&current) {
            return self.earlier(window).count();
        }
        let is_new = |(distance, call): &(usize, Call)| {
            self.pairs.get(&(current, *call)).is_none_or(|bits| bits & (1 << distance) == 0)
        };
        self.earlier(window).filter(is_new).count()
    }

    pub fn add(&mut self, window: &Window) {
        let Some(current) = window.current() else { return };
        self.seen.insert(current);
        for (distance, call) in self.earlier(window) {
            *self.pairs.entry((current, call)).or_default() |= 1 << distance;
        }
    }

    /// Pairs, at whatever distance.
    pub fn size(&self) -> usize {
        self.pairs.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(calls: &[Call]) -> Vec<Window> {
        let mut window = Window::default();
        let after = |call: &Call| {
            window.push(*call);
            window.clone()
        };
        calls.iter().map(after).collect()
    }

    fn trained(length: usize, calls: &[Call]) -> Lookahead {
        let mut model = Lookahead::new(length);
        windows(calls).iter().for_each(|window| model.add(window));
        model
    }

    fn mismatches(model: &Lookahead, calls: &[Call]) -> Vec<usize> {
        windows(calls).iter().map(|window| model.mismatches(window)).collect()
    }

    /// The example of Somayaji and Forrest, section 3: open read mmap mmap open getrlimit mmap close, with windows of 4.
    #[test]
    fn pairs_know_their_distance() {
        let [open, read, mmap, getrlimit, close] = [0, 1, 2, 3, 4];
        let model = trained(4, &[open, read, mmap, mmap, open, getrlimit, mmap, close]);
        assert!(
            mismatches(&model, &[open, read, mmap, mmap, open, getrlimit, mmap, close])
                .iter()
                .all(|n| *n == 0)
        );
        // Read where mmap was: read was never after read, nor two after open, nor …
        let all = mismatches(&model, &[open, read, read, mmap, open, getrlimit, mmap, close]);
        assert_eq!(all[2], 2);
        assert_eq!(all.iter().sum::<usize>(), 4);
    }

    #[test]
    fn pairs_generalise_where_windows_do_not() {
        // 1 2 3 and 4 2 5: 1 2 5 has a new pair at distance two only.
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
