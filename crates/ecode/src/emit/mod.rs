//! Blocks of steps into the kernel's instructions.

pub mod btf;
mod instruction;

use instruction::{By, FRAME, Instruction};

use crate::allocate::{Allocated, Home, Set, allocate};
use crate::diagnostic::{Diagnostic, Span};
use crate::ir::{Address, Argument, Base, End, Function, Register, Step, Value, Width};
use crate::layout::ZERO;

/// For what has no register of its own.
const SCRATCH: u8 = 0;
const ADDRESS: u8 = 1;
/// A jump's offset has 16 bits.
const MOST_INSTRUCTIONS: usize = 32_000;
/// include/uapi/linux/bpf.h
const PSEUDO_MAP_FD: u8 = 1;
const PSEUDO_MAP_VALUE: u8 = 2;

/// What only the kernel knows at the time of loading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    Data,
    Control,
    Map(usize),
}

#[derive(Debug)]
pub struct Emitted {
    pub instructions: Vec<Instruction>,
    /// Which instruction needs a map's descriptor.
    pub memory: Vec<(usize, Memory)>,
    /// Which instruction calls which function.
    pub calls: Vec<(usize, usize)>,
    /// From which instruction on it is about which part of the text.
    pub spans: Vec<(usize, Span)>,
    pub frame_bytes: u32,
}

struct Emitter<'a> {
    function: &'a Function,
    is_handler: bool,
    homes: Vec<Home>,
    needed: Vec<Set>,
    /// Which registers the verifier may know to be copies.
    are_copies: Vec<bool>,
    frame: u32,
    out: Emitted,
    /// Where blocks begin.
    starts: Vec<usize>,
    /// Which instruction jumps to which block.
    jumps: Vec<(usize, usize)>,
}

pub fn emit(function: &Function, is_handler: bool) -> Result<Emitted, Box<Diagnostic>> {
    let Allocated { homes, frame_bytes: frame, needed } = allocate(function);
    let out = Emitted {
        instructions: Vec::new(),
        memory: Vec::new(),
        calls: Vec::new(),
        spans: Vec::new(),
        frame_bytes: frame,
    };
    let mut emitter = Emitter {
        function,
        is_handler,
        homes,
        needed,
        are_copies: copies(function),
        frame,
        out,
        starts: Vec::new(),
        jumps: Vec::new(),
    };
    // The kernel wants to know where each function begins.
    emitter.out.spans.push((0, function.span.clone()));
    for number in 0..function.blocks.len() {
        emitter.block(number);
    }
    if emitter.out.instructions.len() > MOST_INSTRUCTIONS {
        let message = format!(
            "`{}` would have {} instructions, and {MOST_INSTRUCTIONS} are the most",
            function.name,
            emitter.out.instructions.len()
        );
        let problem = Diagnostic::error(function.span.clone(), message);
        return Err(Box::new(problem.help("make several functions of it")));
    }
    for (at, block) in std::mem::take(&mut emitter.jumps) {
        emitter.out.instructions[at].offset = (emitter.starts[block] as i64 - at as i64 - 1) as i16;
    }
    Ok(emitter.out)
}

fn copies(function: &Function) -> Vec<bool> {
    let mut are_copies = vec![false; function.registers];
    for (step, _) in function.blocks.iter().flat_map(|block| &block.steps) {
        if let Step::Move { to, from: Value::Register(from) } | Step::Extend { to, from, .. } = step {
            are_copies[*to] = true;
            are_copies[*from] = true;
        }
    }
    are_copies
}

fn bytes(width: Width) -> u8 {
    if width == Width::W32 { 4 } else { 8 }
}

