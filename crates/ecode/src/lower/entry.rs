//! How a handler comes to its hook's fields, and what becomes of what it returns.

use super::builtins::GET_SMP_PROCESSOR_ID;
use super::{Home, Lowered, Lowerer, number};
use crate::ast::Operator;
use crate::hooks::{Base, Condition, Ending, Entry, Source, Stop, Way};
use crate::ir::{self, Address, BlockId, End, Register, Step, Value, Width};
use crate::layout::OUTSIDE_PACKET;
use crate::program::{Expression, Handler};
use crate::types::{Integer, LONG, Type, U64};

// include/uapi/linux/bpf.h, enum bpf_func_id
const GET_CURRENT_TASK_BTF: i32 = 158;
const SET_RETVAL: i32 = 187;
/// The kernel's functions take no more (0xffff: bpf_skb_load_bytes and bpf_xdp_load_bytes, net/core/filter.c).
const MOST_PACKET_BYTES: i64 = 0xffff;
/// MAX_ERRNO, include/linux/err.h
const MOST_ERRNO: i64 = 4095;

/// Where all ways out of a handler meet.
pub struct Leaving {
    block: BlockId,
    goes_on: i32,
    /// What it is to do where it returns something else than 0, and where that is.
    stop: Option<(Stop, Register)>,
}

/// Where they differ in nothing that is read, and there is always one, that is enough.
fn needed<'a>(ways: &'a [Way], is_read: &[bool]) -> &'a [Way] {
    let Some((last, others)) = ways.split_last() else { return ways };
    let read = |way: &'a Way| way.fields.iter().zip(is_read).filter(|(_, is_read)| **is_read);
    let is_enough = last.conditions.is_empty() && others.iter().all(|other| read(other).eq(read(last)));
    if is_enough { std::slice::from_ref(last) } else { ways }
}

