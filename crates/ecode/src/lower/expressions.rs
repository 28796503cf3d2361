//! Lowers expressions.

use super::lowerer::{LocalStorage, Lowered, Lowerer, constant, width};
use crate::arithmetic::number;
use crate::ast::Operator;
use crate::data_layout::ZERO;
use crate::ir::{Address, AddressBase, BlockId, Inst, Register, Terminator, Value, Width};
use crate::typed::{Expression, ExpressionKind, Lvalue, LvalueKind};
use crate::types::{INT, Integer, LONG, Type};

impl Lowerer<'_> {
    pub(super) fn value(&mut self, expression: &Expression) -> Lowered<Value> {
        let of = number(&expression.ty);
        match &expression.kind {
            ExpressionKind::Constant(value) => Ok(constant(*value, of)),
            // The value is not used: functions on texts read the text itself.
            ExpressionKind::Text(_) => Ok(Value::Constant(0)),
            ExpressionKind::Load(lvalue) => self.load(lvalue),
            ExpressionKind::Convert(inner) if expression.ty == Type::Void => {
                self.lower_effect(inner)?;
                Ok(Value::Constant(0))
            }
            ExpressionKind::Convert(inner) => {
                let value = self.value(inner)?;
                Ok(self.converted(value, number(&inner.ty), &expression.ty))
            }
            ExpressionKind::Negate(inner) => {
                let inner = self.value(inner)?;
                Ok(self.operate(Operator::Subtract, of, Value::Constant(0), inner))
            }
            ExpressionKind::Complement(inner) => {
                let inner = self.value(inner)?;
                Ok(self.operate(Operator::Xor, of, inner, constant(u64::MAX, of)))
            }
            ExpressionKind::Binary(operator, left, right)
                if !operator.is_comparison() && left.ty.is_number() =>
            {
                let of = number(&left.ty);
                let (left, right) = self.pair(left, right)?;
                Ok(self.operate(*operator, of, left, right))
            }
            ExpressionKind::Binary(..)
            | ExpressionKind::Not(_)
            | ExpressionKind::Logical { .. } => self.truth(expression),
            ExpressionKind::Conditional(parts) => {
                let to = self.register();
                self.choose(to, parts)?;
                Ok(Value::Register(to))
            }
            ExpressionKind::Assign(lvalue, value) => self.assign(lvalue, value),
            ExpressionKind::Update { lvalue, operator, common, by, is_old } => {
                self.update(lvalue, *operator, *common, by, *is_old)
            }
            ExpressionKind::Call(function, arguments) => {
                let mut values = Vec::new();
                for argument in arguments {
                    let value = self.value(argument)?;
                    values.push(self.materialize(value));
                }
                let to = self.register();
                self.step(Inst::Call { to: Some(to), function: *function, arguments: values });
                if number(&self.program.functions[*function].result).bits <= 32 {
                    // The verifier knows nothing about the result of another function.
                    self.step(Inst::Extend {
                        to,
                        from: to,
                        bits: 32,
                        is_signed: false,
                        width: Width::W64,
                    });
                }
                Ok(Value::Register(to))
            }
            ExpressionKind::Builtin(builtin, arguments) => {
                self.builtin(*builtin, arguments, expression)
            }
            ExpressionKind::Comma(left, right) => {
                self.lower_effect(left)?;
                self.value(right)
            }
        }
    }

    /// Sets a register to the chosen number. A choice between others has the same register, so that
    /// a long chain needs only one.
    fn choose(&mut self, to: Register, parts: &[Expression; 3]) -> Lowered<()> {
        self.lower_conditional(parts, |lowerer, chosen| {
            if let ExpressionKind::Conditional(parts) = &chosen.kind {
                return lowerer.choose(to, parts);
            }
            let from = lowerer.value(chosen)?;
            lowerer.set(to, from, width(number(&chosen.ty)));
            Ok(())
        })
    }

    /// Emits `with` for each of the two choices of a conditional expression.
    pub(super) fn lower_conditional(
        &mut self,
        [condition, yes, no]: &[Expression; 3],
        mut with: impl FnMut(&mut Self, &Expression) -> Lowered<()>,
    ) -> Lowered<()> {
        let [then, otherwise, join] = std::array::from_fn(|_| self.new_block());
        self.condition(condition, then, otherwise)?;
        for (block, chosen) in [(then, yes), (otherwise, no)] {
            self.enter(block);
            with(self, chosen)?;
            self.end(Terminator::Jump(join));
        }
        self.enter(join);
        Ok(())
    }

    /// Copies a value to a register of its own, because later code may change the variable that it
    /// comes from.
    pub(super) fn materialize(&mut self, value: Value) -> Value {
        match value {
            Value::Register(from) => {
                let to = self.register();
                self.step(Inst::Move { to, from: Value::Register(from) });
                Value::Register(to)
            }
            constant => constant,
        }
    }

    fn pair(&mut self, left: &Expression, right: &Expression) -> Lowered<(Value, Value)> {
        let one = self.value(left)?;
        let one = if is_simple(right) { one } else { self.materialize(one) };
        Ok((one, self.value(right)?))
    }

    /// Emits an operation; the result is kept in the width of the type.
    pub(super) fn operate(
        &mut self,
        operator: Operator,
        of: Integer,
        left: Value,
        right: Value,
    ) -> Value {
        use Operator::{Add, And, Divide, Multiply, Or, Remainder, ShiftLeft, ShiftRight, Xor};
        let zero = Value::Constant(0);
        match operator {
            // The checker does not find every division by 0, for example one after a comma. The
            // verifier would reject it.
            Divide if right == zero => return zero,
            Remainder if right == zero => return left,
            // The left operand is, for example, the 0 of an lvalue that does not exist.
            Multiply | Divide | Remainder | ShiftLeft | ShiftRight | And if left == zero => {
                return zero;
            }
            Add | Or | Xor if left == zero => return right,
            _ => {}
        }
        if of.is_signed && matches!(operator, Operator::Divide | Operator::Remainder) {
            return self.divide_signed(operator, of, left, right);
        }
        let to = self.register();
        self.step(Inst::BinaryOp {
            to,
            operator,
            width: width(of),
            is_signed: of.is_signed,
            left,
            right,
        });
        Value::Register(to)
    }

    /// Divides the absolute values, because kernels before 6.6 have no signed division.
    fn divide_signed(
        &mut self,
        operator: Operator,
        of: Integer,
        left: Value,
        right: Value,
    ) -> Value {
        let last = Value::Constant(if width(of) == Width::W64 { 63 } else { 31 });
        let mut without_sign = |value: Value| {
            let sign = self.operate(Operator::ShiftRight, of, value, last);
            let flipped = self.operate(Operator::Xor, of, value, sign);
            (sign, self.operate(Operator::Subtract, of, flipped, sign))
        };
        let (left_sign, left) = without_sign(left);
        let (right_sign, right) = without_sign(right);
        let unsigned = Integer { is_signed: false, ..of };
        let result = self.operate(operator, unsigned, left, right);
        let sign = match operator {
            Operator::Divide => self.operate(Operator::Xor, of, left_sign, right_sign),
            _ => left_sign,
        };
        let flipped = self.operate(Operator::Xor, of, result, sign);
        self.operate(Operator::Subtract, of, flipped, sign)
    }

    pub(super) fn converted(&mut self, value: Value, from: Integer, to: &Type) -> Value {
        let into = number(to);
        if *to == Type::Bool {
            return if from.bits == 1 { value } else { self.is_not_0(value, from) };
        }
        if *to == Type::Void {
            return value;
        }
        let is_wider = width(into) == Width::W64 && width(from) == Width::W32;
        if is_wider && from.is_signed {
            return self.extended(value, 32, true, Width::W64);
        }
        if into.bits < 32 && !(into.bits >= from.bits && into.is_signed == from.is_signed) {
            return self.extended(value, into.bits, into.is_signed, Width::W32);
        }
        if width(into) == Width::W32 && width(from) == Width::W64 {
            return self.extended(value, 32, false, Width::W64);
        }
        value
    }

    pub(super) fn extended(
        &mut self,
        value: Value,
        bits: u8,
        is_signed: bool,
        width: Width,
    ) -> Value {
        match value {
            Value::Register(from) => {
                let to = self.register();
                self.step(Inst::Extend { to, from, bits, is_signed, width });
                Value::Register(to)
            }
            Value::Constant(value) => {
                let value = Integer::c(bits, is_signed).extend(value as u64);
                Value::Constant(if width == Width::W32 {
                    i64::from(value as u32)
                } else {
                    value as i64
                })
            }
        }
    }

    fn is_not_0(&mut self, value: Value, of: Integer) -> Value {
        let [yes, no, join] = std::array::from_fn(|_| self.new_block());
        let to = self.register();
        self.branch(Operator::NotEqual, of, value, Value::Constant(0), yes, no);
        self.select_bool(to, yes, no, join);
        Value::Register(to)
    }

    /// Sets a register to 1 in the block `yes` and to 0 in the block `no`.
    pub(super) fn select_bool(&mut self, to: Register, yes: BlockId, no: BlockId, join: BlockId) {
        for (block, value) in [(yes, 1), (no, 0)] {
            self.enter(block);
            self.set(to, Value::Constant(value), Width::W32);
            self.end(Terminator::Jump(join));
        }
        self.enter(join);
    }

    fn truth(&mut self, expression: &Expression) -> Lowered<Value> {
        let [yes, no, join] = std::array::from_fn(|_| self.new_block());
        let to = self.register();
        self.condition(expression, yes, no)?;
        self.select_bool(to, yes, no, join);
        Ok(Value::Register(to))
    }

    /// Branches to `yes` or `no` on a condition.
    pub(super) fn condition(
        &mut self,
        expression: &Expression,
        yes: BlockId,
        no: BlockId,
    ) -> Lowered<()> {
        match &expression.kind {
            ExpressionKind::Constant(value) => {
                self.end(Terminator::Jump(if *value != 0 { yes } else { no }))
            }
            ExpressionKind::Not(inner) => self.condition(inner, no, yes)?,
            ExpressionKind::Logical { is_and, left, right } => {
                let next = self.new_block();
                let (left_yes, left_no) = if *is_and { (next, no) } else { (yes, next) };
                self.condition(left, left_yes, left_no)?;
                self.enter(next);
                self.condition(right, yes, no)?;
            }
            ExpressionKind::Binary(operator, left, right) if operator.is_comparison() => {
                if !left.ty.is_number() {
                    let texts = [self.text(left)?, self.text(right)?];
                    let order = self.register();
                    self.compare(order, texts, None, true)?;
                    self.branch(
                        *operator,
                        INT,
                        Value::Register(order),
                        Value::Constant(0),
                        yes,
                        no,
                    );
                    return Ok(());
                }
                let of = number(&left.ty);
                let (left, right) = self.pair(left, right)?;
                self.branch(*operator, of, left, right, yes, no);
            }
            _ => {
                let of = number(&expression.ty);
                let value = self.value(expression)?;
                self.branch(Operator::NotEqual, of, value, Value::Constant(0), yes, no);
            }
        }
        Ok(())
    }

    /// The local variable of an lvalue and its register, if it is a number in a register.
    fn local(&self, lvalue: &Lvalue) -> Option<(usize, Register)> {
        match lvalue.kind {
            LvalueKind::Local(local) => match self.storage[local] {
                LocalStorage::Register(register) => Some((local, register)),
                LocalStorage::Frame(_) => None,
            },
            _ => None,
        }
    }

    fn load(&mut self, lvalue: &Lvalue) -> Lowered<Value> {
        if let Some((_, register)) = self.local(lvalue) {
            return Ok(Value::Register(register));
        }
        let to = self.register();
        let found = self.lower_lvalue(lvalue, false)?;
        self.read(to, found.address, &lvalue.of);
        self.merge_absent(found, |lowerer| {
            // Load a 0 about which the verifier knows no more than about an existing value.
            lowerer.read(to, Address::of(AddressBase::Control(ZERO)), &lvalue.of);
            Ok(())
        })?;
        Ok(Value::Register(to))
    }

    fn assign(&mut self, lvalue: &Lvalue, value: &Expression) -> Lowered<Value> {
        let value = self.value(value)?;
        if let Some((local, register)) = self.local(lvalue) {
            self.set_local(local, register, value);
            return Ok(value);
        }
        let value = self.materialize(value);
        let found = self.lower_lvalue(lvalue, true)?;
        self.write(found.address, &lvalue.of, value);
        self.merge_absent(found, |_| Ok(()))?;
        Ok(value)
    }

    fn update(
        &mut self,
        lvalue: &Lvalue,
        operator: Operator,
        common: Integer,
        by: &Expression,
        is_old: bool,
    ) -> Lowered<Value> {
        let by = self.value(by)?;
        if let Some((local, register)) = self.local(lvalue) {
            let old = if is_old {
                self.materialize(Value::Register(register))
            } else {
                Value::Constant(0)
            };
            let new = self.updated(Value::Register(register), &lvalue.of, operator, common, by);
            // After an addition or subtraction, the verifier knows as little as before.
            match operator {
                Operator::Add | Operator::Subtract => {
                    self.step(Inst::Move { to: register, from: new })
                }
                _ => self.set_local(local, register, new),
            }
            return Ok(if is_old { old } else { self.materialize(new) });
        }
        let by = self.materialize(by);
        let (old, to) = (self.register(), self.register());
        let found = self.lower_lvalue(lvalue, true)?;
        self.read(old, found.address, &lvalue.of);
        let new = self.updated(Value::Register(old), &lvalue.of, operator, common, by);
        self.write(found.address, &lvalue.of, new);
        self.step(Inst::Move { to, from: if is_old { Value::Register(old) } else { new } });
        self.merge_absent(found, |lowerer| {
            let zero = Value::Constant(0);
            let new = lowerer.updated(zero, &lvalue.of, operator, common, by);
            lowerer.set(to, if is_old { zero } else { new }, width(number(&lvalue.of)));
            Ok(())
        })?;
        Ok(Value::Register(to))
    }

    fn updated(
        &mut self,
        old: Value,
        of: &Type,
        operator: Operator,
        common: Integer,
        by: Value,
    ) -> Value {
        let wide = self.converted(old, number(of), &common.into());
        let new = self.operate(operator, common, wide, by);
        self.converted(new, common, of)
    }

    /// An expression as an index of 64 bits, extended by its sign.
    pub(super) fn index(&mut self, expression: &Expression) -> Lowered<Value> {
        let value = self.value(expression)?;
        let of = number(&expression.ty).promoted();
        Ok(match (width(of), of) {
            (Width::W32, of) if of == INT => self.converted(value, INT, &LONG.into()),
            _ => value,
        })
    }
}

/// Whether evaluating an expression cannot change a value that was read before.
fn is_simple(expression: &Expression) -> bool {
    match &expression.kind {
        ExpressionKind::Constant(_) | ExpressionKind::Text(_) => true,
        ExpressionKind::Load(lvalue) => {
            matches!(lvalue.kind, LvalueKind::Local(_) | LvalueKind::Global(_))
        }
        ExpressionKind::Convert(inner)
        | ExpressionKind::Negate(inner)
        | ExpressionKind::Complement(inner) => is_simple(inner),
        ExpressionKind::Binary(_, left, right) => is_simple(left) && is_simple(right),
        _ => false,
    }
}
