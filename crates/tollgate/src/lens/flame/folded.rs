//! Folded stacks: the format of Brendan Gregg's flame graphs, one line for each stack.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::format::printable;

/// What a frame is. It is shown by its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FrameKind {
    Process,
    User,
    Call,
    Kernel,
}

/// A frame of a folded stack.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Frame {
    pub kind: FrameKind,
    pub name: String,
}

impl Frame {
    /// A frame with a name that a line of folded text can have.
    pub fn new(kind: FrameKind, name: &str) -> Self {
        Self { kind, name: printable(name).replace(';', ":") }
    }

    /// The name, with the mark that other programs expect of a function of the kernel.
    fn marked(&self) -> String {
        match self.kind {
            FrameKind::Kernel => format!("{}_[k]", self.name),
            _ => self.name.clone(),
        }
    }
}

/// Stacks with the outermost frame first, and the nanoseconds of each.
#[derive(Debug, Default)]
pub struct Folded(BTreeMap<Vec<Frame>, u64>);

impl Folded {
    pub fn add(&mut self, stack: Vec<Frame>, ns: u64) {
        if ns > 0 {
            *self.0.entry(stack).or_default() += ns;
        }
    }

    pub fn total_ns(&self) -> u64 {
        self.0.values().sum()
    }

    /// In the order of the frames' names.
    pub fn stacks(&self) -> impl Iterator<Item = (&[Frame], u64)> {
        self.0.iter().map(|(stack, ns)| (stack.as_slice(), *ns))
    }

    /// One line for each stack: its frames, and its nanoseconds.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (stack, ns) in self.stacks() {
            let frames: Vec<_> = stack.iter().map(Frame::marked).collect();
            let _ = writeln!(text, "{} {ns}", frames.join(";"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stacks_are_one_line() {
        let stack = |inner: &str| {
            vec![
                Frame::new(FrameKind::Process, "a;b\n c"),
                Frame::new(FrameKind::User, "std::vector<int>::at"),
                Frame::new(FrameKind::Call, "read"),
                Frame::new(FrameKind::Kernel, inner),
            ]
        };
        let mut folded = Folded::default();
        folded.add(stack("pipe_read"), 5);
        folded.add(stack("vfs_read"), 1);
        folded.add(stack("pipe_read"), 7);
        folded.add(stack("none"), 0);
        assert_eq!(folded.total_ns(), 13);
        assert_eq!(
            folded.text(),
            "a:b\\n c;std::vector<int>::at;read;pipe_read_[k] 12\n\
             a:b\\n c;std::vector<int>::at;read;vfs_read_[k] 1\n"
        );
    }
}
