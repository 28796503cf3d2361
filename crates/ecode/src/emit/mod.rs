//! Emits BPF instructions for the blocks of a function.

pub mod btf;
mod equalize;
mod instruction;

use instruction::FRAME;
pub use instruction::{By, Instruction};

use crate::ast::Operator;
use crate::cfg::join_points;
use crate::data_layout::ZERO;
use crate::diagnostic::{Diagnostic, Span};
use crate::ir::{
    Address, AddressBase, HelperArgument, Inst, IrFunction, LoopId, Register, Terminator, Value,
    Width,
};
use crate::liveness::RegisterSet;
use crate::outline::SharedRegisters;
use crate::regalloc::{Allocation, LAST_CALLEE_SAVED, StorageLocation, allocate};

/// The register for values that have none of their own.
const SCRATCH: u8 = 0;
const ADDRESS: u8 = 1;
/// The register that has the context at the beginning of a program.
const CONTEXT: u8 = 1;
/// The register with the frame of the enclosing function, in the function of a loop body.
const OUTER_FRAME: u8 = LAST_CALLEE_SAVED;
/// The parameter with that frame; the first parameter is the number of the iteration.
const ROUND_FRAME: u8 = 2;
/// The bytes of a stack word, which the verifier tracks as a unit.
const WORD: u8 = 8;
/// The offset of a jump has 16 bits, and must fit even after the kernel has replaced one
/// instruction by several.
const MAX_INSTRUCTIONS: usize = 32_000;
/// include/uapi/linux/bpf.h
const PSEUDO_MAP_FD: u8 = 1;
const PSEUDO_MAP_VALUE: u8 = 2;
const PSEUDO_FUNC: u8 = 4;
/// enum bpf_func_id
const TAIL_CALL: i32 = 12;

/// Memory whose descriptor or address is known only when the program is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    Data,
    Control,
    Map(usize),
    /// The ring buffer for records to user space.
    Records,
    /// The number of the next plugin, in the slot of the running one.
    TailCall,
    /// The plugins of the hook.
    Slots,
    /// The guard's latest verdict on each processor.
    Verdicts,
}

#[derive(Debug)]
pub struct EmittedFunction {
    pub instructions: Vec<Instruction>,
    /// Instructions that need the descriptor of some memory.
    pub memory: Vec<(usize, Memory)>,
    /// Calls: the instruction and the called function.
    pub calls: Vec<(usize, usize)>,
    /// References to the functions of loop bodies: the instruction and the loop.
    pub rounds: Vec<(usize, LoopId)>,
    /// Source spans, each with the first of its instructions.
    pub spans: Vec<(usize, Span)>,
    pub frame_bytes: u32,
}

struct Emitter<'a> {
    function: &'a IrFunction,
    is_handler: bool,
    kept: &'a SharedRegisters,
    has_loops: bool,
    /// The register for a second operand that has none of its own.
    second: u8,
    homes: Vec<StorageLocation>,
    needed: Vec<RegisterSet>,
    are_copies: Vec<bool>,
    joins: Vec<Option<usize>>,
    frame: u32,
    /// The offset of the saved context, below the frame.
    context: Option<i16>,
    out: EmittedFunction,
    /// The length after the kernel's replacements.
    patched_len: usize,
    /// The first instruction of each block.
    starts: Vec<usize>,
    /// Jumps: the instruction and the target block.
    jumps: Vec<(usize, usize)>,
}

