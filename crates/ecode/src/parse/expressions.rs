//! Parses expressions by C's precedence.

use super::{MAX_DEPTH, Parsed, Parser};
use crate::ast::{Expression, ExpressionKind, Operator, Unary};
use crate::diagnostic::{Diagnostic, Span};
use crate::foreign;
use crate::token::{Keyword, TokenKind};

/// C's binary operators and their precedence; a higher number binds tighter (ISO C17, 6.5.5 to
/// 6.5.14).
const OPERATORS: &[(&str, u8, Option<Operator>)] = &[
    ("||", 1, None),
    ("&&", 2, None),
    ("|", 3, Some(Operator::Or)),
    ("^", 4, Some(Operator::Xor)),
    ("&", 5, Some(Operator::And)),
    ("==", 6, Some(Operator::Equal)),
    ("!=", 6, Some(Operator::NotEqual)),
    ("<", 7, Some(Operator::Less)),
    ("<=", 7, Some(Operator::LessEqual)),
    (">", 7, Some(Operator::Greater)),
    (">=", 7, Some(Operator::GreaterEqual)),
    ("<<", 8, Some(Operator::ShiftLeft)),
    (">>", 8, Some(Operator::ShiftRight)),
    ("+", 9, Some(Operator::Add)),
    ("-", 9, Some(Operator::Subtract)),
    ("*", 10, Some(Operator::Multiply)),
    ("/", 10, Some(Operator::Divide)),
    ("%", 10, Some(Operator::Remainder)),
];

const ASSIGNMENTS: &[(&str, Option<Operator>)] = &[
    ("=", None),
    ("+=", Some(Operator::Add)),
    ("-=", Some(Operator::Subtract)),
    ("*=", Some(Operator::Multiply)),
    ("/=", Some(Operator::Divide)),
    ("%=", Some(Operator::Remainder)),
    ("<<=", Some(Operator::ShiftLeft)),
    (">>=", Some(Operator::ShiftRight)),
    ("&=", Some(Operator::And)),
    ("|=", Some(Operator::Or)),
    ("^=", Some(Operator::Xor)),
];

const UNARY: &[(&str, Unary)] =
    &[("+", Unary::Plus), ("-", Unary::Minus), ("~", Unary::Complement), ("!", Unary::Not)];

/// Names of the context in other BPF languages. The members of that context are a hook's arguments.
const CONTEXTS: &[&str] = &["args", "ctx", "skb"];

