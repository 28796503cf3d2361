//! Lowers calls of builtin functions.

use super::bytes::{ByteSource, choose_unit};
use super::helpers::{
    GET_CURRENT_COMM, GET_CURRENT_PID_TGID, GET_CURRENT_UID_GID, GET_PRANDOM_U32,
    GET_SMP_PROCESSOR_ID, KTIME_GET_NS, MAP_DELETE_ELEM, PROBE_READ_USER, PROBE_READ_USER_STR,
};
use super::lowerer::{Lowered, Lowerer};
use crate::ast::Operator;
use crate::builtin::Builtin;
use crate::diagnostic::Diagnostic;
use crate::ir::{self, Inst, Terminator, Value, Width};
use crate::typed::{Argument, Expression, Lvalue};
use crate::types::{INT, U64};

/// An address outside user space: a read from it fails and fills the buffer with zeros.
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
            (Builtin::Now, _) => Ok(self.call_helper(KTIME_GET_NS)),
            (Builtin::Random, _) => Ok(self.low_half(GET_PRANDOM_U32)),
            (Builtin::Cpu, _) => Ok(self.low_half(GET_SMP_PROCESSOR_ID)),
            (Builtin::Tid, _) => Ok(self.low_half(GET_CURRENT_PID_TGID)),
            (Builtin::Uid, _) => Ok(self.low_half(GET_CURRENT_UID_GID)),
            (Builtin::Pid, _) => Ok(self.high_half(GET_CURRENT_PID_TGID)),
            (Builtin::Gid, _) => Ok(self.high_half(GET_CURRENT_UID_GID)),
            (Builtin::CutShort, _) => {
                let flag = self.is_cut_short.expect("it was looked for");
                Ok(self.materialize(Value::Register(flag)))
            }
            (Builtin::Has, [Argument::Map(map), Argument::Value(key)]) => {
                let key = self.key(*map, key)?;
                let entry = self.register();
                let [yes, no, join] = std::array::from_fn(|_| self.new_block());
                self.look_up(entry, *map, key, yes, no);
                let to = self.register();
                self.select_bool(to, yes, no, join);
                Ok(Value::Register(to))
            }
            (Builtin::Erase, [Argument::Map(map), Argument::Value(key)]) => {
                let key = self.key(*map, key)?;
                let arguments =
                    vec![ir::HelperArgument::Map(*map), ir::HelperArgument::Address(key)];
                let failed = self.register();
                self.step(Inst::Helper { to: Some(failed), number: MAP_DELETE_ELEM, arguments });
                let [yes, no, join] = std::array::from_fn(|_| self.new_block());
                self.branch(
                    Operator::Equal,
                    U64,
                    Value::Register(failed),
                    Value::Constant(0),
                    yes,
                    no,
                );
                let to = self.register();
                self.select_bool(to, yes, no, join);
                Ok(Value::Register(to))
            }
            (Builtin::Comm, [Argument::Lvalue(to)]) => {
                let size = Value::Constant(to.of.size().min(COMM_BYTES) as i64);
                let found = self.lower_lvalue(to, true)?;
                let arguments = vec![
                    ir::HelperArgument::Address(found.address),
                    ir::HelperArgument::Value(size),
                ];
                self.step(Inst::Helper { to: None, number: GET_CURRENT_COMM, arguments });
                self.merge_absent(found, |_| Ok(()))?;
                Ok(Value::Constant(0))
            }
            (
                Builtin::ReadUser,
                [Argument::Lvalue(to), Argument::Value(address), Argument::Value(bytes)],
            ) => self.read_user(to, address, bytes),
            (Builtin::Packet8 | Builtin::Packet16 | Builtin::Packet32, [Argument::Value(at)]) => {
                self.packet(at, builtin.packet_bytes().expect("it reads some"))
            }
            (Builtin::ReadUserText, [Argument::Lvalue(to), Argument::Value(address)]) => {
                self.read_user_text(to, address)
            }
            (Builtin::Print, [Argument::Value(format), values @ ..]) => self.print(format, values),
            (Builtin::Emit, [Argument::Lvalue(record)]) => self.emit(record),
            (Builtin::Strlen, [text]) => {
                let to = self.register();
                self.with_text(text, |lowerer, text| {
                    let length = lowerer.length(text)?;
                    lowerer.step(Inst::Move { to, from: Value::Register(length) });
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
            (
                Builtin::Memset,
                [Argument::Lvalue(to), Argument::Value(byte), Argument::Value(limit)],
            ) => {
                let byte = self.value(byte)?;
                let byte = self.materialize(byte);
                let limit = self.value(limit)?;
                let limit = self.materialize(limit);
                let (unit, limit) = choose_unit(limit, &[to]);
                self.write_to(to, |lowerer, to| lowerer.set_bytes(to, byte, unit, limit))
            }
            (
                Builtin::Memcpy,
                [Argument::Lvalue(to), Argument::Lvalue(from), Argument::Value(limit)],
            ) => {
                if to.may_be_in(from) {
                    let message = "this copies a variable into a part of itself";
                    let problem = Diagnostic::error(expression.span.clone(), message);
                    return Err(Box::new(problem.help("copy it into another variable first")));
                }
                let limit = self.value(limit)?;
                let limit = self.materialize(limit);
                let (unit, limit) = choose_unit(limit, &[to, from]);
                self.with_lvalue(from, |lowerer, from| {
                    lowerer
                        .write_to(to, |lowerer, to| lowerer.copy_bytes(to, from, unit, limit))
                        .map(drop)
                })?;
                Ok(Value::Constant(0))
            }
            _ => unreachable!("checked: it takes nothing else"),
        }
    }

    fn read_user(
        &mut self,
        to: &Lvalue,
        address: &Expression,
        bytes: &Expression,
    ) -> Lowered<Value> {
        let address = self.value(address)?;
        let address = self.materialize(address);
        let bytes = self.value(bytes)?;
        let bytes = self.clamp(bytes, to.of.size());
        let failed = self.register();
        let found = self.lower_lvalue(to, true)?;
        let arguments = vec![
            ir::HelperArgument::Address(found.address),
            ir::HelperArgument::Value(bytes),
            ir::HelperArgument::Value(address),
        ];
        self.step(Inst::Helper { to: Some(failed), number: PROBE_READ_USER, arguments });
        self.merge_absent(found, |lowerer| {
            lowerer.set(failed, Value::Constant(0), Width::W64);
            Ok(())
        })?;
        Ok(self.extended(Value::Register(failed), INT.bits, false, Width::W64))
    }

    /// Reads a text from user space. The buffer is zeroed first, because after the NUL the kernel
    /// writes zeros only up to the end of a word and leaves the rest as it was.
    fn read_user_text(&mut self, to: &Lvalue, address: &Expression) -> Lowered<Value> {
        let address = self.value(address)?;
        let address = self.materialize(address);
        let result = self.register();
        let found = self.lower_lvalue(to, true)?;
        let arguments = |address| {
            let size = Value::Constant(to.of.size() as i64);
            vec![
                ir::HelperArgument::Address(found.address),
                ir::HelperArgument::Value(size),
                ir::HelperArgument::Value(address),
            ]
        };
        let zeros = arguments(Value::Constant(NO_ADDRESS));
        self.step(Inst::Helper { to: None, number: PROBE_READ_USER, arguments: zeros });
        let text = arguments(address);
        self.step(Inst::Helper { to: Some(result), number: PROBE_READ_USER_STR, arguments: text });
        // Subtract the NUL from a positive result only. A negative result is a failure, which
        // counts no NUL, and Linux 6.12 does not count the NUL of an empty text.
        let negative =
            self.operate(Operator::Subtract, U64, Value::Constant(0), Value::Register(result));
        let has_nul = self.operate(Operator::ShiftRight, U64, negative, Value::Constant(63));
        let length = self.operate(Operator::Subtract, U64, Value::Register(result), has_nul);
        self.set(result, length, Width::W64);
        self.merge_absent(found, |lowerer| {
            lowerer.set(result, Value::Constant(0), Width::W64);
            Ok(())
        })?;
        Ok(Value::Register(result))
    }

    /// Limits a number such that the verifier knows the limit.
    fn clamp(&mut self, value: Value, most: u64) -> Value {
        let to = self.register();
        let [within, outside, join] = std::array::from_fn(|_| self.new_block());
        self.end(Terminator::BoundsCheck {
            to,
            index: value,
            length: most + 1,
            size: 1,
            within,
            outside,
        });
        self.enter(within);
        self.end(Terminator::Jump(join));
        self.enter(outside);
        self.step(Inst::Move { to, from: Value::Constant(most as i64) });
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
                Some(self.materialize(limit))
            }
            None => None,
        };
        let to = self.register();
        self.with_text(one, |lowerer, one| {
            lowerer.with_text(other, |lowerer, other| {
                lowerer.compare(to, [one, other], limit, are_texts)
            })
        })?;
        Ok(Value::Register(to))
    }

    /// Writes to an lvalue, if it exists.
    fn write_to(
        &mut self,
        lvalue: &Lvalue,
        write: impl FnOnce(&mut Self, ByteSource) -> Lowered<()>,
    ) -> Lowered<Value> {
        let found = self.lower_lvalue(lvalue, true)?;
        write(self, ByteSource::At { address: found.address, length: lvalue.of.size() })?;
        self.merge_absent(found, |_| Ok(()))?;
        Ok(Value::Constant(0))
    }

    pub(super) fn call_helper(&mut self, number: i32) -> Value {
        let to = self.register();
        self.step(Inst::Helper { to: Some(to), number, arguments: Vec::new() });
        Value::Register(to)
    }

    fn low_half(&mut self, number: i32) -> Value {
        let both = self.call_helper(number);
        self.extended(both, INT.bits, false, Width::W64)
    }

    fn high_half(&mut self, number: i32) -> Value {
        let both = self.call_helper(number);
        self.operate(Operator::ShiftRight, U64, both, Value::Constant(32))
    }
}
