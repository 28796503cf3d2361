//! Files of rules, in TOML: how the tasks of unmodified programs begin, and the deadlines of tasks.
//!
//! ```toml
//! levels = "my-board.toml"
//! exempt = ["sshd"]
//! users = ["media"]
//!
//! [[rule]]
//! name = "frame"
//! program = "chocolate-doom"
//! calls = ["clock_nanosleep"]
//! deadline-ms = 28.6
//! target = 0.95
//!
//! [[type]]
//! name = "request"
//! deadline-ms = 20
//! ```

use std::ops::Range;

use toml_reader::{At, Problem, Problems, TableReader};

use crate::rule_checks;
use crate::task_rules::{
    ACTUATORS, BEGINNING_CALLS, COMPARED_PROGRAM_LEN, CycleCounter, DEADLINE_MS, DEFAULT_GOAL,
    DescriptorKind, MAX_EXEMPT, MAX_RULES, MAX_TYPE_NAME, MAX_USERS, ProgramType, TARGET, TaskRule,
    TaskRules, is_same_program,
};

const CALLS_HELP: &str = "a task begins when one of these calls returns: calls = [\"epoll_wait\"]";

/// Parses a file of rules, or returns its problems in the order of their positions.
///
/// # Errors
/// If the file is not valid TOML, or has unknown keys or values.
pub fn parse_task_rules(text: &str) -> Result<TaskRules, Problems> {
    let document = toml_reader::parse(text)?;
    let mut problems = Problems::new();
    let mut reader = TableReader::new(document.get_ref(), document.span(), &mut problems);
    let help = "give a built-in set, or a file: levels = \"rk3399-a72\"";
    let levels =
        reader.with_help(help, |reader| reader.string("levels")).map(|at| at.map(str::to_owned));
    let actuator = read_actuator(&mut reader);
    let cycle_counter = read_cycle_counter(&mut reader);
    let exempt = read_exempt(&mut reader);
    let users = read_users(&mut reader);
    let (tables, types) = (reader.tables("rule"), reader.tables("type"));
    if let Some(table) = tables.get(MAX_RULES) {
        let text = format!("there are {} rules; at most {MAX_RULES} are possible", tables.len());
        let help = "a rule may have several calls and kinds of descriptors";
        reader.problem(Problem::new(table.span.clone(), text).help(help));
    }
    reader.finish(|_| "the tables of this file are [[rule]] and [[type]]".into());
    // Another problem may be a misspelt rule.
    if tables.is_empty() && types.is_empty() && problems.is_empty() {
        let help = "add a rule: [[rule]], with name and calls";
        problems.push(Problem::new(0..0, "the file has neither rules nor types").help(help));
    }
    let mut file =
        TaskRules { levels, actuator, cycle_counter, exempt, users, ..TaskRules::default() };
    let (mut names, mut rules) = (Vec::new(), Vec::new());
    for table in &tables {
        let mut entry = TableReader::new(table.value, table.span.clone(), &mut problems);
        rules.extend(read_rule(&mut entry, &mut names).map(|rule| (rule, table.span.clone())));
        entry.finish(|_| "a rule has no tables".into());
    }
    rule_checks::find_shadowed(&rules, &mut problems);
    file.rules = rules.into_iter().map(|(rule, _)| rule).collect();
    for table in &types {
        let mut entry = TableReader::new(table.value, table.span.clone(), &mut problems);
        file.types.extend(read_type(&mut entry, &mut names));
        entry.finish(|_| "a type has no tables".into());
    }
    problems.sort_by_key(|problem| problem.span.start);
    match problems.is_empty() {
        true => Ok(file),
        false => Err(problems.into_iter().map(Problem::sanitize).collect()),
    }
}

fn read_actuator(reader: &mut TableReader<'_, '_>) -> Option<At<String>> {
    let help = format!("the actuators are {}: actuator = \"bounds\"", ACTUATORS.join(", "));
    let named = reader.with_help(&help, |reader| reader.string("actuator"))?;
    if !ACTUATORS.contains(&named.value) {
        let text = format!("{:?} is no actuator", named.value);
        reader.suggest(Problem::new(named.span, text), named.value, ACTUATORS.into_iter());
        return None;
    }
    Some(named.map(str::to_owned))
}

fn read_cycle_counter(reader: &mut TableReader<'_, '_>) -> Option<At<CycleCounter>> {
    const KEY: &str = "cycle-counter";
    let help = "give \"cpu-cycles\", \"none\", or an event of perf: cycle-counter = \
        \"msr/config=1/\"";
    let named = reader.with_help(help, |reader| reader.string(KEY))?;
    let Some(counter) = CycleCounter::of_name(named.value) else {
        let text = format!("{:?} is no counter of cycles", named.value);
        reader.problem(Problem::new(named.span, text).help(help));
        return None;
    };
    Some(named.map(|_| counter))
}

