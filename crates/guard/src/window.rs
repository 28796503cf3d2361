//! A thread's latest calls.

use std::collections::VecDeque;

use crate::CallNumber;

/// The latest calls of a thread, the newest last. There are at most `MAX_WINDOW_LEN` of them.
///
/// A fork copies it, and an exec resets it (pH: "each process has its own sequence").
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Window {
    calls: VecDeque<CallNumber>,
}

/// The longest window of any model.
pub const MAX_WINDOW_LEN: usize = 16;

impl Window {
    /// Adds the next call.
    pub fn push(&mut self, call: CallNumber) {
        if self.calls.len() == MAX_WINDOW_LEN {
            self.calls.pop_front();
        }
        self.calls.push_back(call);
    }

    /// Empties the window.
    pub fn reset(&mut self) {
        self.calls.clear();
    }

    /// The newest call; `None` in an empty window.
    pub fn current(&self) -> Option<CallNumber> {
        self.calls.back().copied()
    }

    /// The calls before the newest one, the nearest first.
    pub fn previous(&self) -> impl Iterator<Item = CallNumber> + '_ {
        self.calls.iter().rev().skip(1).copied()
    }

    /// The latest `length` calls in order, or `None` if the window has fewer.
    pub fn latest(&self, length: usize) -> Option<Vec<CallNumber>> {
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
        assert_eq!(window.previous().take(3).collect::<Vec<_>>(), [18, 17, 16]);
        assert_eq!(window.previous().count(), MAX_WINDOW_LEN - 1);
        assert_eq!(window.latest(3), Some(vec![17, 18, 19]));
        assert_eq!(window.latest(MAX_WINDOW_LEN + 1), None);
        window.reset();
        assert_eq!(window.previous().count(), 0);
    }
}
