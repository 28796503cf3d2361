//! Checks items outside of functions (structs, enums, maps and global variables) and resolves type
//! names.

use std::collections::HashSet;
use std::rc::Rc;

use super::builtins::name_of;
use super::scopes::Symbol;
use super::{Checked, Checker};
use crate::ast::{self, BaseType, Item};
use crate::diagnostic::{Diagnostic, ErrorReported, Span};
use crate::typed::{Global, Map};
use crate::types::{INT, Integer, Struct, Type};

/// The maximum size of all variables together. The variables are in one map, and this size needs no
/// special measures in the kernel.
const MAX_VARIABLE_BYTES: u64 = 64 << 20;
/// The maximum size of a local array or struct. A BPF function has a stack of 512 bytes
/// (MAX_BPF_STACK, include/linux/filter.h).
pub const MAX_LOCAL_BYTES: u64 = 256;
/// The maximum nesting depth of arrays and structs.
const MAX_TYPE_DEPTH: usize = 16;
/// The maximum number of members of a struct. There is a limit, because members are found by linear
/// search.
const MAX_MEMBERS: usize = 1024;
const MAX_ENTRIES: u64 = 1 << 24;
/// MAX_USED_MAPS (include/linux/bpf_verifier.h) without the maps that the compiler needs.
const MAX_MAPS: usize = 64 - 8;
/// Keys and values of maps are copied to the stack of a function.
const MAX_KEY_BYTES: u64 = 64;
const MAX_VALUE_BYTES: u64 = 256;

