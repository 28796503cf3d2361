//! Emits the steps of a block.

use super::emitter::{CONTEXT, Emitter, Memory, SCRATCH, WORD, bytes};
use super::instruction::{By, FRAME, Instruction};
use crate::ast::Operator;
use crate::data_layout::ZERO;
use crate::ir::{AddressBase, HelperArgument, Inst, Register, Value, Width};

// include/uapi/linux/bpf.h
const PSEUDO_FUNC: u8 = 4;
// enum bpf_func_id
const TAIL_CALL: i32 = 12;

impl Emitter<'_> {
    pub(super) fn step(&mut self, step: &Inst) {
        match step {
            Inst::Move { to, from } => {
                let target = self.target(*to);
                self.load_value(target, *from);
                self.store_result(*to, target);
            }
            Inst::OpaqueConst { to, value, width } => {
                let width = if self.shared.is_loop_carried(*to) { Width::W64 } else { *width };
                let base = self.map_value(Memory::Control, ZERO);
                let target = self.target(*to);
                self.push(Instruction::load(target, base, 0, bytes(width)));
                if *value != 0 {
                    let by = self.by(Value::Constant(*value), width);
                    self.push(Instruction::operate(Operator::Add, width, false, target, by));
                }
                self.store_opaque(*to, target);
            }
            // A loop-carried register is always opaque (`store_result`).
            Inst::Opaque { register, .. } if self.shared.is_loop_carried(*register) => {}
            Inst::Opaque { register, width } => {
                let target = self.target(*register);
                self.load_value(target, Value::Register(*register));
                self.widen(target, *width);
                self.store_result(*register, target);
            }
            Inst::BinaryOp { to, operator, width, is_signed, left, right } => {
                let is_shift = matches!(operator, Operator::ShiftLeft | Operator::ShiftRight);
                let right = match right {
                    Value::Constant(by) if is_shift => {
                        Value::Constant(by & if *width == Width::W32 { 31 } else { 63 })
                    }
                    right => *right,
                };
                let by = self.by(right, *width);
                let mut target = self.target(*to);
                // The left operand must not overwrite the right one before its use.
                if matches!(by, By::Register(register) if register == target) {
                    target = SCRATCH;
                }
                self.load_value(target, *left);
                self.push(Instruction::operate(*operator, *width, *is_signed, target, by));
                self.store_result(*to, target);
            }
            Inst::Extend { to, from, bits, is_signed, width } => {
                self.extend(*to, *from, *bits, *is_signed, *width)
            }
            Inst::Load { to, from, bytes } => {
                let (base, offset) = self.address(*from);
                let target = self.target(*to);
                self.push(Instruction::load(target, base, offset, *bytes));
                self.store_result(*to, target);
            }
            Inst::Store { to, bytes, value } => {
                let (base, offset) = self.address(*to);
                let by = match value {
                    Value::Constant(value) if *bytes <= 4 => By::Immediate(*value as i32),
                    Value::Constant(value) if i32::try_from(*value).is_ok() => {
                        By::Immediate(*value as i32)
                    }
                    value => By::Register(self.operand(*value, SCRATCH)),
                };
                self.push(Instruction::store(base, offset, *bytes, by));
                let is_in_frame = matches!(to.base, AddressBase::Frame(_)) && to.index.is_none();
                let is_followed = self.has_loops || self.shared.is_outlined();
                if is_followed && is_in_frame && offset % i16::from(WORD) == 0 {
                    self.scrub(base, offset);
                }
            }
            Inst::AddTo { to, bytes, value } => {
                let (base, offset) = self.address(*to);
                let from = self.operand(Value::Register(*value), SCRATCH);
                self.push(Instruction::add_to(base, offset, *bytes, from));
            }
            Inst::Argument { to, index } => {
                if self.is_handler {
                    let target = self.target(*to);
                    self.push(Instruction::load(target, 1, i16::from(*index) * 8, 8));
                    self.store_opaque(*to, target);
                } else {
                    self.store_opaque(*to, index + 1);
                    if self.has_loops && self.function.has_calls() {
                        // Overwrite the number with an address, for the reason in `init_all`.
                        self.push(Instruction::set(index + 1, By::Register(FRAME)));
                    }
                }
            }
            Inst::Context { to } => {
                let target = self.target(*to);
                self.load_context(target);
                self.store_result(*to, target);
            }
            Inst::ByteSwap { to, from, bits } => {
                let target = self.target(*to);
                self.load_value(target, Value::Register(*from));
                self.push(Instruction::to_big_endian(target, *bits));
                self.store_result(*to, target);
            }
            Inst::TailCall => self.next(),
            Inst::Helper { to, number, arguments } => {
                for (argument, register) in arguments.iter().zip(1..) {
                    self.argument(register, argument);
                }
                self.push(Instruction::helper(*number));
                to.iter().for_each(|to| self.store_result(*to, SCRATCH));
            }
            Inst::Call { to, function, arguments } => {
                for (value, register) in arguments.iter().zip(1..) {
                    self.load_value(register, *value);
                }
                self.out.calls.push((self.out.instructions.len(), *function));
                self.push(Instruction::call());
                to.iter().for_each(|to| self.store_result(*to, SCRATCH));
            }
        }
    }

    /// Calls the next plugin of the chain, if one exists. This overwrites the registers that calls
    /// do not preserve.
    fn next(&mut self) {
        const SLOTS: u8 = 2;
        const NUMBER: u8 = 3;
        self.map_value_in(NUMBER, Memory::TailCall, 0);
        self.push(Instruction::load(NUMBER, NUMBER, 0, 1));
        let none = By::Immediate(0);
        let at = self.out.instructions.len();
        self.push(Instruction::jump_if(Operator::Equal, Width::W64, false, NUMBER, none));
        self.load_context(CONTEXT);
        self.descriptor(SLOTS, Memory::Slots);
        self.push(Instruction::helper(TAIL_CALL));
        self.out.instructions[at].offset = (self.out.instructions.len() - at - 1) as i16;
    }

    fn argument(&mut self, register: u8, argument: &HelperArgument) {
        match argument {
            HelperArgument::Value(value) => self.load_value(register, *value),
            HelperArgument::Map(map) => self.descriptor(register, Memory::Map(*map)),
            HelperArgument::Records => self.descriptor(register, Memory::Records),
            HelperArgument::LoopBack(of) => {
                self.out.loop_refs.push((self.out.instructions.len(), *of));
                self.load_64(register, PSEUDO_FUNC, 0, 0);
            }
            HelperArgument::Address(address) => {
                // Addresses outside of the frame are computed in the first argument register, so no
                // argument may be in it yet.
                let (base, offset) = self.address(*address);
                if base != register {
                    self.push(Instruction::set(register, By::Register(base)));
                }
                let by = By::Immediate(offset.into());
                self.push(Instruction::operate(Operator::Add, Width::W64, false, register, by));
            }
        }
    }

    fn extend(&mut self, to: Register, from: Register, bits: u8, is_signed: bool, width: Width) {
        use Operator::{And, ShiftLeft, ShiftRight};
        let target = self.target(to);
        let from = self.operand(Value::Register(from), SCRATCH);
        if bits == 32 && !is_signed {
            self.push(Instruction::set_32(target, By::Register(from)));
            return self.store_result(to, target);
        }
        if from != target {
            self.push(Instruction::set(target, By::Register(from)));
        }
        if is_signed {
            let by =
                By::Immediate(i32::from(if width == Width::W32 { 32 - bits } else { 64 - bits }));
            self.push(Instruction::operate(ShiftLeft, width, false, target, by));
            self.push(Instruction::operate(ShiftRight, width, true, target, by));
        } else {
            self.push(Instruction::operate(
                And,
                width,
                false,
                target,
                By::Immediate((1 << bits) - 1),
            ));
        }
        self.store_result(to, target);
    }
}
