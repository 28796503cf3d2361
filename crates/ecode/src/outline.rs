//! Turns loop bodies into functions, which the kernel calls for each iteration (`bpf_loop`), for
//! kernels that have no other kind of loop.
//!
//! A loop body can access the frame of the function that has the loop. That frame has the registers
//! that are needed both in the loop body and outside of it, the number of iterations that remain
//! for all loops of the function together, and the exit target of the loop that ended last.

use std::collections::{BTreeSet, HashMap};

use crate::ast::Operator;
use crate::ir::{
    Address, AddressBase, BasicBlock, BlockId, HelperArgument, Inst, IrFunction, LoopId, Register,
    Terminator, Value, Width, reorder,
};
use crate::liveness::{RegisterSet, live_in, live_intervals};
use crate::spill_slots::SpillSlots;

/// include/uapi/linux/bpf.h, enum bpf_func_id
pub const LOOP: i32 = 181;
/// BPF_MAX_LOOPS, include/linux/bpf_verifier.h
const MAX_ITERATIONS: i64 = 8 << 20;
/// The results of a loop body.
const CONTINUE: Value = Value::Constant(0);
const BREAK: Value = Value::Constant(1);

/// The registers with a slot in the shared frame, each with its offset and whether it is
/// loop-carried. An iteration uses the value of a loop-carried register from the iteration before.
#[derive(Default)]
pub struct SharedRegisters(Vec<Option<(u32, bool)>>);

impl SharedRegisters {
    pub fn each(&self) -> impl Iterator<Item = (Register, u32)> {
        self.0
            .iter()
            .enumerate()
            .filter_map(|(register, slot)| slot.map(|(offset, _)| (register, offset)))
    }

    pub fn has(&self, register: Register) -> bool {
        self.0.get(register).is_some_and(Option::is_some)
    }

    pub fn is_loop_carried(&self, register: Register) -> bool {
        self.0.get(register).is_some_and(|slot| slot.is_some_and(|(_, is_carried)| is_carried))
    }

    /// Whether the loop bodies of the function are functions of their own.
    pub fn is_outlined(&self) -> bool {
        !self.0.is_empty()
    }
}

/// Splits a function into the function itself and the bodies of its loops.
pub fn outline(mut function: IrFunction) -> (Vec<IrFunction>, SharedRegisters) {
    if function.loops.is_empty() {
        return (vec![function], SharedRegisters::default());
    }
    let shared = shared_registers(&mut function);
    let mut new_slot = || {
        function.frame_bytes += 8;
        function.frame_bytes - 8
    };
    let (iterations_left, exit_target, result) = (new_slot(), new_slot(), new_slot());
    let exits = exits(&function);
    let mut whole = OutlineState { function, exits, iterations_left, exit_target, result };
    let parts = std::iter::once(None).chain((0..whole.function.loops.len()).map(Some));
    let functions =
        parts.map(|own| RegionBuilder::new(&mut whole, own).finish_function()).collect();
    (functions, shared)
}

/// The loops around a block, the innermost first.
fn enclosing_loops(function: &IrFunction, block: BlockId) -> impl Iterator<Item = LoopId> {
    std::iter::successors(function.blocks[block].innermost_loop, |inner| {
        function.loops[*inner].innermost_loop
    })
}

/// Finds the registers that a loop reads or writes and that are live on an edge into the loop, out
/// of it or to its next iteration.
fn shared_registers(function: &mut IrFunction) -> SharedRegisters {
    let empty = || vec![RegisterSet::new(function.registers); function.loops.len()];
    let (mut used, mut written) = (empty(), empty());
    for number in 0..function.blocks.len() {
        for looped in enclosing_loops(function, number) {
            let block = &function.blocks[number];
            let (used, written) = (&mut used[looped], &mut written[looped]);
            let mut write = |register: Register| {
                used.insert(register);
                written.insert(register);
            };
            block.steps.iter().filter_map(|(step, _)| step.writes()).for_each(&mut write);
            block.end.writes().into_iter().for_each(write);
            block.steps.iter().for_each(|(step, _)| step.reads(|register| used.insert(register)));
            block.end.reads(|register| used.insert(register));
        }
    }
    let live_in = live_in(function);
    let mut is_shared = vec![None; function.registers];
    for (number, block) in function.blocks.iter().enumerate() {
        for to in block.end.successors() {
            let from: Vec<_> = enclosing_loops(function, number).collect();
            let into: Vec<_> = enclosing_loops(function, to).collect();
            let is_next =
                |looped: &LoopId| from.contains(looped) && function.loops[*looped].entry == to;
            let enters = into.iter().filter(|looped| !from.contains(looped));
            let leaves = from.iter().filter(|looped| !into.contains(looped));
            for looped in enters.chain(leaves).chain(into.iter().filter(|looped| is_next(looped))) {
                for register in
                    live_in[to].iter().filter(|register| used[*looped].contains(*register))
                {
                    let is_carried = is_next(looped) && written[*looped].contains(register);
                    *is_shared[register].get_or_insert(false) |= is_carried;
                }
            }
        }
    }
    let mut slots = SpillSlots::above_frame(function.frame_bytes);
    let mut shared = vec![None; function.registers];
    for interval in live_intervals(function, &live_in) {
        if let Some(is_carried) = is_shared[interval.register] {
            shared[interval.register] = Some((slots.alloc(&interval), is_carried));
        }
    }
    function.frame_bytes = slots.frame_bytes;
    SharedRegisters(shared)
}

