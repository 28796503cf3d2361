//! A program whose names and types are known: what is interpreted, and compiled.

use std::rc::Rc;

pub use crate::ast::Operator;
use crate::diagnostic::Span;
use crate::hooks::Offer;
use crate::types::{Integer, Struct, Type};

#[derive(Debug, Default)]
pub struct Program {
    /// With the static ones of functions.
    pub globals: Vec<Global>,
    /// Names of global numbers that never change, and have no memory.
    pub constants: Vec<String>,
    pub maps: Vec<Map>,
    pub functions: Vec<Function>,
    pub handlers: Vec<Handler>,
    /// All that are written in it, each once.
    pub strings: Vec<Vec<u8>>,
    /// Those of which there are records for user space.
    pub emitted: Vec<Rc<Struct>>,
}

impl Program {
    pub fn is_constant(&self, name: &str) -> bool {
        let mut globals = self.globals.iter().filter(|global| global.is_const);
        self.constants.iter().any(|constant| constant == name) || globals.any(|global| global.name == name)
    }
}

#[derive(Debug)]
pub struct Global {
    pub name: String,
    pub of: Type,
    pub is_const: bool,
    /// Its first bytes: the others are 0.
    pub initial: Vec<u8>,
    pub span: Span,
}

#[derive(Debug)]
pub struct Map {
    pub name: String,
    pub key: Type,
    pub value: Type,
    pub length: u32,
    pub span: Span,
}

#[derive(Debug)]
pub struct Function {
    pub name: String,
    pub result: Type,
    /// The first locals.
    pub parameters: usize,
    pub locals: Vec<Local>,
    pub body: Vec<Statement>,
    pub span: Span,
}

#[derive(Debug)]
pub struct Handler {
    pub hook: String,
    pub selected: Vec<String>,
    /// Its number among the functions.
    pub function: usize,
    pub offer: Offer,
    /// Of its fields, which are its first local variables.
    pub is_read: Vec<bool>,
}

#[derive(Debug)]
pub struct Local {
    pub name: String,
    pub of: Type,
    pub is_const: bool,
    pub span: Span,
}

#[derive(Debug)]
pub struct Statement {
    pub kind: StatementKind,
    pub span: Span,
}

#[derive(Debug)]
pub enum StatementKind {
    Expression(Expression),
    /// All its bytes are 0.
    Clear(usize),
    Block(Vec<Statement>),
    If(Expression, Vec<Statement>, Vec<Statement>),
    Loop(Loop),
    /// The value, where in the body each constant leads, and where any other.
    Switch {
        value: Expression,
        cases: Vec<(u64, usize)>,
        default: Option<usize>,
        body: Vec<Statement>,
    },
    Break,
    Continue,
    Return(Option<Expression>),
}

#[derive(Debug)]
pub struct Loop {
    /// Where `do` has none before its body the first time.
    pub is_asked_first: bool,
    pub condition: Option<Expression>,
    pub after: Option<Expression>,
    pub body: Vec<Statement>,
}

#[derive(Debug)]
pub struct Expression {
    pub kind: ExpressionKind,
    pub of: Type,
    pub span: Span,
}

#[derive(Debug)]
pub enum ExpressionKind {
    Constant(u64),
    Text(Vec<u8>),
    Load(Box<Place>),
    /// To its own type.
    Convert(Box<Expression>),
    Negate(Box<Expression>),
    Complement(Box<Expression>),
    /// Whether it is 0.
    Not(Box<Expression>),
    /// Both are of one type, but for shifts.
    Binary(Operator, Box<Expression>, Box<Expression>),
    Logical {
        is_and: bool,
        left: Box<Expression>,
        right: Box<Expression>,
    },
    Conditional(Box<[Expression; 3]>),
    Assign(Box<Place>, Box<Expression>),
    /// The place's value and another one, as numbers of a type in common, make the new value. The result is the new one, or
    /// the old one.
    Update {
        place: Box<Place>,
        operator: Operator,
        common: Integer,
        by: Box<Expression>,
        is_old: bool,
    },
    Call(usize, Vec<Expression>),
    Builtin(Builtin, Vec<Argument>),
    Comma(Box<Expression>, Box<Expression>),
}

#[derive(Debug)]
pub struct Place {
    pub kind: PlaceKind,
    pub of: Type,
    pub span: Span,
}

#[derive(Debug)]
pub enum PlaceKind {
    Local(usize),
    Global(usize),
    Member(Box<Place>, u64),
    /// Where there are so many elements.
    Element(Box<Place>, Box<Expression>, u64),
    /// Of a map, by its key.
    Entry(usize, Box<Expression>),
}

impl Place {
    /// Whether it may be a part of the other one, and not all of it.
    pub fn may_be_in(&self, other: &Self) -> bool {
        let (own, other) = (self.way(), other.way());
        own.len() > other.len() && own.starts_with(&other)
    }

    /// From the variable on, with members by where they are; elements are all the same.
    fn way(&self) -> Vec<(u8, u64)> {
        let (mut way, mut place) = (Vec::new(), self);
        loop {
            let (step, outer) = match &place.kind {
                PlaceKind::Local(local) => ((0, *local as u64), None),
                PlaceKind::Global(global) => ((1, *global as u64), None),
                PlaceKind::Entry(map, _) => ((2, *map as u64), None),
                PlaceKind::Member(outer, by) => ((3, *by), Some(outer)),
                PlaceKind::Element(array, ..) => ((4, 0), Some(array)),
            };
            way.push(step);
            match outer {
                Some(outer) => place = outer,
                None => break,
            }
        }
        way.reverse();
        way
    }
}

#[derive(Debug)]
pub enum Argument {
    Value(Expression),
    Place(Place),
    Map(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Builtin {
    Now,
    Pid,
    Tid,
    Uid,
    Gid,
    Cpu,
    Random,
    Comm,
    ReadUser,
    ReadUserText,
    Strlen,
    Strcmp,
    Strncmp,
    Memset,
    Memcpy,
    Memcmp,
    Has,
    Erase,
    Emit,
    Print,
    Packet8,
    Packet16,
    Packet32,
    CutShort,
}

impl Builtin {
    /// Those that tell user space something.
    pub fn has_record(self) -> bool {
        matches!(self, Self::Emit | Self::Print)
    }

    /// Of the packet, for those that read it.
    pub fn packet_bytes(self) -> Option<u8> {
        match self {
            Self::Packet8 => Some(1),
            Self::Packet16 => Some(2),
            Self::Packet32 => Some(4),
            _ => None,
        }
    }

    /// Those of the kernel do not: these are loops.
    pub fn goes_by_bytes(self) -> bool {
        matches!(
            self,
            Self::Strlen | Self::Strcmp | Self::Strncmp | Self::Memset | Self::Memcpy | Self::Memcmp
        )
    }
}
