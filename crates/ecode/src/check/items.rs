//! What stands outside of functions: structs, enums, maps and global variables; types by their names.

use std::collections::HashSet;
use std::rc::Rc;

use super::builtins::name_of;
use super::scopes::Named;
use super::{Checked, Checker, Faulty};
use crate::ast::{self, BaseType, Item};
use crate::diagnostic::{Diagnostic, Span};
use crate::program::{Global, Map};
use crate::types::{INT, Integer, Struct, Type};

/// Bytes of all variables: what one map of the kernel holds without more ado.
const MOST_BYTES: u64 = 64 << 20;
/// Of a local array or struct: a function of the kernel's has 512 bytes for all that it keeps (MAX_BPF_STACK, include/linux/filter.h).
pub const MOST_LOCAL_BYTES: u64 = 256;
/// Arrays and structs within each other.
const MOST_TYPE_DEPTH: usize = 16;
/// Of a struct: they are looked for one after the other.
const MOST_MEMBERS: usize = 1024;
const MOST_ENTRIES: u64 = 1 << 24;
/// MAX_USED_MAPS, include/linux/bpf_verifier.h, without those that the compiler needs.
const MOST_MAPS: usize = 64 - 8;
/// Keys and values of maps go over a function's stack.
const MOST_KEY_BYTES: u64 = 64;
const MOST_VALUE_BYTES: u64 = 256;

