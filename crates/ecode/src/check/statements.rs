//! Checks statements.

use std::collections::hash_map::{Entry, HashMap};

use super::lint::NO_EFFECT_HELP;
use super::scopes::Symbol;
use super::{Checked, Checker};
use crate::ast::{self, Declaration, StatementKind as Written};
use crate::diagnostic::{Diagnostic, ErrorReported, Span};
use crate::typed::{Expression, ExpressionKind, Local, Loop, Statement, StatementKind};
use crate::types::Type;

impl Checker<'_> {
    /// Checks statements in their own scope. Faulty ones are reported and left out.
    pub(super) fn block(&mut self, written: &[ast::Statement]) -> Vec<Statement> {
        self.scopes.enter();
        let statements = self.statements(written);
        self.scopes.leave();
        statements
    }

    /// Checks statements in the present scope.
    pub(super) fn statements(&mut self, written: &[ast::Statement]) -> Vec<Statement> {
        self.lint_empty_body(written);
        let mut statements = Vec::new();
        for statement in written {
            if self.is_error_limit_reached() {
                break;
            }
            let _ = self.statement(statement, &mut statements);
        }
        statements
    }

    fn one(&mut self, written: &ast::Statement) -> Vec<Statement> {
        self.block(std::slice::from_ref(written))
    }

    fn statement(&mut self, written: &ast::Statement, to: &mut Vec<Statement>) -> Checked<()> {
        let span = written.span.clone();
        let kind = match &written.kind {
            Written::Empty => return Ok(()),
            Written::Declaration(declaration) => {
                self.locals(declaration, to);
                return Ok(());
            }
            Written::Expression(expression) => {
                let expression = self.expression(expression)?;
                self.lint_no_effect(&expression, NO_EFFECT_HELP);
                StatementKind::Expression(expression)
            }
            Written::Block(statements) => StatementKind::Block(self.block(statements)),
            Written::If(condition, yes, no) => {
                let condition = self.condition(condition);
                let (yes, no) =
                    (self.one(yes), no.as_ref().map(|no| self.one(no)).unwrap_or_default());
                StatementKind::If(condition?, yes, no)
            }
            Written::While(condition, body) => {
                let condition = self.condition(condition);
                let body = self.loop_body(body);
                StatementKind::Loop(Loop {
                    tests_first: true,
                    condition: Some(condition?),
                    after: None,
                    body,
                })
            }
            Written::Do(body, condition) => {
                let body = self.loop_body(body);
                let condition = Some(self.condition(condition)?);
                StatementKind::Loop(Loop { tests_first: false, condition, after: None, body })
            }
            Written::For { before, condition, after, body } => {
                self.scopes.enter();
                let made =
                    self.for_loop(before.as_deref(), condition.as_ref(), after.as_ref(), body);
                self.scopes.leave();
                StatementKind::Block(made?)
            }
            Written::Switch(value, body) => self.switch(value, body)?,
            Written::Case(_) | Written::Default => {
                let problem = Diagnostic::error(span, "this is not in a `switch`");
                return self.error(problem.help(
                    "`case` and `default` must be directly between the braces of a `switch`",
                ));
            }
            Written::Break if self.current().loops + self.current().switches == 0 => {
                return self
                    .error(Diagnostic::error(span, "`break` is not in a loop or a `switch`"));
            }
            Written::Break => StatementKind::Break,
            Written::Continue if self.current().loops == 0 => {
                return self.error(Diagnostic::error(span, "`continue` is not in a loop"));
            }
            Written::Continue => StatementKind::Continue,
            Written::Return(value) => StatementKind::Return(self.returned(value.as_ref(), &span)?),
        };
        to.push(Statement { kind, span });
        Ok(())
    }

    fn for_loop(
        &mut self,
        before: Option<&ast::Statement>,
        condition: Option<&ast::Expression>,
        after: Option<&ast::Expression>,
        body: &ast::Statement,
    ) -> Checked<Vec<Statement>> {
        let mut made = Vec::new();
        if let Some(before) = before {
            self.statement(before, &mut made)?;
        }
        let condition = condition.map(|condition| self.condition(condition)).transpose();
        let after = after.map(|after| self.expression(after)).transpose();
        if let Ok(Some(after)) = &after {
            self.lint_no_effect(after, NO_EFFECT_HELP);
        }
        let span = body.span.clone();
        let body = self.loop_body(body);
        let kind = Loop { tests_first: true, condition: condition?, after: after?, body };
        made.push(Statement { kind: StatementKind::Loop(kind), span });
        Ok(made)
    }

    fn loop_body(&mut self, body: &ast::Statement) -> Vec<Statement> {
        self.current().loops += 1;
        let body = self.one(body);
        self.current().loops -= 1;
        body
    }

    fn returned(
        &mut self,
        value: Option<&ast::Expression>,
        span: &Span,
    ) -> Checked<Option<Expression>> {
        let result = self.current().result.clone();
        match value {
            None if result == Type::Void => Ok(None),
            None => {
                let problem = Diagnostic::error(
                    span.clone(),
                    format!("a value of type {result} must be returned here"),
                );
                self.error(problem.help("write `return 0;`"))
            }
            Some(value) => {
                let value = self.expression(value)?;
                if result == Type::Void {
                    return self
                        .error(Diagnostic::error(value.span, "this function returns nothing"));
                }
                let value = self.converted(value, &result, "the returned value")?;
                self.lint_return(&value);
                Ok(Some(value))
            }
        }
    }

    fn switch(
        &mut self,
        value: &ast::Expression,
        written: &[ast::Statement],
    ) -> Checked<StatementKind> {
        let value = self.expression(value)?;
        let number = self.number_of(&value.ty, &value.span)?.promoted();
        let value = self.converted(value, &number.into(), "the value of a `switch`")?;
        let mut cases: Vec<(u64, usize)> = Vec::new();
        let mut spans: HashMap<u64, Span> = HashMap::new();
        let mut default: Option<(usize, Span)> = None;
        let mut body = Vec::new();
        let mut is_reachable = false;
        self.current().switches += 1;
        self.scopes.enter();
        self.lint_empty_body(written);
        for statement in written {
            is_reachable |= matches!(statement.kind, Written::Case(_) | Written::Default);
            let made = match &statement.kind {
                Written::Case(constant) => {
                    self.constant(constant, "a `case`").and_then(|(constant, from)| {
                        self.lint_conversion(constant, from, &number.into(), &statement.span);
                        let constant = number.extend(constant);
                        match spans.entry(constant) {
                            Entry::Occupied(other) => {
                                return Err(self.duplicate(
                                    "the same `case`",
                                    &statement.span,
                                    other.get(),
                                ));
                            }
                            Entry::Vacant(new) => new.insert(statement.span.clone()),
                        };
                        cases.push((constant, body.len()));
                        Ok(())
                    })
                }
                Written::Default => match &default {
                    Some((_, other)) => Err(self.duplicate("a `default`", &statement.span, other)),
                    None => {
                        default = Some((body.len(), statement.span.clone()));
                        Ok(())
                    }
                },
                Written::Declaration(declaration) => {
                    let problem = Diagnostic::error(
                        declaration.type_name.span.clone(),
                        "a declaration between `case`s could be skipped",
                    );
                    declaration.declarators.iter().for_each(|one| self.declare_faulty(&one.name));
                    self.error(problem.help("put it before the `switch`, or into braces"))
                }
                _ if !is_reachable => self.error(Diagnostic::error(
                    statement.span.clone(),
                    "this is never reached: it is before the first `case`",
                )),
                _ => self.statement(statement, &mut body),
            };
            if let Err(ErrorReported) = made
                && self.is_error_limit_reached()
            {
                break;
            }
        }
        self.scopes.leave();
        self.current().switches -= 1;
        Ok(StatementKind::Switch { value, cases, default: default.map(|(at, _)| at), body })
    }

    fn locals(&mut self, declaration: &Declaration, to: &mut Vec<Statement>) {
        if declaration.is_static {
            let function = self.current_name();
            return self.globals(declaration, Some(&function));
        }
        let base = self.resolve_value(&declaration.type_name, "a variable").ok();
        for declarator in &declaration.declarators {
            let made = base
                .as_ref()
                .map(|base| self.declared_local(base, declaration.is_const, declarator, to));
            if !matches!(made, Some(Ok(()))) {
                self.declare_faulty(&declarator.name);
            }
        }
    }

    fn declared_local(
        &mut self,
        base: &Type,
        is_const: bool,
        declarator: &ast::Declarator,
        to: &mut Vec<Statement>,
    ) -> Checked<()> {
        let of = self.declared_type(base, declarator)?;
        self.local_fits(&of, &declarator.name)?;
        let span = declarator.name.span.clone();
        let local = self.local(&declarator.name, of.clone(), is_const);
        // In its own initializer, the name still has its former meaning.
        let values = match &declarator.initializer {
            Some(initializer) => match self.assignments(local, &of, initializer) {
                Ok(values) => values,
                Err(ErrorReported) => {
                    self.current().is_used[local] = true;
                    return Err(ErrorReported);
                }
            },
            None => Vec::new(),
        };
        if let [Expression { kind: ExpressionKind::Assign(_, value), .. }] = &values[..]
            && is_const
            && let ExpressionKind::Constant(value) = value.kind
            && of.is_number()
        {
            self.declare(&declarator.name, Symbol::Constant(value, of))?;
            self.current().is_used[local] = true;
            return Ok(());
        }
        self.declare(&declarator.name, Symbol::Local(local))?;
        if values.is_empty() || matches!(of, Type::Array(..) | Type::Struct(_)) {
            to.push(Statement { kind: StatementKind::Clear(local), span: span.clone() });
        }
        let assigned = values.into_iter().map(|value| {
            let span = value.span.clone();
            Statement { kind: StatementKind::Expression(value), span }
        });
        to.extend(assigned);
        Ok(())
    }

    pub(super) fn local(&mut self, name: &ast::Ident, of: Type, is_const: bool) -> usize {
        let current = self.current();
        current.locals.push(Local {
            name: name.text.clone(),
            ty: of,
            is_const,
            span: name.span.clone(),
        });
        current.is_used.push(false);
        current.locals.len() - 1
    }
}
