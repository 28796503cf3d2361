//! Runs a program as docs/ecode.md says: the reference of what is compiled.

use std::collections::HashMap;

use crate::layout::MOST_CUT_SHORT;
use crate::program::{
    Argument, Builtin, Expression, ExpressionKind, Loop, Operator, Place, PlaceKind, Program, Statement,
    StatementKind,
};
use crate::records::{Printed, directives, print, up_to_nul};
use crate::types::{Integer, Type};
use crate::value;

/// Of what cannot be read.
const EFAULT: u64 = -14_i64 as u64;

/// What a program asks of the machine that it runs on.
pub trait World {
    /// Of the hook, by its number.
    fn field(&mut self, number: usize) -> u64;
    /// Of those that take nothing.
    fn ask(&mut self, what: Builtin) -> u64;
    fn comm(&mut self) -> Vec<u8>;
    fn read_user(&mut self, address: u64, length: u64) -> Option<Vec<u8>>;
    /// So many of its bytes, the most significant one first, if it has them.
    fn packet(&mut self, at: u64, bytes: u8) -> Option<u64>;
    fn emit(&mut self, record: &[u8]);
    fn print(&mut self, text: &[u8]);
}

/// What a run leaves behind for the next one, and for user space.
pub struct State {
    /// The bytes of each global variable.
    pub globals: Vec<Vec<u8>>,
    pub maps: Vec<HashMap<Vec<u8>, Vec<u8>>>,
    pub faults: Faults,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    /// Elements that are outside of their arrays.
    pub outside: u64,
    /// What was to be read of a packet, and is outside of it.
    pub outside_packet: u64,
    pub cut_short: u64,
    /// Entries for which a map had no room.
    pub full: u64,
    /// What could not be told to user space, as the kernel's buffer for it was full.
    pub lost: u64,
}

impl State {
    pub fn new(program: &Program) -> Self {
        let global = |global: &crate::program::Global| {
            let mut bytes = global.initial.clone();
            bytes.resize(global.of.size() as usize, 0);
            bytes
        };
        Self {
            globals: program.globals.iter().map(global).collect(),
            maps: program.maps.iter().map(|_| HashMap::new()).collect(),
            faults: Faults::default(),
        }
    }
}

/// What a handler returns, after at most so many rounds of each loop.
pub fn run(
    program: &Program,
    state: &mut State,
    world: &mut dyn World,
    handler: usize,
    arguments: &[u64],
    most_rounds: u64,
) -> u64 {
    let cut_short_before = state.faults.cut_short;
    let handler = &program.handlers[handler];
    let mut run = Run { program, state, world, most_rounds, cut_short_before, handler: handler.function };
    let (function, fields) = (handler.function, &handler.offer.fields);
    let parameters = &program.functions[function].locals;
    let converted = |(value, local): (&u64, &crate::program::Local)| match &local.of {
        Type::Bool => (*value != 0).into(),
        of => number(of).extend(*value),
    };
    let mut values: Vec<_> = arguments.iter().zip(parameters).map(converted).collect();
    // They are its first local variables.
    for (field, local) in (0..fields.len()).zip(parameters) {
        let value = run.world.field(field);
        values.push(converted((&value, local)));
    }
    run.call(function, &values)
}

struct Run<'a> {
    program: &'a Program,
    state: &'a mut State,
    world: &'a mut dyn World,
    most_rounds: u64,
    cut_short_before: u64,
    /// The function that is not called by others.
    handler: usize,
}

struct Frame {
    locals: Vec<Vec<u8>>,
    is_cut_short: bool,
    is_handler: bool,
}

enum Flow {
    On,
    Break,
    Continue,
    Return(u64),
}

/// Where a place is found to be.
enum Found {
    Local(usize, usize),
    Global(usize, usize),
    Entry(usize, Vec<u8>, usize),
    /// Nothing is there: it reads as 0, and keeps nothing.
    Nowhere,
}

/// What a function on memory is given, before its bytes are looked at.
enum Operand {
    Text(Vec<u8>),
    At(Found, u64),
}

impl Found {
    fn at(self, by: usize) -> Self {
        match self {
            Self::Local(local, at) => Self::Local(local, at + by),
            Self::Global(global, at) => Self::Global(global, at + by),
            Self::Entry(map, key, at) => Self::Entry(map, key, at + by),
            Self::Nowhere => Self::Nowhere,
        }
    }
}

fn number(of: &Type) -> Integer {
    of.integer().unwrap_or(crate::types::U64)
}

pub fn value_of(bytes: &[u8], of: &Type) -> u64 {
    let mut all = [0; 8];
    let size = bytes.len().min(8);
    all[..size].copy_from_slice(&bytes[..size]);
    number(of).extend(u64::from_le_bytes(all))
}