impl Checker<'_> {
    pub(super) fn item(&mut self, item: &ast::Item) -> Checked<()> {
        match item {
            Item::Struct { name, members } => self.structure(name, members).inspect_err(|_| {
                self.faulty_types.insert(name.text.clone());
            }),
            Item::Enum { name, members } => self.enumeration(name.as_ref(), members).inspect_err(|_| {
                self.faulty_types.extend(name.as_ref().map(|name| name.text.clone()));
                members.iter().for_each(|(member, _)| self.declare_faulty(member));
            }),
            Item::Map { name, key, value, length } => {
                self.map(name, key, value, length).inspect_err(|_| self.declare_faulty(name))
            }
            Item::Variables(declaration) => {
                self.globals(declaration, None);
                Ok(())
            }
            Item::Function(function) => {
                self.function(function).inspect_err(|_| self.declare_faulty(&function.name))
            }
            Item::Handler(handler) => self.handler(handler),
        }
    }

    pub(super) fn resolve(&mut self, name: &ast::TypeName) -> Checked<Type> {
        Ok(match &name.base {
            BaseType::Void => Type::Void,
            BaseType::Bool => Type::Bool,
            BaseType::String => Type::String,
            BaseType::Integer { bits, is_signed } => {
                Type::Integer(Integer { bits: *bits, is_signed: *is_signed })
            }
            BaseType::Struct(name) | BaseType::Enum(name) if self.faulty_types.contains(&name.text) => {
                return Err(Faulty);
            }
            BaseType::Struct(name) => match self.structs.get(&name.text) {
                Some((of, _)) => Type::Struct(of.clone()),
                None => {
                    let known: Vec<_> = self.structs.keys().cloned().collect();
                    return self.unknown("struct", name, &known);
                }
            },
            BaseType::Enum(name) if self.enums.contains_key(&name.text) => INT.into(),
            BaseType::Enum(name) => {
                let known: Vec<_> = self.enums.keys().cloned().collect();
                return self.unknown("enum", name, &known);
            }
        })
    }

    /// A type that there can be something of.
    pub(super) fn resolve_value(&mut self, name: &ast::TypeName, what: &str) -> Checked<Type> {
        let of = self.resolve(name)?;
        if of == Type::Void {
            return self.fault(Diagnostic::error(name.span.clone(), format!("{what} cannot be void")));
        }
        Ok(of)
    }

    /// With the lengths behind the name, of which the first may be left to the initializer.
    pub(super) fn declared_type(&mut self, base: &Type, declarator: &ast::Declarator) -> Checked<Type> {
        if *base == Type::String {
            let problem = Diagnostic::error(declarator.name.span.clone(), "a variable cannot be a string");
            return self.fault(problem.help("use an array: `char name[16] = \"text\";`"));
        }
        if declarator.lengths.len() + base.depth() >= MOST_TYPE_DEPTH {
            let message =
                format!("more than {MOST_TYPE_DEPTH} arrays and structs would be within each other");
            return self.fault(Diagnostic::error(declarator.name.span.clone(), message));
        }
        let mut of = base.clone();
        for (place, length) in declarator.lengths.iter().enumerate().rev() {
            let length = match length {
                Some(length) => self.length(length, "an array")?,
                None if place == 0 && declarator.initializer.is_some() => {
                    self.length_by_initializer(&of, declarator)?
                }
                None => {
                    let problem =
                        Diagnostic::error(declarator.name.span.clone(), "this array's length is not known");
                    return self.fault(problem.help("write it between [ and ], or an initializer after it"));
                }
            };
            of = Type::Array(Rc::new(of), length);
        }
        if of.size() > MOST_BYTES {
            // As far as one counts here.
            let more = if of.size() == u64::MAX { "more than " } else { "" };
            let problem = Diagnostic::error(
                declarator.name.span.clone(),
                format!(
                    "`{}` would have {more}{} bytes, and {MOST_BYTES} are the most",
                    declarator.name.text,
                    of.size()
                ),
            );
            return self.fault(problem);
        }
        Ok(of)
    }

    pub(super) fn length(&mut self, expression: &ast::Expression, of: &str) -> Checked<u64> {
        let (value, number) = self.constant(expression, "a length")?;
        if value == 0 || number.is_signed && (value as i64) < 0 {
            let told = if number.is_signed { (value as i64).to_string() } else { value.to_string() };
            let problem =
                Diagnostic::error(expression.span.clone(), format!("{of} cannot have {told} elements"));
            return self.fault(problem);
        }
        Ok(value)
    }

    fn structure(&mut self, name: &ast::Name, declared: &[ast::Declaration]) -> Checked<()> {
        let mut members: Vec<(String, Type)> = Vec::new();
        let written = declared.iter().flat_map(|declaration| &declaration.declarators);
        if let Some(beyond) = written.clone().nth(MOST_MEMBERS) {
            let count = written.count();
            let message = format!("a struct has {MOST_MEMBERS} members at most, and this has {count}");
            return self.fault(Diagnostic::error(beyond.name.span.clone(), message));
        }
        for declaration in declared {
            let base = self.resolve_value(&declaration.type_name, "a member")?;
            for declarator in &declaration.declarators {
                if let Some(initializer) = &declarator.initializer {
                    let problem = Diagnostic::error(initializer.span(), "a member has no value of its own");
                    return self.fault(problem.help("write it where a variable of this struct is declared"));
                }
                let of = self.declared_type(&base, declarator)?;
                if members.iter().any(|(known, _)| *known == declarator.name.text) {
                    let message = format!("the struct has a `{}` already", declarator.name.text);
                    return self.fault(Diagnostic::error(declarator.name.span.clone(), message));
                }
                members.push((declarator.name.text.clone(), of));
            }
        }
        if members.is_empty() {
            return self.fault(Diagnostic::error(name.span.clone(), "a struct has one member at least"));
        }
        if let Some((_, other)) = self.structs.get(&name.text) {
            let other = other.clone();
            let problem =
                Diagnostic::error(name.span.clone(), format!("there is a struct `{}` already", name.text));
            return self.fault(problem.other(other, "declared here"));
        }
        let of = Struct::new(name.text.clone(), members);
        if of.size > MOST_BYTES {
            let message = format!("this struct would have {} bytes, and {MOST_BYTES} are the most", of.size);
            return self.fault(Diagnostic::error(name.span.clone(), message));
        }
        self.structs.insert(name.text.clone(), (Rc::new(of), name.span.clone()));
        Ok(())
    }

    fn enumeration(
        &mut self,
        name: Option<&ast::Name>,
        members: &[(ast::Name, Option<ast::Expression>)],
    ) -> Checked<()> {
        let mut next = 0_i64;
        for (member, value) in members {
            if let Some(value) = value {
                next = self.constant(value, "the value of a constant")?.0 as i64;
            }
            if !INT.holds(next as u64, true) {
                let message = format!("`{}` would be {next}, which is no int", member.text);
                return self.fault(Diagnostic::error(member.span.clone(), message));
            }
            self.declare(member, Named::Constant(next as u64, INT.into()))?;
            next += 1;
        }
        if let Some(name) = name
            && let Some(other) = self.enums.insert(name.text.clone(), name.span.clone())
        {
            let problem =
                Diagnostic::error(name.span.clone(), format!("there is an enum `{}` already", name.text));
            return self.fault(problem.other(other, "declared here"));
        }
        Ok(())
    }

    fn map(
        &mut self,
        name: &ast::Name,
        key: &ast::TypeName,
        value: &ast::TypeName,
        length: &ast::Expression,
    ) -> Checked<()> {
        let mut side = |type_name: &ast::TypeName, what: &str, most: u64| {
            let of = self.resolve_value(type_name, what)?;
            if of == Type::String {
                let problem = Diagnostic::error(type_name.span.clone(), format!("{what} cannot be a string"));
                return self
                    .fault(problem.help("use a struct with an array: `struct name { char text[16]; };`"));
            }
            if of.size() > most {
                let message = format!("{what} cannot have {} bytes, but {most} at most", of.size());
                return self.fault(Diagnostic::error(type_name.span.clone(), message));
            }
            Ok(of)
        };
        let key = side(key, "a key", MOST_KEY_BYTES)?;
        let value = side(value, "a value of a map", MOST_VALUE_BYTES)?;
        let entries = self.length(length, "a map")?;
        if entries > MOST_ENTRIES {
            let message = format!("a map has {MOST_ENTRIES} entries at most, and not {entries}");
            return self.fault(Diagnostic::error(length.span.clone(), message));
        }
        if self.program.maps.len() == MOST_MAPS {
            let problem =
                Diagnostic::error(name.span.clone(), format!("a plugin has {MOST_MAPS} maps at most"));
            return self.fault(
                problem.help("the kernel gives a program no more: make one of several, with a struct as key"),
            );
        }
        self.declare(name, Named::Map(self.program.maps.len()))?;
        let (name, span) = (name.text.clone(), name.span.clone());
        self.program.maps.push(Map { name, key, value, length: entries as u32, span });
        Ok(())
    }

    /// Global variables, or the static ones of a function.
    pub(super) fn globals(&mut self, declaration: &ast::Declaration, within: Option<&str>) {
        let base = self.resolve_value(&declaration.type_name, "a variable").ok();
        for declarator in &declaration.declarators {
            let made = base.as_ref().map(|base| self.global(base, declaration.is_const, declarator, within));
            if !matches!(made, Some(Ok(()))) {
                self.declare_faulty(&declarator.name);
            }
        }
    }

    fn global(
        &mut self,
        base: &Type,
        is_const: bool,
        declarator: &ast::Declarator,
        within: Option<&str>,
    ) -> Checked<()> {
        let of = self.declared_type(base, declarator)?;
        let initial = match &declarator.initializer {
            Some(initializer) => self.initial_bytes(&of, initializer)?,
            None => Vec::new(),
        };
        let name = match within {
            Some(function) => format!("{function}.{}", declarator.name.text),
            None => declarator.name.text.clone(),
        };
        if let Some(named) = self.named_constant(is_const, &of, &initial) {
            self.declare(&declarator.name, named)?;
            self.program.constants.push(name);
            return Ok(());
        }
        self.globals_fit(&of, &declarator.name);
        self.declare(&declarator.name, Named::Global(self.program.globals.len()))?;
        let span = declarator.name.span.clone();
        self.program.globals.push(Global { name, of, is_const, initial, span });
        Ok(())
    }

    /// A number that never changes needs no memory.
    fn named_constant(&self, is_const: bool, of: &Type, initial: &[u8]) -> Option<Named> {
        let number = of.integer().filter(|_| is_const)?;
        let mut bytes = [0; 8];
        bytes[..initial.len()].copy_from_slice(initial);
        Some(Named::Constant(number.extend(u64::from_le_bytes(bytes)), of.clone()))
    }

    /// Told of once, by the first that has no room beside those before.
    fn globals_fit(&mut self, of: &Type, name: &ast::Name) {
        let before = self.variable_bytes;
        // As they lie (`Layout`).
        self.variable_bytes += of.size().next_multiple_of(8);
        if before <= MOST_BYTES && self.variable_bytes > MOST_BYTES {
            let message = format!(
                "with `{}`, variables would have {} bytes together, and {MOST_BYTES} are the most",
                name.text, self.variable_bytes
            );
            self.problems.push(Diagnostic::error(name.span.clone(), message));
        }
    }

    pub(super) fn local_fits(&mut self, of: &Type, name: &ast::Name) -> Checked<()> {
        if of.size() <= MOST_LOCAL_BYTES {
            return Ok(());
        }
        let message = format!(
            "`{}` would have {} bytes, and a local variable has {MOST_LOCAL_BYTES} at most",
            name.text,
            of.size()
        );
        let problem = Diagnostic::error(name.span.clone(), message).label("too large for the kernel's stack");
        self.fault(
            problem.help(
                "write `static` before it, or declare it outside of the function: there is one of it then",
            ),
        )
    }

    /// What is known only at the end.
    pub(super) fn whole(&mut self) {
        for (function, span) in std::mem::take(&mut self.declared) {
            let name = &self.program.functions[function].name;
            self.problems.push(Diagnostic::error(span, format!("`{name}` is declared, but has no body")));
        }
        self.no_recursion();
        for handler in 0..self.program.handlers.len() {
            self.has_all(handler);
        }
    }

    /// Whether all that a handler and what it calls uses is there on its hook.
    fn has_all(&mut self, handler: usize) {
        let handler = &self.program.handlers[handler];
        let Some((lacks, why)) = handler.offer.lacks else { return };
        let (mut found, mut next) = (HashSet::from([handler.function]), vec![handler.function]);
        while let Some(function) = next.pop() {
            for (builtin, span) in self.uses[function].iter().filter(|(builtin, _)| lacks.contains(builtin)) {
                let message = format!("`{}` is not there in `on {}`", name_of(*builtin), handler.hook);
                self.problems.push(Diagnostic::error(span.clone(), message).help(why));
            }
            for (callee, _) in &self.calls[function] {
                if found.insert(*callee) {
                    next.push(*callee);
                }
            }
        }
    }

    fn no_recursion(&mut self) {
        let count = self.program.functions.len();
        let mut states = vec![0_u8; count];
        for function in 0..count {
            if self.walk(function, &mut states).is_err() {
                return;
            }
        }
    }

    fn walk(&mut self, from: usize, states: &mut [u8]) -> Checked<()> {
        const ON_THE_WAY: u8 = 1;
        const DONE: u8 = 2;
        // Functions may call each other in long chains, so this does not call itself.
        let mut way = vec![(from, 0)];
        while let Some((function, next)) = way.last_mut() {
            let (function, at) = (*function, *next);
            *next += 1;
            if at == 0 {
                if states[function] == DONE {
                    way.pop();
                    continue;
                }
                states[function] = ON_THE_WAY;
            }
            let called = self.calls[function].get(at).cloned();
            match called {
                None => {
                    states[function] = DONE;
                    way.pop();
                }
                Some((callee, span)) if states[callee] == ON_THE_WAY => {
                    let name = &self.program.functions[callee].name;
                    let problem =
                        Diagnostic::error(span, format!("`{name}` would call itself, by this call"));
                    return self.fault(problem.help("the kernel allows no recursion: use a loop"));
                }
                Some((callee, _)) if states[callee] == 0 => way.push((callee, 0)),
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// The value of a constant expression, and its type.
    pub(super) fn constant(&mut self, expression: &ast::Expression, what: &str) -> Checked<(u64, Integer)> {
        let checked = self.expression(expression)?;
        match (&checked.kind, checked.of.integer()) {
            (crate::program::ExpressionKind::Constant(value), Some(number)) => Ok((*value, number)),
            _ => {
                let problem =
                    Diagnostic::error(expression.span.clone(), format!("{what} is to be a constant number"));
                self.fault(
                    problem.help(
                        "numbers, enums, `const` variables that are numbers, and `sizeof` are constant",
                    ),
                )
            }
        }
    }

    pub(super) fn duplicate(&mut self, what: &str, span: &Span, other: &Span) -> Faulty {
        let problem = Diagnostic::error(span.clone(), format!("this `switch` has {what} already"));
        self.problems.push(problem.other(other.clone(), "the first one"));
        Faulty
    }
}
