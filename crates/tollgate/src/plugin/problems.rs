//! Problems of a plugin, as text and as JSON.

use annotate_snippets::Level;
use anyhow::{Result, bail};
use ecode::{Diagnostic, MAX_DIAGNOSTICS, Severity};
use kernel::plugin::verifier_log::verifier_message;
use serde::Serialize;

use crate::format::{and_more, number_of, printable};
use crate::output::print_message;
use crate::source_file::{NotText, SourceFile};
use crate::source_message::{SourceMessage, sanitized};

#[derive(Serialize)]
pub struct PluginProblem<'a> {
    file: &'a str,
    line: usize,
    column: usize,
    severity: &'static str,
    message: &'a str,
    help: Option<&'a str>,
    /// The line of a related position.
    other_line: Option<usize>,
}

impl<'a> PluginProblem<'a> {
    pub fn new(problem: &'a Diagnostic, source: &'a SourceFile) -> Self {
        let (line, column) = source.line_and_column(problem.span.start);
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

/// Prints at most `top` problems on stderr. If there are more, errors come before warnings.
pub fn print_problems(problems: &[Diagnostic], source: &SourceFile, top: usize) -> Result<()> {
    let shown = sanitized(&source.text);
    let mut first: Vec<_> = problems.iter().collect();
    if problems.len() > top {
        first.sort_by_key(|problem| problem.severity);
    }
    for problem in first.into_iter().take(top) {
        let finding = SourceMessage {
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
        print_message(&finding.render_message(&source.name, &shown))?;
    }
    let more = and_more(problems.len(), top, "problem");
    if !more.is_empty() {
        print_message(more.trim_end())?;
    }
    Ok(())
}

/// Prints the kernel's refusal of a plugin, at its position in the source if that is known.
pub fn kernel_refusal<T>(error: kernel::Error, source: &SourceFile) -> Result<T> {
    if let kernel::Error::Refused { log, line: Some(line), .. } = &error
        && let Some(problem) = diagnostic_of_log(log, *line, source)
    {
        print_problems(&[problem], source, 1)?;
        bail!("the kernel refused {}", printable(&source.name));
    }
    Err(error.into())
}

fn diagnostic_of_log(log: &str, line: usize, source: &SourceFile) -> Option<Diagnostic> {
    let complaint = verifier_message(log)?;
    let problem = Diagnostic::error(
        source.span(line)?,
        format!("the kernel's verifier refused this: {complaint}"),
    );
    Some(problem.help(
        "this is a bug in Tollgate, not in the plugin: please report it with the plugin and the \
        output of `--verbose`",
    ))
}

/// "2 problems", "1 problem and 1 warning"
pub fn problem_summary(problems: &[Diagnostic]) -> String {
    let warnings = problems.iter().filter(|problem| problem.severity == Severity::Warning).count();
    let summary = |count: usize, what| {
        let text = number_of(count, what);
        // The compiler stops at this number.
        if count >= MAX_DIAGNOSTICS { format!("at least {text}") } else { text }
    };
    let errors = summary(problems.len() - warnings, "problem");
    if warnings == 0 { errors } else { format!("{errors} and {}", summary(warnings, "warning")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_shown_at_its_line() {
        let source = SourceFile::new("a.ec".into(), "on call {\n\treturn 1;\n}\n".into());
        let log =
            "; return 1; @ a.ec:2\n1: (79) r0 = *(u64 *)(r0 +0)\nR0 invalid mem access 'scalar'\n";
        let problem = diagnostic_of_log(log, 2, &source).expect("it has a place");
        assert_eq!(&source.text[problem.span], "return 1;");
        assert_eq!(
            problem.message,
            "the kernel's verifier refused this: R0 invalid mem access 'scalar'"
        );
        assert_eq!(diagnostic_of_log(log, 9, &source), None);
    }
}
