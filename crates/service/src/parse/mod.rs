//! Parses rule files (TOML) and reports all problems of a file with their positions.

mod host;
mod limits;
mod names;
mod rules;
mod services;

pub use host::Host;
pub use rules::{MAX_RULES, socket as listen};
pub use services::MAX_SERVICES;

use std::collections::BTreeMap;

use toml_reader::{Problem, Problems, TableReader};

use crate::limits::{AtEnd, Limits};
use crate::ruleset::Ruleset;
use crate::tree::{Id, Tree};
use crate::tuple_space::{MAX_TUPLES, TupleSpace};

/// The content of a rule file without problems.
#[derive(Debug, Clone)]
pub struct RuleFile {
    /// The services.
    pub tree: Tree,
    /// The limits of the services that have any.
    pub limits: BTreeMap<Id, Limits>,
    /// What happens to the limits when Tollgate ends.
    pub at_end: AtEnd,
    /// The rules in the order of their precedence.
    pub ruleset: Ruleset,
    /// The rules by the shape of their conditions.
    pub tuple_space: TupleSpace,
}

/// Parses a rule file, or returns its problems in the order of their positions.
pub fn parse(text: &str, host: &dyn Host) -> Result<RuleFile, Vec<Problem>> {
    read(text, host).map_err(|problems| problems.into_iter().map(Problem::sanitize).collect())
}

fn read(text: &str, host: &dyn Host) -> Result<RuleFile, Vec<Problem>> {
    let document = toml_reader::parse(text)?;
    let mut problems = Problems::new();
    let mut reader = TableReader::new(document.get_ref(), document.span(), &mut problems);
    let (services, rules, ends) =
        (reader.table("service"), reader.tables("rule"), reader.table("limits"));
    reader.finish(|_| "the tables of this file are [service.NAME], [[rule]] and [limits]".into());
    let (tree, limits) = services::read(services.map(|at| at.value), &mut problems);
    let at_end = limits::at_end(ends.as_ref(), &mut problems);
    let rules = rules::read(rules, &tree, host, &mut problems);
    let ruleset = Ruleset::new(rules);
    rules::check(ruleset.rules(), &tree, &mut problems);
    let tuple_space = TupleSpace::new(&ruleset).map_err(|many| {
        let last = ruleset.rules().iter().rev().find(|rule| rule.events.contains(&many.event));
        let text = format!(
            "the rules on {} have {} different combinations of conditions, but at most \
            {MAX_TUPLES} are possible",
            many.event.name(),
            many.tuples
        );
        let help = "each combination costs one look-up per event, however many rules have it: use \
            fewer combinations";
        Problem::new(last.map_or(0..0, |rule| rule.span.clone()), text).help(help)
    });
    match tuple_space {
        Ok(tuple_space) if problems.is_empty() => {
            Ok(RuleFile { tree, limits, at_end, ruleset, tuple_space })
        }
        tuple_space => {
            problems.extend(tuple_space.err());
            problems.sort_by_key(|problem| problem.span.start);
            Err(problems)
        }
    }
}