impl Run<'_> {
    fn call(&mut self, function: usize, arguments: &[u64]) -> u64 {
        let is_handler = function == self.handler;
        let function = &self.program.functions[function];
        let mut locals: Vec<_> =
            function.locals.iter().map(|local| vec![0; local.of.size() as usize]).collect();
        for (local, value) in locals.iter_mut().zip(arguments) {
            let size = local.len();
            local.copy_from_slice(&value.to_le_bytes()[..size]);
        }
        let mut frame = Frame { locals, is_cut_short: false, is_handler };
        match self.statements(&function.body, &mut frame) {
            Flow::Return(value) => value,
            _ => 0,
        }
    }

    fn statements(&mut self, statements: &[Statement], frame: &mut Frame) -> Flow {
        for statement in statements {
            match self.statement(statement, frame) {
                Flow::On => {}
                other => return other,
            }
        }
        Flow::On
    }

    fn statement(&mut self, statement: &Statement, frame: &mut Frame) -> Flow {
        match &statement.kind {
            StatementKind::Expression(expression) => {
                self.value(expression, frame);
                Flow::On
            }
            StatementKind::Clear(local) => {
                frame.locals[*local].fill(0);
                Flow::On
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
                    None | Some(Flow::Break) => Flow::On,
                    Some(other) => other,
                }
            }
            StatementKind::Break => Flow::Break,
            StatementKind::Continue => Flow::Continue,
            StatementKind::Return(value) => {
                Flow::Return(value.as_ref().map_or(0, |value| self.value(value, frame)))
            }
        }
    }

    fn looped(&mut self, looped: &Loop, frame: &mut Frame) -> Flow {
        let mut is_asked = looped.is_asked_first;
        let cut_short = self.state.faults.cut_short - self.cut_short_before;
        let has_rounds = frame.is_handler || cut_short < MOST_CUT_SHORT;
        for _ in 0..if has_rounds { self.most_rounds } else { 0 } {
            if is_asked
                && looped.condition.as_ref().is_some_and(|condition| self.value(condition, frame) == 0)
            {
                return Flow::On;
            }
            is_asked = true;
            match self.statements(&looped.body, frame) {
                Flow::Break => return Flow::On,
                Flow::Return(value) => return Flow::Return(value),
                Flow::On | Flow::Continue => {}
            }
            if let Some(after) = &looped.after {
                self.value(after, frame);
            }
        }
        self.state.faults.cut_short += 1;
        frame.is_cut_short = true;
        Flow::On
    }

    fn value(&mut self, expression: &Expression, frame: &mut Frame) -> u64 {
        if expression.of.is_struct() {
            self.whole(expression, frame);
            return 0;
        }
        match &expression.kind {
            ExpressionKind::Constant(value) => *value,
            // Only compared, and handed to built-in functions, which look at the text itself.
            ExpressionKind::Text(_) => 0,
            ExpressionKind::Load(place) => {
                let bytes = self.bytes(place, frame);
                value_of(&bytes, &expression.of)
            }
            ExpressionKind::Convert(inner) => {
                let value = self.value(inner, frame);
                match &expression.of {
                    Type::Bool => (value != 0).into(),
                    of => number(of).extend(value),
                }
            }
            ExpressionKind::Negate(inner) => {
                number(&expression.of).extend(self.value(inner, frame).wrapping_neg())
            }
            ExpressionKind::Complement(inner) => number(&expression.of).extend(!self.value(inner, frame)),
            ExpressionKind::Not(inner) => (self.value(inner, frame) == 0).into(),
            ExpressionKind::Binary(operator, left, right) if left.of == Type::String => {
                let is_same = self.text(left, frame) == self.text(right, frame);
                (is_same == (*operator == Operator::Equal)).into()
            }
            ExpressionKind::Binary(operator, left, right) => {
                let of = number(&left.of);
                let left = self.value(left, frame);
                let right = self.value(right, frame);
                value::binary(*operator, of, left, right)
            }
            ExpressionKind::Logical { is_and, left, right } => {
                let is_left = self.value(left, frame) != 0;
                (if is_left == *is_and { self.value(right, frame) != 0 } else { is_left }).into()
            }
            ExpressionKind::Conditional(parts) => {
                let chosen = self.chosen(parts, frame);
                self.value(chosen, frame)
            }
            ExpressionKind::Assign(place, value) => {
                let bytes = self.assign(place, value, frame);
                value_of(&bytes, &place.of)
            }
            ExpressionKind::Update { place, operator, common, by, is_old } => {
                let by = self.value(by, frame);
                let found = self.find(place, frame);
                let old = value_of(&self.read(&found, place.of.size(), frame), &place.of);
                let new = value::binary(*operator, *common, common.extend(old), by);
                let new =
                    if place.of == Type::Bool { (new != 0).into() } else { number(&place.of).extend(new) };
                self.write(found, &new.to_le_bytes()[..place.of.size() as usize], frame);
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

    fn chosen<'e>(&mut self, [condition, yes, no]: &'e [Expression; 3], frame: &mut Frame) -> &'e Expression {
        if self.value(condition, frame) != 0 { yes } else { no }
    }

    fn assign(&mut self, place: &Place, value: &Expression, frame: &mut Frame) -> Vec<u8> {
        let bytes = self.whole(value, frame);
        let found = self.find(place, frame);
        self.write(found, &bytes, frame);
        bytes
    }

    /// The bytes of a struct, or of a number.
    fn whole(&mut self, expression: &Expression, frame: &mut Frame) -> Vec<u8> {
        if !expression.of.is_struct() {
            let value = self.value(expression, frame);
            return value.to_le_bytes()[..expression.of.size() as usize].to_vec();
        }
        match &expression.kind {
            ExpressionKind::Load(place) => self.bytes(place, frame),
            ExpressionKind::Assign(place, value) => self.assign(place, value, frame),
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

    fn find(&mut self, place: &Place, frame: &mut Frame) -> Found {
        match &place.kind {
            PlaceKind::Local(local) => Found::Local(*local, 0),
            PlaceKind::Global(global) => Found::Global(*global, 0),
            PlaceKind::Member(outer, offset) => self.find(outer, frame).at(*offset as usize),
            PlaceKind::Element(array, index, length) => {
                let index = self.value(index, frame);
                if index >= *length {
                    self.state.faults.outside += 1;
                    return Found::Nowhere;
                }
                self.find(array, frame).at((index * place.of.size()) as usize)
            }
            PlaceKind::Entry(map, key) => Found::Entry(*map, self.whole(key, frame), 0),
        }
    }

    fn bytes(&mut self, place: &Place, frame: &mut Frame) -> Vec<u8> {
        let found = self.find(place, frame);
        self.read(&found, place.of.size(), frame)
    }

    fn read(&self, found: &Found, size: u64, frame: &Frame) -> Vec<u8> {
        let size = size as usize;
        match found {
            Found::Local(local, at) => frame.locals[*local][*at..at + size].to_vec(),
            Found::Global(global, at) => self.state.globals[*global][*at..at + size].to_vec(),
            Found::Entry(map, key, at) => match self.state.maps[*map].get(key) {
                Some(value) => value[*at..at + size].to_vec(),
                None => vec![0; size],
            },
            Found::Nowhere => vec![0; size],
        }
    }

    /// Whether they are kept.
    fn write(&mut self, found: Found, bytes: &[u8], frame: &mut Frame) -> bool {
        let (memory, at) = match found {
            Found::Local(local, at) => (&mut frame.locals[local], at),
            Found::Global(global, at) => (&mut self.state.globals[global], at),
            Found::Entry(map, key, at) => {
                let declared = &self.program.maps[map];
                let entries = &mut self.state.maps[map];
                if !entries.contains_key(&key) && entries.len() == declared.length as usize {
                    self.state.faults.full += 1;
                    return false;
                }
                (entries.entry(key).or_insert_with(|| vec![0; declared.value.size() as usize]), at)
            }
            Found::Nowhere => return false,
        };
        memory[at..at + bytes.len()].copy_from_slice(bytes);
        true
    }

    /// Up to its NUL.
    fn text(&mut self, expression: &Expression, frame: &mut Frame) -> Vec<u8> {
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

    fn operand(&mut self, argument: &Argument, frame: &mut Frame) -> Operand {
        match argument {
            Argument::Value(value) => Operand::Text(self.text(value, frame)),
            Argument::Place(place) => {
                let found = match self.find(place, frame) {
                    Found::Entry(map, key, _) if !self.state.maps[map].contains_key(&key) => Found::Nowhere,
                    found => found,
                };
                Operand::At(found, place.of.size())
            }
            Argument::Map(_) => unreachable!("checked: a map has no bytes"),
        }
    }

    fn held(&self, operand: &Operand, frame: &Frame) -> Vec<u8> {
        match operand {
            Operand::Text(text) => text.clone(),
            Operand::At(found, size) => self.read(found, *size, frame),
        }
    }

    fn held_text(&self, operand: &Operand, frame: &Frame) -> Vec<u8> {
        let mut bytes = self.held(operand, frame);
        bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
        bytes
    }

    fn argument_text(&mut self, argument: &Argument, frame: &mut Frame) -> Vec<u8> {
        let operand = self.operand(argument, frame);
        self.held_text(&operand, frame)
    }

    fn argument_value(&mut self, argument: &Argument, frame: &mut Frame) -> u64 {
        match argument {
            Argument::Value(value) => self.value(value, frame),
            _ => 0,
        }
    }

    fn builtin(&mut self, builtin: Builtin, arguments: &[Argument], frame: &mut Frame) -> u64 {
        match (builtin, arguments) {
            (Builtin::Packet8 | Builtin::Packet16 | Builtin::Packet32, [at]) => {
                let bytes = builtin.packet_bytes().expect("it reads some");
                let at = self.argument_value(at, frame);
                let found = self.world.packet(at, bytes);
                self.state.faults.outside_packet += u64::from(found.is_none());
                found.unwrap_or(0)
            }
            (Builtin::CutShort, _) => frame.is_cut_short.into(),
            (Builtin::Comm, [Argument::Place(to)]) => {
                let mut name = self.world.comm();
                name.truncate(to.of.size() as usize);
                if let Some(last) = name.last_mut() {
                    *last = 0;
                }
                self.copy(to, &name, to.of.size(), frame);
                0
            }
            (Builtin::ReadUser, [Argument::Place(to), address, length]) => {
                let address = self.argument_value(address, frame);
                let length = self.argument_value(length, frame).min(to.of.size());
                let found = self.find(to, frame);
                let (bytes, result) = match self.world.read_user(address, length) {
                    Some(bytes) => (bytes, 0),
                    None => (vec![0; length as usize], EFAULT),
                };
                if self.write(found, &bytes, frame) { result } else { 0 }
            }
            (Builtin::ReadUserText, [Argument::Place(to), address]) => {
                let address = self.argument_value(address, frame);
                let found = self.find(to, frame);
                let text = self.user_text(address, to.of.size());
                let result = text.as_ref().map_or(EFAULT, |text| text.len() as u64);
                let mut bytes = text.unwrap_or_default();
                bytes.resize(to.of.size() as usize, 0);
                if self.write(found, &bytes, frame) { result } else { 0 }
            }
            (Builtin::Memset, [Argument::Place(to), byte, length]) => {
                let byte = self.argument_value(byte, frame) as u8;
                let length = self.argument_value(length, frame);
                self.copy(to, &vec![byte; length.min(to.of.size()) as usize], length, frame);
                0
            }
            (Builtin::Memcpy, [Argument::Place(to), from, length]) => {
                let length = self.argument_value(length, frame);
                let from = self.operand(from, frame);
                let found = self.find(to, frame);
                let bytes = self.held(&from, frame);
                let most = length.min(to.of.size()).min(bytes.len() as u64) as usize;
                self.write(found, &bytes[..most], frame);
                0
            }
            (Builtin::Memcmp, [one, other, length]) => {
                let length = self.argument_value(length, frame) as usize;
                let [one, other] = [one, other].map(|operand| self.operand(operand, frame));
                let (one, other) = (self.held(&one, frame), self.held(&other, frame));
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
                let (one, other) = (self.held_text(&one, frame), self.held_text(&other, frame));
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
            (Builtin::Emit, [Argument::Place(record)]) => {
                let bytes = self.bytes(record, frame);
                self.world.emit(&bytes);
                1
            }
            (Builtin::Print, [format, values @ ..]) => {
                let text = self.printed(format, values, frame);
                self.world.print(&text);
                0
            }
            (builtin, _) => self.world.ask(builtin),
        }
    }

    /// Up to its NUL, for which there is to be room.
    fn user_text(&mut self, address: u64, room: u64) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        for at in 0..room {
            let byte = self.world.read_user(address.wrapping_add(at), 1)?[0];
            if byte == 0 {
                return Some(text);
            }
            text.push(byte);
        }
        text.pop();
        Some(text)
    }

    /// As many bytes as there are, and as there is room for.
    fn copy(&mut self, to: &Place, from: &[u8], length: u64, frame: &mut Frame) {
        let most = length.min(to.of.size()).min(from.len() as u64) as usize;
        let found = self.find(to, frame);
        self.write(found, &from[..most], frame);
    }

    fn printed(&mut self, format: &Argument, values: &[Argument], frame: &mut Frame) -> Vec<u8> {
        let format = self.argument_text(format, frame);
        let wants_text: Vec<_> = directives(&format).map(|directive| directive == b's').collect();
        let mut printed: Vec<_> = values.iter().map(|_| Printed::Number(0)).collect();
        for at in (0..values.len()).filter(|at| !wants_text[*at]) {
            printed[at] = Printed::Number(self.argument_value(&values[at], frame));
        }
        let texts = (0..values.len()).filter(|at| wants_text[*at]);
        let texts: Vec<_> = texts.map(|at| (at, self.operand(&values[at], frame))).collect();
        for (at, text) in texts {
            printed[at] = Printed::Text(up_to_nul(&self.held(&text, frame)));
        }
        print(&format, &printed)
    }
}

fn compared(one: &[u8], other: &[u8]) -> u64 {
    one.cmp(other) as i64 as u64
}
