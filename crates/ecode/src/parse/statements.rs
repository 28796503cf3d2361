//! Statements, and declarations within them.

use super::{Faulty, Parsed, Parser};
use crate::ast::{Expression, ExpressionKind, Name, Statement, StatementKind};
use crate::diagnostic::{Diagnostic, MOST};
use crate::token::{Keyword, Kind};

/// What is done before, asked, and done after each round.
type ForHeader = (Option<Box<Statement>>, Option<Expression>, Option<Expression>);

impl Parser<'_> {
    /// A faulty statement is told of, and left out.
    pub(super) fn block(&mut self) -> Parsed<Vec<Statement>> {
        let opened = self.span();
        self.expect("{", "this")?;
        self.within(|parser| {
            let mut statements = Vec::new();
            while !parser.is_at("}") && *parser.kind() != Kind::End {
                let from = parser.at;
                match parser.statement() {
                    Ok(statement) => statements.push(statement),
                    Err(Faulty) if parser.is_over() => return Err(Faulty),
                    Err(Faulty) => parser.skip_statement(from),
                }
            }
            parser.close("}", &opened)?;
            Ok(statements)
        })
    }

    /// To behind the next `;`, or to a brace, from where the fault is.
    fn skip_statement(&mut self, from: usize) {
        let mut open = 0_usize;
        loop {
            match self.kind() {
                Kind::End => return,
                Kind::Mark("{") => open += 1,
                Kind::Mark("}") if open == 0 => {
                    // Not for ever at the same place.
                    if self.at == from {
                        self.step();
                    }
                    return;
                }
                Kind::Mark("}") => {
                    open -= 1;
                    // What was no block has something behind it that is no statement.
                    if open == 0 && !matches!(self.ahead(1), Kind::Mark("]" | ")" | "," | ";")) {
                        self.step();
                        return;
                    }
                }
                Kind::Mark(";") if open == 0 => {
                    self.step();
                    return;
                }
                _ => {}
            }
            self.step();
        }
    }

    fn statement(&mut self) -> Parsed<Statement> {
        let from = self.span();
        let kind = self.within(Self::statement_kind)?;
        Ok(Statement { kind, span: self.since(&from) })
    }

    fn boxed_statement(&mut self) -> Parsed<Box<Statement>> {
        if self.is_type(0) {
            let problem = Diagnostic::error(
                self.span(),
                "a declaration alone cannot be what is done under a condition",
            );
            self.problems.push(problem.help("put it into braces"));
        }
        let from = self.span();
        match self.statement() {
            Ok(statement) => Ok(Box::new(statement)),
            Err(Faulty) if self.is_over() => Err(Faulty),
            // What comes behind it, `else` say, is what it would be.
            Err(Faulty) => {
                self.skip_body();
                Ok(Box::new(Statement { kind: StatementKind::Empty, span: from }))
            }
        }
    }

    /// But not the end of the block around, nor what may come behind it.
    fn skip_body(&mut self) {
        let is_next = matches!(self.kind(), Kind::Keyword(Keyword::Else | Keyword::While));
        if !is_next && !self.is_at("}") {
            self.skip_statement(self.at);
        }
    }

    /// Nothing more is looked at.
    fn is_over(&self) -> bool {
        self.is_too_deep || self.problems.len() >= MOST
    }

    /// `None`: it is faulty, and what is behind it is not.
    fn header(&mut self, after: &str) -> Parsed<Option<Expression>> {
        let opened = self.at;
        match self.in_parentheses(after) {
            Ok(inner) => Ok(Some(inner)),
            Err(Faulty) if self.is_over() => Err(Faulty),
            Err(Faulty) => {
                self.skip_header(opened, 0);
                Ok(None)
            }
        }
    }

    fn in_parentheses(&mut self, after: &str) -> Parsed<Expression> {
        let opened = self.span();
        self.expect("(", after)?;
        let inner = self.expression()?;
        self.close(")", &opened)?;
        Ok(inner)
    }

    fn statement_kind(&mut self) -> Parsed<StatementKind> {
        if self.is_at("{") {
            return Ok(StatementKind::Block(self.block()?));
        }
        if self.takes(";") {
            return Ok(StatementKind::Empty);
        }
        if self.is_type(0) {
            self.refuse_local_type()?;
            return Ok(StatementKind::Declaration(self.declaration()?));
        }
        let Kind::Keyword(keyword) = *self.kind() else { return self.expression_statement() };
        match keyword {
            Keyword::If => {
                self.step();
                let condition = self.header("`if`")?;
                let yes = self.boxed_statement()?;
                let no = if self.takes_keyword(Keyword::Else) { Some(self.boxed_statement()?) } else { None };
                Ok(condition.map_or(StatementKind::Empty, |condition| StatementKind::If(condition, yes, no)))
            }
            Keyword::While => {
                self.step();
                let condition = self.header("`while`")?;
                let body = self.boxed_statement()?;
                Ok(condition.map_or(StatementKind::Empty, |condition| StatementKind::While(condition, body)))
            }
            Keyword::Do => {
                self.step();
                let body = self.boxed_statement()?;
                if !self.takes_keyword(Keyword::While) {
                    return self.unexpected("`while`, after the body of `do`,");
                }
                let condition = self.in_parentheses("`while`")?;
                self.expect(";", "the condition of `do … while`")?;
                Ok(StatementKind::Do(body, condition))
            }
            Keyword::For => self.for_statement(),
            Keyword::Switch => {
                self.step();
                let value = self.in_parentheses("`switch`")?;
                Ok(StatementKind::Switch(value, self.block()?))
            }
            Keyword::Case => {
                self.step();
                let value = self.conditional()?;
                self.expect(":", "the value of `case`")?;
                Ok(StatementKind::Case(value))
            }
            Keyword::Default => {
                self.step();
                self.expect(":", "`default`")?;
                Ok(StatementKind::Default)
            }
            Keyword::Break => self.simple(StatementKind::Break, "`break`"),
            Keyword::Continue => self.simple(StatementKind::Continue, "`continue`"),
            Keyword::Return => {
                self.step();
                let value = if self.is_at(";") { None } else { Some(self.expression()?) };
                self.expect(";", "`return`")?;
                Ok(StatementKind::Return(value))
            }
            Keyword::Else => {
                let problem = Diagnostic::error(self.span(), "this `else` has no `if`");
                self.fault(problem.help("the statement before `else` is one: more of them go into braces"))
            }
            _ => self.expression_statement(),
        }
    }

    fn refuse_local_type(&mut self) -> Parsed<()> {
        let is_of_type = |kind: &Kind| !matches!(kind, Kind::Keyword(Keyword::Static | Keyword::Const));
        let first = (0..).find(|by| is_of_type(self.ahead(*by))).expect("the end is none of them");
        let what = match self.ahead(first) {
            Kind::Keyword(Keyword::Enum) => "an enum",
            Kind::Keyword(Keyword::Struct) => "a struct",
            _ => return Ok(()),
        };
        if ![1, 2].iter().any(|by| *self.ahead(first + by) == Kind::Mark("{")) {
            return Ok(());
        }
        let message = format!("{what} is declared outside of functions and handlers");
        let problem = Diagnostic::error(self.span(), message);
        self.skip_members();
        self.fault(problem.help("put it before the first one that uses it"))
    }

    /// To behind the next braces.
    fn skip_members(&mut self) {
        let mut open = 0_usize;
        while *self.kind() != Kind::End {
            let is_end = self.is_at("}") && open == 1;
            match self.kind() {
                Kind::Mark("{") => open += 1,
                Kind::Mark("}") => open = open.saturating_sub(1),
                _ => {}
            }
            self.step();
            if is_end {
                return;
            }
        }
    }

    fn simple(&mut self, kind: StatementKind, after: &str) -> Parsed<StatementKind> {
        self.step();
        self.expect(";", after)?;
        Ok(kind)
    }

    fn expression_statement(&mut self) -> Parsed<StatementKind> {
        let expression = self.expression()?;
        if self.takes(";") {
            return Ok(StatementKind::Expression(expression));
        }
        if self.is_at(":") && matches!(expression.kind, ExpressionKind::Name(_)) {
            let problem = Diagnostic::error(self.since(&expression.span), "E-code has no labels");
            return self.fault(problem.help("use `break`, `continue` or a function with `return`"));
        }
        let problem = self.missing(";", "this statement");
        let problem = match &expression.kind {
            ExpressionKind::Name(name) | ExpressionKind::Call(Name { text: name, .. }, _) => {
                self.meant(problem, name)
            }
            _ => problem,
        };
        self.fault(problem)
    }

    fn for_statement(&mut self) -> Parsed<StatementKind> {
        self.step();
        let opened = self.at;
        let Ok((before, condition, after)) = self.for_header() else {
            if self.is_over() {
                return Err(Faulty);
            }
            self.skip_header(opened, 2);
            self.skip_body();
            return Ok(StatementKind::Empty);
        };
        Ok(StatementKind::For { before, condition, after, body: self.boxed_statement()? })
    }

    fn for_header(&mut self) -> Parsed<ForHeader> {
        let opened = self.span();
        self.expect("(", "`for`")?;
        let from = self.span();
        let before = if self.takes(";") {
            None
        } else {
            let kind = match self.is_type(0) {
                true => StatementKind::Declaration(self.declaration()?),
                false => self.expression_statement()?,
            };
            Some(Box::new(Statement { kind, span: self.since(&from) }))
        };
        let condition = if self.is_at(";") { None } else { Some(self.expression()?) };
        self.expect(";", "the condition of `for`")?;
        let after = if self.is_at(")") { None } else { Some(self.expression()?) };
        self.close(")", &opened)?;
        Ok((before, condition, after))
    }

    /// To behind the parenthesis that closes the one which is opened there, to a brace, or to a `;` that is beyond those that are
    /// the header's own.
    fn skip_header(&mut self, opened: usize, mut semicolons: usize) {
        self.at = opened;
        let is_in_parentheses = self.is_at("(");
        let mut open = 0_usize;
        loop {
            match self.kind() {
                Kind::End | Kind::Mark("{" | "}") => return,
                Kind::Mark(";") if semicolons == 0 => return,
                Kind::Mark(";") => semicolons -= 1,
                Kind::Mark("(") => open += 1,
                Kind::Mark(")") => open = open.saturating_sub(1),
                _ => {}
            }
            self.step();
            if open == 0 && is_in_parentheses {
                return;
            }
        }
    }
}
