//! Initializers: of global variables as bytes, of local ones as assignments.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::slice;

use super::{Checked, Checker};
use crate::ast::{self, Designator, Expression as Written, ExpressionKind as WrittenKind, Initializer};
use crate::diagnostic::{Diagnostic, Span};
use crate::program::{Expression, ExpressionKind, Place, PlaceKind};
use crate::types::{INT, Type};

/// One of the values of an initializer: where in the variable, of which type, what.
pub struct Part<'a> {
    steps: Vec<Step>,
    offset: u64,
    of: Type,
    value: Value<'a>,
}

enum Value<'a> {
    Expression(&'a Written),
    /// A character of a text.
    Byte(u8, Span),
}

#[derive(Clone)]
enum Step {
    Member(u64, Type),
    Element(u64, u64, Type),
}

/// Of one variable.
#[derive(Default)]
struct Parts<'a> {
    /// By where they are, and how large; with their numbers, as they are written.
    all: BTreeMap<(u64, u64), (usize, Part<'a>)>,
    next: usize,
}

impl<'a> Parts<'a> {
    fn push(&mut self, part: Part<'a>) {
        self.all.insert((part.offset, part.of.size()), (self.next, part));
        self.next += 1;
    }

    /// As in C, what is said later of all of something is what counts.
    fn forget(&mut self, from: u64, size: u64) {
        let to = from + size;
        let within = self.all.range((from, 0)..(to, 0)).map(|(place, _)| *place);
        let within: Vec<_> = within.filter(|(at, size)| at + size <= to).collect();
        within.iter().for_each(|place| drop(self.all.remove(place)));
    }

    fn in_order(self) -> Vec<Part<'a>> {
        let mut all: Vec<_> = self.all.into_values().collect();
        all.sort_by_key(|(number, _)| *number);
        all.into_iter().map(|(_, part)| part).collect()
    }
}

fn text(initializer: &Initializer) -> Option<(&[u8], &Span)> {
    match initializer {
        Initializer::One(Written { kind: WrittenKind::Text(bytes), span, .. }) => Some((bytes, span)),
        Initializer::List(list, _) => match &list[..] {
            [(None, one @ Initializer::One(_))] => text(one),
            _ => None,
        },
        _ => None,
    }
}

