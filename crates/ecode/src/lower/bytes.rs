//! Lowers functions on texts and memory to loops over bytes. These loops are built in the same way
//! as loops in the plugin's source. Memory that consists of whole words is set and copied by words.

use super::lowerer::{Lowered, Lowerer, MAX_BLOCKS};
use crate::ast::Operator;
use crate::diagnostic::Diagnostic;
use crate::ir::{Address, AddressBase, BlockId, Inst, Register, Terminator, Value, Width};
use crate::typed::{Argument, Expression, ExpressionKind, Lvalue, LvalueKind};
use crate::types::{INT, U64};

/// A sequence of bytes.
#[derive(Clone, Copy)]
pub enum ByteSource {
    At {
        address: Address,
        length: u64,
    },
    /// A string that is chosen at run time, by its offset in the memory of all strings.
    Strings(Register),
    /// The value of an lvalue that does not exist.
    Zeros(u64),
}

const BYTE: u8 = 1;
const WORD: u8 = 8;
/// Multiplying a byte by this repeats it in a word.
const EACH_BYTE: i64 = 0x0101_0101_0101_0101;

/// A byte, as a register or a constant.
type ByteValue = Value;

impl Lowerer<'_> {
    /// Emits `then` for the bytes of an lvalue, and once more for zeros on each path on which the
    /// lvalue does not exist.
    pub(super) fn with_lvalue(
        &mut self,
        lvalue: &Lvalue,
        mut then: impl FnMut(&mut Self, ByteSource) -> Lowered<()>,
    ) -> Lowered<()> {
        // Nested calls emit 2^depth copies.
        if self.blocks.len() > MAX_BLOCKS {
            let message = format!(
                "too many elements with variable indices in one operation of `{}`",
                self.function.name
            );
            let problem = Diagnostic::error(lvalue.span.clone(), message);
            return Err(Box::new(
                problem.help("use fewer at a time, and store the others in variables first"),
            ));
        }
        let length = lvalue.of.size();
        let found = self.lower_lvalue(lvalue, false)?;
        then(self, ByteSource::At { address: found.address, length })?;
        self.merge_absent(found, |lowerer| then(lowerer, ByteSource::Zeros(length)))
    }

    /// Emits `then` for a string, or for an array up to its NUL.
    pub(super) fn with_text(
        &mut self,
        text: &Argument,
        mut then: impl FnMut(&mut Self, ByteSource) -> Lowered<()>,
    ) -> Lowered<()> {
        match text {
            Argument::Lvalue(lvalue) => self.with_lvalue(lvalue, then),
            Argument::Value(value) => {
                let text = self.text(value)?;
                then(self, text)
            }
            Argument::Map(_) => unreachable!("checked: a map is no text"),
        }
    }

    pub(super) fn text(&mut self, expression: &Expression) -> Lowered<ByteSource> {
        if let ExpressionKind::Text(bytes) = &expression.kind {
            let address = Address::of(AddressBase::Data(self.layout.string(bytes)));
            return Ok(ByteSource::At { address, length: bytes.len() as u64 + 1 });
        }
        let to = self.register();
        self.text_into(to, expression)?;
        Ok(ByteSource::Strings(to))
    }

    fn text_into(&mut self, to: Register, expression: &Expression) -> Lowered<()> {
        match &expression.kind {
            ExpressionKind::Text(bytes) => {
                let offset = self.layout.string(bytes) - self.layout.strings;
                self.set(to, Value::Constant(offset.into()), Width::W64);
                Ok(())
            }
            ExpressionKind::Conditional(parts) => {
                let [condition, yes, no] = &**parts;
                let [then, otherwise, join] = std::array::from_fn(|_| self.new_block());
                self.condition(condition, then, otherwise)?;
                for (block, part) in [(then, yes), (otherwise, no)] {
                    self.enter(block);
                    self.text_into(to, part)?;
                    self.end(Terminator::Jump(join));
                }
                self.enter(join);
                Ok(())
            }
            ExpressionKind::Comma(left, right) => {
                self.lower_effect(left)?;
                self.text_into(to, right)
            }
            _ => unreachable!("checked: no other expression is a string"),
        }
    }

    /// Loads the byte with this number, or jumps to `outside` if there are fewer bytes.
    fn byte(&mut self, bytes: ByteSource, number: Register, outside: BlockId) -> ByteValue {
        self.unit(bytes, BYTE, number, outside)
    }

    /// Loads the byte or word with this number, or jumps to `outside` if there are fewer.
    fn unit(&mut self, bytes: ByteSource, unit: u8, number: Register, outside: BlockId) -> Value {
        let (address, index, length) = match bytes {
            ByteSource::At { address, length } => (address, number, length),
            ByteSource::Strings(offset) => {
                let strings = Address::of(AddressBase::Data(self.layout.strings));
                (
                    strings,
                    self.sum(offset, number),
                    u64::from(self.layout.bytes - self.layout.strings),
                )
            }
            ByteSource::Zeros(length) => {
                let within = self.new_block();
                self.branch(
                    Operator::Less,
                    U64,
                    Value::Register(number),
                    Value::Constant((length / u64::from(unit)) as i64),
                    within,
                    outside,
                );
                self.enter(within);
                return Value::Constant(0);
            }
        };
        let from = self.element(address, unit, index, length, outside);
        let to = self.register();
        self.step(Inst::Load { to, from, bytes: unit });
        Value::Register(to)
    }

    fn element(
        &mut self,
        address: Address,
        unit: u8,
        number: Register,
        length: u64,
        outside: BlockId,
    ) -> Address {
        let (to, within) = (self.register(), self.new_block());
        let (index, size) = (Value::Register(number), unit.into());
        self.end(Terminator::BoundsCheck {
            to,
            index,
            length: length / size,
            size,
            within,
            outside,
        });
        self.enter(within);
        // `before` may be loop-carried. It is the right operand of the sum, because the left one is
        // copied to the result. The verifier gives a copy and its original a common scalar ID.
        // Because of that ID, the state of this iteration looks different from that of the
        // enclosing loop's first iteration, and the verifier forgets the range of the index
        // (`widen_imprecise_scalars`).
        let index = address.index.map_or(to, |before| self.sum(to, before));
        Address { index: Some(index), ..address }
    }

    /// Emits a loop that counts from 0 until the body jumps to the block that is passed to it. Code
    /// after the loop continues in that block.
    fn counting_loop(
        &mut self,
        mut body: impl FnMut(&mut Self, Register, BlockId) -> Lowered<()>,
    ) -> Lowered<Register> {
        let number = self.register();
        self.set(number, Value::Constant(0), Width::W64);
        let [head, more, cut, done] = std::array::from_fn(|_| self.new_block());
        self.end(Terminator::Jump(head));
        self.begin_loop(head, cut);
        self.enter(head);
        self.end(Terminator::LoopBack { more, cut_short: cut });
        self.enter(more);
        body(self, number, done)?;
        let left = Value::Register(number);
        self.step(Inst::BinaryOp {
            to: number,
            operator: Operator::Add,
            width: Width::W64,
            is_signed: false,
            left,
            right: Value::Constant(1),
        });
        self.end(Terminator::Jump(head));
        self.end_loop(cut, done);
        Ok(number)
    }

    /// The number of bytes before the first NUL.
    pub(super) fn length(&mut self, text: ByteSource) -> Lowered<Register> {
        self.counting_loop(|lowerer, number, done| {
            let byte = lowerer.byte(text, number, done);
            lowerer.break_if_zero(byte, done);
            Ok(())
        })
    }

    fn break_if_zero(&mut self, byte: ByteValue, done: BlockId) {
        let on = self.new_block();
        self.branch(Operator::NotEqual, INT, byte, Value::Constant(0), on, done);
        self.enter(on);
    }

    fn continue_if_below(&mut self, number: Register, limit: Option<Value>, done: BlockId) {
        if let Some(limit) = limit {
            let on = self.new_block();
            self.branch(Operator::Less, U64, Value::Register(number), limit, on, done);
            self.enter(on);
        }
    }

    /// Sets a register to -1, 0 or 1 by the first pair of bytes that differ. A text ends at its NUL
    /// or at the end of its array. Other memory is compared up to the end of the shorter operand.
    pub(super) fn compare(
        &mut self,
        to: Register,
        [one, other]: [ByteSource; 2],
        limit: Option<Value>,
        are_texts: bool,
    ) -> Lowered<()> {
        self.set(to, Value::Constant(0), Width::W32);
        let end = self.new_block();
        self.counting_loop(|lowerer, number, done| {
            lowerer.continue_if_below(number, limit, done);
            let [left, right] = match are_texts {
                true => [lowerer.byte_or_nul(one, number), lowerer.byte_or_nul(other, number)],
                false => [lowerer.byte(one, number, done), lowerer.byte(other, number, done)],
            };
            let [alike, differ, less, more] = std::array::from_fn(|_| lowerer.new_block());
            lowerer.branch(Operator::Equal, INT, left, right, alike, differ);
            lowerer.enter(differ);
            lowerer.branch(Operator::Less, INT, left, right, less, more);
            for (block, value) in [(less, u32::MAX), (more, 1)] {
                lowerer.enter(block);
                lowerer.set(to, Value::Constant(value.into()), Width::W32);
                lowerer.end(Terminator::Jump(end));
            }
            lowerer.enter(alike);
            if are_texts {
                lowerer.break_if_zero(left, done);
            }
            Ok(())
        })?;
        self.jump_and_enter(end);
        Ok(())
    }

    fn byte_or_nul(&mut self, bytes: ByteSource, number: Register) -> ByteValue {
        let to = self.register();
        let [outside, join] = std::array::from_fn(|_| self.new_block());
        let from = self.byte(bytes, number, outside);
        self.set(to, from, Width::W32);
        self.end(Terminator::Jump(join));
        self.enter(outside);
        self.set(to, Value::Constant(0), Width::W32);
        self.jump_and_enter(join);
        Value::Register(to)
    }

    /// Copies the first bytes of `from` to `to`, up to the limit or the end of the shorter one.
    pub(super) fn copy_bytes(
        &mut self,
        to: ByteSource,
        from: ByteSource,
        unit: u8,
        limit: Value,
    ) -> Lowered<()> {
        self.store_loop(to, unit, limit, |lowerer, number, done| {
            lowerer.unit(from, unit, number, done)
        })
    }

    /// Copies a text up to its NUL.
    pub(super) fn copy_text(
        &mut self,
        to: ByteSource,
        from: ByteSource,
        limit: Value,
    ) -> Lowered<()> {
        self.store_loop(to, BYTE, limit, |lowerer, number, done| {
            let byte = lowerer.byte(from, number, done);
            lowerer.break_if_zero(byte, done);
            byte
        })
    }

    /// Sets the first bytes of `to` to one byte.
    pub(super) fn set_bytes(
        &mut self,
        to: ByteSource,
        byte: ByteValue,
        unit: u8,
        limit: Value,
    ) -> Lowered<()> {
        let value = match unit {
            BYTE => byte,
            _ => {
                let byte = self.extended(byte, 8, false, Width::W64);
                self.operate(Operator::Multiply, U64, byte, Value::Constant(EACH_BYTE))
            }
        };
        self.store_loop(to, unit, limit, |_, _, _| value)
    }

    fn store_loop(
        &mut self,
        to: ByteSource,
        unit: u8,
        limit: Value,
        mut value: impl FnMut(&mut Self, Register, BlockId) -> Value,
    ) -> Lowered<()> {
        let ByteSource::At { address, length } = to else {
            unreachable!("only what is there is written")
        };
        self.counting_loop(|lowerer, number, done| {
            lowerer.continue_if_below(number, Some(limit), done);
            let value = value(lowerer, number, done);
            let to = lowerer.element(address, unit, number, length, done);
            lowerer.store(to, unit, value, if unit == BYTE { Width::W32 } else { Width::W64 });
            Ok(())
        })?;
        Ok(())
    }
}

/// The unit in which memory is set or copied, and the limit in this unit.
pub fn choose_unit(limit: Value, lvalues: &[&Lvalue]) -> (u8, Value) {
    let Value::Constant(limit) = limit else { return (BYTE, limit) };
    let bytes = lvalues.iter().fold(limit as u64, |least, lvalue| least.min(lvalue.of.size()));
    let is_whole =
        bytes.is_multiple_of(WORD.into()) && lvalues.iter().all(|lvalue| is_aligned(lvalue));
    let unit = if is_whole { WORD } else { BYTE };
    (unit, Value::Constant((bytes / u64::from(unit)) as i64))
}

/// Whether an lvalue begins at a whole word, as all variables and all values of maps do.
fn is_aligned(lvalue: &Lvalue) -> bool {
    let is_whole = |bytes: u64| bytes.is_multiple_of(WORD.into());
    match &lvalue.kind {
        LvalueKind::Local(_) | LvalueKind::Global(_) | LvalueKind::Entry(..) => true,
        LvalueKind::Member(outer, by) => is_whole(*by) && is_aligned(outer),
        LvalueKind::Element(array, ..) => is_whole(lvalue.of.size()) && is_aligned(array),
    }
}
