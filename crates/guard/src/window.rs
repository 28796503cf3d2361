//! A thread's latest calls.

use std::collections::VecDeque;

use crate::Call;

/// The latest calls of a thread, the newest last, up to as many as the longest model looks at.
///
/// A fork copies it, an exec wipes it (pH: "each process has its own sequence").
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Window {
    calls: VecDeque<Call>,
}

/// The longest window of any model.
pub const LONGEST: usize = 16;

impl Window {
    pub fn push(&mut self, call: Call) {
        if self.calls.len() == LONGEST {
            self.calls.pop_front();
        }
        self.calls.push_back(call);
    }

    pub fn wipe(&mut self) {
        self.calls.clear();
    }

    /// The newest call; none in a wiped window.
    pub fn current(&self) -> Option<Call> {
        self.calls.back().copied()
    }

    /// The calls before the newest one, the nearest first.
    pub fn before(&self) -> impl Iterator<Item = Call> + '_ {
        self.calls.iter().rev().skip(1).copied()
    }

    /// The latest calls in order, if there are so many.
    pub fn latest(&self, length: usize) -> Option<Vec<Call>> {
        let first = self.calls.len().checked_sub(length)?;
        Some(self.calls.iter().skip(first).copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_call_comes_last() {
        let mut window = Window::default();
        assert_eq!((window.current(), window.latest(1)), (None, None));
        for call in 0..20 {
            window.push(call);
        }
        assert_eq!(window.current(), Some(19));
        assert_eq!(window.before().take(3).collect::<Vec<_>>(), [18, 17, 16]);
        assert_eq!(window.before().count(), LONGEST - 1);
        assert_eq!(window.latest(3), Some(vec![17, 18, 19]));
        assert_eq!(window.latest(LONGEST + 1), None);
        window.wipe();
        assert_eq!(window.before().count(), 0);
    }
}
