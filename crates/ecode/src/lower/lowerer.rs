//! The state of lowering, and the operations that all parts of it share.

use super::analysis::FunctionAnalysis;
use crate::ast::Operator;
use crate::data_layout::DataLayout;
use crate::diagnostic::{Diagnostic, Span};
use crate::hooks::DenyReturn;
use crate::ir::{
    Address, AddressBase, BasicBlock, BlockId, Inst, IrFunction, IrLoop, LoopId, Register,
    ReorderedBlocks, Terminator, Value, Width, reorder,
};
use crate::typed::{self, Program};
use crate::types::{Integer, Type, U64};

/// Where a local variable is stored.
#[derive(Debug, Clone, Copy)]
pub(super) enum LocalStorage {
    Register(Register),
    Frame(u32),
}

/// The targets of `break` and `continue`.
pub(super) struct JumpTargets {
    pub(super) on_break: BlockId,
    /// `None` for a `switch` outside of loops.
    pub(super) on_continue: Option<BlockId>,
}

/// The state while a function is lowered.
pub(super) struct Lowerer<'a> {
    pub(super) program: &'a Program,
    pub(super) layout: &'a DataLayout,
    pub(super) function: &'a typed::Function,
    pub(super) blocks: Vec<Option<BasicBlock>>,
    pub(super) steps: Vec<(Inst, Span)>,
    /// The current block.
    pub(super) block: BlockId,
    /// The blocks in the order in which they were begun.
    pub(super) order: Vec<BlockId>,
    pub(super) registers: usize,
    pub(super) frame_bytes: u32,
    pub(super) storage: Vec<LocalStorage>,
    pub(super) jump_targets: Vec<JumpTargets>,
    pub(super) loops: Vec<IrLoop>,
    /// The current innermost loop.
    pub(super) within: Option<LoopId>,
    /// Whether a loop was cut short, if the function reads that.
    pub(super) is_cut_short: Option<Register>,
    pub(super) uses: FunctionAnalysis,
    /// Frame slots from which the kernel reads the keys and values of maps.
    pub(super) key_at: Option<u32>,
    pub(super) value_at: Option<u32>,
    pub(super) record_at: Option<u32>,
    /// Frame slots for structs that are being copied; the first `copies_held` are in use.
    pub(super) copies: Vec<u32>,
    pub(super) copies_held: usize,
    /// The exit of a handler that does not return directly to its caller.
    pub(super) handler_exit: Option<HandlerExit>,
    /// The helper that reads the packet, if the hook has one.
    pub(super) packet: Option<i32>,
    pub(super) is_handler: bool,
    pub(super) span: Span,
}

/// The common exit of a handler.
pub(super) struct HandlerExit {
    pub(super) block: BlockId,
    pub(super) default_return: i32,
    /// The action for a return value other than 0, and the register with the return value.
    pub(super) stop: Option<(DenyReturn, Register)>,
}

/// The maximum numbers of blocks and registers. Both are higher than what fits into a program. The
/// memory for liveness is proportional to their product.
pub(super) const MAX_BLOCKS: usize = 30_000;
pub(super) const MAX_REGISTERS: usize = 60_000;

/// The result of a step that fails if the program is too large for the kernel.
pub(super) type Lowered<T> = Result<T, Box<Diagnostic>>;

/// The width in which numbers of this type are kept.
pub(super) fn width(of: Integer) -> Width {
    if of.bits > 32 { Width::W64 } else { Width::W32 }
}

/// A constant in the width of its type.
pub(super) fn constant(value: u64, of: Integer) -> Value {
    Value::Constant(if width(of) == Width::W32 { i64::from(value as u32) } else { value as i64 })
}