/// Emits a function. `keeps_context` is set for a handler, and for a loop body of one that is a
/// function of its own.
pub fn emit(
    function: &IrFunction,
    kept: &SharedRegisters,
    is_handler: bool,
    keeps_context: bool,
    most_bytes: u32,
) -> Result<EmittedFunction, Box<Diagnostic>> {
    let Allocation { locations: homes, frame_bytes: frame, live_in: needed } =
        allocate(function, kept);
    let context = keeps_context && !function.is_loop_body;
    let frame_bytes = if context { frame + u32::from(WORD) } else { frame };
    if frame_bytes > most_bytes {
        return Err(needs_too_much(&function.name, &function.span, frame_bytes, most_bytes));
    }
    let out = EmittedFunction {
        instructions: Vec::new(),
        memory: Vec::new(),
        calls: Vec::new(),
        rounds: Vec::new(),
        spans: Vec::new(),
        frame_bytes,
    };
    let mut emitter = Emitter {
        function,
        is_handler,
        kept,
        has_loops: function.has_loops(),
        second: if function.has_loops() { LAST_CALLEE_SAVED } else { ADDRESS },
        homes,
        needed,
        are_copies: equalize::copies(function),
        joins: join_points(function),
        frame,
        context: context.then_some(-(frame as i16) - i16::from(WORD)),
        out,
        patched_len: 0,
        starts: Vec::new(),
        jumps: Vec::new(),
    };
    // The kernel requires line information for the start of each function.
    emitter.out.spans.push((0, function.span.clone()));
    if let Some(context) = emitter.context {
        emitter.push(Instruction::store(FRAME, context, WORD, By::Register(CONTEXT)));
    }
    if function.is_loop_body {
        emitter.push(Instruction::set(OUTER_FRAME, By::Register(ROUND_FRAME)));
    } else if emitter.has_loops || kept.is_outlined() {
        emitter.init_all();
    }
    for number in 0..function.blocks.len() {
        emitter.block(number);
        if emitter.patched_len > MAX_INSTRUCTIONS {
            return Err(too_large(&function.name, &function.span));
        }
    }
    for (at, block) in std::mem::take(&mut emitter.jumps) {
        emitter.out.instructions[at].offset = (emitter.starts[block] as i64 - at as i64 - 1) as i16;
    }
    Ok(emitter.out)
}

pub fn too_large(function: &str, span: &Span) -> Box<Diagnostic> {
    let message = format!("`{function}` would have more than {MAX_INSTRUCTIONS} instructions");
    Box::new(Diagnostic::error(span.clone(), message).help("split it into several functions"))
}

/// The error for chains of calls that need too much stack.
pub fn needs_too_much(function: &str, span: &Span, bytes: u32, most_bytes: u32) -> Box<Diagnostic> {
    let message = format!(
        "`{function}` and the functions that it calls need {bytes} bytes of stack, but the kernel \
        allows {most_bytes}"
    );
    Box::new(
        Diagnostic::error(span.clone(), message)
            .help("make arrays and structs `static` or global; print fewer values at a time"),
    )
}

fn bytes(width: Width) -> u8 {
    if width == Width::W32 { 4 } else { 8 }
}