impl Lowerer<'_> {
    pub(super) fn come_in(&mut self, handler: &Handler, entry: &Entry) {
        let Ending::Chained { goes_on, stops } = handler.offer.ending else {
            self.begin_counting_loops();
            return;
        };
        let block = self.new_block();
        let stop = stops.map(|stop| (stop, self.register()));
        self.leaving = Some(Leaving { block, goes_on, stop });
        let body = self.new_block();
        // What each way asks first is looked for once.
        let mut known: Option<(&Condition, Value)> = None;
        for way in needed(&entry.ways, &handler.is_read) {
            let next = self.new_block();
            for (place, condition) in way.conditions.iter().enumerate() {
                let value = match known {
                    Some((asked, value)) if asked.what == condition.what && asked.mask == condition.mask => {
                        value
                    }
                    _ => self.asked_for(condition),
                };
                if place == 0 {
                    known = Some((condition, value));
                }
                self.is_or(value, condition.is, next);
            }
            for (field, source) in way.fields.iter().enumerate().filter(|(field, _)| handler.is_read[*field])
            {
                self.take(field, source);
            }
            self.end(End::Jump(body));
            self.enter(next);
        }
        self.return_with(Value::Constant(0));
        self.enter(body);
    }

    fn asked_for(&mut self, condition: &Condition) -> Value {
        let value = self.number_at(&condition.what, 0);
        match condition.mask {
            u64::MAX => value,
            mask => self.operate(Operator::And, U64, value, Value::Constant(mask as i64)),
        }
    }

    fn is_or(&mut self, value: Value, is: u64, otherwise: BlockId) {
        let yes = self.new_block();
        self.branch(Operator::Equal, U64, value, Value::Constant(is as i64), yes, otherwise);
        self.enter(yes);
    }

    /// A field into its variable.
    fn take(&mut self, local: usize, source: &Source) {
        let of = self.function.locals[local].of.clone();
        match self.homes[local] {
            Home::Register(to) => {
                let is_signed = number(&of).is_signed;
                let from = Integer { bits: source.bytes * 8, is_signed };
                let value = self.number_at(source, 0);
                let value = self.converted(value, from, &of);
                self.set_local(local, to, value);
            }
            Home::Frame(at) => {
                let element = match &of {
                    Type::Array(element, _) => element.size(),
                    _ => of.size(),
                };
                for by in (0..of.size()).step_by(element as usize) {
                    let value = self.number_at(source, by as u16);
                    let to = Address::of(ir::Base::Frame(at + by as u32));
                    self.step(Step::Store { to, bytes: element as u8, value });
                }
            }
        }
    }

    /// A member of what is there once for each processor.
    fn of_processor(&mut self, at: u16, bytes: u8, each: u32, processors: u32) -> Value {
        let [processor, to] = std::array::from_fn(|_| self.register());
        let number = GET_SMP_PROCESSOR_ID;
        self.step(Step::Helper { to: Some(processor), number, arguments: Vec::new() });
        let most = Value::Constant(i64::from(processors) - 1);
        let within = self.operate(Operator::And, U64, Value::Register(processor), most);
        let index = self.operate(Operator::Multiply, U64, within, Value::Constant(each.into()));
        let from = Address { base: ir::Base::Verdicts(at.into()), index: index.register() };
        self.step(Step::Load { to, from, bytes });
        Value::Register(to)
    }

    fn number_at(&mut self, source: &Source, by: u16) -> Value {
        if let (Base::Verdict { bytes, processors }, [at]) = (source.base, source.path.as_slice()) {
            return self.of_processor(*at, source.bytes, bytes, processors);
        }
        let mut pointer = self.register();
        match source.base {
            Base::Verdict { .. } => unreachable!("its path is a member"),
            Base::Number(number) => return Value::Constant(number as i64),
            Base::Context => self.step(Step::Context { to: pointer }),
            Base::Asked(number) => {
                let to = self.register();
                self.step(Step::Context { to: pointer });
                let arguments = vec![ir::Argument::Value(Value::Register(pointer))];
                self.step(Step::Helper { to: Some(to), number, arguments });
                return Value::Register(to);
            }
            Base::Task => {
                let (number, arguments) = (GET_CURRENT_TASK_BTF, Vec::new());
                self.step(Step::Helper { to: Some(pointer), number, arguments });
            }
        }
        let (last, way) = source.path.split_last().expect("there is a place in memory");
        for at in way {
            let to = self.register();
            let from = Address::of(ir::Base::Pointer(pointer, u32::from(*at)));
            self.step(Step::Load { to, from, bytes: 8 });
            pointer = to;
        }
        let to = self.register();
        let from = Address::of(ir::Base::Pointer(pointer, u32::from(last + by)));
        self.step(Step::Load { to, from, bytes: source.bytes });
        if source.is_big_endian { self.in_order(to, source.bytes) } else { Value::Register(to) }
    }

    /// So many bytes of the packet.
    pub(super) fn packet(&mut self, at: &Expression, bytes: u8) -> Lowered<Value> {
        let at = self.value(at)?;
        let place = Address::of(ir::Base::Frame(self.frame(8)));
        let [context, failed, to] = std::array::from_fn(|_| self.register());
        let [ask, found, outside, join] = std::array::from_fn(|_| self.new_block());
        // The kernel would take its lower half.
        let most = Value::Constant(MOST_PACKET_BYTES);
        self.branch(Operator::LessEqual, U64, at, most, ask, outside);
        self.enter(ask);
        self.step(Step::Context { to: context });
        let number = self.packet.expect("it was looked for");
        let length = ir::Argument::Value(Value::Constant(bytes.into()));
        let arguments = vec![
            ir::Argument::Value(Value::Register(context)),
            ir::Argument::Value(at),
            ir::Argument::Address(place),
            length,
        ];
        self.step(Step::Helper { to: Some(failed), number, arguments });
        let (failed, nothing) = (Value::Register(failed), Value::Constant(0));
        self.branch(Operator::Equal, U64, failed, nothing, found, outside);
        self.enter(found);
        let read = self.register();
        self.step(Step::Load { to: read, from: place, bytes });
        let value = self.in_order(read, bytes);
        self.step(Step::Move { to, from: value });
        self.end(End::Jump(join));
        self.enter(outside);
        self.add_to_control(OUTSIDE_PACKET);
        self.set(to, nothing, Width::W32);
        self.jump_and_enter(join);
        Ok(Value::Register(to))
    }

    /// What came with its most significant byte first.
    fn in_order(&mut self, from: Register, bytes: u8) -> Value {
        if bytes == 1 {
            return Value::Register(from);
        }
        let to = self.register();
        self.step(Step::Swap { to, from, bits: bytes * 8 });
        Value::Register(to)
    }

    pub(super) fn return_with(&mut self, value: Value) {
        let Some(Leaving { block, stop, .. }) = &self.leaving else { return self.end(End::Return(value)) };
        let (block, stop) = (*block, *stop);
        if let Some((_, result)) = stop {
            self.set(result, value, Width::W64);
        }
        self.end(End::Jump(block));
    }

    /// The way out of a handler, once all that leads there is made.
    pub(super) fn go_out(&mut self) {
        let Some(Leaving { block, goes_on, stop }) = self.leaving.take() else { return };
        self.enter(block);
        if let Some((stop, result)) = stop {
            let [stopped, next] = std::array::from_fn(|_| self.new_block());
            let result = Value::Register(result);
            self.branch(Operator::NotEqual, LONG, result, Value::Constant(0), stopped, next);
            self.enter(stopped);
            if stop.sets_errno {
                self.set_errno(result);
            }
            self.end(End::Return(Value::Constant(stop.value.into())));
            self.enter(next);
        }
        self.step(Step::Next);
        self.end(End::Return(Value::Constant(goes_on.into())));
    }

    fn set_errno(&mut self, result: Value) {
        let [is_negative, is_errno, join] = std::array::from_fn(|_| self.new_block());
        self.branch(Operator::Less, LONG, result, Value::Constant(0), is_negative, join);
        self.enter(is_negative);
        let least = Value::Constant(-MOST_ERRNO);
        self.branch(Operator::GreaterEqual, LONG, result, least, is_errno, join);
        self.enter(is_errno);
        let arguments = vec![ir::Argument::Value(result)];
        self.step(Step::Helper { to: None, number: SET_RETVAL, arguments });
        self.jump_and_enter(join);
    }
}
