//! Loops as functions of their own, which the kernel calls for each round (`bpf_loop`): for kernels that have no other way.
//!
//! A round has the frame of the function that has the loop: what is needed in a round and outside of it is there, as is how many rounds
//! are left for all of the function's loops together, and where the last one led to.

use std::collections::{BTreeSet, HashMap};

use crate::allocate::{Places, Set, intervals, needed};
use crate::ast::Operator;
use crate::ir::{
    Address, Argument, Base, Block, BlockId, End, Function, LoopId, Register, Step, Value, Width, arranged,
};

/// include/uapi/linux/bpf.h, enum bpf_func_id
pub const LOOP: i32 = 181;
/// BPF_MAX_LOOPS, include/linux/bpf_verifier.h
const MOST_ROUNDS: i64 = 8 << 20;
/// What a round returns.
const GO_ON: Value = Value::Constant(0);
const LEAVE: Value = Value::Constant(1);

/// Which registers have places in the frame, and whether a round has them from the one before.
#[derive(Default)]
pub struct Kept(Vec<Option<(u32, bool)>>);

impl Kept {
    pub fn each(&self) -> impl Iterator<Item = (Register, u32)> {
        self.0.iter().enumerate().filter_map(|(register, kept)| kept.map(|(place, _)| (register, place)))
    }

    pub fn has(&self, register: Register) -> bool {
        self.0.get(register).is_some_and(Option::is_some)
    }

    pub fn is_carried(&self, register: Register) -> bool {
        self.0.get(register).is_some_and(|kept| kept.is_some_and(|(_, is_carried)| is_carried))
    }

    /// Whether loops are functions here.
    pub fn is_outlined(&self) -> bool {
        !self.0.is_empty()
    }
}

/// The function, then a round of each of its loops.
pub fn outline(mut function: Function) -> (Vec<Function>, Kept) {
    if function.loops.is_empty() {
        return (vec![function], Kept::default());
    }
    let kept = kept(&mut function);
    let mut place = || {
        function.frame_bytes += 8;
        function.frame_bytes - 8
    };
    let (rounds_left, led_to, result) = (place(), place(), place());
    let exits = exits(&function);
    let mut whole = Whole { function, exits, rounds_left, led_to, result };
    let parts = std::iter::once(None).chain((0..whole.function.loops.len()).map(Some));
    let functions = parts.map(|own| Part::new(&mut whole, own).made()).collect();
    (functions, kept)
}

/// The loops around a block, from inside out.
fn around(function: &Function, block: BlockId) -> impl Iterator<Item = LoopId> {
    std::iter::successors(function.blocks[block].within, |inner| function.loops[*inner].within)
}

/// What is needed where a way leads into a loop, out of it or to its next round, and is of any concern to it.
fn kept(function: &mut Function) -> Kept {
    let empty = || vec![Set::new(function.registers); function.loops.len()];
    let (mut concern, mut written) = (empty(), empty());
    for number in 0..function.blocks.len() {
        for looped in around(function, number) {
            let block = &function.blocks[number];
            let (concern, written) = (&mut concern[looped], &mut written[looped]);
            let mut write = |register: Register| {
                concern.add(register);
                written.add(register);
            };
            block.steps.iter().filter_map(|(step, _)| step.writes()).for_each(&mut write);
            block.end.writes().into_iter().for_each(write);
            block.steps.iter().for_each(|(step, _)| step.reads(|register| concern.add(register)));
            block.end.reads(|register| concern.add(register));
        }
    }
    let needed = needed(function);
    let mut is_kept = vec![None; function.registers];
    for (number, block) in function.blocks.iter().enumerate() {
        for to in block.end.leads_to() {
            let from: Vec<_> = around(function, number).collect();
            let into: Vec<_> = around(function, to).collect();
            let is_next = |looped: &LoopId| from.contains(looped) && function.loops[*looped].entry == to;
            let enters = into.iter().filter(|looped| !from.contains(looped));
            let leaves = from.iter().filter(|looped| !into.contains(looped));
            for looped in enters.chain(leaves).chain(into.iter().filter(|looped| is_next(looped))) {
                for register in needed[to].each().filter(|register| concern[*looped].has(*register)) {
                    let is_carried = is_next(looped) && written[*looped].has(register);
                    *is_kept[register].get_or_insert(false) |= is_carried;
                }
            }
        }
    }
    let mut places = Places::from(function.frame_bytes);
    let mut kept = vec![None; function.registers];
    for interval in intervals(function, &needed) {
        if let Some(is_carried) = is_kept[interval.register] {
            kept[interval.register] = Some((places.take(&interval), is_carried));
        }
    }
    function.frame_bytes = places.frame_bytes;
    Kept(kept)
}

