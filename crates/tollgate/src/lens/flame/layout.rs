//! Where the boxes of a flame graph are.

use super::folded::{Folded, Frame};

/// A function, with all stacks that have the same frames below it.
#[derive(Debug, PartialEq, Eq)]
pub struct Node<'a> {
    pub frame: &'a Frame,
    /// The number of frames below it.
    pub depth: usize,
    /// Where it begins and how wide it is, in nanoseconds of all stacks side by side.
    pub start_ns: u64,
    pub ns: u64,
}

/// The boxes, each after the one below it.
pub fn nodes(folded: &Folded) -> Vec<Node<'_>> {
    let mut nodes: Vec<Node<'_>> = Vec::new();
    // The boxes of the latest stack, the outermost first. The next stack widens those with which it
    // begins, too: stacks are sorted.
    let mut open: Vec<usize> = Vec::new();
    let mut start_ns = 0;
    for (stack, ns) in folded.stacks() {
        let same = open
            .iter()
            .zip(stack)
            .take_while(|(index, frame)| nodes[**index].frame == *frame)
            .count();
        open.truncate(same);
        open.iter().for_each(|index| nodes[*index].ns += ns);
        for (depth, frame) in stack.iter().enumerate().skip(same) {
            open.push(nodes.len());
            nodes.push(Node { frame, depth, start_ns, ns });
        }
        start_ns += ns;
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::super::folded::FrameKind;
    use super::*;

    fn stack(names: &str) -> Vec<Frame> {
        names.split(';').map(|name| Frame::new(FrameKind::User, name)).collect()
    }

    #[test]
    fn stacks_share_the_boxes_with_which_they_begin() {
        let mut folded = Folded::default();
        folded.add(stack("p;a;c"), 3);
        folded.add(stack("p;a;b"), 2);
        folded.add(stack("p;a"), 1);
        folded.add(stack("q;a"), 4);
        let nodes = nodes(&folded);
        let found: Vec<_> = nodes
            .iter()
            .map(|node| (node.frame.name.as_str(), node.depth, node.start_ns, node.ns))
            .collect();
        assert_eq!(
            found,
            [
                ("p", 0, 0, 6),
                ("a", 1, 0, 6),
                ("b", 2, 1, 2),
                ("c", 2, 3, 3),
                ("q", 0, 6, 4),
                ("a", 1, 6, 4),
            ]
        );
    }

    #[test]
    fn same_function_below_other_frames_is_another_box() {
        let mut folded = Folded::default();
        folded.add(stack("p;a;x;y"), 1);
        folded.add(stack("p;b;x;y"), 1);
        assert_eq!(nodes(&folded).iter().filter(|node| node.frame.name == "x").count(), 2);
    }
}
