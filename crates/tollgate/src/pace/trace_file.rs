//! Traces of tasks, in JSON Lines: the types, and then one task on each line.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::ops::RangeInclusive;
use std::path::Path;

use ::pace::{DEADLINE_MS, TARGET, TraceTask};
use anyhow::{Context, Result, anyhow, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::json_error;
use super::json_object::{FromObject, JsonObject};
use crate::format::{number_of, shown_path};
use crate::limited_input::LimitedInput;

const SCHEMA: &str = "tollgate.pace.trace/1";
/// The maximum number of characters that a message has of another schema.
const SHOWN_SCHEMA: usize = 40;
/// The maximum length of a type's name in bytes. Those of a watch are shorter: program, rule,
/// descriptor and port.
const MAX_NAME: usize = 200;
/// The time between the last task of a trace and the first one of the next trace, in seconds. The
/// processor is idle then, as between two recordings.
const GAP: f64 = 1.0;

/// Up to a week, so that the times of a simulation are exact to a nanosecond.
pub const BEGIN_S: RangeInclusive<f64> = 0.0..=604_800.0;
/// Up to an hour at 5 GHz.
pub const CYCLES: RangeInclusive<f64> = 0.0..=1.8e13;

/// A type of tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceType {
    pub name: String,
    pub deadline_ms: f64,
    /// The share of the tasks that should meet their deadlines.
    pub target: f64,
}

/// Tasks in the order of their beginnings; [`TraceTask::kind`] is an index in `types`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    pub types: Vec<TraceType>,
    pub tasks: Vec<TraceTask>,
}

/// What the header of each version has.
#[derive(Deserialize)]
struct TraceSchema {
    schema: String,
}

#[derive(Serialize)]
struct TraceHeader {
    schema: &'static str,
    types: Vec<TraceType>,
}

/// The types in the header.
#[derive(Deserialize)]
struct HeaderTypes {
    types: Vec<FromObject<TraceType>>,
}

#[derive(Serialize, Deserialize)]
struct TaskLine {
    #[serde(rename = "type")]
    kind: usize,
    begin_s: f64,
    cycles: f64,
    /// If it differs from that of the type.
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_ms: Option<f64>,
}

impl JsonObject for TraceType {
    const EXPECTED: &str = "an object with name, deadline_ms and target";
}

impl JsonObject for TraceSchema {
    const EXPECTED: &str = "an object with the schema and the types";
}

impl JsonObject for HeaderTypes {
    const EXPECTED: &str = TraceSchema::EXPECTED;
}

impl JsonObject for TaskLine {
    const EXPECTED: &str = "an object with type, begin_s and cycles";
}

/// Reads traces one after the other. Types with the same name are one type.
pub fn read(paths: &[impl AsRef<Path>]) -> Result<Trace> {
    let mut all = Trace::default();
    for path in paths {
        let path = path.as_ref();
        let (name, input): (_, Box<dyn BufRead>) = match path.to_str() {
            Some("-") => {
                ("stdin".to_owned(), Box::new(BufReader::new(LimitedInput::new(io::stdin()))))
            }
            _ => {
                let name = shown_path(path);
                let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
                (name, Box::new(BufReader::new(LimitedInput::new(file))))
            }
        };
        let trace = parse(input, &name)?;
        all.append(trace).with_context(|| name.clone())?;
    }
    Ok(all)
}

fn parse(input: impl BufRead, name: &str) -> Result<Trace> {
    let mut lines = (1_u32..)
        .zip(input.lines())
        .filter(|(_, line)| line.as_ref().map_or(true, |line| !line.trim().is_empty()));
    let cannot_read = || format!("cannot read {name}");
    let Some((line, first)) = lines.next() else { bail!("{name} is empty") };
    let first = first.with_context(cannot_read)?;
    // Some editors mark texts as UTF-8.
    let first = first.trim_start_matches('\u{feff}');
    let what = "the first line of a trace has the schema and the types";
    let TraceSchema { schema } = parse_line(first, name, line, what)?;
    if schema != SCHEMA {
        let schema: String = schema.chars().take(SHOWN_SCHEMA).collect();
        bail!("{name}:{line}: the schema is {schema:?}, but this version reads {SCHEMA:?}");
    }
    let header: HeaderTypes = parse_line(first, name, line, what)?;
    let types: Vec<_> = header.types.into_iter().map(|FromObject(kind)| kind).collect();
    let mut names = BTreeSet::new();
    for (index, kind) in types.iter().enumerate() {
        check_type(kind).with_context(|| format!("{name}:{line}: type {index}"))?;
        if !names.insert(&kind.name) {
            bail!("{name}:{line}: two types have the name {:?}", kind.name);
        }
    }
    let mut trace = Trace { types, tasks: Vec::new() };
    for (line, text) in lines {
        let text = text.with_context(cannot_read)?;
        let task = parse_line(&text, name, line, "not a task")?;
        let task =
            task_of(&task, &trace.types).with_context(|| format!("{name}:{line}: not a task"))?;
        trace.tasks.push(task);
    }
    if trace.tasks.is_empty() {
        bail!("{name} has no task");
    }
    trace.tasks.sort_by(|a, b| a.begin.total_cmp(&b.begin));
    Ok(trace)
}