fn read_exempt(reader: &mut TableReader<'_, '_>) -> Vec<String> {
    let help = "give the file names of executables: exempt = [\"sshd\", \"make\"]";
    let named = reader.with_help(help, |reader| reader.strings("exempt")).unwrap_or_default();
    for program in &named {
        check_program(reader, program);
    }
    if let Some(program) = named.get(MAX_EXEMPT) {
        let text =
            format!("exempt has {} programs; at most {MAX_EXEMPT} are possible", named.len());
        let help = "rules with `program` leave out all other programs";
        reader.problem(Problem::new(program.span.clone(), text).help(help));
    }
    named.into_iter().map(|at| at.value.to_owned()).collect()
}

fn read_users(reader: &mut TableReader<'_, '_>) -> Option<Vec<At<String>>> {
    let help = "give names or numeric user IDs: users = [\"media\", \"1000\"]";
    let named = reader.with_help(help, |reader| reader.strings("users"))?;
    if let Some(user) = named.get(MAX_USERS) {
        let text = format!("there are {} users; at most {MAX_USERS} are possible", named.len());
        let help = "leave out `users`, so that all users of `run --pace` and `pace watch` may \
            begin tasks";
        reader.problem(Problem::new(user.span.clone(), text).help(help));
    }
    for user in &named {
        rule_checks::check_user(reader, user);
    }
    Some(named.into_iter().map(|at| at.map(str::to_owned)).collect())
}

/// The name of a rule or type, and the program whose tasks it is about.
struct Named {
    name: String,
    program: Option<String>,
    span: Range<usize>,
}

/// Reads the name and the program of a rule or type. `names` are those of the earlier ones. If the
/// name is `None`, there is a problem.
fn read_name(
    entry: &mut TableReader<'_, '_>,
    names: &mut Vec<Named>,
    what: &str,
    help: &str,
) -> (Option<String>, Option<String>) {
    let before = entry.problems.len();
    let name = entry.with_help(help, |entry| entry.string("name"));
    if name.is_none() && entry.problems.len() == before {
        let problem = Problem::new(entry.span.clone(), format!("the {what} has no name"));
        entry.problem(problem.help(help));
    }
    let program = entry.with_help("leave it out for any program", |entry| entry.string("program"));
    if let Some(program) = &program {
        check_program(entry, program);
    }
    let program = program.map(|at| at.value.to_owned());
    let Some(name) = name else { return (None, program) };
    // The program and the name identify a type of tasks.
    let is_same = |earlier: &&Named| {
        let both = earlier.program.as_ref().zip(program.as_ref());
        earlier.name == name.value && both.is_none_or(|(one, other)| is_same_program(one, other))
    };
    if let Some(earlier) = names.iter().find(is_same) {
        let text = format!("{:?} is the name of two rules or types", name.value);
        let problem =
            Problem::new(name.span.clone(), text).other(earlier.span.clone(), "the first");
        entry.problem(problem.help(format!(
            "give each a name of its own, or another program (the first {COMPARED_PROGRAM_LEN} \
            bytes are compared)"
        )));
    }
    let (name, span) = (name.value.to_owned(), name.span);
    names.push(Named { name: name.clone(), program: program.clone(), span });
    (Some(name), program)
}

fn check_program(entry: &mut TableReader<'_, '_>, program: &At<&str>) {
    if program.value.is_empty() {
        let help = "give the file name of the executable";
        entry.problem(Problem::new(program.span.clone(), "a program is empty").help(help));
    }
    if program.value.contains('/') {
        let help = "only the file name of the executable is compared";
        let text = "a program must be a file name, without folders";
        entry.problem(Problem::new(program.span.clone(), text).help(help));
    }
}

/// The deadline in milliseconds, and the target.
fn read_goal(entry: &mut TableReader<'_, '_>) -> (f64, f64) {
    let help = "a number of milliseconds, up to an hour: deadline-ms = 20";
    let deadline = entry.with_help(help, |entry| entry.number("deadline-ms", DEADLINE_MS));
    let help = "the share of the tasks, not a percentage: target = 0.95";
    let target = entry.with_help(help, |entry| entry.number("target", TARGET));
    (deadline.map_or(DEFAULT_GOAL.0, |at| at.value), target.map_or(DEFAULT_GOAL.1, |at| at.value))
}

/// Reports a name that is too long.
fn check_length(entry: &mut TableReader<'_, '_>, named: Option<&Named>, help: String) {
    if let Some(Named { name, span, .. }) = named.filter(|named| named.name.len() > MAX_TYPE_NAME) {
        let text = format!("the name has {} bytes", name.len());
        entry.problem(Problem::new(span.clone(), text).help(help));
    }
}

