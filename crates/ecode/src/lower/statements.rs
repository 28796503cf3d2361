//! Statements.

use super::{Around, Home, Lowered, Lowerer, MOST_BLOCKS, MOST_REGISTERS, constant, number, width};
use crate::ast::Operator;
use crate::emit::too_large;
use crate::ir::{self, Address, Base, BlockId, End, Step, Value, Width};
use crate::layout::{CUT_SHORT, CUT_SHORT_BEFORE, MOST_CUT_SHORT};
use crate::program::{Expression, ExpressionKind, Loop, Place, PlaceKind, Statement, StatementKind};
use crate::types::{Type, U64};

impl Lowerer<'_> {
    pub(super) fn statements(&mut self, statements: &[Statement]) -> Lowered<()> {
        statements.iter().try_for_each(|statement| self.statement(statement))
    }

    fn fits(&self) -> Lowered<()> {
        if self.blocks.len() > MOST_BLOCKS || self.registers > MOST_REGISTERS {
            return Err(too_large(&self.function.name, &self.function.span));
        }
        Ok(())
    }

    fn statement(&mut self, statement: &Statement) -> Lowered<()> {
        self.span = statement.span.clone();
        self.fits()?;
        match &statement.kind {
            StatementKind::Expression(expression) => self.effect(expression)?,
            StatementKind::Clear(local) => match self.homes[*local] {
                Home::Frame(at) => self.clear(at, self.function.locals[*local].of.size()),
                Home::Register(to) => {
                    let of = number(&self.function.locals[*local].of);
                    self.set(to, Value::Constant(0), width(of));
                }
            },
            StatementKind::Block(statements) => self.statements(statements)?,
            StatementKind::If(condition, yes, no) => {
                let (then, otherwise, join) = (self.new_block(), self.new_block(), self.new_block());
                self.condition(condition, then, otherwise)?;
                self.enter(then);
                self.statements(yes)?;
                self.end(End::Jump(join));
                self.enter(otherwise);
                self.statements(no)?;
                self.jump_and_enter(join);
            }
            StatementKind::Loop(looped) => self.looped(looped)?,
            StatementKind::Switch { value, cases, default, body } => {
                self.switch(value, cases, *default, body)?
            }
            StatementKind::Break => {
                let to = self.around.last().expect("it is in a loop or switch").on_break;
                self.leave(to);
            }
            StatementKind::Continue => {
                let to = self.around.iter().rev().find_map(|around| around.on_continue);
                self.leave(to.expect("it is in a loop"));
            }
            StatementKind::Return(value) => {
                let value = match value {
                    Some(value) => self.value(value)?,
                    None => Value::Constant(0),
                };
                self.return_with(value);
                let never = self.new_block();
                self.enter(never);
            }
        }
        Ok(())
    }

    fn leave(&mut self, to: usize) {
        self.end(End::Jump(to));
        let never = self.new_block();
        self.enter(never);
    }

    /// A register of which there are several values, as the ways go: where the verifier knows one, it knows which way a later branch
    /// goes, and looks at what follows once for each.
    pub(super) fn set(&mut self, to: usize, from: Value, width: Width) {
        match from {
            Value::Constant(value) => self.step(Step::Hide { to, value, width }),
            from => self.step(Step::Move { to, from }),
        }
    }

    /// A variable. Where a loop changes it, the verifier is not to know its range either: that would be another one in each round.
    pub(super) fn set_local(&mut self, local: usize, to: usize, from: Value) {
        let width = width(number(&self.function.locals[local].of));
        self.set(to, from, width);
        if from.register().is_some() && self.uses.is_changed_in_loops[local] {
            self.step(Step::Widen { register: to, width });
        }
    }

    fn looped(&mut self, looped: &Loop) -> Lowered<()> {
        let [head, asked, body, after, cut, done] = std::array::from_fn(|_| self.new_block());
        let entry = if looped.is_asked_first { head } else { body };
        self.enter_loop(entry, cut);
        self.begin_loop(entry, cut);
        // The first round of `do` is not counted, as it always is.
        self.enter(head);
        self.end(End::Round { more: asked, cut_short: cut });
        self.enter(asked);
        match &looped.condition {
            Some(condition) => self.condition(condition, body, done)?,
            None => self.end(End::Jump(body)),
        }
        self.enter(body);
        self.around.push(Around { on_break: done, on_continue: Some(after) });
        self.statements(&looped.body)?;
        self.around.pop();
        self.jump_and_enter(after);
        if let Some(after) = &looped.after {
            self.effect(after)?;
        }
        self.end(End::Jump(head));
        self.end_loop(cut, done);
        Ok(())
    }

    /// The kernel limits the loops of each call of a function: all calls together are limited here, or whoever calls functions in loops
    /// would hold up a processor for hours.
    fn enter_loop(&mut self, entry: BlockId, cut: BlockId) {
        if self.is_handler {
            self.end(End::Jump(entry));
            return;
        }
        let [count, before, since] = std::array::from_fn(|_| self.register());
        for (to, at) in [(count, CUT_SHORT), (before, CUT_SHORT_BEFORE)] {
            self.step(Step::Load { to, from: Address::of(Base::Control(at)), bytes: 8 });
        }
        let [count, before] = [count, before].map(Value::Register);
        let (operator, width) = (Operator::Subtract, Width::W64);
        let step = Step::Operate { to: since, operator, width, is_signed: false, left: count, right: before };
        self.step(step);
        let most = Value::Constant(MOST_CUT_SHORT as i64);
        self.branch(Operator::Less, U64, Value::Register(since), most, entry, cut);
    }

    /// Of a call on demand, which nobody is held up by but who calls.
    pub(super) fn begin_counting_loops(&mut self) {
        if self.program.functions.len() > self.program.handlers.len() {
            let (count, before) = (self.register(), Address::of(Base::Control(CUT_SHORT_BEFORE)));
            self.step(Step::Load { to: count, from: Address::of(Base::Control(CUT_SHORT)), bytes: 8 });
            self.step(Step::Store { to: before, bytes: 8, value: Value::Register(count) });
        }
    }

    pub(super) fn begin_loop(&mut self, entry: BlockId, cut_short: BlockId) {
        self.loops.push(ir::Loop { within: self.within, entry, cut_short });
        self.within = Some(self.loops.len() - 1);
    }

    /// Behind a loop: the block where it comes out if the kernel does not let it go on, and then the next one.
    pub(super) fn end_loop(&mut self, cut: BlockId, done: BlockId) {
        self.within = self.within.and_then(|ended| self.loops[ended].within);
        self.enter(cut);
        self.add_to_control(CUT_SHORT);
        if let Some(flag) = self.is_cut_short {
            self.set(flag, Value::Constant(1), Width::W32);
        }
        self.jump_and_enter(done);
    }

    fn switch(
        &mut self,
        value: &Expression,
        cases: &[(u64, usize)],
        default: Option<usize>,
        body: &[Statement],
    ) -> Lowered<()> {
        let of = number(&value.of);
        let value = self.value(value)?;
        let done = self.new_block();
        let mut starts: Vec<usize> = cases.iter().map(|(_, at)| *at).chain(default).collect();
        starts.sort_unstable();
        starts.dedup();
        let blocks: Vec<_> = starts.iter().map(|_| self.new_block()).collect();
        let block_of = |at: usize| blocks[starts.binary_search(&at).expect("it is one of them")];
        for (case, at) in cases {
            self.fits()?;
            let next = self.new_block();
            self.branch(Operator::Equal, of, value, constant(*case, of), block_of(*at), next);
            self.enter(next);
        }
        self.end(End::Jump(default.map_or(done, block_of)));
        self.around.push(Around { on_break: done, on_continue: None });
        for (place, start) in starts.iter().enumerate() {
            self.enter(blocks[place]);
            let until = starts.get(place + 1).copied().unwrap_or(body.len());
            self.statements(&body[*start..until])?;
            if let Some(next) = blocks.get(place + 1) {
                self.end(End::Jump(*next));
            }
        }
        self.around.pop();
        self.jump_and_enter(done);
        Ok(())
    }

    /// Whose value nobody asks for.
    pub(super) fn effect(&mut self, expression: &Expression) -> Lowered<()> {
        use Operator::{Add, Subtract};
        match &expression.kind {
            ExpressionKind::Comma(left, right) => {
                self.effect(left)?;
                self.effect(right)
            }
            ExpressionKind::Assign(place, value) if expression.of.is_struct() => {
                self.copy_struct(place, value).map(drop)
            }
            // No number, and perhaps less than one has, at the end of what may be read.
            _ if matches!(expression.of, Type::Struct(_) | Type::Array(..)) => self.ignore(expression),
            ExpressionKind::Update { place, operator: operator @ (Add | Subtract), by, .. }
                if is_counter(place) =>
            {
                self.count(place, *operator == Subtract, by)
            }
            _ => self.value(expression).map(drop),
        }
    }

    /// Added in one step: what two processors count at the same time is all counted.
    fn count(&mut self, place: &Place, is_less: bool, by: &Expression) -> Lowered<()> {
        let of = number(&place.of);
        let by_type = number(&by.of);
        let mut by = self.value(by)?;
        by = self.converted(by, by_type, &place.of);
        if is_less {
            by = self.operate(Operator::Subtract, of.promoted(), Value::Constant(0), by);
        }
        let value = self.register();
        self.step(Step::Move { to: value, from: by });
        let found = self.find(place, true)?;
        self.step(Step::AddTo { to: found.address, bytes: of.bits / 8, value });
        self.join(found, |_| Ok(()))
    }

    pub(super) fn data(&self, global: usize) -> Base {
        Base::Data(self.layout.offsets[global])
    }
}

/// A number of other processors, too, which the kernel can add to.
fn is_counter(place: &Place) -> bool {
    let mut root = place;
    while let PlaceKind::Member(outer, _) | PlaceKind::Element(outer, ..) = &root.kind {
        root = outer;
    }
    let is_shared = matches!(root.kind, PlaceKind::Global(_) | PlaceKind::Entry(..));
    is_shared && matches!(place.of, Type::Integer(of) if of.bits >= 32)
}
