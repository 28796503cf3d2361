//! Warnings about valid code that is probably a mistake.

use super::Checker;
use super::scopes::Symbol;
use crate::ast::{self, ExpressionKind as Written, StatementKind, Unary};
use crate::builtin::Builtin;
use crate::diagnostic::{Diagnostic, Span};
use crate::foreign::PACKET_RETURN;
use crate::hooks::{DenyReturn, MAX_ERRNO, ReturnPolicy};
use crate::typed::{Argument, Expression, ExpressionKind, Lvalue, LvalueKind, Operator};
use crate::types::{Integer, Type};

/// The codes that only the kernel itself sees, as return values: ERESTARTSYS to ERECALLCONFLICT
/// (include/linux/errno.h).
const FIRST_KERNEL_CODE: i64 = -512;
const LAST_KERNEL_CODE: i64 = -531;
/// asm-generic/errno-base.h
const EINTR: i64 = 4;
/// The help on a value that has no effect.
pub const NO_EFFECT_HELP: &str = "assign it, or remove it";

/// Whether an expression has no parentheses around it. Such parentheses would begin before its
/// first operand.
fn is_bare(written: &ast::Expression, first: &ast::Expression) -> bool {
    written.span.start == first.span.start
}

fn is_bare_binary(written: &ast::Expression, is_wanted: impl Fn(Operator) -> bool) -> bool {
    let Written::Binary(operator, first, _) = &written.kind else { return false };
    is_wanted(*operator) && is_bare(written, first)
}

fn is_bare_not(written: &ast::Expression) -> bool {
    matches!(&written.kind, Written::Unary(Unary::Not, inner) if inner.span.end == written.span.end)
}

fn is_number_literal(written: &ast::Expression) -> bool {
    match &written.kind {
        Written::Number { .. } | Written::Character(_) | Written::Boolean(_) => true,
        Written::Unary(_, inner) | Written::Cast(_, inner) => is_number_literal(inner),
        _ => false,
    }
}

/// Whether the value is always 0 or 1.
fn is_boolean_valued(written: &ast::Expression) -> bool {
    match &written.kind {
        Written::Unary(Unary::Not, _) | Written::Logical { .. } | Written::Boolean(_) => true,
        Written::Binary(operator, ..) => operator.is_comparison(),
        _ => false,
    }
}

/// How a statement can complete.
#[derive(Clone, Copy, Default)]
struct Completions {
    /// Execution continues after it.
    falls: bool,
    /// It leaves the enclosing loop or `switch`.
    breaks: bool,
    continues: bool,
}

impl Completions {
    fn or(self, other: Self) -> Self {
        Self {
            falls: self.falls || other.falls,
            breaks: self.breaks || other.breaks,
            continues: self.continues || other.continues,
        }
    }
}

/// The constants that an expression can be, with their spans.
fn returned_constants(value: &Expression) -> Vec<(i64, Span)> {
    match &value.kind {
        ExpressionKind::Constant(constant) => vec![(*constant as i64, value.span.clone())],
        ExpressionKind::Convert(inner) | ExpressionKind::Comma(_, inner) => {
            returned_constants(inner)
        }
        ExpressionKind::Conditional(parts) => {
            parts[1..].iter().flat_map(returned_constants).collect()
        }
        _ => Vec::new(),
    }
}

/// Whether an expression may have an effect, or discards its value explicitly by a cast to void.
fn has_side_effect(expression: &Expression) -> bool {
    use ExpressionKind::*;
    match &expression.kind {
        Constant(_) | Text(_) => false,
        Load(lvalue) => has_effect_within(lvalue),
        Convert(_) if expression.ty == Type::Void => true,
        Convert(inner) | Negate(inner) | Complement(inner) | Not(inner) => has_side_effect(inner),
        Binary(_, left, right) => has_side_effect(left) || has_side_effect(right),
        _ => true,
    }
}

fn has_effect_within(lvalue: &Lvalue) -> bool {
    match &lvalue.kind {
        LvalueKind::Local(_) | LvalueKind::Global(_) => false,
        LvalueKind::Member(outer, _) => has_effect_within(outer),
        LvalueKind::Element(outer, index, _) => has_side_effect(index) || has_effect_within(outer),
        LvalueKind::Entry(_, key) => has_side_effect(key),
    }
}

