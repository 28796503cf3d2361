//! What is wrong with a rule file, as people and programs read it.

use annotate_snippets::{Level, Renderer, Snippet};
use anyhow::{Result, anyhow};
use serde::Serialize;
use service::{Problem, RuleFile};

use super::check::Machine;
use super::source::Source;
use crate::format::{number_of, printable};

/// For those who need a file that is right.
pub fn parsed(source: &Source) -> Result<RuleFile> {
    /// As many as fill a screen.
    const MOST: usize = 5;
    service::parse(&source.text, &Machine::default()).map_err(|problems| {
        let shown = harmless(&source.text);
        let excerpts: String =
            problems.iter().take(MOST).map(|problem| excerpt(problem, &source.name, &shown)).collect();
        anyhow!("{} has {}:\n{excerpts}", printable(&source.name), number_of(problems.len(), "problem"))
    })
}

#[derive(Serialize)]
pub struct Told<'a> {
    line: usize,
    column: usize,
    message: &'a str,
    help: Option<&'a str>,
    /// Of another place that has to do with it.
    other_line: Option<usize>,
}

impl<'a> Told<'a> {
    pub fn new(problem: &'a Problem, source: &Source) -> Self {
        let (line, column) = source.place(problem.span.start);
        let other_line = problem.other.as_ref().map(|(span, _)| source.line(span.start));
        Self { line, column, message: &problem.message, help: problem.help.as_deref(), other_line }
    }
}

/// With the lines that it is about, of a text that is [`harmless`].
pub fn excerpt(problem: &Problem, name: &str, text: &str) -> String {
    let within = |span: &std::ops::Range<usize>| span.start.min(text.len())..span.end.min(text.len());
    let name = printable(name);
    let mut snippet =
        Snippet::source(text).origin(&name).fold(true).annotation(Level::Error.span(within(&problem.span)));
    if let Some((span, why)) = &problem.other {
        snippet = snippet.annotation(Level::Note.span(within(span)).label(why));
    }
    let mut message = Level::Error.title(&problem.message).snippet(snippet);
    if let Some(help) = &problem.help {
        message = message.footer(Level::Help.title(help));
    }
    format!("{}\n", Renderer::plain().render(message))
}

/// Of the same length, with nothing that steers the terminal, and no tab, which would move the mark below it.
pub fn harmless(text: &str) -> String {
    let one = |c: char| match c {
        '\n' => c,
        '\t' | '\r' => ' ',
        c if c.is_control() && c.len_utf8() == 1 => '?',
        c if c.is_control() => '\u{bf}',
        c => c,
    };
    text.chars().map(one).collect()
}
