//! Renders messages about a text, with an excerpt at their positions.

use std::ops::Range;

use annotate_snippets::{Level, Renderer, Snippet};

use crate::format::{is_terminal_control, printable};

/// The longest mark, in characters. The renderer would show all lines of a longer one.
const MAX_MARK_LEN: usize = 80;

/// A message about a range of a text.
pub struct SourceMessage<'a> {
    pub level: Level,
    /// A range of bytes in the text.
    pub span: &'a Range<usize>,
    /// The label at the mark.
    pub label: Option<&'a str>,
    /// A related position, and why it is related.
    pub other: Option<(&'a Range<usize>, &'a str)>,
    pub message: &'a str,
    pub help: Option<&'a str>,
}

impl SourceMessage<'_> {
    /// Renders the message with the lines that it is about; the text must be [`sanitized`].
    pub fn render_message(&self, name: &str, text: &str) -> String {
        let within = |span: &Range<usize>| {
            let start = span.start.min(text.len());
            let longest = text[start..].char_indices().nth(MAX_MARK_LEN);
            start..span.end.min(longest.map_or(text.len(), |(length, _)| start + length))
        };
        let name = printable(name);
        // Each of these quotes the text.
        let [message, label, help] =
            [Some(self.message), self.label, self.help].map(|text| text.map(printable));
        let mut mark = self.level.span(within(self.span));
        if let Some(label) = &label {
            mark = mark.label(label);
        }
        let mut snippet = Snippet::source(text).origin(&name).fold(true).annotation(mark);
        // The renderer does not count "note: " when it checks whether this label would overlap the
        // mark, so blanks of the same length are appended.
        let why = self.other.map(|(span, why)| (span, printable(&format!("{why}{:6}", ""))));
        if let Some((span, why)) = &why {
            snippet = snippet.annotation(Level::Note.span(within(span)).label(why));
        }
        let message = message.unwrap_or_default();
        let mut message = self.level.title(&message).snippet(snippet);
        if let Some(help) = &help {
            message = message.footer(Level::Help.title(help));
        }
        let drawn = Renderer::plain().render(message).to_string();
        drawn.lines().map(|line| format!("{}\n", line.trim_end())).collect()
    }
}

/// Replaces characters that control the terminal, and tabs, which would shift the mark below them.
/// The text keeps its length.
pub fn sanitized(text: &str) -> String {
    let one = |c: char| match c {
        '\n' => c,
        '\t' | '\r' => ' ',
        c if !is_terminal_control(c) => c,
        c => ['?', '\u{bf}', '\u{fffd}'][c.len_utf8() - 1],
    };
    text.chars().map(one).collect()
}