impl Checker<'_> {
    /// `=` in a condition is usually a mistake for `==`. As in gcc, an assignment in its own
    /// parentheses is taken as intended.
    pub(super) fn lint_assignment_in_condition(&mut self, written: &ast::Expression) {
        match &written.kind {
            Written::Assign(None, lvalue, _) if is_bare(written, lvalue) => {
                let problem = Diagnostic::warning(
                    written.span.clone(),
                    "this is an assignment, not a comparison",
                );
                self.warn(problem.help(
                    "write `==`, or add parentheses around the assignment if it is intended",
                ));
            }
            Written::Comma(_, last) => self.lint_assignment_in_condition(last),
            Written::Conditional(parts) => {
                parts[1..].iter().for_each(|choice| self.lint_assignment_in_condition(choice))
            }
            _ => {}
        }
    }

    /// Warns about `while (n >>= 1)` of a signed number.
    pub(super) fn lint_signed_shift(&mut self, condition: &ast::Expression, ty: &Type) {
        if !matches!(condition.kind, Written::Assign(Some(Operator::ShiftRight), ..))
            || !ty.integer().is_some_and(|number| number.is_signed)
        {
            return;
        }
        let message = "a negative number never becomes 0 here, because `>>` keeps its sign";
        let problem = Diagnostic::warning(condition.span.clone(), message);
        self.warn(problem.help("use an unsigned variable, and test the number before"));
    }

    /// Warns about operators whose precedence is often mistaken, as gcc does.
    pub(super) fn lint_precedence(
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
            self.lint_parentheses(first);
        }
        let is_order = operator.is_comparison() && !matches!(operator, Equal | NotEqual);
        if is_order && is_bare_binary(left, is_comparison) {
            let message = "this compares the result of a comparison, which is 0 or 1";
            self.warn(Diagnostic::warning(span.clone(), message).help("write `a < b && b < c`"));
        }
        // `!!a` is an intended conversion to 0 or 1, which may be compared with a number.
        if let ExpressionKind::Not(inner) = &checked[0].kind
            && operator.is_comparison()
            && is_bare_not(left)
            && inner.ty != Type::Bool
            && !matches!(inner.kind, ExpressionKind::Not(_))
            && checked[1].ty != Type::Bool
            && !is_boolean_valued(right)
        {
            self.lint_parentheses(left);
        }
    }

    /// Warns about `a || b && c`.
    pub(super) fn lint_and_in_or(&mut self, is_and: bool, operands: [&ast::Expression; 2]) {
        let is_bare_and = |operand: &&ast::Expression| match &operand.kind {
            Written::Logical { is_and: true, left, .. } => is_bare(operand, left),
            _ => false,
        };
        if let Some(first) = operands.into_iter().find(is_bare_and).filter(|_| !is_and) {
            self.lint_parentheses(first);
        }
    }

    fn lint_parentheses(&mut self, first: &ast::Expression) {
        let problem = Diagnostic::warning(
            first.span.clone(),
            "this is evaluated before the operator next to it",
        );
        self.warn(problem.help("add parentheses to show what belongs together"));
    }

    /// Warns about a comparison that is true for all numbers of a type, or for none. Only number
    /// literals count, because a user may want to give a named constant another value.
    pub(super) fn lint_constant_comparison(
        &mut self,
        operator: Operator,
        [left, right]: [&Expression; 2],
        written: &ast::Expression,
        span: &Span,
    ) {
        use Operator::*;
        if !is_number_literal(written) {
            return;
        }
        let (ExpressionKind::Constant(value), Some(of), Some(with)) =
            (&right.kind, left.ty.integer(), right.ty.integer())
        else {
            return;
        };
        let common = of.common(with);
        let right = common.extend(*value);
        // In a comparison with an unsigned number, negative numbers are converted to positive ones.
        if matches!(left.kind, ExpressionKind::Constant(_)) || of.is_signed && !common.is_signed {
            return;
        }
        let bits =
            if left.ty == Type::Bool { 1 } else { u32::from(of.bits) - u32::from(of.is_signed) };
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
            let message = if is_so { "this is always true" } else { "this is never true" };
            let help = format!("numbers of type {} range from {least} to {most}", left.ty);
            self.warn(Diagnostic::warning(span.clone(), message).help(help));
        }
    }

    /// Warns about an overflow of signed constants, which is seldom intended, although it is
    /// defined.
    pub(super) fn lint_overflow(
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
        // An overflow in an operand was reported already, and this result follows from it.
        let is_reported = self.overflow.start >= span.start
            && self.overflow.end <= span.end
            && !self.overflow.is_empty();
        if number.is_signed && exact != i128::from(value as i64) && !is_reported {
            self.overflow = span.clone();
            let message = format!(
                "the result is {}, because {exact} does not fit into {number}",
                value as i64
            );
            let problem = Diagnostic::warning(span.clone(), message);
            let wider = if number.bits == 64 { "u64" } else { "i64" };
            self.warn(problem.help(format!("cast the first number to {wider}")));
        }
    }

    /// Warns about a shift of a value or an lvalue by at least its number of bits.
    pub(super) fn lint_shift_width(
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
        let message =
            format!("this shifts by {}, because {number} has only {width} bits", bits % width);
        let problem = Diagnostic::warning(by.span.clone(), message);
        let helps = is_value && operator == Operator::ShiftLeft && number.bits < 64 && bits < 64;
        self.warn(if helps { problem.help("cast the shifted number to u64") } else { problem });
    }

    /// Warns about a value that is discarded and whose evaluation has no effect.
    pub(super) fn lint_no_effect(&mut self, expression: &Expression, help: &str) {
        // The checker has warned about the left side of a comma before.
        if let ExpressionKind::Comma(_, right) = &expression.kind {
            return self.lint_no_effect(right, help);
        }
        if !has_side_effect(expression) {
            let problem = Diagnostic::warning(expression.span.clone(), "this has no effect");
            self.warn(problem.help(help));
        }
    }

    /// Warns about a constant that another type cannot hold. -1 stands for the largest number of an
    /// unsigned type.
    pub(super) fn lint_conversion(&mut self, constant: u64, from: Integer, to: &Type, span: &Span) {
        let exact = from.exact(constant);
        let Some(number) = to.integer().filter(|_| *to != Type::Bool) else { return };
        let is_changed = match number.is_signed {
            true => number.exact(number.extend(constant)) != exact,
            false => number.extend(constant) != constant && exact != -1,
        };
        if is_changed {
            let problem =
                Diagnostic::warning(span.clone(), format!("{exact} does not fit into {to}"));
            self.warn(problem.help(format!("write ({to}) before it to keep only its lowest bits")));
        }
    }

    /// Warns about `if (a);`, and about `while (a);` before a block. If no block follows, the
    /// author may have intended a loop without a body.
    pub(super) fn lint_empty_body(&mut self, statements: &[ast::Statement]) {
        for (at, statement) in statements.iter().enumerate() {
            let is_before_block = statements
                .get(at + 1)
                .is_some_and(|next| matches!(next.kind, StatementKind::Block(_)));
            let (body, what) = match &statement.kind {
                StatementKind::If(_, yes, None) => (yes, "`if`"),
                StatementKind::While(_, body) if is_before_block => (body, "`while`"),
                StatementKind::For { body, .. } if is_before_block => (body, "`for`"),
                _ => continue,
            };
            if matches!(body.kind, StatementKind::Empty) {
                let problem =
                    Diagnostic::warning(body.span.clone(), format!("the body of {what} is empty"));
                self.warn(problem.help("remove the `;`, or write `{}` if that is intended"));
            }
        }
    }

    /// Warns about a return value whose effect at this hook is probably not the intended one.
    pub(super) fn lint_return(&mut self, value: &Expression) {
        let Some(spec) = self.current().hook_spec.as_ref() else { return };
        if spec.return_policy == ReturnPolicy::Returned {
            return;
        }
        let (deny_return, is_of_packets) = (spec.deny_return(), spec.packet.is_some());
        for (constant, span) in returned_constants(value) {
            let problem = |message: String| Diagnostic::warning(span.clone(), message);
            let problem = match deny_return {
                _ if constant == 0 => continue,
                None => problem(
                    "a handler of this hook cannot deny anything: its return value has no effect"
                        .into(),
                )
                .help(
                    "write `return 0;`; docs/ecode.md lists the hooks at which a handler can deny \
                    something",
                ),
                Some(_) if is_of_packets && constant != 1 => {
                    problem(format!("{constant} drops the packet, as any number except 0 does"))
                        .help(PACKET_RETURN)
                }
                Some(DenyReturn { sets_errno: true, .. }) => match constant {
                    LAST_KERNEL_CODE..=FIRST_KERNEL_CODE => problem(format!(
                        "{constant} is a code that the kernel uses internally, not an errno"
                    ))
                    .help("docs/ecode.md says what the program would see"),
                    code if code == -EINTR => problem(
                        "many programs repeat a call that fails with EINTR, so they would never \
                        end"
                        .into(),
                    )
                    .help("refuse with another errno, such as -1 (EPERM) or -13 (EACCES)"),
                    2..=MAX_ERRNO => {
                        problem(format!("this refuses with EPERM, not with errno {constant}"))
                            .help(format!("write -{constant} for this errno, or 1 for EPERM"))
                    }
                    _ if !(-MAX_ERRNO..=1).contains(&constant) => {
                        problem("this refuses with EPERM, because it is not an errno".into())
                            .help(format!("an errno is a number from -1 to -{MAX_ERRNO}"))
                    }
                    _ => continue,
                },
                Some(_) => continue,
            };
            self.warn(problem);
        }
    }

    /// Warns about a constant address, which is usually the number of bytes: the kernel's helpers
    /// take it before the address.
    pub(super) fn lint_read_address(&mut self, builtin: Builtin, arguments: &[Argument]) {
        let help = match builtin {
            Builtin::ReadUser => "the order is `read_user(TO, ADDRESS, BYTES)`",
            Builtin::ReadUserText => "the order is `read_user_text(TO, ADDRESS)`",
            _ => return,
        };
        if let Some(Argument::Value(address)) = arguments.get(1)
            && matches!(address.kind, ExpressionKind::Constant(_))
        {
            let problem = Diagnostic::warning(
                address.span.clone(),
                "the address that is read is a constant here",
            );
            self.warn(problem.help(help));
        }
    }

    /// Warns about a function with a result if it may end without `return`.
    pub(super) fn lint_missing_return(
        &mut self,
        name: &ast::Ident,
        result: &Type,
        body: &[ast::Statement],
    ) {
        if *result != Type::Void && self.completions_of(body).falls {
            let message = format!("`{}` may end without `return`, and then returns 0", name.text);
            let problem = Diagnostic::warning(name.span.clone(), message);
            self.warn(problem.help("write `return 0;` at its end if that is intended"));
        }
    }

    fn completions_of(&self, statements: &[ast::Statement]) -> Completions {
        let mut flow = Completions { falls: true, ..Completions::default() };
        for statement in statements {
            flow.falls |= matches!(statement.kind, StatementKind::Case(_) | StatementKind::Default);
            if flow.falls {
                flow = Completions { falls: false, ..flow }.or(self.completion_of(statement));
            }
        }
        flow
    }

    fn completion_of(&self, statement: &ast::Statement) -> Completions {
        let falls = Completions { falls: true, ..Completions::default() };
        match &statement.kind {
            StatementKind::Return(_) => Completions::default(),
            StatementKind::Break => Completions { breaks: true, ..Completions::default() },
            StatementKind::Continue => Completions { continues: true, ..Completions::default() },
            StatementKind::Block(inner) => self.completions_of(inner),
            StatementKind::If(_, yes, no) => {
                self.completion_of(yes).or(no.as_ref().map_or(falls, |no| self.completion_of(no)))
            }
            StatementKind::Switch(_, body) => {
                let inner = self.completions_of(body);
                let has_default = body.iter().any(|one| matches!(one.kind, StatementKind::Default));
                Completions {
                    falls: inner.falls || inner.breaks || !has_default,
                    breaks: false,
                    ..inner
                }
            }
            StatementKind::While(condition, body) => Completions {
                falls: self.completion_of(body).breaks || !self.is_true(condition),
                ..Completions::default()
            },
            StatementKind::For { condition, body, .. } => {
                let ends = condition.as_ref().is_some_and(|condition| !self.is_true(condition));
                Completions {
                    falls: self.completion_of(body).breaks || ends,
                    ..Completions::default()
                }
            }
            StatementKind::Do(body, condition) => {
                let inner = self.completion_of(body);
                let is_tested = inner.falls || inner.continues;
                Completions {
                    falls: inner.breaks || is_tested && !self.is_true(condition),
                    ..Completions::default()
                }
            }
            _ => falls,
        }
    }

    /// Whether a condition is a constant that is always true.
    fn is_true(&self, condition: &ast::Expression) -> bool {
        match &condition.kind {
            Written::Number { value, .. } => *value != 0,
            Written::Boolean(value) => *value,
            Written::Name(name) => matches!(self.scopes.find(name), Some(Symbol::Constant(1.., _))),
            _ => false,
        }
    }

    pub(super) fn lint_no_handler(&mut self) {
        if self.error_count() == 0 && self.program.handlers.is_empty() {
            let problem = Diagnostic::warning(0..0, "this plugin never runs: it has no handler");
            self.warn(problem.help(
                "write one, for example `on enter(openat) { … }`; docs/ecode.md lists all hooks",
            ));
        }
    }
}