impl Checker<'_> {
    pub(super) fn length_by_initializer(&mut self, of: &Type, declarator: &ast::Declarator) -> Checked<u64> {
        let initializer = declarator.initializer.as_ref().expect("the caller has seen it");
        if let Some((bytes, _)) = text(initializer)
            && Type::Array(Rc::new(of.clone()), 1).is_bytes()
        {
            return Ok(bytes.len() as u64 + 1);
        }
        let Initializer::List(list, span) = initializer else {
            let problem = Diagnostic::error(initializer.span(), "this gives the array no length");
            return self.fault(match text(initializer) {
                Some(_) => problem.help("text fills arrays of `char` and `u8` only"),
                None => problem.help("write a list: { 1, 2, 3 }"),
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
            let problem = Diagnostic::error(span.clone(), "an empty list gives the array no length");
            return self.fault(problem);
        }
        Ok(length)
    }

    fn index(&mut self, written: &Written) -> Checked<u64> {
        let (value, number) = self.constant(written, "an index")?;
        if number.is_signed && (value as i64) < 0 {
            let message = format!("elements count from 0, and this would be number {}", value as i64);
            return self.fault(Diagnostic::error(written.span.clone(), message));
        }
        Ok(value)
    }

    /// All values of the initializer of a variable of such a type.
    pub(super) fn parts<'a>(&mut self, of: &Type, initializer: &'a Initializer) -> Checked<Vec<Part<'a>>> {
        let mut parts = Parts::default();
        self.part(of, initializer, Vec::new(), 0, &mut parts)?;
        Ok(parts.in_order())
    }

    fn part<'a>(
        &mut self,
        of: &Type,
        initializer: &'a Initializer,
        steps: Vec<Step>,
        offset: u64,
        parts: &mut Parts<'a>,
    ) -> Checked<()> {
        if !matches!(initializer, Initializer::Within(..)) {
            parts.forget(offset, of.size());
        }
        let list = match initializer {
            Initializer::One(expression) => Err(expression),
            Initializer::List(list, _) => Ok(&list[..]),
            Initializer::Within(one, _) => Ok(slice::from_ref(&**one)),
        };
        match (of, list) {
            (Type::Array(element, length), _) if of.is_bytes() && text(initializer).is_some() => {
                let (bytes, span) = text(initializer).expect("it is one");
                // As in C, the NUL may be left out where it does not fit.
                if bytes.len() as u64 > *length {
                    let message = format!("this string has {} bytes, and the array {length}", bytes.len());
                    return self.fault(Diagnostic::error(span.clone(), message));
                }
                for (at, byte) in bytes.iter().enumerate() {
                    let mut steps = steps.clone();
                    steps.push(Step::Element(at as u64, *length, (**element).clone()));
                    let value = Value::Byte(*byte, span.clone());
                    parts.push(Part { steps, offset: offset + at as u64, of: (**element).clone(), value });
                }
            }
            (Type::Array(element, length), Ok(list)) => {
                let mut next = 0;
                for (designator, value) in list {
                    match designator {
                        None => {}
                        Some(Designator::Index(index)) => next = self.index(index)?,
                        Some(Designator::Member(name)) => {
                            return self
                                .fault(Diagnostic::error(name.span.clone(), "an array has no members"));
                        }
                    }
                    if next >= *length {
                        let message = format!(
                            "the array has {length} elements, and this would be number {next} from 0"
                        );
                        return self.fault(Diagnostic::error(value.span(), message));
                    }
                    let mut steps = steps.clone();
                    steps.push(Step::Element(next, *length, (**element).clone()));
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
                            let found = of.members.iter().position(|member| member.name == name.text);
                            let Some(found) = found else {
                                let known: Vec<_> =
                                    of.members.iter().map(|member| member.name.clone()).collect();
                                return self.unknown("member", name, &known);
                            };
                            next = found;
                        }
                        Some(Designator::Index(index)) => {
                            return self
                                .fault(Diagnostic::error(index.span.clone(), "a struct has no elements"));
                        }
                    }
                    let Some(member) = of.members.get(next) else {
                        let message = format!("struct {} has {} members only", of.name, of.members.len());
                        return self.fault(Diagnostic::error(value.span(), message));
                    };
                    let mut steps = steps.clone();
                    steps.push(Step::Member(member.offset, member.of.clone()));
                    self.part(&member.of, value, steps, offset + member.offset, parts)?;
                    next += 1;
                }
            }
            (Type::Array(..), Err(_)) => {
                let problem = Diagnostic::error(initializer.span(), format!("this is no value of type {of}"));
                return self.fault(problem.help("write a list: { 1, 2, 3 }"));
            }
            (_, Ok(list)) => match list {
                [(None, value)] => self.part(of, value, steps, offset, parts)?,
                _ => {
                    let message = format!("a value of type {of} is one, and no list");
                    return self.fault(Diagnostic::error(initializer.span(), message));
                }
            },
            (_, Err(expression)) => {
                parts.push(Part { steps, offset, of: of.clone(), value: Value::Expression(expression) });
            }
        }
        Ok(())
    }

    fn part_value(&mut self, part: &Part<'_>) -> Checked<Expression> {
        match &part.value {
            Value::Byte(byte, span) => {
                let number = part.of.integer().unwrap_or(INT);
                let kind = ExpressionKind::Constant(number.extend((*byte).into()));
                Ok(Expression { kind, of: part.of.clone(), span: span.clone() })
            }
            Value::Expression(expression) => {
                let value = self.expression(expression)?;
                self.converted(value, &part.of, "an initializer")
            }
        }
    }

    /// The first bytes of a global variable, up to the last one that is not 0.
    pub(super) fn initial_bytes(&mut self, of: &Type, initializer: &Initializer) -> Checked<Vec<u8>> {
        let mut bytes = Vec::new();
        for part in self.parts(of, initializer)? {
            let value = self.part_value(&part)?;
            let ExpressionKind::Constant(number) = value.kind else {
                let problem = Diagnostic::error(
                    value.span,
                    "the value of a variable that is there from the beginning is to be constant",
                );
                return self.fault(problem.help("assign it in a handler"));
            };
            let (from, size) = (part.offset as usize, part.of.size() as usize);
            if bytes.len() < from + size {
                bytes.resize(from + size, 0);
            }
            bytes[from..from + size].copy_from_slice(&number.to_le_bytes()[..size]);
        }
        bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        Ok(bytes)
    }

    /// What gives a local variable its values, which are all 0 before.
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
            let mut place = Place { kind: PlaceKind::Local(local), of: of.clone(), span: span.clone() };
            for step in &part.steps {
                let kind = match step {
                    Step::Member(offset, _) => PlaceKind::Member(Box::new(place), *offset),
                    Step::Element(at, length, _) => {
                        let kind = ExpressionKind::Constant(*at);
                        let index = Expression { kind, of: INT.into(), span: span.clone() };
                        PlaceKind::Element(Box::new(place), Box::new(index), *length)
                    }
                };
                let (Step::Member(_, of) | Step::Element(.., of)) = step;
                place = Place { kind, of: of.clone(), span: span.clone() };
            }
            let of = place.of.clone();
            assignments.push(Expression {
                kind: ExpressionKind::Assign(Box::new(place), Box::new(value)),
                of,
                span,
            });
        }
        Ok(assignments)
    }
}
