//! What is wrong with a rule file, as people and programs read it.

use annotate_snippets::Level;
use anyhow::{Result, anyhow};
use serde::Serialize;
use service::{Problem, RuleFile};

use super::check::Machine;
use crate::excerpt::{Finding, harmless};
use crate::format::{number_of, printable};
use crate::source::Source;

/// What a rule file is called where something else is found.
pub const KIND: &str = "file of services";

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

pub fn excerpt(problem: &Problem, name: &str, text: &str) -> String {
    let finding = Finding {
        level: Level::Error,
        span: &problem.span,
        label: None,
        other: problem.other.as_ref().map(|(span, why)| (span, why.as_str())),
        message: &problem.message,
        help: problem.help.as_deref(),
    };
    finding.excerpt(name, text)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    /// Something of everything that a file may have.
    const FILE: &str = r#"
[service.customers]
cpu-max = "150%"
[service."shop.example"]
parent = "customers"
cpu-weight = 200
memory-max = "2G"
sockets-max = 1000
beyond-errno = "EMFILE"
[service.blog]
network-max = "10M"
connections-max = 5
beyond-service = "customers"
[limits]
at-end = "keep"
[[rule]]
name = "the shop's"
exe = "/usr/sbin/nginx"
listen = "127.0.0.1:8081"
client = "10.0.0.0/8"
priority = -3
belongs-to = "shop.example"
[[rule]]
cgroup = "/system.slice/php.service"
user = "0"
on = ["exec", "found"]
starts-below = "blog"
each = "user"
[[rule]]
file = "/srv/blog"
unit = "backup"
inherits = true
[[rule]]
peer = "blog"
service = "blog"
listen = "@name"
adopts-peer = true
"#;
    const PARTS: [&str; 24] = [
        "\"",
        "[",
        "]",
        "=",
        "\n",
        "\u{feff}",
        "\0",
        "é",
        "\u{202e}",
        "'''",
        "\\u0000",
        "-",
        "1e999",
        "99999999999999999999",
        "service",
        "rule",
        "[[rule]]\n",
        "parent = \"blog\"\n",
        "/",
        "%",
        ":",
        "true",
        "{}",
        "1979-05-27",
    ];

    /// Bytes of it are replaced: from where, how many, by what.
    fn edits() -> impl Strategy<Value = Vec<(usize, usize, &'static str)>> {
        vec((0..FILE.len(), 0..40_usize, select(&PARTS[..])), 1..6)
    }

    /// Whatever is wrong, it is told of with a place that is there, and shown.
    fn is_told_of(text: &str) {
        let source = Source::new("fuzz".into(), text.into());
        let Err(problems) = service::parse(text, &Machine::default()) else { return };
        assert!(!problems.is_empty());
        let shown = harmless(text);
        for problem in &problems {
            let told = Told::new(problem, &source);
            assert!(told.line >= 1 && told.column >= 1 && told.line <= 1 + text.matches('\n').count());
            assert!(excerpt(problem, "fuzz", &shown).contains("error"));
        }
    }

    proptest! {
        #[test]
        fn any_text_is_told_of(text in any::<String>()) {
            is_told_of(&text);
        }

        #[test]
        fn any_edit_is_told_of(edits in edits()) {
            let mut text = FILE.to_owned();
            for (from, length, by) in edits {
                let mut at = from.min(text.len());
                let mut end = (at + length).min(text.len());
                while !text.is_char_boundary(at) { at -= 1; }
                while !text.is_char_boundary(end) { end += 1; }
                text.replace_range(at..end, by);
            }
            is_told_of(&text);
        }
    }

    #[test]
    fn it_is_right_as_it_is() {
        assert_eq!(service::parse(FILE, &Machine::default()).map(|file| file.book.rules().len()), Ok(4));
    }
}
