//! The diagnostics of a program.

use std::ops::Range;

/// Takes the place of a result that is missing because of an error. The error has been reported.
pub struct ErrorReported;

/// A byte range of the source text.
pub type Span = Range<usize>;

/// Longer messages quote too much of the source to be readable.
const MAX_MESSAGE_LEN: usize = 300;
/// The maximum length of a name for which similar names are searched. The time of the search grows
/// with the square of the length.
const MAX_NAME_LEN: usize = 64;
/// Diagnostics after this number are mostly consequences of earlier ones.
pub const MAX_DIAGNOSTICS: usize = 100;

/// How bad a diagnostic is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The program is invalid.
    Error,
    /// The program is valid, but probably not what the author intended.
    Warning,
}

impl Severity {
    /// The name of the severity in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// What the compiler reports about a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// The severity.
    pub severity: Severity,
    /// The text that the diagnostic is about.
    pub span: Span,
    /// What is wrong.
    pub message: String,
    /// A note at the marked text.
    pub label: Option<String>,
    /// Another position that the problem involves, and why.
    pub other: Option<(Span, String)>,
    /// How to fix the problem.
    pub help: Option<String>,
}

impl Diagnostic {
    /// An error.
    #[cfg_attr(test, track_caller)]
    pub fn error(span: Span, message: impl Into<String>) -> Self {
        #[cfg(test)]
        crate::diagnostic_goldens::record_site(std::panic::Location::caller());
        Self {
            severity: Severity::Error,
            span,
            message: sanitize(message.into()),
            label: None,
            other: None,
            help: None,
        }
    }

    /// A warning.
    #[cfg_attr(test, track_caller)]
    pub fn warning(span: Span, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(span, message) }
    }

    /// Adds a note at the marked text.
    pub fn label(self, label: impl Into<String>) -> Self {
        Self { label: Some(sanitize(label.into())), ..self }
    }

    /// Adds another position.
    pub fn other(self, span: Span, why: impl Into<String>) -> Self {
        Self { other: Some((span, sanitize(why.into()))), ..self }
    }

    /// Adds a help text on how to fix the problem.
    pub fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(sanitize(help.into())), ..self }
    }

    /// Adds a help text if there is one.
    pub fn help_if(self, help: Option<impl Into<String>>) -> Self {
        match help {
            Some(help) => self.help(help),
            None => self,
        }
    }

    /// Adds a suggestion if a known name is similar.
    pub fn with_suggestion<'a>(self, name: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        match closest_name(name, known) {
            Some(near) => self.help(format!("did you mean `{near}`?")),
            None => self,
        }
    }
}

/// "1 member", "2 members"
pub fn number_of(count: u64, one: &str) -> String {
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}

/// The most similar name, if one is similar enough: a third of the letters may be wrong. So a name
/// of two letters has no suggestion, because most other names of two letters are as similar.
pub fn closest_name<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = name.chars().count() / 3;
    let is_as_long =
        |other: &&str| other.len().abs_diff(name.len()) <= most && name.len() <= MAX_NAME_LEN;
    let candidates =
        known.into_iter().filter(is_as_long).map(|other| (distance(name, other), other));
    candidates.filter(|(distance, _)| *distance <= most).min().map(|(_, other)| other)
}

/// The edit distance: the number of letters to insert, delete or replace (Levenshtein, 1966), or to
/// exchange with the next one (Damerau, 1964).
fn distance(one: &str, other: &str) -> usize {
    let [one, other]: [Vec<_>; 2] = [one, other].map(|text| text.chars().collect());
    let mut rows = vec![(0..=other.len()).collect::<Vec<_>>()];
    for (at, letter) in one.iter().enumerate() {
        let mut row = vec![at + 1];
        for (column, with) in other.iter().enumerate() {
            let replaced = rows[at][column] + usize::from(letter != with);
            let mut least = replaced.min(rows[at][column + 1] + 1).min(row[column] + 1);
            if at > 0 && column > 0 && one[at - 1] == *with && other[column - 1] == *letter {
                least = least.min(rows[at - 1][column - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

/// Shortens a text that quotes the source and removes control characters, which could control the
/// terminal.
fn sanitize(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MAX_MESSAGE_LEN) {
        text.truncate(end);
        text.push('…');
    }
    if text.contains(char::is_control) {
        text = text.replace(char::is_control, "?");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestions_differ_little() {
        for (one, other, letters) in [
            ("count", "coutn", 1),
            ("a", "", 1),
            ("", "ab", 2),
            ("same", "same", 0),
            ("abcd", "badce", 3),
        ] {
            assert_eq!(
                (distance(one, other), distance(other, one)),
                (letters, letters),
                "{one} {other}"
            );
        }
        assert_eq!(closest_name("conter", ["counter", "other"]), Some("counter"));
        assert_eq!(closest_name("x", ["counter", "y", "xy"]), None);
        assert_eq!(closest_name("x0", ["f0", "x1"]), None);
        assert_eq!(closest_name("print", ["int"]), None);
        assert_eq!(closest_name("cuont", ["count"]), Some("count"));
    }
}