/// Where each loop leads to. A block that is not there stands for the function's end.
fn exits(function: &Function) -> Vec<BTreeSet<BlockId>> {
    let mut exits = vec![BTreeSet::new(); function.loops.len()];
    for (number, block) in function.blocks.iter().enumerate() {
        let end = matches!(block.end, End::Return(_)).then_some(function.blocks.len());
        // Whether the kernel lets a loop go on is asked by whoever calls the rounds.
        let on = match block.end {
            End::Round { more, .. } => vec![more],
            _ => block.end.leads_to().chain(end).collect(),
        };
        for to in on {
            let into: Vec<_> = match to == function.blocks.len() {
                true => Vec::new(),
                false => around(function, to).collect(),
            };
            around(function, number).filter(|looped| !into.contains(looped)).for_each(|looped| {
                exits[looped].insert(to);
            });
        }
    }
    exits
}

struct Whole {
    function: Function,
    exits: Vec<BTreeSet<BlockId>>,
    rounds_left: u32,
    led_to: u32,
    result: u32,
}

/// A loop, or what is in none, without the loops in it.
struct Part<'a> {
    whole: &'a mut Whole,
    own: Option<LoopId>,
    /// Those of the function by their numbers there, then others.
    blocks: Vec<Option<Block>>,
    order: Vec<BlockId>,
    /// What it is here to come to a block.
    ways: HashMap<BlockId, BlockId>,
    registers: usize,
}

impl<'a> Part<'a> {
    fn new(whole: &'a mut Whole, own: Option<LoopId>) -> Self {
        // One more for the function's end.
        let blocks = (0..=whole.function.blocks.len()).map(|_| None).collect();
        let registers = whole.function.registers;
        Self { whole, own, blocks, order: Vec::new(), ways: HashMap::new(), registers }
    }

    fn made(mut self) -> Function {
        let first = self.own.map_or(0, |own| self.whole.function.loops[own].entry);
        let all = 0..self.whole.function.blocks.len();
        for block in std::iter::once(first).chain(all.filter(|block| *block != first)) {
            if self.within(block) == self.own {
                self.copy(block);
            }
        }
        let function = &self.whole.function;
        Function {
            name: function.name.clone(),
            blocks: arranged(self.blocks, &self.order).blocks,
            loops: Vec::new(),
            registers: self.registers,
            frame_bytes: if self.own.is_none() { function.frame_bytes } else { 0 },
            is_round: self.own.is_some(),
            span: self.own.map_or(&function.span, |_| &function.blocks[first].end_span).clone(),
        }
    }

    fn within(&self, block: BlockId) -> Option<LoopId> {
        self.whole.function.blocks.get(block).and_then(|block| block.within)
    }

    fn register(&mut self) -> Register {
        self.registers += 1;
        self.registers - 1
    }

    fn new_block(&mut self) -> BlockId {
        self.blocks.push(None);
        self.blocks.len() - 1
    }

    fn put(&mut self, block: BlockId, steps: Vec<Step>, end: End) {
        let about = self.own.map_or(0, |own| self.whole.function.loops[own].entry);
        let span = self.whole.function.blocks[about].end_span.clone();
        let steps = steps.into_iter().map(|step| (step, span.clone())).collect();
        self.blocks[block] = Some(Block { steps, end, end_span: span, within: None });
        self.order.push(block);
    }

    fn copy(&mut self, number: BlockId) {
        let block = &mut self.whole.function.blocks[number];
        let (mut steps, end_span) = (std::mem::take(&mut block.steps), block.end_span.clone());
        let mut end = block.end.clone();
        self.order.push(number);
        if number == 0 {
            let arguments =
                steps.iter().take_while(|(step, _)| matches!(step, Step::Argument { .. })).count();
            let rounds = self.register();
            let all = Step::Hide { to: rounds, value: MOST_ROUNDS, width: Width::W64 };
            let keep = store(self.whole.rounds_left, Value::Register(rounds));
            steps.splice(arguments..arguments, [all, keep].map(|step| (step, end_span.clone())));
        }
        match end {
            End::Return(value) if self.own.is_some() => {
                steps.push((store(self.whole.result, value), end_span.clone()));
                end = End::Jump(self.way(self.whole.function.blocks.len()));
            }
            End::Round { more, .. } => end = End::Jump(self.way(more)),
            _ => end.turn(|to| self.way(to)),
        }
        self.blocks[number] = Some(Block { steps, end, end_span, within: None });
    }

