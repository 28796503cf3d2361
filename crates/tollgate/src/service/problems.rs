//! What is wrong with a rule file, as people and programs read it.

use annotate_snippets::{Level, Renderer, Snippet};
use serde::Serialize;
use service::Problem;

use super::source::Source;
use crate::format::printable;

#[derive(Serialize)]
pub struct Told<'a> {
    line: usize,
    column: usize,
    message: &'a str,
    help: Option<&'a str>,
}

impl<'a> Told<'a> {
    pub fn new(problem: &'a Problem, source: &Source) -> Self {
        let (line, column) = source.place(problem.span.start);
        Self { line, column, message: &problem.message, help: problem.help.as_deref() }
    }
}

/// With the lines that it is about.
pub fn excerpt(problem: &Problem, source: &Source) -> String {
    let shown: String = source.text.chars().map(harmless).collect();
    let end = shown.len();
    let within = |span: &std::ops::Range<usize>| span.start.min(end)..span.end.min(end);
    let name = printable(&source.name);
    let mut snippet =
        Snippet::source(&shown).origin(&name).fold(true).annotation(Level::Error.span(within(&problem.span)));
    if let Some((span, why)) = &problem.other {
        snippet = snippet.annotation(Level::Note.span(within(span)).label(why));
    }
    let mut message = Level::Error.title(&problem.message).snippet(snippet);
    if let Some(help) = &problem.help {
        message = message.footer(Level::Help.title(help));
    }
    format!("{}\n", Renderer::plain().render(message))
}

/// A character as long that does not steer the terminal.
fn harmless(c: char) -> char {
    match c {
        '\n' => c,
        // A tab would move the mark below it.
        '\t' | '\r' => ' ',
        c if c.is_control() && c.len_utf8() == 1 => '?',
        c if c.is_control() => '\u{bf}',
        c => c,
    }
}
