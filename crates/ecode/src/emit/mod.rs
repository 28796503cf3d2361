//! Blocks of steps into the kernel's instructions.

pub mod btf;
mod instruction;
mod verifier;

use instruction::FRAME;
pub use instruction::{By, Instruction};

use crate::allocate::{Allocated, Home, LAST_KEPT, Set, allocate};
use crate::ast::Operator;
use crate::diagnostic::{Diagnostic, Span};
use crate::ir::{Address, Argument, Base, End, Function, LoopId, Register, Step, Value, Width};
use crate::layout::ZERO;
use crate::outline::Kept;
use crate::ways::joins;

/// For what has no register of its own.
const SCRATCH: u8 = 0;
const ADDRESS: u8 = 1;
/// Where it is at the beginning.
const CONTEXT: u8 = 1;
/// Where the function's frame is that a round of a loop has.
const OUTER_FRAME: u8 = LAST_KEPT;
/// And as what it comes in, behind the number of the round.
const ROUND_FRAME: u8 = 2;
/// Bytes that the verifier follows together.
const WORD: u8 = 8;
/// A jump's offset has 16 bits, also after the kernel has put several instructions where there was one.
const MOST_INSTRUCTIONS: usize = 32_000;
/// include/uapi/linux/bpf.h
const PSEUDO_MAP_FD: u8 = 1;
const PSEUDO_MAP_VALUE: u8 = 2;
const PSEUDO_FUNC: u8 = 4;
/// enum bpf_func_id
const TAIL_CALL: i32 = 12;

/// What only the kernel knows at the time of loading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    Data,
    Control,
    Map(usize),
    /// What is told to user space goes there.
    Records,
    /// Which plugin is next, in the place of the one that runs.
    Next,
    /// The hook's plugins.
    Slots,
    /// What the guard has said last, on each processor.
    Verdicts,
}

#[derive(Debug)]
pub struct Emitted {
    pub instructions: Vec<Instruction>,
    /// Which instruction needs a map's descriptor.
    pub memory: Vec<(usize, Memory)>,
    /// Which instruction calls which function.
    pub calls: Vec<(usize, usize)>,
    /// Which instruction is about the rounds of which of its loops.
    pub rounds: Vec<(usize, LoopId)>,
    /// From which instruction on it is about which part of the text.
    pub spans: Vec<(usize, Span)>,
    pub frame_bytes: u32,
}

struct Emitter<'a> {
    function: &'a Function,
    is_handler: bool,
    kept: &'a Kept,
    has_loops: bool,
    /// For a second operand without a register of its own.
    second: u8,
    homes: Vec<Home>,
    needed: Vec<Set>,
    are_copies: Vec<bool>,
    joins: Vec<Option<usize>>,
    frame: u32,
    /// Below the frame, where it is kept.
    context: Option<i16>,
    out: Emitted,
    /// As how many instructions the kernel runs them.
    patched: usize,
    /// Where blocks begin.
    starts: Vec<usize>,
    /// Which instruction jumps to which block.
    jumps: Vec<(usize, usize)>,
}

/// `keeps_context`: a handler does, or a loop of it that is a function of its own.
pub fn emit(
    function: &Function,
    kept: &Kept,
    is_handler: bool,
    keeps_context: bool,
    most_bytes: u32,
) -> Result<Emitted, Box<Diagnostic>> {
    let Allocated { homes, frame_bytes: frame, needed } = allocate(function, kept);
    let context = keeps_context && !function.is_round;
    let frame_bytes = if context { frame + u32::from(WORD) } else { frame };
    if frame_bytes > most_bytes {
        return Err(needs_too_much(&function.name, &function.span, frame_bytes, most_bytes));
    }
    let out = Emitted {
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
        second: if function.has_loops() { LAST_KEPT } else { ADDRESS },
        homes,
        needed,
        are_copies: verifier::copies(function),
        joins: joins(function),
        frame,
        context: context.then_some(-(frame as i16) - i16::from(WORD)),
        out,
        patched: 0,
        starts: Vec::new(),
        jumps: Vec::new(),
    };
    // The kernel wants to know where each function begins.
    emitter.out.spans.push((0, function.span.clone()));
    if let Some(context) = emitter.context {
        emitter.push(Instruction::store(FRAME, context, WORD, By::Register(CONTEXT)));
    }
    if function.is_round {
        emitter.push(Instruction::set(OUTER_FRAME, By::Register(ROUND_FRAME)));
    } else if emitter.has_loops || kept.is_outlined() {
        emitter.fill();
    }
    for number in 0..function.blocks.len() {
        emitter.block(number);
        if emitter.patched > MOST_INSTRUCTIONS {
            return Err(too_large(&function.name, &function.span));
        }
    }
    for (at, block) in std::mem::take(&mut emitter.jumps) {
        emitter.out.instructions[at].offset = (emitter.starts[block] as i64 - at as i64 - 1) as i16;
    }
    Ok(emitter.out)
}

