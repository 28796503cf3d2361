//! `tollgate service check`: checks a rule file and prints how its rules are evaluated.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::process::ExitCode;

use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::Value;
use service::{AtEnd, Id, Rule, RuleEvent, RuleFile};
use toml_reader::Problem;

use super::arguments::ServiceCheckArguments;
use super::render;
use super::rule_file::KIND;
use super::system_host::SystemHost;
use crate::file_problems::{FileProblem, excerpt};
use crate::format::{and_more, number_of, printable};
use crate::output::{Output, print_message};
use crate::source_file::SourceFile;
use crate::source_message::sanitized;

/// The result as JSON (docs/service.md).
#[derive(Serialize)]
struct ServiceCheckReport<'a> {
    schema: &'static str,
    file: &'a str,
    problems: Vec<FileProblem<'a>>,
    services: Vec<CheckedService<'a>>,
    /// In order of precedence.
    rules: Vec<RuleRow<'a>>,
    /// Number of hash look-ups by event.
    look_ups: BTreeMap<&'static str, usize>,
    notes: Vec<Note>,
}

/// A note on a rule that is valid, but does not do what it seems to do.
#[derive(Serialize)]
struct Note {
    line: usize,
    message: String,
}

#[derive(Serialize)]
struct CheckedService<'a> {
    name: &'a str,
    parent: Option<&'a str>,
    limits: BTreeMap<&'static str, Value>,
}

#[derive(Serialize)]
struct RuleRow<'a> {
    line: usize,
    name: Option<&'a str>,
    priority: i32,
    on: Vec<&'static str>,
    when: BTreeMap<&'static str, String>,
    then: Value,
}

