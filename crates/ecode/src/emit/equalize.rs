//! Keeps the verifier from distinguishing more states than necessary. If it knows more on one path
//! than on another, it verifies the code that follows once for each path
//! (docs/decisions/0006-plugin.md).

use std::ops::Range;

use super::emitter::{ADDRESS, Emitter, Memory, SCRATCH, WORD, bytes};
use super::instruction::{By, FRAME, Instruction};
use crate::ast::Operator;
use crate::data_layout::ZERO;
use crate::ir::{Inst, IrFunction, Value, Width};
use crate::regalloc::{FIRST_CALLEE_SAVED, LAST_CALLEE_SAVED, StorageLocation};

/// The registers that the verifier may know to be copies of others, up to an added constant.
pub fn copies(function: &IrFunction) -> Vec<bool> {
    let mut are_copies = vec![false; function.registers];
    for (step, _) in function.blocks.iter().flat_map(|block| &block.steps) {
        if let Inst::Move { to, from: Value::Register(from) }
        | Inst::Extend { to, from, .. }
        | Inst::BinaryOp {
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
    /// Initializes all registers and frame slots with a number that the verifier does not know. At
    /// the end of an iteration, the verifier of v6.18 may trace back every location that ever held
    /// a number, even a dead one (`propagate_precision`, kernel/bpf/verifier.c). The verifier gives
    /// up if it finds no initial value ("backtracking func entry", and "backtracking call" for the
    /// arguments of calls).
    pub(super) fn init_all(&mut self) {
        let base = self.map_value_in(SCRATCH, Memory::Control, ZERO);
        self.push(Instruction::load(SCRATCH, base, 0, 8));
        if self.has_loops {
            self.fill_registers();
        }
        for at in (0..self.frame).step_by(8) {
            let instruction =
                Instruction::store(FRAME, self.frame_slot(at), 8, By::Register(SCRATCH));
            self.push(instruction);
            if at < self.function.frame_bytes {
                self.scrub(FRAME, self.frame_slot(at));
            } else {
                self.break_copy_link(SCRATCH);
            }
        }
    }

    fn fill_registers(&mut self) {
        let lost = if self.function.has_calls() {
            0..0
        } else {
            self.parameters() + 1..FIRST_CALLEE_SAVED
        };
        for register in lost.chain(FIRST_CALLEE_SAVED..=LAST_CALLEE_SAVED) {
            self.push(Instruction::set(register, By::Register(SCRATCH)));
            self.break_copy_link(register);
        }
    }

    /// Makes the verifier forget the range of a register.
    pub(super) fn widen(&mut self, register: u8, width: Width) {
        let base = self.map_value(Memory::Control, ZERO);
        self.push(Instruction::load(self.second, base, 0, bytes(width)));
        let by = By::Register(self.second);
        self.push(Instruction::operate(Operator::Add, width, false, register, by));
    }

    /// Gives dead locations the same content on all paths to the next iteration of a loop, because
    /// the verifier compares dead locations, too.
    pub(super) fn equalize_iteration(&mut self, head: usize, end: usize) {
        // Other locations need no store, because an iteration does not change them.
        let mut left = self.dead_locations(if head < end { head..end } else { 0..end });
        left.extend([SCRATCH, ADDRESS, self.second].map(StorageLocation::Register));
        self.equalize(head, left);
    }

    /// Gives dead frame slots the same content at join points in a loop. Otherwise an iteration
    /// would have as many states as paths. Registers are left out, because they are few and soon
    /// overwritten.
    pub(super) fn equalize_join(&mut self, block: usize) {
        if let Some(dominator) = self.joins[block]
            && self.function.blocks[block].innermost_loop.is_some()
        {
            let mut left = self.dead_locations(dominator..block);
            left.retain(|location| matches!(location, StorageLocation::Frame(_)));
            self.equalize(block, left);
        }
    }

    fn dead_locations(&self, since: Range<usize>) -> Vec<StorageLocation> {
        let written = self.function.blocks[since].iter().flat_map(|block| {
            block.steps.iter().filter_map(|(step, _)| step.writes()).chain(block.end.writes())
        });
        written.map(|register| self.locations[register]).collect()
    }

    fn equalize(&mut self, at: usize, mut left: Vec<StorageLocation>) {
        let is_needed = |location: StorageLocation| {
            self.live_in[at].iter().any(|register| self.locations[register] == location)
        };
        left.sort_unstable();
        left.dedup();
        left.retain(|location| *location != StorageLocation::None && !is_needed(*location));
        for location in left {
            self.push(match location {
                StorageLocation::Frame(at) => {
                    Instruction::store(FRAME, self.frame_slot(at), 8, By::Register(FRAME))
                }
                StorageLocation::Register(register) => {
                    Instruction::set(register, By::Register(FRAME))
                }
                StorageLocation::Shared(_) | StorageLocation::None => {
                    unreachable!("it was left out, or no loops are functions")
                }
            });
        }
    }

    /// Stops the verifier from tracking a stack word, by writing only the last byte of the word
    /// (`check_stack_write_fixed_off`, kernel/bpf/verifier.c). If the verifier tracked a word on
    /// some paths only, it would find no two iterations of a loop equal (`stacksafe`).
    pub(super) fn scrub(&mut self, base: u8, word: i16) {
        let last = word + i16::from(WORD) - 1;
        self.push(Instruction::load(SCRATCH, base, last, 1));
        self.push(Instruction::store(base, last, 1, By::Register(SCRATCH)));
    }

    pub(super) fn is_needed(&self, value: Value, after: [usize; 2]) -> bool {
        let is_needed = |register| {
            self.shared.has(register)
                || after.iter().any(|block| self.live_in[*block].contains(register))
        };
        value.register().is_some_and(is_needed)
    }

    /// Makes the verifier forget that a register is a copy (`find_equal_scalars`,
    /// kernel/bpf/verifier.c of v6.1).
    pub(super) fn break_copy_link(&mut self, copy: u8) {
        let or = Operator::Or;
        self.push(Instruction::operate(or, Width::W64, false, copy, By::Immediate(0)));
    }

    /// The register with the operand of a branch. It is a separate copy if the value is needed
    /// afterwards or the verifier may know another copy of it. The verifier learns a range from a
    /// branch. If it learned the ranges of variables, it would verify the code after a loop or
    /// after several branches once for each of many ranges.
    pub(super) fn branch_operand(&mut self, value: Value, scratch: u8, after: [usize; 2]) -> u8 {
        let is_copy = value.register().is_some_and(|register| self.are_copies[register]);
        if !is_copy && !self.is_needed(value, after) {
            return self.operand(value, scratch);
        }
        self.load_value(scratch, value);
        self.break_copy_link(scratch);
        scratch
    }
}