pub fn too_large(function: &str, span: &Span) -> Box<Diagnostic> {
    let message = format!("`{function}` would have more than {MOST_INSTRUCTIONS} instructions");
    Box::new(Diagnostic::error(span.clone(), message).help("make several functions of it"))
}

/// `bytes` of the kernel's memory for functions.
pub fn needs_too_much(function: &str, span: &Span, bytes: u32, most_bytes: u32) -> Box<Diagnostic> {
    let message = format!(
        "`{function}` and what it calls need {bytes} bytes at a time, and the kernel gives {most_bytes}"
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
        self.patched += instruction.patched();
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

    /// How many of the kernel's registers hold what comes in: a handler gets where its arguments are.
    fn parameters(&self) -> u8 {
        let is_argument = |(step, _): &&(Step, Span)| matches!(step, Step::Argument { .. });
        let all = self.function.blocks[0].steps.iter().filter(is_argument).count() as u8;
        if self.is_handler { 1 } else { all }
    }

    fn block(&mut self, number: usize) {
        self.starts.push(self.out.instructions.len());
        let block = &self.function.blocks[number];
        if self.has_loops {
            self.level_join(number);
        }
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

    /// The same for what a round has together with its function.
    fn outer_place(&self, at: u32) -> (u8, i16) {
        if self.function.is_round { (OUTER_FRAME, at as i16) } else { (FRAME, self.place(at)) }
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
                Home::Register(from) if from == to => {}
                Home::Register(from) => self.push(Instruction::set(to, By::Register(from))),
                Home::Frame(at) => self.push(Instruction::load(to, FRAME, self.place(at), 8)),
                Home::Kept(at) => {
                    let (base, place) = self.outer_place(at);
                    self.push(Instruction::load(to, base, place, 8));
                }
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
            _ => By::Register(self.operand(value, self.second)),
        }
    }

    /// Where a result is made, which then is to be kept.
    fn target(&self, to: Register) -> u8 {
        match self.homes[to] {
            Home::Register(register) => register,
            _ => SCRATCH,
        }
    }

    /// What one round has from the one before may be another number in each: kernels that look at a round only once are not to take
    /// it for the first one's.
    fn keep(&mut self, to: Register, from: u8) {
        if self.kept.is_carried(to) {
            self.widen(from, Width::W64);
        }
        self.keep_unknown(to, from);
    }

    fn keep_unknown(&mut self, to: Register, from: u8) {
        match self.homes[to] {
            Home::Register(register) if register == from => {}
            Home::Register(register) => self.push(Instruction::set(register, By::Register(from))),
            Home::Frame(at) => {
                let instruction = Instruction::store(FRAME, self.place(at), 8, By::Register(from));
                self.push(instruction);
            }
            Home::Kept(at) => {
                let (base, place) = self.outer_place(at);
                self.push(Instruction::store(base, place, 8, By::Register(from)));
            }
            Home::None => {}
        }
    }

    /// A register with the address, but for what is added to it.
    fn address(&mut self, address: Address) -> (u8, i16) {
        let (base, offset) = match address.base {
            Base::Frame(at) if address.index.is_none() => return self.outer_place(at),
            Base::Frame(at) => {
                let (base, place) = self.outer_place(at);
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
            Base::Data(at) => (self.map_value(Memory::Data, at), 0),
            Base::Control(at) => (self.map_value(Memory::Control, at), 0),
            Base::Verdicts(at) => (self.map_value(Memory::Verdicts, at), 0),
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

    fn step(&mut self, step: &Step) {
        match step {
            Step::Move { to, from } => {
                let target = self.target(*to);
                self.load_value(target, *from);
                self.keep(*to, target);
            }
            Step::Hide { to, value, width } => {
                let width = if self.kept.is_carried(*to) { Width::W64 } else { *width };
                let base = self.map_value(Memory::Control, ZERO);
                let target = self.target(*to);
                self.push(Instruction::load(target, base, 0, bytes(width)));
                if *value != 0 {
                    let by = self.by(Value::Constant(*value), width);
                    self.push(Instruction::operate(Operator::Add, width, false, target, by));
                }
                self.keep_unknown(*to, target);
            }
            // As it always is.
            Step::Widen { register, .. } if self.kept.is_carried(*register) => {}
            Step::Widen { register, width } => {
                let target = self.target(*register);
                self.load_value(target, Value::Register(*register));
                self.widen(target, *width);
                self.keep(*register, target);
            }
            Step::Operate { to, operator, width, is_signed, left, right } => {
                let is_shift = matches!(operator, Operator::ShiftLeft | Operator::ShiftRight);
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
                let is_in_frame = matches!(to.base, Base::Frame(_)) && to.index.is_none();
                let is_followed = self.has_loops || self.kept.is_outlined();
                if is_followed && is_in_frame && offset % i16::from(WORD) == 0 {
                    self.scrub(base, offset);
                }
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
                    self.keep_unknown(*to, target);
                } else {
                    self.keep_unknown(*to, place + 1);
                    if self.has_loops && self.function.has_calls() {
                        // No number any longer, for the same reason as in `fill`.
                        self.push(Instruction::set(place + 1, By::Register(FRAME)));
                    }
                }
            }
            Step::Context { to } => {
                let target = self.target(*to);
                self.load_context(target);
                self.keep(*to, target);
            }
            Step::Swap { to, from, bits } => {
                let target = self.target(*to);
                self.load_value(target, Value::Register(*from));
                self.push(Instruction::to_big_endian(target, *bits));
                self.keep(*to, target);
            }
            Step::Next => self.next(),
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

    fn load_context(&mut self, to: u8) {
        let (base, at) = match self.context {
            Some(context) => (FRAME, context),
            // Below the frame that a round has in common with its function.
            None => (OUTER_FRAME, -i16::from(WORD)),
        };
        self.push(Instruction::load(to, base, at, WORD));
    }

    /// Nothing of what was in registers is there after it.
    fn next(&mut self) {
        const SLOTS: u8 = 2;
        const NUMBER: u8 = 3;
        self.map_value_in(NUMBER, Memory::Next, 0);
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

    fn argument(&mut self, register: u8, argument: &Argument) {
        match argument {
            Argument::Value(value) => self.load_value(register, *value),
            Argument::Map(map) => self.descriptor(register, Memory::Map(*map)),
            Argument::Records => self.descriptor(register, Memory::Records),
            Argument::Round(of) => {
                self.out.rounds.push((self.out.instructions.len(), *of));
                self.load_64(register, PSEUDO_FUNC, 0, 0);
            }
            Argument::Address(address) => {
                // All but what is in the frame goes by the first one: no argument is to be there yet.
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

    fn jump_to(&mut self, instruction: Instruction, block: usize) {
        self.jumps.push((self.out.instructions.len(), block));
        self.push(instruction);
    }

    fn go_on_to(&mut self, block: usize, next: usize) {
        if block != next {
            self.jump_to(Instruction::jump(), block);
        }
    }

    /// With one jump where either block comes next. Not in loops: the verifier looks at what comes next before it looks at what is
    /// jumped to, and has to leave a loop first (docs/decisions/0006-plugin.md).
    fn part(
        &mut self,
        comparison: Operator,
        jump: impl Fn(Operator) -> Instruction,
        [yes, no]: [usize; 2],
        next: usize,
    ) {
        if yes == next && self.function.blocks[next - 1].within.is_none() {
            return self.jump_to(jump(comparison.opposite()), no);
        }
        self.jump_to(jump(comparison), yes);
        self.go_on_to(no, next);
    }

    fn end(&mut self, end: &End, next: usize) {
        match end {
            End::Jump(to) => {
                if matches!(self.function.blocks[*to].end, End::Round { .. }) {
                    self.level_round(*to, next);
                }
                self.go_on_to(*to, next);
            }
            End::Branch { comparison, width, is_signed, left, right, yes, no } => {
                let left = self.looked_at(*left, SCRATCH, [*yes, *no]);
                let right = match (right, self.by(*right, *width)) {
                    (Value::Register(_), By::Register(_)) => {
                        By::Register(self.looked_at(*right, self.second, [*yes, *no]))
                    }
                    (_, by) => by,
                };
                let jump = |comparison| Instruction::jump_if(comparison, *width, *is_signed, left, right);
                self.part(*comparison, jump, [*yes, *no], next);
            }
            End::Found { pointer, yes, no } => {
                let pointer = self.operand(Value::Register(*pointer), SCRATCH);
                let none = By::Immediate(0);
                let jump = |comparison| Instruction::jump_if(comparison, Width::W64, false, pointer, none);
                self.part(Operator::NotEqual, jump, [*yes, *no], next);
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
                let is_outside = Operator::GreaterEqual;
                self.jump_to(Instruction::jump_if(is_outside, Width::W64, false, target, length), *outside);
                if *size != 1 {
                    let size = By::Immediate(*size as i32);
                    self.push(Instruction::operate(Operator::Multiply, Width::W64, false, target, size));
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
