//! The intermediate representation: blocks of simple steps on an unlimited number of virtual
//! registers.
//!
//! Numbers of up to 32 bits are kept in 32 bits, as C's promotion converts them. The upper 32 bits
//! of their registers are 0, as the kernel's 32-bit instructions leave them.

use crate::ast::Operator;
use crate::diagnostic::Span;

pub type Register = usize;
pub type BlockId = usize;
pub type LoopId = usize;

/// The mechanism for loops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loops {
    /// The instruction may_goto, since Linux 6.9.
    MayGoto,
    /// `bpf_loop`, which calls a function for each iteration, since Linux 5.17.
    Helper,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    Register(Register),
    Constant(i64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Width {
    W32,
    W64,
}

/// An address in memory, without an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressBase {
    /// An offset from the beginning of the function's frame.
    Frame(u32),
    /// An offset in the memory of global variables.
    Data(u32),
    Control(u32),
    /// An offset in the verdict of the first processor.
    Verdicts(u32),
    /// An address in a register, and an offset.
    Pointer(Register, u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    pub base: AddressBase,
    /// An offset in bytes; earlier steps have checked its bounds.
    pub index: Option<Register>,
}

/// An argument of a kernel helper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HelperArgument {
    Value(Value),
    Address(Address),
    Map(usize),
    /// The ring buffer for records to user space.
    Records,
    /// The function that is called for each iteration of a loop.
    LoopBack(LoopId),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Inst {
    Move {
        to: Register,
        from: Value,
    },
    /// Sets a register to a number that the verifier does not know, so that the verifier finds
    /// iterations of a loop equal.
    OpaqueConst {
        to: Register,
        value: i64,
        width: Width,
    },
    /// Hides the present number of a register from the verifier.
    Opaque {
        register: Register,
        width: Width,
    },
    BinaryOp {
        to: Register,
        operator: Operator,
        width: Width,
        is_signed: bool,
        left: Value,
        right: Value,
    },
    /// Extends the lowest bits to the whole width.
    Extend {
        to: Register,
        from: Register,
        bits: u8,
        is_signed: bool,
        width: Width,
    },
    Load {
        to: Register,
        from: Address,
        bytes: u8,
    },
    Store {
        to: Address,
        bytes: u8,
        value: Value,
    },
    /// Adds to memory atomically.
    AddTo {
        to: Address,
        bytes: u8,
        value: Register,
    },
    Argument {
        to: Register,
        index: u8,
    },
    /// The address of the program's context.
    Context {
        to: Register,
    },
    /// Reverses the bytes.
    ByteSwap {
        to: Register,
        from: Register,
        bits: u8,
    },
    /// Calls the next plugin of the hook, which does not return. If none exists, execution
    /// continues.
    TailCall,
    Helper {
        to: Option<Register>,
        number: i32,
        arguments: Vec<HelperArgument>,
    },
    Call {
        to: Option<Register>,
        function: usize,
        arguments: Vec<Value>,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub enum Terminator {
    Jump(BlockId),
    Branch {
        comparison: Operator,
        width: Width,
        is_signed: bool,
        left: Value,
        right: Value,
        yes: BlockId,
        no: BlockId,
    },
    /// Branches on whether a helper returned a pointer.
    NullCheck {
        pointer: Register,
        yes: BlockId,
        no: BlockId,
    },
    /// If the index is below the length, sets `to` to the index times the size.
    BoundsCheck {
        to: Register,
        index: Value,
        length: u64,
        size: u64,
        within: BlockId,
        outside: BlockId,
    },
    /// Starts the next iteration of a loop, unless the kernel cuts the loop short.
    LoopBack {
        more: BlockId,
        cut_short: BlockId,
    },
    Return(Value),
}

#[derive(Debug)]
pub struct BasicBlock {
    pub steps: Vec<(Inst, Span)>,
    pub end: Terminator,
    pub end_span: Span,
    /// The innermost loop around the block.
    pub innermost_loop: Option<LoopId>,
}

#[derive(Debug)]
pub struct IrLoop {
    /// The innermost loop around this one.
    pub innermost_loop: Option<LoopId>,
    /// The block at which each iteration begins. No edge from outside leads to another block of the
    /// loop.
    pub entry: BlockId,
    /// The block that is reached if the loop is cut short.
    pub cut_short: BlockId,
}

#[derive(Debug)]
pub struct IrFunction {
    pub name: String,
    /// The blocks; the function begins at the first one.
    pub blocks: Vec<BasicBlock>,
    /// The loops, an outer one before its inner ones.
    pub loops: Vec<IrLoop>,
    pub registers: usize,
    pub frame_bytes: u32,
    /// Whether the function is a loop body, with access to the frame of the function that has the
    /// loop.
    pub is_loop_body: bool,
    pub span: Span,
}

/// Removes unreachable blocks and puts the others into this order.
pub fn reorder(mut blocks: Vec<Option<BasicBlock>>, order: &[BlockId]) -> ReorderedBlocks {
    let mut is_reached = vec![false; blocks.len()];
    let mut pending = vec![order[0]];
    while let Some(block) = pending.pop() {
        if std::mem::replace(&mut is_reached[block], true) {
            continue;
        }
        let block = blocks[block].as_ref().expect("what is led to is ended");
        pending.extend(block.end.successors());
    }
    let reached: Vec<_> = order.iter().copied().filter(|block| is_reached[*block]).collect();
    let mut new_ids = vec![None; blocks.len()];
    reached.iter().enumerate().for_each(|(id, block)| new_ids[*block] = Some(id));
    let new_id = |block: BlockId| new_ids[block].expect("it is reached");
    let take = |block: BlockId| {
        let mut block = blocks[block].take().expect("each is begun once");
        block.end.map_targets(new_id);
        block
    };
    ReorderedBlocks { blocks: reached.into_iter().map(take).collect(), new_ids }
}

pub struct ReorderedBlocks {
    pub blocks: Vec<BasicBlock>,
    /// The new ID of each former block; `None` if it was unreachable.
    pub new_ids: Vec<Option<BlockId>>,
}

impl IrFunction {
    pub fn has_loops(&self) -> bool {
        self.blocks.iter().any(|block| matches!(block.end, Terminator::LoopBack { .. }))
    }

    /// Whether the context is needed after the beginning of the function.
    pub fn keeps_context(&self) -> bool {
        let mut steps = self.blocks.iter().flat_map(|block| &block.steps);
        steps.any(|(step, _)| matches!(step, Inst::Context { .. } | Inst::TailCall))
    }

    pub fn has_calls(&self) -> bool {
        self.blocks.iter().flat_map(|block| &block.steps).any(|(step, _)| step.is_call())
    }
}

impl Value {
    pub fn register(self) -> Option<Register> {
        match self {
            Self::Register(register) => Some(register),
            Self::Constant(_) => None,
        }
    }
}

impl Address {
    pub fn of(base: AddressBase) -> Self {
        Self { base, index: None }
    }

    fn registers(self) -> impl Iterator<Item = Register> {
        let base = match self.base {
            AddressBase::Pointer(register, _) => Some(register),
            _ => None,
        };
        base.into_iter().chain(self.index)
    }
}

impl Inst {
    pub fn reads(&self, mut visit: impl FnMut(Register)) {
        match self {
            Self::Move { from, .. } => from.register().into_iter().for_each(visit),
            Self::BinaryOp { left, right, .. } => {
                [left, right].into_iter().filter_map(|value| value.register()).for_each(visit)
            }
            Self::Extend { from, .. } | Self::ByteSwap { from, .. } => visit(*from),
            Self::Opaque { register, .. } => visit(*register),
            Self::Load { from, .. } => from.registers().for_each(visit),
            Self::Store { to, value, .. } => to.registers().chain(value.register()).for_each(visit),
            Self::AddTo { to, value, .. } => to.registers().chain([*value]).for_each(visit),
            Self::OpaqueConst { .. }
            | Self::Argument { .. }
            | Self::Context { .. }
            | Self::TailCall => {}
            Self::Helper { arguments, .. } => {
                for argument in arguments {
                    match argument {
                        HelperArgument::Value(value) => {
                            value.register().into_iter().for_each(&mut visit)
                        }
                        HelperArgument::Address(address) => {
                            address.registers().for_each(&mut visit)
                        }
                        HelperArgument::Map(_)
                        | HelperArgument::Records
                        | HelperArgument::LoopBack(_) => {}
                    }
                }
            }
            Self::Call { arguments, .. } => {
                arguments.iter().filter_map(|value| value.register()).for_each(visit)
            }
        }
    }

    pub fn writes(&self) -> Option<Register> {
        match self {
            Self::Move { to, .. }
            | Self::OpaqueConst { to, .. }
            | Self::BinaryOp { to, .. }
            | Self::Extend { to, .. }
            | Self::Load { to, .. }
            | Self::Argument { to, .. }
            | Self::Context { to }
            | Self::ByteSwap { to, .. }
            | Self::Opaque { register: to, .. } => Some(*to),
            Self::Helper { to, .. } | Self::Call { to, .. } => *to,
            Self::Store { .. } | Self::AddTo { .. } | Self::TailCall => None,
        }
    }

    /// Whether the step overwrites the first six registers of the kernel.
    pub fn is_call(&self) -> bool {
        matches!(self, Self::Helper { .. } | Self::Call { .. })
    }
}

impl Terminator {
    pub fn reads(&self, visit: impl FnMut(Register)) {
        let values = match self {
            Self::Branch { left, right, .. } => [Some(*left), Some(*right)],
            Self::BoundsCheck { index, .. } => [Some(*index), None],
            Self::NullCheck { pointer, .. } => [Some(Value::Register(*pointer)), None],
            Self::Return(value) => [Some(*value), None],
            Self::Jump(_) | Self::LoopBack { .. } => [None, None],
        };
        values.into_iter().flatten().filter_map(Value::register).for_each(visit);
    }

    pub fn writes(&self) -> Option<Register> {
        match self {
            Self::BoundsCheck { to, .. } => Some(*to),
            _ => None,
        }
    }

    /// Replaces the targets.
    pub fn map_targets(&mut self, mut to: impl FnMut(BlockId) -> BlockId) {
        match self {
            Self::Jump(on) => *on = to(*on),
            Self::Branch { yes: one, no: other, .. }
            | Self::NullCheck { yes: one, no: other, .. }
            | Self::BoundsCheck { within: one, outside: other, .. }
            | Self::LoopBack { more: one, cut_short: other } => {
                *one = to(*one);
                *other = to(*other);
            }
            Self::Return(_) => {}
        }
    }

    pub fn successors(&self) -> impl Iterator<Item = BlockId> {
        let (one, other) = match self {
            Self::Jump(to) => (Some(*to), None),
            Self::Branch { yes, no, .. } | Self::NullCheck { yes, no, .. } => {
                (Some(*yes), Some(*no))
            }
            Self::BoundsCheck { within, outside, .. } => (Some(*within), Some(*outside)),
            Self::LoopBack { more, cut_short } => (Some(*more), Some(*cut_short)),
            Self::Return(_) => (None, None),
        };
        one.into_iter().chain(other)
    }
}
