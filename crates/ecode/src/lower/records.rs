//! What is told to user space.

use super::builtins::KTIME_GET_NS;
use super::bytes::Bytes;
use super::{Lowered, Lowerer, number};
use crate::ast::Operator;
use crate::ir::{self, Address, Base, Step, Value, Width};
use crate::layout::LOST;
use crate::program::{Argument, Expression, ExpressionKind, Place};
use crate::records::{HEADER_BYTES, NUMBER_BYTES, STRUCT, TEXT_BYTES, TIME_AT, directives, printed_bytes};
use crate::types::{LONG, Type, U64};

// include/uapi/linux/bpf.h, enum bpf_func_id
const RINGBUF_OUTPUT: i32 = 130;

/// What is done with texts that were found, each with its place among the values.
type Then<'a, L> = dyn FnMut(&mut L, &[(usize, Bytes)]) -> Lowered<()> + 'a;

impl Lowerer<'_> {
    pub(super) fn print(&mut self, format: &Expression, values: &[Argument]) -> Lowered<Value> {
        let ExpressionKind::Text(format) = &format.kind else {
            unreachable!("checked: what is printed is a string")
        };
        let tag = self.layout.number_of(format);
        let directives: Vec<_> = directives(format).collect();
        let is_text = |at: &usize| directives[*at] == b's';
        let all = 0..values.len();
        // All are known before the record is begun: to find one may take another record.
        let mut numbers = Vec::new();
        for at in all.clone().filter(|at| !is_text(at)) {
            let Argument::Value(value) = &values[at] else { unreachable!("checked: it is a number") };
            let of = number(&value.of);
            let value = self.value(value)?;
            let value = self.converted(value, of, &LONG.into());
            numbers.push((at, self.held(value)));
        }
        let texts: Vec<_> = all.filter(is_text).map(|at| (at, &values[at])).collect();
        self.with_texts(&texts, Vec::new(), &mut |lowerer, texts| {
            let record = lowerer.record();
            let place = |at: usize| {
                let before: u64 = directives[..at].iter().map(|directive| printed_bytes(*directive)).sum();
                record + (HEADER_BYTES + before) as u32
            };
            for (at, value) in &numbers {
                lowerer.store(Address::of(Base::Frame(place(*at))), NUMBER_BYTES as u8, *value, Width::W64);
            }
            for (at, text) in texts {
                lowerer.clear(place(*at), TEXT_BYTES);
                let to = Bytes::At { address: Address::of(Base::Frame(place(*at))), length: TEXT_BYTES };
                lowerer.fill_with_text(to, *text, Value::Constant(TEXT_BYTES as i64))?;
            }
            let size: u64 = directives.iter().map(|directive| printed_bytes(*directive)).sum();
            lowerer.tell(record, tag, HEADER_BYTES + size);
            Ok(())
        })?;
        Ok(Value::Constant(0))
    }

    /// One after the other, then what is done with all.
    fn with_texts(
        &mut self,
        texts: &[(usize, &Argument)],
        found: Vec<(usize, Bytes)>,
        then: &mut Then<Self>,
    ) -> Lowered<()> {
        let Some(((at, text), rest)) = texts.split_first() else { return then(self, &found) };
        self.with_text(text, |lowerer, text| {
            let found = found.iter().copied().chain([(*at, text)]).collect();
            lowerer.with_texts(rest, found, then)
        })
    }

    /// Whether there was room for it.
    pub(super) fn emit(&mut self, place: &Place) -> Lowered<Value> {
        let Type::Struct(of) = &place.of else { unreachable!("checked: it is a struct") };
        let tag = self.program.emitted.iter().position(|emitted| emitted == of);
        let tag = STRUCT + tag.expect("all that are emitted are there") as u64;
        let record = self.record();
        self.copy_to(Address::of(Base::Frame(record + HEADER_BYTES as u32)), place)?;
        let failed = self.tell(record, tag, HEADER_BYTES + of.size);
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
        self.store(address, 8, Value::Constant(tag as i64), Width::W64);
        let now = self.ask(KTIME_GET_NS);
        self.store(Address::of(Base::Frame(record + TIME_AT as u32)), 8, now, Width::W64);
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
