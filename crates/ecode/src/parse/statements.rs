//! Parses statements and the declarations in them.

use super::{Parsed, Parser};
use crate::ast::{Expression, ExpressionKind, Ident, Statement, StatementKind};
use crate::diagnostic::{Diagnostic, ErrorReported, MAX_DIAGNOSTICS, Span};
use crate::foreign;
use crate::token::{Keyword, TokenKind};

/// The parts of a `for` header: initialization, condition and step.
type ForHeader = (Option<Box<Statement>>, Option<Expression>, Option<Expression>);

impl Parser<'_> {
    /// Parses a block. Faulty statements are reported and left out.
    pub(super) fn block(&mut self) -> Parsed<Vec<Statement>> {
        let opened = self.span();
        self.expect("{", "this")?;
        self.within(|parser| {
            let mut statements = Vec::new();
            while !parser.is_at("}") && *parser.kind() != TokenKind::End {
                let from = parser.at;
                match parser.statement() {
                    Ok(statement) => statements.push(statement),
                    Err(ErrorReported) if parser.is_at_end() => return Err(ErrorReported),
                    Err(ErrorReported) => parser.skip_statement(from),
                }
            }
            parser.close("}", &opened)?;
            Ok(statements)
        })
    }

    /// Skips a faulty statement: up to and including the next `;`, or up to a closing brace.
    fn skip_statement(&mut self, from: usize) {
        let mut open = 0_usize;
        loop {
            match self.kind() {
                TokenKind::End => return,
                TokenKind::Punctuator("{") => open += 1,
                TokenKind::Punctuator("}") if open == 0 => {
                    // Guarantee progress.
                    if self.at == from {
                        self.step();
                    }
                    return;
                }
                TokenKind::Punctuator("}") => {
                    open -= 1;
                    // If one of these punctuators follows, the braces were not those of a block.
                    if open == 0
                        && !matches!(self.ahead(1), TokenKind::Punctuator("]" | ")" | "," | ";"))
                    {
                        self.step();
                        return;
                    }
                }
                TokenKind::Punctuator(";") if open == 0 => {
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
                "a declaration alone cannot be the body of `if`, `else` or a loop",
            );
            self.problems.push(problem.help("put it into braces"));
        }
        let from = self.span();
        match self.statement() {
            Ok(statement) => Ok(Box::new(statement)),
            Err(ErrorReported) if self.is_at_end() => Err(ErrorReported),
            // Continue with an empty statement, so that a following `else` is still valid.
            Err(ErrorReported) => {
                self.skip_body();
                Ok(Box::new(Statement { kind: StatementKind::Empty, span: from }))
            }
        }
    }

    /// Skips the body of a faulty statement, but not a following `else` or `while` or the end of
    /// the enclosing block.
    fn skip_body(&mut self) {
        let is_next = matches!(self.kind(), TokenKind::Keyword(Keyword::Else | Keyword::While));
        if !is_next && !self.is_at("}") {
            self.skip_statement(self.at);
        }
    }

    /// Whether parsing has stopped.
    fn is_at_end(&self) -> bool {
        self.is_too_deep || self.problems.len() >= MAX_DIAGNOSTICS
    }

    /// Parses the condition of a statement in parentheses. `None` if it was faulty and has been
    /// skipped.
    fn header(&mut self, after: &str) -> Parsed<Option<Expression>> {
        let opened = self.at;
        match self.in_parentheses(after) {
            Ok(inner) => Ok(Some(inner)),
            Err(ErrorReported) if self.is_at_end() => Err(ErrorReported),
            Err(ErrorReported) => {
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
        let TokenKind::Keyword(keyword) = *self.kind() else { return self.expression_statement() };
        match keyword {
            Keyword::If => {
                self.step();
                let condition = self.header("`if`")?;
                let yes = self.boxed_statement()?;
                let no = if self.takes_keyword(Keyword::Else) {
                    let is_chained = *self.kind() == TokenKind::Keyword(Keyword::If);
                    self.else_ifs += u16::from(is_chained);
                    let no = self.boxed_statement()?;
                    self.else_ifs -= u16::from(is_chained);
                    Some(no)
                } else {
                    None
                };
                Ok(condition.map_or(StatementKind::Empty, |condition| {
                    StatementKind::If(condition, yes, no)
                }))
            }
            Keyword::While => {
                self.step();
                let condition = self.header("`while`")?;
                let body = self.boxed_statement()?;
                Ok(condition.map_or(StatementKind::Empty, |condition| {
                    StatementKind::While(condition, body)
                }))
            }
            Keyword::Do => {
                self.step();
                let body = self.boxed_statement()?;
                if !self.takes_keyword(Keyword::While) {
                    return self.unexpected("`while` after the body of `do`");
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
            Keyword::Map => self.misplaced("a map", self.span()),
            Keyword::Return => {
                self.step();
                let value = if self.is_at(";") { None } else { Some(self.expression()?) };
                self.expect(";", "`return`")?;
                Ok(StatementKind::Return(value))
            }
            Keyword::Else => {
                let problem = Diagnostic::error(self.span(), "this `else` has no `if`");
                self.fault(
                    problem
                        .help("only one statement can come before `else`: put several into braces"),
                )
            }
            _ => self.expression_statement(),
        }
    }

    fn refuse_local_type(&mut self) -> Parsed<()> {
        let is_of_type = |kind: &TokenKind| {
            !matches!(kind, TokenKind::Keyword(Keyword::Static | Keyword::Const))
        };
        let first = (0..).find(|by| is_of_type(self.ahead(*by))).expect("the end is none of them");
        let what = match self.ahead(first) {
            TokenKind::Keyword(Keyword::Enum) => "an enum",
            TokenKind::Keyword(Keyword::Struct) => "a struct",
            _ => return Ok(()),
        };
        if ![1, 2].iter().any(|by| *self.ahead(first + by) == TokenKind::Punctuator("{")) {
            return Ok(());
        }
        let from = self.span();
        self.skip_members();
        self.misplaced(what, from)
    }

    fn misplaced<T>(&mut self, what: &str, at: Span) -> Parsed<T> {
        let message = format!("{what} must be declared outside functions and handlers");
        let problem = Diagnostic::error(at, message);
        self.fault(problem.help("move it before the first function or handler that uses it"))
    }

    /// Skips up to and including the next pair of braces.
    fn skip_members(&mut self) {
        let mut open = 0_usize;
        while *self.kind() != TokenKind::End {
            let is_end = self.is_at("}") && open == 1;
            match self.kind() {
                TokenKind::Punctuator("{") => open += 1,
                TokenKind::Punctuator("}") => open = open.saturating_sub(1),
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
        self.reject_colon_assignment()?;
        self.reject_word_operator()?;
        if self.is_at(":") && matches!(expression.kind, ExpressionKind::Name(_)) {
            let problem = Diagnostic::error(self.since(&expression.span), "E-code has no labels");
            return self.fault(problem.help("use `break`, `continue` or a function with `return`"));
        }
        if let ExpressionKind::Name(word) | ExpressionKind::Call(Ident { text: word, .. }, _) =
            &expression.kind
            && let Some(hint) = foreign::statement(word)
        {
            let problem = Diagnostic::error(expression.span, format!("E-code has no `{word}`"));
            return self.fault(problem.help(hint));
        }
        let problem = self.missing(";", "this statement");
        let problem = match &expression.kind {
            ExpressionKind::Name(name) => self.with_keyword_hint(problem, name),
            // `fro (…) {`, but not `print("x") }`
            ExpressionKind::Call(Ident { text: name, .. }, _) if self.is_at("{") => {
                self.with_keyword_hint(problem, name)
            }
            _ => problem,
        };
        self.fault(problem)
    }

    fn for_statement(&mut self) -> Parsed<StatementKind> {
        self.step();
        let opened = self.at;
        let Ok((before, condition, after)) = self.for_header() else {
            if self.is_at_end() {
                return Err(ErrorReported);
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
        self.reject_iteration()?;
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

    /// Fails at `for (key in map)` and `for (u32 key : map)`.
    fn reject_iteration(&mut self) -> Parsed<()> {
        let is_of_variable = |kind: &TokenKind| {
            matches!(kind, TokenKind::Name(name) if name != "in")
                || matches!(kind, TokenKind::Keyword(_) | TokenKind::Punctuator("," | "(" | ")"))
        };
        let after = (0..).find(|by| !is_of_variable(self.ahead(*by))).expect("there is an end");
        let is_iteration = match self.ahead(after) {
            TokenKind::Name(_) => true,
            mark => *mark == TokenKind::Punctuator(":"),
        };
        if after == 0 || !is_iteration || *self.ahead(after + 1) == TokenKind::Punctuator("=") {
            return Ok(());
        }
        let problem = Diagnostic::error(self.span(), "`for` cannot iterate over a map or an array");
        self.fault(problem.help(foreign::NO_ITERATION))
    }

    /// Skips a faulty header up to and including the parenthesis that closes the one at `opened`.
    /// If that parenthesis is missing, stops before a brace, or before a `;` beyond the
    /// `semicolons` that a valid header has.
    fn skip_header(&mut self, opened: usize, mut semicolons: usize) {
        self.at = opened;
        let is_in_parentheses = self.is_at("(");
        let mut open = 0_usize;
        loop {
            match self.kind() {
                TokenKind::End | TokenKind::Punctuator("{" | "}") => return,
                TokenKind::Punctuator(";") if semicolons == 0 => return,
                TokenKind::Punctuator(";") => semicolons -= 1,
                TokenKind::Punctuator("(") => open += 1,
                TokenKind::Punctuator(")") => open = open.saturating_sub(1),
                _ => {}
            }
            self.step();
            if open == 0 && is_in_parentheses {
                return;
            }
        }
    }
}
