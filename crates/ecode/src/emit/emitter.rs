//! The state of emission, and the operations that all parts of it share.

use super::instruction::{By, FRAME, Instruction};
use crate::ast::Operator;
use crate::diagnostic::Span;
use crate::ir::{Address, AddressBase, Inst, IrFunction, LoopId, Register, Value, Width};
use crate::liveness::RegisterSet;
use crate::outline::SharedRegisters;
use crate::regalloc::{LAST_CALLEE_SAVED, StorageLocation};

/// The register for values that have no register of their own.
pub(super) const SCRATCH: u8 = 0;
/// The register for addresses.
pub(super) const ADDRESS: u8 = 1;
/// The register that has the context at the beginning of a program.
pub(super) const CONTEXT: u8 = 1;
/// The register that points to the frame of the enclosing function, if the function is a loop body.
pub(super) const OUTER_FRAME: u8 = LAST_CALLEE_SAVED;
/// The bytes of a stack word, which the verifier tracks as a unit.
pub(super) const WORD: u8 = 8;
// include/uapi/linux/bpf.h
const PSEUDO_MAP_FD: u8 = 1;
const PSEUDO_MAP_VALUE: u8 = 2;

/// Memory whose descriptor or address is known only when the program is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// The global variables and strings.
    Data,
    /// The counts of faults, and the state of the compiled code itself.
    Control,
    /// A map of the program.
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

/// The instructions of a function, and the references that linking and loading resolve.
#[derive(Debug)]
pub struct EmittedFunction {
    pub instructions: Vec<Instruction>,
    /// Instructions that need the descriptor of some memory.
    pub memory: Vec<(usize, Memory)>,
    /// Calls: the instruction and the called function.
    pub calls: Vec<(usize, usize)>,
    /// References to the functions of loop bodies: the instruction and the loop.
    pub loop_refs: Vec<(usize, LoopId)>,
    /// Source spans, each with the first of its instructions.
    pub spans: Vec<(usize, Span)>,
    pub frame_bytes: u32,
}

/// The state while a function is emitted.
pub(super) struct Emitter<'a> {
    pub(super) function: &'a IrFunction,
    pub(super) is_handler: bool,
    pub(super) shared: &'a SharedRegisters,
    pub(super) has_loops: bool,
    /// The register for a second operand that has no register of its own.
    pub(super) second: u8,
    pub(super) locations: Vec<StorageLocation>,
    /// The registers that are live at the beginning of each block.
    pub(super) live_in: Vec<RegisterSet>,
    pub(super) are_copies: Vec<bool>,
    pub(super) joins: Vec<Option<usize>>,
    pub(super) frame: u32,
    /// The offset of the saved context, below the frame.
    pub(super) context: Option<i16>,
    pub(super) out: EmittedFunction,
    /// The number of instructions after the kernel has replaced some of them by several.
    pub(super) patched_len: usize,
    /// The first instruction of each block.
    pub(super) starts: Vec<usize>,
    /// Jumps: the instruction and the target block.
    pub(super) jumps: Vec<(usize, usize)>,
}

/// The size of a value.
pub(super) fn bytes(width: Width) -> u8 {
    if width == Width::W32 { 4 } else { 8 }
}

