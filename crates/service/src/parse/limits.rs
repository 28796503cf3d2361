//! The limits that a file gives services, and what becomes of them: `[service.NAME]`, `[limits]`.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use toml::de::DeTable;

use super::reader::{At, Reader};
use super::services::find;
use super::{Problem, Problems};
use crate::limits::{
    AtEnd, Beyond, Errno, Limits, MEMORY_UNIT, NETWORK_UNIT, SOCKETS, TASKS, WEIGHTS, parse_bytes,
    parse_percent,
};
use crate::tree::{Id, Tree};

/// As far as they can be read before all services are known.
pub struct Read<'text> {
    limits: Limits,
    works_for: Option<At<&'text str>>,
}

pub fn read<'text>(reader: &mut Reader<'text, '_>) -> Read<'text> {
    let mut limits = Limits {
        cpu_weight: count(reader, "cpu-weight", WEIGHTS).map(|weight| weight as u32),
        cpu_max: text(reader, "cpu-max", "150%", parse_percent),
        memory_max: text(reader, "memory-max", "512M", |text| parse_bytes(text, MEMORY_UNIT)),
        tasks_max: count(reader, "tasks-max", TASKS),
        sockets_max: count(reader, "sockets-max", SOCKETS),
        connections_max: count(reader, "connections-max", SOCKETS),
        network_max: text(reader, "network-max", "10M", |text| parse_bytes(text, NETWORK_UNIT)),
        beyond: Beyond::default(),
    };
    let (errno, works_for) = (reader.string("beyond-errno"), reader.string("beyond-service"));
    if let (Some(errno), Some(works_for)) = (&errno, &works_for) {
        let problem =
            Problem::new(works_for.span.clone(), "beyond-errno and beyond-service exclude each other");
        reader.problem(problem.other(errno.span.clone(), "the other one is here"));
    }
    if let Some(At { value, span }) = errno {
        match Errno::parse(value) {
            Some(errno) => limits.beyond = Beyond::Fails(errno),
            None => {
                let problem = Problem::new(span, format!("there is no errno {value:?} for this"));
                reader.suggest(problem, value, Errno::names());
            }
        }
    }
    Read { limits, works_for }
}

fn text<'text, T>(
    reader: &mut Reader<'text, '_>,
    key: &'static str,
    example: &str,
    parse: impl FnOnce(&'text str) -> Result<T, String>,
) -> Option<T> {
    let known = reader.problems.len();
    let text = reader.string(key);
    reader.help_since(known, || format!("write {key} = {example:?}"));
    let At { value, span } = text?;
    parse(value).map_err(|fault| reader.problem(Problem::new(span, fault))).ok()
}

fn count(reader: &mut Reader, key: &'static str, range: RangeInclusive<u32>) -> Option<u64> {
    let (least, most) = range.into_inner();
    reader.integer(key, least.into()..=most.into()).map(|at| at.value as u64)
}

/// Those that have some, once all services are known.
pub fn resolve(read: Vec<(Id, Read)>, tree: &Tree, problems: &mut Problems) -> BTreeMap<Id, Limits> {
    let mut all = BTreeMap::new();
    for (id, Read { mut limits, works_for }) in read {
        if let Some(name) = works_for {
            match find(tree, &name, problems) {
                Some(other) if tree.way_up(other).any(|above| above == id) => {
                    let text = format!("beyond its own limits, {:?} cannot work for itself", tree.name(id));
                    problems.push(Problem::new(name.span, text));
                }
                Some(other) => limits.beyond = Beyond::WorksFor(other),
                None => {}
            }
        }
        if limits != Limits::default() {
            all.insert(id, limits);
        }
    }
    all
}

pub fn at_end(table: Option<&At<&DeTable>>, problems: &mut Problems) -> AtEnd {
    let Some(At { value, span }) = table else { return AtEnd::default() };
    let mut reader = Reader::new(value, span.clone(), problems);
    let at_end = reader.string("at-end");
    reader.finish(|name| format!("limits of a service are in its own table: [service.{name}]"));
    match at_end {
        Some(At { value: "keep", .. }) => AtEnd::Keep,
        None | Some(At { value: "lift", .. }) => AtEnd::Lift,
        Some(At { value, span }) => {
            let text = format!("at-end is \"lift\" or \"keep\", not {value:?}");
            problems.push(Problem::new(span, text));
            AtEnd::Lift
        }
    }
}
