//! What is wrong with a text, shown at its place.

use std::ops::Range;

use annotate_snippets::{Level, Renderer, Snippet};

use crate::format::{printable, steers};

/// Characters: of a longer one, its lines would be shown whole.
const LONGEST_MARK: usize = 80;

pub struct Finding<'a> {
    pub level: Level,
    /// Bytes of the text.
    pub span: &'a Range<usize>,
    /// At the mark.
    pub label: Option<&'a str>,
    /// Another place that has to do with it, and why.
    pub other: Option<(&'a Range<usize>, &'a str)>,
    pub message: &'a str,
    pub help: Option<&'a str>,
}

impl Finding<'_> {
    /// With the lines that it is about, of a text that is [`harmless`].
    pub fn excerpt(&self, name: &str, text: &str) -> String {
        let within = |span: &Range<usize>| {
            let start = span.start.min(text.len());
            let longest = text[start..].char_indices().nth(LONGEST_MARK);
            start..span.end.min(longest.map_or(text.len(), |(length, _)| start + length))
        };
        let name = printable(name);
        let mut mark = self.level.span(within(self.span));
        if let Some(label) = self.label {
            mark = mark.label(label);
        }
        let mut snippet = Snippet::source(text).origin(&name).fold(true).annotation(mark);
        // Blanks, as many as "note: " has, which is not counted where it is found whether this comes upon the mark.
        let why = self.other.map(|(span, why)| (span, format!("{why}{:6}", "")));
        if let Some((span, why)) = &why {
            snippet = snippet.annotation(Level::Note.span(within(span)).label(why));
        }
        let mut message = self.level.title(self.message).snippet(snippet);
        if let Some(help) = self.help {
            message = message.footer(Level::Help.title(help));
        }
        let drawn = Renderer::plain().render(message).to_string();
        drawn.lines().map(|line| format!("{}\n", line.trim_end())).collect()
    }
}

/// Of the same length, with nothing that steers the terminal, and no tab, which would move the mark below it.
pub fn harmless(text: &str) -> String {
    let one = |c: char| match c {
        '\n' => c,
        '\t' | '\r' => ' ',
        c if !steers(c) => c,
        c => ['?', '\u{bf}', '\u{fffd}'][c.len_utf8() - 1],
    };
    text.chars().map(one).collect()
}