impl Lowerer<'_> {
    pub(super) fn register(&mut self) -> Register {
        self.registers += 1;
        self.registers - 1
    }

    pub(super) fn frame(&mut self, bytes: u64) -> u32 {
        let offset = self.frame_bytes;
        self.frame_bytes += (bytes as u32).next_multiple_of(8);
        offset
    }

    pub(super) fn step(&mut self, step: Inst) {
        self.steps.push((step, self.span.clone()));
    }

    pub(super) fn new_block(&mut self) -> BlockId {
        self.blocks.push(None);
        self.blocks.len() - 1
    }

    /// Ends the current block. Further steps are unreachable until another block is entered.
    pub(super) fn end(&mut self, end: Terminator) {
        let block = BasicBlock {
            steps: std::mem::take(&mut self.steps),
            end,
            end_span: self.span.clone(),
            innermost_loop: self.within,
        };
        let at = &mut self.blocks[self.block];
        if at.is_none() {
            *at = Some(block);
        }
    }

    pub(super) fn enter(&mut self, block: BlockId) {
        self.block = block;
        self.order.push(block);
    }

    pub(super) fn jump_and_enter(&mut self, block: BlockId) {
        self.end(Terminator::Jump(block));
        self.enter(block);
    }

    /// Branches to `yes` or `no` on a comparison.
    pub(super) fn branch(
        &mut self,
        comparison: Operator,
        of: Integer,
        left: Value,
        right: Value,
        yes: BlockId,
        no: BlockId,
    ) {
        let is_signed = of.is_signed;
        self.end(Terminator::Branch {
            comparison,
            width: width(of),
            is_signed,
            left,
            right,
            yes,
            no,
        });
    }

    pub(super) fn add_to_control(&mut self, what: u32) {
        let one = self.register();
        self.step(Inst::Move { to: one, from: Value::Constant(1) });
        self.step(Inst::AddTo {
            to: Address::of(AddressBase::Control(what)),
            bytes: 8,
            value: one,
        });
    }

    /// Assigns storage to the parameters and local variables, and loads the parameters.
    pub(super) fn begin(&mut self) {
        for (local, is_memory) in self.function.locals.iter().zip(self.uses.is_memory.clone()) {
            let storage = match local.ty {
                Type::Array(..) | Type::Struct(_) => {
                    LocalStorage::Frame(self.frame(local.ty.size()))
                }
                _ if is_memory => LocalStorage::Frame(self.frame(local.ty.size())),
                _ => LocalStorage::Register(self.register()),
            };
            self.storage.push(storage);
        }
        let mut arguments = Vec::new();
        for parameter in 0..self.function.parameters {
            let to = match self.storage[parameter] {
                LocalStorage::Register(to) => to,
                LocalStorage::Frame(_) => self.register(),
            };
            self.step(Inst::Argument { to, index: parameter as u8 });
            arguments.push(Value::Register(to));
        }
        for (parameter, mut value) in arguments.into_iter().enumerate() {
            let of = &self.function.locals[parameter].ty;
            // An external caller may leave arbitrary bits above those of the type.
            if self.is_handler {
                value = self.converted(value, U64, of);
            }
            match self.storage[parameter] {
                LocalStorage::Register(to) if self.is_handler => {
                    self.set_local(parameter, to, value)
                }
                LocalStorage::Register(_) => {}
                LocalStorage::Frame(at) => {
                    self.write(Address::of(AddressBase::Frame(at)), of, value)
                }
            }
        }
        if self.uses.reads_cut_short {
            let flag = self.register();
            self.step(Inst::OpaqueConst { to: flag, value: 0, width: Width::W32 });
            self.is_cut_short = Some(flag);
        }
    }

    pub(super) fn clear(&mut self, at: u32, bytes: u64) {
        let zero = self.register();
        self.set(zero, Value::Constant(0), Width::W64);
        for word in 0..bytes.div_ceil(8) {
            let to = Address::of(AddressBase::Frame(at + word as u32 * 8));
            self.step(Inst::Store { to, bytes: 8, value: Value::Register(zero) });
        }
    }

    /// Removes unreachable blocks and sorts the others by the order in which they were begun, which
    /// keeps the blocks of a loop together.
    pub(super) fn finish(self) -> IrFunction {
        let ReorderedBlocks { mut blocks, new_ids } = reorder(self.blocks, &self.order);
        // A loop without a second iteration is not a loop.
        let mut loops = Vec::new();
        let mut numbers: Vec<Option<LoopId>> = Vec::new();
        for looped in &self.loops {
            let within = looped.innermost_loop.and_then(|jump_targets| numbers[jump_targets]);
            numbers.push(match (new_ids[looped.entry], new_ids[looped.cut_short]) {
                (Some(entry), Some(cut_short)) => {
                    loops.push(IrLoop { innermost_loop: within, entry, cut_short });
                    Some(loops.len() - 1)
                }
                _ => within,
            });
        }
        for block in &mut blocks {
            block.innermost_loop = block.innermost_loop.and_then(|within| numbers[within]);
        }
        IrFunction {
            name: self.function.name.clone(),
            blocks,
            loops,
            registers: self.registers,
            frame_bytes: self.frame_bytes,
            is_loop_body: false,
            span: self.function.span.clone(),
        }
    }
}
