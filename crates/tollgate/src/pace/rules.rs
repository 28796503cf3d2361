//! The rules by which tasks begin: those of a file, or the built-in ones.

use std::path::Path;

use ::pace::{DescriptorKind, TaskRule, TaskRules, parse_task_rules};
use anyhow::{Context as _, Result};
use kernel::pace::{TrackingRule, TrackingRules};
use kernel::wire;

use crate::file_problems;
use crate::source_file::SourceFile;
use crate::user;

/// The kind of file, in messages.
const KIND: &str = "file of task rules";

/// The built-in rules.
const BUILT_IN: &str = include_str!("../../../../examples/tasks.toml");

/// The rules of a file, or the built-in ones without a file.
pub fn read(path: Option<&Path>) -> Result<TaskRules> {
    let source = match path {
        Some(path) => SourceFile::read(path, KIND)?,
        None => SourceFile::new("the built-in rules".into(), BUILT_IN.into()),
    };
    parse_task_rules(&source.text).map_err(|problems| file_problems::error(&source, &problems))
}

/// The rules as the gate needs them, with the users that the file names.
pub fn tracking_rules(rules: &TaskRules) -> Result<TrackingRules> {
    let uid = |name: &String| match name.parse() {
        Ok(uid) => Ok(uid),
        Err(_) => user::find(name).map(|user| user.credentials.uid),
    };
    let users = rules.users.as_ref().map(|names| names.iter().map(uid).collect());
    Ok(TrackingRules {
        rules: rules.rules.iter().map(tracking_rule).collect(),
        exempt: rules.exempt.clone(),
        users: users
            .transpose()
            .context("cannot find the users that the file of task rules names")?,
    })
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
    use ::pace::{ACTUATORS, MAX_EXEMPT, MAX_RULES, MAX_USERS};
    use kernel::pace::actuator::Actuator;

    use super::*;

    #[test]
    fn built_in_rules_are_valid() {
        let rules = read(None).unwrap();
        let names: Vec<_> = rules.rules.iter().map(|rule| rule.name.as_str()).collect();
        assert_eq!(names, ["input", "events", "timer", "message"]);
    }

    #[test]
    fn actuators_and_limits_are_those_of_the_gate() {
        assert_eq!(ACTUATORS, Actuator::ALL.map(Actuator::name));
        let room = [wire::PACE_RULES, wire::PACE_EXEMPT, wire::PACE_USERS];
        assert_eq!([MAX_RULES, MAX_EXEMPT, MAX_USERS], room.map(|entries| entries as usize));
    }

    #[test]
    fn users_are_found() {
        let of = |names: &[&str]| {
            let users = Some(names.iter().map(|name| (*name).to_owned()).collect());
            tracking_rules(&TaskRules { users, ..TaskRules::default() })
        };
        assert_eq!(of(&["root", "1234"]).unwrap().users.unwrap(), [0, 1234]);
        assert!(format!("{:#}", of(&["no such"]).unwrap_err()).contains("there is no user"));
        assert_eq!(tracking_rules(&TaskRules::default()).unwrap().users, None);
    }

    #[test]
    fn descriptors_have_the_gates_numbers() {
        for kind in DescriptorKind::ALL {
            assert_eq!(descriptor_name(descriptor(kind)), Some(kind.name()));
        }
        assert_eq!(descriptor_name(wire::PACE_OTHER), None);
    }
}
