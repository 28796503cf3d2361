//! A table's keys, each asked for by its name; those that nobody asked for are problems.

use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{LONGEST_NAME, Problem, Problems, kind};

/// A value, and where it is.
pub struct At<T> {
    pub value: T,
    pub span: Range<usize>,
}

pub struct Reader<'text, 'problems> {
    table: &'text DeTable<'text>,
    pub span: Range<usize>,
    asked: BTreeSet<&'static str>,
    pub problems: &'problems mut Problems,
}

/// Comparing names takes time: of more problems, nobody sees more at first (`service check`).
const MOST_SUGGESTIONS: usize = 20;

impl Problem {
    /// With the known name that is nearest, if half of its letters are the same, or else with the other help.
    pub(super) fn suggest<'a>(
        self,
        name: &str,
        known: impl IntoIterator<Item = &'a str>,
        problems: &Problems,
        otherwise: impl FnOnce() -> Option<String>,
    ) -> Self {
        let likeness = |known: &'a str| (strsim::normalized_damerau_levenshtein(name, known), known);
        let is_worth_it = problems.len() < MOST_SUGGESTIONS && name.len() <= LONGEST_NAME;
        let near =
            known.into_iter().filter(|_| is_worth_it).map(likeness).filter(|(likeness, _)| *likeness >= 0.5);
        let best = near.max_by(|a, b| a.0.total_cmp(&b.0));
        let help = best.map(|(_, near)| format!("did you mean {near:?}?")).or_else(otherwise);
        Self { help, ..self }
    }
}

impl<'text, 'problems> Reader<'text, 'problems> {
    pub fn new(table: &'text DeTable<'text>, span: Range<usize>, problems: &'problems mut Problems) -> Self {
        Self { table, span, asked: BTreeSet::new(), problems }
    }

    fn value(&mut self, key: &'static str) -> Option<&'text Spanned<DeValue<'text>>> {
        self.asked.insert(key);
        self.table.get(key)
    }

    fn typed<T>(
        &mut self,
        key: &'static str,
        wanted: &str,
        read: impl FnOnce(&'text DeValue<'text>) -> Option<T>,
    ) -> Option<At<T>> {
        let value = self.value(key)?;
        let read = read(value.get_ref());
        if read.is_none() {
            let found = kind(value.get_ref());
            self.problems.push(Problem::new(value.span(), format!("{key} is to be {wanted}, not {found}")));
        }
        Some(At { value: read?, span: value.span() })
    }

    pub fn string(&mut self, key: &'static str) -> Option<At<&'text str>> {
        let text = self.typed(key, "a string", DeValue::as_str)?;
        if text.value.is_empty() || text.value.chars().any(char::is_control) {
            let what = if text.value.is_empty() { "is empty" } else { "has a control character" };
            self.problems.push(Problem::new(text.span, format!("{key} {what}")));
            return None;
        }
        Some(text)
    }

    pub fn integer(&mut self, key: &'static str, range: RangeInclusive<i64>) -> Option<At<i64>> {
        let wanted = format!("an integer from {} to {}", range.start(), range.end());
        self.typed(key, &wanted, |value| {
            let integer = value.as_integer()?;
            i64::from_str_radix(integer.as_str(), integer.radix()).ok().filter(|n| range.contains(n))
        })
    }

    /// Its help, if there is a problem since there were `known`.
    pub fn help_since(&mut self, known: usize, help: impl FnOnce() -> String) {
        if let Some(problem) = self.problems.get_mut(known) {
            problem.help.get_or_insert_with(help);
        }
    }

    /// That it is so; what is not so is left out.
    pub fn flag(&mut self, key: &'static str) -> Option<Range<usize>> {
        self.typed(key, "true, or left out", |value| value.as_bool().filter(|is_so| *is_so)).map(|at| at.span)
    }

    /// One string or several.
    pub fn strings(&mut self, key: &'static str) -> Option<Vec<At<&'text str>>> {
        // The only string's place is the whole value's.
        let whole = self.value(key)?.span();
        let strings = self.typed(key, "a string or an array of strings", |value| match value {
            DeValue::Array(array) => array
                .iter()
                .map(|one| Some(At { value: one.get_ref().as_str()?, span: one.span() }))
                .collect::<Option<Vec<_>>>(),
            value => Some(vec![At { value: value.as_str()?, span: whole }]),
        })?;
        Some(strings.value)
    }

    pub fn table(&mut self, key: &'static str) -> Option<At<&'text DeTable<'text>>> {
        self.typed(key, "a table", DeValue::as_table)
    }

    pub fn tables(&mut self, key: &'static str) -> Vec<At<&'text DeTable<'text>>> {
        let tables = self.typed(key, "an array of tables ([[…]])", |value| {
            let table = |one: &'text Spanned<DeValue<'text>>| {
                Some(At { value: one.get_ref().as_table()?, span: one.span() })
            };
            value.as_array()?.iter().map(table).collect::<Option<Vec<_>>>()
        });
        tables.map_or_else(Vec::new, |at| at.value)
    }

    pub fn problem(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// With the known name that is nearest to the wrong one, or else all of them.
    pub fn suggest(
        &mut self,
        problem: Problem,
        name: &str,
        known: impl Iterator<Item = &'static str> + Clone,
    ) {
        let all = || Some(format!("there are: {}", known.clone().collect::<Vec<_>>().join(", ")));
        let problem = problem.suggest(name, known.clone(), self.problems, all);
        self.problems.push(problem);
    }

    /// Tells of the keys that nobody asked for; of a table that is not to be here, `of_table` what is.
    pub fn finish(self, of_table: impl Fn(&str) -> String) {
        for (key, value) in self.table {
            let name: &str = key.get_ref().as_ref();
            if !self.asked.contains(name) {
                let known = || self.asked.iter().copied();
                let list = || match value.get_ref() {
                    DeValue::Table(_) => of_table(name),
                    _ => format!("there are: {}", known().collect::<Vec<_>>().join(", ")),
                };
                let problem = Problem::new(key.span(), format!("there is no key {name:?} here"));
                self.problems.push(problem.suggest(name, known(), self.problems, || Some(list())));
            }
        }
    }
}
