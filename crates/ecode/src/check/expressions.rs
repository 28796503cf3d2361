//! Checks expressions: resolves names to lvalues and constants, converts operands to common types
//! and folds constants.

use super::builtins::is_builtin;
use super::items::MAX_LOCAL_BYTES;
use super::lint::NO_EFFECT_HELP;
use super::scopes::Symbol;
use super::{BELOW, Checked, Checker};
use crate::arithmetic;
use crate::ast::{self, ExpressionKind as Written, Unary};
use crate::diagnostic::{Diagnostic, ErrorReported, Span, closest_name, number_of};
use crate::foreign;
use crate::token::type_of_c_header;
use crate::typed::{Expression, ExpressionKind, Lvalue, LvalueKind, Operator};
use crate::types::{CHAR, INT, Integer, LONG, Type, U32, U64};

/// How a text becomes the key of a map.
const TEXT_AS_KEY: &str = "a key with a text is a struct: `struct key { char text[16]; };` and, \
    for example, `comm(key.text);`";

fn expression(kind: ExpressionKind, of: impl Into<Type>, span: &Span) -> Expression {
    Expression { kind, ty: of.into(), span: span.clone() }
}

fn constant(of: &Expression) -> Option<u64> {
    match of.kind {
        ExpressionKind::Constant(value) => Some(value),
        _ => None,
    }
}

/// Converts a number to another type.
fn convert(from: Expression, to: &Type) -> Expression {
    if from.ty == *to {
        return from;
    }
    let span = from.span.clone();
    let kind = match (constant(&from), to.integer()) {
        (Some(value), Some(_)) if *to == Type::Bool => {
            ExpressionKind::Constant((value != 0).into())
        }
        (Some(value), Some(number)) => ExpressionKind::Constant(number.extend(value)),
        _ => ExpressionKind::Convert(Box::new(from)),
    };
    Expression { kind, ty: to.clone(), span }
}

/// The type of a number literal (ISO C17, 6.4.4.1).
fn literal_type(value: u64, is_unsigned: bool, is_long: bool, is_decimal: bool) -> Integer {
    let signed = [INT, LONG].into_iter().filter(|_| !is_unsigned);
    let unsigned = [U32, U64].into_iter().filter(|_| is_unsigned || !is_decimal);
    let mut fitting: Vec<_> = signed.chain(unsigned).collect();
    fitting.sort_by_key(|number| number.bits);
    let fits =
        |number: &&Integer| number.holds(value, false) && !(is_long && number.bits < LONG.bits);
    fitting.iter().find(fits).copied().unwrap_or(U64)
}

/// Whether this is the name of a call's argument by its number.
fn is_argument(name: &str) -> bool {
    name.strip_prefix("arg").is_some_and(|rest| rest.parse::<u8>().is_ok())
}

/// The last of the arguments that a hook offers by their numbers.
fn last_argument<'a>(offered: &[&'a str]) -> Option<&'a str> {
    offered.iter().copied().rfind(|name| is_argument(name))
}

/// How to write the number that a string stands for.
fn number_for_text(value: &Expression) -> Option<String> {
    let ExpressionKind::Text(bytes) = &value.kind else { return None };
    let text = std::str::from_utf8(bytes).ok()?;
    let (length, help) = foreign::address(text)?;
    (length == text.len()).then_some(help)
}

