//! Texts and memory, byte by byte: loops as those that are written. Memory is set and copied by words where it has only whole ones.

use super::{Lowered, Lowerer, MOST_BLOCKS};
use crate::ast::Operator;
use crate::diagnostic::Diagnostic;
use crate::ir::{Address, Base, BlockId, End, Register, Step, Value, Width};
use crate::program::{Argument, Expression, ExpressionKind, Place, PlaceKind};
use crate::types::{INT, U64};

/// Some that are one after the other.
#[derive(Clone, Copy)]
pub enum Bytes {
    At {
        address: Address,
        length: u64,
    },
    /// From there on in the memory of all strings: which one is known only then.
    Strings(Register),
    /// Of what is not there.
    Zeros(u64),
}

const BYTE: u8 = 1;
const WORD: u8 = 8;
/// What makes a word of a byte.
const EACH_BYTE: i64 = 0x0101_0101_0101_0101;

/// One that is known, or not there.
type Byte = Value;

impl Lowerer<'_> {
    /// What is done with the bytes of a place, or with zeros where there is none: once for each way to come to that.
    pub(super) fn with_place(
        &mut self,
        place: &Place,
        mut then: impl FnMut(&mut Self, Bytes) -> Lowered<()>,
    ) -> Lowered<()> {
        // Within each other, they are as many as 2 to the power of how deep they are.
        if self.blocks.len() > MOST_BLOCKS {
            let message = format!("`{}` has too many elements within elements here", self.function.name);
            let problem = Diagnostic::error(place.span.clone(), message);
            return Err(Box::new(problem.help("put an index into a variable first")));
        }
        let length = place.of.size();
        let found = self.find(place, false)?;
        then(self, Bytes::At { address: found.address, length })?;
        self.join(found, |lowerer| then(lowerer, Bytes::Zeros(length)))
    }

    /// A string, or an array up to its NUL.
    pub(super) fn with_text(
        &mut self,
        text: &Argument,
        mut then: impl FnMut(&mut Self, Bytes) -> Lowered<()>,
    ) -> Lowered<()> {
        match text {
            Argument::Place(place) => self.with_place(place, then),
            Argument::Value(value) => {
                let text = self.text(value)?;
                then(self, text)
            }
            Argument::Map(_) => unreachable!("checked: a map is no text"),
        }
    }

    pub(super) fn text(&mut self, expression: &Expression) -> Lowered<Bytes> {
        if let ExpressionKind::Text(bytes) = &expression.kind {
            let address = Address::of(Base::Data(self.layout.string(bytes)));
            return Ok(Bytes::At { address, length: bytes.len() as u64 + 1 });
        }
        let to = self.register();
        self.text_into(to, expression)?;
        Ok(Bytes::Strings(to))
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
                    self.end(End::Jump(join));
                }
                self.enter(join);
                Ok(())
            }
            ExpressionKind::Comma(left, right) => {
                self.effect(left)?;
                self.text_into(to, right)
            }
            _ => unreachable!("checked: no other expression is a string"),
        }
    }

    /// The byte of this number, or `outside` where there are not as many.
    fn byte(&mut self, bytes: Bytes, number: Register, outside: BlockId) -> Byte {
        self.unit(bytes, BYTE, number, outside)
    }

    /// The same for bytes or words.
    fn unit(&mut self, bytes: Bytes, unit: u8, number: Register, outside: BlockId) -> Value {
        let (address, index, length) = match bytes {
            Bytes::At { address, length } => (address, number, length),
            Bytes::Strings(offset) => {
                let strings = Address::of(Base::Data(self.layout.strings));
                (strings, self.sum(offset, number), u64::from(self.layout.bytes - self.layout.strings))
            }
            Bytes::Zeros(length) => {
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
        self.step(Step::Load { to, from, bytes: unit });
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
        self.end(End::Index { to, index, length: length / size, size, within, outside });
        self.enter(within);
        // What is kept over the rounds is not copied, but added: the verifier gives both copies a number, by which this round differs
        // from the first one of the loop around it, and forgets what it knows (`widen_imprecise_scalars`).
        let index = address.index.map_or(to, |before| self.sum(to, before));
        Address { index: Some(index), ..address }
    }

    /// Counts from 0 on until the body leads to the block that it is given, where it goes on then.
    fn rounds(
        &mut self,
        mut body: impl FnMut(&mut Self, Register, BlockId) -> Lowered<()>,
    ) -> Lowered<Register> {
        let number = self.register();
        self.set(number, Value::Constant(0), Width::W64);
        let [head, more, cut, done] = std::array::from_fn(|_| self.new_block());
        self.end(End::Jump(head));
        self.begin_loop(head, cut);
        self.enter(head);
        self.end(End::Round { more, cut_short: cut });
        self.enter(more);
        body(self, number, done)?;
        let left = Value::Register(number);
        self.step(Step::Operate {
            to: number,
            operator: Operator::Add,
            width: Width::W64,
            is_signed: false,
            left,
            right: Value::Constant(1),
        });
        self.end(End::Jump(head));
        self.end_loop(cut, done);
        Ok(number)
    }

    /// How many come before the first NUL.
    pub(super) fn length(&mut self, text: Bytes) -> Lowered<Register> {
        self.rounds(|lowerer, number, done| {
            let byte = lowerer.byte(text, number, done);
            lowerer.go_on_unless_0(byte, done);
            Ok(())
        })
    }

    fn go_on_unless_0(&mut self, byte: Byte, done: BlockId) {
        let on = self.new_block();
        self.branch(Operator::NotEqual, INT, byte, Value::Constant(0), on, done);
        self.enter(on);
    }

    fn go_on_below(&mut self, number: Register, limit: Option<Value>, done: BlockId) {
        if let Some(limit) = limit {
            let on = self.new_block();
            self.branch(Operator::Less, U64, Value::Register(number), limit, on, done);
            self.enter(on);
        }
    }

    /// Puts -1, 0 or 1 into a register, as the first two bytes that differ do. Texts end with a NUL, or where their arrays do;
    /// other memory where either does.
    pub(super) fn compare(
        &mut self,
        to: Register,
        [one, other]: [Bytes; 2],
        limit: Option<Value>,
        are_texts: bool,
    ) -> Lowered<()> {
        self.set(to, Value::Constant(0), Width::W32);
        let end = self.new_block();
        self.rounds(|lowerer, number, done| {
            lowerer.go_on_below(number, limit, done);
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
                lowerer.end(End::Jump(end));
            }
            lowerer.enter(alike);
            if are_texts {
                lowerer.go_on_unless_0(left, done);
            }
            Ok(())
        })?;
        self.jump_and_enter(end);
        Ok(())
    }

    fn byte_or_nul(&mut self, bytes: Bytes, number: Register) -> Byte {
        let to = self.register();
        let [outside, join] = std::array::from_fn(|_| self.new_block());
        let from = self.byte(bytes, number, outside);
        self.set(to, from, Width::W32);
        self.end(End::Jump(join));
        self.enter(outside);
        self.set(to, Value::Constant(0), Width::W32);
        self.jump_and_enter(join);
        Value::Register(to)
    }

    /// The first bytes of a place are those, as many as there are and as are asked for.
    pub(super) fn fill(&mut self, to: Bytes, from: Bytes, unit: u8, limit: Value) -> Lowered<()> {
        self.write_each(to, unit, limit, |lowerer, number, done| lowerer.unit(from, unit, number, done))
    }

    /// The same up to a NUL.
    pub(super) fn fill_with_text(&mut self, to: Bytes, from: Bytes, limit: Value) -> Lowered<()> {
        self.write_each(to, BYTE, limit, |lowerer, number, done| {
            let byte = lowerer.byte(from, number, done);
            lowerer.go_on_unless_0(byte, done);
            byte
        })
    }

    /// The same with one byte.
    pub(super) fn fill_with(&mut self, to: Bytes, byte: Byte, unit: u8, limit: Value) -> Lowered<()> {
        let value = match unit {
            BYTE => byte,
            _ => {
                let byte = self.extended(byte, 8, false, Width::W64);
                self.operate(Operator::Multiply, U64, byte, Value::Constant(EACH_BYTE))
            }
        };
        self.write_each(to, unit, limit, |_, _, _| value)
    }

    fn write_each(
        &mut self,
        to: Bytes,
        unit: u8,
        limit: Value,
        mut value: impl FnMut(&mut Self, Register, BlockId) -> Value,
    ) -> Lowered<()> {
        let Bytes::At { address, length } = to else { unreachable!("only what is there is written") };
        self.rounds(|lowerer, number, done| {
            lowerer.go_on_below(number, Some(limit), done);
            let value = value(lowerer, number, done);
            let to = lowerer.element(address, unit, number, length, done);
            lowerer.store(to, unit, value, if unit == BYTE { Width::W32 } else { Width::W64 });
            Ok(())
        })?;
        Ok(())
    }
}

/// Whether words are set or copied, and how many units of what a constant asks for.
pub fn units(limit: Value, places: &[&Place]) -> (u8, Value) {
    let Value::Constant(limit) = limit else { return (BYTE, limit) };
    let bytes = places.iter().fold(limit as u64, |least, place| least.min(place.of.size()));
    let is_whole = bytes.is_multiple_of(WORD.into()) && places.iter().all(|place| is_aligned(place));
    let unit = if is_whole { WORD } else { BYTE };
    (unit, Value::Constant((bytes / u64::from(unit)) as i64))
}

/// Whether it begins at a whole word: variables, and values of maps, all do.
fn is_aligned(place: &Place) -> bool {
    let is_whole = |bytes: u64| bytes.is_multiple_of(WORD.into());
    match &place.kind {
        PlaceKind::Local(_) | PlaceKind::Global(_) | PlaceKind::Entry(..) => true,
        PlaceKind::Member(outer, by) => is_whole(*by) && is_aligned(outer),
        PlaceKind::Element(array, ..) => is_whole(place.of.size()) && is_aligned(array),
    }
}
