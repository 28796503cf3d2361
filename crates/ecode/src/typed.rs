//! A program with resolved names and types, which is the input of the interpreter and the compiler.

use std::rc::Rc;

pub use crate::ast::Operator;
use crate::builtin::Builtin;
use crate::diagnostic::Span;
use crate::hooks::HookSpec;
use crate::types::{Integer, Struct, Type};

/// A checked program.
#[derive(Debug, Default)]
pub struct Program {
    /// The global variables and the static ones of functions.
    pub globals: Vec<Global>,
    /// The names of constant global numbers, which have no memory.
    pub constants: Vec<String>,
    /// The maps.
    pub maps: Vec<Map>,
    /// The functions, including the bodies of handlers.
    pub functions: Vec<Function>,
    /// The handlers.
    pub handlers: Vec<Handler>,
    /// All distinct strings of the text.
    pub strings: Vec<Vec<u8>>,
    /// The structs that the program emits as records.
    pub emitted: Vec<Rc<Struct>>,
}

impl Program {
    /// Whether there is a constant global variable of this name.
    pub fn is_constant(&self, name: &str) -> bool {
        let mut globals = self.globals.iter().filter(|global| global.is_const);
        self.constants.iter().any(|constant| constant == name)
            || globals.any(|global| global.name == name)
    }
}

/// A global or static variable.
#[derive(Debug)]
pub struct Global {
    /// The name in the source text.
    pub name: String,
    /// The type.
    pub ty: Type,
    /// Whether the program cannot change it.
    pub is_const: bool,
    /// The first bytes of the initial value; the others are 0.
    pub initial: Vec<u8>,
    /// The declaration.
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
    /// The number of parameters, which are the first locals.
    pub parameters: usize,
    pub locals: Vec<Local>,
    pub body: Vec<Statement>,
    pub span: Span,
}

#[derive(Debug)]
pub struct Handler {
    pub hook: String,
    pub selected: Vec<String>,
    /// The number of the function with the handler's body.
    pub function: usize,
    pub spec: HookSpec,
    /// For each field, whether the handler reads it. The fields are the first local variables.
    pub is_read: Vec<bool>,
}

#[derive(Debug)]
pub struct Local {
    pub name: String,
    pub ty: Type,
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
    /// Sets all bytes of a local variable to 0.
    Clear(usize),
    Block(Vec<Statement>),
    If(Expression, Vec<Statement>, Vec<Statement>),
    Loop(Loop),
    /// A switch: `cases` and `default` give positions in the body.
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
    /// Whether the condition is tested before the first iteration; false for `do`.
    pub tests_first: bool,
    pub condition: Option<Expression>,
    pub after: Option<Expression>,
    pub body: Vec<Statement>,
}

#[derive(Debug)]
pub struct Expression {
    pub kind: ExpressionKind,
    pub ty: Type,
    pub span: Span,
}

#[derive(Debug)]
pub enum ExpressionKind {
    Constant(u64),
    Text(Vec<u8>),
    Load(Box<Lvalue>),
    /// A conversion to the type of this expression.
    Convert(Box<Expression>),
    Negate(Box<Expression>),
    Complement(Box<Expression>),
    /// Whether the operand is 0.
    Not(Box<Expression>),
    /// Both operands have the same type, except for shifts.
    Binary(Operator, Box<Expression>, Box<Expression>),
    Logical {
        is_and: bool,
        left: Box<Expression>,
        right: Box<Expression>,
    },
    Conditional(Box<[Expression; 3]>),
    Assign(Box<Lvalue>, Box<Expression>),
    /// Computes the new value from the lvalue's value and another one, both converted to the type
    /// `common`. The result is the new value or the old one.
    Update {
        lvalue: Box<Lvalue>,
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
pub struct Lvalue {
    pub kind: LvalueKind,
    pub of: Type,
    pub span: Span,
}

#[derive(Debug)]
pub enum LvalueKind {
    Local(usize),
    Global(usize),
    Member(Box<Lvalue>, u64),
    /// An element of an array with this length.
    Element(Box<Lvalue>, Box<Expression>, u64),
    /// The entry of a map for a key.
    Entry(usize, Box<Expression>),
}

impl Lvalue {
    /// Whether this may be a proper part of the other lvalue.
    pub fn may_be_in(&self, other: &Self) -> bool {
        let (own, other) = (self.path(), other.path());
        own.len() > other.len() && own.starts_with(&other)
    }

    /// The path from the variable, with members by their offsets. Elements are not distinguished.
    fn path(&self) -> Vec<(u8, u64)> {
        let (mut path, mut lvalue) = (Vec::new(), self);
        loop {
            let (step, outer) = match &lvalue.kind {
                LvalueKind::Local(local) => ((0, *local as u64), None),
                LvalueKind::Global(global) => ((1, *global as u64), None),
                LvalueKind::Entry(map, _) => ((2, *map as u64), None),
                LvalueKind::Member(outer, by) => ((3, *by), Some(outer)),
                LvalueKind::Element(array, ..) => ((4, 0), Some(array)),
            };
            path.push(step);
            match outer {
                Some(outer) => lvalue = outer,
                None => break,
            }
        }
        path.reverse();
        path
    }
}

#[derive(Debug)]
pub enum Argument {
    Value(Expression),
    Lvalue(Lvalue),
    Map(usize),
}
