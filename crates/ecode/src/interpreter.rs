//! Interprets a program as docs/ecode.md specifies. It is the reference for the compiler.

use std::collections::HashMap;

use crate::arithmetic::{self, number, value_of};
use crate::builtin::Builtin;
use crate::data_layout::MAX_CUT_SHORT;
use crate::faults::Faults;
use crate::records::{FormatArgument, directives, print, trim_nul};
use crate::typed::{
    Argument, Expression, ExpressionKind, Loop, Lvalue, LvalueKind, Operator, Program, Statement,
    StatementKind,
};
use crate::types::Type;

/// The result of reading inaccessible memory.
const EFAULT: u64 = -14_i64 as u64;

/// The interface of a program to its host.
pub trait Runtime {
    /// The value of a field of the hook, by its number.
    fn field(&mut self, number: usize) -> u64;
    /// Calls a builtin function without parameters and returns its result.
    fn call_builtin(&mut self, builtin: Builtin) -> u64;
    /// The name of the thread.
    fn comm(&mut self) -> Vec<u8>;
    /// Bytes of the process's memory, or `None` if the process cannot read them.
    fn read_user(&mut self, address: u64, length: u64) -> Option<Vec<u8>>;
    /// Bytes of the packet as a number with the most significant byte first, or `None` if the
    /// packet does not have them.
    fn packet(&mut self, at: u64, bytes: u8) -> Option<u64>;
    /// Receives an emitted record.
    fn emit(&mut self, record: &[u8]);
    /// Receives a printed text.
    fn print(&mut self, text: &[u8]);
}

/// The state that remains after a run, for the next run and for user space.
pub struct ProgramState {
    /// The bytes of each global variable.
    pub globals: Vec<Vec<u8>>,
    /// The entries of each map.
    pub maps: Vec<HashMap<Vec<u8>, Vec<u8>>>,
    /// The faults so far.
    pub faults: Faults,
}

impl ProgramState {
    /// The state before the first run.
    pub fn new(program: &Program) -> Self {
        let global = |global: &crate::typed::Global| {
            let mut bytes = global.initial.clone();
            bytes.resize(global.ty.size() as usize, 0);
            bytes
        };
        Self {
            globals: program.globals.iter().map(global).collect(),
            maps: program.maps.iter().map(|_| HashMap::new()).collect(),
            faults: Faults::default(),
        }
    }
}

/// Runs a handler, with a limit on the iterations of each loop, and returns its result.
pub fn run(
    program: &Program,
    state: &mut ProgramState,
    runtime: &mut dyn Runtime,
    handler: usize,
    arguments: &[u64],
    max_iterations: u64,
) -> u64 {
    let cut_short_before = state.faults.cut_short;
    let handler = &program.handlers[handler];
    let mut run = Interpreter {
        program,
        state,
        runtime,
        max_iterations,
        cut_short_before,
        handler: handler.function,
    };
    let (function, fields) = (handler.function, &handler.spec.fields);
    let parameters = &program.functions[function].locals;
    let converted = |(value, local): (&u64, &crate::typed::Local)| match &local.ty {
        Type::Bool => (*value != 0).into(),
        of => number(of).extend(*value),
    };
    let mut values: Vec<_> = arguments.iter().zip(parameters).map(converted).collect();
    // The fields are the first local variables.
    for (field, local) in (0..fields.len()).zip(parameters) {
        let value = run.runtime.field(field);
        values.push(converted((&value, local)));
    }
    run.call(function, &values)
}

struct Interpreter<'a> {
    program: &'a Program,
    state: &'a mut ProgramState,
    runtime: &'a mut dyn Runtime,
    max_iterations: u64,
    cut_short_before: u64,
    /// The handler's function, which no other function calls.
    handler: usize,
}

struct CallFrame {
    locals: Vec<Vec<u8>>,
    is_cut_short: bool,
    is_handler: bool,
}

enum Completion {
    Normal,
    Break,
    Continue,
    Return(u64),
}

/// The memory that an lvalue refers to.
enum ResolvedLvalue {
    Local(usize, usize),
    Global(usize, usize),
    Entry(usize, Vec<u8>, usize),
    /// No memory: it reads as 0 and ignores writes.
    Nowhere,
}

/// An argument of a function on memory, before its bytes are read.
enum MemoryOperand {
    Text(Vec<u8>),
    At(ResolvedLvalue, u64),
}

impl ResolvedLvalue {
    fn at(self, by: usize) -> Self {
        match self {
            Self::Local(local, at) => Self::Local(local, at + by),
            Self::Global(global, at) => Self::Global(global, at + by),
            Self::Entry(map, key, at) => Self::Entry(map, key, at + by),
            Self::Nowhere => Self::Nowhere,
        }
    }
}