impl Parser<'_> {
    fn node(&mut self, kind: ExpressionKind, span: Span) -> Parsed<Expression> {
        use ExpressionKind::*;
        let depth = 1 + match &kind {
            Unary(_, inner) | Cast(_, inner) | SizeOf(inner) | Member(inner, _) => inner.depth,
            Step { lvalue, .. } => lvalue.depth,
            Binary(_, left, right)
            | Assign(_, left, right)
            | Index(left, right)
            | Comma(left, right) => left.depth.max(right.depth),
            Logical { left, right, .. } => left.depth.max(right.depth),
            Conditional(parts) => parts.iter().map(|part| part.depth).max().unwrap_or(0),
            Call(_, arguments) => {
                arguments.iter().map(|argument| argument.depth).max().unwrap_or(0)
            }
            _ => 0,
        };
        if depth > MAX_DEPTH {
            return self.too_deep(span);
        }
        Ok(Expression { kind, span, depth })
    }

    pub(super) fn expression(&mut self) -> Parsed<Expression> {
        let mut left = self.assignment()?;
        while self.takes(",") {
            let right = self.assignment()?;
            let span = left.span.start..right.span.end;
            left = self.node(ExpressionKind::Comma(Box::new(left), Box::new(right)), span)?;
        }
        Ok(left)
    }

    /// An expression without a comma operator.
    pub(super) fn assignment(&mut self) -> Parsed<Expression> {
        self.within(|parser| {
            let left = parser.conditional()?;
            let found = ASSIGNMENTS.iter().find(|(mark, _)| parser.is_at(mark));
            let Some((_, operator)) = found else { return Ok(left) };
            parser.step();
            let right = parser.assignment()?;
            let span = left.span.start..right.span.end;
            parser.node(ExpressionKind::Assign(*operator, Box::new(left), Box::new(right)), span)
        })
    }

    pub(super) fn conditional(&mut self) -> Parsed<Expression> {
        let condition = self.binary(0)?;
        if !self.is_at("?") {
            return Ok(condition);
        }
        self.within(|parser| {
            parser.step();
            let yes = parser.expression()?;
            parser.expect(":", "the first choice of `?`")?;
            let no = parser.conditional()?;
            let span = condition.span.start..no.span.end;
            parser.node(ExpressionKind::Conditional(Box::new([condition, yes, no])), span)
        })
    }

    fn binary(&mut self, least: u8) -> Parsed<Expression> {
        let mut left = self.unary()?;
        loop {
            let found = OPERATORS.iter().find(|(mark, ..)| self.is_at(mark));
            let Some((mark, binds, operator)) = found.filter(|(_, binds, _)| *binds > least) else {
                return Ok(left);
            };
            self.step();
            let right = self.within(|parser| parser.binary(*binds))?;
            let span = left.span.start..right.span.end;
            let (left_box, right) = (Box::new(left), Box::new(right));
            let kind = match operator {
                Some(operator) => ExpressionKind::Binary(*operator, left_box, right),
                None => ExpressionKind::Logical { is_and: *mark == "&&", left: left_box, right },
            };
            left = self.node(kind, span)?;
        }
    }

    fn unary(&mut self) -> Parsed<Expression> {
        let from = self.span();
        if let Some((_, operator)) = UNARY.iter().find(|(mark, _)| self.is_at(mark)) {
            self.step();
            let inner = self.within(Self::unary)?;
            let span = from.start..inner.span.end;
            return self.node(ExpressionKind::Unary(*operator, Box::new(inner)), span);
        }
        for (mark, is_up) in [("++", true), ("--", false)] {
            if self.takes(mark) {
                let lvalue = Box::new(self.within(Self::unary)?);
                let span = from.start..lvalue.span.end;
                return self.node(ExpressionKind::Step { lvalue, is_up, is_before: true }, span);
            }
        }
        if self.is_at("*") && self.follows("*") {
            let problem = Diagnostic::error(from.start - 1..from.end, "E-code has no `**`");
            return self.fault(problem.help("multiply: `n * n`"));
        }
        if self.is_at("&") || self.is_at("*") {
            let problem = Diagnostic::error(from, "E-code has no pointers");
            return self.fault(problem.help("use the variable, the element or the member itself"));
        }
        if self.takes_keyword(Keyword::Sizeof) {
            return self.size_of(&from);
        }
        if self.is_at("(") && (self.is_type(1) || self.is_cast_of_c()) {
            self.step();
            let type_name = self.type_name()?;
            self.close(")", &from)?;
            if self.is_at("{") {
                let problem = Diagnostic::error(self.span(), "E-code has no compound literals");
                return self.fault(
                    problem.help("declare a variable with this initializer, and name it here"),
                );
            }
            let inner = self.within(Self::unary)?;
            let span = from.start..inner.span.end;
            return self.node(ExpressionKind::Cast(type_name, Box::new(inner)), span);
        }
        self.postfix()
    }

    /// Whether a cast to a type of C follows, such as `(uint64_t) x`.
    fn is_cast_of_c(&self) -> bool {
        let begins = |kind: &TokenKind| {
            matches!(
                kind,
                TokenKind::Name(_)
                    | TokenKind::Number { .. }
                    | TokenKind::Character(_)
                    | TokenKind::Keyword(Keyword::Sizeof | Keyword::True | Keyword::False)
                    | TokenKind::Punctuator("(" | "~" | "!")
            )
        };
        self.is_of_c(self.ahead(1))
            && *self.ahead(2) == TokenKind::Punctuator(")")
            && begins(self.ahead(3))
    }

    fn size_of(&mut self, from: &Span) -> Parsed<Expression> {
        if self.is_at("(") && self.is_type(1) {
            let opened = self.span();
            self.step();
            let type_name = self.type_name()?;
            let mut lengths = Vec::new();
            loop {
                let opened = self.span();
                if !self.takes("[") {
                    break;
                }
                lengths.push(self.conditional()?);
                self.close("]", &opened)?;
            }
            self.close(")", &opened)?;
            let span = self.since(from);
            return self.node(ExpressionKind::SizeOfType(type_name, lengths), span);
        }
        let inner = self.within(Self::unary)?;
        let span = self.since(from);
        self.node(ExpressionKind::SizeOf(Box::new(inner)), span)
    }

    fn postfix(&mut self) -> Parsed<Expression> {
        let mut inner = self.primary()?;
        loop {
            let (from, opened) = (inner.span.clone(), self.span());
            if self.takes("[") {
                let index = self.expression()?;
                self.close("]", &opened)?;
                let span = self.since(&from);
                inner = self.node(ExpressionKind::Index(Box::new(inner), Box::new(index)), span)?;
            } else if self.takes(".") {
                let name = self.name("a member")?;
                let span = self.since(&from);
                inner = self.node(ExpressionKind::Member(Box::new(inner), name), span)?;
            } else if self.is_at("->") {
                let is_context = match &inner.kind {
                    ExpressionKind::Name(name) => CONTEXTS.contains(&&**name),
                    _ => false,
                };
                let help = match self.ahead(1) {
                    TokenKind::Name(field) if is_context => {
                        format!("the fields of a hook are variables: write `{field}`")
                    }
                    _ => "write `.` instead of `->`".into(),
                };
                let problem = Diagnostic::error(opened, "E-code has no pointers");
                return self.fault(problem.help(help));
            } else if self.is_at("(") {
                let ExpressionKind::Name(text) = &inner.kind else {
                    let problem = Diagnostic::error(from, "only a function's name can be called");
                    let hint = match &inner.kind {
                        ExpressionKind::Member(_, method) => foreign::method(&method.text),
                        _ => None,
                    };
                    return self.fault(problem.help_if(hint));
                };
                let name = crate::ast::Ident { text: text.clone(), span: from.clone() };
                let arguments = self.arguments()?;
                let span = self.since(&from);
                inner = self.node(ExpressionKind::Call(name, arguments), span)?;
            } else if self.is_at("++") || self.is_at("--") {
                let is_up = self.takes("++") || !self.takes("--");
                let span = self.since(&from);
                inner = self.node(
                    ExpressionKind::Step { lvalue: Box::new(inner), is_up, is_before: false },
                    span,
                )?;
            } else {
                return Ok(inner);
            }
        }
    }

    fn arguments(&mut self) -> Parsed<Vec<Expression>> {
        let opened = self.span();
        self.step();
        let mut arguments = Vec::new();
        if self.takes(")") {
            return Ok(arguments);
        }
        loop {
            arguments.push(self.assignment()?);
            if !self.takes(",") {
                self.close(")", &opened)?;
                return Ok(arguments);
            }
        }
    }

    fn primary(&mut self) -> Parsed<Expression> {
        let span = self.span();
        let kind = match self.kind() {
            TokenKind::Number { value, is_unsigned, is_long, is_decimal } => {
                ExpressionKind::Number {
                    value: *value,
                    is_unsigned: *is_unsigned,
                    is_long: *is_long,
                    is_decimal: *is_decimal,
                }
            }
            TokenKind::Character(byte) => ExpressionKind::Character(*byte),
            TokenKind::Text(bytes) => ExpressionKind::Text(bytes.clone()),
            TokenKind::Name(name) => {
                self.reject_c_keyword()?;
                ExpressionKind::Name(name.clone())
            }
            TokenKind::Keyword(Keyword::True) => ExpressionKind::Boolean(true),
            TokenKind::Keyword(Keyword::False) => ExpressionKind::Boolean(false),
            TokenKind::Punctuator("(") => {
                self.step();
                let inner = self.within(Self::expression)?;
                self.close(")", &span)?;
                return Ok(Expression { span: self.since(&span), ..inner });
            }
            _ if self.is_type(0) => return self.reject_type(),
            _ => return self.unexpected("an expression"),
        };
        self.step();
        self.node(kind, span)
    }

    /// Fails at a type, such as that of `int(x)`.
    fn reject_type<T>(&mut self) -> Parsed<T> {
        let TokenKind::Keyword(keyword) = *self.kind() else {
            return self.unexpected("an expression");
        };
        let text = keyword.text();
        let message = format!("expected an expression, found `{text}`");
        let is_call = *self.ahead(1) == TokenKind::Punctuator("(");
        let help = is_call.then(|| format!("put the type into parentheses: `({text}) x`"));
        self.fault(Diagnostic::error(self.span(), message).help_if(help))
    }
}
