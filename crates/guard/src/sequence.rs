//! stide's model: the set of whole windows that were seen.

use std::collections::HashSet;

use crate::window::MAX_WINDOW_LEN;
use crate::{CallNumber, Window};

/// The windows of one length that were seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    length: usize,
    windows: HashSet<Vec<CallNumber>>,
}

impl Sequence {
    /// A model without windows, for windows of this length.
    pub fn new(length: usize) -> Self {
        assert!(
            (2..=MAX_WINDOW_LEN).contains(&length),
            "a window has 2 to {MAX_WINDOW_LEN} calls, not {length}"
        );
        Self { length, windows: HashSet::new() }
    }

    /// 1 if the window was never seen, otherwise 0. A window that is not full never mismatches.
    pub fn mismatches(&self, window: &Window) -> usize {
        window.latest(self.length).is_some_and(|calls| !self.windows.contains(&calls)).into()
    }

    /// Adds the window, if it is full.
    pub fn add(&mut self, window: &Window) {
        self.windows.extend(window.latest(self.length));
    }

    /// The number of windows.
    pub fn size(&self) -> usize {
        self.windows.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_known_as_a_whole() {
        let mut model = Sequence::new(3);
        let mut window = Window::default();
        for call in [1, 2, 3, 4] {
            window.push(call);
            model.add(&window);
        }
        assert_eq!(model.size(), 2);
        let mismatches = |calls: &[CallNumber]| {
            let mut window = Window::default();
            calls.iter().for_each(|call| window.push(*call));
            model.mismatches(&window)
        };
        assert_eq!(
            [&[1, 2, 3][..], &[9, 2, 3, 4], &[1, 2, 4], &[9, 9]].map(mismatches),
            [0, 0, 1, 0]
        );
    }
}