fn read_type(entry: &mut TableReader<'_, '_>, names: &mut Vec<Named>) -> Option<ProgramType> {
    let help = "it is the name by which the program registers the type: name = \"frame\"";
    let (name, program) = read_name(entry, names, "type", help);
    let help = format!("at most {MAX_TYPE_NAME} bytes of a type's name are compared");
    check_length(entry, names.last().filter(|_| name.is_some()), help);
    let (deadline_ms, target) = read_goal(entry);
    Some(ProgramType { name: name?, program, deadline_ms, target })
}

fn read_rule(entry: &mut TableReader<'_, '_>, names: &mut Vec<Named>) -> Option<TaskRule> {
    let span = entry.span.clone();
    let help = "it is shown in reports: name = \"frame\"";
    let (name, program) = read_name(entry, names, "rule", help);
    let help = format!("a name has at most {MAX_TYPE_NAME} bytes");
    check_length(entry, names.last().filter(|_| name.is_some()), help);
    let before = entry.problems.len();
    let named = entry.with_help(CALLS_HELP, |entry| entry.strings("calls"));
    if named.as_ref().is_none_or(Vec::is_empty) && entry.problems.len() == before {
        entry.problem(Problem::new(span, "the rule has no calls").help(CALLS_HELP));
    }
    let mut calls = Vec::new();
    for call in named.into_iter().flatten() {
        let known = || BEGINNING_CALLS.iter().map(|(name, _)| *name);
        match BEGINNING_CALLS.iter().find(|(name, _)| *name == call.value) {
            Some(found) => calls.push((*found, call.span)),
            None => {
                let text = format!("{:?} is no call that can begin a task", call.value);
                entry.suggest(Problem::new(call.span, text), call.value, known());
            }
        }
    }
    let descriptors = read_descriptors(entry);
    let help = "a number without quotes: port = 8080";
    let port = entry.with_help(help, |entry| entry.integer("port", 1..=i64::from(u16::MAX)));
    let (deadline_ms, target) = read_goal(entry);
    let help = "true or false, without quotes: includes-waits = true";
    let includes_waits = entry.with_help(help, |entry| entry.boolean("includes-waits"));
    rule_checks::check_descriptors(entry, &calls, &descriptors, port.as_ref());
    Some(TaskRule {
        name: name?,
        program,
        calls: calls.into_iter().map(|(call, _)| call).collect(),
        descriptors,
        port: port.map(|at| at.value as u16),
        deadline_ms,
        target,
        includes_waits: includes_waits.unwrap_or(false),
    })
}