impl Emitter<'_> {
    fn push(&mut self, instruction: Instruction) {
        self.patched_len += instruction.patched_len();
        self.out.instructions.push(instruction);
    }

    fn set_span(&mut self, span: &Span) {
        let at = self.out.instructions.len();
        match self.out.spans.last_mut() {
            Some((_, last)) if last == span => {}
            Some((last_at, last)) if *last_at == at => *last = span.clone(),
            _ => self.out.spans.push((at, span.clone())),
        }
    }

    /// The number of registers with parameters. A handler has one, the context.
    fn parameters(&self) -> u8 {
        let is_argument = |(step, _): &&(Inst, Span)| matches!(step, Inst::Argument { .. });
        let all = self.function.blocks[0].steps.iter().filter(is_argument).count() as u8;
        if self.is_handler { 1 } else { all }
    }

    fn block(&mut self, number: usize) {
        self.starts.push(self.out.instructions.len());
        let block = &self.function.blocks[number];
        if self.has_loops {
            self.equalize_join(number);
        }
        for (step, span) in &block.steps {
            self.set_span(span);
            self.step(step);
        }
        self.set_span(&block.end_span);
        self.end(&block.end, number + 1);
    }

    fn frame_slot(&self, at: u32) -> i16 {
        at as i16 - self.frame as i16
    }

    /// The base and offset of a frame slot that a loop body may share with its function.
    fn outer_slot(&self, at: u32) -> (u8, i16) {
        if self.function.is_loop_body {
            (OUTER_FRAME, at as i16)
        } else {
            (FRAME, self.frame_slot(at))
        }
    }

    fn load_number(&mut self, to: u8, value: i64) {
        match i32::try_from(value) {
            Ok(value) => self.push(Instruction::set(to, By::Immediate(value))),
            Err(_) => match u32::try_from(value) {
                Ok(value) => self.push(Instruction::set_32(to, By::Immediate(value as i32))),
                Err(_) => self.load_64(to, 0, value as i32, (value >> 32) as i32),
            },
        }
    }

    fn load_64(&mut self, to: u8, kind: u8, low: i32, high: i32) {
        Instruction::load_64(to, kind, low, high).into_iter().for_each(|half| self.push(half));
    }

    fn load_value(&mut self, to: u8, value: Value) {
        match value {
            Value::Constant(value) => self.load_number(to, value),
            Value::Register(register) => match self.homes[register] {
                StorageLocation::Register(from) if from == to => {}
                StorageLocation::Register(from) => {
                    self.push(Instruction::set(to, By::Register(from)))
                }
                StorageLocation::Frame(at) => {
                    self.push(Instruction::load(to, FRAME, self.frame_slot(at), 8))
                }
                StorageLocation::Kept(at) => {
                    let (base, place) = self.outer_slot(at);
                    self.push(Instruction::load(to, base, place, 8));
                }
                StorageLocation::None => self.load_number(to, 0),
            },
        }
    }

    /// Returns the value's own register, or loads the value into `scratch`.
    fn operand(&mut self, value: Value, scratch: u8) -> u8 {
        if let Value::Register(register) = value
            && let StorageLocation::Register(own) = self.homes[register]
        {
            return own;
        }
        self.load_value(scratch, value);
        scratch
    }

    /// A value as a second operand, which may be a constant.
    fn by(&mut self, value: Value, width: Width) -> By {
        match (value, width) {
            (Value::Constant(value), Width::W32) => By::Immediate(value as i32),
            (Value::Constant(value), Width::W64) if i32::try_from(value).is_ok() => {
                By::Immediate(value as i32)
            }
            _ => By::Register(self.operand(value, self.second)),
        }
    }

    /// The register to compute a result in, before the result is stored.
    fn target(&self, to: Register) -> u8 {
        match self.homes[to] {
            StorageLocation::Register(register) => register,
            _ => SCRATCH,
        }
    }

    /// Stores a result, which is widened if it is carried to the next iteration of a loop: it may
    /// differ in each iteration, and some kernels verify a loop body only once. These must not
    /// assume the value of the first iteration.
    fn store_result(&mut self, to: Register, from: u8) {
        if self.kept.is_loop_carried(to) {
            self.widen(from, Width::W64);
        }
        self.store_opaque(to, from);
    }

    fn store_opaque(&mut self, to: Register, from: u8) {
        match self.homes[to] {
            StorageLocation::Register(register) if register == from => {}
            StorageLocation::Register(register) => {
                self.push(Instruction::set(register, By::Register(from)))
            }
            StorageLocation::Frame(at) => {
                let instruction =
                    Instruction::store(FRAME, self.frame_slot(at), 8, By::Register(from));
                self.push(instruction);
            }
            StorageLocation::Kept(at) => {
                let (base, place) = self.outer_slot(at);
                self.push(Instruction::store(base, place, 8, By::Register(from)));
            }
            StorageLocation::None => {}
        }
    }

    /// A register with the base of an address, and the offset to add.
    fn address(&mut self, address: Address) -> (u8, i16) {
        let (base, offset) = match address.base {
            AddressBase::Frame(at) if address.index.is_none() => return self.outer_slot(at),
            AddressBase::Frame(at) => {
                let (base, place) = self.outer_slot(at);
                self.push(Instruction::set(ADDRESS, By::Register(base)));
                self.push(Instruction::operate(
                    Operator::Add,
                    Width::W64,
                    false,
                    ADDRESS,
                    By::Immediate(place.into()),
                ));
                (ADDRESS, 0)
            }
            AddressBase::Data(at) => (self.map_value(Memory::Data, at), 0),
            AddressBase::Control(at) => (self.map_value(Memory::Control, at), 0),
            AddressBase::Verdicts(at) => (self.map_value(Memory::Verdicts, at), 0),
            AddressBase::Pointer(register, at) => {
                let pointer = Value::Register(register);
                if address.index.is_none() {
                    return (self.operand(pointer, ADDRESS), at as i16);
                }
                self.load_value(ADDRESS, pointer);
                (ADDRESS, at as i16)
            }
        };
        if let Some(index) = address.index {
            let index = self.operand(Value::Register(index), SCRATCH);
            let add = Operator::Add;
            self.push(Instruction::operate(add, Width::W64, false, base, By::Register(index)));
        }
        (base, offset)
    }

    fn map_value(&mut self, memory: Memory, at: u32) -> u8 {
        self.map_value_in(ADDRESS, memory, at)
    }

    fn map_value_in(&mut self, register: u8, memory: Memory, at: u32) -> u8 {
        self.out.memory.push((self.out.instructions.len(), memory));
        self.load_64(register, PSEUDO_MAP_VALUE, 0, at as i32);
        register
    }

    fn step(&mut self, step: &Inst) {
        match step {
            Inst::Move { to, from } => {
                let target = self.target(*to);
                self.load_value(target, *from);
                self.store_result(*to, target);
            }
            Inst::OpaqueConst { to, value, width } => {
                let width = if self.kept.is_loop_carried(*to) { Width::W64 } else { *width };
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
            Inst::Opaque { register, .. } if self.kept.is_loop_carried(*register) => {}
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
                let is_followed = self.has_loops || self.kept.is_outlined();
                if is_followed && is_in_frame && offset % i16::from(WORD) == 0 {
                    self.scrub(base, offset);
                }
            }
            Inst::AddTo { to, bytes, value } => {
                let (base, offset) = self.address(*to);
                let from = self.operand(Value::Register(*value), SCRATCH);
                self.push(Instruction::add_to(base, offset, *bytes, from));
            }
            Inst::Argument { to, place } => {
                if self.is_handler {
                    let target = self.target(*to);
                    self.push(Instruction::load(target, 1, i16::from(*place) * 8, 8));
                    self.store_opaque(*to, target);
                } else {
                    self.store_opaque(*to, place + 1);
                    if self.has_loops && self.function.has_calls() {
                        // Overwrite the number with an address, for the reason in `init_all`.
                        self.push(Instruction::set(place + 1, By::Register(FRAME)));
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

    fn load_context(&mut self, to: u8) {
        let (base, at) = match self.context {
            Some(context) => (FRAME, context),
            // The function that has the loop saves the context below its frame.
            None => (OUTER_FRAME, -i16::from(WORD)),
        };
        self.push(Instruction::load(to, base, at, WORD));
    }

    /// Calls the next plugin of the chain, if one exists. Registers are lost.
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

    fn descriptor(&mut self, register: u8, of: Memory) {
        self.out.memory.push((self.out.instructions.len(), of));
        self.load_64(register, PSEUDO_MAP_FD, 0, 0);
    }

    fn argument(&mut self, register: u8, argument: &HelperArgument) {
        match argument {
            HelperArgument::Value(value) => self.load_value(register, *value),
            HelperArgument::Map(map) => self.descriptor(register, Memory::Map(*map)),
            HelperArgument::Records => self.descriptor(register, Memory::Records),
            HelperArgument::LoopBack(of) => {
                self.out.rounds.push((self.out.instructions.len(), *of));
                self.load_64(register, PSEUDO_FUNC, 0, 0);
            }
            HelperArgument::Address(address) => {
                // Except for the frame, addresses are computed in the first argument register, so
                // no argument may be in it yet.
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

    fn jump_to(&mut self, instruction: Instruction, block: usize) {
        self.jumps.push((self.out.instructions.len(), block));
        self.push(instruction);
    }

    fn fall_through_or_jump(&mut self, block: usize, next: usize) {
        if block != next {
            self.jump_to(Instruction::jump(), block);
        }
    }

    /// Emits only one jump if either block comes next. In loops the exit must come next, because
    /// the verifier follows the next instruction before the jump target and must leave a loop first
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

    fn end(&mut self, end: &Terminator, next: usize) {
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
