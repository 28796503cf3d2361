//! What keeps the verifier from telling apart what it need not: where it knows more of one way than of another, it looks at all that
//! comes after once for each (docs/decisions/0006-plugin.md).

use std::ops::Range;

use super::instruction::{By, FRAME, Instruction};
use super::{ADDRESS, Emitter, Memory, SCRATCH, WORD, bytes};
use crate::allocate::{FIRST_KEPT, Home, LAST_KEPT};
use crate::ast::Operator;
use crate::ir::{Function, Step, Value, Width};
use crate::layout::ZERO;

/// Which registers the verifier may know to be copies, but for a constant that was added.
pub fn copies(function: &Function) -> Vec<bool> {
    let mut are_copies = vec![false; function.registers];
    for (step, _) in function.blocks.iter().flat_map(|block| &block.steps) {
        if let Step::Move { to, from: Value::Register(from) }
        | Step::Extend { to, from, .. }
        | Step::Operate {
            to,
            operator: Operator::Add | Operator::Subtract,
            left: Value::Register(from),
            right: Value::Constant(_),
            ..
        } = step
        {
            are_copies[*to] = true;
            are_copies[*from] = true;
        }
    }
    are_copies
}

impl Emitter<'_> {
    /// Nothing is without a number that the verifier does not know. At the end of a round the one of v6.18 may ask what all that
    /// was ever a number was before, also what nobody needs any longer (`propagate_precision`, kernel/bpf/verifier.c); where
    /// nothing was, it gives up ("backtracking func entry", and "backtracking call" of what calls take).
    pub(super) fn fill(&mut self) {
        let base = self.map_value_in(SCRATCH, Memory::Control, ZERO);
        self.push(Instruction::load(SCRATCH, base, 0, 8));
        if self.has_loops {
            self.fill_registers();
        }
        for at in (0..self.frame).step_by(8) {
            let instruction = Instruction::store(FRAME, self.place(at), 8, By::Register(SCRATCH));
            self.push(instruction);
            if at < self.function.frame_bytes {
                self.scrub(FRAME, self.place(at));
            } else {
                self.forget(SCRATCH);
            }
        }
    }

    fn fill_registers(&mut self) {
        let lost = if self.function.has_calls() { 0..0 } else { self.parameters() + 1..FIRST_KEPT };
        for register in lost.chain(FIRST_KEPT..=LAST_KEPT) {
            self.push(Instruction::set(register, By::Register(SCRATCH)));
            self.forget(register);
        }
    }

    /// Whatever it was, the verifier does not know it any longer.
    pub(super) fn widen(&mut self, register: u8, width: Width) {
        let base = self.map_value(Memory::Control, ZERO);
        self.push(Instruction::load(self.second, base, 0, bytes(width)));
        let by = By::Register(self.second);
        self.push(Instruction::operate(Operator::Add, width, false, register, by));
    }

    /// What is left in places that a loop does not need is the same whichever way its next round is come to: the verifier
    /// compares all there is.
    pub(super) fn level_round(&mut self, head: usize, end: usize) {
        // After a round, the others are as they were left before the first one.
        let mut left = self.left(if head < end { head..end } else { 0..end });
        left.extend([SCRATCH, ADDRESS, self.second].map(Home::Register));
        self.level(head, left);
    }

    /// The same where ways come together within a loop: otherwise a round has as many states as ways through it. Not for registers,
    /// which are few, and soon written again.
    pub(super) fn level_join(&mut self, block: usize) {
        if let Some(parting) = self.joins[block]
            && self.function.blocks[block].within.is_some()
        {
            let mut left = self.left(parting..block);
            left.retain(|home| matches!(home, Home::Frame(_)));
            self.level(block, left);
        }
    }

    fn left(&self, since: Range<usize>) -> Vec<Home> {
        let written = self.function.blocks[since].iter().flat_map(|block| {
            block.steps.iter().filter_map(|(step, _)| step.writes()).chain(block.end.writes())
        });
        written.map(|register| self.homes[register]).collect()
    }

    fn level(&mut self, at: usize, mut left: Vec<Home>) {
        let is_needed = |home: Home| self.needed[at].each().any(|register| self.homes[register] == home);
        left.sort_unstable();
        left.dedup();
        left.retain(|home| *home != Home::None && !is_needed(*home));
        for home in left {
            self.push(match home {
                Home::Frame(at) => Instruction::store(FRAME, self.place(at), 8, By::Register(FRAME)),
                Home::Register(register) => Instruction::set(register, By::Register(FRAME)),
                Home::Kept(_) | Home::None => unreachable!("it was left out, or no loops are functions"),
            });
        }
    }

    /// The verifier follows a number that was written to the beginning of a word, and not one of which another byte was written
    /// (`check_stack_write_fixed_off`, kernel/bpf/verifier.c). Where it does so after some ways only, no two rounds of a loop
    /// are the same to it (`stacksafe`).
    pub(super) fn scrub(&mut self, base: u8, word: i16) {
        let last = word + i16::from(WORD) - 1;
        self.push(Instruction::load(SCRATCH, base, last, 1));
        self.push(Instruction::store(base, last, 1, By::Register(SCRATCH)));
    }

    pub(super) fn is_needed(&self, value: Value, after: [usize; 2]) -> bool {
        let is_needed =
            |register| self.kept.has(register) || after.iter().any(|block| self.needed[*block].has(register));
        value.register().is_some_and(is_needed)
    }

    /// The verifier is not to know any longer that it is a copy: `find_equal_scalars`, kernel/bpf/verifier.c of v6.1.
    pub(super) fn forget(&mut self, copy: u8) {
        let or = Operator::Or;
        self.push(Instruction::operate(or, Width::W64, false, copy, By::Immediate(0)));
    }

    /// What a branch looks at: the verifier learns something of it. Where a variable is to be told apart by what it was
    /// compared with, what follows a loop or several branches would be looked at for each possibility, of which there are too many.
    pub(super) fn looked_at(&mut self, value: Value, scratch: u8, after: [usize; 2]) -> u8 {
        let is_copy = value.register().is_some_and(|register| self.are_copies[register]);
        if !is_copy && !self.is_needed(value, after) {
            return self.operand(value, scratch);
        }
        self.load_value(scratch, value);
        self.forget(scratch);
        scratch
    }
}
