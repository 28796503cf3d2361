//! Functions that are there already.

use super::bytes::{Bytes, units};
use super::{Lowered, Lowerer, places};
use crate::ast::Operator;
use crate::diagnostic::Diagnostic;
use crate::ir::{self, End, Step, Value, Width};
use crate::program::{Argument, Builtin, Expression, Place};
use crate::types::{INT, U64};

// include/uapi/linux/bpf.h, enum bpf_func_id
pub(super) const KTIME_GET_NS: i32 = 5;
const GET_PRANDOM_U32: i32 = 7;
pub const GET_SMP_PROCESSOR_ID: i32 = 8;
const GET_CURRENT_PID_TGID: i32 = 14;
const GET_CURRENT_UID_GID: i32 = 15;
const GET_CURRENT_COMM: i32 = 16;
const PROBE_READ_USER: i32 = 112;
const PROBE_READ_USER_STR: i32 = 114;
/// None of user space's: what is asked for there is zeros.
const NO_ADDRESS: i64 = -1;
/// TASK_COMM_LEN, include/linux/sched.h
const COMM_BYTES: u64 = 16;

impl Lowerer<'_> {
    pub(super) fn builtin(
        &mut self,
        builtin: Builtin,
        arguments: &[Argument],
        expression: &Expression,
    ) -> Lowered<Value> {
        match (builtin, arguments) {
            (Builtin::Now, _) => Ok(self.ask(KTIME_GET_NS)),
            (Builtin::Random, _) => Ok(self.low(GET_PRANDOM_U32)),
            (Builtin::Cpu, _) => Ok(self.low(GET_SMP_PROCESSOR_ID)),
            (Builtin::Tid, _) => Ok(self.low(GET_CURRENT_PID_TGID)),
            (Builtin::Uid, _) => Ok(self.low(GET_CURRENT_UID_GID)),
            (Builtin::Pid, _) => Ok(self.high(GET_CURRENT_PID_TGID)),
            (Builtin::Gid, _) => Ok(self.high(GET_CURRENT_UID_GID)),
            (Builtin::CutShort, _) => {
                let flag = self.is_cut_short.expect("it was looked for");
                Ok(self.held(Value::Register(flag)))
            }
            (Builtin::Has, [Argument::Map(map), Argument::Value(key)]) => {
                let key = self.key(*map, key)?;
                let entry = self.register();
                let [yes, no, join] = std::array::from_fn(|_| self.new_block());
                self.look_up(entry, *map, key, yes, no);
                let to = self.register();
                self.say(to, yes, no, join);
                Ok(Value::Register(to))
            }
            (Builtin::Erase, [Argument::Map(map), Argument::Value(key)]) => {
                let key = self.key(*map, key)?;
                let arguments = vec![ir::Argument::Map(*map), ir::Argument::Address(key)];
                let failed = self.register();
                self.step(Step::Helper { to: Some(failed), number: places::MAP_DELETE_ELEM, arguments });
                let [yes, no, join] = std::array::from_fn(|_| self.new_block());
                self.branch(Operator::Equal, U64, Value::Register(failed), Value::Constant(0), yes, no);
                let to = self.register();
                self.say(to, yes, no, join);
                Ok(Value::Register(to))
            }
            (Builtin::Comm, [Argument::Place(to)]) => {
                let size = Value::Constant(to.of.size().min(COMM_BYTES) as i64);
                let found = self.find(to, true)?;
                let arguments = vec![ir::Argument::Address(found.address), ir::Argument::Value(size)];
                self.step(Step::Helper { to: None, number: GET_CURRENT_COMM, arguments });
                self.join(found, |_| Ok(()))?;
                Ok(Value::Constant(0))
            }
            (Builtin::ReadUser, [Argument::Place(to), Argument::Value(address), Argument::Value(bytes)]) => {
                self.read_user(to, address, bytes)
            }
            (Builtin::Packet8 | Builtin::Packet16 | Builtin::Packet32, [Argument::Value(at)]) => {
                self.packet(at, builtin.packet_bytes().expect("it reads some"))
            }
            (Builtin::ReadUserText, [Argument::Place(to), Argument::Value(address)]) => {
                self.read_user_text(to, address)
            }
            (Builtin::Print, [Argument::Value(format), values @ ..]) => self.print(format, values),
            (Builtin::Emit, [Argument::Place(record)]) => self.emit(record),
            (Builtin::Strlen, [text]) => {
                let to = self.register();
                self.with_text(text, |lowerer, text| {
                    let length = lowerer.length(text)?;
                    lowerer.step(Step::Move { to, from: Value::Register(length) });
                    Ok(())
                })?;
                Ok(Value::Register(to))
            }
            (Builtin::Strcmp, [one, other]) => self.compared([one, other], None, true),
            (Builtin::Strncmp, [one, other, Argument::Value(limit)]) => {
                self.compared([one, other], Some(limit), true)
            }
            (Builtin::Memcmp, [one, other, Argument::Value(limit)]) => {
                self.compared([one, other], Some(limit), false)
            }
            (Builtin::Memset, [Argument::Place(to), Argument::Value(byte), Argument::Value(limit)]) => {
                let byte = self.value(byte)?;
                let byte = self.held(byte);
                let limit = self.value(limit)?;
                let limit = self.held(limit);
                let (unit, limit) = units(limit, &[to]);
                self.write_to(to, |lowerer, to| lowerer.fill_with(to, byte, unit, limit))
            }
            (Builtin::Memcpy, [Argument::Place(to), Argument::Place(from), Argument::Value(limit)]) => {
                if to.may_be_in(from) {
                    let message = "this copies a variable into a part of itself";
                    let problem = Diagnostic::error(expression.span.clone(), message);
                    return Err(Box::new(problem.help("copy it into another variable first")));
                }
                let limit = self.value(limit)?;
                let limit = self.held(limit);
                let (unit, limit) = units(limit, &[to, from]);
                self.with_place(from, |lowerer, from| {
                    lowerer.write_to(to, |lowerer, to| lowerer.fill(to, from, unit, limit)).map(drop)
                })?;
                Ok(Value::Constant(0))
            }
            _ => unreachable!("checked: it takes nothing else"),
        }
    }

    fn read_user(&mut self, to: &Place, address: &Expression, bytes: &Expression) -> Lowered<Value> {
        let address = self.value(address)?;
        let address = self.held(address);
        let bytes = self.value(bytes)?;
        let bytes = self.at_most(bytes, to.of.size());
        let failed = self.register();
        let found = self.find(to, true)?;
        let arguments = vec![
            ir::Argument::Address(found.address),
            ir::Argument::Value(bytes),
            ir::Argument::Value(address),
        ];
        self.step(Step::Helper { to: Some(failed), number: PROBE_READ_USER, arguments });
        self.join(found, |lowerer| {
            lowerer.set(failed, Value::Constant(0), Width::W64);
            Ok(())
        })?;
        Ok(self.extended(Value::Register(failed), INT.bits, false, Width::W64))
    }

    /// The kernel leaves some of what was behind the NUL, and as many zeros as its words have: all are zeros before.
    fn read_user_text(&mut self, to: &Place, address: &Expression) -> Lowered<Value> {
        let address = self.value(address)?;
        let address = self.held(address);
        let result = self.register();
        let found = self.find(to, true)?;
        let arguments = |address| {
            let size = Value::Constant(to.of.size() as i64);
            vec![
                ir::Argument::Address(found.address),
                ir::Argument::Value(size),
                ir::Argument::Value(address),
            ]
        };
        let zeros = arguments(Value::Constant(NO_ADDRESS));
        self.step(Step::Helper { to: None, number: PROBE_READ_USER, arguments: zeros });
        let text = arguments(address);
        self.step(Step::Helper { to: Some(result), number: PROBE_READ_USER_STR, arguments: text });
        // Without the NUL, which neither a failure has counted, a negative number, nor Linux 6.12 where it comes first.
        let negative = self.operate(Operator::Subtract, U64, Value::Constant(0), Value::Register(result));
        let has_nul = self.operate(Operator::ShiftRight, U64, negative, Value::Constant(63));
        let length = self.operate(Operator::Subtract, U64, Value::Register(result), has_nul);
        self.set(result, length, Width::W64);
        self.join(found, |lowerer| {
            lowerer.set(result, Value::Constant(0), Width::W64);
            Ok(())
        })?;
        Ok(Value::Register(result))
    }

    /// A number of which the verifier knows that.
    fn at_most(&mut self, value: Value, most: u64) -> Value {
        let to = self.register();
        let [within, outside, join] = std::array::from_fn(|_| self.new_block());
        self.end(End::Index { to, index: value, length: most + 1, size: 1, within, outside });
        self.enter(within);
        self.end(End::Jump(join));
        self.enter(outside);
        self.step(Step::Move { to, from: Value::Constant(most as i64) });
        self.jump_and_enter(join);
        Value::Register(to)
    }

    fn compared(
        &mut self,
        [one, other]: [&Argument; 2],
        limit: Option<&Expression>,
        are_texts: bool,
    ) -> Lowered<Value> {
        let limit = match limit {
            Some(limit) => {
                let limit = self.value(limit)?;
                Some(self.held(limit))
            }
            None => None,
        };
        let to = self.register();
        self.with_text(one, |lowerer, one| {
            lowerer.with_text(other, |lowerer, other| lowerer.compare(to, [one, other], limit, are_texts))
        })?;
        Ok(Value::Register(to))
    }

    /// Where it is, if it is anywhere.
    fn write_to(
        &mut self,
        place: &Place,
        write: impl FnOnce(&mut Self, Bytes) -> Lowered<()>,
    ) -> Lowered<Value> {
        let found = self.find(place, true)?;
        write(self, Bytes::At { address: found.address, length: place.of.size() })?;
        self.join(found, |_| Ok(()))?;
        Ok(Value::Constant(0))
    }

    pub(super) fn ask(&mut self, number: i32) -> Value {
        let to = self.register();
        self.step(Step::Helper { to: Some(to), number, arguments: Vec::new() });
        Value::Register(to)
    }

    fn low(&mut self, number: i32) -> Value {
        let both = self.ask(number);
        self.extended(both, INT.bits, false, Width::W64)
    }

    fn high(&mut self, number: i32) -> Value {
        let both = self.ask(number);
        self.operate(Operator::ShiftRight, U64, both, Value::Constant(32))
    }
}
