//! E-code, the language of plugins (docs/ecode.md): a C without pointers. Pure, no I/O.

#![forbid(unsafe_code)]

// As tests from outside call it.
#[cfg(test)]
extern crate self as ecode;

mod allocate;
mod ast;
mod check;
mod compile;
mod diagnostic;
mod emit;
mod hooks;
pub mod interpret;
mod ir;
mod layout;
mod lex;
mod listing;
mod lower;
mod outline;
mod parse;
#[cfg(test)]
mod problems;
mod program;
pub mod records;
mod token;
mod types;
mod value;
mod ways;

pub use compile::{Compiled, MapShape, Object, compile};
pub use diagnostic::{Diagnostic, MOST as MOST_PROBLEMS, Severity, Span, nearest};
pub use emit::Memory;
pub use hooks::{Base, CALL, Condition, Ending, Entry, Field, Hooks, Offer, Refusal, Source, Stop, Way};
pub use ir::Loops;
pub use layout::MOST_CUT_SHORT;
pub use listing::Listed;
pub use program::{Builtin, Global, Program};
pub use types::{Integer, Type};

/// A program, and warnings; or what is wrong with it, in the order of the text.
pub fn check(text: &str, hooks: &dyn Hooks) -> (Option<Program>, Vec<Diagnostic>) {
    let mut problems = Vec::new();
    let tokens = lex::lex(text, &mut problems);
    let items = parse::parse(&tokens, &mut problems);
    drop(tokens);
    // Names that a faulty declaration would have brought are no faults of their own.
    let is_whole = problems.is_empty();
    let program = is_whole.then(|| check::check(&items, hooks, &mut problems));
    problems.sort_by_key(|problem| problem.span.start);
    // The second one says what the first one has led to.
    problems.dedup_by(|second, first| second.span == first.span && second.severity == first.severity);
    let has_errors = problems.iter().any(|problem| problem.severity == Severity::Error);
    (program.filter(|_| !has_errors), problems)
}
