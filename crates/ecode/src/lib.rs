//! E-code, the language of plugins (docs/ecode.md): a C without pointers. Pure, no I/O.

#![warn(missing_docs)]
#![forbid(unsafe_code)]

// The shared test code refers to the crate by its name.
#[cfg(test)]
extern crate self as ecode;

mod arithmetic;
mod ast;
mod builtin;
mod cfg;
mod check;
mod compile;
mod data_layout;
mod diagnostic;
#[cfg(test)]
mod diagnostic_goldens;
mod disasm;
mod emit;
mod faults;
mod foreign;
mod hooks;
pub mod interpreter;
mod ir;
mod lex;
mod liveness;
mod lower;
mod outline;
mod parse;
pub mod records;
mod regalloc;
mod spill_slots;
mod token;
mod typed;
mod types;
mod widen;

pub use builtin::Builtin;
pub use compile::{Compiled, MapShape, Object, compile};
pub use data_layout::{MAX_CUT_SHORT, RETIRED};
pub use diagnostic::{Diagnostic, MAX_DIAGNOSTICS, Severity, Span, closest_name};
pub use disasm::DisassembledInstruction;
pub use emit::Memory;
pub use faults::Faults;
pub use hooks::{
    CALL, DenyReturn, FieldBase, FieldCondition, FieldSource, HookError, HookField, HookProgram,
    HookProvider, HookSpec, HookVariant, HookWarning, ReturnPolicy, TextLocation,
};
pub use ir::Loops;
pub use typed::{Global, Program};
pub use types::{Integer, Type};

/// Parses a number as it is written in a program, without a sign. Returns what is wrong with it.
pub fn parse_number(text: &str) -> Result<u64, String> {
    let mut problems = Vec::new();
    let tokens = lex::lex(text, &mut problems);
    let number = tokens.first().filter(|token| token.span == (0..text.len()));
    match (number.map(|token| &token.kind), problems.into_iter().next()) {
        (Some(token::TokenKind::Number { value, .. }), None) => Ok(*value),
        (Some(token::TokenKind::Number { .. }), Some(Diagnostic { message, help, .. })) => {
            Err(help.map_or(message.clone(), |help| format!("{message}: {help}")))
        }
        _ => Err("expected a number".into()),
    }
}

/// Parses and checks a program. Returns the program if it has no errors, and the diagnostics in the
/// order of the text.
pub fn check(text: &str, hooks: &dyn HookProvider) -> (Option<Program>, Vec<Diagnostic>) {
    let mut problems = Vec::new();
    let tokens = lex::lex(text, &mut problems);
    let items = parse::parse(&tokens, &mut problems);
    drop(tokens);
    // Do not check a program with syntax errors: names from faulty declarations would be missing.
    let is_whole = problems.is_empty();
    let program = is_whole.then(|| check::check(text, &items, hooks, &mut problems));
    problems.sort_by_key(|problem| problem.span.start);
    // The second diagnostic of a span is a consequence of the first.
    problems
        .dedup_by(|second, first| second.span == first.span && second.severity == first.severity);
    let has_errors = problems.iter().any(|problem| problem.severity == Severity::Error);
    (program.filter(|_| !has_errors), problems)
}
