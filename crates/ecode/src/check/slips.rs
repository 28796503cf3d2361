//! What is a program, but hardly the one that was meant: warnings.

use super::Checker;
use super::scopes::Named;
use crate::ast::{self, ExpressionKind as Written, StatementKind, Unary};
use crate::diagnostic::{Diagnostic, Span};
use crate::hooks::{Ending, Offer};
use crate::program::{Expression, ExpressionKind, Operator, Place, PlaceKind};
use crate::types::{Integer, Type};

/// Parentheses of its own would begin before its first operand.
fn is_bare(written: &ast::Expression, first: &ast::Expression) -> bool {
    written.span.start == first.span.start
}

fn is_bare_binary(written: &ast::Expression, is_wanted: impl Fn(Operator) -> bool) -> bool {
    matches!(&written.kind, Written::Binary(operator, first, _) if is_wanted(*operator) && is_bare(written, first))
}

fn is_bare_not(written: &ast::Expression) -> bool {
    matches!(&written.kind, Written::Unary(Unary::Not, inner) if inner.span.end == written.span.end)
}

fn is_written_number(written: &ast::Expression) -> bool {
    match &written.kind {
        Written::Number { .. } | Written::Character(_) | Written::Boolean(_) => true,
        Written::Unary(_, inner) | Written::Cast(_, inner) => is_written_number(inner),
        _ => false,
    }
}

/// 0 or 1.
fn gives_truth(written: &ast::Expression) -> bool {
    match &written.kind {
        Written::Unary(Unary::Not, _) | Written::Logical { .. } | Written::Boolean(_) => true,
        Written::Binary(operator, ..) => operator.is_comparison(),
        _ => false,
    }
}

/// How a statement ends.
#[derive(Clone, Copy, Default)]
struct Flow {
    /// What is behind it comes next.
    falls: bool,
    /// It leaves a loop or `switch` around it.
    breaks: bool,
    continues: bool,
}

impl Flow {
    fn or(self, other: Self) -> Self {
        Self {
            falls: self.falls || other.falls,
            breaks: self.breaks || other.breaks,
            continues: self.continues || other.continues,
        }
    }
}

/// Or may do something, or says that its value is left away on purpose.
fn does_something(expression: &Expression) -> bool {
    use ExpressionKind::*;
    match &expression.kind {
        Constant(_) | Text(_) => false,
        Load(place) => has_effect_within(place),
        Convert(_) if expression.of == Type::Void => true,
        Convert(inner) | Negate(inner) | Complement(inner) | Not(inner) => does_something(inner),
        Binary(_, left, right) => does_something(left) || does_something(right),
        _ => true,
    }
}

fn has_effect_within(place: &Place) -> bool {
    match &place.kind {
        PlaceKind::Local(_) | PlaceKind::Global(_) => false,
        PlaceKind::Member(outer, _) => has_effect_within(outer),
        PlaceKind::Element(outer, index, _) => does_something(index) || has_effect_within(outer),
        PlaceKind::Entry(_, key) => does_something(key),
    }
}

