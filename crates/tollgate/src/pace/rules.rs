//! The rules by which tasks begin: those of a file, or the built-in ones.

use std::path::Path;

use ::pace::{DescriptorKind, LevelFile, TaskRule, TaskRules, parse_task_rules};
use anyhow::Result;
use kernel::pace::{TrackingRule, TrackingRules};
use kernel::wire;
use toml_reader::{At, Problem, Problems};

use super::level_set;
use crate::file_problems;
use crate::source_file::SourceFile;
use crate::user;

/// The kind of file, in messages.
const KIND: &str = "file of task rules";

/// The built-in rules.
const BUILT_IN: &str = include_str!("../../../../examples/tasks.toml");

/// A file of rules, and what its names stand for.
pub struct ResolvedRules {
    pub file: TaskRules,
    /// The rules as the gate needs them.
    pub tracking_rules: TrackingRules,
    source: SourceFile,
}

impl ResolvedRules {
    /// The error, at the position of the value of the file that causes it. Without such a value,
    /// the error as it is.
    pub fn locate<T>(
        &self,
        value: Option<&At<T>>,
        error: anyhow::Error,
        help: &str,
    ) -> anyhow::Error {
        let Some(value) = value else { return error };
        let problem = Problem::new(value.span.clone(), format!("{error:#}")).help(help).sanitize();
        file_problems::error(&self.source, &[problem])
    }
}

/// The rules of a file, or the built-in ones without a file, and the levels that the file names.
pub fn read(path: Option<&Path>) -> Result<(ResolvedRules, Option<LevelFile>)> {
    let source = match path {
        Some(path) => SourceFile::read(path, KIND)?,
        None => SourceFile::new("the built-in rules".into(), BUILT_IN.into()),
    };
    let file = parse_task_rules(&source.text)
        .map_err(|problems| file_problems::error(&source, &problems))?;
    let mut problems = Problems::new();
    let folder = path.and_then(Path::parent);
    let levels = file.levels.as_ref().and_then(|named| levels_source(named, folder, &mut problems));
    let users = file.users.as_ref().map(|names| {
        names.iter().filter_map(|named| uid(named, &mut problems)).collect::<Vec<_>>()
    });
    if !problems.is_empty() {
        problems.sort_by_key(|problem| problem.span.start);
        return Err(file_problems::error(&source, &problems));
    }
    let levels = levels.as_ref().map(level_set::parse).transpose()?;
    let tracking_rules = TrackingRules {
        rules: file.rules.iter().map(tracking_rule).collect(),
        exempt: file.exempt.clone(),
        users,
    };
    Ok((ResolvedRules { file, tracking_rules, source }, levels))
}

/// The file of levels that a file of rules names, or a built-in one.
fn levels_source(
    named: &At<String>,
    folder: Option<&Path>,
    problems: &mut Problems,
) -> Option<SourceFile> {
    let found = level_set::source(&named.value, folder.unwrap_or(Path::new("")));
    let problem = |error| {
        let help = "give a built-in set, or a file in relation to the folder of this file";
        Problem::new(named.span.clone(), format!("{error:#}")).help(help).sanitize()
    };
    found.map_err(|error| problems.push(problem(error))).ok()
}

/// The user ID of a user, who may be named by it.
fn uid(named: &At<String>, problems: &mut Problems) -> Option<u32> {
    let uid = named.value.parse().ok().or_else(|| user::uid(&named.value));
    if uid.is_none() {
        let text = format!("there is no user {:?} in /etc/passwd", named.value);
        let help = "name users of other name services by their numeric user IDs";
        problems.push(Problem::new(named.span.clone(), text).help(help).sanitize());
    }
    uid
}

fn tracking_rule(rule: &TaskRule) -> TrackingRule {
    let bits = rule.descriptors.iter().map(|kind| 1 << descriptor(*kind));
    TrackingRule {
        program: rule.program.clone(),
        calls: rule.calls.iter().map(|(name, result)| ((*name).to_owned(), *result)).collect(),
        descriptors: bits.sum(),
        port: rule.port.unwrap_or(0),
        includes_waits: rule.includes_waits,
    }
}

