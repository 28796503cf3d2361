//! Rule files: TOML, checked as a whole, each problem with its place.

mod limits;
mod reader;
mod rules;
mod services;

pub use rules::socket as listen;

use std::collections::BTreeMap;
use std::ops::Range;

use toml::de::{DeTable, DeValue};

use crate::book::Book;
use crate::limits::{AtEnd, Limits};
use crate::tables::{MOST_SETS, Tables};
use crate::tree::{Id, Tree};
use reader::Reader;

/// Numbers of services have two bytes, of which the gate keeps some values for itself.
pub const MOST_SERVICES: usize = 4096;
pub const MOST_RULES: usize = 65_000;
/// Longer ones do not fit a line of `service top`, nor a control group's name with its parents'.
const LONGEST_NAME: usize = 64;
/// Messages repeat what is wrong, which may be a megabyte. In letters; no path of a socket is longer.
const LONGEST_MESSAGE: usize = 300;

/// What the machine says of names in a rule file.
pub trait Host {
    fn user(&self, name: &str) -> Option<u32>;
    /// Without links on the way, as far as it is there; a '/' at its end means nothing.
    fn real_path(&self, path: &str) -> String;
}

/// What is wrong with a rule file, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Bytes of the file.
    pub span: Range<usize>,
    pub message: String,
    /// Another place that has to do with it, and why.
    pub other: Option<(Range<usize>, String)>,
    /// What to do.
    pub help: Option<String>,
}

impl Problem {
    fn new(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { span, message: message.into(), other: None, help: None }
    }

    /// What it repeats of the file may be long, and is not to steer a terminal.
    fn tidy(mut self) -> Self {
        for text in [Some(&mut self.message), self.help.as_mut()].into_iter().flatten() {
            if let Some((end, _)) = text.char_indices().nth(LONGEST_MESSAGE) {
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
    /// Of the services that have some of their own.
    pub limits: BTreeMap<Id, Limits>,
    pub at_end: AtEnd,
    pub book: Book,
    pub tables: Tables,
}

pub fn parse(text: &str, host: &dyn Host) -> Result<RuleFile, Vec<Problem>> {
    read(text, host).map_err(|problems| problems.into_iter().map(Problem::tidy).collect())
}

fn read(text: &str, host: &dyn Host) -> Result<RuleFile, Vec<Problem>> {
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let place = |error: &toml::de::Error| error.span().unwrap_or(0..0);
        return Err(errors.iter().map(|error| Problem::new(place(error), error.message())).collect());
    }
    let mut problems = Problems::new();
    let mut reader = Reader::new(document.get_ref(), document.span(), &mut problems);
    let (services, rules, ends) = (reader.table("service"), reader.tables("rule"), reader.table("limits"));
    reader.finish(|_| "there are [service.NAME], [[rule]] and [limits]".into());
    let (tree, limits) = services::read(services.map(|at| at.value), &mut problems);
    let at_end = limits::at_end(ends.as_ref(), &mut problems);
    let rules = rules::read(rules, &tree, host, &mut problems);
    let book = Book::new(rules);
    rules::check(book.rules(), &tree, &mut problems);
    let tables = Tables::new(&book).map_err(|many| {
        let last = book.rules().iter().rev().find(|rule| rule.events.contains(&many.event));
        let text = format!(
            "the rules on {} ask for {} different combinations of conditions, of which {MOST_SETS} are possible",
            many.event.name(),
            many.sets
        );
        let help = "each combination costs a look-up at each event, however many rules have it: let more rules ask for the same";
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

/// As messages name what was found instead of something else.
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