/// The exit targets of each loop. The number after the last block stands for the function's end.
fn exits(function: &IrFunction) -> Vec<BTreeSet<BlockId>> {
    let mut exits = vec![BTreeSet::new(); function.loops.len()];
    for (number, block) in function.blocks.iter().enumerate() {
        let end = matches!(block.end, Terminator::Return(_)).then_some(function.blocks.len());
        // `cut_short` is not an exit target here: the caller of `bpf_loop` checks for that case.
        let on = match block.end {
            Terminator::LoopBack { more, .. } => vec![more],
            _ => block.end.successors().chain(end).collect(),
        };
        for to in on {
            let into: Vec<_> = match to == function.blocks.len() {
                true => Vec::new(),
                false => enclosing_loops(function, to).collect(),
            };
            enclosing_loops(function, number).filter(|looped| !into.contains(looped)).for_each(
                |looped| {
                    exits[looped].insert(to);
                },
            );
        }
    }
    exits
}

struct OutlineState {
    function: IrFunction,
    exits: Vec<BTreeSet<BlockId>>,
    iterations_left: u32,
    exit_target: u32,
    result: u32,
}

/// Builds one function: a loop body, or the code outside of all loops. Loops within it become
/// functions of their own.
struct RegionBuilder<'a> {
    whole: &'a mut OutlineState,
    own: Option<LoopId>,
    /// The blocks of the original function under their numbers, then new ones.
    blocks: Vec<Option<BasicBlock>>,
    order: Vec<BlockId>,
    /// For each block of the original function, the block that replaces it as a target here.
    jump_targets: HashMap<BlockId, BlockId>,
    registers: usize,
}

impl<'a> RegionBuilder<'a> {
    fn new(whole: &'a mut OutlineState, own: Option<LoopId>) -> Self {
        // One more block, for the function's end.
        let blocks = (0..=whole.function.blocks.len()).map(|_| None).collect();
        let registers = whole.function.registers;
        Self { whole, own, blocks, order: Vec::new(), jump_targets: HashMap::new(), registers }
    }

    fn finish_function(mut self) -> IrFunction {
        let first = self.own.map_or(0, |own| self.whole.function.loops[own].entry);
        let all = 0..self.whole.function.blocks.len();
        for block in std::iter::once(first).chain(all.filter(|block| *block != first)) {
            if self.within(block) == self.own {
                self.copy(block);
            }
        }
        let function = &self.whole.function;
        IrFunction {
            name: function.name.clone(),
            blocks: reorder(self.blocks, &self.order).blocks,
            loops: Vec::new(),
            registers: self.registers,
            frame_bytes: if self.own.is_none() { function.frame_bytes } else { 0 },
            is_loop_body: self.own.is_some(),
            span: self.own.map_or(&function.span, |_| &function.blocks[first].end_span).clone(),
        }
    }

    fn within(&self, block: BlockId) -> Option<LoopId> {
        self.whole.function.blocks.get(block).and_then(|block| block.innermost_loop)
    }

    fn register(&mut self) -> Register {
        self.registers += 1;
        self.registers - 1
    }

    fn new_block(&mut self) -> BlockId {
        self.blocks.push(None);
        self.blocks.len() - 1
    }

    fn add_block(&mut self, block: BlockId, steps: Vec<Inst>, end: Terminator) {
        let about = self.own.map_or(0, |own| self.whole.function.loops[own].entry);
        let span = self.whole.function.blocks[about].end_span.clone();
        let steps = steps.into_iter().map(|step| (step, span.clone())).collect();
        self.blocks[block] = Some(BasicBlock { steps, end, end_span: span, innermost_loop: None });
        self.order.push(block);
    }

    fn copy(&mut self, number: BlockId) {
        let block = &mut self.whole.function.blocks[number];
        let (mut steps, end_span) = (std::mem::take(&mut block.steps), block.end_span.clone());
        let mut end = block.end.clone();
        self.order.push(number);
        if number == 0 {
            let arguments =
                steps.iter().take_while(|(step, _)| matches!(step, Inst::Argument { .. })).count();
            let iterations = self.register();
            let all =
                Inst::OpaqueConst { to: iterations, value: MAX_ITERATIONS, width: Width::W64 };
            let keep = store(self.whole.iterations_left, Value::Register(iterations));
            steps.splice(arguments..arguments, [all, keep].map(|step| (step, end_span.clone())));
        }
        match end {
            Terminator::Return(value) if self.own.is_some() => {
                steps.push((store(self.whole.result, value), end_span.clone()));
                end = Terminator::Jump(self.jump_target(self.whole.function.blocks.len()));
            }
            Terminator::LoopBack { more, .. } => end = Terminator::Jump(self.jump_target(more)),
            _ => end.map_targets(|to| self.jump_target(to)),
        }
        self.blocks[number] = Some(BasicBlock { steps, end, end_span, innermost_loop: None });
    }

