//! The problems of a file in TOML, as text and as JSON.

use annotate_snippets::Level;
use anyhow::anyhow;
use serde::Serialize;
use toml_reader::Problem;

use crate::format::{number_of, printable};
use crate::source_file::SourceFile;
use crate::source_message::{SourceMessage, sanitized};

/// Enough to fill a screen.
const MAX_SHOWN: usize = 5;

/// One error with the first problems of a file, and the number of the others.
pub fn error(source: &SourceFile, problems: &[Problem]) -> anyhow::Error {
    let shown = sanitized(&source.text);
    let excerpts: String = problems
        .iter()
        .take(MAX_SHOWN)
        .map(|problem| excerpt(problem, &source.name, &shown))
        .collect();
    let more = match problems.len().saturating_sub(MAX_SHOWN) {
        0 => String::new(),
        1 => "1 more problem is not shown\n".to_owned(),
        more => format!("{more} more problems are not shown\n"),
    };
    let all = number_of(problems.len(), "problem");
    anyhow!("{} has {all}:\n{excerpts}{more}", printable(&source.name))
}

/// A problem in a JSON document.
#[derive(Serialize)]
pub struct FileProblem<'a> {
    pub line: usize,
    pub column: usize,
    message: &'a str,
    help: Option<&'a str>,
    /// The line of a related position.
    other_line: Option<usize>,
}

impl<'a> FileProblem<'a> {
    pub fn new(problem: &'a Problem, source: &SourceFile) -> Self {
        let (line, column) = source.line_and_column(problem.span.start);
        let other_line = problem.other.as_ref().map(|(span, _)| source.line(span.start));
        Self { line, column, message: &problem.message, help: problem.help.as_deref(), other_line }
    }
}

/// The problem as text with the lines that it is about; the text must be [`sanitized`].
pub fn excerpt(problem: &Problem, name: &str, text: &str) -> String {
    let finding = SourceMessage {
        level: Level::Error,
        span: &problem.span,
        label: None,
        other: problem.other.as_ref().map(|(span, why)| (span, why.as_str())),
        message: &problem.message,
        help: problem.help.as_deref(),
    };
    finding.render_message(name, text)
}
