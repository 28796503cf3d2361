//! What lies between a program and the kernel's instructions: blocks of simple steps on registers without number.
//!
//! Numbers of up to 32 bits are kept as C's promotion makes them, in 32 bits, with the others 0: as the kernel's 32-bit
//! instructions leave them.

use crate::ast::Operator;
use crate::diagnostic::Span;

pub type Register = usize;
pub type BlockId = usize;
pub type LoopId = usize;

/// By what loops go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loops {
    /// An instruction: Linux 6.9.
    MayGoto,
    /// `bpf_loop`, which calls a function for each round: Linux 5.17.
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

/// Where something is in memory, but for an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// Bytes from the beginning of the function's own memory.
    Frame(u32),
    /// Of the global variables.
    Data(u32),
    Control(u32),
    /// Of the first processor.
    Verdicts(u32),
    /// In a register that holds an address.
    Pointer(Register, u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    pub base: Base,
    /// Bytes, of which the checks before make sure that they are few enough.
    pub index: Option<Register>,
}

/// What goes to a helper of the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument {
    Value(Value),
    Address(Address),
    Map(usize),
    /// The buffer that user space reads.
    Records,
    /// What is called for each round of a loop.
    Round(LoopId),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    Move {
        to: Register,
        from: Value,
    },
    /// A number that the verifier is not to know, so that it sees that rounds of a loop are alike.
    Hide {
        to: Register,
        value: i64,
        width: Width,
    },
    /// The same for what is there already.
    Widen {
        register: Register,
        width: Width,
    },
    Operate {
        to: Register,
        operator: Operator,
        width: Width,
        is_signed: bool,
        left: Value,
        right: Value,
    },
    /// The lowest bits, extended to the whole width.
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
    /// To memory, in one step for all processors.
    AddTo {
        to: Address,
        bytes: u8,
        value: Register,
    },
    Argument {
        to: Register,
        place: u8,
    },
    /// The address of what the kernel gives a handler.
    Context {
        to: Register,
    },
    /// The other order of its bytes.
    Swap {
        to: Register,
        from: Register,
        bits: u8,
    },
    /// The hook's next plugin runs, which comes back no more; or there is none.
    Next,
    Helper {
        to: Option<Register>,
        number: i32,
        arguments: Vec<Argument>,
    },
    Call {
        to: Option<Register>,
        function: usize,
        arguments: Vec<Value>,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub enum End {
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
    /// Whether a helper has found something.
    Found {
        pointer: Register,
        yes: BlockId,
        no: BlockId,
    },
    /// `to` is the index times the size, if the index is below the length.
    Index {
        to: Register,
        index: Value,
        length: u64,
        size: u64,
        within: BlockId,
        outside: BlockId,
    },
    /// A round of a loop, or no more of them.
    Round {
        more: BlockId,
        cut_short: BlockId,
    },
    Return(Value),
}

#[derive(Debug)]
pub struct Block {
    pub steps: Vec<(Step, Span)>,
    pub end: End,
    pub end_span: Span,
    /// The innermost loop that it is in.
    pub within: Option<LoopId>,
}

#[derive(Debug)]
pub struct Loop {
    /// The next one around it.
    pub within: Option<LoopId>,
    /// Where each round begins: no other block of it is come to from outside.
    pub entry: BlockId,
    /// Where it goes on if there are to be no more rounds.
    pub cut_short: BlockId,
}

#[derive(Debug)]
pub struct Function {
    pub name: String,
    /// From the first on; the first one is where it begins.
    pub blocks: Vec<Block>,
    /// From outside in.
    pub loops: Vec<Loop>,
    pub registers: usize,
    pub frame_bytes: u32,
    /// Whether it is a round of a loop, with the frame of the function that has the loop.
    pub is_round: bool,
    pub span: Span,
}

/// The blocks that are reached, in this order.
pub fn arranged(mut blocks: Vec<Option<Block>>, order: &[BlockId]) -> Arranged {
    let mut is_reached = vec![false; blocks.len()];
    let mut way = vec![order[0]];
    while let Some(block) = way.pop() {
        if std::mem::replace(&mut is_reached[block], true) {
            continue;
        }
        let block = blocks[block].as_ref().expect("what is led to is ended");
        way.extend(block.end.leads_to());
    }
    let kept: Vec<_> = order.iter().copied().filter(|block| is_reached[*block]).collect();
    let mut places = vec![None; blocks.len()];
    kept.iter().enumerate().for_each(|(place, block)| places[*block] = Some(place));
    let place = |block: BlockId| places[block].expect("it is reached");
    let take = |block: BlockId| {
        let mut block = blocks[block].take().expect("each is begun once");
        block.end.turn(place);
        block
    };
    Arranged { blocks: kept.into_iter().map(take).collect(), places }
}

pub struct Arranged {
    pub blocks: Vec<Block>,
    /// Of each block that there was.
    pub places: Vec<Option<BlockId>>,
}

impl Function {
    pub fn has_loops(&self) -> bool {
        self.blocks.iter().any(|block| matches!(block.end, End::Round { .. }))
    }

    /// Whether the kernel's context is needed after the beginning.
    pub fn keeps_context(&self) -> bool {
        let mut steps = self.blocks.iter().flat_map(|block| &block.steps);
        steps.any(|(step, _)| matches!(step, Step::Context { .. } | Step::Next))
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
    pub fn of(base: Base) -> Self {
        Self { base, index: None }
    }

    fn registers(self) -> impl Iterator<Item = Register> {
        let base = match self.base {
            Base::Pointer(register, _) => Some(register),
            _ => None,
        };
        base.into_iter().chain(self.index)
    }
}

impl Step {
    pub fn reads(&self, mut tell: impl FnMut(Register)) {
        match self {
            Self::Move { from, .. } => from.register().into_iter().for_each(tell),
            Self::Operate { left, right, .. } => {
                [left, right].into_iter().filter_map(|value| value.register()).for_each(tell)
            }
            Self::Extend { from, .. } | Self::Swap { from, .. } => tell(*from),
            Self::Widen { register, .. } => tell(*register),
            Self::Load { from, .. } => from.registers().for_each(tell),
            Self::Store { to, value, .. } => to.registers().chain(value.register()).for_each(tell),
            Self::AddTo { to, value, .. } => to.registers().chain([*value]).for_each(tell),
            Self::Hide { .. } | Self::Argument { .. } | Self::Context { .. } | Self::Next => {}
            Self::Helper { arguments, .. } => {
                for argument in arguments {
                    match argument {
                        Argument::Value(value) => value.register().into_iter().for_each(&mut tell),
                        Argument::Address(address) => address.registers().for_each(&mut tell),
                        Argument::Map(_) | Argument::Records | Argument::Round(_) => {}
                    }
                }
            }
            Self::Call { arguments, .. } => {
                arguments.iter().filter_map(|value| value.register()).for_each(tell)
            }
        }
    }

    pub fn writes(&self) -> Option<Register> {
        match self {
            Self::Move { to, .. }
            | Self::Hide { to, .. }
            | Self::Operate { to, .. }
            | Self::Extend { to, .. }
            | Self::Load { to, .. }
            | Self::Argument { to, .. }
            | Self::Context { to }
            | Self::Swap { to, .. }
            | Self::Widen { register: to, .. } => Some(*to),
            Self::Helper { to, .. } | Self::Call { to, .. } => *to,
            Self::Store { .. } | Self::AddTo { .. } | Self::Next => None,
        }
    }

    /// The first six of the kernel's registers are lost over it.
    pub fn is_call(&self) -> bool {
        matches!(self, Self::Helper { .. } | Self::Call { .. })
    }
}

impl End {
    pub fn reads(&self, tell: impl FnMut(Register)) {
        let values = match self {
            Self::Branch { left, right, .. } => [Some(*left), Some(*right)],
            Self::Index { index, .. } => [Some(*index), None],
            Self::Found { pointer, .. } => [Some(Value::Register(*pointer)), None],
            Self::Return(value) => [Some(*value), None],
            Self::Jump(_) | Self::Round { .. } => [None, None],
        };
        values.into_iter().flatten().filter_map(Value::register).for_each(tell);
    }

    pub fn writes(&self) -> Option<Register> {
        match self {
            Self::Index { to, .. } => Some(*to),
            _ => None,
        }
    }

    /// Leads elsewhere.
    pub fn turn(&mut self, mut to: impl FnMut(BlockId) -> BlockId) {
        match self {
            Self::Jump(on) => *on = to(*on),
            Self::Branch { yes: one, no: other, .. }
            | Self::Found { yes: one, no: other, .. }
            | Self::Index { within: one, outside: other, .. }
            | Self::Round { more: one, cut_short: other } => {
                *one = to(*one);
                *other = to(*other);
            }
            Self::Return(_) => {}
        }
    }

    pub fn leads_to(&self) -> impl Iterator<Item = BlockId> {
        let (one, other) = match self {
            Self::Jump(to) => (Some(*to), None),
            Self::Branch { yes, no, .. } | Self::Found { yes, no, .. } => (Some(*yes), Some(*no)),
            Self::Index { within, outside, .. } => (Some(*within), Some(*outside)),
            Self::Round { more, cut_short } => (Some(*more), Some(*cut_short)),
            Self::Return(_) => (None, None),
        };
        one.into_iter().chain(other)
    }
}
