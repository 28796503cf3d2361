//! Lowers the entry and the exit of a handler: loads the fields of its hook and applies the return
//! policy.

use super::helpers::{
    GET_CURRENT_TASK_BTF, GET_SMP_PROCESSOR_ID, PROBE_READ_KERNEL_STR, SET_RETVAL,
};
use super::lowerer::{HandlerExit, LocalStorage, Lowered, Lowerer};
use crate::arithmetic::number;
use crate::ast::Operator;
use crate::data_layout::OUTSIDE_PACKET;
use crate::hooks::{
    FieldBase, FieldCondition, FieldSource, HookProgram, HookVariant, MAX_ERRNO, ReturnPolicy,
    TextLocation,
};
use crate::ir::{self, Address, BlockId, Inst, Register, Terminator, Value, Width};
use crate::typed::{Expression, Handler};
use crate::types::{Integer, LONG, Type, U64};

/// The largest offset that the kernel helpers accept (0xffff in bpf_skb_load_bytes and
/// bpf_xdp_load_bytes, net/core/filter.c).
const MAX_PACKET_BYTES: i64 = 0xffff;

/// The variants that are needed. The last one is enough if it is unconditional and all variants
/// have the same sources for the fields that are read.
fn needed<'a>(variants: &'a [HookVariant], is_read: &[bool]) -> &'a [HookVariant] {
    let Some((last, others)) = variants.split_last() else { return variants };
    let read = |variant: &'a HookVariant| {
        variant.fields.iter().zip(is_read).filter(|(_, is_read)| **is_read)
    };
    let is_enough =
        last.conditions.is_empty() && others.iter().all(|other| read(other).eq(read(last)));
    if is_enough { std::slice::from_ref(last) } else { variants }
}

