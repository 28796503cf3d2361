//! stide's model: which whole windows were seen.

use std::collections::HashSet;

use crate::window::LONGEST;
use crate::{Call, Window};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    length: usize,
    windows: HashSet<Vec<Call>>,
}

impl Sequence {
    pub fn new(length: usize) -> Self {
        assert!((2..=LONGEST).contains(&length), "a window has 2 to {LONGEST} calls, not {length}");
        Self { length, windows: HashSet::new() }
    }

    /// 1 or 0: the window was never seen, or it was. Fewer calls than a window has are never a mismatch.
    pub fn mismatches(&self, window: &Window) -> usize {
        window.latest(self.length).is_some_and(|calls| !self.windows.contains(&calls)).into()
    }

    pub fn add(&mut self, window: &Window) {
        self.windows.extend(window.latest(self.length));
    }

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
        let judge = |calls: &[Call]| {
            let mut window = Window::default();
            calls.iter().for_each(|call| window.push(*call));
            model.mismatches(&window)
        };
        assert_eq!(
            [judge(&[1, 2, 3]), judge(&[9, 2, 3, 4]), judge(&[1, 2, 4]), judge(&[9, 9])],
            [0, 0, 1, 0]
        );
    }
}
