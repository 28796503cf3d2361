//! What is said of faulty programs: each line of the text beside the tests is one, with what is said below it.
//!
//!     UPDATE=1 cargo test -p ecode problems    # writes it anew

#[expect(dead_code, reason = "these programs are not run")]
#[path = "../tests/common/mod.rs"]
mod common;

use crate::{Diagnostic, Loops, Span, check, compile};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/problems.txt");
/// Of what a problem is about, so much is shown.
const LONGEST: usize = 40;

/// «3 ab» is ababab.
fn written_out(line: &str) -> String {
    let mut parts = line.split('«');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (repeated, rest) = part.split_once('»').expect("it is closed");
        let (times, repeated) = repeated.split_once(' ').expect("a number and a text");
        text += &repeated.repeat(times.parse().expect("a number"));
        text += rest;
    }
    text
}

fn problems(text: &str) -> Vec<Diagnostic> {
    let (program, mut problems) = check(text, &common::Plain);
    let compiled = program.map(|program| compile(&program, text, "problems.ec", Loops::MayGoto));
    problems.extend(compiled.and_then(Result::err).map(|problem| *problem));
    problems
}

fn told(text: &str) -> String {
    let marked = |span: &Span| {
        let all = &text[span.clone()];
        let shown: String = all.chars().take(LONGEST).collect();
        if shown == all { format!("`{all}`") } else { format!("`{shown}…`") }
    };
    let one = |problem: &Diagnostic| {
        let Diagnostic { severity, span, message, label, other, help } = problem;
        let mut lines = format!("    {} at {}: {message}\n", severity.name(), marked(span));
        if let Some(label) = label {
            lines += &format!("        {label}\n");
        }
        if let Some((span, why)) = other {
            lines += &format!("        {why}: {}\n", marked(span));
        }
        if let Some(help) = help {
            lines += &format!("        help: {help}\n");
        }
        lines
    };
    let problems = problems(text);
    if problems.is_empty() { "    nothing\n".into() } else { problems.iter().map(one).collect() }
}

#[test]
fn problems_are_told_as_they_are_written_down() {
    let expected = std::fs::read_to_string(FILE).expect("it is there");
    let is_kept = |line: &&str| line.is_empty() || line.starts_with("//");
    let mut all = String::new();
    for line in expected.lines().filter(|line| !line.starts_with("    ")) {
        all += line;
        all.push('\n');
        if !is_kept(&line) {
            all += &told(&written_out(line));
        }
    }
    if std::env::var_os("UPDATE").is_some() {
        return std::fs::write(FILE, &all).expect("it is written");
    }
    for (line, (expected, found)) in expected.lines().zip(all.lines()).enumerate() {
        assert_eq!(found, expected, "{FILE}:{}", line + 1);
    }
    assert_eq!(all, expected);
}
