//! Emits the ends of blocks: branches, loops and returns.

use super::emitter::{Emitter, SCRATCH};
use super::instruction::{By, Instruction};
use crate::ast::Operator;
use crate::ir::{Terminator, Value, Width};

impl Emitter<'_> {
    fn jump_to(&mut self, instruction: Instruction, block: usize) {
        self.jumps.push((self.out.instructions.len(), block));
        self.push(instruction);
    }

    fn fall_through_or_jump(&mut self, block: usize, next: usize) {
        if block != next {
            self.jump_to(Instruction::jump(), block);
        }
    }

    /// Emits only one jump if either target is the next block. In a loop, this is done only if `no`
    /// comes next: the verifier follows the next instruction before the jump target. If `yes` came
    /// next, the verifier would start another iteration before it has left the loop
    /// (docs/decisions/0006-plugin.md).
    fn emit_branch(
        &mut self,
        comparison: Operator,
        jump: impl Fn(Operator) -> Instruction,
        [yes, no]: [usize; 2],
        next: usize,
    ) {
        if yes == next && self.function.blocks[next - 1].innermost_loop.is_none() {
            return self.jump_to(jump(comparison.opposite()), no);
        }
        self.jump_to(jump(comparison), yes);
        self.fall_through_or_jump(no, next);
    }

    pub(super) fn end(&mut self, end: &Terminator, next: usize) {
        match end {
            Terminator::Jump(to) => {
                if matches!(self.function.blocks[*to].end, Terminator::LoopBack { .. }) {
                    self.equalize_iteration(*to, next);
                }
                self.fall_through_or_jump(*to, next);
            }
            Terminator::Branch { comparison, width, is_signed, left, right, yes, no } => {
                let left = self.branch_operand(*left, SCRATCH, [*yes, *no]);
                let right = match (right, self.by(*right, *width)) {
                    (Value::Register(_), By::Register(_)) => {
                        By::Register(self.branch_operand(*right, self.second, [*yes, *no]))
                    }
                    (_, by) => by,
                };
                let jump =
                    |comparison| Instruction::jump_if(comparison, *width, *is_signed, left, right);
                self.emit_branch(*comparison, jump, [*yes, *no], next);
            }
            Terminator::NullCheck { pointer, yes, no } => {
                let pointer = self.operand(Value::Register(*pointer), SCRATCH);
                let none = By::Immediate(0);
                let jump =
                    |comparison| Instruction::jump_if(comparison, Width::W64, false, pointer, none);
                self.emit_branch(Operator::NotEqual, jump, [*yes, *no], next);
            }
            Terminator::BoundsCheck { to, index, length, size, within, outside } => {
                // Check, multiply and keep the index in one register, so that the verifier knows
                // its bound.
                let target = self.target(*to);
                self.load_value(target, *index);
                let is_copy = index.register().is_some_and(|register| self.are_copies[register]);
                if is_copy || self.is_needed(*index, [*within, *outside]) {
                    self.break_copy_link(target);
                }
                let length = By::Immediate(*length as i32);
                let is_outside = Operator::GreaterEqual;
                self.jump_to(
                    Instruction::jump_if(is_outside, Width::W64, false, target, length),
                    *outside,
                );
                if *size != 1 {
                    let size = By::Immediate(*size as i32);
                    self.push(Instruction::operate(
                        Operator::Multiply,
                        Width::W64,
                        false,
                        target,
                        size,
                    ));
                }
                self.store_result(*to, target);
                self.fall_through_or_jump(*within, next);
            }
            Terminator::LoopBack { more, cut_short } => {
                self.jump_to(Instruction::may_goto(), *cut_short);
                self.fall_through_or_jump(*more, next);
            }
            Terminator::Return(value) => {
                self.load_value(SCRATCH, *value);
                self.push(Instruction::exit());
            }
        }
    }
}
