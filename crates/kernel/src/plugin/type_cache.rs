//! What plugins need of the kernel's types. It is looked up once for each process, because that
//! takes some milliseconds.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::gate_hooks::{GATE_HOOKS, GatePluginHook};
use crate::error::{Error, Result};
use crate::probe::Types;

/// The members of kernel structs that plugins can read.
const MEMBERS: [(&str, &str); 6] = [
    ("task_struct", "thread_info"),
    ("thread_info", "status"),
    ("task_struct", "pid"),
    ("task_struct", "tgid"),
    ("task_struct", "exit_code"),
    ("linux_binprm", "filename"),
];

struct TypeCache {
    tracepoints: BTreeMap<&'static str, u32>,
    members: BTreeMap<(&'static str, &'static str), u32>,
}

/// The cache (`None` if the kernel has no type information), and how long it took to read the
/// types.
static CACHE: OnceLock<(Option<TypeCache>, Duration)> = OnceLock::new();

/// How long it took to read the kernel's types. Zero if they were not read yet.
pub fn btf_read_time() -> Duration {
    CACHE.get().map_or(Duration::ZERO, |(_, took)| *took)
}

fn type_cache() -> Result<&'static TypeCache> {
    let timed = || {
        let began = Instant::now();
        (read(), began.elapsed())
    };
    CACHE.get_or_init(timed).0.as_ref().ok_or(Error::NoBtf)
}

fn read() -> Option<TypeCache> {
    let types = Types::read().ok()?;
    let tracepoint =
        |hook: &GatePluginHook| Some((hook.tracepoint, types.tracepoint(hook.tracepoint)?));
    let member = |member: &(&'static str, &'static str)| {
        Some((*member, types.offset_of(member.0, member.1)?))
    };
    Some(TypeCache {
        tracepoints: GATE_HOOKS.iter().filter_map(tracepoint).collect(),
        members: MEMBERS.iter().filter_map(member).collect(),
    })
}

/// The number of the type of a tracepoint in [`GATE_HOOKS`].
pub fn tracepoint(name: &str) -> Result<u32> {
    type_cache()?.tracepoints.get(name).copied().ok_or(Error::NoBtf)
}

/// A member's offset in its struct, in bytes. Fails if the member is none of `MEMBERS`, or if the
/// kernel does not have it.
pub fn offset_of(structure: &'static str, member: &'static str) -> Result<u16> {
    type_cache()?.members.get(&(structure, member)).map(|offset| *offset as u16).ok_or(Error::NoBtf)
}