pub fn check(arguments: &ServiceCheckArguments) -> Result<ExitCode> {
    let result = &arguments.result;
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    output.refuse_inputs([&arguments.file])?;
    let source = SourceFile::read(&arguments.file, KIND)?;
    let parsed = service::parse(&source.text, &SystemHost::default());
    if result.json {
        output.write_json(&report(&source, &parsed))?;
    }
    match parsed {
        Ok(file) if !result.json => output.write(&text(&file, &source, result.top))?,
        Ok(_) => {}
        Err(problems) => {
            if !result.json {
                print_problems(&problems, &source, result.top)?;
            }
            bail!("{} has {}", printable(&source.name), number_of(problems.len(), "problem"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_problems(problems: &[Problem], source: &SourceFile, top: usize) -> Result<()> {
    let shown = sanitized(&source.text);
    for problem in problems.iter().take(top) {
        print_message(&excerpt(problem, &source.name, &shown))?;
    }
    let more = and_more(problems.len(), top, "problem");
    if !more.is_empty() {
        print_message(more.trim_end())?;
    }
    Ok(())
}

fn report<'a>(
    source: &'a SourceFile,
    parsed: &'a Result<RuleFile, Vec<Problem>>,
) -> ServiceCheckReport<'a> {
    let file = parsed.as_ref().ok();
    let problems = parsed.as_ref().err().into_iter().flatten();
    let services = file.into_iter().flat_map(|file| {
        let parent = |id| (id != Id::ROOT).then(|| file.tree.name(file.tree.get(id).parent));
        file.tree.ids().map(move |id| CheckedService {
            name: file.tree.name(id),
            parent: parent(id),
            limits: limits(file, id).into_iter().collect(),
        })
    });
    let rules = file.into_iter().flat_map(|file| {
        file.ruleset.rules().iter().map(|rule| RuleRow {
            line: source.line(rule.span.start),
            name: rule.name.as_deref(),
            priority: rule.priority,
            on: rule.events.iter().map(|event| event.name()).collect(),
            when: render::conditions(&rule.conditions, &file.tree).into_iter().collect(),
            then: render::as_toml(rule.action, &file.tree),
        })
    });
    let look_ups = file.into_iter().flat_map(|file| {
        RuleEvent::ALL.map(|event| (event.name(), file.tuple_space.tuple_count(event)))
    });
    ServiceCheckReport {
        schema: "tollgate.service.check/1",
        file: &source.name,
        problems: problems.map(|problem| FileProblem::new(problem, source)).collect(),
        services: services.collect(),
        rules: rules.collect(),
        look_ups: look_ups.collect(),
        notes: file.map_or_else(Vec::new, |file| notes(file, source)),
    }
}

fn notes(file: &RuleFile, source: &SourceFile) -> Vec<Note> {
    let of_script = |rule: &Rule| {
        let exe = rule.conditions.exe.as_ref()?;
        let first = shebang(exe)?;
        let message =
            format!("{exe} is a script ({first}); exe is compared with its interpreter instead");
        Some(Note { line: source.line(rule.span.start), message })
    };
    file.ruleset.rules().iter().filter_map(of_script).collect()
}

/// The first line of a script, if it names an interpreter.
fn shebang(path: &str) -> Option<String> {
    // Opening other kinds of files may block.
    fs::metadata(path).ok()?.is_file().then_some(())?;
    let mut beginning = Vec::new();
    // The kernel reads this much: BINPRM_BUF_SIZE, include/uapi/linux/binfmts.h.
    fs::File::open(path).ok()?.take(256).read_to_end(&mut beginning).ok()?;
    let line =
        beginning.split(|byte| *byte == b'\n').next().filter(|line| line.starts_with(b"#!"))?;
    Some(String::from_utf8_lossy(line).into_owned())
}

fn text(file: &RuleFile, source: &SourceFile, top: usize) -> String {
    let rules = file.ruleset.rules();
    let mut out = format!(
        "{}: {}, {}\n\nservices\n",
        printable(&source.name),
        number_of(file.tree.ids().count(), "service"),
        number_of(rules.len(), "rule")
    );
    let mut rows = Vec::new();
    tree_lines(&mut rows, file, Id::ROOT, 1);
    rows.iter().take(top).for_each(|row| out.push_str(row));
    out.push_str(&and_more(rows.len(), top, "service"));
    if file.at_end == AtEnd::Keep {
        let _ = writeln!(out, "threads stay in their control groups when the daemon ends (at-end)");
    }
    if rules.is_empty() {
        return out;
    }
    let _ = writeln!(out, "\nrules, in order of precedence");
    let shown: Vec<_> = rules
        .iter()
        .take(top)
        .map(|rule| (rule, render::action(rule.action, &file.tree)))
        .collect();
    let width = shown.iter().map(|(_, then)| then.chars().count()).max().unwrap_or(0);
    let _ = writeln!(out, "{:>6} {:>8}  {:<15}  {:<width$}  if", "line", "priority", "on", "then");
    for (rule, then) in shown {
        let events: Vec<_> = rule.events.iter().map(|event| event.name()).collect();
        let conditions = render::conditions(&rule.conditions, &file.tree);
        let conditions: Vec<_> =
            conditions.iter().map(|(key, value)| format!("{key} {}", printable(value))).collect();
        let name = rule.name.as_ref().map(|name| format!("  ({})", printable(name)));
        let _ = writeln!(
            out,
            "{:>6} {:>8}  {:<15}  {then:<width$}  {}{}",
            source.line(rule.span.start),
            rule.priority,
            events.join(" "),
            conditions.join(", "),
            name.unwrap_or_default()
        );
    }
    out.push_str(&and_more(rules.len(), top, "rule"));
    let look_ups = RuleEvent::ALL
        .map(|event| format!("{} {}", event.name(), file.tuple_space.tuple_count(event)));
    let _ = writeln!(out, "\nlook-ups per event: {}", look_ups.join(", "));
    let notes = notes(file, source);
    for note in notes.iter().take(top) {
        let _ = writeln!(out, "note: line {}: {}", note.line, printable(&note.message));
    }
    out.push_str(&and_more(notes.len(), top, "note"));
    out
}

fn limits(file: &RuleFile, id: Id) -> Vec<(&'static str, Value)> {
    file.limits.get(&id).map_or_else(Vec::new, |limits| render::limits(limits, &file.tree))
}

fn tree_lines(rows: &mut Vec<String>, file: &RuleFile, id: Id, depth: usize) {
    let name = format!("{:depth$}{}", "", file.tree.name(id), depth = 2 * depth);
    let limits: Vec<_> =
        limits(file, id).iter().map(|(key, value)| format!("{key} = {value}")).collect();
    rows.push(format!("{}\n", format!("{name:<24} {}", limits.join(", ")).trim_end()));
    file.tree.children(id).for_each(|child| tree_lines(rows, file, child, depth + 1));
}

#[cfg(test)]
mod tests {
    use super::shebang;

    #[test]
    fn scripts_are_recognized() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("script");
        for (text, is) in
            [("#! /bin/sh -e\nexit\n", Some("#! /bin/sh -e")), ("\x7fELF", None), ("", None)]
        {
            std::fs::write(&path, text).expect("a file");
            assert_eq!(shebang(path.to_str().expect("text")).as_deref(), is, "{text:?}");
        }
        assert_eq!(shebang("/nowhere"), None);
        assert_eq!(shebang("/dev/zero"), None);
    }
}