/// Parses a line of a trace. An error has the position of the problem, and says `what` the line is.
fn parse_line<T: DeserializeOwned + JsonObject>(
    text: &str,
    name: &str,
    line: u32,
    what: &str,
) -> Result<T> {
    let parsed = serde_json::from_str(text).map(|FromObject(parsed)| parsed);
    parsed.map_err(|error| {
        let (column, message) = (json_error::column(&error), json_error::message(&error));
        anyhow!("{name}:{line}{column}: {what}: {message}")
    })
}

fn check_type(kind: &TraceType) -> Result<()> {
    if kind.name.trim().is_empty() {
        bail!("the name is empty");
    }
    if kind.name.len() > MAX_NAME {
        bail!("the name has {} bytes; at most {MAX_NAME} are accepted", kind.name.len());
    }
    check_range("deadline_ms", kind.deadline_ms, &DEADLINE_MS)?;
    check_range("target", kind.target, &TARGET)
}

fn check_range(key: &str, value: f64, range: &RangeInclusive<f64>) -> Result<()> {
    if !range.contains(&value) {
        // This form has an exponent where the other one has hundreds of zeros.
        let text = format!("{value:?}");
        let text = text.strip_suffix(".0").unwrap_or(&text);
        bail!("{key} is {text}, but must be from {} to {}", range.start(), range.end());
    }
    Ok(())
}

fn task_of(line: &TaskLine, types: &[TraceType]) -> Result<TraceTask> {
    let Some(kind) = types.get(line.kind) else {
        bail!(
            "there is no type {}; the first line has {}, numbered from 0",
            line.kind,
            number_of(types.len(), "type")
        );
    };
    check_range("begin_s", line.begin_s, &BEGIN_S)?;
    check_range("cycles", line.cycles, &CYCLES)?;
    let deadline_ms = line.deadline_ms.unwrap_or(kind.deadline_ms);
    check_range("deadline_ms", deadline_ms, &DEADLINE_MS)?;
    Ok(TraceTask {
        kind: line.kind,
        begin: line.begin_s,
        cycles: line.cycles,
        deadline: deadline_ms / 1e3,
    })
}

/// Writes a trace.
pub fn write(trace: &Trace, to: &mut impl Write) -> Result<()> {
    let header = TraceHeader { schema: SCHEMA, types: trace.types.clone() };
    serde_json::to_writer(&mut *to, &header)?;
    writeln!(to)?;
    for task in &trace.tasks {
        let deadline_ms = task.deadline * 1e3;
        let usual = trace.types[task.kind].deadline_ms;
        let line = TaskLine {
            kind: task.kind,
            begin_s: task.begin,
            cycles: task.cycles,
            deadline_ms: ((deadline_ms - usual).abs() > usual * 1e-9).then_some(deadline_ms),
        };
        serde_json::to_writer(&mut *to, &line)?;
        writeln!(to)?;
    }
    Ok(())
}

