//! A function's statements and expressions into blocks of simple steps.

mod builtins;
mod bytes;
mod entry;
mod expressions;
mod places;
mod records;
mod statements;
mod uses;

use entry::Leaving;
use uses::Uses;

use crate::ast::Operator;
use crate::diagnostic::{Diagnostic, Span};
use crate::hooks::Entry;
use crate::ir::{
    Address, Arranged, Base, Block, BlockId, End, Function, Loop, LoopId, Register, Step, Value, Width,
    arranged,
};
use crate::layout::Layout;
use crate::program::{self, Handler, Program};
use crate::types::{Integer, Type, U64};

#[derive(Debug, Clone, Copy)]
enum Home {
    Register(Register),
    Frame(u32),
}

struct Around {
    on_break: BlockId,
    /// Of a `switch` that is in no loop there is none.
    on_continue: Option<BlockId>,
}

struct Lowerer<'a> {
    program: &'a Program,
    layout: &'a Layout,
    function: &'a program::Function,
    blocks: Vec<Option<Block>>,
    steps: Vec<(Step, Span)>,
    /// Into which the steps go.
    block: BlockId,
    /// In the order in which they are begun.
    order: Vec<BlockId>,
    registers: usize,
    frame_bytes: u32,
    homes: Vec<Home>,
    around: Vec<Around>,
    loops: Vec<Loop>,
    /// The innermost loop now.
    within: Option<LoopId>,
    /// Whether a loop was cut short, where somebody asks.
    is_cut_short: Option<Register>,
    uses: Uses,
    /// Of the frame: where keys and values of maps are for the kernel to read them.
    key_at: Option<u32>,
    value_at: Option<u32>,
    record_at: Option<u32>,
    /// And structs on their way from one place to another, of which so many are held.
    copies: Vec<u32>,
    copies_held: usize,
    /// Of a handler that does not return to whoever called it.
    leaving: Option<Leaving>,
    /// By what it reads the packet that there is.
    packet: Option<i32>,
    is_handler: bool,
    span: Span,
}

/// More than fit into a program. Which are needed where takes as much memory as one times the other.
const MOST_BLOCKS: usize = 30_000;
const MOST_REGISTERS: usize = 60_000;

type Lowered<T> = Result<T, Box<Diagnostic>>;

/// As numbers of this type are kept.
fn width(of: Integer) -> Width {
    if of.bits > 32 { Width::W64 } else { Width::W32 }
}

fn number(of: &Type) -> Integer {
    of.integer().unwrap_or(crate::types::U64)
}

/// A constant as it is kept.
fn constant(value: u64, of: Integer) -> Value {
    Value::Constant(if width(of) == Width::W32 { i64::from(value as u32) } else { value as i64 })
}

/// `handler`: the function is its, for one of its entries.
pub fn lower(
    program: &Program,
    layout: &Layout,
    function: usize,
    handler: Option<(&Handler, &Entry)>,
) -> Lowered<Function> {
    let lowered = &program.functions[function];
    let mut lowerer = Lowerer {
        program,
        layout,
        function: lowered,
        blocks: vec![None],
        steps: Vec::new(),
        block: 0,
        order: vec![0],
        registers: 0,
        frame_bytes: 0,
        homes: Vec::new(),
        around: Vec::new(),
        loops: Vec::new(),
        within: None,
        is_cut_short: None,
        uses: Uses::of(lowered),
        key_at: None,
        value_at: None,
        record_at: None,
        copies: Vec::new(),
        copies_held: 0,
        leaving: None,
        packet: handler.and_then(|(handler, _)| handler.offer.packet),
        is_handler: handler.is_some(),
        span: lowered.span.clone(),
    };
    lowerer.begin();
    if let Some((handler, entry)) = handler {
        lowerer.come_in(handler, entry);
    }
    lowerer.statements(&lowered.body)?;
    lowerer.return_with(Value::Constant(0));
    lowerer.go_out();
    Ok(lowerer.finish())
}

