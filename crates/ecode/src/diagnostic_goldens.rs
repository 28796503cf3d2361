//! Compares the diagnostics of faulty programs with tests/diagnostics.txt, in which each unindented
//! line is a program and the indented lines below it are its diagnostics.
//!
//!     UPDATE=1 cargo test -p ecode goldens    # rewrites the file

#[expect(dead_code, reason = "these programs are not run")]
#[path = "../tests/common/mod.rs"]
mod common;

use std::cell::RefCell;
use std::collections::HashSet;
use std::fs;
use std::panic::Location;
use std::path::Path;

use crate::{Diagnostic, Loops, Span, check, compile};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/diagnostics.txt");
/// The maximum number of characters of the marked text that are shown.
const MAX_SHOWN: usize = 40;

/// Expands repetitions: «3 a#» is a0a1a2, and ␀ is a NUL.
fn written_out(line: &str) -> String {
    let mut parts = line.split('«');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (repeated, rest) = part.split_once('»').expect("it is closed");
        let (times, repeated) = repeated.split_once(' ').expect("a number and a text");
        let times: usize = times.parse().expect("a number");
        text.extend((0..times).map(|number| repeated.replace('#', &number.to_string())));
        text += rest;
    }
    text.replace('␀', "\0")
}

fn problems(text: &str) -> Vec<Diagnostic> {
    let (program, mut problems) = check(text, &common::TestHooks);
    let refused = |program| {
        let all = [Loops::MayGoto, Loops::Helper].into_iter();
        all.map(|loops| compile(&program, text, "problems.ec", loops)).find_map(Result::err)
    };
    problems.extend(program.and_then(refused).map(|problem| *problem));
    problems
}

fn render(text: &str) -> String {
    let marked = |span: &Span| {
        let all = &text[span.clone()];
        let shown: String = all.chars().take(MAX_SHOWN).collect();
        let more = if shown == all { "" } else { "…" };
        format!("`{}{more}`", shown.replace('\0', "␀"))
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

thread_local! {
    /// The code positions that have made diagnostics: files below `src`, and lines.
    static MADE: RefCell<HashSet<(String, usize)>> = RefCell::default();
}

pub fn record_site(at: &Location<'_>) {
    let (_, file) = at.file().rsplit_once("src/").expect("all of the compiler is there");
    MADE.with_borrow_mut(|made| made.insert((file.into(), at.line() as usize)));
}

/// All lines of the compiler that make a diagnostic.
fn diagnostic_sites(folder: &Path, within: &str) -> Vec<(String, usize)> {
    let mut makers = Vec::new();
    for entry in fs::read_dir(folder).expect("it is there") {
        let path = entry.expect("it is there").path();
        let name = format!("{within}{}", path.file_name().expect("it has one").to_string_lossy());
        if path.is_dir() {
            makers.extend(self::diagnostic_sites(&path, &format!("{name}/")));
            continue;
        }
        let text = fs::read_to_string(&path).expect("it is text");
        let makes = |line: &str| {
            ["error", "warning"].iter().any(|one| line.contains(&format!("Diagnostic::{one}(")))
        };
        let lines = text.lines().enumerate().filter(|(_, line)| makes(line));
        makers.extend(lines.map(|(before, _)| (name.clone(), before + 1)));
    }
    makers
}

#[test]
fn every_diagnostic_has_a_golden() {
    let cases = fs::read_to_string(FILE).expect("it is there");
    for line in cases.lines().filter(|line| !line.starts_with("    ")) {
        problems(&written_out(line));
    }
    let all = diagnostic_sites(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "");
    assert!(all.len() > 100, "{all:?}");
    let missing: Vec<_> =
        MADE.with_borrow(|made| all.into_iter().filter(|at| !made.contains(at)).collect());
    assert_eq!(missing, [], "{FILE} has no program for these");
}

#[test]
fn diagnostics_match_the_goldens() {
    let expected = fs::read_to_string(FILE).expect("it is there");
    let is_kept = |line: &&str| line.is_empty() || line.starts_with("//");
    let mut all = String::new();
    for line in expected.lines().filter(|line| !line.starts_with("    ")) {
        all += line;
        all.push('\n');
        if !is_kept(&line) {
            all += &render(&written_out(line));
        }
    }
    if std::env::var_os("UPDATE").is_some() {
        return fs::write(FILE, &all).expect("it is written");
    }
    for (line, (expected, found)) in expected.lines().zip(all.lines()).enumerate() {
        assert_eq!(found, expected, "{FILE}:{}", line + 1);
    }
    assert_eq!(all, expected);
}
