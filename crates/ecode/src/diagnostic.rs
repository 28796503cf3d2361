//! What is wrong with a program, and where.

use std::ops::Range;

/// Bytes of the source text.
pub type Span = Range<usize>;

/// Longer ones repeat too much of the source to be read.
const LONGEST_MESSAGE: usize = 300;
/// What comes after so many is mostly a consequence of what came before.
pub const MOST: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Error,
    /// The program is one, but hardly the one that was meant.
    Warning,
}

impl Severity {
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    pub severity: Severity,
    pub span: Span,
    pub message: String,
    /// At the mark.
    pub label: Option<String>,
    /// Another place that has to do with it, and why.
    pub other: Option<(Span, String)>,
    /// What to do.
    pub help: Option<String>,
}

impl Diagnostic {
    pub fn error(span: Span, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            span,
            message: tidy(message.into()),
            label: None,
            other: None,
            help: None,
        }
    }

    pub fn warning(span: Span, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(span, message) }
    }

    pub fn label(self, label: impl Into<String>) -> Self {
        Self { label: Some(tidy(label.into())), ..self }
    }

    pub fn other(self, span: Span, why: impl Into<String>) -> Self {
        Self { other: Some((span, tidy(why.into()))), ..self }
    }

    pub fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(tidy(help.into())), ..self }
    }
}

/// What it repeats of the source is not to steer a terminal.
fn tidy(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(LONGEST_MESSAGE) {
        text.truncate(end);
        text.push('…');
    }
    if text.contains(char::is_control) {
        text = text.replace(char::is_control, "?");
    }
    text
}
