//! `tollgate service check`.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::Value;
use service::{AtEnd, Event, Host, Id, Problem, Rule, RuleFile};

use super::arguments::CheckArguments;
use super::problems::{KIND, Told, excerpt};
use super::words;
use crate::excerpt::harmless;
use crate::format::{and_more, number_of, printable};
use crate::output::{Output, say};
use crate::source::Source;
use crate::user;

/// This machine.
#[derive(Default)]
pub struct Machine {
    users: RefCell<HashMap<String, Option<u32>>>,
}

impl Host for Machine {
    fn user(&self, name: &str) -> Option<u32> {
        let find = || user::find(name).ok().filter(|_| !name.contains(':')).map(|identity| identity.uid);
        *self.users.borrow_mut().entry(name.into()).or_insert_with(find)
    }

    fn real_path(&self, path: &str) -> String {
        let exists = Path::new(path).ancestors().find_map(|part| Some((part, fs::canonicalize(part).ok()?)));
        let whole = exists.and_then(|(part, real)| {
            let rest = Path::new(path).strip_prefix(part).ok()?;
            real.join(rest).into_os_string().into_string().ok()
        });
        whole.unwrap_or_else(|| path.into())
    }
}

/// docs/service.md describes it.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    file: &'a str,
    problems: Vec<Told<'a>>,
    services: Vec<ServiceRow<'a>>,
    /// Those before decide over those after.
    rules: Vec<RuleRow<'a>>,
    /// By event.
    look_ups: BTreeMap<&'static str, usize>,
    notes: Vec<Note>,
}

/// Of a rule that is valid, and will not do what it seems to.
#[derive(Serialize)]
struct Note {
    line: usize,
    message: String,
}

#[derive(Serialize)]
struct ServiceRow<'a> {
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