impl Lowerer<'_> {
    pub(super) fn lower_entry(&mut self, handler: &Handler, hook_program: &HookProgram) {
        let ReturnPolicy::Chained { goes_on, stops } = handler.spec.return_policy else {
            self.reset_loop_budget();
            return;
        };
        let block = self.new_block();
        let stop = stops.map(|stop| (stop, self.register()));
        self.handler_exit = Some(HandlerExit { block, default_return: goes_on, stop });
        let body = self.new_block();
        // The first conditions of the variants usually test the same value. Load it only once.
        let mut loaded: Option<(&FieldCondition, Value)> = None;
        for variant in needed(&hook_program.variants, &handler.is_read) {
            let next = self.new_block();
            for (index, condition) in variant.conditions.iter().enumerate() {
                let value = match loaded {
                    Some((tested, value))
                        if tested.source == condition.source && tested.mask == condition.mask =>
                    {
                        value
                    }
                    _ => self.condition_source(condition),
                };
                if index == 0 {
                    loaded = Some((condition, value));
                }
                self.branch_unless_equal(value, condition.equals, next);
            }
            for (field, source) in
                variant.fields.iter().enumerate().filter(|(field, _)| handler.is_read[*field])
            {
                self.load_field(field, source);
            }
            self.end(Terminator::Jump(body));
            self.enter(next);
        }
        self.return_with(Value::Constant(0));
        self.enter(body);
    }

    fn condition_source(&mut self, condition: &FieldCondition) -> Value {
        let value = self.load_source(&condition.source, 0);
        match condition.mask {
            u64::MAX => value,
            mask => self.operate(Operator::And, U64, value, Value::Constant(mask as i64)),
        }
    }

    fn branch_unless_equal(&mut self, value: Value, is: u64, otherwise: BlockId) {
        let yes = self.new_block();
        self.branch(Operator::Equal, U64, value, Value::Constant(is as i64), yes, otherwise);
        self.enter(yes);
    }

    /// Loads a field into its variable.
    fn load_field(&mut self, local: usize, source: &FieldSource) {
        let of = self.function.locals[local].ty.clone();
        match self.storage[local] {
            LocalStorage::Register(to) => {
                let is_signed = number(&of).is_signed;
                let from = Integer::c(source.bytes * 8, is_signed);
                let value = self.load_source(source, 0);
                let value = self.converted(value, from, &of);
                self.set_local(local, to, value);
            }
            LocalStorage::Frame(at) if matches!(source.base, FieldBase::Text(_)) => {
                self.load_text(at, of.size(), source);
            }
            LocalStorage::Frame(at) => {
                let element = match &of {
                    Type::Array(element, _) => element.size(),
                    _ => of.size(),
                };
                for by in (0..of.size()).step_by(element as usize) {
                    let value = self.load_source(source, by as u16);
                    let to = Address::of(ir::AddressBase::Frame(at + by as u32));
                    self.step(Inst::Store { to, bytes: element as u8, value });
                }
            }
        }
    }

    /// Copies the text of a field, and fills the rest of its array with zeros.
    fn load_text(&mut self, at: u32, bytes: u64, source: &FieldSource) {
        let FieldBase::Text(location) = source.base else { unreachable!("the caller tests this") };
        let word = FieldSource { base: FieldBase::Context, ..source.clone() };
        let word = self.load_source(&word, 0);
        let mut offset = self.operate(Operator::And, U64, word, Value::Constant(0xffff));
        if location == TextLocation::Word {
            let end =
                source.path.iter().map(|at| i64::from(*at)).sum::<i64>() + i64::from(source.bytes);
            offset = self.operate(Operator::Add, U64, offset, Value::Constant(end));
        }
        let context = self.register();
        self.step(Inst::Context { to: context });
        let text = self.operate(Operator::Add, U64, Value::Register(context), offset);
        self.clear(at, bytes);
        let arguments = vec![
            ir::HelperArgument::Address(Address::of(ir::AddressBase::Frame(at))),
            ir::HelperArgument::Value(Value::Constant(bytes as i64)),
            ir::HelperArgument::Value(text),
        ];
        self.step(Inst::Helper { to: None, number: PROBE_READ_KERNEL_STR, arguments });
    }

    /// Loads a member of the verdict of the current processor.
    fn per_cpu_field(&mut self, at: u16, bytes: u8, each: u32, processors: u32) -> Value {
        let [processor, to] = std::array::from_fn(|_| self.register());
        let number = GET_SMP_PROCESSOR_ID;
        self.step(Inst::Helper { to: Some(processor), number, arguments: Vec::new() });
        let most = Value::Constant(i64::from(processors) - 1);
        let within = self.operate(Operator::And, U64, Value::Register(processor), most);
        let index = self.operate(Operator::Multiply, U64, within, Value::Constant(each.into()));
        let from = Address { base: ir::AddressBase::Verdicts(at.into()), index: index.register() };
        self.step(Inst::Load { to, from, bytes });
        Value::Register(to)
    }

    fn load_source(&mut self, source: &FieldSource, by: u16) -> Value {
        if let (FieldBase::Verdict { bytes, processors }, [at]) =
            (source.base, source.path.as_slice())
        {
            return self.per_cpu_field(*at, source.bytes, bytes, processors);
        }
        let mut pointer = self.register();
        match source.base {
            FieldBase::Verdict { .. } => unreachable!("its path is a member"),
            FieldBase::Text(_) => unreachable!("its field is an array"),
            FieldBase::Number(number) => return Value::Constant(number as i64),
            FieldBase::Context => self.step(Inst::Context { to: pointer }),
            FieldBase::Helper(number) => {
                let to = self.register();
                self.step(Inst::Context { to: pointer });
                let arguments = vec![ir::HelperArgument::Value(Value::Register(pointer))];
                self.step(Inst::Helper { to: Some(to), number, arguments });
                return Value::Register(to);
            }
            FieldBase::Task => {
                let (number, arguments) = (GET_CURRENT_TASK_BTF, Vec::new());
                self.step(Inst::Helper { to: Some(pointer), number, arguments });
            }
        }
        let (last, pointers) = source.path.split_last().expect("there is a place in memory");
        for at in pointers {
            let to = self.register();
            let from = Address::of(ir::AddressBase::Pointer(pointer, u32::from(*at)));
            self.step(Inst::Load { to, from, bytes: 8 });
            pointer = to;
        }
        let to = self.register();
        let from = Address::of(ir::AddressBase::Pointer(pointer, u32::from(last + by)));
        self.step(Inst::Load { to, from, bytes: source.bytes });
        if source.is_big_endian {
            self.swap_to_host_order(to, source.bytes)
        } else {
            Value::Register(to)
        }
    }

    /// Loads bytes of the packet.
    pub(super) fn packet(&mut self, at: &Expression, bytes: u8) -> Lowered<Value> {
        let at = self.value(at)?;
        let buffer = Address::of(ir::AddressBase::Frame(self.frame(8)));
        let [context, failed, to] = std::array::from_fn(|_| self.register());
        let [attempt, found, outside, join] = std::array::from_fn(|_| self.new_block());
        // The kernel would use only the lower half of a larger offset.
        let most = Value::Constant(MAX_PACKET_BYTES);
        self.branch(Operator::LessEqual, U64, at, most, attempt, outside);
        self.enter(attempt);
        self.step(Inst::Context { to: context });
        let number = self.packet.expect("it was looked for");
        let length = ir::HelperArgument::Value(Value::Constant(bytes.into()));
        let arguments = vec![
            ir::HelperArgument::Value(Value::Register(context)),
            ir::HelperArgument::Value(at),
            ir::HelperArgument::Address(buffer),
            length,
        ];
        self.step(Inst::Helper { to: Some(failed), number, arguments });
        let (failed, nothing) = (Value::Register(failed), Value::Constant(0));
        self.branch(Operator::Equal, U64, failed, nothing, found, outside);
        self.enter(found);
        let read = self.register();
        self.step(Inst::Load { to: read, from: buffer, bytes });
        let value = self.swap_to_host_order(read, bytes);
        self.step(Inst::Move { to, from: value });
        self.end(Terminator::Jump(join));
        self.enter(outside);
        self.add_to_control(OUTSIDE_PACKET);
        self.set(to, nothing, Width::W32);
        self.jump_and_enter(join);
        Ok(Value::Register(to))
    }

    /// Converts a number from network byte order.
    fn swap_to_host_order(&mut self, from: Register, bytes: u8) -> Value {
        if bytes == 1 {
            return Value::Register(from);
        }
        let to = self.register();
        self.step(Inst::ByteSwap { to, from, bits: bytes * 8 });
        Value::Register(to)
    }

    pub(super) fn return_with(&mut self, value: Value) {
        let Some(HandlerExit { block, stop, .. }) = &self.handler_exit else {
            return self.end(Terminator::Return(value));
        };
        let (block, stop) = (*block, *stop);
        if let Some((_, result)) = stop {
            self.set(result, value, Width::W64);
        }
        self.end(Terminator::Jump(block));
    }

    /// Emits the exit of a handler, after all jumps to it.
    pub(super) fn lower_exit(&mut self) {
        let Some(HandlerExit { block, default_return: goes_on, stop }) = self.handler_exit.take()
        else {
            return;
        };
        self.enter(block);
        if let Some((stop, result)) = stop {
            let [stopped, next] = std::array::from_fn(|_| self.new_block());
            let result = Value::Register(result);
            self.branch(Operator::NotEqual, LONG, result, Value::Constant(0), stopped, next);
            self.enter(stopped);
            if stop.sets_errno {
                self.set_errno(result);
            }
            self.end(Terminator::Return(Value::Constant(stop.value.into())));
            self.enter(next);
        }
        self.step(Inst::TailCall);
        self.end(Terminator::Return(Value::Constant(goes_on.into())));
    }

    fn set_errno(&mut self, result: Value) {
        let [is_negative, is_errno, join] = std::array::from_fn(|_| self.new_block());
        self.branch(Operator::Less, LONG, result, Value::Constant(0), is_negative, join);
        self.enter(is_negative);
        let least = Value::Constant(-MAX_ERRNO);
        self.branch(Operator::GreaterEqual, LONG, result, least, is_errno, join);
        self.enter(is_errno);
        let arguments = vec![ir::HelperArgument::Value(result)];
        self.step(Inst::Helper { to: None, number: SET_RETVAL, arguments });
        self.jump_and_enter(join);
    }
}