    fn jump_target(&mut self, to: BlockId) -> BlockId {
        if let Some(target) = self.jump_targets.get(&to) {
            return *target;
        }
        let loops = &self.whole.function.loops;
        let inner = (0..loops.len())
            .find(|inner| loops[*inner].entry == to && loops[*inner].innermost_loop == self.own);
        let is_next = self.own.is_some_and(|own| loops[own].entry == to);
        let is_here = self.within(to) == self.own;
        let target = if is_here && !is_next && to != self.whole.function.blocks.len() {
            to
        } else {
            self.new_block()
        };
        self.jump_targets.insert(to, target);
        match inner {
            Some(inner) => self.build_loop_call(target, inner),
            None if is_next => self.add_block(target, Vec::new(), Terminator::Return(CONTINUE)),
            None if target == to => {}
            None if is_here => {
                let result = self.register();
                self.add_block(
                    target,
                    vec![load(result, self.whole.result)],
                    Terminator::Return(Value::Register(result)),
                );
            }
            None => {
                let code = self.register();
                let set_code =
                    Inst::OpaqueConst { to: code, value: exit_code_of(to), width: Width::W64 };
                self.add_block(
                    target,
                    vec![set_code, store(self.whole.exit_target, Value::Register(code))],
                    Terminator::Return(BREAK),
                );
            }
        }
        target
    }

    /// Builds the call of an inner loop and the branches to its exit targets.
    fn build_loop_call(&mut self, block: BlockId, inner: LoopId) {
        let [nowhere, budget, iterations_run, sign, remaining, exit_target] =
            std::array::from_fn(|_| self.register());
        let operate = |to, operator, is_signed, left, right| {
            let (left, width) = (Value::Register(left), Width::W64);
            Inst::BinaryOp { to, operator, width, is_signed, left, right }
        };
        let arguments = vec![
            HelperArgument::Value(Value::Register(budget)),
            HelperArgument::LoopBack(inner),
            HelperArgument::Address(Address::of(AddressBase::Frame(0))),
            HelperArgument::Value(Value::Constant(0)),
        ];
        let iterations_left = self.whole.iterations_left;
        let mut steps = vec![
            Inst::OpaqueConst { to: nowhere, value: 0, width: Width::W64 },
            store(self.whole.exit_target, Value::Register(nowhere)),
            load(budget, iterations_left),
            Inst::Helper { to: Some(iterations_run), number: LOOP, arguments },
            // Loops in the loop body have subtracted their iterations already. If the difference
            // is negative, no iterations are left.
            load(remaining, iterations_left),
            operate(
                remaining,
                Operator::Subtract,
                false,
                remaining,
                Value::Register(iterations_run),
            ),
            operate(sign, Operator::ShiftRight, true, remaining, Value::Constant(63)),
            operate(sign, Operator::Xor, false, sign, Value::Constant(-1)),
            operate(remaining, Operator::And, false, remaining, Value::Register(sign)),
            store(iterations_left, Value::Register(remaining)),
            load(exit_target, self.whole.exit_target),
        ];
        let exits = std::mem::take(&mut self.whole.exits[inner]);
        let (here, further): (Vec<_>, Vec<_>) =
            exits.into_iter().partition(|to| self.is_in_region(*to));
        let mut at = block;
        let mut branch_on_exit = |part: &mut Self, code, yes| {
            let no = part.new_block();
            let (left, right) = (Value::Register(exit_target), Value::Constant(code));
            let (width, is_signed) = (Width::W64, false);
            let comparison = Operator::Equal;
            let end = Terminator::Branch { comparison, width, is_signed, left, right, yes, no };
            part.add_block(at, std::mem::take(&mut steps), end);
            at = no;
        };
        for to in here {
            let yes = self.jump_target(to);
            branch_on_exit(self, exit_code_of(to), yes);
        }
        let cut_short = self.jump_target(self.whole.function.loops[inner].cut_short);
        if !further.is_empty() {
            branch_on_exit(self, NOWHERE, cut_short);
        }
        let end = if further.is_empty() {
            Terminator::Jump(cut_short)
        } else {
            Terminator::Return(BREAK)
        };
        self.add_block(at, steps, end);
    }

    /// Whether a block can be reached without leaving this region.
    fn is_in_region(&self, block: BlockId) -> bool {
        let is_entry =
            |looped: &crate::ir::IrLoop| looped.entry == block && looped.innermost_loop == self.own;
        self.within(block) == self.own || self.whole.function.loops.iter().any(is_entry)
    }
}

/// The number that stands for a block as an exit target.
fn exit_code_of(block: BlockId) -> i64 {
    NOWHERE + 1 + block as i64
}

const NOWHERE: i64 = 0;

fn store(at: u32, value: Value) -> Inst {
    Inst::Store { to: Address::of(AddressBase::Frame(at)), bytes: 8, value }
}

fn load(to: Register, at: u32) -> Inst {
    Inst::Load { to, from: Address::of(AddressBase::Frame(at)), bytes: 8 }
}
