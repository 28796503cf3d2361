//! What is wrong with a program, and where.

use std::ops::Range;

/// Bytes of the source text.
pub type Span = Range<usize>;

/// Longer ones repeat too much of the source to be read.
const LONGEST_MESSAGE: usize = 300;
/// Of which others are looked for that differ little: it takes the square of its letters.
const LONGEST_NAME: usize = 64;
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
    #[cfg_attr(test, track_caller)]
    pub fn error(span: Span, message: impl Into<String>) -> Self {
        #[cfg(test)]
        crate::problems::is_made(std::panic::Location::caller());
        Self {
            severity: Severity::Error,
            span,
            message: tidy(message.into()),
            label: None,
            other: None,
            help: None,
        }
    }

    #[cfg_attr(test, track_caller)]
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

    /// With the one of these that a name is perhaps meant to be.
    pub fn near<'a>(self, name: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        match nearest(name, known) {
            Some(near) => self.help(format!("there is `{near}`")),
            None => self,
        }
    }
}

/// The name that differs least, if it is hardly another one.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let letters = name.chars().count();
    let most = letters.div_ceil(3).min(letters.saturating_sub(1));
    let is_as_long = |other: &&str| other.len().abs_diff(name.len()) <= most && name.len() <= LONGEST_NAME;
    let ways = known.into_iter().filter(is_as_long).map(|other| (distance(name, other), other));
    ways.filter(|(distance, _)| *distance <= most).min().map(|(_, other)| other)
}

/// How many letters are to be put in, left out, replaced (Levenshtein, 1966) or exchanged with the next (Damerau, 1964).
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_hardly_another_one() {
        for (one, other, letters) in
            [("count", "coutn", 1), ("a", "", 1), ("", "ab", 2), ("same", "same", 0), ("abcd", "badce", 3)]
        {
            assert_eq!((distance(one, other), distance(other, one)), (letters, letters), "{one} {other}");
        }
        assert_eq!(nearest("conter", ["counter", "other"]), Some("counter"));
        assert_eq!(nearest("x", ["counter", "y", "xy"]), None);
    }
}