impl Interpreter<'_> {
    fn call(&mut self, function: usize, arguments: &[u64]) -> u64 {
        let is_handler = function == self.handler;
        let function = &self.program.functions[function];
        let mut locals: Vec<_> =
            function.locals.iter().map(|local| vec![0; local.ty.size() as usize]).collect();
        for (local, value) in locals.iter_mut().zip(arguments) {
            let size = local.len();
            local.copy_from_slice(&value.to_le_bytes()[..size]);
        }
        let mut frame = CallFrame { locals, is_cut_short: false, is_handler };
        match self.statements(&function.body, &mut frame) {
            Completion::Return(value) => value,
            _ => 0,
        }
    }

    fn statements(&mut self, statements: &[Statement], frame: &mut CallFrame) -> Completion {
        for statement in statements {
            match self.statement(statement, frame) {
                Completion::Normal => {}
                other => return other,
            }
        }
        Completion::Normal
    }

    fn statement(&mut self, statement: &Statement, frame: &mut CallFrame) -> Completion {
        match &statement.kind {
            StatementKind::Expression(expression) => {
                self.value(expression, frame);
                Completion::Normal
            }
            StatementKind::Clear(local) => {
                frame.locals[*local].fill(0);
                Completion::Normal
            }
            StatementKind::Block(statements) => self.statements(statements, frame),
            StatementKind::If(condition, yes, no) => {
                let chosen = if self.value(condition, frame) != 0 { yes } else { no };
                self.statements(chosen, frame)
            }
            StatementKind::Loop(looped) => self.looped(looped, frame),
            StatementKind::Switch { value, cases, default, body } => {
                let value = self.value(value, frame);
                let case = cases.iter().find(|(case, _)| *case == value).map(|(_, at)| *at);
                match case.or(*default).map(|at| self.statements(&body[at..], frame)) {
                    None | Some(Completion::Break) => Completion::Normal,
                    Some(other) => other,
                }
            }
            StatementKind::Break => Completion::Break,
            StatementKind::Continue => Completion::Continue,
            StatementKind::Return(value) => {
                Completion::Return(value.as_ref().map_or(0, |value| self.value(value, frame)))
            }
        }
    }

    fn looped(&mut self, looped: &Loop, frame: &mut CallFrame) -> Completion {
        let mut is_tested = looped.tests_first;
        let cut_short = self.state.faults.cut_short - self.cut_short_before;
        let may_iterate = frame.is_handler || cut_short < MAX_CUT_SHORT;
        for _ in 0..if may_iterate { self.max_iterations } else { 0 } {
            if is_tested
                && looped
                    .condition
                    .as_ref()
                    .is_some_and(|condition| self.value(condition, frame) == 0)
            {
                return Completion::Normal;
            }
            is_tested = true;
            match self.statements(&looped.body, frame) {
                Completion::Break => return Completion::Normal,
                Completion::Return(value) => return Completion::Return(value),
                Completion::Normal | Completion::Continue => {}
            }
            if let Some(after) = &looped.after {
                self.value(after, frame);
            }
        }
        self.state.faults.cut_short += 1;
        frame.is_cut_short = true;
        Completion::Normal
    }

    fn value(&mut self, expression: &Expression, frame: &mut CallFrame) -> u64 {
        if expression.ty.is_struct() {
            self.whole(expression, frame);
            return 0;
        }
        match &expression.kind {
            ExpressionKind::Constant(value) => *value,
            // The value is not used: comparisons and builtin functions read the text itself.
            ExpressionKind::Text(_) => 0,
            ExpressionKind::Load(lvalue) => {
                let bytes = self.bytes(lvalue, frame);
                value_of(&bytes, &expression.ty)
            }
            ExpressionKind::Convert(inner) => {
                let value = self.value(inner, frame);
                match &expression.ty {
                    Type::Bool => (value != 0).into(),
                    of => number(of).extend(value),
                }
            }
            ExpressionKind::Negate(inner) => {
                number(&expression.ty).extend(self.value(inner, frame).wrapping_neg())
            }
            ExpressionKind::Complement(inner) => {
                number(&expression.ty).extend(!self.value(inner, frame))
            }
            ExpressionKind::Not(inner) => (self.value(inner, frame) == 0).into(),
            ExpressionKind::Binary(operator, left, right) if left.ty == Type::String => {
                let is_same = self.text(left, frame) == self.text(right, frame);
                (is_same == (*operator == Operator::Equal)).into()
            }
            ExpressionKind::Binary(operator, left, right) => {
                let of = number(&left.ty);
                let left = self.value(left, frame);
                let right = self.value(right, frame);
                arithmetic::binary(*operator, of, left, right)
            }
            ExpressionKind::Logical { is_and, left, right } => {
                let is_left = self.value(left, frame) != 0;
                (if is_left == *is_and { self.value(right, frame) != 0 } else { is_left }).into()
            }
            ExpressionKind::Conditional(parts) => {
                let chosen = self.chosen(parts, frame);
                self.value(chosen, frame)
            }
            ExpressionKind::Assign(lvalue, value) => {
                let bytes = self.assign(lvalue, value, frame);
                value_of(&bytes, &lvalue.of)
            }
            ExpressionKind::Update { lvalue, operator, common, by, is_old } => {
                let by = self.value(by, frame);
                let found = self.find(lvalue, frame);
                let old = value_of(&self.read(&found, lvalue.of.size(), frame), &lvalue.of);
                let new = arithmetic::binary(*operator, *common, common.extend(old), by);
                let new = if lvalue.of == Type::Bool {
                    (new != 0).into()
                } else {
                    number(&lvalue.of).extend(new)
                };
                self.write(found, &new.to_le_bytes()[..lvalue.of.size() as usize], frame);
                if *is_old { old } else { new }
            }
            ExpressionKind::Call(function, arguments) => {
                let arguments: Vec<_> =
                    arguments.iter().map(|argument| self.value(argument, frame)).collect();
                self.call(*function, &arguments)
            }
            ExpressionKind::Builtin(builtin, arguments) => self.builtin(*builtin, arguments, frame),
            ExpressionKind::Comma(left, right) => {
                self.value(left, frame);
                self.value(right, frame)
            }
        }
    }

    fn chosen<'e>(
        &mut self,
        [condition, yes, no]: &'e [Expression; 3],
        frame: &mut CallFrame,
    ) -> &'e Expression {
        if self.value(condition, frame) != 0 { yes } else { no }
    }

    fn assign(&mut self, lvalue: &Lvalue, value: &Expression, frame: &mut CallFrame) -> Vec<u8> {
        let bytes = self.whole(value, frame);
        let found = self.find(lvalue, frame);
        self.write(found, &bytes, frame);
        bytes
    }

    /// The bytes of a struct or a number.
    fn whole(&mut self, expression: &Expression, frame: &mut CallFrame) -> Vec<u8> {
        if !expression.ty.is_struct() {
            let value = self.value(expression, frame);
            return value.to_le_bytes()[..expression.ty.size() as usize].to_vec();
        }
        match &expression.kind {
            ExpressionKind::Load(lvalue) => self.bytes(lvalue, frame),
            ExpressionKind::Assign(lvalue, value) => self.assign(lvalue, value, frame),
            ExpressionKind::Conditional(parts) => {
                let chosen = self.chosen(parts, frame);
                self.whole(chosen, frame)
            }
            ExpressionKind::Comma(left, right) => {
                self.value(left, frame);
                self.whole(right, frame)
            }
            _ => unreachable!("a struct is nobody's result"),
        }
    }

    fn find(&mut self, lvalue: &Lvalue, frame: &mut CallFrame) -> ResolvedLvalue {
        match &lvalue.kind {
            LvalueKind::Local(local) => ResolvedLvalue::Local(*local, 0),
            LvalueKind::Global(global) => ResolvedLvalue::Global(*global, 0),
            LvalueKind::Member(outer, offset) => self.find(outer, frame).at(*offset as usize),
            LvalueKind::Element(array, index, length) => {
                let index = self.value(index, frame);
                if index >= *length {
                    self.state.faults.outside += 1;
                    return ResolvedLvalue::Nowhere;
                }
                self.find(array, frame).at((index * lvalue.of.size()) as usize)
            }
            LvalueKind::Entry(map, key) => ResolvedLvalue::Entry(*map, self.whole(key, frame), 0),
        }
    }

    fn bytes(&mut self, lvalue: &Lvalue, frame: &mut CallFrame) -> Vec<u8> {
        let found = self.find(lvalue, frame);
        self.read(&found, lvalue.of.size(), frame)
    }

    fn read(&self, found: &ResolvedLvalue, size: u64, frame: &CallFrame) -> Vec<u8> {
        let size = size as usize;
        match found {
            ResolvedLvalue::Local(local, at) => frame.locals[*local][*at..at + size].to_vec(),
            ResolvedLvalue::Global(global, at) => {
                self.state.globals[*global][*at..at + size].to_vec()
            }
            ResolvedLvalue::Entry(map, key, at) => match self.state.maps[*map].get(key) {
                Some(value) => value[*at..at + size].to_vec(),
                None => vec![0; size],
            },
            ResolvedLvalue::Nowhere => vec![0; size],
        }
    }

    /// Writes bytes, and returns whether the memory exists.
    fn write(&mut self, found: ResolvedLvalue, bytes: &[u8], frame: &mut CallFrame) -> bool {
        let (memory, at) = match found {
            ResolvedLvalue::Local(local, at) => (&mut frame.locals[local], at),
            ResolvedLvalue::Global(global, at) => (&mut self.state.globals[global], at),
            ResolvedLvalue::Entry(map, key, at) => {
                let declared = &self.program.maps[map];
                let entries = &mut self.state.maps[map];
                if !entries.contains_key(&key) && entries.len() == declared.length as usize {
                    self.state.faults.full += 1;
                    return false;
                }
                (entries.entry(key).or_insert_with(|| vec![0; declared.value.size() as usize]), at)
            }
            ResolvedLvalue::Nowhere => return false,
        };
        memory[at..at + bytes.len()].copy_from_slice(bytes);
        true
    }

    /// A text up to its NUL.
    fn text(&mut self, expression: &Expression, frame: &mut CallFrame) -> Vec<u8> {
        match &expression.kind {
            ExpressionKind::Text(bytes) => bytes.clone(),
            ExpressionKind::Conditional(parts) => {
                let chosen = self.chosen(parts, frame);
                self.text(chosen, frame)
            }
            ExpressionKind::Comma(left, right) => {
                self.value(left, frame);
                self.text(right, frame)
            }
            _ => Vec::new(),
        }
    }

    fn operand(&mut self, argument: &Argument, frame: &mut CallFrame) -> MemoryOperand {
        match argument {
            Argument::Value(value) => MemoryOperand::Text(self.text(value, frame)),
            Argument::Lvalue(lvalue) => {
                let found = match self.find(lvalue, frame) {
                    ResolvedLvalue::Entry(map, key, _)
                        if !self.state.maps[map].contains_key(&key) =>
                    {
                        ResolvedLvalue::Nowhere
                    }
                    found => found,
                };
                MemoryOperand::At(found, lvalue.of.size())
            }
            Argument::Map(_) => unreachable!("checked: a map has no bytes"),
        }
    }

    fn operand_bytes(&self, operand: &MemoryOperand, frame: &CallFrame) -> Vec<u8> {
        match operand {
            MemoryOperand::Text(text) => text.clone(),
            MemoryOperand::At(found, size) => self.read(found, *size, frame),
        }
    }

    fn operand_text(&self, operand: &MemoryOperand, frame: &CallFrame) -> Vec<u8> {
        let mut bytes = self.operand_bytes(operand, frame);
        bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
        bytes
    }

    fn argument_text(&mut self, argument: &Argument, frame: &mut CallFrame) -> Vec<u8> {
        let operand = self.operand(argument, frame);
        self.operand_text(&operand, frame)
    }

    fn argument_value(&mut self, argument: &Argument, frame: &mut CallFrame) -> u64 {
        match argument {
            Argument::Value(value) => self.value(value, frame),
            _ => 0,
        }
    }

    fn builtin(&mut self, builtin: Builtin, arguments: &[Argument], frame: &mut CallFrame) -> u64 {
        match (builtin, arguments) {
            (Builtin::Packet8 | Builtin::Packet16 | Builtin::Packet32, [at]) => {
                let bytes = builtin.packet_bytes().expect("it reads some");
                let at = self.argument_value(at, frame);
                let found = self.runtime.packet(at, bytes);
                self.state.faults.outside_packet += u64::from(found.is_none());
                found.unwrap_or(0)
            }
            (Builtin::CutShort, _) => frame.is_cut_short.into(),
            (Builtin::Comm, [Argument::Lvalue(to)]) => {
                let mut name = self.runtime.comm();
                name.truncate(to.of.size() as usize);
                if let Some(last) = name.last_mut() {
                    *last = 0;
                }
                self.copy(to, &name, to.of.size(), frame);
                0
            }
            (Builtin::ReadUser, [Argument::Lvalue(to), address, length]) => {
                let address = self.argument_value(address, frame);
                let length = self.argument_value(length, frame).min(to.of.size());
                let found = self.find(to, frame);
                let (bytes, result) = match self.runtime.read_user(address, length) {
                    Some(bytes) => (bytes, 0),
                    None => (vec![0; length as usize], EFAULT),
                };
                if self.write(found, &bytes, frame) { result } else { 0 }
            }
            (Builtin::ReadUserText, [Argument::Lvalue(to), address]) => {
                let address = self.argument_value(address, frame);
                let found = self.find(to, frame);
                let text = self.user_text(address, to.of.size());
                let result = text.as_ref().map_or(EFAULT, |text| text.len() as u64);
                let mut bytes = text.unwrap_or_default();
                bytes.resize(to.of.size() as usize, 0);
                if self.write(found, &bytes, frame) { result } else { 0 }
            }
            (Builtin::Memset, [Argument::Lvalue(to), byte, length]) => {
                let byte = self.argument_value(byte, frame) as u8;
                let length = self.argument_value(length, frame);
                self.copy(to, &vec![byte; length.min(to.of.size()) as usize], length, frame);
                0
            }
            (Builtin::Memcpy, [Argument::Lvalue(to), from, length]) => {
                let length = self.argument_value(length, frame);
                let from = self.operand(from, frame);
                let found = self.find(to, frame);
                let bytes = self.operand_bytes(&from, frame);
                let most = length.min(to.of.size()).min(bytes.len() as u64) as usize;
                self.write(found, &bytes[..most], frame);
                0
            }
            (Builtin::Memcmp, [one, other, length]) => {
                let length = self.argument_value(length, frame) as usize;
                let [one, other] = [one, other].map(|operand| self.operand(operand, frame));
                let (one, other) =
                    (self.operand_bytes(&one, frame), self.operand_bytes(&other, frame));
                let most = length.min(one.len()).min(other.len());
                compared(&one[..most], &other[..most])
            }
            (Builtin::Strlen, [text]) => self.argument_text(text, frame).len() as u64,
            (Builtin::Strcmp | Builtin::Strncmp, [one, other, length @ ..]) => {
                let length = match length {
                    [length] => self.argument_value(length, frame) as usize,
                    _ => usize::MAX,
                };
                let [one, other] = [one, other].map(|operand| self.operand(operand, frame));
                let (one, other) =
                    (self.operand_text(&one, frame), self.operand_text(&other, frame));
                compared(&one[..length.min(one.len())], &other[..length.min(other.len())])
            }
            (Builtin::Has, [Argument::Map(map), Argument::Value(key)]) => {
                let key = self.whole(key, frame);
                self.state.maps[*map].contains_key(&key).into()
            }
            (Builtin::Erase, [Argument::Map(map), Argument::Value(key)]) => {
                let key = self.whole(key, frame);
                self.state.maps[*map].remove(&key).is_some().into()
            }
            (Builtin::Emit, [Argument::Lvalue(record)]) => {
                let bytes = self.bytes(record, frame);
                self.runtime.emit(&bytes);
                1
            }
            (Builtin::Print, [format, values @ ..]) => {
                let text = self.printed(format, values, frame);
                self.runtime.print(&text);
                0
            }
            (builtin, _) => self.runtime.call_builtin(builtin),
        }
    }

    /// Reads a text from user space up to its NUL, and cuts it so that it fits into `room` together
    /// with a NUL.
    fn user_text(&mut self, address: u64, room: u64) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        for at in 0..room {
            let byte = self.runtime.read_user(address.wrapping_add(at), 1)?[0];
            if byte == 0 {
                return Some(text);
            }
            text.push(byte);
        }
        text.pop();
        Some(text)
    }

    /// Copies at most `length` bytes, and no more than the source or the destination has.
    fn copy(&mut self, to: &Lvalue, from: &[u8], length: u64, frame: &mut CallFrame) {
        let most = length.min(to.of.size()).min(from.len() as u64) as usize;
        let found = self.find(to, frame);
        self.write(found, &from[..most], frame);
    }

    fn printed(
        &mut self,
        format: &Argument,
        values: &[Argument],
        frame: &mut CallFrame,
    ) -> Vec<u8> {
        let format = self.argument_text(format, frame);
        let wants_text: Vec<_> = directives(&format).map(|directive| directive == b's').collect();
        let mut printed: Vec<_> = values.iter().map(|_| FormatArgument::Number(0)).collect();
        for at in (0..values.len()).filter(|at| !wants_text[*at]) {
            printed[at] = FormatArgument::Number(self.argument_value(&values[at], frame));
        }
        let texts = (0..values.len()).filter(|at| wants_text[*at]);
        let texts: Vec<_> = texts.map(|at| (at, self.operand(&values[at], frame))).collect();
        for (at, text) in texts {
            printed[at] = FormatArgument::Text(trim_nul(&self.operand_bytes(&text, frame)));
        }
        print(&format, &printed)
    }
}

fn compared(one: &[u8], other: &[u8]) -> u64 {
    one.cmp(other) as i64 as u64
}
