//! A program as it is written into one whose names and types are known, or what is wrong with it.

mod builtins;
mod expressions;
mod functions;
mod initializers;
mod items;
mod scopes;
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
    hooks: &'a dyn Hooks,
    problems: &'a mut Vec<Diagnostic>,
    program: Program,
    scopes: Scopes,
    structs: HashMap<String, (Rc<Struct>, Span)>,
    enums: HashMap<String, Span>,
    current: Option<Current>,
    /// Which functions each one calls, and where.
    calls: Vec<Vec<(usize, Span)>>,
    /// Which functions that are there already each one uses, and where.
    uses: Vec<Vec<(Builtin, Span)>>,
    /// Those that the program has already.
    strings: HashSet<Vec<u8>>,
    /// Of the functions, by their numbers, whose bodies are not known yet.
    declared: HashMap<usize, Span>,
}

pub fn check(items: &[ast::Item], hooks: &dyn Hooks, problems: &mut Vec<Diagnostic>) -> Program {
    let program = Program::default();
    let mut checker = Checker {
        hooks,
        problems,
        program,
        scopes: Scopes::new(),
        structs: HashMap::new(),
        enums: HashMap::new(),
        current: None,
        calls: Vec::new(),
        uses: Vec::new(),
        strings: HashSet::new(),
        declared: HashMap::new(),
    };
    for item in items {
        if checker.problems.len() >= MOST {
            break;
        }
        // What follows from a fault is told of by itself.
        let _ = checker.item(item);
    }
    checker.whole();
    checker.program
}

impl Checker<'_> {
    fn fault<T>(&mut self, problem: Diagnostic) -> Checked<T> {
        self.problems.push(problem);
        Err(Faulty)
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

    fn current(&mut self) -> &mut Current {
        self.current.as_mut().expect("a function is being looked at")
    }

    /// Of which it says where they are, or which ones there are.
    fn unknown<T>(&mut self, what: &str, name: &ast::Name, known: &[String]) -> Checked<T> {
        let problem = Diagnostic::error(name.span.clone(), format!("there is no {what} `{}`", name.text));
        let near = nearest(&name.text, known);
        self.fault(match near {
            Some(near) => problem.help(format!("there is `{near}`")),
            None => problem,
        })
    }
}

/// The name that differs least, if it is hardly another one.
pub fn nearest<'a>(name: &str, known: &'a [String]) -> Option<&'a String> {
    let most = name.chars().count().div_ceil(3);
    let ways = known.iter().map(|other| (distance(name, other), other));
    ways.filter(|(distance, _)| *distance <= most).min().map(|(_, other)| other)
}

/// How many letters are to be put in, left out or replaced (Levenshtein, 1966).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<_> = other.chars().collect();
    let mut row: Vec<_> = (0..=other.len()).collect();
    for (at, letter) in one.chars().enumerate() {
        let mut before = std::mem::replace(&mut row[0], at + 1);
        for (column, with) in other.iter().enumerate() {
            let replaced = before + usize::from(letter != *with);
            before = row[column + 1];
            row[column + 1] = replaced.min(before + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_hardly_another_one() {
        assert_eq!((distance("count", "coutn"), distance("a", ""), distance("same", "same")), (2, 1, 0));
        let known = ["counter", "other"].map(String::from);
        assert_eq!(nearest("conter", &known), Some(&known[0]));
        assert_eq!(nearest("x", &known), None);
    }
}
