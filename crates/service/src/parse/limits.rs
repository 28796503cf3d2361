//! The limits of services in `[service.NAME]`. `[limits]` sets what happens to them when Tollgate
//! ends.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use toml_reader::{At, DeTable, Problem, Problems, TableReader};

use super::names::find;
use crate::limits::{
    AtEnd, Errno, Limits, MEMORY_UNIT, NETWORK_UNIT, OverLimit, SOCKETS, TASKS, WEIGHTS,
    parse_bytes, parse_percent,
};
use crate::tree::{Id, Tree};

/// The limits of a service whose over-limit service is still a name.
pub struct ParsedLimits<'text> {
    limits: Limits,
    works_for: Option<At<&'text str>>,
}

pub fn read<'text>(reader: &mut TableReader<'text, '_>) -> ParsedLimits<'text> {
    let mut limits = Limits {
        cpu_weight: count(reader, "cpu-weight", WEIGHTS).map(|weight| weight as u32),
        cpu_max: text(reader, "cpu-max", "150%", parse_percent),
        memory_max: text(reader, "memory-max", "512M", |text| parse_bytes(text, MEMORY_UNIT)),
        tasks_max: count(reader, "tasks-max", TASKS),
        sockets_max: count(reader, "sockets-max", SOCKETS),
        connections_max: count(reader, "connections-max", SOCKETS),
        network_max: text(reader, "network-max", "10M", |text| parse_bytes(text, NETWORK_UNIT)),
        over_limit: OverLimit::default(),
    };
    let (errno, works_for) =
        (reader.string("over-limit-errno"), reader.string("over-limit-service"));
    if let (Some(errno), Some(works_for)) = (&errno, &works_for) {
        let problem = Problem::new(
            works_for.span.clone(),
            "over-limit-errno and over-limit-service exclude each other",
        );
        reader.problem(problem.other(errno.span.clone(), "the other one is here"));
    }
    if let Some(At { value, span }) = errno {
        match Errno::parse(value) {
            Some(errno) => limits.over_limit = OverLimit::Fails(errno),
            None => {
                let problem = Problem::new(span, format!("{value:?} is not a supported errno"));
                reader.suggest(problem, value, Errno::names());
            }
        }
    }
    ParsedLimits { limits, works_for }
}

fn text<'text, T>(
    reader: &mut TableReader<'text, '_>,
    key: &'static str,
    example: &str,
    parse: impl FnOnce(&'text str) -> Result<T, String>,
) -> Option<T> {
    let help = format!("write {key} = {example:?}");
    let At { value, span } = reader.with_help(&help, |reader| reader.string(key))?;
    parse(value).map_err(|reason| reader.problem(Problem::new(span, reason))).ok()
}

fn count(reader: &mut TableReader, key: &'static str, range: RangeInclusive<u32>) -> Option<u64> {
    let (least, most) = range.into_inner();
    reader.integer(key, least.into()..=most.into()).map(|at| at.value as u64)
}

/// The limits of all services that have any. All services must be in `tree`.
pub fn resolve(
    read: Vec<(Id, ParsedLimits)>,
    tree: &Tree,
    problems: &mut Problems,
) -> BTreeMap<Id, Limits> {
    let mut all = BTreeMap::new();
    for (id, ParsedLimits { mut limits, works_for }) in read {
        if let Some(name) = works_for {
            match find(tree, &name, problems) {
                Some(other) if tree.ancestors(other).any(|above| above == id) => {
                    let text = format!(
                        "over-limit-service of {:?} must be neither that service nor one below it",
                        tree.name(id)
                    );
                    problems.push(Problem::new(name.span, text));
                }
                Some(other) => limits.over_limit = OverLimit::WorksFor(other),
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
    let mut reader = TableReader::new(value, span.clone(), problems);
    let at_end = reader.string("at-end");
    reader.finish(|name| {
        format!("the limits of a service belong in its own table: [service.{name}]")
    });
    match at_end {
        Some(At { value: "keep", .. }) => AtEnd::Keep,
        None | Some(At { value: "lift", .. }) => AtEnd::Lift,
        Some(At { value, span }) => {
            let text = format!("at-end must be \"lift\" or \"keep\", not {value:?}");
            problems.push(Problem::new(span, text));
            AtEnd::Lift
        }
    }
}
