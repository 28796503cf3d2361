//! Functions that are there already.

use super::{Lowered, Lowerer, places};
use crate::ast::Operator;
use crate::diagnostic::Diagnostic;
use crate::ir::{self, Step, Value, Width};
use crate::program::{Argument, Builtin, Expression};
use crate::types::{INT, U64};

// include/uapi/linux/bpf.h, enum bpf_func_id
const KTIME_GET_NS: i32 = 5;
const GET_PRANDOM_U32: i32 = 7;
const GET_SMP_PROCESSOR_ID: i32 = 8;
const GET_CURRENT_PID_TGID: i32 = 14;
const GET_CURRENT_UID_GID: i32 = 15;

impl Lowerer<'_> {
    pub(super) fn unsupported<T>(&mut self, expression: &Expression) -> Lowered<T> {
        let message = "this is checked, but not compiled yet";
        Err(Box::new(Diagnostic::error(expression.span.clone(), message)))
    }

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
            _ => self.unsupported(expression),
        }
    }

    fn ask(&mut self, number: i32) -> Value {
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