impl Trace {
    fn append(&mut self, other: Self) -> Result<()> {
        let mut kinds = Vec::new();
        for kind in other.types {
            let same = self.types.iter().position(|known| known.name == kind.name);
            if same.is_some_and(|index| self.types[index] != kind) {
                bail!("an earlier trace has another deadline or target for {:?}", kind.name);
            }
            kinds.push(same.unwrap_or(self.types.len()));
            if same.is_none() {
                self.types.push(kind);
            }
        }
        let first = other.tasks.first().map_or(0.0, |task| task.begin);
        let offset = self.tasks.last().map_or(0.0, |task| task.begin + GAP - first);
        self.tasks.extend(other.tasks.into_iter().map(|task| TraceTask {
            kind: kinds[task.kind],
            begin: task.begin + offset,
            ..task
        }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = concat!(
        r#"{"schema":"tollgate.pace.trace/1","types":[{"name":"a","deadline_ms":50,"target":0.9},"#,
        r#"{"name":"b","deadline_ms":20,"target":1}]}"#
    );

    fn parsed(tasks: &str) -> Result<Trace> {
        parse(format!("{HEADER}\n{tasks}").as_bytes(), "t")
    }

    #[test]
    fn tasks_are_sorted_and_have_deadlines() {
        let trace = parsed(concat!(
            "{\"type\":1,\"begin_s\":2,\"cycles\":5}\n\n",
            "{\"type\":0,\"begin_s\":1.5,\"cycles\":6,\"deadline_ms\":70,\"end_s\":2}\n"
        ))
        .unwrap();
        let tasks: Vec<_> =
            trace.tasks.iter().map(|task| (task.kind, task.begin, task.deadline)).collect();
        assert_eq!(tasks, [(0, 1.5, 0.07), (1, 2.0, 0.02)]);
    }

    #[test]
    fn trace_is_read_as_it_was_written() {
        let trace = parsed(concat!(
            "{\"type\":0,\"begin_s\":1.25,\"cycles\":6,\"deadline_ms\":70}\n",
            "{\"type\":1,\"begin_s\":2,\"cycles\":5}\n"
        ))
        .unwrap();
        let mut text = Vec::new();
        write(&trace, &mut text).unwrap();
        assert_eq!(parse(&text[..], "t").unwrap(), trace);
        assert_eq!(String::from_utf8(text).unwrap().matches("deadline_ms").count(), 3);
    }

    #[test]
    fn mark_of_utf_8_is_ignored() {
        let task = "{\"type\":0,\"begin_s\":3,\"cycles\":5}";
        let text = format!("\u{feff}{HEADER}\r\n{task}\r\n");
        assert_eq!(parse(text.as_bytes(), "t").unwrap(), parsed(task).unwrap());
    }

    #[test]
    fn traces_follow_each_other() {
        let mut all = Trace::default();
        all.append(parsed("{\"type\":0,\"begin_s\":3,\"cycles\":5}").unwrap()).unwrap();
        let mut other = parsed("{\"type\":1,\"begin_s\":7,\"cycles\":5}").unwrap();
        other.types.reverse();
        all.append(other.clone()).unwrap();
        let tasks: Vec<_> = all.tasks.iter().map(|task| (task.kind, task.begin)).collect();
        assert_eq!(tasks, [(0, 3.0), (0, 4.0)]);
        other.types[0].target = 0.5;
        assert!(all.append(other).unwrap_err().to_string().contains("another deadline or target"));
    }

    #[test]
    fn mistakes_are_refused_with_their_line() {
        let text = |tasks: &str| format!("{:#}", parsed(tasks).unwrap_err());
        let line = |kind: u32, begin: &str, cycles: &str| {
            format!("{{\"type\":{kind},\"begin_s\":{begin},\"cycles\":{cycles}}}")
        };
        let good = line(0, "1", "1");
        assert_eq!(text(""), "t has no task");
        assert_eq!(text(&format!("{good}\nx")), "t:3:1: not a task: not JSON");
        assert_eq!(text(&good[..9]), "t:2:9: not a task: the text ends too early");
        assert_eq!(
            text(&good.replace('0', "\"a\"")),
            "t:2:11: not a task: invalid type: string \"a\", expected a whole number from 0"
        );
        assert_eq!(
            text("[0,1,1]"),
            "t:2: not a task: invalid type: list, expected an object with type, begin_s and \
            cycles"
        );
        assert!(
            text(&line(2, "1", "1"))
                .ends_with("there is no type 2; the first line has 2 types, numbered from 0")
        );
        assert!(text(&line(0, "-1", "1")).ends_with("begin_s is -1, but must be from 0 to 604800"));
        assert!(
            text(&line(0, "1", "-1"))
                .ends_with("cycles is -1, but must be from 0 to 18000000000000")
        );
        let other = |header: &str| format!("{:#}", parse(header.as_bytes(), "t").unwrap_err());
        assert_eq!(other(""), "t is empty");
        let nameless = other(&HEADER.replace("\"a\"", "\"  \""));
        assert!(nameless.ends_with("type 0: the name is empty"), "{nameless}");
        let long = other(&HEADER.replace("\"a\"", &format!("\"{}\"", "n".repeat(201))));
        assert!(long.ends_with("the name has 201 bytes; at most 200 are accepted"), "{long}");
        let long = other(&format!("{{\"schema\":\"{}\"}}", "s".repeat(1000)));
        assert!(long.len() < 150, "{long}");
        assert!(other("{}").contains("t:1:2: the first line of a trace has the schema"));
        assert!(other("{\"schema\":\"x\"}").starts_with("t:1: the schema is \"x\", but this"));
        assert!(other("[]").ends_with("list, expected an object with the schema and the types"));
        let list = other(&HEADER.replace(r#"{"name":"a","deadline_ms":50,"target":0.9}"#, "[1]"));
        let expected = "list, expected an object with name, deadline_ms and target";
        assert!(list.ends_with(expected) && list.starts_with("t:1:43: "), "{list}");
        assert!(other(&HEADER.replace("trace/1", "trace/9")).contains("this version reads"));
        // The bounds are those of files of rules.
        for target in ["0", "1e-9", "1.5"] {
            let error = other(&HEADER.replace("0.9", target));
            let expected = format!("type 0: target is {target}, but must be from 0.01 to 1");
            assert!(error.ends_with(&expected), "{error}");
        }
        for ms in ["0", "1e-300", "3600001", "1e308"] {
            let expected = format!("deadline_ms is {ms}, but must be from 0.001 to 3600000");
            let error = other(&HEADER.replace("50", ms));
            assert!(error.ends_with(&format!("type 0: {expected}")), "{error}");
            let error = text(&good.replace('}', &format!(",\"deadline_ms\":{ms}}}")));
            assert!(error.ends_with(&expected), "{error}");
        }
        assert!(other(&HEADER.replace("\"b\"", "\"a\"")).contains("two types have the name"));
    }
}
