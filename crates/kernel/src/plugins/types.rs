//! What is looked up once among the kernel's types, as that takes some milliseconds.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::section::GATE;
use crate::error::{Error, Result};
use crate::probe::Types;

/// Members that plugins' fields are.
const MEMBERS: [(&str, &str); 6] = [
    ("task_struct", "thread_info"),
    ("thread_info", "status"),
    ("task_struct", "pid"),
    ("task_struct", "tgid"),
    ("task_struct", "exit_code"),
    ("linux_binprm", "filename"),
];

struct Known {
    tracepoints: BTreeMap<String, u32>,
    members: BTreeMap<(&'static str, &'static str), u32>,
}

/// And how long it took.
static KNOWN: OnceLock<(Option<Known>, Duration)> = OnceLock::new();

/// Nothing, before it is done.
pub fn reading_took() -> Duration {
    KNOWN.get().map_or(Duration::ZERO, |(_, took)| *took)
}

fn known() -> Result<&'static Known> {
    let timed = || {
        let began = Instant::now();
        (read(), began.elapsed())
    };
    KNOWN.get_or_init(timed).0.as_ref().ok_or(Error::NoBtf)
}

fn read() -> Option<Known> {
    let types = Types::read().ok()?;
    let tracepoint = |section: &&str| {
        let name = tracepoint_of(section);
        Some((name.to_owned(), types.tracepoint(name)?))
    };
    let member =
        |member: &(&'static str, &'static str)| Some((*member, types.offset_of(member.0, member.1)?));
    Some(Known {
        tracepoints: GATE.iter().filter_map(tracepoint).collect(),
        members: MEMBERS.iter().filter_map(member).collect(),
    })
}

pub fn tracepoint_of(section: &str) -> &str {
    section.strip_prefix("tp_btf/").unwrap_or("sys_enter")
}

/// The number of a tracepoint of the gate's.
pub fn tracepoint(name: &str) -> Result<u32> {
    known()?.tracepoints.get(name).copied().ok_or(Error::NoBtf)
}

/// Where a member is in its struct, in bytes.
pub fn offset_of(structure: &'static str, member: &'static str) -> Result<u16> {
    known()?.members.get(&(structure, member)).map(|offset| *offset as u16).ok_or(Error::NoBtf)
}
