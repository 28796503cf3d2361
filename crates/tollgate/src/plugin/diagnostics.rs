//! What is wrong with a plugin, as people and programs read it.

use annotate_snippets::Level;
use anyhow::Result;
use ecode::{Diagnostic, Severity};
use serde::Serialize;

use crate::excerpt::{Finding, harmless};
use crate::format::{and_more, number_of};
use crate::output::say;
use crate::source::Source;

#[derive(Serialize)]
pub struct Told<'a> {
    file: &'a str,
    line: usize,
    column: usize,
    severity: &'static str,
    message: &'a str,
    help: Option<&'a str>,
    /// Of another place that has to do with it.
    other_line: Option<usize>,
}

impl<'a> Told<'a> {
    pub fn new(problem: &'a Diagnostic, source: &'a Source) -> Self {
        let (line, column) = source.place(problem.span.start);
        Self {
            file: &source.name,
            line,
            column,
            severity: problem.severity.name(),
            message: &problem.message,
            help: problem.help.as_deref(),
            other_line: problem.other.as_ref().map(|(span, _)| source.line(span.start)),
        }
    }
}

/// On stderr, at most so many: of more, errors rather than warnings.
pub fn tell(problems: &[Diagnostic], source: &Source, top: usize) -> Result<()> {
    let shown = harmless(&source.text);
    let mut first: Vec<_> = problems.iter().collect();
    if problems.len() > top {
        first.sort_by_key(|problem| problem.severity);
    }
    for problem in first.into_iter().take(top) {
        let finding = Finding {
            level: match problem.severity {
                Severity::Error => Level::Error,
                Severity::Warning => Level::Warning,
            },
            span: &problem.span,
            label: problem.label.as_deref(),
            other: problem.other.as_ref().map(|(span, why)| (span, why.as_str())),
            message: &problem.message,
            help: problem.help.as_deref(),
        };
        say(&finding.excerpt(&source.name, &shown))?;
    }
    let more = and_more(problems.len(), top, "problem");
    if !more.is_empty() {
        say(more.trim_end())?;
    }
    Ok(())
}

/// "2 problems", "1 problem and 1 warning"
pub fn counted(problems: &[Diagnostic]) -> String {
    let warnings = problems.iter().filter(|problem| problem.severity == Severity::Warning).count();
    let errors = number_of(problems.len() - warnings, "problem");
    if warnings == 0 { errors } else { format!("{errors} and {}", number_of(warnings, "warning")) }
}
