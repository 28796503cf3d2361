//! Lowers statements.

use super::lowerer::{
    JumpTargets, LocalStorage, Lowered, Lowerer, MAX_BLOCKS, MAX_REGISTERS, constant, width,
};
use crate::arithmetic::number;
use crate::ast::Operator;
use crate::data_layout::{CUT_SHORT, CUT_SHORT_BEFORE, MAX_CUT_SHORT};
use crate::emit::too_large;
use crate::ir::{self, Address, AddressBase, BlockId, Inst, Terminator, Value, Width};
use crate::typed::{
    Expression, ExpressionKind, Loop, Lvalue, LvalueKind, Statement, StatementKind,
};
use crate::types::{Type, U64};

impl Lowerer<'_> {
    pub(super) fn statements(&mut self, statements: &[Statement]) -> Lowered<()> {
        statements.iter().try_for_each(|statement| self.statement(statement))
    }

    fn fits(&self) -> Lowered<()> {
        if self.blocks.len() > MAX_BLOCKS || self.registers > MAX_REGISTERS {
            return Err(too_large(&self.function.name, &self.function.span));
        }
        Ok(())
    }

    fn statement(&mut self, statement: &Statement) -> Lowered<()> {
        self.span = statement.span.clone();
        self.fits()?;
        match &statement.kind {
            StatementKind::Expression(expression) => self.lower_effect(expression)?,
            StatementKind::Clear(local) => match self.storage[*local] {
                LocalStorage::Frame(at) => self.clear(at, self.function.locals[*local].ty.size()),
                LocalStorage::Register(to) => {
                    let of = number(&self.function.locals[*local].ty);
                    self.set(to, Value::Constant(0), width(of));
                }
            },
            StatementKind::Block(statements) => self.statements(statements)?,
            StatementKind::If(condition, yes, no) => {
                let (then, otherwise, join) =
                    (self.new_block(), self.new_block(), self.new_block());
                self.condition(condition, then, otherwise)?;
                self.enter(then);
                self.statements(yes)?;
                self.end(Terminator::Jump(join));
                self.enter(otherwise);
                self.statements(no)?;
                self.jump_and_enter(join);
            }
            StatementKind::Loop(looped) => self.lower_loop(looped)?,
            StatementKind::Switch { value, cases, default, body } => {
                self.switch(value, cases, *default, body)?
            }
            StatementKind::Break => {
                let to = self.jump_targets.last().expect("it is in a loop or switch").on_break;
                self.jump_out(to);
            }
            StatementKind::Continue => {
                let to = self
                    .jump_targets
                    .iter()
                    .rev()
                    .find_map(|jump_targets| jump_targets.on_continue);
                self.jump_out(to.expect("it is in a loop"));
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

    fn jump_out(&mut self, to: usize) {
        self.end(Terminator::Jump(to));
        let never = self.new_block();
        self.enter(never);
    }

    /// Sets a register that gets different values on different paths. Constants are hidden from
    /// the verifier: if it knew them, it would know the direction of later branches, and would
    /// verify the code that follows once for each value.
    pub(super) fn set(&mut self, to: usize, from: Value, width: Width) {
        match from {
            Value::Constant(value) => self.step(Inst::OpaqueConst { to, value, width }),
            from => self.step(Inst::Move { to, from }),
        }
    }

    /// Sets a local variable. If a loop changes the variable, its range is hidden from the verifier
    /// as well, because the range would differ in each iteration.
    pub(super) fn set_local(&mut self, local: usize, to: usize, from: Value) {
        let width = width(number(&self.function.locals[local].ty));
        self.set(to, from, width);
        if from.register().is_some() && self.uses.is_changed_in_loops[local] {
            self.step(Inst::Opaque { register: to, width });
        }
    }

    fn lower_loop(&mut self, looped: &Loop) -> Lowered<()> {
        let [head, test, body, after, cut, done] = std::array::from_fn(|_| self.new_block());
        let entry = if looped.tests_first { head } else { body };
        self.check_loop_budget(entry, cut);
        self.begin_loop(entry, cut);
        // The first iteration of `do` does not count, because it always runs.
        self.enter(head);
        self.end(Terminator::LoopBack { more: test, cut_short: cut });
        self.enter(test);
        match &looped.condition {
            Some(condition) => self.condition(condition, body, done)?,
            None => self.end(Terminator::Jump(body)),
        }
        self.enter(body);
        self.jump_targets.push(JumpTargets { on_break: done, on_continue: Some(after) });
        self.statements(&looped.body)?;
        self.jump_targets.pop();
        self.jump_and_enter(after);
        if let Some(after) = &looped.after {
            self.lower_effect(after)?;
        }
        self.end(Terminator::Jump(head));
        self.end_loop(cut, done);
        Ok(())
    }

    /// Skips a loop if too many loops were cut short already. The kernel limits the loops of each
    /// call of a function separately, so calls in a loop could otherwise occupy a processor for
    /// hours.
    fn check_loop_budget(&mut self, entry: BlockId, cut: BlockId) {
        if self.is_handler {
            self.end(Terminator::Jump(entry));
            return;
        }
        let [count, before, since] = std::array::from_fn(|_| self.register());
        for (to, at) in [(count, CUT_SHORT), (before, CUT_SHORT_BEFORE)] {
            self.step(Inst::Load { to, from: Address::of(AddressBase::Control(at)), bytes: 8 });
        }
        let [count, before] = [count, before].map(Value::Register);
        let (operator, width) = (Operator::Subtract, Width::W64);
        let step = Inst::BinaryOp {
            to: since,
            operator,
            width,
            is_signed: false,
            left: count,
            right: before,
        };
        self.step(step);
        let most = Value::Constant(MAX_CUT_SHORT as i64);
        self.branch(Operator::Less, U64, Value::Register(since), most, entry, cut);
    }

    /// Resets the budget for a call on demand, which delays only its caller.
    pub(super) fn reset_loop_budget(&mut self) {
        if self.program.functions.len() > self.program.handlers.len() {
            let (count, before) =
                (self.register(), Address::of(AddressBase::Control(CUT_SHORT_BEFORE)));
            self.step(Inst::Load {
                to: count,
                from: Address::of(AddressBase::Control(CUT_SHORT)),
                bytes: 8,
            });
            self.step(Inst::Store { to: before, bytes: 8, value: Value::Register(count) });
        }
    }

    pub(super) fn begin_loop(&mut self, entry: BlockId, cut_short: BlockId) {
        self.loops.push(ir::IrLoop { innermost_loop: self.within, entry, cut_short });
        self.within = Some(self.loops.len() - 1);
    }

    /// Ends a loop: emits the block for a loop that the kernel cuts short, and enters the block
    /// after the loop.
    pub(super) fn end_loop(&mut self, cut: BlockId, done: BlockId) {
        self.within = self.within.and_then(|ended| self.loops[ended].innermost_loop);
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
        let of = number(&value.ty);
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
        self.end(Terminator::Jump(default.map_or(done, block_of)));
        self.jump_targets.push(JumpTargets { on_break: done, on_continue: None });
        for (case, start) in starts.iter().enumerate() {
            self.enter(blocks[case]);
            let until = starts.get(case + 1).copied().unwrap_or(body.len());
            self.statements(&body[*start..until])?;
            if let Some(next) = blocks.get(case + 1) {
                self.end(Terminator::Jump(*next));
            }
        }
        self.jump_targets.pop();
        self.jump_and_enter(done);
        Ok(())
    }

    /// Lowers an expression whose value is not used.
    pub(super) fn lower_effect(&mut self, expression: &Expression) -> Lowered<()> {
        use Operator::{Add, Subtract};
        match &expression.kind {
            ExpressionKind::Comma(left, right) => {
                self.lower_effect(left)?;
                self.lower_effect(right)
            }
            ExpressionKind::Assign(lvalue, value) if expression.ty.is_struct() => {
                self.copy_struct(lvalue, value).map(drop)
            }
            // Do not load the value as a number: it may be shorter than a number and at the end of
            // readable memory.
            _ if matches!(expression.ty, Type::Struct(_) | Type::Array(..)) => {
                self.lower_unused(expression)
            }
            ExpressionKind::Update {
                lvalue, operator: operator @ (Add | Subtract), by, ..
            } if is_shared_number(lvalue) => self.atomic_add(lvalue, *operator == Subtract, by),
            _ => self.value(expression).map(drop),
        }
    }

    /// Adds atomically, so that no addition is lost if two processors add at the same time.
    fn atomic_add(&mut self, lvalue: &Lvalue, is_less: bool, by: &Expression) -> Lowered<()> {
        let of = number(&lvalue.of);
        let by_type = number(&by.ty);
        let mut by = self.value(by)?;
        by = self.converted(by, by_type, &lvalue.of);
        if is_less {
            by = self.operate(Operator::Subtract, of.promoted(), Value::Constant(0), by);
        }
        let value = self.register();
        self.step(Inst::Move { to: value, from: by });
        let found = self.lower_lvalue(lvalue, true)?;
        self.step(Inst::AddTo { to: found.address, bytes: of.bits / 8, value });
        self.merge_absent(found, |_| Ok(()))
    }

    pub(super) fn data(&self, global: usize) -> AddressBase {
        AddressBase::Data(self.layout.offsets[global])
    }
}

/// Whether other processors may change the number and the kernel has an atomic addition for it.
fn is_shared_number(lvalue: &Lvalue) -> bool {
    let mut root = lvalue;
    while let LvalueKind::Member(outer, _) | LvalueKind::Element(outer, ..) = &root.kind {
        root = outer;
    }
    let is_shared = matches!(root.kind, LvalueKind::Global(_) | LvalueKind::Entry(..));
    is_shared && matches!(lvalue.of, Type::Integer(of) if of.bits >= 32)
}
