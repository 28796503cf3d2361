//! Reads the keys of a table by name; keys that were not read are problems.

use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use crate::problem::{Problem, Problems};

/// A value and its byte range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// The byte range of the value in the file.
    pub span: Range<usize>,
}

impl<T> At<T> {
    /// Another value in the place of this one.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> At<U> {
        At { value: change(self.value), span: self.span }
    }
}

/// Reads the keys of a table, and collects the problems.
pub struct TableReader<'text, 'problems> {
    table: &'text DeTable<'text>,
    /// The byte range of the table in the file.
    pub span: Range<usize>,
    read_keys: BTreeSet<&'static str>,
    /// The problems so far, of this table and of others.
    pub problems: &'problems mut Problems,
}

impl<'text, 'problems> TableReader<'text, 'problems> {
    /// Creates a reader. Call [`TableReader::finish`] after all keys have been read.
    pub fn new(
        table: &'text DeTable<'text>,
        span: Range<usize>,
        problems: &'problems mut Problems,
    ) -> Self {
        Self { table, span, read_keys: BTreeSet::new(), problems }
    }

    fn value(&mut self, key: &'static str) -> Option<&'text Spanned<DeValue<'text>>> {
        self.read_keys.insert(key);
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
            self.problems
                .push(Problem::new(value.span(), format!("{key} must be {wanted}, not {found}")));
        }
        Some(At { value: read?, span: value.span() })
    }

    /// A string that is neither empty nor has control characters.
    pub fn string(&mut self, key: &'static str) -> Option<At<&'text str>> {
        let text = self.typed(key, "a string", DeValue::as_str)?;
        if text.value.is_empty() || text.value.chars().any(char::is_control) {
            let what = if text.value.is_empty() { "is empty" } else { "has a control character" };
            self.problems.push(Problem::new(text.span, format!("{key} {what}")));
            return None;
        }
        Some(text)
    }

    /// An integer in a range.
    pub fn integer(&mut self, key: &'static str, range: RangeInclusive<i64>) -> Option<At<i64>> {
        let wanted = format!("an integer from {} to {}", range.start(), range.end());
        self.typed(key, &wanted, |value| {
            let integer = value.as_integer()?;
            i64::from_str_radix(integer.as_str(), integer.radix())
                .ok()
                .filter(|n| range.contains(n))
        })
    }

    /// A number in a range, with or without a fraction.
    pub fn number(&mut self, key: &'static str, range: RangeInclusive<f64>) -> Option<At<f64>> {
        let wanted = format!("a number from {} to {}", range.start(), range.end());
        self.typed(key, &wanted, |value| {
            let number: f64 = match value {
                DeValue::Integer(number) if number.radix() == 10 => number.as_str().parse(),
                DeValue::Float(number) => number.as_str().parse(),
                _ => return None,
            }
            .ok()?;
            Some(number).filter(|number| range.contains(number))
        })
    }

    /// The byte range of a value.
    pub fn value_span(&mut self, key: &'static str) -> Option<Range<usize>> {
        self.value(key).map(Spanned::span)
    }

    /// Reads a value, and adds a help text to each problem with it that has none.
    pub fn with_help<T>(&mut self, help: &str, read: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.problems.len();
        let value = read(self);
        for problem in &mut self.problems[before..] {
            problem.help.get_or_insert_with(|| help.to_owned());
        }
        value
    }

    /// A key that is `true` or left out; `false` is a problem.
    pub fn flag(&mut self, key: &'static str) -> Option<Range<usize>> {
        self.typed(key, "true (or left out)", |value| value.as_bool().filter(|is_so| *is_so))
            .map(|at| at.span)
    }

    /// Reads `true` or `false`.
    pub fn boolean(&mut self, key: &'static str) -> Option<bool> {
        self.typed(key, "true or false", DeValue::as_bool).map(|at| at.value)
    }

    /// A string or an array of strings. Without those entries of the array that are no strings.
    pub fn strings(&mut self, key: &'static str) -> Option<Vec<At<&'text str>>> {
        let value = self.typed(key, "a string or an array of strings", |value| {
            matches!(value, DeValue::String(_) | DeValue::Array(_)).then_some(value)
        })?;
        match value.value {
            DeValue::Array(array) => Some(self.entries(key, "a string", array, DeValue::as_str)),
            single => Some(vec![At { value: single.as_str()?, span: value.span }]),
        }
    }

    /// The entries of an array; each entry of another type is a problem.
    fn entries<T>(
        &mut self,
        key: &str,
        wanted: &str,
        array: &'text DeArray<'text>,
        read: impl Fn(&'text DeValue<'text>) -> Option<T>,
    ) -> Vec<At<T>> {
        let mut entries = Vec::new();
        for entry in array.iter() {
            match read(entry.get_ref()) {
                Some(value) => entries.push(At { value, span: entry.span() }),
                None => {
                    let found = kind(entry.get_ref());
                    let text = format!("each entry of {key} must be {wanted}, not {found}");
                    self.problems.push(Problem::new(entry.span(), text));
                }
            }
        }
        entries
    }

    /// A table.
    pub fn table(&mut self, key: &'static str) -> Option<At<&'text DeTable<'text>>> {
        self.typed(key, "a table", DeValue::as_table)
    }

    /// An array of tables; empty without the key. Without those entries that are no tables.
    pub fn tables(&mut self, key: &'static str) -> Vec<At<&'text DeTable<'text>>> {
        self.with_help(&format!("write [[{key}]] before each table"), |reader| {
            let array = reader.typed(key, "an array of tables ([[…]])", DeValue::as_array);
            array.map_or_else(Vec::new, |at| {
                reader.entries(key, "a table", at.value, DeValue::as_table)
            })
        })
    }

    /// Adds a problem.
    pub fn problem(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// Adds a problem, with the nearest known name or else a list of all known names.
    pub fn suggest(
        &mut self,
        problem: Problem,
        name: &str,
        known: impl Iterator<Item = &'static str> + Clone,
    ) {
        let all = || Some(format!("known names: {}", known.clone().collect::<Vec<_>>().join(", ")));
        let problem = problem.suggest(name, known.clone(), self.problems, all);
        self.problems.push(problem);
    }

    /// Adds a problem for each key that was not read, and returns all problems. `of_table` gives
    /// the help for an unknown table.
    pub fn finish(self, of_table: impl Fn(&str) -> String) -> &'problems mut Problems {
        for (key, value) in self.table {
            let name: &str = key.get_ref().as_ref();
            if !self.read_keys.contains(name) {
                let known = || self.read_keys.iter().copied();
                let list = || match value.get_ref() {
                    DeValue::Table(_) => of_table(name),
                    _ => format!("known names: {}", known().collect::<Vec<_>>().join(", ")),
                };
                let problem = Problem::new(key.span(), format!("unknown key {name:?}"));
                let problem = problem.suggest(name, known(), self.problems, || Some(list()));
                self.problems.push(problem);
            }
        }
        self.problems
    }
}

/// A name for a value of an unexpected type, for messages.
fn kind(value: &DeValue) -> String {
    let kind = match value {
        DeValue::Integer(number) => return number.to_string(),
        DeValue::Float(number) => return number.to_string(),
        DeValue::String(_) => "a string",
        DeValue::Boolean(true) => "true",
        DeValue::Boolean(false) => "false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    };
    kind.into()
}