pub fn check(arguments: &CheckArguments) -> Result<ExitCode> {
    let result = &arguments.result;
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    let source = Source::read(&arguments.file, KIND)?;
    let parsed = service::parse(&source.text, &Machine::default());
    if result.json {
        output.write_json(&document(&source, &parsed))?;
    }
    match parsed {
        Ok(file) if !result.json => output.write(&text(&file, &source, result.top))?,
        Ok(_) => {}
        Err(problems) => {
            if !result.json {
                tell(&problems, &source, result.top)?;
            }
            bail!("{} has {}", printable(&source.name), number_of(problems.len(), "problem"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn tell(problems: &[Problem], source: &Source, top: usize) -> Result<()> {
    let shown = harmless(&source.text);
    for problem in problems.iter().take(top) {
        say(&excerpt(problem, &source.name, &shown))?;
    }
    let more = and_more(problems.len(), top, "problem");
    if !more.is_empty() {
        say(more.trim_end())?;
    }
    Ok(())
}

fn document<'a>(source: &'a Source, parsed: &'a Result<RuleFile, Vec<Problem>>) -> Document<'a> {
    let file = parsed.as_ref().ok();
    let problems = parsed.as_ref().err().into_iter().flatten();
    let services = file.into_iter().flat_map(|file| {
        let parent = |id| (id != Id::ROOT).then(|| file.tree.name(file.tree.get(id).parent));
        file.tree.ids().map(move |id| ServiceRow {
            name: file.tree.name(id),
            parent: parent(id),
            limits: limits(file, id).into_iter().collect(),
        })
    });
    let rules = file.into_iter().flat_map(|file| {
        file.book.rules().iter().map(|rule| RuleRow {
            line: source.line(rule.span.start),
            name: rule.name.as_deref(),
            priority: rule.priority,
            on: rule.events.iter().map(|event| event.name()).collect(),
            when: words::conditions(&rule.when, &file.tree).into_iter().collect(),
            then: words::as_written(rule.then, &file.tree),
        })
    });
    let look_ups =
        file.into_iter().flat_map(|file| Event::ALL.map(|event| (event.name(), file.tables.sets(event))));
    Document {
        schema: "tollgate.service.check/1",
        file: &source.name,
        problems: problems.map(|problem| Told::new(problem, source)).collect(),
        services: services.collect(),
        rules: rules.collect(),
        look_ups: look_ups.collect(),
        notes: file.map_or_else(Vec::new, |file| notes(file, source)),
    }
}

fn notes(file: &RuleFile, source: &Source) -> Vec<Note> {
    let of_script = |rule: &Rule| {
        let exe = rule.when.exe.as_ref()?;
        let first = shebang(exe)?;
        let message =
            format!("{exe} is a script ({first}), and exe is compared with the program that runs it");
        Some(Note { line: source.line(rule.span.start), message })
    };
    file.book.rules().iter().filter_map(of_script).collect()
}

/// Of a script, its first line.
fn shebang(path: &str) -> Option<String> {
    // To open others may wait for somebody.
    fs::metadata(path).ok()?.is_file().then_some(())?;
    let mut beginning = Vec::new();
    // include/uapi/linux/binfmts.h, BINPRM_BUF_SIZE: so far the kernel looks.
    fs::File::open(path).ok()?.take(256).read_to_end(&mut beginning).ok()?;
    let line = beginning.split(|byte| *byte == b'\n').next().filter(|line| line.starts_with(b"#!"))?;
    Some(String::from_utf8_lossy(line).into_owned())
}

fn text(file: &RuleFile, source: &Source, top: usize) -> String {
    let rules = file.book.rules();
    let mut out = format!(
        "{}: {}, {}\n\nservices\n",
        printable(&source.name),
        number_of(file.tree.ids().count(), "service"),
        number_of(rules.len(), "rule")
    );
    let mut rows = Vec::new();
    branch(&mut rows, file, Id::ROOT, 1);
    rows.iter().take(top).for_each(|row| out.push_str(row));
    out.push_str(&and_more(rows.len(), top, "service"));
    if file.at_end == AtEnd::Keep {
        let _ = writeln!(out, "threads stay in their control groups when the daemon ends (at-end)");
    }
    if rules.is_empty() {
        return out;
    }
    let _ = writeln!(out, "\nrules, those above decide over those below");
    let shown: Vec<_> =
        rules.iter().take(top).map(|rule| (rule, words::directive(rule.then, &file.tree))).collect();
    let width = shown.iter().map(|(_, then)| then.chars().count()).max().unwrap_or(0);
    let _ = writeln!(out, "{:>6} {:>8}  {:<15}  {:<width$}  if", "line", "priority", "on", "then");
    for (rule, then) in shown {
        let events: Vec<_> = rule.events.iter().map(|event| event.name()).collect();
        let conditions = words::conditions(&rule.when, &file.tree);
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
    let look_ups = Event::ALL.map(|event| format!("{} {}", event.name(), file.tables.sets(event)));
    let _ = writeln!(out, "\nlook-ups an event: {}", look_ups.join(", "));
    let notes = notes(file, source);
    for note in notes.iter().take(top) {
        let _ = writeln!(out, "note: line {}: {}", note.line, printable(&note.message));
    }
    out.push_str(&and_more(notes.len(), top, "note"));
    out
}

fn limits(file: &RuleFile, id: Id) -> Vec<(&'static str, Value)> {
    file.limits.get(&id).map_or_else(Vec::new, |limits| words::limits(limits, &file.tree))
}

fn branch(rows: &mut Vec<String>, file: &RuleFile, id: Id, depth: usize) {
    let name = format!("{:depth$}{}", "", file.tree.name(id), depth = 2 * depth);
    let limits: Vec<_> = limits(file, id).iter().map(|(key, value)| format!("{key} = {value}")).collect();
    rows.push(format!("{}\n", format!("{name:<24} {}", limits.join(", ")).trim_end()));
    file.tree.children(id).for_each(|child| branch(rows, file, child, depth + 1));
}

#[cfg(test)]
mod tests {
    use super::shebang;

    #[test]
    fn scripts_are_told_from_programs() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("script");
        for (text, is) in [("#! /bin/sh -e\nexit\n", Some("#! /bin/sh -e")), ("\x7fELF", None), ("", None)] {
            std::fs::write(&path, text).expect("a file");
            assert_eq!(shebang(path.to_str().expect("text")).as_deref(), is, "{text:?}");
        }
        assert_eq!(shebang("/nowhere"), None);
        assert_eq!(shebang("/dev/zero"), None);
    }
}
