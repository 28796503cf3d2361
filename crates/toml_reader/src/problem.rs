//! The problems of a file.

use std::ops::Range;

/// The maximum number of characters of a message. Messages quote the file, in which a value may
/// have a megabyte. The limit leaves room for the path of any socket.
const MAX_MESSAGE_LEN: usize = 300;
/// The maximum number of problems that get a suggestion. Comparing names takes time, and users read
/// only the first problems (`service check`).
const MAX_SUGGESTIONS: usize = 20;
/// Longer names get no suggestion.
const MAX_SUGGESTED_LEN: usize = 64;

/// A problem of a file and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The byte range in the file.
    pub span: Range<usize>,
    /// What is wrong.
    pub message: String,
    /// Another position that the problem involves, and why.
    pub other: Option<(Range<usize>, String)>,
    /// How to fix the problem.
    pub help: Option<String>,
}

impl Problem {
    /// Creates a problem without help.
    pub fn new(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { span, message: message.into(), other: None, help: None }
    }

    /// Shortens texts that quote the file and removes control characters, which could control the
    /// terminal.
    #[must_use]
    pub fn sanitize(mut self) -> Self {
        for text in [Some(&mut self.message), self.help.as_mut()].into_iter().flatten() {
            if let Some((end, _)) = text.char_indices().nth(MAX_MESSAGE_LEN) {
                text.truncate(end);
                text.push('…');
            }
            if text.contains(char::is_control) {
                *text = text.replace(char::is_control, "?");
            }
        }
        self
    }

    /// Adds the help.
    #[must_use]
    pub fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    /// Adds another position that the problem involves, and why.
    #[must_use]
    pub fn other(self, span: Range<usize>, why: impl Into<String>) -> Self {
        Self { other: Some((span, why.into())), ..self }
    }

    /// Suggests the nearest known name if its similarity is at least a half. If no name is that
    /// similar, `otherwise` gives the help.
    #[must_use]
    pub fn suggest<'a>(
        self,
        name: &str,
        known: impl IntoIterator<Item = &'a str>,
        problems: &Problems,
        otherwise: impl FnOnce() -> Option<String>,
    ) -> Self {
        let likeness =
            |known: &'a str| (strsim::normalized_damerau_levenshtein(name, known), known);
        let is_worth_it = problems.len() < MAX_SUGGESTIONS && name.len() <= MAX_SUGGESTED_LEN;
        let near = known
            .into_iter()
            .filter(|_| is_worth_it)
            .map(likeness)
            .filter(|(likeness, _)| *likeness >= 0.5);
        let best = near.max_by(|a, b| a.0.total_cmp(&b.0));
        let help = best.map(|(_, near)| format!("did you mean {near:?}?")).or_else(otherwise);
        Self { help, ..self }
    }
}

/// The problems of a file, in the order in which they were found.
pub type Problems = Vec<Problem>;