fn read_descriptors(entry: &mut TableReader<'_, '_>) -> Vec<DescriptorKind> {
    let before = entry.problems.len();
    let help = "give kinds of descriptors: descriptor = [\"socket\", \"pipe\"]";
    let named = entry.with_help(help, |entry| entry.strings("descriptor"));
    let Some((span, named)) = entry.value_span("descriptor").zip(named) else { return Vec::new() };
    // Entries of another type are not among the names.
    if named.is_empty() && entry.problems.len() == before {
        let help = "leave it out for calls with any descriptor, or without one";
        entry.problem(Problem::new(span, "descriptor is empty").help(help));
    }
    let mut descriptors = Vec::new();
    for kind in named {
        let known = || DescriptorKind::ALL.into_iter().map(DescriptorKind::name);
        match DescriptorKind::ALL.into_iter().find(|known| known.name() == kind.value) {
            Some(found) => descriptors.push(found),
            None => {
                let text = format!("{:?} is no kind of descriptor", kind.value);
                entry.suggest(Problem::new(kind.span, text), kind.value, known());
            }
        }
    }
    descriptors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task_rules::BeginningResult;

    #[test]
    fn rules_have_defaults() {
        let text = "\
levels = \"rk3399-a72\"
actuator = \"bounds\"
cycle-counter = \"msr/config=0x1/\"
exempt = \"sshd\"
users = [\"media\", \"1000\"]
[[rule]]
name = \"a\"
calls = \"read\"
descriptor = [\"terminal\", \"input\"]
[[rule]]
name = \"b\"
program = \"nginx\"
calls = [\"read\", \"recvmsg\"]
port = 80
deadline-ms = 20
target = 0.9
includes-waits = true
[[type]]
name = \"request\"
deadline-ms = 20
";
        let TaskRules { levels, actuator, cycle_counter, exempt, users, rules, types } =
            parse_task_rules(text).unwrap();
        let of = |at: Option<At<String>>| at.map(|at| (at.value, &text[at.span]));
        assert_eq!(of(actuator), Some(("bounds".to_owned(), "\"bounds\"")));
        assert_eq!(of(levels), Some(("rk3399-a72".to_owned(), "\"rk3399-a72\"")));
        let counter = cycle_counter.unwrap();
        assert_eq!(counter.value, CycleCounter::Event { pmu: "msr".into(), config: 1 });
        assert_eq!(&text[counter.span], "\"msr/config=0x1/\"");
        assert_eq!(exempt, ["sshd"]);
        let users: Vec<_> = users.unwrap().into_iter().map(|user| user.value).collect();
        assert_eq!(users, ["media", "1000"]);
        assert_eq!(types[0].name, "request");
        assert_eq!((types[0].deadline_ms, types[0].target), (20.0, 0.95));
        assert_eq!((rules[0].deadline_ms, rules[0].target), (50.0, 0.95));
        assert_eq!(rules[0].calls, [("read", BeginningResult::Positive)]);
        assert_eq!(rules[0].descriptors, [DescriptorKind::Terminal, DescriptorKind::Input]);
        assert_eq!(rules[1].program.as_deref(), Some("nginx"));
        assert_eq!((rules[1].port, rules[1].deadline_ms), (Some(80), 20.0));
        assert!(rules[1].includes_waits && !rules[0].includes_waits);
    }

    #[test]
    fn each_mistake_is_reported_at_its_position() {
        let text = "\
rules = 1
actuator = \"setspeeds\"
cycle-counter = \"cycles\"
exempt = [\"/bin/sh\"]
users = 7
[[rule]]
calls = [\"epoll_weit\", \"write\"]
program = \"/usr/bin/vi\"
[[rule]]
name = \"b\"
descriptor = \"tty\"
port = 0
deadline-ms = 0
target = 95
includes-waits = \"yes\"
deadline = 5
[[type]]
calls = 7
";
        let found = parse_task_rules(text).unwrap_err();
        let described = |problem: &Problem| {
            let line = 1 + text[..problem.span.start].matches('\n').count();
            (line, text[problem.span.clone()].to_owned(), problem.message.clone())
        };
        let problems: Vec<_> = found.iter().map(described).collect();
        let expected = [
            (1, "rules", "unknown key \"rules\""),
            (2, "\"setspeeds\"", "\"setspeeds\" is no actuator"),
            (3, "\"cycles\"", "\"cycles\" is no counter of cycles"),
            (4, "\"/bin/sh\"", "a program must be a file name, without folders"),
            (5, "7", "users must be a string or an array of strings, not 7"),
            (6, "[[rule]]", "the rule has no name"),
            (7, "\"epoll_weit\"", "\"epoll_weit\" is no call that can begin a task"),
            (7, "\"write\"", "\"write\" is no call that can begin a task"),
            (8, "\"/usr/bin/vi\"", "a program must be a file name, without folders"),
            (9, "[[rule]]", "the rule has no calls"),
            (11, "\"tty\"", "\"tty\" is no kind of descriptor"),
            (12, "0", "port must be an integer from 1 to 65535, not 0"),
            (13, "0", "deadline-ms must be a number from 0.001 to 3600000, not 0"),
            (14, "95", "target must be a number from 0.01 to 1, not 95"),
            (15, "\"yes\"", "includes-waits must be true or false, not a string"),
            (16, "deadline", "unknown key \"deadline\""),
            (17, "[[type]]", "the type has no name"),
            (18, "calls", "unknown key \"calls\""),
        ]
        .map(|(line, quoted, message)| (line, quoted.to_owned(), message.to_owned()));
        assert_eq!(problems, expected);
        let without_help: Vec<_> = found.iter().filter(|one| one.help.is_none()).collect();
        assert!(without_help.is_empty(), "{without_help:?}");
        assert_eq!(found[6].help.as_deref(), Some("did you mean \"epoll_wait\"?"));
        assert!(parse_task_rules("").unwrap_err()[0].message.contains("neither rules nor types"));
        let twice = "[[rule]]\nname = \"a\"\nprogram = \"x\"\ncalls = \"read\"\n\
            [[rule]]\nname = \"a\"\nprogram = \"y\"\ncalls = \"read\"\n";
        assert!(parse_task_rules(twice).is_ok());
        let found = parse_task_rules(&format!("{twice}[[type]]\nname = \"a\"\n")).unwrap_err();
        assert_eq!(found[0].message, "\"a\" is the name of two rules or types");
        let rule = |n| format!("[[rule]]\nname = \"{n}\"\ncalls = \"read\"\nport = 1{n}\n");
        let many: String = (0..17).map(rule).collect();
        assert!(parse_task_rules(&many).unwrap_err()[0].message.contains("17 rules"));
    }
}