impl Checker<'_> {
    /// `=` in a condition is mostly a slip of `==`. As gcc has it, one in parentheses of its own is meant.
    pub(super) fn compares(&mut self, written: &ast::Expression) {
        match &written.kind {
            Written::Assign(None, place, _) if is_bare(written, place) => {
                let problem = Diagnostic::warning(written.span.clone(), "this assigns, and compares nothing");
                self.warn(problem.help("write `==`; or put it into parentheses of its own if it is meant"));
            }
            Written::Comma(_, last) => self.compares(last),
            Written::Conditional(parts) => parts[1..].iter().for_each(|choice| self.compares(choice)),
            _ => {}
        }
    }

    /// Where what binds tighter is seldom what was meant: as gcc has it.
    pub(super) fn binds_otherwise(
        &mut self,
        operator: Operator,
        [left, right]: [&ast::Expression; 2],
        checked: [&Expression; 2],
        span: &Span,
    ) {
        use Operator::*;
        let is_comparison = |operator: Operator| operator.is_comparison();
        let is_sum = |operator: Operator| matches!(operator, Add | Subtract);
        let first = [left, right].into_iter().find(|operand| match operator {
            And | Or | Xor => is_bare_binary(operand, is_comparison),
            ShiftLeft | ShiftRight => is_bare_binary(operand, is_sum),
            _ => false,
        });
        if let Some(first) = first {
            self.comes_first(first);
        }
        let is_order = operator.is_comparison() && !matches!(operator, Equal | NotEqual);
        if is_order && is_bare_binary(left, is_comparison) {
            let message = "this compares the result of a comparison, which is 0 or 1";
            self.warn(Diagnostic::warning(span.clone(), message).help("write `a < b && b < c`"));
        }
        // `!!a` makes a truth of a number, which is compared with another one.
        if let ExpressionKind::Not(inner) = &checked[0].kind
            && operator.is_comparison()
            && is_bare_not(left)
            && inner.of != Type::Bool
            && !matches!(inner.kind, ExpressionKind::Not(_))
            && checked[1].of != Type::Bool
            && !gives_truth(right)
        {
            self.comes_first(left);
        }
    }

    /// `a || b && c`
    pub(super) fn binds_tighter(&mut self, is_and: bool, operands: [&ast::Expression; 2]) {
        let is_bare_and = |operand: &&ast::Expression| matches!(&operand.kind, Written::Logical { is_and: true, left, .. } if is_bare(operand, left));
        if let Some(first) = operands.into_iter().find(is_bare_and).filter(|_| !is_and) {
            self.comes_first(first);
        }
    }

    fn comes_first(&mut self, first: &ast::Expression) {
        let problem = Diagnostic::warning(first.span.clone(), "this comes first, before what is around it");
        self.warn(problem.help("write parentheses around what belongs together"));
    }

    /// What holds for all numbers of a type, or for none: of types as they are written, and of a number that is written there, not
    /// of one by a name, which somebody may want to set otherwise.
    pub(super) fn is_decided(
        &mut self,
        operator: Operator,
        [left, right]: [&Expression; 2],
        written: &ast::Expression,
        span: &Span,
    ) {
        use Operator::*;
        if !is_written_number(written) {
            return;
        }
        let (ExpressionKind::Constant(value), Some(of), Some(with)) =
            (&right.kind, left.of.integer(), right.of.integer())
        else {
            return;
        };
        let common = of.common(with);
        let right = common.extend(*value);
        // Negative numbers are others where what they are compared with is unsigned.
        if matches!(left.kind, ExpressionKind::Constant(_)) || of.is_signed && !common.is_signed {
            return;
        }
        let bits = if left.of == Type::Bool { 1 } else { u32::from(of.bits) - u32::from(of.is_signed) };
        let (least, most) = (if of.is_signed { -1_i128 << bits } else { 0 }, (1_i128 << bits) - 1);
        let right = if common.is_signed { i128::from(right as i64) } else { i128::from(right) };
        let (is_so, is_not) = match operator {
            Equal => (false, right < least || right > most),
            NotEqual => (right < least || right > most, false),
            Less => (right > most, right <= least),
            LessEqual => (right >= most, right < least),
            Greater => (right < least, right >= most),
            GreaterEqual => (right <= least, right > most),
            _ => return,
        };
        if is_so || is_not {
            let message = if is_so { "this is always so" } else { "this is never so" };
            let help = format!("numbers of type {} are {least} to {most}", left.of);
            self.warn(Diagnostic::warning(span.clone(), message).help(help));
        }
    }

    /// Signed numbers that are constant are seldom meant to come round, however it is defined.
    pub(super) fn overflows(
        &mut self,
        operator: Operator,
        of: [u64; 2],
        value: u64,
        number: Integer,
        span: &Span,
    ) {
        let [left, right] = of.map(|constant| i128::from(constant as i64));
        let exact = match operator {
            Operator::Add => left + right,
            Operator::Subtract => left - right,
            Operator::Multiply => left * right,
            _ => return,
        };
        // What has come round already is told of, and is another number.
        let is_told =
            self.overflow.start >= span.start && self.overflow.end <= span.end && !self.overflow.is_empty();
        if number.is_signed && exact != i128::from(value as i64) && !is_told {
            self.overflow = span.clone();
            let message = format!("this is {}, as {exact} does not fit into {number}", value as i64);
            let problem = Diagnostic::warning(span.clone(), message);
            let wider = if number.bits == 64 { "u64" } else { "i64" };
            self.warn(problem.help(format!("write ({wider}) before the first number")));
        }
    }

    /// By more bits than there are: a value, or what is in a place.
    pub(super) fn shifts_out(
        &mut self,
        operator: Operator,
        number: Integer,
        by: &Expression,
        is_value: bool,
    ) {
        let ExpressionKind::Constant(bits) = by.kind else { return };
        let width = u64::from(number.bits);
        if !matches!(operator, Operator::ShiftLeft | Operator::ShiftRight) || bits < width {
            return;
        }
        let message = format!("this shifts by {}, as {number} has {width} bits", bits % width);
        let problem = Diagnostic::warning(by.span.clone(), message);
        let helps = is_value && operator == Operator::ShiftLeft && number.bits < 64 && bits < 64;
        self.warn(if helps { problem.help("write (u64) before what is shifted") } else { problem });
    }

    pub(super) fn has_effect(&mut self, expression: &Expression) {
        if !does_something(expression) {
            let problem = Diagnostic::warning(expression.span.clone(), "this has no effect");
            self.warn(problem.help("assign it, or leave it away"));
        }
    }

    /// `if (a);` and, before a block, `while (a);`: without one, a loop's condition may be all that is meant.
    pub(super) fn empty_bodies(&mut self, statements: &[ast::Statement]) {
        for (at, statement) in statements.iter().enumerate() {
            let is_before_block =
                statements.get(at + 1).is_some_and(|next| matches!(next.kind, StatementKind::Block(_)));
            let (body, what) = match &statement.kind {
                StatementKind::If(_, yes, None) => (yes, "`if`"),
                StatementKind::While(_, body) if is_before_block => (body, "`while`"),
                StatementKind::For { body, .. } if is_before_block => (body, "`for`"),
                _ => continue,
            };
            if matches!(body.kind, StatementKind::Empty) {
                let problem = Diagnostic::warning(body.span.clone(), format!("this is all that {what} does"));
                self.warn(problem.help("leave the `;` away, or write `{}` if it is meant"));
            }
        }
    }

    /// Where somebody wants to refuse what only is looked at.
    pub(super) fn refused_in_vain(&mut self, value: &Expression) {
        let only_observes = |offer: &Offer| matches!(offer.ending, Ending::Chained { stops: None, .. });
        let is_refusal = matches!(value.kind, ExpressionKind::Constant(value) if value != 0);
        if is_refusal && self.current().offer.as_ref().is_some_and(only_observes) {
            let problem = Diagnostic::warning(
                value.span.clone(),
                "nothing can be refused at this hook: what is returned changes nothing",
            );
            self.warn(problem.help("write `return 0;`; docs/ecode.md says which hooks can refuse"));
        }
    }

    /// A function that is to return something.
    pub(super) fn returns(&mut self, name: &ast::Name, result: &Type, body: &[ast::Statement]) {
        if *result != Type::Void && self.flow_of(body).falls {
            let message = format!("`{}` may end without `return`: it returns 0 then", name.text);
            let problem = Diagnostic::warning(name.span.clone(), message);
            self.warn(problem.help("write `return 0;` at its end if that is meant"));
        }
    }

    fn flow_of(&self, statements: &[ast::Statement]) -> Flow {
        let mut flow = Flow { falls: true, ..Flow::default() };
        for statement in statements {
            flow.falls |= matches!(statement.kind, StatementKind::Case(_) | StatementKind::Default);
            if flow.falls {
                flow = Flow { falls: false, ..flow }.or(self.flow(statement));
            }
        }
        flow
    }

    fn flow(&self, statement: &ast::Statement) -> Flow {
        let falls = Flow { falls: true, ..Flow::default() };
        match &statement.kind {
            StatementKind::Return(_) => Flow::default(),
            StatementKind::Break => Flow { breaks: true, ..Flow::default() },
            StatementKind::Continue => Flow { continues: true, ..Flow::default() },
            StatementKind::Block(inner) => self.flow_of(inner),
            StatementKind::If(_, yes, no) => self.flow(yes).or(no.as_ref().map_or(falls, |no| self.flow(no))),
            StatementKind::Switch(_, body) => {
                let inner = self.flow_of(body);
                let has_default = body.iter().any(|one| matches!(one.kind, StatementKind::Default));
                Flow { falls: inner.falls || inner.breaks || !has_default, breaks: false, ..inner }
            }
            StatementKind::While(condition, body) => {
                Flow { falls: self.flow(body).breaks || !self.is_true(condition), ..Flow::default() }
            }
            StatementKind::For { condition, body, .. } => {
                let ends = condition.as_ref().is_some_and(|condition| !self.is_true(condition));
                Flow { falls: self.flow(body).breaks || ends, ..Flow::default() }
            }
            StatementKind::Do(body, condition) => {
                let inner = self.flow(body);
                let is_asked = inner.falls || inner.continues;
                Flow { falls: inner.breaks || is_asked && !self.is_true(condition), ..Flow::default() }
            }
            _ => falls,
        }
    }

    /// As it is written, always.
    fn is_true(&self, condition: &ast::Expression) -> bool {
        match &condition.kind {
            Written::Number { value, .. } => *value != 0,
            Written::Boolean(value) => *value,
            Written::Name(name) => matches!(self.scopes.find(name), Some(Named::Constant(1.., _))),
            _ => false,
        }
    }

    pub(super) fn has_a_handler(&mut self) {
        if self.faults() == 0 && self.program.handlers.is_empty() {
            let problem = Diagnostic::warning(0..0, "nothing ever runs this: it has no handler");
            self.warn(problem.help("write one, `on enter(openat) { … }`, say; docs/ecode.md has them all"));
        }
    }
}