impl Checker<'_> {
    pub(super) fn expression(&mut self, written: &ast::Expression) -> Checked<Expression> {
        let span = &written.span;
        match &written.kind {
            Written::Number { value, is_unsigned, is_long, is_decimal } => {
                let number = literal_type(*value, *is_unsigned, *is_long, *is_decimal);
                Ok(expression(ExpressionKind::Constant(*value), number, span))
            }
            Written::Character(byte) => {
                Ok(expression(ExpressionKind::Constant(CHAR.extend((*byte).into())), INT, span))
            }
            Written::Boolean(value) => {
                Ok(expression(ExpressionKind::Constant((*value).into()), Type::Bool, span))
            }
            Written::Text(bytes) => Ok(self.string(bytes.clone(), span)),
            Written::Name(name) => self.named(name, span),
            Written::Index(..) | Written::Member(..) => {
                let lvalue = self.lvalue(written)?;
                Ok(Self::load(lvalue))
            }
            Written::Unary(operator, inner) => self.unary(*operator, inner, span),
            Written::Step { lvalue, is_up, is_before } => {
                let operator = if *is_up { Operator::Add } else { Operator::Subtract };
                let lvalue = self.changed_lvalue(lvalue)?;
                let number = self.number_of(&lvalue.of, &lvalue.span)?;
                let by =
                    Box::new(expression(ExpressionKind::Constant(1), number.common(INT), span));
                let (common, of) = (number.common(INT), lvalue.of.clone());
                let kind = ExpressionKind::Update {
                    lvalue: Box::new(lvalue),
                    operator,
                    common,
                    by,
                    is_old: !is_before,
                };
                Ok(expression(kind, of, span))
            }
            Written::Binary(operator, left, right) => {
                let written = [&**left, &**right];
                let (left, right) = (self.expression(left)?, self.expression(right)?);
                self.lint_precedence(*operator, written, [&left, &right], span);
                self.lint_constant_comparison(*operator, [&left, &right], written[1], span);
                self.binary(*operator, left, right, span)
            }
            Written::Logical { is_and, left, right } => {
                self.lint_and_in_or(*is_and, [left, right]);
                let (left, right) = (self.condition(left)?, self.condition(right)?);
                let kind = match (constant(&left), is_and) {
                    // The right operand is not evaluated.
                    (Some(value), _) if (value != 0) != *is_and => {
                        ExpressionKind::Constant((value != 0).into())
                    }
                    _ => match (constant(&left), constant(&right)) {
                        (Some(_), Some(value)) => ExpressionKind::Constant((value != 0).into()),
                        _ => ExpressionKind::Logical {
                            is_and: *is_and,
                            left: Box::new(left),
                            right: Box::new(right),
                        },
                    },
                };
                Ok(expression(kind, INT, span))
            }
            Written::Conditional(parts) => self.conditional(parts, span),
            Written::Assign(operator, lvalue, value) => self.assign(*operator, lvalue, value, span),
            Written::Call(name, arguments) => self.call(name, arguments, span),
            Written::Cast(type_name, inner) => self.cast(type_name, inner, span),
            Written::SizeOfType(type_name, lengths) => {
                let mut size = self.resolve_value(type_name, "the operand of sizeof")?.size();
                for length in lengths {
                    size = size.saturating_mul(self.length(length, "an array")?);
                }
                Ok(expression(ExpressionKind::Constant(size), U64, span))
            }
            Written::SizeOf(inner) => {
                let of = match &inner.kind {
                    Written::Name(_) | Written::Index(..) | Written::Member(..) => {
                        self.type_of(inner)?
                    }
                    Written::Text(bytes) => {
                        Type::Array(std::rc::Rc::new(CHAR.into()), bytes.len() as u64 + 1)
                    }
                    _ => self.expression(inner)?.ty,
                };
                Ok(expression(ExpressionKind::Constant(of.size()), U64, span))
            }
            Written::Comma(left, right) => {
                let left = self.expression(left)?;
                self.comma(left, right, span, NO_EFFECT_HELP)
            }
        }
    }

    fn comma(
        &mut self,
        left: Expression,
        right: &ast::Expression,
        span: &Span,
        help: &str,
    ) -> Checked<Expression> {
        self.lint_no_effect(&left, help);
        let right = self.expression(right)?;
        let of = right.ty.clone();
        Ok(expression(ExpressionKind::Comma(Box::new(left), Box::new(right)), of, span))
    }

    /// An index or a key. Other languages have keys of several parts, `m[a, b]`, which are a comma
    /// operator here.
    fn subscript(&mut self, written: &ast::Expression, help: &str) -> Checked<Expression> {
        match &written.kind {
            Written::Comma(left, right) => {
                let left = self.subscript(left, help)?;
                if let ExpressionKind::Call(..) | ExpressionKind::Builtin(..) = left.kind {
                    let message = "only what is right of the comma counts here";
                    self.warn(Diagnostic::warning(left.span.clone(), message).help(help));
                }
                self.comma(left, right, &written.span, help)
            }
            _ => self.expression(written),
        }
    }

    pub(super) fn string(&mut self, bytes: Vec<u8>, span: &Span) -> Expression {
        if self.strings.insert(bytes.clone()) {
            self.program.strings.push(bytes.clone());
        }
        expression(ExpressionKind::Text(bytes), Type::String, span)
    }

    fn load(lvalue: Lvalue) -> Expression {
        let (of, span) = (lvalue.of.clone(), lvalue.span.clone());
        Expression { kind: ExpressionKind::Load(Box::new(lvalue)), ty: of, span }
    }

    /// The type of an expression that is not evaluated.
    fn type_of(&mut self, written: &ast::Expression) -> Checked<Type> {
        if let Written::Name(name) = &written.kind
            && let Some(Symbol::Constant(_, of)) = self.scopes.find(name)
        {
            return Ok(of.clone());
        }
        Ok(self.lvalue(written)?.of)
    }

    fn named(&mut self, name: &str, span: &Span) -> Checked<Expression> {
        match self.scopes.find(name).cloned() {
            Some(Symbol::Constant(value, of)) => {
                Ok(expression(ExpressionKind::Constant(value), of, span))
            }
            _ => self.named_lvalue(name, span).map(Self::load),
        }
    }

    fn named_lvalue(&mut self, name: &str, span: &Span) -> Checked<Lvalue> {
        let (kind, of) = match self.scopes.find(name).cloned() {
            Some(Symbol::Local(local)) => {
                if !self.current().is_used[local] && self.is_field(local) {
                    self.warn_of_hidden(name, span);
                }
                let current = self.current();
                current.is_used[local] = true;
                (LvalueKind::Local(local), current.locals[local].ty.clone())
            }
            Some(Symbol::Global(global)) => {
                (LvalueKind::Global(global), self.program.globals[global].ty.clone())
            }
            Some(Symbol::Map(_)) => {
                let problem = Diagnostic::error(span.clone(), format!("`{name}` is a map"));
                return self.error(problem.help(format!("use one of its entries: {name}[KEY]")));
            }
            Some(Symbol::Function(_)) => return self.not_called(name, span),
            Some(Symbol::Constant(..)) => {
                let problem = Diagnostic::error(span.clone(), format!("`{name}` is a constant"));
                return self.error(problem.help("use a variable that is not `const`"));
            }
            Some(Symbol::Faulty) => return Err(ErrorReported),
            None if is_builtin(name) => return self.not_called(name, span),
            None => return self.unknown_variable(name, span),
        };
        Ok(Lvalue { kind, of, span: span.clone() })
    }

    /// Warns if a field of the hook hides a variable, a map or a constant of the program.
    fn warn_of_hidden(&mut self, name: &str, span: &Span) {
        if let Some(own) = self.scopes.outermost(name) {
            let message =
                format!("this is the hook's field `{name}`, which hides your own `{name}`");
            let problem = Diagnostic::warning(span.clone(), message);
            let help = format!("rename your own `{name}`");
            self.warn(problem.other(own, "declared here").help(help));
        }
    }

    /// Why a field that the hook has cannot be read, if that is so.
    fn unreadable_field(&self, name: &str) -> Option<String> {
        let spec = self.current.as_ref()?.hook_spec.as_ref()?;
        spec.unreadable.iter().find(|(field, _)| field == name).map(|(_, why)| why.clone())
    }

    /// What to do if this is a field of another handler.
    fn field_elsewhere(&self, name: &str) -> Option<&'static str> {
        let is_field = |handler: &ast::Handler| {
            let selected: Vec<_> = handler.selected.iter().map(|one| one.text.clone()).collect();
            let spec = self.hooks.spec(&handler.hook.text, &selected);
            spec.is_ok_and(|spec| spec.fields.iter().any(|field| field.name == name))
        };
        let mut handlers = self.items.iter().filter_map(|item| match item {
            ast::Item::Handler(handler) => Some(handler),
            _ => None,
        });
        let is_in_handler = self.current.as_ref()?.hook_spec.is_some();
        handlers.any(is_field).then_some(match is_in_handler {
            true => "only another handler has this field: store it in a variable there",
            false => "only handlers have fields: pass it to the function as a parameter",
        })
    }

    /// Whether this variable is a field of the hook that can be an address.
    fn is_address(&self, local: usize) -> bool {
        let local = self.current.as_ref().map(|current| &current.locals[local]);
        local.is_some_and(|local| local.span.is_empty() && local.ty == U64.into())
    }

    /// Whether this is an address in a field of the hook.
    pub(super) fn names_address(&self, written: &ast::Expression) -> bool {
        let Written::Name(name) = &written.kind else { return false };
        matches!(self.scopes.find(name), Some(Symbol::Local(local)) if self.is_address(*local))
    }

    /// Whether this is the value of such a field.
    pub(super) fn loads_address(&self, value: &Expression) -> bool {
        let ExpressionKind::Load(lvalue) = &value.kind else { return false };
        matches!(lvalue.kind, LvalueKind::Local(local) if self.is_address(local))
    }

    /// Whether a name is declared nowhere, so that only its use says what it may be.
    fn is_undeclared(&self, name: &str, span: &Span) -> bool {
        self.scopes.find(name).is_none()
            && !is_builtin(name)
            && self.unreadable_field(name).is_none()
            && self.later_declaration("variable", name, span).is_none()
    }

    fn unknown_variable<T>(&mut self, name: &str, span: &Span) -> Checked<T> {
        /// Common names for the result of a call.
        const RESULTS: [&str; 5] = ["rc", "res", "ret", "retval", "return_value"];
        let problem = Diagnostic::error(span.clone(), format!("there is no variable `{name}`"));
        let known = self.scopes.names(|_| true);
        let spec = self.current.as_ref().and_then(|current| current.hook_spec.as_ref());
        let offered: Vec<_> =
            spec.iter().flat_map(|spec| &spec.fields).map(|field| field.name.as_str()).collect();
        let is_of_headers = name.len() > 2
            && !name.starts_with('_')
            && !name.bytes().any(|byte| byte.is_ascii_lowercase());
        let below = self.later_declaration("variable", name, span);
        let problem = if let Some(below) = below {
            problem.other(below, BELOW)
        } else if let Some(call) =
            ["SYS_", "__NR_"].iter().find_map(|prefix| name.strip_prefix(prefix))
        {
            let call = call.to_lowercase();
            problem.help(format!("select the call in the handler instead: `on enter({call})`"))
        } else if let Some(own) = type_of_c_header(name) {
            problem.help(format!("write `{own}`"))
        } else if let Some(why) = self.unreadable_field(name) {
            problem.help(why)
        } else if RESULTS.contains(&name) && offered.contains(&"result") {
            problem.help("use `result`")
        } else if let Some(last) = last_argument(&offered).filter(|_| is_argument(name)) {
            problem.help(format!("the arguments of a call are `arg0` to `{last}`"))
        } else if let Some(own) = foreign::variable(name).or_else(|| foreign::constant(name)) {
            problem.help(own)
        } else if let Some(elsewhere) = self.field_elsewhere(name) {
            problem.help(elsewhere)
        } else if let Some(near) = closest_name(name, known.iter().map(String::as_str)) {
            problem.help(format!("there is `{near}`"))
        } else if is_of_headers {
            problem.help(foreign::header_constant(name))
        } else if !offered.is_empty() {
            problem.help(format!("the selected events have the fields {}", offered.join(", ")))
        } else {
            problem
        };
        self.error(problem)
    }

    fn not_called<T>(&mut self, name: &str, span: &Span) -> Checked<T> {
        if let Some(why) = self.unreadable_field(name) {
            let message = format!("the field `{name}` cannot be read");
            return self.error(Diagnostic::error(span.clone(), message).help(why));
        }
        let problem = Diagnostic::error(span.clone(), format!("`{name}` is a function"));
        let help = self.call_form(name);
        self.error(problem.help(help))
    }

    /// An lvalue, which may be constant.
    pub(super) fn lvalue(&mut self, written: &ast::Expression) -> Checked<Lvalue> {
        let span = written.span.clone();
        match &written.kind {
            Written::Name(name) => self.named_lvalue(name, &span),
            Written::Index(array, index) => {
                if let Written::Name(name) = &array.kind
                    && let Some(Symbol::Map(map)) = self.scopes.find(name)
                {
                    let map = *map;
                    let key = self.key(map, index)?;
                    let of = self.program.maps[map].value.clone();
                    return Ok(Lvalue { kind: LvalueKind::Entry(map, Box::new(key)), of, span });
                }
                if let Written::Name(name) = &array.kind
                    && self.is_undeclared(name, &array.span)
                    && self.field_elsewhere(name).is_none()
                {
                    let known = self.scopes.names(|_| true);
                    let message = format!("there is no map or array `{name}`");
                    let problem = Diagnostic::error(array.span.clone(), message);
                    return self.error(
                        match closest_name(name, known.iter().map(String::as_str)) {
                            Some(near) => problem.help(format!("did you mean `{near}`?")),
                            None => problem.help(format!(
                                "declare it before the handler: `map<u32, u64> {name}[1024];`"
                            )),
                        },
                    );
                }
                let lvalue = self.lvalue(array)?;
                let index = self.subscript(
                    index,
                    "write `a[i][j]` for an array of arrays; only a map has keys of several \
                    parts, as a struct",
                )?;
                self.number_of(&index.ty, &index.span)?;
                let Type::Array(of, length) = &lvalue.of else {
                    let message =
                        format!("this has type {}; it is not an array or a map", lvalue.of);
                    let help = self.names_address(array).then_some(foreign::AT_ADDRESS);
                    return self.error(Diagnostic::error(lvalue.span, message).help_if(help));
                };
                let (of, length) = ((**of).clone(), *length);
                let is_outside = constant(&index).is_some_and(|at| at >= length);
                if is_outside {
                    let elements = number_of(length, "element");
                    let last =
                        if length > 1 { format!(" to {}", length - 1) } else { String::new() };
                    let message = format!("the array has {elements}, numbered 0{last}");
                    return self.error(
                        Diagnostic::error(index.span, message).label("outside of the array"),
                    );
                }
                Ok(Lvalue {
                    kind: LvalueKind::Element(Box::new(lvalue), Box::new(index), length),
                    of,
                    span,
                })
            }
            Written::Member(outer, name) => {
                let lvalue = self.lvalue(outer)?;
                let Type::Struct(of) = &lvalue.of else {
                    let message = format!("this has type {}; it is not a struct", lvalue.of);
                    return self.error(Diagnostic::error(lvalue.span, message));
                };
                let Some(member) = of.member(&name.text).cloned() else {
                    let known: Vec<_> =
                        of.members.iter().map(|member| member.name.clone()).collect();
                    return self.unknown("member", name, &known);
                };
                Ok(Lvalue {
                    kind: LvalueKind::Member(Box::new(lvalue), member.offset),
                    of: member.ty,
                    span,
                })
            }
            _ => {
                let problem =
                    Diagnostic::error(span, "this is a value, not a variable or a part of one");
                self.error(problem.help("use a variable, an element, a member or a map entry"))
            }
        }
    }

    pub(super) fn key(&mut self, map: usize, written: &ast::Expression) -> Checked<Expression> {
        let key = self.subscript(
            written,
            "make a key of several parts a struct: `struct key { u32 a; u32 b; };`, and then \
            `map<struct key, u64> m[1024];`",
        )?;
        let of = self.program.maps[map].key.clone();
        self.converted(key, &of, "the key of this map")
    }

    pub(super) fn changed_lvalue(&mut self, written: &ast::Expression) -> Checked<Lvalue> {
        let lvalue = self.lvalue(written)?;
        let mut root = &lvalue;
        while let LvalueKind::Member(inner, _) | LvalueKind::Element(inner, ..) = &root.kind {
            root = inner;
        }
        let other = match root.kind {
            LvalueKind::Global(global) => {
                let global = &self.program.globals[global];
                global.is_const.then(|| global.span.clone())
            }
            LvalueKind::Local(local) => {
                let local = &self.current().locals[local];
                local.is_const.then(|| local.span.clone())
            }
            _ => None,
        };
        if let Some(other) = other {
            if other.is_empty() {
                let problem =
                    Diagnostic::error(lvalue.span, "the fields of a hook cannot be changed");
                return self.error(problem.help("use a variable of your own, with another name"));
            }
            let problem = Diagnostic::error(lvalue.span, "this is const and cannot be changed");
            return self.error(problem.other(other, "declared here"));
        }
        Ok(lvalue)
    }

    pub(super) fn number_of(&mut self, of: &Type, span: &Span) -> Checked<Integer> {
        match of.integer() {
            Some(number) => Ok(number),
            None => self.error(Diagnostic::error(
                span.clone(),
                format!("this has type {of}; it is not a number"),
            )),
        }
    }

    /// The type of a value that must be a number, beside another operand.
    fn number(&mut self, value: &Expression, other: &Expression) -> Checked<Integer> {
        let ExpressionKind::Text(bytes) = &value.kind else {
            return self.number_of(&value.ty, &value.span);
        };
        let help = number_for_text(value).or_else(|| match bytes[..] {
            _ if self.loads_address(other) => Some(
                "the other side is an address: read the text there with \
                `read_user_text(TO, ADDRESS)`, and compare it with `strcmp`"
                    .into(),
            ),
            [byte @ (b'\'' | b'\\')] => Some(format!("write a character: '\\{}'", byte as char)),
            [byte @ b' '..=b'~'] => Some(format!("write a character: '{}'", byte as char)),
            _ => Some("compare a whole text with it: `strcmp(TEXT, \"…\") == 0`".into()),
        });
        let problem = Diagnostic::error(value.span.clone(), "this string is not a number");
        self.error(problem.help_if(help))
    }

    /// A condition: a value that C compares with 0.
    pub(super) fn condition(&mut self, written: &ast::Expression) -> Checked<Expression> {
        self.lint_assignment_in_condition(written);
        let value = self.expression(written)?;
        self.number_of(&value.ty, &value.span)?;
        self.lint_signed_shift(written, &value.ty);
        Ok(value)
    }

    fn unary(
        &mut self,
        operator: Unary,
        inner: &ast::Expression,
        span: &Span,
    ) -> Checked<Expression> {
        let inner = self.expression(inner)?;
        let number = self.number_of(&inner.ty, &inner.span)?.promoted();
        if operator == Unary::Not {
            let kind = match constant(&inner) {
                Some(value) => ExpressionKind::Constant((value == 0).into()),
                None => ExpressionKind::Not(Box::new(inner)),
            };
            return Ok(expression(kind, INT, span));
        }
        let inner = convert(inner, &number.into());
        let kind = match (operator, constant(&inner)) {
            (Unary::Plus, _) => return Ok(Expression { span: span.clone(), ..inner }),
            (Unary::Minus, Some(value)) => {
                ExpressionKind::Constant(number.extend(value.wrapping_neg()))
            }
            (Unary::Minus, None) => ExpressionKind::Negate(Box::new(inner)),
            (_, Some(value)) => ExpressionKind::Constant(number.extend(!value)),
            (_, None) => ExpressionKind::Complement(Box::new(inner)),
        };
        Ok(expression(kind, number, span))
    }

    fn binary(
        &mut self,
        operator: Operator,
        left: Expression,
        right: Expression,
        span: &Span,
    ) -> Checked<Expression> {
        let are_texts = left.ty == Type::String && right.ty == Type::String;
        if are_texts && matches!(operator, Operator::Equal | Operator::NotEqual) {
            return Ok(expression(
                ExpressionKind::Binary(operator, Box::new(left), Box::new(right)),
                INT,
                span,
            ));
        }
        if matches!(operator, Operator::Equal | Operator::NotEqual) {
            self.are_compared([&left.ty, &right.ty], span)?;
        }
        let numbers = [self.number(&left, &right)?, self.number(&right, &left)?];
        let (common, right) = if matches!(operator, Operator::ShiftLeft | Operator::ShiftRight) {
            (numbers[0].promoted(), convert(right, &numbers[1].promoted().into()))
        } else {
            let common = numbers[0].common(numbers[1]);
            (common, convert(right, &common.into()))
        };
        let left = convert(left, &common.into());
        self.divides(operator, &right)?;
        self.lint_shift_width(operator, common, &right, true);
        let result = if operator.is_comparison() { INT } else { common };
        let kind = match (constant(&left), constant(&right)) {
            (Some(left), Some(right)) => {
                let value = arithmetic::binary(operator, common, left, right);
                self.lint_overflow(operator, [left, right], value, common, span);
                ExpressionKind::Constant(value)
            }
            _ => ExpressionKind::Binary(operator, Box::new(left), Box::new(right)),
        };
        Ok(expression(kind, result, span))
    }

    /// Rejects comparisons of texts and of other values that are not numbers.
    fn are_compared(&mut self, of: [&Type; 2], span: &Span) -> Checked<()> {
        let are_texts = of.iter().all(|of| **of == Type::String || of.is_bytes());
        let problem = Diagnostic::error(
            span.clone(),
            "only numbers and string literals can be compared like this",
        );
        match of {
            _ if are_texts => {
                self.error(problem.help("compare texts by their bytes: strcmp(one, other) == 0"))
            }
            [Type::Array(..) | Type::Struct(_), other] if of[0] == other => self
                .error(problem.help("compare their bytes: memcmp(one, other, sizeof(one)) == 0")),
            _ => Ok(()),
        }
    }

    fn divides(&mut self, operator: Operator, by: &Expression) -> Checked<()> {
        if matches!(operator, Operator::Divide | Operator::Remainder) && constant(by) == Some(0) {
            return self.error(Diagnostic::error(by.span.clone(), "this divides by 0"));
        }
        Ok(())
    }

    fn conditional(&mut self, parts: &[ast::Expression; 3], span: &Span) -> Checked<Expression> {
        let condition = self.condition(&parts[0])?;
        let (yes, no) = (self.expression(&parts[1])?, self.expression(&parts[2])?);
        let of = match (yes.ty.integer(), no.ty.integer()) {
            (Some(yes), Some(no)) => yes.common(no).into(),
            _ if yes.ty == no.ty && !matches!(yes.ty, Type::Array(..)) => yes.ty.clone(),
            _ if yes.ty == no.ty => {
                let problem = Diagnostic::error(span.clone(), "`?:` cannot choose an array");
                return self.error(problem.help(
                    "choose one of its elements, or copy its bytes: memcpy(to, from, size)",
                ));
            }
            _ => {
                let message = format!("one choice has type {}, the other type {}", yes.ty, no.ty);
                return self.error(Diagnostic::error(span.clone(), message));
            }
        };
        let (yes, no) = (convert(yes, &of), convert(no, &of));
        Ok(match constant(&condition) {
            Some(value) => Expression { span: span.clone(), ..if value != 0 { yes } else { no } },
            None => {
                expression(ExpressionKind::Conditional(Box::new([condition, yes, no])), of, span)
            }
        })
    }

    fn assign(
        &mut self,
        operator: Option<Operator>,
        lvalue: &ast::Expression,
        value: &ast::Expression,
        span: &Span,
    ) -> Checked<Expression> {
        let lvalue = self.changed_lvalue(lvalue)?;
        let value = self.expression(value)?;
        let of = lvalue.of.clone();
        let Some(operator) = operator else {
            let value = self.converted(value, &of, "the assigned value")?;
            return Ok(expression(
                ExpressionKind::Assign(Box::new(lvalue), Box::new(value)),
                of,
                span,
            ));
        };
        let (number, other) =
            (self.number_of(&of, &lvalue.span)?, self.number_of(&value.ty, &value.span)?);
        let is_shift = matches!(operator, Operator::ShiftLeft | Operator::ShiftRight);
        let common = if is_shift { number.promoted() } else { number.common(other) };
        let by = convert(value, &if is_shift { other.promoted() } else { common }.into());
        self.divides(operator, &by)?;
        self.lint_shift_width(operator, common, &by, false);
        let kind = ExpressionKind::Update {
            lvalue: Box::new(lvalue),
            operator,
            common,
            by: Box::new(by),
            is_old: false,
        };
        Ok(expression(kind, of, span))
    }

    fn cast(
        &mut self,
        type_name: &ast::TypeName,
        inner: &ast::Expression,
        span: &Span,
    ) -> Checked<Expression> {
        let (to, inner) = (self.resolve(type_name)?, self.expression(inner)?);
        if to == Type::Void {
            return Ok(expression(ExpressionKind::Convert(Box::new(inner)), Type::Void, span));
        }
        if !to.is_number() || !inner.ty.is_number() {
            let message = format!("a value of type {} cannot be converted to type {to}", inner.ty);
            return self.error(Diagnostic::error(span.clone(), message));
        }
        Ok(Expression { span: span.clone(), ..convert(inner, &to) })
    }

    /// Converts a value implicitly, as C does in an assignment.
    pub(super) fn converted(
        &mut self,
        value: Expression,
        to: &Type,
        what: &str,
    ) -> Checked<Expression> {
        if value.ty == *to && to.is_struct() && to.size() > MAX_LOCAL_BYTES {
            let message =
                format!("{to} has {} bytes, but `=` copies at most {MAX_LOCAL_BYTES}", to.size());
            let problem = Diagnostic::error(value.span, message);
            return self.error(problem.help("copy its bytes: memcpy(to, from, size)"));
        }
        if value.ty == *to && !matches!(to, Type::Array(..) | Type::Void) {
            return Ok(value);
        }
        if !value.ty.is_number() || !to.is_number() {
            return self.error(match to {
                Type::Array(..) => {
                    let help = match value.ty {
                        _ if self.loads_address(&value) => foreign::AT_ADDRESS,
                        Type::String => {
                            "initialize it in its declaration: `char name[16] = \
                            \"text\";`"
                        }
                        _ if value.ty.is_number() => {
                            "set its elements one by one, or all its bytes: memset(name, 0, \
                            sizeof(name))"
                        }
                        _ => "copy its bytes: memcpy(to, from, size)",
                    };
                    Diagnostic::error(value.span, "arrays cannot be assigned").help(help)
                }
                _ => {
                    let message = format!("{what} must have type {to}, not {}", value.ty);
                    let help = match to {
                        Type::Struct(_) if value.ty.is_bytes() || value.ty == Type::String => {
                            Some(TEXT_AS_KEY.into())
                        }
                        _ => number_for_text(&value).filter(|_| to.is_number()),
                    };
                    Diagnostic::error(value.span, message).help_if(help)
                }
            });
        }
        if let (Some(constant), Some(from)) = (constant(&value), value.ty.integer()) {
            self.lint_conversion(constant, from, to, &value.span);
        }
        Ok(convert(value, to))
    }
}
