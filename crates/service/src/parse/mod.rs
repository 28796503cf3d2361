//! Parses rule files (TOML) and reports all problems of a file with their positions.

mod limits;
mod reader;
mod rules;
mod services;

pub use rules::socket as listen;

use std::collections::BTreeMap;
use std::ops::Range;

use toml::de::{DeTable, DeValue};

use crate::limits::{AtEnd, Limits};
use crate::ruleset::Ruleset;
use crate::tree::{Id, Tree};
use crate::tuple_space::{MAX_TUPLES, TupleSpace};
use reader::TableReader;

/// Service numbers have two bytes, and the gate reserves some of the values.
pub const MAX_SERVICES: usize = 4096;
pub const MAX_RULES: usize = 65_000;
/// Longer names do not fit into a line of `service top`, nor, together with those of the parents,
/// into the name of a control group.
const MAX_NAME_LEN: usize = 64;
/// In characters. Messages quote the file, where a value may have a megabyte. No path of a socket
/// is longer than this.
const MAX_MESSAGE_LEN: usize = 300;

/// Looks up names of a rule file on the machine.
pub trait Host {
    fn user(&self, name: &str) -> Option<u32>;
    /// The path with its symbolic links resolved, as far as it exists. A '/' at its end has no
    /// meaning.
    fn real_path(&self, path: &str) -> String;
}

/// A problem of a rule file and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The byte range in the file.
    pub span: Range<usize>,
    pub message: String,
    /// Another position that the problem involves, and why.
    pub other: Option<(Range<usize>, String)>,
    /// How to fix the problem.
    pub help: Option<String>,
}

impl Problem {
    fn new(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { span, message: message.into(), other: None, help: None }
    }

    /// Shortens texts that quote the file and removes control characters, which could control the
    /// terminal.
    fn sanitize(mut self) -> Self {
        for text in [Some(&mut self.message), self.help.as_mut()].into_iter().flatten() {
            if let Some((end, _)) = text.char_indices().nth(MAX_MESSAGE_LEN) {
                text.truncate(end);
                text.push('…');
            }
            if text.contains(char::is_control) {
                *text = text.replace(char::is_control, "?");
            }
        }
        self
    }

    fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    fn other(self, span: Range<usize>, why: impl Into<String>) -> Self {
        Self { other: Some((span, why.into())), ..self }
    }
}

type Problems = Vec<Problem>;

#[derive(Debug, Clone)]
pub struct RuleFile {
    pub tree: Tree,
    /// The limits of the services that have any.
    pub limits: BTreeMap<Id, Limits>,
    pub at_end: AtEnd,
    pub book: Ruleset,
    pub tables: TupleSpace,
}

pub fn parse(text: &str, host: &dyn Host) -> Result<RuleFile, Vec<Problem>> {
    read(text, host).map_err(|problems| problems.into_iter().map(Problem::sanitize).collect())
}

fn read(text: &str, host: &dyn Host) -> Result<RuleFile, Vec<Problem>> {
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let place = |error: &toml::de::Error| error.span().unwrap_or(0..0);
        return Err(errors
            .iter()
            .map(|error| Problem::new(place(error), error.message()))
            .collect());
    }
    let mut problems = Problems::new();
    let mut reader = TableReader::new(document.get_ref(), document.span(), &mut problems);
    let (services, rules, ends) =
        (reader.table("service"), reader.tables("rule"), reader.table("limits"));
    reader.finish(|_| "the tables of this file are [service.NAME], [[rule]] and [limits]".into());
    let (tree, limits) = services::read(services.map(|at| at.value), &mut problems);
    let at_end = limits::at_end(ends.as_ref(), &mut problems);
    let rules = rules::read(rules, &tree, host, &mut problems);
    let book = Ruleset::new(rules);
    rules::check(book.rules(), &tree, &mut problems);
    let tables = TupleSpace::new(&book).map_err(|many| {
        let last = book.rules().iter().rev().find(|rule| rule.events.contains(&many.event));
        let text = format!(
            "the rules on {} have {} different combinations of conditions, but at most \
            {MAX_TUPLES} are possible",
            many.event.name(),
            many.sets
        );
        let help = "each combination costs one look-up per event, however many rules have it: use \
            fewer combinations";
        Problem::new(last.map_or(0..0, |rule| rule.span.clone()), text).help(help)
    });
    match tables {
        Ok(tables) if problems.is_empty() => Ok(RuleFile { tree, limits, at_end, book, tables }),
        tables => {
            problems.extend(tables.err());
            problems.sort_by_key(|problem| problem.span.start);
            Err(problems)
        }
    }
}

/// A name for a value of an unexpected type, for messages.
fn kind(value: &DeValue) -> String {
    let kind = match value {
        DeValue::Integer(number) => return number.to_string(),
        DeValue::String(_) => "a string",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(true) => "true",
        DeValue::Boolean(false) => "false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    };
    kind.into()
}
