//! The syntax tree of a program, before names and types are resolved.

use crate::diagnostic::Span;
use crate::types::Integer;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ident {
    pub text: String,
    pub span: Span,
}

#[derive(Debug)]
pub struct Expression {
    pub kind: ExpressionKind,
    pub span: Span,
    /// The nesting depth.
    pub depth: u16,
}

#[derive(Debug)]
pub enum ExpressionKind {
    Number {
        value: u64,
        is_unsigned: bool,
        is_long: bool,
        is_decimal: bool,
    },
    Character(u8),
    Boolean(bool),
    Text(Vec<u8>),
    Name(String),
    Unary(Unary, Box<Expression>),
    /// `++a`, `a--`
    Step {
        lvalue: Box<Expression>,
        is_up: bool,
        is_before: bool,
    },
    Binary(Operator, Box<Expression>, Box<Expression>),
    Logical {
        is_and: bool,
        left: Box<Expression>,
        right: Box<Expression>,
    },
    Conditional(Box<[Expression; 3]>),
    /// `a = b`, or `a += b` with an operator.
    Assign(Option<Operator>, Box<Expression>, Box<Expression>),
    Call(Ident, Vec<Expression>),
    Index(Box<Expression>, Box<Expression>),
    Member(Box<Expression>, Ident),
    Cast(TypeName, Box<Expression>),
    /// A type and, for an array of it, the lengths: `sizeof(int[2][3])`.
    SizeOfType(TypeName, Vec<Expression>),
    SizeOf(Box<Expression>),
    Comma(Box<Expression>, Box<Expression>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unary {
    Plus,
    Minus,
    Complement,
    Not,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    ShiftLeft,
    ShiftRight,
    And,
    Or,
    Xor,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

impl Operator {
    pub fn is_comparison(self) -> bool {
        use Operator::*;
        matches!(self, Equal | NotEqual | Less | LessEqual | Greater | GreaterEqual)
    }

    /// The comparison that is true exactly if this one is false.
    pub fn opposite(self) -> Self {
        use Operator::*;
        match self {
            Equal => NotEqual,
            NotEqual => Equal,
            Less => GreaterEqual,
            LessEqual => Greater,
            Greater => LessEqual,
            GreaterEqual => Less,
            _ => unreachable!("it is a comparison"),
        }
    }
}

/// `unsigned long`, `struct point`
#[derive(Debug)]
pub struct TypeName {
    pub base: BaseType,
    pub span: Span,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BaseType {
    Void,
    Bool,
    String,
    Integer(Integer),
    Struct(Ident),
    /// An enum, whose values are of type `int`.
    Enum(Ident),
}

#[derive(Debug)]
pub struct Declarator {
    pub name: Ident,
    /// `None` stands for `[]`, an array that is as long as its initializer.
    pub lengths: Vec<Option<Expression>>,
    pub initializer: Option<Initializer>,
}

#[derive(Debug)]
pub enum Initializer {
    One(Expression),
    /// `{ 1, .name = 2, [3] = 4 }`
    List(Vec<(Option<Designator>, Initializer)>, Span),
    /// What follows the first of several designators: `.x = 3` in `{ .from.x = 3 }`. It overrides
    /// no values that the list gives to other members of `from`.
    Within(Box<(Option<Designator>, Initializer)>, Span),
}

impl Initializer {
    pub fn span(&self) -> Span {
        match self {
            Self::One(expression) => expression.span.clone(),
            Self::List(_, span) | Self::Within(_, span) => span.clone(),
        }
    }
}

#[derive(Debug)]
pub enum Designator {
    Member(Ident),
    Index(Expression),
}

/// `static const int a = 1, b[2];`
#[derive(Debug)]
pub struct Declaration {
    pub is_static: bool,
    pub is_const: bool,
    pub type_name: TypeName,
    pub declarators: Vec<Declarator>,
}

#[derive(Debug)]
pub struct Statement {
    pub kind: StatementKind,
    pub span: Span,
}

#[derive(Debug)]
pub enum StatementKind {
    Empty,
    Expression(Expression),
    Declaration(Declaration),
    Block(Vec<Statement>),
    If(Expression, Box<Statement>, Option<Box<Statement>>),
    While(Expression, Box<Statement>),
    Do(Box<Statement>, Expression),
    For {
        before: Option<Box<Statement>>,
        condition: Option<Expression>,
        after: Option<Expression>,
        body: Box<Statement>,
    },
    Switch(Expression, Vec<Statement>),
    /// A `case` label in a `switch`.
    Case(Expression),
    Default,
    Break,
    Continue,
    Return(Option<Expression>),
}

#[derive(Debug)]
pub struct Parameter {
    pub is_const: bool,
    pub type_name: TypeName,
    /// Empty, with the span of the type, if a prototype does not name the parameter.
    pub name: Ident,
}

#[derive(Debug)]
pub struct Function {
    pub result: TypeName,
    pub name: Ident,
    pub parameters: Vec<Parameter>,
    /// `None` for a prototype.
    pub body: Option<Vec<Statement>>,
}

/// `on enter(openat) { … }`
#[derive(Debug)]
pub struct Handler {
    pub hook: Ident,
    pub selected: Vec<Selected>,
    /// The parameters of `on call(int n)`.
    pub parameters: Vec<Parameter>,
    pub body: Vec<Statement>,
}

/// One of the selected events of a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selected {
    pub text: String,
    pub span: Span,
}

#[derive(Debug)]
pub enum Item {
    Struct { name: Ident, members: Vec<Declaration> },
    Enum { name: Option<Ident>, members: Vec<(Ident, Option<Expression>)> },
    Map { name: Ident, key: TypeName, value: TypeName, length: Expression },
    Variables(Declaration),
    Function(Function),
    Handler(Handler),
}