impl Checker<'_> {
    pub(super) fn item(&mut self, item: &ast::Item) -> Checked<()> {
        match item {
            Item::Struct { name, members } => self.structure(name, members).inspect_err(|_| {
                self.faulty_types.insert(name.text.clone());
            }),
            Item::Enum { name, members } => {
                self.enumeration(name.as_ref(), members).inspect_err(|_| {
                    self.faulty_types.extend(name.as_ref().map(|name| name.text.clone()));
                    members.iter().for_each(|(member, _)| self.declare_faulty(member));
                })
            }
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
            BaseType::Integer(of) => Type::Integer(*of),
            BaseType::Struct(name) | BaseType::Enum(name)
                if self.faulty_types.contains(&name.text) =>
            {
                return Err(ErrorReported);
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

    /// Resolves a type that can have values.
    pub(super) fn resolve_value(&mut self, name: &ast::TypeName, what: &str) -> Checked<Type> {
        let of = self.resolve(name)?;
        if of == Type::Void {
            return self
                .error(Diagnostic::error(name.span.clone(), format!("{what} cannot be void")));
        }
        Ok(of)
    }

    /// The type of a declarator, with the array lengths after its name. The initializer may
    /// determine the first length.
    pub(super) fn declared_type(
        &mut self,
        base: &Type,
        declarator: &ast::Declarator,
    ) -> Checked<Type> {
        if *base == Type::String {
            let problem =
                Diagnostic::error(declarator.name.span.clone(), "a variable cannot be a string");
            return self.error(problem.help("use an array: `char name[16] = \"text\";`"));
        }
        if declarator.lengths.len() + base.depth() >= MAX_TYPE_DEPTH {
            let message =
                format!("arrays and structs are nested more than {MAX_TYPE_DEPTH} deep here");
            return self.error(Diagnostic::error(declarator.name.span.clone(), message));
        }
        let mut of = base.clone();
        for (dimension, length) in declarator.lengths.iter().enumerate().rev() {
            let length = match length {
                Some(length) => self.length(length, "an array")?,
                None if dimension == 0 && declarator.initializer.is_some() => {
                    self.length_by_initializer(&of, declarator)?
                }
                None => {
                    let problem = Diagnostic::error(
                        declarator.name.span.clone(),
                        "the length of this array is missing",
                    );
                    return self
                        .error(problem.help("write it between [ and ], or add an initializer"));
                }
            };
            of = Type::Array(Rc::new(of), length);
        }
        if of.size() > MAX_VARIABLE_BYTES {
            // The size saturates.
            let more = if of.size() == u64::MAX { "more than " } else { "" };
            let problem = Diagnostic::error(
                declarator.name.span.clone(),
                format!(
                    "`{}` would have {more}{} bytes, but at most {MAX_VARIABLE_BYTES} are possible",
                    declarator.name.text,
                    of.size()
                ),
            );
            return self.error(problem);
        }
        Ok(of)
    }

    pub(super) fn length(&mut self, expression: &ast::Expression, of: &str) -> Checked<u64> {
        let (value, number) = self.constant(expression, "a length")?;
        let count = number.exact(value);
        if count <= 0 {
            let message = format!("{of} cannot have {count} elements");
            return self.error(Diagnostic::error(expression.span.clone(), message));
        }
        Ok(value)
    }

    fn structure(&mut self, name: &ast::Ident, declared: &[ast::Declaration]) -> Checked<()> {
        let mut members: Vec<(String, Type)> = Vec::new();
        let written = declared.iter().flat_map(|declaration| &declaration.declarators);
        if let Some(excess) = written.clone().nth(MAX_MEMBERS) {
            let count = written.count();
            let message =
                format!("a struct has at most {MAX_MEMBERS} members, but this one has {count}");
            return self.error(Diagnostic::error(excess.name.span.clone(), message));
        }
        for declaration in declared {
            let base = self.resolve_value(&declaration.type_name, "a member")?;
            for declarator in &declaration.declarators {
                if let Some(initializer) = &declarator.initializer {
                    let problem = Diagnostic::error(
                        initializer.span(),
                        "a member cannot have an initial value",
                    );
                    return self.error(
                        problem.help("write it where a variable of this struct is declared"),
                    );
                }
                let of = self.declared_type(&base, declarator)?;
                if members.iter().any(|(known, _)| *known == declarator.name.text) {
                    let message =
                        format!("the struct already has a member `{}`", declarator.name.text);
                    return self.error(Diagnostic::error(declarator.name.span.clone(), message));
                }
                members.push((declarator.name.text.clone(), of));
            }
        }
        if members.is_empty() {
            return self
                .error(Diagnostic::error(name.span.clone(), "a struct needs at least one member"));
        }
        if let Some((_, other)) = self.structs.get(&name.text) {
            let other = other.clone();
            let problem = Diagnostic::error(
                name.span.clone(),
                format!("there already is a struct `{}`", name.text),
            );
            return self.error(problem.other(other, "declared here"));
        }
        let of = Struct::new(name.text.clone(), members);
        if of.size > MAX_VARIABLE_BYTES {
            let message = format!(
                "this struct would have {} bytes, but at most {MAX_VARIABLE_BYTES} are possible",
                of.size
            );
            return self.error(Diagnostic::error(name.span.clone(), message));
        }
        self.structs.insert(name.text.clone(), (Rc::new(of), name.span.clone()));
        Ok(())
    }

    fn enumeration(
        &mut self,
        name: Option<&ast::Ident>,
        members: &[(ast::Ident, Option<ast::Expression>)],
    ) -> Checked<()> {
        let mut next = 0_i128;
        for (member, value) in members {
            if let Some(value) = value {
                let (value, number) = self.constant(value, "the value of a constant")?;
                next = number.exact(value);
            }
            let Ok(value) = i32::try_from(next) else {
                let name = &member.text;
                let message = format!("`{name}` would be {next}, which does not fit into int");
                let of = if next < 0 { "i64" } else { "u64" };
                let problem = Diagnostic::error(member.span.clone(), message);
                return self
                    .error(problem.help(format!(
                        "declare it outside of the enum: `const {of} {name} = …;`"
                    )));
            };
            self.declare(member, Symbol::Constant(i64::from(value) as u64, INT.into()))?;
            next += 1;
        }
        if let Some(name) = name
            && let Some(other) = self.enums.insert(name.text.clone(), name.span.clone())
        {
            let problem = Diagnostic::error(
                name.span.clone(),
                format!("there already is an enum `{}`", name.text),
            );
            return self.error(problem.other(other, "declared here"));
        }
        Ok(())
    }

    fn map(
        &mut self,
        name: &ast::Ident,
        key: &ast::TypeName,
        value: &ast::TypeName,
        length: &ast::Expression,
    ) -> Checked<()> {
        let mut side = |type_name: &ast::TypeName, what: &str, most: u64| {
            let of = self.resolve_value(type_name, what)?;
            if of == Type::String {
                let problem =
                    Diagnostic::error(type_name.span.clone(), format!("{what} cannot be a string"));
                return self.error(
                    problem.help("use a struct with an array: `struct name { char text[16]; };`"),
                );
            }
            if of.size() > most {
                let message =
                    format!("{what} has {} bytes, but at most {most} are possible", of.size());
                return self.error(Diagnostic::error(type_name.span.clone(), message));
            }
            Ok(of)
        };
        let key = side(key, "a key", MAX_KEY_BYTES)?;
        let value = side(value, "a value of a map", MAX_VALUE_BYTES)?;
        let entries = self.length(length, "a map")?;
        if entries > MAX_ENTRIES {
            let message = format!("a map has at most {MAX_ENTRIES} entries, not {entries}");
            return self.error(Diagnostic::error(length.span.clone(), message));
        }
        if self.program.maps.len() == MAX_MAPS {
            let problem = Diagnostic::error(
                name.span.clone(),
                format!("a plugin has at most {MAX_MAPS} maps"),
            );
            return self.error(problem.help(
                "the kernel allows no more: combine several maps into one, with a \
                    struct as its key",
            ));
        }
        self.declare(name, Symbol::Map(self.program.maps.len()))?;
        let (name, span) = (name.text.clone(), name.span.clone());
        self.program.maps.push(Map { name, key, value, length: entries as u32, span });
        Ok(())
    }

    /// Declares global variables or the static variables of a function.
    pub(super) fn globals(&mut self, declaration: &ast::Declaration, within: Option<&str>) {
        let base = self.resolve_value(&declaration.type_name, "a variable").ok();
        for declarator in &declaration.declarators {
            let made = base
                .as_ref()
                .map(|base| self.global(base, declaration.is_const, declarator, within));
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
        self.declare(&declarator.name, Symbol::Global(self.program.globals.len()))?;
        let span = declarator.name.span.clone();
        self.program.globals.push(Global { name, ty: of, is_const, initial, span });
        Ok(())
    }

    /// The symbol of a constant number, which needs no memory. `None` for any other variable.
    fn named_constant(&self, is_const: bool, of: &Type, initial: &[u8]) -> Option<Symbol> {
        let number = of.integer().filter(|_| is_const)?;
        let mut bytes = [0; 8];
        bytes[..initial.len()].copy_from_slice(initial);
        Some(Symbol::Constant(number.extend(u64::from_le_bytes(bytes)), of.clone()))
    }

    /// Reports the first global variable that does not fit, and no later ones.
    fn globals_fit(&mut self, of: &Type, name: &ast::Ident) {
        let before = self.variable_bytes;
        // Aligned as in `DataLayout`.
        self.variable_bytes += of.size().next_multiple_of(8);
        if before <= MAX_VARIABLE_BYTES && self.variable_bytes > MAX_VARIABLE_BYTES {
            let message = format!(
                "with `{}`, all variables together would have {} bytes, but at most \
                {MAX_VARIABLE_BYTES} \
                are possible",
                name.text, self.variable_bytes
            );
            self.problems.push(Diagnostic::error(name.span.clone(), message));
        }
    }

    pub(super) fn local_fits(&mut self, of: &Type, name: &ast::Ident) -> Checked<()> {
        if of.size() <= MAX_LOCAL_BYTES {
            return Ok(());
        }
        let message = format!(
            "`{}` would have {} bytes, but a local variable has at most {MAX_LOCAL_BYTES}",
            name.text,
            of.size()
        );
        let problem =
            Diagnostic::error(name.span.clone(), message).label("too large for the kernel's stack");
        self.error(problem.help(
            "write `static` before it, or declare it outside the function; it then exists \
                only once",
        ))
    }

    /// Checks that need the whole program.
    pub(super) fn check_whole_program(&mut self) {
        for (function, span) in std::mem::take(&mut self.declared) {
            let name = &self.program.functions[function].name;
            self.problems
                .push(Diagnostic::error(span, format!("`{name}` is declared, but has no body")));
        }
        self.check_no_recursion();
        for handler in 0..self.program.handlers.len() {
            self.check_hook_builtins(handler);
        }
    }

    /// Checks that the hook of a handler supports all builtin functions that the handler and the
    /// functions it calls use.
    fn check_hook_builtins(&mut self, handler: usize) {
        let handler = &self.program.handlers[handler];
        let Some((lacks, why)) = handler.spec.unavailable else { return };
        let (mut found, mut next) = (HashSet::from([handler.function]), vec![handler.function]);
        while let Some(function) = next.pop() {
            for (builtin, span) in
                self.uses[function].iter().filter(|(builtin, _)| lacks.contains(builtin))
            {
                let message =
                    format!("`{}` is not available in `on {}`", name_of(*builtin), handler.hook);
                self.problems.push(Diagnostic::error(span.clone(), message).help(why));
            }
            for (callee, _) in &self.calls[function] {
                if found.insert(*callee) {
                    next.push(*callee);
                }
            }
        }
    }

    fn check_no_recursion(&mut self) {
        let count = self.program.functions.len();
        let mut states = vec![0_u8; count];
        for function in 0..count {
            if self.walk(function, &mut states).is_err() {
                return;
            }
        }
    }

    fn walk(&mut self, from: usize, states: &mut [u8]) -> Checked<()> {
        const ON_PATH: u8 = 1;
        const DONE: u8 = 2;
        // Iterative and not recursive, because chains of calls may be long.
        let mut path = vec![(from, 0)];
        while let Some((function, next)) = path.last_mut() {
            let (function, at) = (*function, *next);
            *next += 1;
            if at == 0 {
                if states[function] == DONE {
                    path.pop();
                    continue;
                }
                states[function] = ON_PATH;
            }
            let called = self.calls[function].get(at).cloned();
            match called {
                None => {
                    states[function] = DONE;
                    path.pop();
                }
                Some((callee, span)) if states[callee] == ON_PATH => {
                    let name = &self.program.functions[callee].name;
                    let problem =
                        Diagnostic::error(span, format!("this call makes `{name}` call itself"));
                    return self.error(problem.help("the kernel allows no recursion: use a loop"));
                }
                Some((callee, _)) if states[callee] == 0 => path.push((callee, 0)),
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// The value of a constant expression, and its type.
    pub(super) fn constant(
        &mut self,
        expression: &ast::Expression,
        what: &str,
    ) -> Checked<(u64, Integer)> {
        let checked = self.expression(expression)?;
        match (&checked.kind, checked.ty.integer()) {
            (crate::typed::ExpressionKind::Constant(value), Some(number)) => Ok((*value, number)),
            _ => {
                let problem = Diagnostic::error(
                    expression.span.clone(),
                    format!("{what} must be a constant number"),
                );
                self.error(problem.help(
                    "numbers, enums, `const` variables that are numbers, and `sizeof` are constant",
                ))
            }
        }
    }

    pub(super) fn duplicate(&mut self, what: &str, span: &Span, other: &Span) -> ErrorReported {
        let problem = Diagnostic::error(span.clone(), format!("this `switch` already has {what}"));
        self.problems.push(problem.other(other.clone(), "the first one"));
        ErrorReported
    }
}
