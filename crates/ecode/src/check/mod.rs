//! A program as it is written into one whose names and types are known, or what is wrong with it.

mod builtins;
mod expressions;
mod functions;
mod initializers;
mod items;
mod scopes;
mod slips;
mod statements;

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use scopes::{Named, Scopes};

use crate::ast;
use crate::diagnostic::{Diagnostic, MOST, Span};
use crate::hooks::{Hooks, Offer};
use crate::program::{Builtin, Local, Program};
use crate::types::{Struct, Type};

/// The problem has been told of.
struct Faulty;

type Checked<T> = Result<T, Faulty>;

/// What is known while one function is looked at.
struct Current {
    /// Its number.
    function: usize,
    result: Type,
    locals: Vec<Local>,
    /// Of whose values something is made.
    is_used: Vec<bool>,
    loops: usize,
    switches: usize,
    /// Of the hook, for a handler's body.
    offer: Option<Offer>,
}

struct Checker<'a> {
    items: &'a [ast::Item],
    hooks: &'a dyn Hooks,
    problems: &'a mut Vec<Diagnostic>,
    /// So many of them are no more than that.
    warnings: usize,
    program: Program,
    scopes: Scopes,
    structs: HashMap<String, (Rc<Struct>, Span)>,
    enums: HashMap<String, Span>,
    /// Of structs and enums that have been told of.
    faulty_types: HashSet<String>,
    current: Option<Current>,
    /// Of global and static ones.
    variable_bytes: u64,
    /// Which functions each one calls, and where.
    calls: Vec<Vec<(usize, Span)>>,
    /// Which functions that are there already each one uses, and where.
    uses: Vec<Vec<(Builtin, Span)>>,
    /// Those that the program has already.
    strings: HashSet<Vec<u8>>,
    /// Where it was told last that a number comes round.
    overflow: Span,
    /// Of the functions, by their numbers, whose bodies are not known yet.
    declared: HashMap<usize, Span>,
}

/// What an unknown name is told of with, if it is known later.
const BELOW: &str = "it is declared here only: put it, or a prototype of a function, before its first use";

/// What an item declares of this kind.
fn names_of<'a>(item: &'a ast::Item, what: &str) -> Vec<&'a ast::Name> {
    match (item, what) {
        (ast::Item::Struct { name, .. }, "struct") | (ast::Item::Map { name, .. }, "map" | "variable") => {
            vec![name]
        }
        (ast::Item::Function(function), "function") => vec![&function.name],
        (ast::Item::Enum { name: Some(name), .. }, "enum") => vec![name],
        (ast::Item::Enum { members, .. }, "variable") => members.iter().map(|(name, _)| name).collect(),
        (ast::Item::Variables(declaration), "variable") => {
            declaration.declarators.iter().map(|declarator| &declarator.name).collect()
        }
        _ => Vec::new(),
    }
}

pub fn check(items: &[ast::Item], hooks: &dyn Hooks, problems: &mut Vec<Diagnostic>) -> Program {
    let program = Program::default();
    let mut checker = Checker {
        items,
        hooks,
        problems,
        warnings: 0,
        program,
        scopes: Scopes::new(),
        structs: HashMap::new(),
        enums: HashMap::new(),
        faulty_types: HashSet::new(),
        current: None,
        variable_bytes: 0,
        calls: Vec::new(),
        uses: Vec::new(),
        strings: HashSet::new(),
        overflow: 0..0,
        declared: HashMap::new(),
    };
    for item in items {
        if checker.has_enough() {
            break;
        }
        // What follows from a fault is told of by itself.
        let _ = checker.item(item);
    }
    checker.whole();
    checker.has_a_handler();
    checker.program
}

impl Checker<'_> {
    fn fault<T>(&mut self, problem: Diagnostic) -> Checked<T> {
        self.problems.push(problem);
        Err(Faulty)
    }

    /// More than anybody reads are left out, as the program is one all the same.
    fn warn(&mut self, problem: Diagnostic) {
        if self.warnings < MOST {
            self.warnings += 1;
            self.problems.push(problem);
        }
    }

    /// Whether there are so many faults that others hardly are ones of their own.
    fn has_enough(&self) -> bool {
        self.faults() >= MOST
    }

    /// So many problems are no warnings.
    fn faults(&self) -> usize {
        self.problems.len() - self.warnings
    }

    fn declare(&mut self, name: &ast::Name, named: Named) -> Checked<()> {
        match self.scopes.declare(&name.text, named, name.span.clone()) {
            None => Ok(()),
            Some(other) => {
                let problem =
                    Diagnostic::error(name.span.clone(), format!("`{}` is there already", name.text));
                self.fault(problem.other(other, "declared here"))
            }
        }
    }

    /// Whoever uses what a faulty declaration would have brought has no fault of its own.
    fn declare_faulty(&mut self, name: &ast::Name) {
        self.scopes.declare(&name.text, Named::Faulty, name.span.clone());
    }

    fn current(&mut self) -> &mut Current {
        self.current.as_mut().expect("a function is being looked at")
    }

    /// Where what is not there yet will be declared.
    fn below(&self, what: &str, wanted: &str, from: &Span) -> Option<Span> {
        let mut names = self.items.iter().flat_map(|item| names_of(item, what));
        names.find(|name| name.text == wanted && name.span.start > from.start).map(|name| name.span.clone())
    }

    /// Of which it says where they are, or which ones there are.
    fn unknown<T>(&mut self, what: &str, name: &ast::Name, known: &[String]) -> Checked<T> {
        let problem = Diagnostic::error(name.span.clone(), format!("there is no {what} `{}`", name.text));
        if let Some(below) = self.below(what, &name.text, &name.span) {
            return self.fault(problem.other(below, BELOW));
        }
        self.fault(problem.near(&name.text, known.iter().map(String::as_str)))
    }
}