impl Emitter<'_> {
    pub(super) fn push(&mut self, instruction: Instruction) {
        self.patched_len += instruction.patched_len();
        self.out.instructions.push(instruction);
    }

    pub(super) fn set_span(&mut self, span: &Span) {
        let at = self.out.instructions.len();
        match self.out.spans.last_mut() {
            Some((_, last)) if last == span => {}
            Some((last_at, last)) if *last_at == at => *last = span.clone(),
            _ => self.out.spans.push((at, span.clone())),
        }
    }

    /// The number of registers with parameters. A handler has one, the context.
    pub(super) fn parameters(&self) -> u8 {
        let is_argument = |(step, _): &&(Inst, Span)| matches!(step, Inst::Argument { .. });
        let all = self.function.blocks[0].steps.iter().filter(is_argument).count() as u8;
        if self.is_handler { 1 } else { all }
    }

    pub(super) fn frame_slot(&self, at: u32) -> i16 {
        at as i16 - self.frame as i16
    }

    /// The base and offset of a frame slot that a loop body may share with its function.
    pub(super) fn outer_slot(&self, at: u32) -> (u8, i16) {
        if self.function.is_loop_body {
            (OUTER_FRAME, at as i16)
        } else {
            (FRAME, self.frame_slot(at))
        }
    }

    pub(super) fn load_number(&mut self, to: u8, value: i64) {
        match i32::try_from(value) {
            Ok(value) => self.push(Instruction::set(to, By::Immediate(value))),
            Err(_) => match u32::try_from(value) {
                Ok(value) => self.push(Instruction::set_32(to, By::Immediate(value as i32))),
                Err(_) => self.load_64(to, 0, value as i32, (value >> 32) as i32),
            },
        }
    }

    pub(super) fn load_64(&mut self, to: u8, kind: u8, low: i32, high: i32) {
        Instruction::load_64(to, kind, low, high).into_iter().for_each(|half| self.push(half));
    }

    pub(super) fn load_value(&mut self, to: u8, value: Value) {
        match value {
            Value::Constant(value) => self.load_number(to, value),
            Value::Register(register) => match self.locations[register] {
                StorageLocation::Register(from) if from == to => {}
                StorageLocation::Register(from) => {
                    self.push(Instruction::set(to, By::Register(from)))
                }
                StorageLocation::Frame(at) => {
                    self.push(Instruction::load(to, FRAME, self.frame_slot(at), 8))
                }
                StorageLocation::Shared(at) => {
                    let (base, offset) = self.outer_slot(at);
                    self.push(Instruction::load(to, base, offset, 8));
                }
                StorageLocation::None => self.load_number(to, 0),
            },
        }
    }

    /// Returns the value's own register, or loads the value into `scratch`.
    pub(super) fn operand(&mut self, value: Value, scratch: u8) -> u8 {
        if let Value::Register(register) = value
            && let StorageLocation::Register(own) = self.locations[register]
        {
            return own;
        }
        self.load_value(scratch, value);
        scratch
    }

    /// A value as a second operand, which may be a constant.
    pub(super) fn by(&mut self, value: Value, width: Width) -> By {
        match (value, width) {
            (Value::Constant(value), Width::W32) => By::Immediate(value as i32),
            (Value::Constant(value), Width::W64) if i32::try_from(value).is_ok() => {
                By::Immediate(value as i32)
            }
            _ => By::Register(self.operand(value, self.second)),
        }
    }

    /// The register to compute a result in, before the result is stored.
    pub(super) fn target(&self, to: Register) -> u8 {
        match self.locations[to] {
            StorageLocation::Register(register) => register,
            _ => SCRATCH,
        }
    }

    /// Stores a result. A result that is carried to the next iteration of a loop is widened,
    /// because it may differ in each iteration. Kernels that verify a loop body only once must not
    /// assume the value of the first iteration.
    pub(super) fn store_result(&mut self, to: Register, from: u8) {
        if self.shared.is_loop_carried(to) {
            self.widen(from, Width::W64);
        }
        self.store_opaque(to, from);
    }

    pub(super) fn store_opaque(&mut self, to: Register, from: u8) {
        match self.locations[to] {
            StorageLocation::Register(register) if register == from => {}
            StorageLocation::Register(register) => {
                self.push(Instruction::set(register, By::Register(from)))
            }
            StorageLocation::Frame(at) => {
                let instruction =
                    Instruction::store(FRAME, self.frame_slot(at), 8, By::Register(from));
                self.push(instruction);
            }
            StorageLocation::Shared(at) => {
                let (base, offset) = self.outer_slot(at);
                self.push(Instruction::store(base, offset, 8, By::Register(from)));
            }
            StorageLocation::None => {}
        }
    }

    /// A register with the base of an address, and the offset to add.
    pub(super) fn address(&mut self, address: Address) -> (u8, i16) {
        let (base, offset) = match address.base {
            AddressBase::Frame(at) if address.index.is_none() => return self.outer_slot(at),
            AddressBase::Frame(at) => {
                let (base, offset) = self.outer_slot(at);
                self.push(Instruction::set(ADDRESS, By::Register(base)));
                self.push(Instruction::operate(
                    Operator::Add,
                    Width::W64,
                    false,
                    ADDRESS,
                    By::Immediate(offset.into()),
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

    pub(super) fn map_value(&mut self, memory: Memory, at: u32) -> u8 {
        self.map_value_in(ADDRESS, memory, at)
    }

    pub(super) fn map_value_in(&mut self, register: u8, memory: Memory, at: u32) -> u8 {
        self.out.memory.push((self.out.instructions.len(), memory));
        self.load_64(register, PSEUDO_MAP_VALUE, 0, at as i32);
        register
    }

    pub(super) fn load_context(&mut self, to: u8) {
        let (base, at) = match self.context {
            Some(context) => (FRAME, context),
            // The function that has the loop saves the context below its frame.
            None => (OUTER_FRAME, -i16::from(WORD)),
        };
        self.push(Instruction::load(to, base, at, WORD));
    }

    pub(super) fn descriptor(&mut self, register: u8, of: Memory) {
        self.out.memory.push((self.out.instructions.len(), of));
        self.load_64(register, PSEUDO_MAP_FD, 0, 0);
    }
}
