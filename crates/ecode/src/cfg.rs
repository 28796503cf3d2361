//! The control flow graph of a function.

use crate::ir::{BlockId, IrFunction};

/// For each block that several blocks lead to, the block at which the paths to it diverge (its
/// immediate dominator).
pub fn join_points(function: &IrFunction) -> Vec<Option<BlockId>> {
    let mut from = vec![Vec::new(); function.blocks.len()];
    for (number, block) in function.blocks.iter().enumerate() {
        // Leave out the edges to the next iteration of a loop, which are the only edges that lead
        // backwards.
        block.end.successors().filter(|to| *to > number).for_each(|to| from[to].push(number));
    }
    let mut dominators: Vec<usize> = Vec::new();
    for from in &from {
        let dominator = from.iter().copied().reduce(|mut one, mut other| {
            while one != other {
                (one, other) = (one.min(other), dominators[one.max(other)]);
            }
            one
        });
        dominators.push(dominator.unwrap_or(0));
    }
    let is_join = |number: usize| from[number].len() > 1;
    dominators
        .iter()
        .enumerate()
        .map(|(number, dominator)| is_join(number).then_some(*dominator))
        .collect()
}
