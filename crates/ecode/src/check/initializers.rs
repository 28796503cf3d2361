//! Checks initializers. Those of global variables become bytes, and those of local variables become
//! assignments.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::slice;

use super::builtins::filling_form;
use super::{Checked, Checker};
use crate::ast::{
    self, Designator, Expression as Written, ExpressionKind as WrittenKind, Initializer,
};
use crate::diagnostic::{Diagnostic, Span, number_of};
use crate::foreign;
use crate::typed::{Expression, ExpressionKind, Lvalue, LvalueKind};
use crate::types::{INT, Type};

/// One value of an initializer, with its position in the variable and its type.
pub struct InitializerPart<'a> {
    steps: Vec<AccessStep>,
    offset: u64,
    ty: Type,
    value: InitializerValue<'a>,
}

enum InitializerValue<'a> {
    Expression(&'a Written),
    /// A character of a string.
    Byte(u8, Span),
}

#[derive(Clone)]
enum AccessStep {
    Member(u64, Type),
    Element(u64, u64, Type),
}

/// The values of the initializer of one variable.
#[derive(Default)]
struct InitializerParts<'a> {
    /// The values by offset and size, each with its number in the order of the text.
    all: BTreeMap<(u64, u64), (usize, InitializerPart<'a>)>,
    next: usize,
}

impl<'a> InitializerParts<'a> {
    fn push(&mut self, part: InitializerPart<'a>) {
        self.all.insert((part.offset, part.ty.size()), (self.next, part));
        self.next += 1;
    }

    /// Removes values in a range: as in C, a later value for the whole range overrides them.
    fn overwrite(&mut self, from: u64, size: u64) {
        let to = from + size;
        let within = self.all.range((from, 0)..(to, 0)).map(|(key, _)| *key);
        let within: Vec<_> = within.filter(|(at, size)| at + size <= to).collect();
        within.iter().for_each(|key| drop(self.all.remove(key)));
    }

    fn in_order(self) -> Vec<InitializerPart<'a>> {
        let mut all: Vec<_> = self.all.into_values().collect();
        all.sort_by_key(|(number, _)| *number);
        all.into_iter().map(|(_, part)| part).collect()
    }
}

fn text(initializer: &Initializer) -> Option<(&[u8], &Span)> {
    match initializer {
        Initializer::One(Written { kind: WrittenKind::Text(bytes), span, .. }) => {
            Some((bytes, span))
        }
        Initializer::List(list, _) => match &list[..] {
            [(None, one @ Initializer::One(_))] => text(one),
            _ => None,
        },
        _ => None,
    }
}

/// Whether this is `{ 0 }`, which in C makes all of a struct or an array 0, whatever its first
/// member is.
fn is_all_zero(list: &[(Option<Designator>, Initializer)]) -> bool {
    matches!(
        list,
        [(None, Initializer::One(Written { kind: WrittenKind::Number { value: 0, .. }, .. }))]
    )
}

