//! Lowers `print` and `emit`, which write records for user space.

use super::bytes::ByteSource;
use super::helpers::{KTIME_GET_NS, RINGBUF_OUTPUT};
use super::lowerer::{Lowered, Lowerer};
use crate::arithmetic::number;
use crate::ast::Operator;
use crate::data_layout::LOST;
use crate::ir::{self, Address, AddressBase, Inst, Value, Width};
use crate::records::{
    HEADER_BYTES, NUMBER_BYTES, STRUCT_TAG, TEXT_BYTES, TIME_OFFSET, directives, printed_bytes,
};
use crate::typed::{Argument, Expression, ExpressionKind, Lvalue};
use crate::types::{LONG, Type, U64};

/// Emits code for texts, each with its index among the printed values.
type TextsContinuation<'a, L> = dyn FnMut(&mut L, &[(usize, ByteSource)]) -> Lowered<()> + 'a;

impl Lowerer<'_> {
    pub(super) fn print(&mut self, format: &Expression, values: &[Argument]) -> Lowered<Value> {
        let ExpressionKind::Text(format) = &format.kind else {
            unreachable!("checked: what is printed is a string")
        };
        let tag = self.layout.number_of(format);
        let directives: Vec<_> = directives(format).collect();
        let is_text = |at: &usize| directives[*at] == b's';
        let all = 0..values.len();
        // Evaluate all numbers before the record is begun, because evaluating them may write
        // another record.
        let mut numbers = Vec::new();
        for at in all.clone().filter(|at| !is_text(at)) {
            let Argument::Value(value) = &values[at] else {
                unreachable!("checked: it is a number")
            };
            let of = number(&value.ty);
            let value = self.value(value)?;
            let value = self.converted(value, of, &LONG.into());
            numbers.push((at, self.materialize(value)));
        }
        let texts: Vec<_> = all.filter(is_text).map(|at| (at, &values[at])).collect();
        self.with_text_addresses(&texts, Vec::new(), &mut |lowerer, texts| {
            let record = lowerer.record();
            let slot = |at: usize| {
                let before: u64 =
                    directives[..at].iter().map(|directive| printed_bytes(*directive)).sum();
                record + (HEADER_BYTES + before) as u32
            };
            for (at, value) in &numbers {
                lowerer.store(
                    Address::of(AddressBase::Frame(slot(*at))),
                    NUMBER_BYTES as u8,
                    *value,
                    Width::W64,
                );
            }
            for (at, text) in texts {
                lowerer.clear(slot(*at), TEXT_BYTES);
                let to = ByteSource::At {
                    address: Address::of(AddressBase::Frame(slot(*at))),
                    length: TEXT_BYTES,
                };
                lowerer.copy_text(to, *text, Value::Constant(TEXT_BYTES as i64))?;
            }
            let size: u64 = directives.iter().map(|directive| printed_bytes(*directive)).sum();
            lowerer.output_record(record, tag, HEADER_BYTES + size);
            Ok(())
        })?;
        Ok(Value::Constant(0))
    }

    /// Finds the addresses of the texts one after another. Then calls `then`, which emits the code
    /// that uses all of them.
    fn with_text_addresses(
        &mut self,
        texts: &[(usize, &Argument)],
        found: Vec<(usize, ByteSource)>,
        then: &mut TextsContinuation<Self>,
    ) -> Lowered<()> {
        let Some(((at, text), rest)) = texts.split_first() else { return then(self, &found) };
        self.with_text(text, |lowerer, text| {
            let found = found.iter().copied().chain([(*at, text)]).collect();
            lowerer.with_text_addresses(rest, found, then)
        })
    }

    /// Writes a struct as a record. The result is whether there was room for it.
    pub(super) fn emit(&mut self, lvalue: &Lvalue) -> Lowered<Value> {
        let Type::Struct(of) = &lvalue.of else { unreachable!("checked: it is a struct") };
        let tag = self.program.emitted.iter().position(|emitted| emitted == of);
        let tag = STRUCT_TAG + tag.expect("all that are emitted are there") as u64;
        let record = self.record();
        self.copy_to(Address::of(AddressBase::Frame(record + HEADER_BYTES as u32)), lvalue)?;
        let failed = self.output_record(record, tag, HEADER_BYTES + of.size);
        let [yes, no, join] = std::array::from_fn(|_| self.new_block());
        self.branch(Operator::Equal, U64, failed, Value::Constant(0), yes, no);
        let to = self.register();
        self.select_bool(to, yes, no, join);
        Ok(Value::Register(to))
    }

    /// The frame slot in which all records of a function are built.
    fn record(&mut self) -> u32 {
        let at = match self.record_at {
            Some(at) => at,
            None => self.frame(self.uses.record_bytes),
        };
        self.record_at = Some(at);
        at
    }

    fn output_record(&mut self, record: u32, tag: u64, size: u64) -> Value {
        let address = Address::of(AddressBase::Frame(record));
        self.store(address, 8, Value::Constant(tag as i64), Width::W64);
        let now = self.call_helper(KTIME_GET_NS);
        self.store(
            Address::of(AddressBase::Frame(record + TIME_OFFSET as u32)),
            8,
            now,
            Width::W64,
        );
        let failed = self.register();
        let arguments = vec![
            ir::HelperArgument::Records,
            ir::HelperArgument::Address(address),
            ir::HelperArgument::Value(Value::Constant(size as i64)),
            ir::HelperArgument::Value(Value::Constant(0)),
        ];
        self.step(Inst::Helper { to: Some(failed), number: RINGBUF_OUTPUT, arguments });
        let failed = Value::Register(failed);
        let [written, lost] = std::array::from_fn(|_| self.new_block());
        self.branch(Operator::Equal, U64, failed, Value::Constant(0), written, lost);
        self.enter(lost);
        self.add_to_control(LOST);
        self.jump_and_enter(written);
        failed
    }
}
