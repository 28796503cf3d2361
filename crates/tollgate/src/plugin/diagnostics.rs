//! What is wrong with a plugin, as people and programs read it.

use annotate_snippets::Level;
use anyhow::{Result, bail};
use ecode::{Diagnostic, MOST_PROBLEMS, Severity};
use kernel::plugins::verifier_log::complaint;
use serde::Serialize;

use crate::excerpt::{Finding, harmless};
use crate::format::{and_more, number_of, printable};
use crate::output::say;
use crate::source::{NotText, Source};

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

    pub fn not_text(problem: &'a NotText) -> Self {
        let NotText { name: file, line, column } = problem;
        let severity = Severity::Error.name();
        let message = "this is not UTF-8 text";
        Self { file, line: *line, column: *column, severity, message, help: None, other_line: None }
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

/// What the kernel says of a plugin, at its place where it names one.
pub fn refused<T>(error: kernel::Error, source: &Source) -> Result<T> {
    if let kernel::Error::Refused { log, line: Some(line), .. } = &error
        && let Some(problem) = refusal(log, *line, source)
    {
        tell(&[problem], source, 1)?;
        bail!("the kernel does not take {}", printable(&source.name));
    }
    Err(error.into())
}

fn refusal(log: &str, line: usize, source: &Source) -> Option<Diagnostic> {
    let complaint = complaint(log)?;
    let problem =
        Diagnostic::error(source.span(line)?, format!("the kernel's verifier refuses this: {complaint}"));
    Some(problem.help(
        "this is Tollgate's fault, and not the plugin's: report it with the plugin and what `--verbose` shows",
    ))
}

/// "2 problems", "1 problem and 1 warning"
pub fn counted(problems: &[Diagnostic]) -> String {
    let warnings = problems.iter().filter(|problem| problem.severity == Severity::Warning).count();
    let told = |count: usize, what| {
        let told = number_of(count, what);
        // The compiler tells of no more.
        if count >= MOST_PROBLEMS { format!("at least {told}") } else { told }
    };
    let errors = told(problems.len() - warnings, "problem");
    if warnings == 0 { errors } else { format!("{errors} and {}", told(warnings, "warning")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_shown_at_its_line() {
        let source = Source::new("a.ec".into(), "on call {\n\treturn 1;\n}\n".into());
        let log = "; return 1; @ a.ec:2\n1: (79) r0 = *(u64 *)(r0 +0)\nR0 invalid mem access 'scalar'\n";
        let problem = refusal(log, 2, &source).expect("it has a place");
        assert_eq!(&source.text[problem.span], "return 1;");
        assert_eq!(problem.message, "the kernel's verifier refuses this: R0 invalid mem access 'scalar'");
        assert_eq!(refusal(log, 9, &source), None);
    }
}
