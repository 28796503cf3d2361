//! Checks a syntax tree: resolves names and types, or reports errors.

mod builtins;
mod expressions;
mod formats;
mod functions;
mod initializers;
mod items;
mod lint;
mod scopes;
mod statements;

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use scopes::{Symbol, SymbolTable};

use crate::ast;
use crate::builtin::Builtin;
use crate::diagnostic::{Diagnostic, ErrorReported, MAX_DIAGNOSTICS, Span};
use crate::hooks::{HookProvider, HookSpec};
use crate::typed::{Local, Program};
use crate::types::{Struct, Type};

type Checked<T> = Result<T, ErrorReported>;

/// The state of the checker for the current function.
struct FunctionContext {
    /// The number of the function.
    function: usize,
    result: Type,
    locals: Vec<Local>,
    /// For each local variable, whether the function uses its value.
    is_used: Vec<bool>,
    loops: usize,
    switches: usize,
    /// The specification of the hook, in the body of a handler.
    hook_spec: Option<HookSpec>,
}

struct Checker<'a> {
    /// The source, for positions within strings.
    text: &'a str,
    items: &'a [ast::Item],
    hooks: &'a dyn HookProvider,
    problems: &'a mut Vec<Diagnostic>,
    /// The number of `problems` that are warnings.
    warnings: usize,
    program: Program,
    scopes: SymbolTable,
    structs: HashMap<String, (Rc<Struct>, Span)>,
    enums: HashMap<String, Span>,
    /// The names of structs and enums whose errors have been reported.
    faulty_types: HashSet<String>,
    current: Option<FunctionContext>,
    /// The bytes of all global and static variables.
    variable_bytes: u64,
    /// For each function, the functions that it calls, with the spans of the calls.
    calls: Vec<Vec<(usize, Span)>>,
    /// For each function, the builtin functions that it uses, with the spans of the uses.
    uses: Vec<Vec<(Builtin, Span)>>,
    /// The strings of the program so far.
    strings: HashSet<Vec<u8>>,
    /// The span of the latest reported overflow.
    overflow: Span,
    /// The functions without a body so far, by number, with the spans of their declarations.
    declared: HashMap<usize, Span>,
}

/// The note on an unknown name that the program declares later.
const BELOW: &str = "it is declared only here: declare it before its first use";

/// The names of this kind that an item declares.
fn names_of<'a>(item: &'a ast::Item, what: &str) -> Vec<&'a ast::Ident> {
    match (item, what) {
        (ast::Item::Struct { name, .. }, "struct")
        | (ast::Item::Map { name, .. }, "map" | "variable") => {
            vec![name]
        }
        (ast::Item::Function(function), "function") => vec![&function.name],
        (ast::Item::Enum { name: Some(name), .. }, "enum") => vec![name],
        (ast::Item::Enum { members, .. }, "variable") => {
            members.iter().map(|(name, _)| name).collect()
        }
        (ast::Item::Variables(declaration), "variable") => {
            declaration.declarators.iter().map(|declarator| &declarator.name).collect()
        }
        _ => Vec::new(),
    }
}

pub fn check(
    text: &str,
    items: &[ast::Item],
    hooks: &dyn HookProvider,
    problems: &mut Vec<Diagnostic>,
) -> Program {
    let program = Program::default();
    let mut checker = Checker {
        text,
        items,
        hooks,
        problems,
        warnings: 0,
        program,
        scopes: SymbolTable::new(),
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
        if checker.is_error_limit_reached() {
            break;
        }
        // Continue after an error: later items may have errors of their own.
        let _ = checker.item(item);
    }
    checker.check_whole_program();
    checker.lint_no_handler();
    checker.program
}

impl Checker<'_> {
    fn error<T>(&mut self, problem: Diagnostic) -> Checked<T> {
        self.problems.push(problem);
        Err(ErrorReported)
    }

    /// Adds a warning, unless there are too many to read. Further ones can be left out, because the
    /// program is valid in any case.
    fn warn(&mut self, problem: Diagnostic) {
        if self.warnings < MAX_DIAGNOSTICS {
            self.warnings += 1;
            self.problems.push(problem);
        }
    }

    /// Whether there are so many errors that further ones would probably be their consequences.
    fn is_error_limit_reached(&self) -> bool {
        self.error_count() >= MAX_DIAGNOSTICS
    }

    /// The number of errors.
    fn error_count(&self) -> usize {
        self.problems.len() - self.warnings
    }

    fn declare(&mut self, name: &ast::Ident, symbol: Symbol) -> Checked<()> {
        match self.scopes.declare(&name.text, symbol, name.span.clone()) {
            None => Ok(()),
            Some(other) => {
                let problem = Diagnostic::error(
                    name.span.clone(),
                    format!("`{}` is already declared", name.text),
                );
                self.error(problem.other(other, "declared here"))
            }
        }
    }

    /// Declares the name of a faulty declaration, so that its uses are not reported as errors.
    fn declare_faulty(&mut self, name: &ast::Ident) {
        self.scopes.declare(&name.text, Symbol::Faulty, name.span.clone());
    }

    fn current(&mut self) -> &mut FunctionContext {
        self.current.as_mut().expect("a function is being looked at")
    }

    /// The span of a later declaration of a name.
    fn later_declaration(&self, what: &str, wanted: &str, from: &Span) -> Option<Span> {
        let mut names = self.items.iter().flat_map(|item| names_of(item, what));
        names
            .find(|name| name.text == wanted && name.span.start > from.start)
            .map(|name| name.span.clone())
    }

    /// Reports an unknown name, with its later declaration or a similar known name.
    fn unknown<T>(&mut self, what: &str, name: &ast::Ident, known: &[String]) -> Checked<T> {
        let problem =
            Diagnostic::error(name.span.clone(), format!("there is no {what} `{}`", name.text));
        if let Some(below) = self.later_declaration(what, &name.text, &name.span) {
            return self.error(problem.other(below, BELOW));
        }
        let problem = problem.with_suggestion(&name.text, known.iter().map(String::as_str));
        let is_of_headers = what == "struct" && problem.help.is_none();
        self.error(match is_of_headers {
            true => problem.help("declare structs of C's headers yourself"),
            false => problem,
        })
    }
}