    fn way(&mut self, to: BlockId) -> BlockId {
        if let Some(way) = self.ways.get(&to) {
            return *way;
        }
        let loops = &self.whole.function.loops;
        let inner =
            (0..loops.len()).find(|inner| loops[*inner].entry == to && loops[*inner].within == self.own);
        let is_next = self.own.is_some_and(|own| loops[own].entry == to);
        let is_here = self.within(to) == self.own;
        let way =
            if is_here && !is_next && to != self.whole.function.blocks.len() { to } else { self.new_block() };
        self.ways.insert(to, way);
        match inner {
            Some(inner) => self.rounds(way, inner),
            None if is_next => self.put(way, Vec::new(), End::Return(GO_ON)),
            None if way == to => {}
            None if is_here => {
                let result = self.register();
                self.put(way, vec![load(result, self.whole.result)], End::Return(Value::Register(result)));
            }
            None => {
                let code = self.register();
                let known = Step::Hide { to: code, value: code_of(to), width: Width::W64 };
                self.put(
                    way,
                    vec![known, store(self.whole.led_to, Value::Register(code))],
                    End::Return(LEAVE),
                );
            }
        }
        way
    }

    /// Where a loop in this part is come to: all of its rounds, and where they lead to.
    fn rounds(&mut self, block: BlockId, inner: LoopId) {
        let [nowhere, left, made, sign, less, led_to] = std::array::from_fn(|_| self.register());
        let operate = |to, operator, is_signed, left, right| {
            let (left, width) = (Value::Register(left), Width::W64);
            Step::Operate { to, operator, width, is_signed, left, right }
        };
        let arguments = vec![
            Argument::Value(Value::Register(left)),
            Argument::Round(inner),
            Argument::Address(Address::of(Base::Frame(0))),
            Argument::Value(Value::Constant(0)),
        ];
        let rounds_left = self.whole.rounds_left;
        let mut steps = vec![
            Step::Hide { to: nowhere, value: 0, width: Width::W64 },
            store(self.whole.led_to, Value::Register(nowhere)),
            load(left, rounds_left),
            Step::Helper { to: Some(made), number: LOOP, arguments },
            // Those within the loop's rounds are taken away already: nothing is left where that is too much.
            load(less, rounds_left),
            operate(less, Operator::Subtract, false, less, Value::Register(made)),
            operate(sign, Operator::ShiftRight, true, less, Value::Constant(63)),
            operate(sign, Operator::Xor, false, sign, Value::Constant(-1)),
            operate(less, Operator::And, false, less, Value::Register(sign)),
            store(rounds_left, Value::Register(less)),
            load(led_to, self.whole.led_to),
        ];
        let exits = std::mem::take(&mut self.whole.exits[inner]);
        let (here, further): (Vec<_>, Vec<_>) = exits.into_iter().partition(|to| self.is_here(*to));
        let mut at = block;
        let mut ask = |part: &mut Self, code, yes| {
            let no = part.new_block();
            let (left, right) = (Value::Register(led_to), Value::Constant(code));
            let (width, is_signed) = (Width::W64, false);
            let comparison = Operator::Equal;
            let end = End::Branch { comparison, width, is_signed, left, right, yes, no };
            part.put(at, std::mem::take(&mut steps), end);
            at = no;
        };
        for to in here {
            let yes = self.way(to);
            ask(self, code_of(to), yes);
        }
        let cut_short = self.way(self.whole.function.loops[inner].cut_short);
        if !further.is_empty() {
            ask(self, NOWHERE, cut_short);
        }
        let end = if further.is_empty() { End::Jump(cut_short) } else { End::Return(LEAVE) };
        self.put(at, steps, end);
    }

    /// Whether a block is come to without leaving this part.
    fn is_here(&self, block: BlockId) -> bool {
        let is_entry = |looped: &crate::ir::Loop| looped.entry == block && looped.within == self.own;
        self.within(block) == self.own || self.whole.function.loops.iter().any(is_entry)
    }
}

/// By which number it is known where a loop led to.
fn code_of(block: BlockId) -> i64 {
    NOWHERE + 1 + block as i64
}

const NOWHERE: i64 = 0;

fn store(at: u32, value: Value) -> Step {
    Step::Store { to: Address::of(Base::Frame(at)), bytes: 8, value }
}

fn load(to: Register, at: u32) -> Step {
    Step::Load { to, from: Address::of(Base::Frame(at)), bytes: 8 }
}
