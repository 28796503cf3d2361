//! What is told to user space.

use super::bytes::Bytes;
use super::{Lowered, Lowerer, number};
use crate::ast::Operator;
use crate::ir::{self, Address, Base, Step, Value, Width};
use crate::layout::LOST;
use crate::program::{Argument, Expression, ExpressionKind, Place};
use crate::records::{NUMBER_BYTES, STRUCT, TAG_BYTES, TEXT_BYTES, directives};
use crate::types::{LONG, Type, U64};

// include/uapi/linux/bpf.h, enum bpf_func_id
const RINGBUF_OUTPUT: i32 = 130;

impl Lowerer<'_> {
    pub(super) fn print(&mut self, format: &Expression, values: &[Argument]) -> Lowered<Value> {
        let ExpressionKind::Text(format) = &format.kind else {
            unreachable!("checked: what is printed is a string")
        };
        let tag = self.program.strings.iter().position(|string| string == format);
        let tag = tag.expect("all strings are there") as u64;
        let mut size = TAG_BYTES;
        let places: Vec<_> = directives(format)
            .map(|directive| {
                let is_text = directive == b's';
                size += if is_text { TEXT_BYTES } else { NUMBER_BYTES };
                (is_text, size - if is_text { TEXT_BYTES } else { NUMBER_BYTES })
            })
            .collect();
        let record = self.record();
        for (value, (_, at)) in values.iter().zip(&places).filter(|(_, (is_text, _))| !is_text) {
            let Argument::Value(value) = value else { unreachable!("checked: it is a number") };
            let of = number(&value.of);
            let value = self.value(value)?;
            let value = self.converted(value, of, &LONG.into());
            self.store(Address::of(Base::Frame(record + *at as u32)), NUMBER_BYTES as u8, value, Width::W64);
        }
        for (text, (_, at)) in values.iter().zip(&places).filter(|(_, (is_text, _))| *is_text) {
            let at = record + *at as u32;
            self.clear(at, TEXT_BYTES);
            let to = Bytes::At { address: Address::of(Base::Frame(at)), length: TEXT_BYTES };
            let limit = Value::Constant(TEXT_BYTES as i64);
            self.with_text(text, |lowerer, text| lowerer.fill(to, text, limit))?;
        }
        self.tell(record, tag, size);
        Ok(Value::Constant(0))
    }

    /// Whether there was room for it.
    pub(super) fn emit(&mut self, place: &Place) -> Lowered<Value> {
        let Type::Struct(of) = &place.of else { unreachable!("checked: it is a struct") };
        let tag = self.program.emitted.iter().position(|emitted| emitted == of);
        let tag = STRUCT + tag.expect("all that are emitted are there") as u64;
        let record = self.record();
        self.copy_to(Address::of(Base::Frame(record + TAG_BYTES as u32)), place)?;
        let failed = self.tell(record, tag, TAG_BYTES + of.size);
        let [yes, no, join] = std::array::from_fn(|_| self.new_block());
        self.branch(Operator::Equal, U64, failed, Value::Constant(0), yes, no);
        let to = self.register();
        self.say(to, yes, no, join);
        Ok(Value::Register(to))
    }

    /// Where one is made, in the frame; for all of a function.
    fn record(&mut self) -> u32 {
        let at = match self.record_at {
            Some(at) => at,
            None => self.frame(self.uses.record_bytes),
        };
        self.record_at = Some(at);
        at
    }

    fn tell(&mut self, record: u32, tag: u64, size: u64) -> Value {
        let address = Address::of(Base::Frame(record));
        self.store(address, TAG_BYTES as u8, Value::Constant(tag as i64), Width::W64);
        let failed = self.register();
        let arguments = vec![
            ir::Argument::Records,
            ir::Argument::Address(address),
            ir::Argument::Value(Value::Constant(size as i64)),
            ir::Argument::Value(Value::Constant(0)),
        ];
        self.step(Step::Helper { to: Some(failed), number: RINGBUF_OUTPUT, arguments });
        let failed = Value::Register(failed);
        let [told, lost] = std::array::from_fn(|_| self.new_block());
        self.branch(Operator::Equal, U64, failed, Value::Constant(0), told, lost);
        self.enter(lost);
        self.add_to_control(LOST);
        self.jump_and_enter(told);
        failed
    }
}