/// The kind of a descriptor as the gate numbers it.
fn descriptor(kind: DescriptorKind) -> u32 {
    match kind {
        DescriptorKind::Socket => wire::PACE_SOCKET,
        DescriptorKind::Pipe => wire::PACE_PIPE,
        DescriptorKind::Terminal => wire::PACE_TERMINAL,
        DescriptorKind::Input => wire::PACE_INPUT,
        DescriptorKind::Epoll => wire::PACE_EPOLL,
        DescriptorKind::Timer => wire::PACE_TIMER,
        DescriptorKind::Event => wire::PACE_EVENT,
    }
}

/// The name of a descriptor's kind; `None` for [`wire::PACE_OTHER`].
pub fn descriptor_name(number: u32) -> Option<&'static str> {
    let kind = DescriptorKind::ALL.into_iter().find(|kind| descriptor(*kind) == number)?;
    Some(kind.name())
}

#[cfg(test)]
mod tests {
    use ::pace::{ACTUATORS, COMPARED_PROGRAM_LEN, MAX_EXEMPT, MAX_RULES, MAX_USERS};
    use kernel::pace::actuator::Actuator;

    use super::*;

    #[test]
    fn built_in_rules_are_valid() {
        let file = read(None).unwrap().0.file;
        let names: Vec<_> = file.rules.iter().map(|rule| rule.name.as_str()).collect();
        assert_eq!(names, ["input", "events", "timer", "message"]);
    }

    #[test]
    fn actuators_and_limits_are_those_of_the_gate() {
        assert_eq!(ACTUATORS, Actuator::ALL.map(Actuator::name));
        let room = [wire::PACE_RULES, wire::PACE_EXEMPT, wire::PACE_USERS];
        assert_eq!([MAX_RULES, MAX_EXEMPT, MAX_USERS], room.map(|entries| entries as usize));
        // A NUL ends the name.
        assert_eq!(COMPARED_PROGRAM_LEN, wire::PACE_PROGRAM_LEN as usize - 1);
    }

    /// The rules of a file that begins with these lines, next to a file of levels.
    fn read_file(lines: &str) -> Result<(ResolvedRules, Option<LevelFile>)> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.toml");
        let levels = "level = [{ mhz = 300, watts = 2 }]";
        std::fs::write(folder.path().join("board.toml"), levels).unwrap();
        let text = format!("{lines}\n[[type]]\nname = \"frame\"\n");
        std::fs::write(&path, text).unwrap();
        read(Some(&path))
    }

    #[test]
    fn users_are_found() {
        let of = |line: &str| read_file(line).map(|(rules, _)| rules.tracking_rules.users);
        assert_eq!(of("users = [\"root\", \"1234\"]").unwrap().unwrap(), [0, 1234]);
        let error = format!("{:#}", of("users = [\"1\", \"no such\"]").unwrap_err());
        assert!(error.contains("there is no user \"no such\" in /etc/passwd"), "{error}");
        assert!(error.contains("tasks.toml:1:15") && error.contains("numeric user IDs"), "{error}");
        assert_eq!(of("").unwrap(), None);
    }

    #[test]
    fn levels_are_in_relation_to_the_file() {
        let of = |name: &str| read_file(&format!("levels = {name:?}")).map(|(_, levels)| levels);
        assert_eq!(of("board.toml").unwrap().unwrap().levels.all().len(), 1);
        assert_eq!(of("rightspeed").unwrap().unwrap().levels.all().len(), 3);
        for missing in ["nosuch", "nosuch.toml"] {
            let error = format!("{:#}", of(missing).unwrap_err());
            assert!(error.contains("tasks.toml:1:10") && error.contains("help: "), "{error}");
        }
        // The problems of the file of levels have their own positions.
        let error = format!("{:#}", of("tasks.toml").unwrap_err());
        assert!(error.contains("unknown key \"levels\""), "{error}");
    }

    #[test]
    fn descriptors_have_the_gates_numbers() {
        for kind in DescriptorKind::ALL {
            assert_eq!(descriptor_name(descriptor(kind)), Some(kind.name()));
        }
        assert_eq!(descriptor_name(wire::PACE_OTHER), None);
    }
}