impl Lowerer<'_> {
    fn register(&mut self) -> Register {
        self.registers += 1;
        self.registers - 1
    }

    fn frame(&mut self, bytes: u64) -> u32 {
        let place = self.frame_bytes;
        self.frame_bytes += (bytes as u32).next_multiple_of(8);
        place
    }

    fn step(&mut self, step: Step) {
        self.steps.push((step, self.span.clone()));
    }

    fn new_block(&mut self) -> BlockId {
        self.blocks.push(None);
        self.blocks.len() - 1
    }

    /// Ends the block that is being made. What comes then is never reached, until another one is begun.
    fn end(&mut self, end: End) {
        let block = Block {
            steps: std::mem::take(&mut self.steps),
            end,
            end_span: self.span.clone(),
            within: self.within,
        };
        let at = &mut self.blocks[self.block];
        if at.is_none() {
            *at = Some(block);
        }
    }

    fn enter(&mut self, block: BlockId) {
        self.block = block;
        self.order.push(block);
    }

    fn jump_and_enter(&mut self, block: BlockId) {
        self.end(End::Jump(block));
        self.enter(block);
    }

    /// Goes on where `yes` is the case, and comes to `no` where not.
    fn branch(
        &mut self,
        comparison: Operator,
        of: Integer,
        left: Value,
        right: Value,
        yes: BlockId,
        no: BlockId,
    ) {
        let is_signed = of.is_signed;
        self.end(End::Branch { comparison, width: width(of), is_signed, left, right, yes, no });
    }

    fn add_to_control(&mut self, what: u32) {
        let one = self.register();
        self.step(Step::Move { to: one, from: Value::Constant(1) });
        self.step(Step::AddTo { to: Address::of(Base::Control(what)), bytes: 8, value: one });
    }

    /// Parameters and local variables get their homes.
    fn begin(&mut self) {
        for (local, is_memory) in self.function.locals.iter().zip(self.uses.is_memory.clone()) {
            let home = match local.of {
                Type::Array(..) | Type::Struct(_) => Home::Frame(self.frame(local.of.size())),
                _ if is_memory => Home::Frame(self.frame(local.of.size())),
                _ => Home::Register(self.register()),
            };
            self.homes.push(home);
        }
        let mut came = Vec::new();
        for place in 0..self.function.parameters {
            let to = match self.homes[place] {
                Home::Register(to) => to,
                Home::Frame(_) => self.register(),
            };
            self.step(Step::Argument { to, place: place as u8 });
            came.push(Value::Register(to));
        }
        for (place, mut value) in came.into_iter().enumerate() {
            let of = &self.function.locals[place].of;
            // Whoever calls it from outside may leave anything above its lowest bits.
            if self.is_handler {
                value = self.converted(value, U64, of);
            }
            match self.homes[place] {
                Home::Register(to) if self.is_handler => self.set_local(place, to, value),
                Home::Register(_) => {}
                Home::Frame(at) => self.write(Address::of(Base::Frame(at)), of, value),
            }
        }
        if self.uses.asks_for_cut_short {
            let flag = self.register();
            self.step(Step::Hide { to: flag, value: 0, width: Width::W32 });
            self.is_cut_short = Some(flag);
        }
    }

    fn clear(&mut self, at: u32, bytes: u64) {
        let zero = self.register();
        self.set(zero, Value::Constant(0), Width::W64);
        for word in 0..bytes.div_ceil(8) {
            let to = Address::of(Base::Frame(at + word as u32 * 8));
            self.step(Step::Store { to, bytes: 8, value: Value::Register(zero) });
        }
    }

    /// Without the blocks that nothing leads to, in the order in which they were begun: a loop's stay together.
    fn finish(self) -> Function {
        let Arranged { mut blocks, places } = arranged(self.blocks, &self.order);
        // One that has no second round is none.
        let mut loops = Vec::new();
        let mut numbers: Vec<Option<LoopId>> = Vec::new();
        for looped in &self.loops {
            let within = looped.within.and_then(|around| numbers[around]);
            numbers.push(match (places[looped.entry], places[looped.cut_short]) {
                (Some(entry), Some(cut_short)) => {
                    loops.push(Loop { within, entry, cut_short });
                    Some(loops.len() - 1)
                }
                _ => within,
            });
        }
        for block in &mut blocks {
            block.within = block.within.and_then(|within| numbers[within]);
        }
        Function {
            name: self.function.name.clone(),
            blocks,
            loops,
            registers: self.registers,
            frame_bytes: self.frame_bytes,
            is_round: false,
            span: self.function.span.clone(),
        }
    }
}