impl Checker<'_> {
    /// How to write an initializer of an array in place of one that is not a list.
    fn list_form(&self, initializer: &Initializer) -> &'static str {
        let filling = match initializer {
            Initializer::One(written) if self.names_address(written) => Some(foreign::AT_ADDRESS),
            Initializer::One(written) => filling_form(written),
            _ => None,
        };
        filling.unwrap_or("write a list: { 1, 2, 3 }")
    }

    pub(super) fn length_by_initializer(
        &mut self,
        of: &Type,
        declarator: &ast::Declarator,
    ) -> Checked<u64> {
        let initializer = declarator.initializer.as_ref().expect("the caller has seen it");
        if let Some((bytes, _)) = text(initializer)
            && Type::Array(Rc::new(of.clone()), 1).is_bytes()
        {
            return Ok(bytes.len() as u64 + 1);
        }
        let Initializer::List(list, span) = initializer else {
            let problem =
                Diagnostic::error(initializer.span(), "this does not give the array a length");
            return self.error(match text(initializer) {
                Some(_) => problem.help("a string can initialize only arrays of `char` and `u8`"),
                None => problem.help(self.list_form(initializer)),
            });
        };
        let (mut next, mut length) = (0_u64, 0);
        for (designator, _) in list {
            if let Some(Designator::Index(index)) = designator {
                next = self.index(index)?;
            }
            next = next.saturating_add(1);
            length = length.max(next);
        }
        if length == 0 {
            let problem =
                Diagnostic::error(span.clone(), "an empty list does not give the array a length");
            return self.error(problem);
        }
        Ok(length)
    }

    fn index(&mut self, written: &Written) -> Checked<u64> {
        let (value, number) = self.constant(written, "an index")?;
        if number.is_signed && (value as i64) < 0 {
            let message =
                format!("elements are numbered from 0, but this one has number {}", value as i64);
            return self.error(Diagnostic::error(written.span.clone(), message));
        }
        Ok(value)
    }

    /// All values of the initializer of a variable of this type.
    pub(super) fn parts<'a>(
        &mut self,
        of: &Type,
        initializer: &'a Initializer,
    ) -> Checked<Vec<InitializerPart<'a>>> {
        let mut parts = InitializerParts::default();
        self.part(of, initializer, Vec::new(), 0, &mut parts)?;
        Ok(parts.in_order())
    }

    fn part<'a>(
        &mut self,
        of: &Type,
        initializer: &'a Initializer,
        steps: Vec<AccessStep>,
        offset: u64,
        parts: &mut InitializerParts<'a>,
    ) -> Checked<()> {
        if !matches!(initializer, Initializer::Within(..)) {
            parts.overwrite(offset, of.size());
        }
        let list = match initializer {
            Initializer::One(expression) => Err(expression),
            Initializer::List(list, _)
                if matches!(of, Type::Array(..) | Type::Struct(_)) && is_all_zero(list) =>
            {
                Ok(&[][..])
            }
            Initializer::List(list, _) => Ok(&list[..]),
            Initializer::Within(one, _) => Ok(slice::from_ref(&**one)),
        };
        match (of, list) {
            (Type::Array(element, length), _) if of.is_bytes() && text(initializer).is_some() => {
                let (bytes, span) = text(initializer).expect("it is one");
                // As in C, the NUL is left out if it does not fit.
                if bytes.len() as u64 > *length {
                    let message = format!(
                        "this string has {} bytes, but the array only {length}",
                        bytes.len()
                    );
                    return self.error(Diagnostic::error(span.clone(), message));
                }
                for (at, byte) in bytes.iter().enumerate() {
                    let mut steps = steps.clone();
                    steps.push(AccessStep::Element(at as u64, *length, (**element).clone()));
                    let value = InitializerValue::Byte(*byte, span.clone());
                    parts.push(InitializerPart {
                        steps,
                        offset: offset + at as u64,
                        ty: (**element).clone(),
                        value,
                    });
                }
            }
            (Type::Array(element, length), Ok(list)) => {
                let mut next = 0;
                for (designator, value) in list {
                    match designator {
                        None => {}
                        Some(Designator::Index(index)) => next = self.index(index)?,
                        Some(Designator::Member(name)) => {
                            return self.error(Diagnostic::error(
                                name.span.clone(),
                                "an array has no members",
                            ));
                        }
                    }
                    if next >= *length {
                        let message = format!(
                            "the array has {}, numbered from 0, but this one has number {next}",
                            number_of(*length, "element")
                        );
                        return self.error(Diagnostic::error(value.span(), message));
                    }
                    let mut steps = steps.clone();
                    steps.push(AccessStep::Element(next, *length, (**element).clone()));
                    self.part(element, value, steps, offset + next * element.size(), parts)?;
                    next += 1;
                }
            }
            (Type::Struct(of), Ok(list)) => {
                let mut next = 0;
                for (designator, value) in list {
                    match designator {
                        None => {}
                        Some(Designator::Member(name)) => {
                            let found =
                                of.members.iter().position(|member| member.name == name.text);
                            let Some(found) = found else {
                                let known: Vec<_> =
                                    of.members.iter().map(|member| member.name.clone()).collect();
                                return self.unknown("member", name, &known);
                            };
                            next = found;
                        }
                        Some(Designator::Index(index)) => {
                            return self.error(Diagnostic::error(
                                index.span.clone(),
                                "a struct has no elements",
                            ));
                        }
                    }
                    let Some(member) = of.members.get(next) else {
                        let members = number_of(of.members.len() as u64, "member");
                        let message = format!("struct {} has only {members}", of.name);
                        return self.error(Diagnostic::error(value.span(), message));
                    };
                    let mut steps = steps.clone();
                    steps.push(AccessStep::Member(member.offset, member.ty.clone()));
                    self.part(&member.ty, value, steps, offset + member.offset, parts)?;
                    next += 1;
                }
            }
            (Type::Array(..), Err(_)) => {
                let problem = Diagnostic::error(
                    initializer.span(),
                    format!("this is not a value of type {of}"),
                );
                return self.error(problem.help(self.list_form(initializer)));
            }
            (_, Ok(list)) => match list {
                [(None, value)] => self.part(of, value, steps, offset, parts)?,
                _ => {
                    let message = format!("a value of type {of} cannot be a list");
                    return self.error(Diagnostic::error(initializer.span(), message));
                }
            },
            (_, Err(expression)) => {
                parts.push(InitializerPart {
                    steps,
                    offset,
                    ty: of.clone(),
                    value: InitializerValue::Expression(expression),
                });
            }
        }
        Ok(())
    }

    fn part_value(&mut self, part: &InitializerPart<'_>) -> Checked<Expression> {
        match &part.value {
            InitializerValue::Byte(byte, span) => {
                let number = part.ty.integer().unwrap_or(INT);
                let kind = ExpressionKind::Constant(number.extend((*byte).into()));
                Ok(Expression { kind, ty: part.ty.clone(), span: span.clone() })
            }
            InitializerValue::Expression(expression) => {
                let value = self.expression(expression)?;
                self.converted(value, &part.ty, "the initializer")
            }
        }
    }

    /// The first bytes of a global variable, up to the last one that is not 0.
    pub(super) fn initial_bytes(
        &mut self,
        of: &Type,
        initializer: &Initializer,
    ) -> Checked<Vec<u8>> {
        let mut bytes = Vec::new();
        for part in self.parts(of, initializer)? {
            let value = self.part_value(&part)?;
            let ExpressionKind::Constant(number) = value.kind else {
                let problem = Diagnostic::error(
                    value.span,
                    "the initial value of a global or static variable must be constant",
                );
                return self.error(problem.help("assign it in a handler"));
            };
            let (from, size) = (part.offset as usize, part.ty.size() as usize);
            if bytes.len() < from + size {
                bytes.resize(from + size, 0);
            }
            bytes[from..from + size].copy_from_slice(&number.to_le_bytes()[..size]);
        }
        bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        Ok(bytes)
    }

    /// The assignments that initialize a local variable. Before them, all its bytes are 0.
    pub(super) fn assignments(
        &mut self,
        local: usize,
        of: &Type,
        initializer: &Initializer,
    ) -> Checked<Vec<Expression>> {
        let parts = self.parts(of, initializer)?;
        let mut assignments = Vec::new();
        for part in &parts {
            let value = self.part_value(part)?;
            let span = value.span.clone();
            let mut lvalue =
                Lvalue { kind: LvalueKind::Local(local), of: of.clone(), span: span.clone() };
            for step in &part.steps {
                let kind = match step {
                    AccessStep::Member(offset, _) => LvalueKind::Member(Box::new(lvalue), *offset),
                    AccessStep::Element(at, length, _) => {
                        let kind = ExpressionKind::Constant(*at);
                        let index = Expression { kind, ty: INT.into(), span: span.clone() };
                        LvalueKind::Element(Box::new(lvalue), Box::new(index), *length)
                    }
                };
                let (AccessStep::Member(_, of) | AccessStep::Element(.., of)) = step;
                lvalue = Lvalue { kind, of: of.clone(), span: span.clone() };
            }
            let of = lvalue.of.clone();
            assignments.push(Expression {
                kind: ExpressionKind::Assign(Box::new(lvalue), Box::new(value)),
                ty: of,
                span,
            });
        }
        Ok(assignments)
    }
}