impl Emitter<'_> {
    fn push(&mut self, instruction: Instruction) {
        self.out.instructions.push(instruction);
    }

    fn about(&mut self, span: &Span) {
        let at = self.out.instructions.len();
        match self.out.spans.last_mut() {
            Some((_, last)) if last == span => {}
            Some((last_at, last)) if *last_at == at => *last = span.clone(),
            _ => self.out.spans.push((at, span.clone())),
        }
    }

    fn block(&mut self, number: usize) {
        self.starts.push(self.out.instructions.len());
        let block = &self.function.blocks[number];
        for (step, span) in &block.steps {
            self.about(span);
            self.step(step);
        }
        self.about(&block.end_span);
        self.end(&block.end, number + 1);
    }

    fn place(&self, at: u32) -> i16 {
        at as i16 - self.frame as i16
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
        self.out.instructions.extend(Instruction::load_64(to, kind, low, high));
    }

    fn load_value(&mut self, to: u8, value: Value) {
        match value {
            Value::Constant(value) => self.load_number(to, value),
            Value::Register(register) => match self.homes[register] {
                Home::Register(from) if from == to => {}
                Home::Register(from) => self.push(Instruction::set(to, By::Register(from))),
                Home::Frame(at) => self.push(Instruction::load(to, FRAME, self.place(at), 8)),
                Home::None => self.load_number(to, 0),
            },
        }
    }

    /// In a register: its own, or this one.
    fn operand(&mut self, value: Value, scratch: u8) -> u8 {
        if let Value::Register(register) = value
            && let Home::Register(own) = self.homes[register]
        {
            return own;
        }
        self.load_value(scratch, value);
        scratch
    }

    /// As a second operand, which may be a constant.
    fn by(&mut self, value: Value, width: Width) -> By {
        match (value, width) {
            (Value::Constant(value), Width::W32) => By::Immediate(value as i32),
            (Value::Constant(value), Width::W64) if i32::try_from(value).is_ok() => {
                By::Immediate(value as i32)
            }
            _ => By::Register(self.operand(value, ADDRESS)),
        }
    }

    /// Where a result is made, which then is to be kept.
    fn target(&self, to: Register) -> u8 {
        match self.homes[to] {
            Home::Register(register) => register,
            _ => SCRATCH,
        }
    }

    fn keep(&mut self, to: Register, from: u8) {
        match self.homes[to] {
            Home::Register(register) if register == from => {}
            Home::Register(register) => self.push(Instruction::set(register, By::Register(from))),
            Home::Frame(at) => {
                let instruction = Instruction::store(FRAME, self.place(at), 8, By::Register(from));
                self.push(instruction);
            }
            Home::None => {}
        }
    }

    /// A register with the address, but for what is added to it.
    fn address(&mut self, address: Address) -> (u8, i16) {
        let (base, offset) = match address.base {
            Base::Frame(at) if address.index.is_none() => return (FRAME, self.place(at)),
            Base::Frame(at) => {
                self.push(Instruction::set(ADDRESS, By::Register(FRAME)));
                let place = self.place(at);
                self.push(Instruction::operate(
                    crate::ast::Operator::Add,
                    Width::W64,
                    false,
                    ADDRESS,
                    By::Immediate(place.into()),
                ));
                (ADDRESS, 0)
            }
            Base::Data(at) => (self.map_value(Memory::Data, at), 0),
            Base::Control(at) => (self.map_value(Memory::Control, at), 0),
            Base::Pointer(register, at) => {
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
            let add = crate::ast::Operator::Add;
            self.push(Instruction::operate(add, Width::W64, false, base, By::Register(index)));
        }
        (base, offset)
    }

    fn map_value(&mut self, memory: Memory, at: u32) -> u8 {
        self.out.memory.push((self.out.instructions.len(), memory));
        self.load_64(ADDRESS, PSEUDO_MAP_VALUE, 0, at as i32);
        ADDRESS
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Move { to, from } => {
                let target = self.target(*to);
                self.load_value(target, *from);
                self.keep(*to, target);
            }
            Step::Hide { to, value, width } => {
                let base = self.map_value(Memory::Control, ZERO);
                let target = self.target(*to);
                self.push(Instruction::load(target, base, 0, bytes(*width)));
                if *value != 0 {
                    let by = self.by(Value::Constant(*value), *width);
                    self.push(Instruction::operate(crate::ast::Operator::Add, *width, false, target, by));
                }
                self.keep(*to, target);
            }
            Step::Widen { register, width } => {
                let base = self.map_value(Memory::Control, ZERO);
                self.push(Instruction::load(base, base, 0, bytes(*width)));
                let target = self.target(*register);
                self.load_value(target, Value::Register(*register));
                let by = By::Register(base);
                self.push(Instruction::operate(crate::ast::Operator::Add, *width, false, target, by));
                self.keep(*register, target);
            }
            Step::Operate { to, operator, width, is_signed, left, right } => {
                let is_shift =
                    matches!(operator, crate::ast::Operator::ShiftLeft | crate::ast::Operator::ShiftRight);
                let right = match right {
                    Value::Constant(by) if is_shift => {
                        Value::Constant(by & if *width == Width::W32 { 31 } else { 63 })
                    }
                    right => *right,
                };
                let by = self.by(right, *width);
                let mut target = self.target(*to);
                // The left one is not to take the right one's place before it is used.
                if matches!(by, By::Register(register) if register == target) {
                    target = SCRATCH;
                }
                self.load_value(target, *left);
                self.push(Instruction::operate(*operator, *width, *is_signed, target, by));
                self.keep(*to, target);
            }
            Step::Extend { to, from, bits, is_signed, width } => {
                self.extend(*to, *from, *bits, *is_signed, *width)
            }
            Step::Load { to, from, bytes } => {
                let (base, offset) = self.address(*from);
                let target = self.target(*to);
                self.push(Instruction::load(target, base, offset, *bytes));
                self.keep(*to, target);
            }
            Step::Store { to, bytes, value } => {
                let (base, offset) = self.address(*to);
                let by = match value {
                    Value::Constant(value) if *bytes <= 4 => By::Immediate(*value as i32),
                    Value::Constant(value) if i32::try_from(*value).is_ok() => By::Immediate(*value as i32),
                    value => By::Register(self.operand(*value, SCRATCH)),
                };
                self.push(Instruction::store(base, offset, *bytes, by));
            }
            Step::AddTo { to, bytes, value } => {
                let (base, offset) = self.address(*to);
                let from = self.operand(Value::Register(*value), SCRATCH);
                self.push(Instruction::add_to(base, offset, *bytes, from));
            }
            Step::Argument { to, place } => {
                if self.is_handler {
                    let target = self.target(*to);
                    self.push(Instruction::load(target, 1, i16::from(*place) * 8, 8));
                    self.keep(*to, target);
                } else {
                    self.keep(*to, place + 1);
                }
            }
            Step::Helper { to, number, arguments } => {
                for (argument, register) in arguments.iter().zip(1..) {
                    self.argument(register, argument);
                }
                self.push(Instruction::helper(*number));
                to.iter().for_each(|to| self.keep(*to, SCRATCH));
            }
            Step::Call { to, function, arguments } => {
                for (value, register) in arguments.iter().zip(1..) {
                    self.load_value(register, *value);
                }
                self.out.calls.push((self.out.instructions.len(), *function));
                self.push(Instruction::call());
                to.iter().for_each(|to| self.keep(*to, SCRATCH));
            }
        }
    }

    fn argument(&mut self, register: u8, argument: &Argument) {
        match argument {
            Argument::Value(value) => self.load_value(register, *value),
            Argument::Map(map) => {
                self.out.memory.push((self.out.instructions.len(), Memory::Map(*map)));
                self.load_64(register, PSEUDO_MAP_FD, 0, 0);
            }
            Argument::Address(address) => {
                let (Base::Frame(at), None) = (address.base, address.index) else {
                    unreachable!("helpers get what is in the frame")
                };
                self.push(Instruction::set(register, By::Register(FRAME)));
                let by = By::Immediate(self.place(at).into());
                self.push(Instruction::operate(crate::ast::Operator::Add, Width::W64, false, register, by));
            }
        }
    }

    fn extend(&mut self, to: Register, from: Register, bits: u8, is_signed: bool, width: Width) {
        use crate::ast::Operator::{And, ShiftLeft, ShiftRight};
        let target = self.target(to);
        let from = self.operand(Value::Register(from), SCRATCH);
        if bits == 32 && !is_signed {
            self.push(Instruction::set_32(target, By::Register(from)));
            return self.keep(to, target);
        }
        if from != target {
            self.push(Instruction::set(target, By::Register(from)));
        }
        if is_signed {
            let by = By::Immediate(i32::from(if width == Width::W32 { 32 - bits } else { 64 - bits }));
            self.push(Instruction::operate(ShiftLeft, width, false, target, by));
            self.push(Instruction::operate(ShiftRight, width, true, target, by));
        } else {
            self.push(Instruction::operate(And, width, false, target, By::Immediate((1 << bits) - 1)));
        }
        self.keep(to, target);
    }

    fn is_needed(&self, value: Value, after: [usize; 2]) -> bool {
        let is_needed = |register| after.iter().any(|block| self.needed[*block].has(register));
        value.register().is_some_and(is_needed)
    }

    /// The verifier is not to know any longer that it is a copy: `find_equal_scalars`, kernel/bpf/verifier.c of v6.1.
    fn forget(&mut self, copy: u8) {
        let or = crate::ast::Operator::Or;
        self.push(Instruction::operate(or, Width::W64, false, copy, By::Immediate(0)));
    }

    /// What a branch looks at: the verifier learns something of it. Where a variable is to be told apart by what it was
    /// compared with, what follows a loop or several branches would be looked at for each possibility, of which there are too many.
    fn looked_at(&mut self, value: Value, scratch: u8, after: [usize; 2]) -> u8 {
        let is_copy = value.register().is_some_and(|register| self.are_copies[register]);
        if !is_copy && !self.is_needed(value, after) {
            return self.operand(value, scratch);
        }
        self.load_value(scratch, value);
        self.forget(scratch);
        scratch
    }

    fn jump_to(&mut self, instruction: Instruction, block: usize) {
        self.jumps.push((self.out.instructions.len(), block));
        self.push(instruction);
    }

    fn go_on_to(&mut self, block: usize, next: usize) {
        if block != next {
            self.jump_to(Instruction::jump(), block);
        }
    }

    fn end(&mut self, end: &End, next: usize) {
        match end {
            End::Jump(to) => self.go_on_to(*to, next),
            End::Branch { comparison, width, is_signed, left, right, yes, no } => {
                let left = self.looked_at(*left, SCRATCH, [*yes, *no]);
                let right = match (right, self.by(*right, *width)) {
                    (Value::Register(_), By::Register(_)) => {
                        By::Register(self.looked_at(*right, ADDRESS, [*yes, *no]))
                    }
                    (_, by) => by,
                };
                self.jump_to(Instruction::jump_if(*comparison, *width, *is_signed, left, right), *yes);
                self.go_on_to(*no, next);
            }
            End::Found { pointer, yes, no } => {
                let pointer = self.operand(Value::Register(*pointer), SCRATCH);
                let is_there = crate::ast::Operator::NotEqual;
                self.jump_to(
                    Instruction::jump_if(is_there, Width::W64, false, pointer, By::Immediate(0)),
                    *yes,
                );
                self.go_on_to(*no, next);
            }
            End::Index { to, index, length, size, within, outside } => {
                // Checked, multiplied and kept in one register, so that the verifier knows how large it can be.
                let target = self.target(*to);
                self.load_value(target, *index);
                let is_copy = index.register().is_some_and(|register| self.are_copies[register]);
                if is_copy || self.is_needed(*index, [*within, *outside]) {
                    self.forget(target);
                }
                let length = By::Immediate(*length as i32);
                let is_outside = crate::ast::Operator::GreaterEqual;
                self.jump_to(Instruction::jump_if(is_outside, Width::W64, false, target, length), *outside);
                if *size != 1 {
                    let size = By::Immediate(*size as i32);
                    self.push(Instruction::operate(
                        crate::ast::Operator::Multiply,
                        Width::W64,
                        false,
                        target,
                        size,
                    ));
                }
                self.keep(*to, target);
                self.go_on_to(*within, next);
            }
            End::Round { more, cut_short } => {
                self.jump_to(Instruction::may_goto(), *cut_short);
                self.go_on_to(*more, next);
            }
            End::Return(value) => {
                self.load_value(SCRATCH, *value);
                self.push(Instruction::exit());
            }
        }
    }
}
